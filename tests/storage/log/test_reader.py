"""The reader of the log: one record by its place, all of a range, and where it goes on."""

import errno

import pytest

from protocol.message import (
    RECORD_MAGIC,
    SIZE_AND_MAGIC,
    MessageRecord,
    RecordError,
    RecordHead,
    decode_record,
    encode_record,
)
from storage.log.reader import (
    RECORD_BYTES_MAX,
    Fault,
    Gap,
    LogReader,
    NamedLogReader,
    head_of,
    message_of,
    next_whole,
    record_at,
    walk,
)
from tests.support.store import CONFIG, SmallStore


def test_a_record_of_any_length_is_read_by_its_offset() -> None:
    made = SmallStore()
    for offset, size in made.send(6):
        data = made.log.read_whole(offset, made.store.damage)
        assert data is not None and len(data) == size
        assert decode_record(data).physical_offset == offset


def test_an_offset_inside_a_record_reads_as_missing() -> None:
    made = SmallStore()
    (offset, size), *_ = made.send(1)
    for wrong in (-1, offset + 1, offset + size, made.log.end_offset, 1 << 40):
        assert made.log.read_whole(wrong, made.store.damage) is None


def test_a_damaged_record_reads_as_missing() -> None:
    made = SmallStore()
    placed = made.send(3)
    path = f"{made.config.commit_log_dir}/{0:020d}"
    offset, size = placed[1]
    made.disk.flip_bit(path, offset + 90, 0)  # of its body or behind it
    found = [made.log.read_whole(at, made.store.damage) is not None for at, _ in placed]
    assert found == [True, False, True]
    made.disk.flip_bit(path, offset + 90, 0)
    assert made.log.read_whole(offset, made.store.damage) is not None
    made.store.damage.add(offset + size - 1, offset + size, "seen before")
    assert made.log.read_whole(offset, made.store.damage) is None


def test_a_failing_disk_reads_as_missing() -> None:
    made = SmallStore()
    (offset, _), *_ = made.send(1)
    made.disk.fail_next("pread", OSError(errno.EIO, "broken"))
    assert made.log.read_whole(offset, made.store.damage) is None
    assert made.log.read_whole(offset, made.store.damage) is not None


# --- one record


def write(made: SmallStore, offset: int, data: bytes) -> None:
    file = made.log.queue.find(offset)
    assert file is not None
    file.write(data, offset - file.first_offset)


def test_a_record_must_match_the_expected_offset_and_size() -> None:
    made = SmallStore()
    (first, size), (second, _) = made.send(2)
    view = made.log.view(second, size)
    assert head_of(view, second).physical_offset == second
    assert message_of(view, second).physical_offset == second
    for data, offset in ((view, first), (made.log.view(first, 2 * size), first)):
        for read in (head_of, message_of):
            with pytest.raises(RecordError, match="another record"):
                read(data, offset)
    with pytest.raises(RecordError):
        head_of(SIZE_AND_MAGIC.pack(8, 0xCBD43194), 0)


def test_a_body_is_checked_by_default() -> None:
    made = SmallStore()
    (offset, _), *_ = made.send(2)
    write(made, offset + 90, b"\xff")
    fault = record_at(made.log.reader(), offset)
    assert isinstance(fault, Fault) and "CRC" in fault.reason and fault.head is not None
    assert isinstance(record_at(made.log.reader(), offset, check_crc=False), RecordHead)


def test_a_length_above_the_message_limit_is_not_read() -> None:
    made = SmallStore()
    (offset, _), *_ = made.send(1)
    write(made, offset, SIZE_AND_MAGIC.pack(RECORD_BYTES_MAX + 1, RECORD_MAGIC))
    found = record_at(made.log.reader(), offset)
    assert isinstance(found, Fault) and "lengths" in found.reason and found.head is None


# --- a range


def filled(count: int = 250) -> tuple[SmallStore, list[RecordHead]]:
    """With several files."""
    made = SmallStore()
    made.send(count)
    assert len(made.log.queue.files) > 2
    return made, list(made.log.walk(0))


def readers(made: SmallStore) -> list[LogReader]:
    """Return readers of an open log and of its files by name."""
    end = made.log.end_offset
    return [made.log.reader(), made.log.reader(200), NamedLogReader(made.disk, CONFIG, end)]


