"""A store for the Spark benches: random sizes of bodies around one, three topics, nine queues.

Bodies of 64 to 192 bytes make records of some 299 bytes with four properties, as a producer with
keys and tags writes them. Made by one pass in Python, 4 µs a message; the queues with numpy.
"""

from pathlib import Path
from random import Random
from struct import Struct
from zlib import crc32

import numpy as np

from protocol.message import HEAD_V4, PROPERTIES_LENGTH, RECORD_MAGIC
from protocol.tags import java_hash_code
from storage.append import blank

FILE_BYTES = 128 * 1024 * 1024
QUEUE_FILE_UNITS = 300_000
START_MS = 1_795_132_800_000
TOPICS = [b"ORDER"] * 16 + [b"PAYMENT"] * 3 + [b"STOCK"]
QUEUES_OF_A_TOPIC = 3
TAGS = ("paid", "new", "gone")
_BLANK = Struct(">iI")
_UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


def make_store(root: Path, messages: int, body_bytes: tuple[int, int] = (64, 192)) -> None:
    """Writes log and queues; bodies come from a pool of 64 KiB."""
    random = Random(7)
    pool = random.randbytes(64 * 1024 + body_bytes[1])
    codes = [java_hash_code(tag) for tag in TAGS]
    units: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
    (root / "commitlog").mkdir(parents=True)
    log, first = bytearray(), 0
    for number in range(messages):
        topic = TOPICS[number % len(TOPICS)]
        queue_id = number // len(TOPICS) % QUEUES_OF_A_TOPIC
        queue = units.setdefault((topic, queue_id), [])
        place = number * 13 % 65536
        body = pool[place : place + random.randint(*body_bytes)]
        properties = (
            f"KEYS\x01order-no-{number}\x02UNIQ_KEY\x017F00000100002A9F{number:016X}"
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
        for start in range(0, len(entries), QUEUE_FILE_UNITS):
            part = np.array(entries[start : start + QUEUE_FILE_UNITS], _UNIT)
            with (directory / f"{start * _UNIT.itemsize:020}").open("wb") as file:
                file.write(part.tobytes())
                file.truncate(QUEUE_FILE_UNITS * _UNIT.itemsize)


def _write(root: Path, first: int, content: bytes) -> None:
    with (root / "commitlog" / f"{first:020}").open("wb") as file:
        file.write(content)
        file.truncate(FILE_BYTES)
