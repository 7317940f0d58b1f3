"""Columns of keys: what is taken out of them is gone, what goes through bytes is unchanged."""

from dataclasses import replace
from random import Random

from storage.index.key_columns import KeyColumns, KeyPart
from storage.index.key_hash import TopicHashes
from storage.queues.dispatch_entry import DispatchEntry


def entry(offset: int, *keys: bytes, sys_flag: int = 0) -> DispatchEntry:
    return DispatchEntry(b"Topic", 0, 0, offset, 100, 0, 1_600_000_000_000 + offset, sys_flag, keys)


def test_each_key_has_hash_offset_and_time() -> None:
    columns = KeyColumns()
    columns.add([entry(0, b"old"), entry(100, b"a", b"b"), entry(200, b"gone", sys_flag=0xC)], 100)
    hashes = TopicHashes()
    assert columns.hashes == [hashes.index_hash(b"Topic", key) for key in (b"a", b"b")]
    assert columns.offsets == [100, 100]
    assert columns.timestamps == [1_600_000_000_100] * 2
    columns.drop(1)
    assert (len(columns.hashes), len(columns.offsets), len(columns.timestamps)) == (1, 1, 1)
    columns.clear()
    assert columns.hashes == columns.offsets == columns.timestamps == []


def test_mixed_topics_give_the_hashes_of_each_topic_alone() -> None:
    """Add many at a time, with common and different heads."""
    random, columns, hashes = Random(3), KeyColumns(), TopicHashes()
    topics = [b"Topic", b"Other", b"T" * 127]
    heads = [b"", b"h", b"head", b"C0A80102279300000000946E", "é".encode(), b"x" * 252, b"x" * 300]
    tails = [b"", b"1", b"0001", b"FFFF", b"\xc3\xa9\xc3\xa9", b"\xff001"]
    entries, wanted = list[DispatchEntry](), list[int]()
    for number in range(3_000):
        topic, head = random.choice(topics), random.choice(heads[number // 100 % 4 :])
        keys = tuple(head + random.choice(tails) or b"k" for _ in range(random.randrange(3)))
        entries.append(replace(entry(number * 100, *keys), topic=topic))
        wanted += [hashes.index_hash(topic, key) for key in keys]
    columns.add(entries, 0)
    assert columns.hashes == wanted


def test_a_part_is_unchanged_by_a_pipe() -> None:
    columns = KeyColumns()
    columns.add([entry(offset, b"key%d" % offset) for offset in range(0, 1000, 100)], 0)
    part = KeyPart.of_fields(columns.part(0, 1000, 10).fields())
    again = KeyColumns()
    again.add_part(part, 0)
    assert part[:3] == (0, 1000, 10)
    assert (again.hashes, again.offsets) == (columns.hashes, columns.offsets)
    assert again.timestamps == columns.timestamps
