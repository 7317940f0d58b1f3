"""Parts of a queue in bulk: every record comes with its unit, whole, whatever lies between them."""

from random import Random

import pytest

from protocol.raw_records import PIECE, UNITS_ALONE_MAX, UNITS_MAX
from storage.queues.consume_queue import UNIT, UNIT_BYTES
from storage.reading import raw_get as raw_get_module
from storage.reading.raw_get import GAP_BYTES, RawPart, raw_records, raw_units

FILE_BYTES = 65_536
LOG_BYTES = 6 * FILE_BYTES
DATA = Random(1).randbytes(LOG_BYTES)


class Log:
    """Six files of bytes that differ, the first of which is gone."""

    def __init__(self) -> None:
        self.data = DATA
        self.end_offset = LOG_BYTES - 1000

    def min_offset(self) -> int:
        return FILE_BYTES

    def view(self, offset: int, size: int) -> memoryview:
        end = offset + size
        assert size > 0 and self.min_offset() <= offset and end <= self.end_offset
        assert offset // FILE_BYTES == (end - 1) // FILE_BYTES, "never across files"
        return memoryview(self.data)[offset:end]


class Queue:
    """Units from number 0 on."""

    tail_first = 0

    def __init__(self, *units: tuple[int, int, int]) -> None:
        self.data = b"".join(UNIT.pack(*unit) for unit in units)

    def units(self, first: int, count: int) -> bytes:
        return self.data[first * UNIT_BYTES : (first + count) * UNIT_BYTES]

    def next_file_offset(self, first: int) -> int:
        return first + 300


def read(
    queue: Queue,
    first: int = 0,
    end: int = 10_000,
    bytes_max: int = 1 << 20,
    gap_bytes: int = GAP_BYTES,
) -> RawPart:
    return raw_records(
        queue,  # type: ignore[arg-type]
        Log(),
        first,
        end,
        bytes_max,
        FILE_BYTES,
        gap_bytes=gap_bytes,
    )


def pieces(part: RawPart) -> list[tuple[int, int]]:
    """(first, bytes) of each."""
    return [PIECE.unpack_from(part.table, at) for at in range(0, len(part.table), PIECE.size)]


def come(part: RawPart) -> dict[int, bytes]:
    """The bytes of each unit's record that came, by where it lies."""
    sent = part.joined or b"".join(part.views)
    assert len(sent) == part.record_bytes == sum(size for _, size in pieces(part))
    found = {}
    for start, size, _ in UNIT.iter_unpack(part.units):
        at = 0
        for first, length in pieces(part):
            if first <= start and start + size <= first + length:
                found[start] = sent[at + start - first : at + start - first + size]
            at += length
    return found


def neighbours(count: int, size: int, gap: int, first: int = FILE_BYTES) -> Queue:
    return Queue(*((first + number * (size + gap), size, number) for number in range(count)))


def test_adjacent_records_are_one_piece() -> None:
    part = read(neighbours(100, 200, 0))
    assert (part.next_offset, part.unit_count) == (100, 100)
    assert pieces(part) == [(FILE_BYTES, 20_000)]
    assert len(part.views) == 1


def test_small_gaps_are_included_and_large_ones_split_pieces() -> None:
    dense = read(neighbours(20, 100, GAP_BYTES))
    assert pieces(dense) == [(FILE_BYTES, 20 * (100 + GAP_BYTES) - GAP_BYTES)]
    sparse = read(neighbours(20, 100, GAP_BYTES + 1))
    assert pieces(sparse) == [(FILE_BYTES + n * (101 + GAP_BYTES), 100) for n in range(20)]
    assert come(dense).keys() == {FILE_BYTES + n * (100 + GAP_BYTES) for n in range(20)}


