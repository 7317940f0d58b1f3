"""What it costs not to trust what is read: `python -m tests.bench.reading [directory]`.

CPU for each unit of a queue that is compared with its record, and for each question to the kernel
whether a part of a file is in memory.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from tempfile import NamedTemporaryFile
from time import perf_counter

from storage.files.disk import RealDisk
from tests.support import doubts
from tests.support.doubts import LONG_QUEUES, OldStore

ROUNDS = 15
PROPERTIES = "\x02CLUSTER\x01DefaultCluster\x02KEYS\x01key"
FILE_BYTES = 8 << 20


def best(run: Callable[[], int]) -> float:
    """µs for each of the things that `run` says it did; the quickest of several rounds."""
    found = []
    for _ in range(ROUNDS):
        start = perf_counter()
        count = run()
        found.append((perf_counter() - start) / count * 1e6)
    return min(found)


def row(what: str, cost_us: float) -> None:
    sys.stdout.write(f"{what:52} {cost_us:8.2f} µs\n")


def units(body_bytes: int) -> None:
    """Gets over units that nobody has verified, and over the same ones verified."""
    config = replace(LONG_QUEUES, commit_log_file_bytes=FILE_BYTES, consume_queue_file_bytes=60_000)
    doubts.FILE_BYTES = FILE_BYTES
    old = OldStore(1000, config=config, body_bytes=body_bytes, properties=PROPERTIES)

    def run(tags: set[int] | None) -> int:
        return sum(old.get(start, tags=tags).next_offset - start for start in range(0, 200, 8))

    row(f"checked, {body_bytes}-byte body: per message", best(lambda: run(None)))
    row(f"checked, {body_bytes}-byte body: per unit of no use", best(lambda: run({99})))
    old.queue.verified_from = 0
    row(f"verified, {body_bytes}-byte body: per message", best(lambda: run(None)))


def probes(directory: str | None) -> None:
    """Questions about a file that is in memory."""
    with NamedTemporaryFile(dir=directory) as temporary:
        temporary.write(os.urandom(FILE_BYTES))
        temporary.flush()
        file = RealDisk().open(temporary.name)
        for size in (640, 16_000, 64 << 10, 256 << 10):

            def run(size: int = size) -> int:
                for position in range(0, FILE_BYTES - size, 64 << 10):
                    file.is_cached(position, size)
                return len(range(0, FILE_BYTES - size, 64 << 10))

            row(f"is it cached, {size:,} bytes", best(run))
        file.close()


if __name__ == "__main__":
    for body_bytes in (128, 1024):
        units(body_bytes)
    probes(sys.argv[1] if len(sys.argv) > 1 else None)
