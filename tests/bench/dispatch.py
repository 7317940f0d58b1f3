"""Cost of dispatch: entries into queues and index, keys into hashes, pulls from a queue.

`python -m tests.bench.dispatch [DIRECTORY]` prints a small table and asserts nothing.
"""

import sys
from collections.abc import Callable
from shutil import rmtree
from tempfile import mkdtemp
from time import process_time_ns

from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.dispatching.dispatch import Dispatcher, index_keys
from storage.files.disk import RealDisk
from storage.index.index import Index
from storage.index.key_hash import TopicHashes
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import DispatchEntry
from storage.reading.get_message import GetLimits, get_message

RECORD_BYTES = 250
ENTRY_COUNT = 200_000
PULL_COUNT = 20_000
KEY_COUNT = 100_000
TOPIC = b"BenchmarkTest"
ROUNDS = 5
"""The best of them is printed: other work on the machine only ever adds."""


def unique_key(number: int) -> bytes:
    """Return a key in the Java client's form: fixed head, milliseconds, counter."""
    return b"7F00000100002A9F6D06D69C%08X%04X" % (0x1A2B3C4D + number // 50, number & 0xFFFF)


def entries(queue_count: int, count: int) -> list[DispatchEntry]:
    """Records of one topic, dealt round its queues, one UNIQ_KEY each."""
    return [
        DispatchEntry(
            TOPIC,
            number % queue_count,
            number // queue_count,
            number * RECORD_BYTES,
            RECORD_BYTES,
            0,
            1_700_000_000_000 + number // 50,
            0,
            (unique_key(number),),
        )
        for number in range(count)
    ]


def timed(work: Callable[[], object], count: int) -> float:
    """Microseconds of processor time per item, the kernel's part included."""
    start = process_time_ns()
    work()
    return (process_time_ns() - start) / 1000 / count


def best(work: Callable[[], object]) -> float:
    """Return the best of some rounds over KEY_COUNT keys."""
    return min(timed(work, KEY_COUNT) for _ in range(ROUNDS))


def row(what: str, figure: float) -> None:
    print(f"{what:<58} {figure:8.3f} µs")


def dispatch(root: str, queue_count: int, batch: int) -> None:
    """The best of some rounds, each in a fresh store."""
    rounds = [one_round(f"{root}/{n}", queue_count, batch) for n in range(ROUNDS)]
    rmtree(root)
    queue_us, index_us = (min(figures) for figures in zip(*rounds, strict=True))
    name = f"{queue_count} queues, batches of {batch}"
    row(f"{name}: queue, per entry", queue_us)
    row(f"{name}: index, per entry", index_us)
    row(f"{name}: together", queue_us + index_us)


def one_round(root: str, queue_count: int, batch: int) -> tuple[float, float]:
    """Microseconds per entry for the queues and for the index.

    The first entries, with which files and directories are made, are not counted.
    """
    config, disk = StoreConfig(root=root), RealDisk()
    queues, index = ConsumeQueues(config, disk), Index(config, disk, SystemClock())
    every = entries(queue_count, ENTRY_COUNT)
    warm = max(batch, queue_count)
    dispatcher = Dispatcher(queues, [index])
    dispatcher.dispatch(every[:warm])
    dispatcher.write_out()
    groups = [every[start : start + batch] for start in range(warm, len(every), batch)]
    count = len(every) - warm

    def into_queues() -> None:
        for group in groups:
            queues.append(group)
        queues.write_out_all()

    def into_index() -> None:
        for group in groups:
            index.dispatch(group)
        index.write_out()

    figures = timed(into_queues, count), timed(into_index, count)
    index.close()
    queues.close()
    return figures


class Log:
    """Stands for a log with every record in one file."""

    def __init__(self, end_offset: int) -> None:
        self.end_offset = end_offset
        self._view = memoryview(bytearray(end_offset))

    def min_offset(self) -> int:
        return 0

    def view(self, offset: int, size: int) -> memoryview:
        return self._view[offset : offset + size]


def pulls(root: str, queue_count: int) -> None:
    """32 messages a pull from one queue, its records behind each other or between others'."""
    config = StoreConfig(root=f"{root}/pull-{queue_count}")
    queues = ConsumeQueues(config, RealDisk())
    queues.append(entries(queue_count, 40_000))
    queues.write_out_all()
    queue, log = queues.get("BenchmarkTest", 0), Log(40_000 * RECORD_BYTES)
    limits = GetLimits(in_memory_bytes=1 << 40, log_file_bytes=1 << 30)
    span = 40_000 // queue_count - 32

    def run() -> None:
        for number in range(PULL_COUNT):
            get_message(queue, log, number * 32 % span, 32, None, limits)

    where = "joined" if queue_count == 1 else "scattered"
    per_pull = min(timed(run, PULL_COUNT) for _ in range(ROUNDS))
    row(f"pull of 32, {where}: per message", per_pull / 32)
    row(f"pull of 32, {where}: per pull", per_pull)
    queues.close()


def main() -> None:
    root = mkdtemp(prefix="bench-dispatch-", dir=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        keys = [unique_key(number) for number in range(KEY_COUNT)]
        hashes = TopicHashes()
        row("hash of topic#UNIQ_KEY", best(lambda: [hashes.index_hash(TOPIC, key) for key in keys]))
        text = b"KEYS\x01order-1 order-2\x02UNIQ_KEY\x01%b\x02CLUSTER\x01D\x02TAGS\x01A" % keys[0]
        row("index keys of a properties text", best(lambda: [index_keys(text) for _ in keys]))
        for queue_count in (4, 1024):
            for batch in (1, 16, 64, 512):
                dispatch(f"{root}/dispatch", queue_count, batch)
        pulls(root, 1)
        pulls(root, 4)
    finally:
        rmtree(root)


if __name__ == "__main__":
    main()
