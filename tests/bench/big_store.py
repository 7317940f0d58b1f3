"""Makes a large store fast: records of one size, laid out with numpy, in the files of 4.9.7.

Every record has 250 bytes (a body of 60 random bytes, UNIQ_KEY, TAGS, CLUSTER as a Java client's
message has them) and lies in one of `queues` queues in turn.  Consume queues are written too; index
and transaction table are left to the broker, unless they are said to know everything.
"""

import struct
import zlib
from pathlib import Path

import numpy as np

from protocol.message import HEAD_V4, RECORD_MAGIC, scan_head
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.dispatching.sink_table import SinkCopy, SinkCovered, SinkTable
from storage.files.disk import RealDisk
from storage.index.index import Index
from storage.log.commit_log import blank
from storage.transactions.redo_log import Covered, TransactionRedoLog

FILE_BYTES = 1 << 30
QUEUE_FILE_UNITS = 300_000
RECORD_BYTES = 250
RECORDS_PER_FILE = (FILE_BYTES - 8) // RECORD_BYTES
TOPIC = b"BenchmarkTest"
START_MS = 1_700_000_000_000
CHUNK_RECORDS = 1 << 20
MARGIN_MS = 3500
"""Recovery distrusts the last three seconds before the checkpoint."""
_HOST = bytes((127, 0, 0, 1)) + struct.pack(">i", 10911)
_UNIQUE = b"7F0000010001" + b"0" * 20
_TAGS_CODE = ord("A")


def make_store(root: Path, gib: int, queues: int = 64) -> int:
    """Writes `gib` full log files and their queues, as after a clean stop; returns the records."""
    (root / "commitlog").mkdir(parents=True)
    template = _template()
    total = gib * RECORDS_PER_FILE
    for number in range(gib):
        _write_log_file(root, number, template, queues)
    _write_queues(root, total, queues)
    _write_checkpoint(root, START_MS + total)
    return total


def mark_followed(root: Path, gib: int) -> None:
    """Makes it look as if all that follows the log had seen it: a start has nothing to catch up.

    The index has only the key of the last record, by which it is known how far it is.
    """
    disk, config = RealDisk(), StoreConfig(root=str(root))
    place = (RECORDS_PER_FILE - 1) * RECORD_BYTES
    with (root / "commitlog" / f"{(gib - 1) * FILE_BYTES:020d}").open("rb") as file:
        file.seek(place)
        head = scan_head(memoryview(file.read(RECORD_BYTES)), 0)
    last, end = head.physical_offset, head.physical_offset + RECORD_BYTES
    index = Index(config, disk, SystemClock())
    index.dispatch([entry_of(head, ())])
    index.sync()
    index.close()
    TransactionRedoLog(disk, str(root)).save(Covered(end, last, head.store_timestamp))
    sinks = SinkTable(config, disk, lambda *_: memoryview(b""), lambda: end)
    sinks.save(SinkCopy(SinkCovered(end, last, head.store_timestamp), {}))


def mark_crashed(root: Path, gib: int, dirty_gib: int) -> None:
    """Makes it look as after a crash: the checkpoint covers all but the last `dirty_gib` files."""
    _write_checkpoint(root, START_MS + (gib - dirty_gib) * RECORDS_PER_FILE)
    (root / "abort").touch()
    for path in (root / "troupemq").glob("clean_stop*"):
        path.unlink()


def _write_checkpoint(root: Path, until_ms: int) -> None:
    stamp = until_ms + MARGIN_MS
    (root / "checkpoint").write_bytes(struct.pack(">qqq", stamp, stamp, 0).ljust(4096, b"\0"))


def _template() -> np.ndarray:
    properties = b"UNIQ_KEY\x01" + _UNIQUE + b"\x02CLUSTER\x01DefaultCluster\x02TAGS\x01A"
    body_bytes = RECORD_BYTES - HEAD_V4.size - 3 - len(TOPIC) - len(properties)
    body = bytes(n * 37 % 251 for n in range(body_bytes))
    head = HEAD_V4.pack(
        RECORD_BYTES, RECORD_MAGIC, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, 0, 0, 0,
        START_MS, _HOST, START_MS, _HOST, 0, 0, body_bytes,
    )  # fmt: skip
    tail = bytes((len(TOPIC),)) + TOPIC + struct.pack(">h", len(properties)) + properties
    return np.frombuffer(head + body + tail, dtype=np.uint8)


def _write_log_file(root: Path, number: int, template: np.ndarray, queues: int) -> None:
    unique_at = bytes(template).index(b"UNIQ_KEY\x01") + len(b"UNIQ_KEY\x01") + 12
    first = number * RECORDS_PER_FILE
    with (root / "commitlog" / f"{number * FILE_BYTES:020d}").open("wb") as file:
        for start in range(0, RECORDS_PER_FILE, CHUNK_RECORDS):
            count = min(CHUNK_RECORDS, RECORDS_PER_FILE - start)
            numbers = np.arange(first + start, first + start + count, dtype=np.int64)
            records = np.tile(template, (count, 1))
            offsets = number * FILE_BYTES + (start + np.arange(count, dtype=np.int64)) * 250
            _put(records, 12, (numbers % queues).astype(">i4"))
            _put(records, 20, (numbers // queues).astype(">i8"))
            _put(records, 28, offsets.astype(">i8"))
            _put(records, 56, (START_MS + numbers).astype(">i8"))
            for digit in range(12):
                records[:, unique_at + 19 - digit] = 48 + numbers // 10**digit % 10
            file.write(records.tobytes())
        file.write(blank(FILE_BYTES - RECORDS_PER_FILE * RECORD_BYTES))
        file.truncate(FILE_BYTES)


def _put(records: np.ndarray, column: int, values: np.ndarray) -> None:
    width = values.dtype.itemsize
    records[:, column : column + width] = values.view(np.uint8).reshape(-1, width)


def _write_queues(root: Path, total: int, queues: int) -> None:
    unit = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
    for queue in range(queues):
        numbers = np.arange(queue, total, queues, dtype=np.int64)
        units = np.zeros(len(numbers), dtype=unit)
        in_file, file = numbers % RECORDS_PER_FILE, numbers // RECORDS_PER_FILE
        units["offset"] = file * FILE_BYTES + in_file * RECORD_BYTES
        units["size"], units["code"] = RECORD_BYTES, _TAGS_CODE
        directory = root / "consumequeue" / TOPIC.decode() / str(queue)
        directory.mkdir(parents=True)
        for start in range(0, len(units), QUEUE_FILE_UNITS):
            with (directory / f"{start * 20:020d}").open("wb") as out:
                out.write(units[start : start + QUEUE_FILE_UNITS].tobytes())
                out.truncate(QUEUE_FILE_UNITS * 20)