def test_small_gaps_between_large_ones_are_included() -> None:
    units = [(FILE_BYTES + n // 4 * 20_000 + n % 4 * 150, 100, 0) for n in range(12)]
    assert pieces(read(Queue(*units))) == [(FILE_BYTES + n * 20_000, 550) for n in range(3)]


def assert_nothing_between(part: RawPart) -> None:
    """Each byte of the pieces is one of a record."""
    units = UNIT.iter_unpack(part.units)
    whole = [range(start, start + size) for start, size, _ in units if 0 < size < FILE_BYTES]
    own = {at for each in whole for at in each}
    assert all(own.issuperset(range(first, first + length)) for first, length in pieces(part))


@pytest.mark.parametrize("gap", [1, GAP_BYTES])
def test_without_gaps_only_record_bytes_are_returned(gap: int) -> None:
    part = read(neighbours(20, 100, gap), gap_bytes=0)
    assert pieces(part) == [(FILE_BYTES + n * (100 + gap), 100) for n in range(20)]
    assert len(come(part)) == 20


def test_without_gaps_adjacent_records_are_still_one_piece() -> None:
    part = read(neighbours(100, 200, 0), gap_bytes=0)
    assert (part.next_offset, pieces(part)) == (100, [(FILE_BYTES, 20_000)])


def test_a_record_that_is_named_twice_does_not_pay_for_a_gap() -> None:
    starts = [FILE_BYTES, FILE_BYTES, FILE_BYTES + 100, FILE_BYTES + 300]
    part = read(Queue(*((start, 100, 0) for start in starts)), gap_bytes=0)
    assert pieces(part) == [(FILE_BYTES, 200), (FILE_BYTES + 300, 100)]
    assert_nothing_between(part)


@pytest.mark.parametrize("gap", [0, 4000])
def test_the_byte_limit_holds_but_one_record_is_always_returned(gap: int) -> None:
    queue = neighbours(10, 100, gap)
    assert [read(queue, bytes_max=limit).unit_count for limit in (1, 100, 250, 300)] == [1, 1, 2, 3]
    part = read(queue, 4, bytes_max=250)
    assert (part.next_offset, [*come(part)]) == (6, [FILE_BYTES + n * (100 + gap) for n in (4, 5)])


def test_the_unit_and_piece_limits_of_one_answer_hold() -> None:
    queue = neighbours(40_000, 2, 0)
    assert read(queue, end=40_000).unit_count == UNITS_MAX
    alone = raw_units(queue, 0, 40_000)  # type: ignore[arg-type]
    assert (alone.unit_count, alone.next_offset) == (UNITS_ALONE_MAX, UNITS_ALONE_MAX)
    assert (alone.table, alone.views) == (b"", [])


def test_the_piece_limit_of_one_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_get_module, "PIECES_MAX", 7)
    part = read(neighbours(20, 100, GAP_BYTES + 1))
    assert (part.unit_count, len(pieces(part)), part.next_offset) == (7, 7, 7)


WRONG = {
    "zeros": (0, 0, 0),
    "a filler": (0, 0x7FFFFFFF, 0),
    "far behind the log": (1 << 60, 100, 0),
    "before the log": (100, 100, 0),
    "at its end": (LOG_BYTES - 1050, 100, 0),
    "across two files": (2 * FILE_BYTES - 10, 100, 0),
    "a size below 0": (FILE_BYTES, -5, 0),
    "below 0": (-5, 100, 0),
    "backwards": (FILE_BYTES + 10, 100, 0),
    "a leap": (4 * FILE_BYTES, 100, 0),
}


@pytest.mark.parametrize("gap_bytes", [0, GAP_BYTES])
@pytest.mark.parametrize("gap", [0, 3000])
@pytest.mark.parametrize("place", [0, 5, 11])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_unit_hides_no_record(
    wrong: tuple[int, int, int], place: int, gap: int, gap_bytes: int
) -> None:
    """The rest comes with the next answers, as protocol/raw_records.py says."""
    step, base = 100 + gap, 2 * FILE_BYTES + 20_000
    units = [(base + n * step, 100, n) for n in range(12)]
    good = [unit for n, unit in enumerate(units) if n != place]
    units[place] = wrong
    assert_all_come(Queue(*units), 12, [start for start, _, _ in good], gap_bytes=gap_bytes)


@pytest.mark.trial(short=16, long=3000)
def test_every_record_is_returned_for_any_queue_layout(seed: int) -> None:
    random = Random(seed)
    gap_bytes = random.choice((0, GAP_BYTES))
    at, units, good = FILE_BYTES, [], []
    sizes, gaps = random.choice(((50, 90), (50, 3000))), random.choice((0, 300, 4000))
    while True:
        size = random.randint(*sizes)
        if at % FILE_BYTES + size > FILE_BYTES:
            at += -at % FILE_BYTES
        if at + size > LOG_BYTES - 1000:
            break
        if random.random() < 0.02:
            units.append(random.choice([*WRONG.values()]))
        else:
            units.append((at, size, 0))
            good.append(at)
        at += size + random.choice((0, 0, random.randint(0, gaps)))
    assert_all_come(Queue(*units), len(units), good, random.choice((1, 5000, 100_000)), gap_bytes)


def assert_all_come(
    queue: Queue,
    end: int,
    good: list[int],
    bytes_max: int = 1 << 20,
    gap_bytes: int = GAP_BYTES,
) -> None:
    """Reads as a reader has to: up to the first that lies in the log and has not come."""
    log, at, found = Log(), 0, set()
    while at < end:
        part = read(queue, at, end, bytes_max, gap_bytes)
        if gap_bytes == 0:
            assert_nothing_between(part)
        assert at < part.next_offset <= end
        assert part.units == queue.units(at, part.next_offset - at)
        had = come(part)
        assert all(log.data[start : start + len(data)] == data for start, data in had.items())
        used = 0
        for start, size, _ in UNIT.iter_unpack(part.units):
            in_log = size > 0 and start >= FILE_BYTES and start + size <= log.end_offset
            if used and in_log and start not in had:
                break
            used += 1
        found |= had.keys() & {UNIT.unpack_from(part.units, n * UNIT_BYTES)[0] for n in range(used)}
        assert part.record_bytes <= max(bytes_max, 3000), "3000: the longest record"
        at += used
    assert found >= set(good)


def test_a_hole_in_the_files_is_skipped() -> None:
    part = read(neighbours(5, 100, 0), 5, 500)
    assert (part.next_offset, part.units, part.views) == (305, b"", [])
    assert read(neighbours(5, 100, 0), 5, 50).next_offset == 50