def test_every_record_is_read_once_from_an_open_log_or_by_path() -> None:
    made, heads = filled()
    assert len(heads) == 250
    for reader in readers(made):
        assert list(walk(reader, 0, made.log.end_offset)) == heads
        middle = heads[50].physical_offset
        assert list(walk(reader, middle, heads[70].physical_offset)) == heads[50:70]


@pytest.mark.parametrize("position", [0, 1, 4, 8, 28, 35, 84, 90])
def test_a_damaged_record_is_a_gap_and_reading_continues(position: int) -> None:
    made, heads = filled()
    hit = heads[60]
    write(made, hit.physical_offset + position, b"\x55")
    for reader in readers(made):
        found = [item for item in walk(reader, 0, made.log.end_offset) if item is not None]
        gaps = [item for item in found if isinstance(item, Gap)]
        end = hit.physical_offset + hit.record_bytes
        assert [gap[:2] for gap in gaps] == [(hit.physical_offset, end)]
        assert f"at {hit.physical_offset}" in gaps[0].reason
        assert [item for item in found if isinstance(item, RecordHead)] == heads[:60] + heads[61:]


def test_a_length_that_leads_to_the_end_of_its_file_is_not_taken_for_a_blank() -> None:
    """All that followed in the file was passed over without a word."""
    made, heads = filled()
    hit = heads[40]
    file = made.log.queue.find(hit.physical_offset)
    assert file is not None and file.end_offset < made.log.end_offset
    write(made, hit.physical_offset, (file.end_offset - hit.physical_offset).to_bytes(4))
    found = list(walk(made.log.reader(), 0, made.log.end_offset))
    assert [item for item in found if isinstance(item, RecordHead)] == heads[:40] + heads[41:]
    assert [item.start for item in found if isinstance(item, Gap)] == [hit.physical_offset]


def test_two_damaged_records_are_one_gap() -> None:
    made, heads = filled()
    for hit in heads[60:62]:
        write(made, hit.physical_offset + 90, b"\xff")
    gaps = [
        item for item in walk(made.log.reader(), 0, made.log.end_offset) if isinstance(item, Gap)
    ]
    assert [gap[:2] for gap in gaps] == [(heads[60].physical_offset, heads[62].physical_offset)]


def test_bytes_inside_a_damaged_body_are_not_taken_for_a_record() -> None:
    """A client may send a body that looks like a record at its own offset."""
    made = SmallStore()
    start = made.log.end_offset
    forged = encode_record(MessageRecord("Forged", b"body", physical_offset=start + 100))
    record = MessageRecord("Topic", bytes(12) + forged, physical_offset=start)
    assert encode_record(record).index(forged) == 100
    made.send(3)
    data = bytearray(encode_record(record))
    data[88] ^= 1
    write(made, start, bytes(data) + bytes(8))
    reader = LogReader(made.log.queue.find, made.log.queue.capacity_end)
    assert isinstance(record_at(reader, start + 100), RecordHead)
    fault = record_at(reader, start)
    assert isinstance(fault, Fault)
    following = next_whole(reader, start, fault, made.log.end_offset)
    assert following is None or following >= start + len(data)


def test_the_next_record_may_lie_in_another_file() -> None:
    made, heads = filled()
    second = made.log.queue.files[1]
    last = max(head.physical_offset for head in heads if head.physical_offset < second.first_offset)
    write(made, last, bytes(second.first_offset - last))
    reader = made.log.reader()
    fault = record_at(reader, last)
    assert isinstance(fault, Fault)
    assert next_whole(reader, last, fault, made.log.end_offset) == second.first_offset
    assert next_whole(reader, last, fault, second.first_offset) is None


def test_unreadable_pages_are_a_gap_for_a_reader_by_path() -> None:
    made, _ = filled()
    made.disk.fail_next("pread", OSError(errno.EIO, "broken"), times=2)
    reader = NamedLogReader(made.disk, CONFIG, made.log.end_offset)
    gaps = [item for item in walk(reader, 0, made.log.end_offset) if isinstance(item, Gap)]
    assert len(gaps) == 1 and gaps[0].start == 0 and gaps[0].end >= 4096
    reader.close()
    made.disk.fail_next("pread", OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        next(walk(made.log.reader(), 0, made.log.end_offset))
