"""The keys of a stretch read at once are those of its records, whatever has happened to the log."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from protocol.codes import BORN_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from storage.dispatching.followers import DispatchReader
from storage.index.key_columns import KeyColumns
from storage.message_store import MessageStore
from storage.recovery.log_chunks import PartOrder
from storage.recovery.part_worker import KEYS, KeyPartsHere
from tests.support.clock import ManualClock
from tests.support.puts import HOST, HOST_V6, append, put
from tests.support.store import CONFIG, SmallStore

FLAGS = (0, 0, 0, BORN_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, 0xC)
TEXTS = (
    b"",
    b"UNIQ_KEY\x01%d",
    b"UNIQ_KEY\x010A%06d\x02KEYS\x01one  two\x02X\x011",
    b"KEYS\x01a%d\x02KEYS\x01\x02MYKEYS\x01no",
    "KEYS\x01é%d".encode(),
)


def filled(random: Random) -> SmallStore:
    """Messages with all kinds of keys."""
    small = SmallStore()
    for number in range(random.randrange(40, 200)):
        flag, text = random.choice(FLAGS), random.choice(TEXTS)
        record = put(
            random.randbytes(random.randrange(200)),
            topic=random.choice(("Orders", "Payments")),
            sys_flag=flag,
            born_host=HOST_V6 if flag & BORN_HOST_V6 else HOST,
            properties=text % number if b"%" in text else text,
        )
        append(small.log, [record], 1_000 + number)
    return small


def columns(store: MessageStore, part_bytes: int | None) -> tuple[object, int]:
    """All keys of a log, and how many records came in parts of that size."""
    log, found, by_parts, position = store.commit_log, KeyColumns(), 0, 0
    order = PartOrder("", 8192, 0, log.end_offset, False, 0, (), part_bytes or 1, KEYS)
    source = KeyPartsHere(order, log.reader(4096))
    while position < log.end_offset:
        part = source.at(position) if part_bytes else None
        if part is not None:
            found.add_part(part, position)
            position, by_parts = part.end, by_parts + part.record_count
        else:
            read = DispatchReader(log, ()).read(position, 3)
            found.add(read.entries, position)
            position = read.next_offset
    return (found.hashes, found.offsets, found.timestamps), by_parts


@pytest.mark.trial(short=60, long=5000)
def test_parts_yield_the_same_results_as_single_records(seed: int, tally: Counter[str]) -> None:
    random = Random(seed)
    small = filled(random)
    disk = small.disk
    for path in [path for path in disk.paths() if "/commitlog/" in path]:
        used = len(disk.read_bytes(path).rstrip(b"\0"))
        if used and random.random() < 0.5:
            disk.flip_bit(path, random.randrange(used), random.randrange(8))
    one_by_one, _ = columns(small.store, None)
    in_parts, count = columns(small.store, random.randrange(200, 4000))
    tally["records in parts"] += count
    assert in_parts == one_by_one


def test_most_of_a_valid_log_is_read_in_parts() -> None:
    small = SmallStore(config=replace(CONFIG, commit_log_file_bytes=1 << 20))
    small.send(400)
    assert columns(small.store, 1024)[1] > 390


def test_only_records_beyond_the_covered_offset_are_taken() -> None:
    small = SmallStore(clock=ManualClock())
    for number in range(5):
        append(small.log, [put(properties=b"KEYS\x01a%d b%d" % (number, number))], 1)
    offsets = [head.physical_offset for head in small.log.walk(0)]
    order = PartOrder("", 8192, 0, small.log.end_offset, False, 0, (), 8192, KEYS)
    part = KeyPartsHere(order, small.log.reader()).at(0)
    assert part is not None and part.record_count == 5
    assert part.serves(offsets[3]) and not part.serves(part.end)
    for covered in offsets:
        taken = KeyColumns()
        taken.add_part(part, covered)
        assert taken.offsets == [each for each in offsets if each >= covered for _ in range(2)]
