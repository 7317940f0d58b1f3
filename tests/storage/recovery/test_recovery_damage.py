"""A flipped bit anywhere: the store starts, and everything but what was hit is served."""

from random import Random

import pytest

from protocol.message import RecordHead
from storage.log.commit_log import blank
from storage.recovery.checkpoint import Checkpoint
from tests.support.store import SmallStore
from troupemq.testing.fake_disk import FakeDisk

RECORDS = 200
HIT = 77
ENDINGS = ["clean", "foreign clean", "killed", "killed without durable offset"]


def filled() -> SmallStore:
    store = SmallStore()
    for _ in range(RECORDS // 4):
        store.clock.advance(1000)
        store.send(4)
    return store


def ended(store: SmallStore, ending: str) -> FakeDisk:
    """The disk of a store that has come to this end."""
    if ending.startswith("killed"):
        if ending == "killed":
            store.store.flush()
        return store.disk.killed()
    store.store.close()
    if ending == "foreign clean":
        store.disk.unlink("/store/troupemq/clean_stop.json")
    return store.disk


def flip(disk: FakeDisk, offset: int, bit: int = 0) -> None:
    """Flips one bit of the log."""
    name = f"/store/commitlog/{offset // 8192 * 8192:020d}"
    file = disk.open(name)
    (byte,) = file.pread(1, offset % 8192)
    file.pwrite(bytes((byte ^ 1 << bit,)), offset % 8192)
    file.close()


def served(store: SmallStore) -> set[tuple[int, int]]:
    """(queue id, queue offset) of the records that the units of the queues lead to."""
    found = set()
    for (topic, queue_id), units in store.units().items():
        queue = store.store.consume_queues.get(topic, queue_id)
        assert queue is not None
        for number, (offset, size, _) in enumerate(units, queue.min_offset):
            if store.store.damage.overlaps(offset, offset + size):
                continue
            record = store.log.read_record(offset)
            if record is not None and (record.queue_id, record.queue_offset) == (queue_id, number):
                found.add((queue_id, number))
    return found


def heads_of(store: SmallStore) -> list[RecordHead]:
    return list(store.log.walk(0))


FIELDS = {
    "size": 3,
    "high size": 1,
    "magic": 5,
    "body CRC": 10,
    "queue id": 15,
    "high queue id": 12,
    "queue offset": 27,
    "high queue offset": 22,
    "physical offset": 35,
    "host bits of sys_flag": 39,
    "body length": 87,
    "body": 89,
    "topic length": 92,
    "topic": 94,
    "properties length": 99,
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_flip_in_a_record_costs_that_record_alone(field: str, ending: str) -> None:
    first = filled()
    heads = heads_of(first)
    hit = heads[HIT]
    disk = ended(first, ending)
    flip(disk, hit.physical_offset + FIELDS[field], 4 if "flag" in field else 1)
    second = SmallStore(disk, first.clock)
    everything = {(head.queue_id, head.queue_offset) for head in heads}
    assert served(second) >= everything - {(hit.queue_id, hit.queue_offset)}
    assert second.log.end_offset == first.log.end_offset
    second.send(4)
    assert len(served(second)) >= RECORDS + 3


def test_damage_is_reported_with_its_offset() -> None:
    first = filled()
    hit = heads_of(first)[HIT]
    disk = ended(first, "killed without durable offset")
    flip(disk, hit.physical_offset + 89)
    report = SmallStore(disk, first.clock).report
    assert [gap[:2] for gap in report.gaps] == [
        (hit.physical_offset, hit.physical_offset + hit.record_bytes)
    ]
    assert "does not have its CRC" in report.gaps[0][2]


@pytest.mark.parametrize("ending", ["clean", "foreign clean"])
def test_a_flipped_blank_is_repaired_and_the_next_file_is_read(ending: str) -> None:
    first = filled()
    last = next(
        head
        for head in heads_of(first)
        if head.physical_offset % 8192 + 2 * head.record_bytes > 8184
    )
    blank_at = last.physical_offset + last.record_bytes
    disk = ended(first, ending)
    for position in range(8):
        flip(disk, blank_at + position)
        second = SmallStore(disk, first.clock)
        assert len(heads_of(second)) == len(served(second)) == RECORDS
        disk = ended(second, ending)
        if ending == "clean":  # Nothing was read, so nothing was mended.
            flip(disk, blank_at + position)
    assert disk.open("/store/commitlog/" + "0" * 20).pread(8, blank_at) == blank(8192 - blank_at)


@pytest.mark.trial(short=26, long=2000)
def test_a_flip_anywhere_never_prevents_a_start(seed: int) -> None:
    random = Random(seed)
    first = filled()
    heads = heads_of(first)
    ending = random.choice(ENDINGS)
    disk = ended(first, ending)
    roots = ["/store/commitlog", "/store/consumequeue", "/store/index", "/store"]
    paths = [path for path in _files(disk, "/store") if not path.endswith(("lock", "abort"))]
    root = random.choice(roots)
    chosen = [path for path in paths if path.startswith(root)] or paths
    path = random.choice(chosen)
    data = disk.read_bytes(path)
    used = len(data.rstrip(b"\0")) or len(data)
    at, bit = random.randrange(used), random.randrange(8)
    disk.open(path).pwrite(bytes((data[at] ^ 1 << bit,)), at)
    second = SmallStore(disk, first.clock)
    second.store.catch_up()
    found = served(second)
    missing = {(head.queue_id, head.queue_offset) for head in heads} - found
    assert len(missing) <= 1, (ending, path, at, bit)
    second.send(4)
    assert len(served(second)) >= RECORDS + 3, (ending, path, at, bit)


def _files(disk: FakeDisk, directory: str) -> list[str]:
    found = []
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        found += _files(disk, path) if disk.is_dir(path) else [path]
    return found


def test_the_checkpoint_vouches_for_no_queue_during_a_rebuild() -> None:
    first = filled()
    first.store.flush()
    disk = first.disk.killed()
    disk.remove_tree("/store/consumequeue/Topic/1")
    second = SmallStore(disk, first.clock)
    assert second.report.findings
    saved = Checkpoint(disk.killed(), "/store/checkpoint")
    saved.load()
    assert (saved.durable_offset, saved.logics_ms) == (0, 0)
    second.store.flush()
    assert second.store.checkpoint.durable_offset == second.log.end_offset
    assert served(second.killed()) == served(first)
