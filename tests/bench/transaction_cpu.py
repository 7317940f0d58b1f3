"""Cost of a transaction for a broker: `python -m tests.bench.transaction_cpu [NAME=CHECKOUT …]`.

A number of half messages and commits are in flight over one socket; otherwise it works like
tests/bench/send_cpu.py.
"""

from pathlib import Path

from protocol.codes import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    LanguageCode,
    RequestCode,
    SerializeType,
)
from protocol.frame import RemotingCommand, decode_frame, encode
from protocol.headers.send import SendMessageHeader
from protocol.headers.transaction import EndTransactionHeader
from tests.bench.in_turn import Build, compare, parser_of
from tests.bench.process_figures import scheduled_us
from tests.bench.send_cpu import READ_BYTES, TOPIC, LoadedBroker

GROUP = "group"
WARM_UP = 4_000
DISTINCT = 4_000


def half_frames(kind: SerializeType = SerializeType.ROCKETMQ) -> list[bytes]:
    """Return frames as the Java client encodes them."""
    frames = []
    for number in range(DISTINCT):
        properties = (
            f"UNIQ_KEY\x01C0A80102279300000000946E{number:012X}\x02WAIT\x01true\x02TRAN_MSG\x01true"
            f"\x02PGROUP\x01{GROUP}\x02TAGS\x01TagA"
        )
        header = SendMessageHeader(
            GROUP, TOPIC, "TBW102", 8, number % 8, TRANSACTION_PREPARED, 1_700_000_000_000, 0,
            properties, 0,
        )  # fmt: skip
        frames.append(
            _frame(RequestCode.SEND_MESSAGE_V2, header.encode_v2(), number, kind, b"x" * 128)
        )
    return frames


def _frame(
    code: int, fields: dict[str, str], number: int, kind: int, body: bytes | None = None
) -> bytes:
    command = RemotingCommand(
        code,
        fields,
        body,
        opaque=number,
        language=LanguageCode.JAVA,
        version=399,
        serialize_type=kind,
    )
    return encode(command)


class CommittingBroker(LoadedBroker):
    """Gets half messages, and commits of what it has answered."""

    def load(self, size: int, least: int) -> None:
        done = 0
        before = scheduled_us(self.child.pid)
        while done < least:
            if self._next + size > len(self._frames):
                self._next = 0
            self._socket.sendall(b"".join(self._frames[self._next : self._next + size]))
            ends = []
            for frame in self._answers(size):
                fields = frame.fields or {}
                place = int(fields["msgId"][16:], 16)
                header = EndTransactionHeader(
                    GROUP, int(fields["queueOffset"]), place, TRANSACTION_COMMIT
                )
                ends.append(
                    _frame(
                        RequestCode.END_TRANSACTION,
                        header.encode(),
                        frame.opaque,
                        frame.serialize_type,
                    )
                )
            self._socket.sendall(b"".join(ends))
            self._answers(size)
            self._next += size
            done += size
        self.figures.append((scheduled_us(self.child.pid) - before) / done)
        self.turns_us.append(0)

    def _answers(self, count: int) -> list[RemotingCommand]:
        found: list[RemotingCommand] = []
        data = b""
        while len(found) < count:
            data += self._socket.recv(READ_BYTES)
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4])):
                found.append(decode_frame(data[4:end]))
                if found[-1].code:
                    raise ConnectionError(f"{self.name} answers {found[-1]}")
                data = data[end:]
        return found


def main() -> None:
    parser = parser_of("tests.bench.transaction_cpu", __doc__, "--at-a-time")
    parser.add_argument("--json", action="store_true", help="use JSON headers")
    options = parser.parse_args()
    frames = half_frames(SerializeType.JSON if options.json else SerializeType.ROCKETMQ)

    def make(name: str, build: Build, scratch: Path) -> CommittingBroker:
        return CommittingBroker(name, build, scratch, frames, is_sync_master=False)

    compare(options.brokers, make, options.sizes, options.rounds, options.messages, WARM_UP)


if __name__ == "__main__":
    main()
