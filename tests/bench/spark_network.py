"""Cost of reads over the network: in bulk and by pulls, reader and broker together.

tests/bench/spark_speed.py calls it; alone it is `python -m tests.bench.spark_network [--messages
N]`. A broker process of this checkout serves a store, and the tasks of a read run in this process,
one after the other. Processor time is that of both; the second table shows the effect on senders.
"""

import json
import os
import sys
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from time import monotonic, process_time

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.send import SendMessageHeader
from remoting.sync_connection import SyncConnection
from spark.decoding.columns import MESSAGE_COLUMNS
from spark.decoding.store_files import Store
from spark.source.plan import QueueRange
from spark.source.row_filter import RowFilter
from spark.source.tasks import NetworkReader
from tests.bench.process_figures import scheduled_us
from tests.bench.spark_store import FILE_BYTES, QUEUES_OF_A_TOPIC, TOPICS, make_store
from tests.compat.child import Child
from tests.compat.patience import wait_until

HOST = "127.0.0.1"
BROKER = "a"
COLUMNS = ("topic", "queueId", "queueOffset", "commitLogOffset", "storedBody", "storedProperties")
ALL = tuple(MESSAGE_COLUMNS)
PULLED_ROWS = 100_000
QUIET_US, QUIET_LOOKS = 3_000, 20
"""Between two looks, 50 ms apart."""
ROUNDS = 3
QUEUES_MAX = 16
SENDS = 2_000
SENT_TO = "Sent"


@dataclass(frozen=True)
class Served:
    """A broker process over a store."""

    pid: int
    address: str
    ranges: list[QueueRange]

    @property
    def rows(self) -> int:
        return sum(part.end - part.first for part in self.ranges)


@contextmanager
def serving(root: Path, scratch: Path) -> Iterator[Served]:
    """A broker over the store at `root`, which it changes."""
    store = Store(str(root))
    ranges = [
        QueueRange(topic, number, 0, store.queue(topic, number).max_offset(), broker=BROKER)
        for topic, number in store.queue_names()
    ]
    scratch.mkdir()
    config, ready = scratch / "broker.conf", scratch / "ready"
    config.write_text(
        f"brokerName={BROKER}\nbrokerIP1={HOST}\nlistenPort=0\nnamesrvAddr={HOST}:1\n"
        f"mappedFileSizeCommitLog={FILE_BYTES}\nstorePathRootDir={root}\n"
    )
    command = [sys.executable, "-m", "troupemq", "broker", "-c", str(config)]
    child = Child([*command, "--ready-file", str(ready)], scratch / "log")
    try:
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "the broker serves")
        address = f"{HOST}:{json.loads(ready.read_text())['broker']}"
        with SyncConnection(address) as line:
            for topic in {part.topic for part in ranges} | {SENT_TO}:
                header = CreateTopicHeader(topic, "TBW102", QUEUES_MAX, QUEUES_MAX, 6, "SINGLE_TAG")
                line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        wait_until(Quiet(child.pid), "the broker has done what a start leaves it to do", 300)
        yield Served(child.pid, address, ranges)
    finally:
        child.stop()


