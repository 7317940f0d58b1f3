"""What a message costs a slave: `python -m tests.bench.replica_cpu [NAME=CHECKOUT …]`; a table.

Slave processes, one from each checkout of this project (this one, unless others are named), follow
a master that is played here: it gives so many records with a transfer, the next when the slave has
reported all of them, as the producers of a SYNC_MASTER make it.  Each figure is processor time of
the slave, kernel included, in µs a message: the least of the rounds, and their median; "µs a turn"
is the time on the clock from a transfer to its report, median of the rounds.  Other work on the
machine delays the rounds more than it changes the processor times.
"""

import sys
from argparse import ArgumentParser
from contextlib import ExitStack
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_server
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from protocol.ha import REPORT_BYTES, encode_transfer_head
from protocol.message import (
    PHYSICAL_OFFSET_POSITION,
    QUEUE_OFFSET_POSITION,
    MessageRecord,
    encode_record,
)
from tests.bench.process_figures import scheduled_us
from tests.compat.child import Child

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
TOPIC = "BenchmarkTest"
QUEUES = 8
DISTINCT = 8_000
"""Records made beforehand; then they come again, with other offsets."""

WARM_UP = 16_000
LOG_BYTES = 1 << 30
"""Of one file; the stand-in makes no second one."""


def _records() -> list[bytes]:
    """As the broker stores what the Java client sends: 128-byte bodies, a unique key and a tag."""
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

    def __init__(self, name: str, checkout: Path, scratch: Path, records: list[bytes]) -> None:
        self.name = name
        self.figures: list[float] = []
        self.turns_us: list[float] = []
        self._records, self._next, self._offset = records, 0, 0
        scratch.mkdir(parents=True)
        listener = create_server((HOST, 0))
        config = scratch / "broker.conf"
        config.write_text(
            f"brokerName=a\nbrokerId=1\nbrokerRole=SLAVE\nbrokerIP1={HOST}\nlistenPort=0\n"
            f"namesrvAddr={HOST}:1\nhaMasterAddress={HOST}:{listener.getsockname()[1]}\n"
            f"storePathRootDir={scratch / 'store'}\nhaHousekeepingInterval=3600000\n"
        )
        self.child = Child(
            [sys.executable, "-m", "troupemq", "broker", "-c", str(config)],
            scratch / "log",
            {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
        )
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
    parser = ArgumentParser(prog="python -m tests.bench.replica_cpu", description=__doc__)
    parser.add_argument("--with-each", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--messages", type=int, default=8_000, help="of a round")
    parser.add_argument("brokers", nargs="*", default=[f"here={ROOT}"], metavar="NAME=CHECKOUT")
    options = parser.parse_args()
    records = _records()
    print(f"{'slave':<16}{'with each':>10}{'least µs':>10}{'median µs':>11}{'µs a turn':>11}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="troupemq-replica-cpu-")))
        brokers: list[FollowedBroker] = []
        for number, text in enumerate(options.brokers):
            name, _, checkout = text.partition("=")
            broker = FollowedBroker(name, Path(checkout), scratch / str(number), records)
            stack.callback(broker.close)
            broker.load(16, WARM_UP)
            brokers.append(broker)
        for size in options.with_each:
            for broker in brokers:
                broker.load(size, 8 * size)
                broker.figures.clear()
                broker.turns_us.clear()
            for number in range(options.rounds):
                for broker in brokers if number % 2 else reversed(brokers):
                    broker.load(size, options.messages)
            for broker in brokers:
                least, middle = min(broker.figures), median(broker.figures)
                turn = median(broker.turns_us)
                print(
                    f"{broker.name:<16}{size:>10}{least:>10.2f}{middle:>11.2f}{turn:>11.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
