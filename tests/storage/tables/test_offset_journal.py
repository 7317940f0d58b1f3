"""Journal of consumer offsets: what is replayed, whole or damaged."""

from copy import deepcopy
from random import Random

import pytest

from storage.tables.ahead_set import AheadSet
from storage.tables.offset_journal import (
    AHEAD_SPAN_MAX,
    HEAD_BYTES,
    JournalError,
    JournalFault,
    JournalFile,
    OffsetState,
    apply,
    generations,
    replay,
)
from troupemq.testing.fake_disk import FakeDisk

DIRECTORY = "/store/troupemq/offsets"
KEYS = ("T@g", "U@g", "%RETRY%g@g")


def shown(state: OffsetState) -> tuple[object, object]:
    """Return the offsets, and the settled ones above them."""
    ahead = {
        (key, queue_id): [
            each for each in found.offsets() if each >= state.offsets[key].get(queue_id, 0)
        ]
        for (key, queue_id), found in state.ahead.items()
    }
    return state.offsets, {queue: found for queue, found in ahead.items() if found}


def replayed(disk: FakeDisk, generation: int, base: OffsetState) -> OffsetState:
    state = OffsetState(deepcopy(base.offsets))
    replay(disk, DIRECTORY, generation, state)
    return state


def change(random: Random, state: OffsetState, file: JournalFile) -> None:
    """Make one of all changes to a table and to its journal."""
    key, queue_id = random.choice(KEYS), random.randrange(2)
    offset = state.offsets.get(key, {}).get(queue_id, 0)
    kind = random.random()
    if kind < 0.05:
        state.remove(key)
        file.remove(key)
    elif kind < 0.15:
        offset = random.randrange(100)
        state.move(key, queue_id, offset)
        file.move(key, queue_id, offset)
    else:
        offset += random.randrange(3)
        settled = [offset + random.randrange(1, 60) for _ in range(random.randrange(4))]
        state.settle(key, queue_id, offset, settled)
        file.settle(key, queue_id, offset, settled)


@pytest.mark.parametrize("seed", range(6))
def test_replay_restores_the_table_from_any_file_on(seed: int) -> None:
    random, disk, state = Random(seed), FakeDisk(), OffsetState()
    disk.make_dirs("/store")
    saved: dict[int, OffsetState] = {}
    follows = 0
    for generation in (7, 8, 12):
        saved[generation] = deepcopy(state)
        file = JournalFile(disk, DIRECTORY, generation, follows)
        file.settled(state.ahead)
        for _ in range(60):
            change(random, state, file)
            if random.random() < 0.4:
                file.write()
        file.write()
        follows = file.chain
    for generation, base in saved.items():
        assert shown(replayed(disk, generation, base)) == shown(state)
    assert shown(replayed(disk, 9, saved[8])) == (saved[8].offsets, {}), "that file is missing"
    assert shown(replayed(disk, 13, state)) == (state.offsets, {}), "all files are old"


def states_of(disk: FakeDisk) -> list[tuple[object, object]]:
    """Write a journal, and return the table after each of its entries."""
    random, state = Random(3), OffsetState()
    disk.make_dirs("/store")
    states = [deepcopy(shown(state))]
    file = JournalFile(disk, DIRECTORY, 7, 0)
    for _ in range(12):
        change(random, state, file)
        file.write()
        states.append(deepcopy(shown(state)))
    return states


def faults_of(disk: FakeDisk) -> list[JournalFault]:
    faults: list[JournalFault] = []
    replay(disk, DIRECTORY, 7, OffsetState(), faults)
    return faults


def test_every_flipped_bit_and_cut_leaves_an_earlier_table() -> None:
    disk = FakeDisk()
    states, path = states_of(disk), f"{DIRECTORY}/7"
    size = len(disk.read_bytes(path))
    assert shown(replayed(disk, 7, OffsetState())) == states[-1]
    for position in range(size):
        for bit in (0, 6):
            disk.flip_bit(path, position, bit)
            assert shown(replayed(disk, 7, OffsetState())) in states[:-1]
            (fault,) = faults_of(disk)
            assert not fault.is_at_end or position != HEAD_BYTES + 9
            disk.flip_bit(path, position, bit)
    for length in range(size - 1, -1, -1):
        disk.open(path).set_size(length)
        assert shown(replayed(disk, 7, OffsetState())) in states[:-1]
        assert all(fault.is_at_end for fault in faults_of(disk)) or length < HEAD_BYTES


def test_file_with_a_gap_before_it_is_not_applied() -> None:
    disk = FakeDisk()
    states = states_of(disk)
    JournalFile(disk, DIRECTORY, 8, 0).write()
    later = JournalFile(disk, DIRECTORY, 9, 12345)
    later.move("T@g", 0, 99)
    later.write()
    assert shown(replayed(disk, 7, OffsetState())) == states[-1]


def test_foreign_files_are_passed_over() -> None:
    disk = FakeDisk()
    states = states_of(disk)
    for name in ("7.tmp", "x", "-1", "9" * 30):
        disk.open(f"{DIRECTORY}/{name}", create=True).pwrite(b"text", 0)
    disk.open(f"{DIRECTORY}/8", create=True).pwrite(b"no journal" * 9, 0)
    assert generations(disk, DIRECTORY) == [7, 8]
    assert shown(replayed(disk, 7, OffsetState())) == states[-1]


def test_settled_offsets_have_a_limit() -> None:
    state = OffsetState()
    state.settle("T@g", 0, 5, [6, 5 + AHEAD_SPAN_MAX, 1 << 60])
    assert [*state.ahead["T@g", 0].offsets()] == [6]
    state.settle("T@g", 0, 7, [])
    assert not state.ahead


def test_bits_far_above_the_consumer_offset_take_no_memory() -> None:
    """A damaged entry made the set as long as the distance."""
    state = OffsetState({"T@g": {0: 5}}, {("T@g", 0): AheadSet(1 << 40, b"\x01")})
    state.settle("T@g", 0, 5, [6])
    assert [*state.ahead["T@g", 0].offsets()] == [6]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x09",
        b"\x02\0\0\0\0\0\0\0\1",
        b"\x05\0\0\0\7",
        b"\x01\0\0\0\1",
        b"\x01\0\0\0\1a\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0",
        b"\x01\0\0\0\1a\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff",
    ],
)
def test_entry_that_no_journal_has_is_refused(payload: bytes) -> None:
    with pytest.raises(JournalError):
        apply(payload, [], OffsetState())


def test_bits_of_a_queue_without_an_offset_are_ignored() -> None:
    disk, ahead = FakeDisk(), AheadSet()
    disk.make_dirs("/store")
    ahead.add(3)
    file = JournalFile(disk, DIRECTORY, 7, 0)
    file.settled({("T@g", 0): ahead})
    file.write()
    assert shown(replayed(disk, 7, OffsetState())) == ({}, {})


def test_settled_offsets_of_many_queues_have_short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.tables.offset_journal.AHEAD_BYTES_OF_ALL", 1_000, raising=False)
    state = OffsetState()
    for queue_id in range(100):
        state.settle("T@g", queue_id, 8, [9, 8 + 79, 8 + 7_999, 8 + 60_000])
    sets = [each.parts()[1] for each in state.ahead.values()]
    assert len(sets) == 100 and max(map(len, sets)) == 1_000
    assert sum(map(len, sets)) < 6_000
    assert 9 in state.ahead["T@g", 99] and 8 + 79 in state.ahead["T@g", 99]
