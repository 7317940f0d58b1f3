"""Cost of a message for a slave: `python -m tests.bench.replica_cpu [NAME=CHECKOUT …]`; a table.

Slave processes, one from each checkout (this one by default), replicate from a simulated master. It
sends a number of records with each transfer, and the next when the slave has reported them, like
the producers of a SYNC_MASTER. The figures are those of tests/bench/in_turn.py.
"""

from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_server
from statistics import median
from time import perf_counter

from protocol.ha import REPORT_BYTES, encode_transfer_head
from protocol.message import (
    PHYSICAL_OFFSET_POSITION,
    QUEUE_OFFSET_POSITION,
    MessageRecord,
    encode_record,
)
from tests.bench.in_turn import Build, broker_of, compare, parser_of
from tests.bench.process_figures import scheduled_us

HOST = "127.0.0.1"
TOPIC = "BenchmarkTest"
QUEUES = 8
DISTINCT = 8_000
"""Records made beforehand; then they come again, with other offsets."""

WARM_UP = 16_000
LOG_BYTES = 1 << 30
"""Bytes of one log file; the simulated master creates no second one."""


def _records() -> list[bytes]:
    """Return records as the broker stores sends of the Java client: 128-byte bodies, a unique key
    and a tag.
    """
    made = []
    for number in range(DISTINCT):
        born_ms = 1_700_000_000_000 + number // 50
        properties = (
            f"UNIQ_KEY\x01C0A80102279300000000946E{born_ms & 0xFFFFFFFF:08X}{number & 0xFFFF:04X}"
            "\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA"
        )
        record = MessageRecord(TOPIC, b"x" * 128, properties.encode(), number % QUEUES)
        record.born_timestamp = record.store_timestamp = born_ms
        made.append(encode_record(record))
    return made


class FollowedBroker:
    """A slave process, and its master's end of the connection."""

    def __init__(self, name: str, build: Build, scratch: Path, records: list[bytes]) -> None:
        self.name = name
        self.figures: list[float] = []
        self.turns_us: list[float] = []
        self._records, self._next, self._offset = records, 0, 0
        listener = create_server((HOST, 0))
        config = (
            f"brokerName=a\nbrokerId=1\nbrokerRole=SLAVE\nbrokerIP1={HOST}\nlistenPort=0\n"
            f"namesrvAddr={HOST}:1\nhaMasterAddress={HOST}:{listener.getsockname()[1]}\n"
            f"haHousekeepingInterval=3600000\n"
        )
        self.child = broker_of(build, config, scratch)
        listener.settimeout(30)
        with listener:
            self._socket, _ = listener.accept()
        self._socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        self._socket.settimeout(30)
        self._read_report()
        self._socket.sendall(encode_transfer_head(0, 0))  # its log begins there
        self._read_report()

    def load(self, size: int, least: int) -> None:
        """Gives `least` messages or some more, `size` with each transfer."""
        done, turns = 0, []
        before = scheduled_us(self.child.pid)
        while done < least:
            data = self._transfer(size)
            began = perf_counter()
            self._socket.sendall(data)
            while self._read_report() < self._offset:
                pass
            turns.append(perf_counter() - began)
            done += size
        self.figures.append((scheduled_us(self.child.pid) - before) / done)
        self.turns_us.append(median(turns) * 1e6)

    def _transfer(self, size: int) -> bytes:
        begin = self._offset
        pieces: list[bytes | bytearray] = [b""]
        for number in range(self._next, self._next + size):
            record = bytearray(self._records[number % DISTINCT])
            for position, value in (
                (QUEUE_OFFSET_POSITION, number // QUEUES),
                (PHYSICAL_OFFSET_POSITION, self._offset),
            ):
                record[position : position + 8] = value.to_bytes(8)
            pieces.append(record)
            self._offset += len(record)
        if self._offset > LOG_BYTES - 8:
            raise SystemExit("too many messages for one file of the log: fewer rounds, please")
        self._next += size
        pieces[0] = encode_transfer_head(begin, self._offset - begin)
        return b"".join(pieces)

    def _read_report(self) -> int:
        """The newest one."""
        data = b""
        while not data or len(data) % REPORT_BYTES:
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionError(f"{self.name} closed the connection")
            data += part
        return int.from_bytes(data[-REPORT_BYTES:])

    def close(self) -> None:
        self._socket.close()
        self.child.stop()


def main() -> None:
    parser = parser_of("tests.bench.replica_cpu", __doc__, "--with-each")
    options = parser.parse_args()
    records = _records()

    def make(name: str, build: Build, scratch: Path) -> FollowedBroker:
        return FollowedBroker(name, build, scratch, records)

    compare(options.brokers, make, options.sizes, options.rounds, options.messages, WARM_UP)


if __name__ == "__main__":
    main()
