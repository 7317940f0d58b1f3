"""A store for the Spark benches: random sizes of bodies around one, three topics, nine queues.

Bodies of 64 to 192 bytes make records of some 299 bytes with four properties, as a producer with
keys and tags writes them. Made by one pass in Python, 4 µs a message; the queues with numpy. A
large store repeats its first file, with other offsets and times.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from struct import Struct
from zlib import crc32

import numpy as np

from protocol.message import HEAD_V4, PROPERTIES_LENGTH, RECORD_MAGIC
from protocol.tags import java_hash_code
from storage.log.commit_log import blank

FILE_BYTES = 128 * 1024 * 1024
QUEUE_FILE_UNITS = 300_000
START_MS = 1_795_132_800_000
TOPICS = [b"ORDER"] * 16 + [b"PAYMENT"] * 3 + [b"STOCK"]
QUEUES_OF_A_TOPIC = 3
TAGS = ("paid", "new", "gone")
_BLANK = Struct(">iI")
_UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


def make_store(
    root: Path,
    messages: int,
    body_bytes: tuple[int, int] = (64, 192),
    *,
    topics: Sequence[bytes] = TOPICS,
    queues: int = QUEUES_OF_A_TOPIC,
) -> None:
    """Writes log and queues; bodies come from a pool of 64 KiB.

    Messages go to `topics` in turn, and after each turn to the next of a topic's `queues`.
    """
    random = Random(7)
    pool = random.randbytes(64 * 1024 + body_bytes[1])
    codes = [java_hash_code(tag) for tag in TAGS]
    units: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
    (root / "commitlog").mkdir(parents=True)
    log, first = bytearray(), 0
    for number in range(messages):
        topic = topics[number % len(topics)]
        queue_id = number // len(topics) % queues
        queue = units.setdefault((topic, queue_id), [])
        place = number * 13 % 65536
        body = pool[place : place + random.randint(*body_bytes)]
        properties = (
            f"KEYS\x01o-{number}\x02UNIQ_KEY\x017F00000100002A9F{number:016X}"
            f"\x02CLUSTER\x01c\x02TAGS\x01{TAGS[number % len(TAGS)]}"
        ).encode()
        size = HEAD_V4.size + len(body) + 3 + len(topic) + len(properties)
        if len(log) + size + _BLANK.size > FILE_BYTES:
            _write(root, first, bytes(log) + blank(FILE_BYTES - len(log)))
            log, first = bytearray(), first + FILE_BYTES
        at = first + len(log)
        queue.append((at, size, codes[number % len(TAGS)]))
        log += HEAD_V4.pack(
            size, RECORD_MAGIC, crc32(body) & 0x7FFFFFFF, queue_id, 0, len(queue) - 1, at, 0,
            START_MS + number - 2, _HOST, START_MS + number, _HOST, 0, 0, len(body),
        )  # fmt: skip
        log += body
        log.append(len(topic))
        log += topic + PROPERTIES_LENGTH.pack(len(properties)) + properties
    _write(root, first, bytes(log))
    for (topic, queue_id), entries in units.items():
        directory = root / "consumequeue" / topic.decode() / str(queue_id)
        directory.mkdir(parents=True)
        _write_units(directory, np.array(entries, _UNIT))


def make_large_store(root: Path, log_bytes: int) -> int:
    """Fill files up to a number of bytes; return the number of messages."""
    make_store(root, FILE_BYTES // 260)
    log = root / "commitlog"
    for path in log.iterdir():
        if int(path.name):
            path.unlink()
    first = np.fromfile(log / f"{0:020}", np.uint8)
    files = max(1, log_bytes // FILE_BYTES)
    directories = sorted((root / "consumequeue").glob("*/*"))
    in_file = [_first_units(directory) for directory in directories]
    count = sum(map(len, in_file))
    for number in range(files):
        for units in in_file:
            at = units["offset"].astype(np.int64)
            rows = np.arange(len(units), dtype=np.int64)
            _put(first, at + 20, rows + number * len(units))
            _put(first, at + 28, at + number * FILE_BYTES)
            _put(first, at + 56, START_MS + number * count + rows)
        _write(root, number * FILE_BYTES, first.tobytes())
    for directory, units in zip(directories, in_file, strict=True):
        for path in directory.iterdir():
            path.unlink()
        repeated = np.tile(units, files)
        moved = np.repeat(np.arange(files, dtype=np.int64) * FILE_BYTES, len(units))
        repeated["offset"] += moved
        _write_units(directory, repeated)
    return count * files


def _first_units(directory: Path) -> np.ndarray:
    """Return the units whose records are in the first file of the log."""
    units = np.concatenate([np.fromfile(path, _UNIT) for path in sorted(directory.iterdir())])
    return units[(units["size"] > 0) & (units["offset"] < FILE_BYTES)]


def _put(log: np.ndarray, positions: np.ndarray, values: np.ndarray) -> None:
    """One i64 at each position."""
    log[positions[:, None] + np.arange(8)] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _write_units(directory: Path, units: np.ndarray) -> None:
    units = units.astype(_UNIT)  # numpy turns numbers round when it joins arrays
    for start in range(0, len(units), QUEUE_FILE_UNITS):
        with (directory / f"{start * _UNIT.itemsize:020}").open("wb") as file:
            file.write(units[start : start + QUEUE_FILE_UNITS].tobytes())
            file.truncate(QUEUE_FILE_UNITS * _UNIT.itemsize)


def _write(root: Path, first: int, content: bytes) -> None:
    with (root / "commitlog" / f"{first:020}").open("wb") as file:
        file.write(content)
        file.truncate(FILE_BYTES)
