"""Records of one log file, of all topics, found by their sizes without consume queues."""

from collections.abc import Iterator
from mmap import mmap

import numpy as np

from protocol.message import RECORD_MAGIC, SIZE_AND_MAGIC
from spark.decoding.records import BATCH_BYTES_MAX, RECORD_BYTES_MIN, Places, Records, whole_records
from spark.decoding.store_files import UNITS_AT_ONCE, LogFile, NumpyArray


def walk(file: LogFile, start: int = 0, end: int | None = None) -> Iterator[Records]:
    """Yield the messages of one log file, of all topics, by following their sizes.

    `start` is the position of a record: a file's first byte, or what a queue unit names. The walk
    ends at `end`, at the blank of a file's end, and at the first invalid record. A record with
    invalid contents is skipped.
    """
    limit = file.size if end is None else min(end, file.size)
    while start + RECORD_BYTES_MIN <= limit:
        positions, sizes = run(file.map, start, limit)
        if not sizes:
            return
        start = positions[-1] + sizes[-1]
        yield from _walked(file, positions, sizes)


def run(data: mmap | bytes, start: int, limit: int) -> tuple[list[int], list[int]]:
    """Return positions and sizes of the records that begin at `start`, up to `limit`.

    As many as a batch has: at most 8192, and some 8 MiB. None where there is no record.
    """
    unpack = SIZE_AND_MAGIC.unpack_from
    positions: list[int] = []
    sizes: list[int] = []
    enough = start + BATCH_BYTES_MAX
    # Its own loop, for columns: 0.5 µs a record with its fields; storage/log/reader.py takes 1.9.
    while start + RECORD_BYTES_MIN <= limit:
        size, magic = unpack(data, start)
        if magic != RECORD_MAGIC or size < RECORD_BYTES_MIN or start + size > limit:
            break
        positions.append(start)
        sizes.append(size)
        start += size
        if len(sizes) == UNITS_AT_ONCE or start >= enough:
            break
    return positions, sizes


def _walked(file: LogFile, positions: list[int], sizes: list[int]) -> Iterator[Records]:
    at = np.array(positions, np.int64)

    def is_own(heads: NumpyArray, rows: NumpyArray | slice) -> NumpyArray:
        own: NumpyArray = heads["physical_offset"] == at[rows] + file.first
        return own

    places = Places(at, np.array(sizes, np.int64), np.zeros(len(at), np.int64))
    records = whole_records(file, places, is_own, None)
    if len(records):
        yield records
