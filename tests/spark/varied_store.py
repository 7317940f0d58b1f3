"""A store of many different messages and the contents of each, without the decoder.

It has compressed bodies of every kind, IPv6 hosts, batches, messages without properties, retries,
delayed and half messages, and units that point into a queue's extension. It has several log and
queue files.

The body of a message follows from its number, which its field `flag` holds. The reader here reads
units and records one by one, with the code of the broker.
"""

from collections.abc import Iterator
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from random import Random
from struct import Struct

import pyarrow as pa  # type: ignore[import-untyped]

from protocol.codes import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZSTD, TRANSACTION_PREPARED
from protocol.compression import compress
from protocol.host import pack_host
from protocol.message import MessageRecord, decode_record
from protocol.properties import format as format_properties
from protocol.tags import java_hash_code
from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.queues.message_filter import EXT_ADDRESS_MAX
from tests.spark.rows import Row, row_of_record
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter

BROKER = "broker-a"
TOPICS = ["orders"] * 10 + ["payments", "stock", "%RETRY%group", "%DLQ%group"]
QUEUES = 3
BATCH = 16
"""Messages of one send that are contiguous in one queue."""

_UNIT = Struct(">qiq")
_HOSTS = [pack_host(f"10.0.0.{number}", 1000 + number) for number in range(1, 30)]
_HOSTS_V6 = [pack_host(f"2001:db8::{number}", 2000 + number) for number in range(1, 9)]


def body_of(number: int) -> bytes:
    """Return the body as its producer gave it: short, empty, or of many KiB."""
    random = Random(number)
    size = random.randrange(200) if number % 97 else random.randrange(20_000)
    return random.randbytes(16) * (size // 16) + bytes([number % 256]) * (size % 16)


def make_varied_store(root: Path, count: int, seed: int, log_file_bytes: int = 64 << 20) -> None:
    """Make messages number 0 to `count`; the seed determines topic, host and codec of each."""
    writer = StoreWriter(root, log_file_bytes=log_file_bytes, queue_file_bytes=20 * 30_000)
    writer.keep_records = False
    random = Random(seed)
    number = 0
    while number < count:
        topic, queue_id = random.choice(TOPICS), random.randrange(QUEUES)
        if random.random() < 0.02:
            topic, queue_id = random.choice([SCHEDULE_TOPIC, HALF_TOPIC]), 0
        for _ in range(BATCH if random.random() < 0.1 else 1):
            _append(writer, random, number, topic, queue_id)
            number += 1
    writer.close()


def _append(writer: StoreWriter, random: Random, number: int, topic: str, queue_id: int) -> None:
    body, sys_flag = body_of(number), 0
    codec = random.randrange(40)
    if codec == 0:
        body, sys_flag = compress(body)
    elif codec in (1, 2) and body:
        name, bits = [("lz4", COMPRESSION_LZ4), ("zstd", COMPRESSION_ZSTD)][codec - 1]
        body = pa.compress(body, codec=name, asbytes=True)
        sys_flag = COMPRESSED | bits
    if topic == HALF_TOPIC:
        sys_flag |= TRANSACTION_PREPARED
    tag = random.choice(["paid", "new", "gone", "größer"])
    at = NOVEMBER_ROOT_MS + number // 2
    code = at + 10_000 if topic == SCHEDULE_TOPIC else java_hash_code(tag)
    if random.randrange(10) == 0:
        code = EXT_ADDRESS_MAX - number  # the queue's extension has the tags code
    hosts = _HOSTS_V6 if random.randrange(15) == 0 else _HOSTS
    store_hosts = _HOSTS_V6 if random.randrange(30) == 0 else _HOSTS
    writer.append(
        topic,
        queue_id,
        body,
        _properties(random, number, tag),
        store_timestamp=at,
        born_host=random.choice(hosts),
        store_host=store_hosts[0],
        tags_code=code,
        sys_flag=sys_flag,
        flag=number,
        reconsume_times=random.randrange(3),
        prepared_transaction_offset=random.randrange(2) * number,
    )


def _properties(random: Random, number: int, tag: str) -> dict[str, str] | bytes:
    kind = random.randrange(50)
    if kind == 0:
        return b""
    if kind == 1:
        return b"KEYS\x01\xff\xfe\x02TAGS\x01new\x02KEYS\x01second\x02\x02alone"
    given = {"UNIQ_KEY": f"7F000001{number:024X}", "KEYS": f"order {number}", "TAGS": tag}
    for name in random.sample(sorted(given), random.randrange(2)):
        del given[name]
    if kind < 10:
        given[f"own{kind}"] = "x" * kind
    return format_properties(given)


class OneByOne:
    """Reference reader of single messages."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._log: dict[int, mmap] = {}
        for path in sorted((root / "commitlog").iterdir()):
            with path.open("rb") as file:
                self._log[int(path.name)] = mmap(file.fileno(), 0, access=ACCESS_READ)
        self._file_bytes = len(next(iter(self._log.values())))

    def rows(self) -> Iterator[Row]:
        """Return all rows, by topic, queue and offset."""
        queues = self._root / "consumequeue"
        for topic in sorted(path.name for path in queues.iterdir()):
            for queue_id in sorted(int(path.name) for path in (queues / topic).iterdir()):
                for file in sorted((queues / topic / str(queue_id)).iterdir()):
                    for start, size, tags_code in _UNIT.iter_unpack(file.read_bytes()):
                        if size:
                            yield self._row(start, size, tags_code)

    def _row(self, start: int, size: int, tags_code: int) -> Row:
        first = start - start % self._file_bytes
        data = self._log[first][start - first : start - first + size]
        record = decode_record(data)
        stored = replace(record, sys_flag=record.sys_flag & ~COMPRESSED)
        row = row_of_record(stored, tags_code, BROKER)
        return {**row, "sysFlag": record.sys_flag, "body": _plain(record)}


def _plain(record: MessageRecord) -> bytes:
    """Return the sent body; nothing is decompressed."""
    return body_of(record.flag)
