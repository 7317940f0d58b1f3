"""Costs of a hostile or damaged master at a slave, for each transfer."""

from collections.abc import Iterator
from dataclasses import replace
from struct import pack, pack_into
from time import thread_time

import pytest

from protocol.message import MessageRecord, RecordHead, encode_record
from storage.log.commit_log import CommitLog, prepare_file
from storage.replica import damage_search
from storage.replica.replica_log import PUBLISHED_BYTES, STRETCH_BYTES, ReplicaLog
from tests.storage.derived import DELAY_LEVELS_MS, config
from tests.storage.replica.test_replica_log_replica_scan import published
from troupemq.testing.fake_disk import FakeDisk

PIECE = 32 << 10


def a_replica(file_bytes: int) -> ReplicaLog:
    settings = replace(config(), commit_log_file_bytes=file_bytes)
    log = CommitLog(settings, FakeDisk())
    log.load()
    log.start_at(0, 0)
    return ReplicaLog(log, DELAY_LEVELS_MS)


def record(offset: int, body: bytes = b"body") -> bytes:
    return encode_record(MessageRecord("Topic", body, b"", 0, 0, offset))


def records(start: int, end: int) -> Iterator[bytes]:
    while start < end:
        made = record(start)
        yield made
        start += len(made)


def end_of(replica: ReplicaLog) -> int:
    return replica._log.end_offset


def test_records_that_come_at_once_are_published_in_shares() -> None:
    """41,000 records of one transfer of 4 MB took 121 ms."""
    replica = a_replica(1 << 20)
    data = b"".join(records(0, 900_000))
    assert replica.write(data) == len(data)
    ends = [0]
    while ends[-1] < len(data):
        replica.publish()
        ends.append(end_of(replica))
        assert ends[-1] - ends[-2] <= PUBLISHED_BYTES + STRETCH_BYTES
        assert replica.has_more == (ends[-1] < len(data))


def test_records_behind_a_false_head_are_published_in_shares() -> None:
    """216,000 records behind a head with a length of 20 MiB took 0.9 s."""
    replica = a_replica(1 << 20)
    head = bytearray(record(0))
    pack_into(">i", head, 0, 900_000)
    data = (bytes(head) + b"".join(records(len(head), 900_000)))[:900_000]
    replica.write(data)
    replica.publish()
    assert replica.damaged_at == 0 and replica.has_more
    assert end_of(replica) <= PUBLISHED_BYTES + STRETCH_BYTES
    published(replica)
    assert len(data) - end_of(replica) < len(head), "the last record is cut off"


@pytest.mark.heavy
def test_damage_that_grows_is_not_searched_again() -> None:
    """Each transfer of 32 KB behind 19 MB of damage took 28 ms, behind 1 GiB over a second."""
    replica = a_replica(16 << 20)
    began_s = thread_time()
    for _ in range(400):
        replica.write(b"\1" * PIECE)
        published(replica)
    assert thread_time() - began_s < 1.0
    assert end_of(replica) == 0
    found = record(replica.received_offset)
    replica.write(found)
    assert len(published(replica)) == 1 and end_of(replica) == replica.received_offset


@pytest.mark.parametrize("slices", [1, 7, 400])
def test_a_record_behind_damage_is_found_however_it_arrives(slices: int) -> None:
    replica = a_replica(1 << 20)
    data = b"\1" * 500 + record(500)
    counts = []
    for at in range(0, len(data), slices):
        replica.write(data[at : at + slices])
        counts.append(len(published(replica)))
    assert counts == [0] * (len(counts) - 1) + [1]


def test_records_behind_damage_that_claim_to_be_long_do_not_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 9,000 heads in a window had the bytes of its record read and its CRC computed."""
    monkeypatch.setattr(damage_search, "FOUND_BYTES_MAX", 300_000)
    checked: list[int] = []

    def noted(_: memoryview, at: int, head: RecordHead) -> bool:
        checked.append(at)
        return False

    monkeypatch.setattr(damage_search, "body_is_intact", noted)
    replica = a_replica(1 << 20)
    data = bytearray(b"\1" * 600_000)
    for at in range(1, 4001, 100):
        made = record(at, bytes(250_000))
        data[at : at + 94] = made[:94]
        data[at + len(made) - 10 : at + len(made)] = made[-10:]
    replica.write(bytes(data))
    most = 0
    replica.publish()
    while replica.has_more:
        before = len(checked)
        replica.publish()
        most = max(most, len(checked) - before)
    assert len(checked) > 4 and most <= 2


def test_a_record_that_leaves_no_room_for_a_blank_does_not_stop_the_slave() -> None:
    """Reading a BLANK across the end of the file failed the actor."""
    settings = config()
    replica = a_replica(settings.commit_log_file_bytes)
    room = settings.commit_log_file_bytes - 4
    first = record(0, bytes(room - len(record(0, b""))))
    assert len(first) == room
    log = replica._log
    replica.write(first + pack(">i", 0))
    log.adopt(prepare_file(log.queue.capacity_end, settings, log.queue.disk))
    replica.write(record(replica.received_offset))
    assert len(published(replica)) == 2
