"""Decisions about single units: deleted topics of the same name, other queues, light queues."""

import pytest

from storage.queues.consume_queue import UNIT
from storage.retention.trimming import RemovedQueues, remove_queues
from tests.storage.scrub.scrubbed import Stopped, unit_at, write
from tests.support.puts import put
from tests.support.store import CONFIG, SmallStore


def recreated() -> Stopped:
    """A topic with 60 messages that was deleted, and made again with 100."""
    small = SmallStore()
    small.send(60)
    small.store.consume_queues.write_out_all()
    remove_queues(small.store, None, RemovedQueues(), only="Topic")
    small._next_offsets.clear()
    small.send(100)
    stopped = Stopped(2)
    stopped.heads = list(small.log.walk(0))[60:]
    stopped.disk, stopped.log_end, stopped.units = small.disk, small.log.end_offset, small.units()
    stopped.ends = {(b"Topic", 0): 50, (b"Topic", 1): 50}
    small.store.close()
    return stopped


def test_records_of_a_deleted_and_recreated_topic_are_skipped() -> None:
    stopped = recreated()
    scrub = stopped.scrub()
    assert (scrub.counts.stray_count, scrub.counts.unit_count) == (60, 100)
    assert stopped.repairs == [] and stopped.damage.ranges == ()
    path, start = unit_at(0, 0)
    stopped.flip(path, start + 6)
    stopped.scrub()
    assert stopped.is_as_sent(), "the newer of two records with one number counts"


def test_a_record_of_a_deleted_topic_does_not_replace_a_damaged_one() -> None:
    stopped = recreated()
    head = stopped.flip_record(10, 88)
    write(stopped.disk, *unit_at(head.queue_id, head.queue_offset), bytes(UNIT.size))
    stopped.scrub()
    place = head.physical_offset, head.record_bytes
    assert [(start, end - start) for start, end, _ in stopped.damage.ranges] == [place]
    assert stopped.unit(head.queue_id, head.queue_offset)[:2] == place


def test_a_unit_pointing_at_another_queues_record_does_not_mark_it_damaged() -> None:
    stopped = Stopped()
    head = stopped.flip_record(100, 88)
    other = stopped.units["Topic", 1][head.queue_offset]
    write(stopped.disk, *unit_at(head.queue_id, head.queue_offset), UNIT.pack(*other))
    stopped.scrub()
    place = head.physical_offset, head.record_bytes
    assert [(start, end - start) for start, end, _ in stopped.damage.ranges] == [place]
    assert stopped.unit(head.queue_id, head.queue_offset)[:2] == place


@pytest.mark.parametrize("alone", [False, True], ids=["in a round", "verified alone"])
def test_a_queue_shifted_against_its_records_is_left_unchanged(alone: bool) -> None:
    """4.9.7 appends behind a hole in the numbers: units 5 and up are those of 8 and up."""
    stopped = Stopped(50)
    units = stopped.units["Topic", 0]
    del units[5:8]
    data = b"".join(UNIT.pack(*unit) for unit in units)
    write(stopped.disk, *unit_at(0, 0), data + bytes(3 * UNIT.size))
    stopped.ends[b"Topic", 0] = len(units)
    scrub = stopped.verify_unit(0, 12) if alone else stopped.scrub()
    assert stopped.repairs == [] and stopped.damage.ranges == ()
    assert scrub.counts.shifted_count == (1 if alone else len(units) - 5)


def delayed(stopped: Stopped, code: int) -> None:
    """Writes another tags code into unit 0 of a queue of delayed messages."""
    write(stopped.disk, f"/store/consumequeue/SCHEDULE_TOPIC_XXXX/0/{0:020d}", 12, code.to_bytes(8))


@pytest.mark.parametrize(("delay_ms", "is_kept"), [(1000, True), (70_000, True), (1256, False)])
def test_a_due_time_of_an_earlier_list_of_levels_is_kept(delay_ms: int, is_kept: bool) -> None:
    small = SmallStore()
    record = put(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x011")
    small.log.append([record], small.clock.now_ms())
    small.store.catch_up()
    stored_ms = small.log.last_store_timestamp
    stopped = Stopped(1)
    stopped.log_end, stopped.ends = small.log.end_offset, {(b"SCHEDULE_TOPIC_XXXX", 0): 1}
    small.store.close()
    stopped.disk = small.disk
    delayed(stopped, stored_ms + delay_ms)
    scrub = stopped.open()
    for _ in scrub.steps():
        pass
    codes = [repair.tags_code for repair in scrub.pop_findings().repairs]
    assert codes == ([] if is_kept else [stored_ms + 1000])
    scrub.close()


def test_light_queues_with_records_of_other_topics_are_skipped() -> None:
    stopped = Stopped(20)
    stopped.disk.make_dirs("/store/consumequeue/%LMQ%own/0")
    light = stopped.disk.open(f"/store/consumequeue/%LMQ%own/0/{0:020d}", create=True)
    light.set_size(CONFIG.consume_queue_file_bytes)
    light.pwrite(UNIT.pack(*stopped.units["Topic", 0][3]), 0)
    light.close()
    stopped.ends[b"%LMQ%own", 0] = 1
    stopped.scrub()
    assert stopped.repairs == [] and stopped.damage.ranges == ()