class Quiet:
    """Whether a process has had next to nothing to do at the last few looks at it.

    A broker that starts over a store of others makes its index, and looks through the log.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_us, self._quiet = 0.0, 0

    def __call__(self) -> bool:
        used_us = scheduled_us(self._pid)
        is_quiet = used_us - self._used_us < QUIET_US
        self._used_us, self._quiet = used_us, self._quiet + 1 if is_quiet else 0
        return self._quiet >= QUIET_LOOKS


def read(broker: Served, ranges: list[QueueRange], columns: tuple[str, ...], *, bulk: bool) -> int:
    """Return the number of rows."""
    reader = NetworkReader(
        {BROKER: broker.address}, (BROKER,) if bulk else (), columns, RowFilter(), True
    )
    return sum(batch.num_rows for batch in reader.read(ranges))


def first_rows(ranges: list[QueueRange], rows: int) -> list[QueueRange]:
    """So many of them, of each queue its share."""
    total = sum(part.end for part in ranges)
    return [
        QueueRange(part.topic, part.queue_id, 0, max(1, part.end * rows // total), 0, part.broker)
        for part in ranges
    ]


class Table:
    """Rows of figures, printed as they come."""

    def __init__(self, record_bytes: float) -> None:
        self._record_bytes = record_bytes
        print("| what | rows/s | MB/s | core-s/GB, reader | broker |")
        print("| --- | ---: | ---: | ---: | ---: |")

    def best(self, what: str, broker: Served, work: Callable[[], int], rounds: int) -> None:
        """`work` gives its rows; the round with the least processor time counts."""
        found = []
        for _ in range(rounds):
            wall, own, others = monotonic(), process_time(), scheduled_us(broker.pid)
            rows = work()
            took = monotonic() - wall, process_time() - own
            found.append((took[1], (scheduled_us(broker.pid) - others) / 1e6, took[0]))
        own, others, wall = min(found, key=lambda each: each[0] + each[1])
        gb = rows * self._record_bytes / 1e9
        print(
            f"| {what} | {rows / wall:,.0f} | {gb * 1000 / wall:,.0f} | {own / gb:.2f} "
            f"| {others / gb:.2f} |",
            flush=True,
        )


def network(root: Path, scratch: Path, record_bytes: float) -> None:
    """Rows of what reading the store at `root` costs from a broker, which changes it."""
    with serving(root, scratch) as broker:
        table = Table(record_bytes)
        some = first_rows(broker.ranges, PULLED_ROWS)
        for what, columns in (("6", COLUMNS), ("all 19", ALL)):

            def in_bulk(columns: tuple[str, ...] = columns) -> int:
                return read(broker, broker.ranges, columns, bulk=True)

            def by_pulls(columns: tuple[str, ...] = columns) -> int:
                return read(broker, some, columns, bulk=False)

            table.best(f"over the network, raw, {what} columns", broker, in_bulk, ROUNDS)
            table.best(f"over the network, pulls, {what} columns", broker, by_pulls, ROUNDS)
        beside(broker)


def beside(broker: Served) -> None:
    """Return the latency of a producer's sends beside a reader at full speed.

    The minimum of some alternating rounds counts, since other work only adds.
    """
    ways: dict[str, bool | None] = {
        "nobody reads": None,
        "a reader, raw": True,
        "a reader, pulls": False,
    }
    found: dict[str, list[tuple[float, ...]]] = {what: [] for what in ways}
    for _ in range(ROUNDS):
        for what, bulk in ways.items():
            with reading(broker, bulk):
                times = sorted(send_times(broker))
            found[what].append(tuple(times[len(times) * part // 100] * 1000 for part in (50, 99)))
    print("\n| while | sends, p50 ms | p99 ms |\n| --- | ---: | ---: |")
    for what, rounds in found.items():
        middle, high = map(min, zip(*rounds, strict=True))
        print(f"| {what} | {middle:.2f} | {high:.2f} |", flush=True)


@contextmanager
def reading(broker: Served, bulk: bool | None) -> Iterator[None]:
    """A process that reads all over again; none for None."""
    if bulk is None:
        yield
        return
    ranges = [(part.topic, part.queue_id, part.end) for part in broker.ranges]
    told = json.dumps([broker.address, bulk, ranges])
    command = [sys.executable, "-m", "tests.bench.spark_network", "--read", told]
    with Popen(command, stdout=PIPE) as reader:
        try:
            assert reader.stdout is not None and reader.stdout.readline(), "no reader"
            yield
        finally:
            reader.kill()


def read_for_ever(told: str) -> None:
    """The process above; it says when it has begun."""
    address, bulk, ranges = json.loads(told)
    parts = [QueueRange(topic, number, 0, end, broker=BROKER) for topic, number, end in ranges]
    reader = NetworkReader({BROKER: address}, (BROKER,) if bulk else (), (), RowFilter(), True)
    print("reading", flush=True)
    while True:
        for _ in reader.read(parts):
            pass


def send_times(broker: Served) -> list[float]:
    """Return the duration of each send, one after the other, in s."""
    header = SendMessageHeader("bench", SENT_TO, "TBW102", 1, 0, 0, 0, 0, "", 0)
    times = []
    with SyncConnection(broker.address) as line:
        for _ in range(SENDS):
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.encode_v2(), b"x" * 128)
            started = monotonic()
            line.ask(command)
            times.append(monotonic() - started)
    return times


def main() -> None:
    parser = ArgumentParser(prog="spark_network", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--read", help=SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read_for_ever(options.read)
    with TemporaryDirectory(prefix="spark-network-") as directory:
        root = Path(directory)
        for what, topics, queues in (
            ("one queue", (b"ONE",), 1),
            ("three topics, three queues each", TOPICS, QUEUES_OF_A_TOPIC),
            ("sixteen queues in turn", (b"ONE",), QUEUES_MAX),
        ):
            print(
                f"\n{options.messages:,} messages, {what}; load average {os.getloadavg()[0]:.1f}\n"
            )
            store = root / f"store {queues}"
            make_store(store, options.messages, topics=topics, queues=queues)
            record_bytes = stored_bytes(Store(str(store))) / options.messages
            network(store, root / f"broker {queues}", record_bytes)


def stored_bytes(store: Store) -> int:
    """Return the total bytes of all records."""
    return sum(
        int(units["record_bytes"].sum(dtype="i8"))
        for name in store.queue_names()
        for _, units in store.queue(*name).chunks(0)
    )


if __name__ == "__main__":
    main()
