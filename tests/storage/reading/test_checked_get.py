"""Messages from before the start are returned only if unit and record agree."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from protocol.tags import java_hash_code
from protocol.topic_names import SCHEDULE_TOPIC
from storage.queues.message_filter import MessageFilter
from storage.reading import checked_get
from storage.reading.get_message import GetResult, GetStatus, get_message
from tests.support.doubts import OldStore

A, B = java_hash_code("A"), java_hash_code("B")
UNIT_BITS = 160


def outcome(result: GetResult) -> tuple[GetStatus, int, int]:
    return result.status, result.count, result.next_offset


def body_of(result: GetResult) -> bytes:
    return b"".join(result.views)


def test_all_messages_of_an_older_store_are_returned_in_one_view() -> None:
    old = OldStore(12)
    assert old.queue.verified_from == 12
    result = old.get(2)
    assert outcome(result) == (GetStatus.FOUND, 10, 12)
    assert len(result.views) == 1
    assert body_of(result) == old.bytes_of(2, 12)
    assert outcome(old.get(0, tags={A})) == (GetStatus.FOUND, 4, 12)
    assert outcome(old.get(0, tags={99})) == (GetStatus.NO_MATCHED_MESSAGE, 0, 12)
    assert outcome(old.get(0, count=5)) == (GetStatus.FOUND, 5, 5)


@pytest.mark.parametrize(
    "position",
    [0, 3, 4, 7, 8, 11, 12, 15, 20, 27, 28, 35, 84, 87, 88, 107, 108, 109, 113, 114, 115],
)
def test_a_flipped_bit_in_a_record_ends_the_batch_before_it(position: int) -> None:
    """Size, magic, CRC, queue id, queue offset, own offset, lengths, body, topic."""
    for bit in range(8):
        old = OldStore(12)
        old.flip_record(5, position, bit)
        before = old.get(2)
        assert outcome(before) == (GetStatus.FOUND, 3, 5)
        assert body_of(before) == old.bytes_of(2, 5)
        assert outcome(old.get(5)) == (GetStatus.IN_DOUBT, 0, 5)
        assert outcome(old.get(6)) == (GetStatus.FOUND, 6, 12)


@pytest.mark.parametrize("position", [16, 19, 40, 47, 64])
def test_record_bytes_without_a_checksum_are_returned_unchecked(position: int) -> None:
    """The application's flag, when and where it was born."""
    old = OldStore(12)
    old.flip_record(5, position)
    assert outcome(old.get(2)) == (GetStatus.FOUND, 10, 12)


@pytest.mark.heavy
def test_every_flipped_bit_of_a_unit_is_noticed_or_does_not_matter() -> None:
    for bit in range(UNIT_BITS):
        old = OldStore(12)
        old.flip_unit(3, bit)
        result = old.get(3, count=1)
        if result.status is GetStatus.FOUND:
            # a tags code that looks like the address of an extension says nothing of the tag
            assert bit >= 96 and body_of(result) == old.bytes_of(3, 4)
            assert outcome(old.get(3, count=1, tags={A})) == (GetStatus.FOUND, 1, 4)
        else:
            assert outcome(result) == (GetStatus.IN_DOUBT, 0, 3)
            assert outcome(old.get(3, tags={A})) == (GetStatus.IN_DOUBT, 0, 3)
            assert outcome(old.get(3, tags={99})) == (GetStatus.IN_DOUBT, 0, 3)
            assert outcome(old.get(0, tags={A})) == (GetStatus.FOUND, 1, 3)
        old.flip_unit(3, bit)
        assert outcome(old.get(3)) == (GetStatus.FOUND, 9, 12)


def test_a_flipped_tags_code_hides_no_message() -> None:
    old = OldStore(12)
    offset, size = old.placed[3]
    old.set_unit(3, offset, size, B)
    assert outcome(old.get(1, tags={A})) == (GetStatus.NO_MATCHED_MESSAGE, 0, 3)
    assert outcome(old.get(3, tags={A})) == (GetStatus.IN_DOUBT, 0, 3)
    old.set_unit(3, offset, size, A)
    assert outcome(old.get(1, tags={A})) == (GetStatus.FOUND, 3, 12)


def test_a_hole_in_the_queue_is_reported_as_doubtful() -> None:
    old = OldStore(12)
    old.set_unit(4, 0, 0)
    assert outcome(old.get(0)) == (GetStatus.FOUND, 4, 4)
    assert outcome(old.get(4)) == (GetStatus.IN_DOUBT, 0, 4)
    assert outcome(old.get(4, verified=True)) == (GetStatus.FOUND, 7, 12)


def test_a_known_damaged_range_is_skipped_without_a_report() -> None:
    old = OldStore(12)
    old.flip_record(5, 90)
    offset, size = old.placed[5]
    old.damage.add(offset, offset + size, "its body")
    result = old.get(3)
    assert outcome(result) == (GetStatus.FOUND, 8, 12)
    assert body_of(result) == old.bytes_of(3, 5) + old.bytes_of(6, 12)
    assert outcome(old.get(5, count=1)) == (GetStatus.FOUND, 1, 7)


def test_a_pull_skips_the_only_message_if_it_is_damaged() -> None:
    old = OldStore(1)
    offset, size = old.placed[0]
    old.flip_record(0, 90)
    assert outcome(old.get(0)) == (GetStatus.IN_DOUBT, 0, 0)
    assert outcome(old.get(0, verified=True)) == (GetStatus.NO_MATCHED_MESSAGE, 0, 1)
    old.damage.add(offset, offset + size, "its body")
    assert outcome(old.get(0)) == (GetStatus.NO_MATCHED_MESSAGE, 0, 1)


def test_units_that_point_at_a_gap_in_the_log_are_skipped() -> None:
    old = OldStore(12)
    start, end = old.placed[4][0], old.placed[7][0]
    for number in (4, 5, 6):
        old.set_unit(number, start, end - start)
    assert outcome(old.get(4)) == (GetStatus.IN_DOUBT, 0, 4)
    old.damage.add(start, end, "a gap")
    assert outcome(old.get(3)) == (GetStatus.FOUND, 6, 12)


def test_records_appended_by_this_process_are_returned_without_a_check() -> None:
    old = OldStore(3)
    old.send(4)
    for number in (4, 5):
        old.flip_record(number, 90)
    assert outcome(old.get(3)) == (GetStatus.FOUND, 4, 7)
    assert outcome(old.get(1)) == (GetStatus.FOUND, 6, 7)
    old.flip_record(2, 90)
    assert outcome(old.get(1)) == (GetStatus.FOUND, 1, 2)


def test_scrubbed_records_are_returned_without_a_check() -> None:
    old = OldStore(12)
    old.flip_record(6, 90)
    old.queue.verified_from = 5
    assert outcome(old.get(3)) == (GetStatus.FOUND, 9, 12)
    old.queue.verified_from = 7
    assert outcome(old.get(3)) == (GetStatus.FOUND, 3, 6)


def test_damage_among_confirmed_units_is_skipped() -> None:
    old = OldStore(12)
    old.queue.verified_from = 0
    offset = old.placed[6][0]
    old.damage.add(offset + 10, offset + 20, "found later")
    assert outcome(old.get(3)) == (GetStatus.FOUND, 8, 12)
    assert outcome(old.get(7)) == (GetStatus.FOUND, 5, 12)
    assert outcome(old.get(6, count=1)) == (GetStatus.FOUND, 1, 8)


def test_after_inspection_a_misplaced_message_of_the_queue_is_returned() -> None:
    """4.9.7 leaves this behind a hole in the queue offsets: the record names another offset."""
    old = OldStore(12)
    for number in range(4, 11):
        offset, size = old.placed[number + 1]
        old.set_unit(number, offset, size, (A, B, 0)[(number + 1) % 3])
    assert outcome(old.get(4)) == (GetStatus.IN_DOUBT, 0, 4)
    result = old.get(4, verified=True)
    assert outcome(result) == (GetStatus.FOUND, 1, 5)
    assert body_of(result) == old.bytes_of(5, 6)


def test_after_inspection_a_message_of_another_queue_is_not_returned() -> None:
    old = OldStore(6)
    other = old.made.send(1, topic="Other")[0]
    old.set_unit(2, *other)
    assert outcome(old.get(2)) == (GetStatus.IN_DOUBT, 0, 2)
    assert outcome(old.get(2, verified=True)) == (GetStatus.FOUND, 3, 6)


def test_an_inspection_covers_only_the_first_unit() -> None:
    old = OldStore(12)
    old.flip_record(4, 90)
    old.flip_record(6, 90)
    assert outcome(old.get(4, verified=True)) == (GetStatus.FOUND, 1, 6)


def test_records_of_a_deleted_file_are_reported_as_removed_not_doubtful() -> None:
    old = OldStore(120)
    file = old.log.queue.files[0]
    gone = sum(offset < file.end_offset for offset, _ in old.placed)
    old.log.queue.drop_below(file.end_offset)
    assert outcome(old.get(0)) == (GetStatus.MESSAGE_WAS_REMOVING, 0, gone - 1)
    # the last of them might as well be a flipped bit
    assert outcome(old.get(gone - 1)) == (GetStatus.IN_DOUBT, 0, gone - 1)
    assert outcome(old.get(gone - 1, verified=True)) == (GetStatus.FOUND, 32, gone + 32)
    old.queue.verified_from = 0
    assert outcome(old.get(0)) == (GetStatus.FOUND, 32, gone + 32)
    assert outcome(old.get(0, tags={99})) == (GetStatus.NO_MATCHED_MESSAGE, 0, 120)


def test_a_unit_that_points_before_the_log_beside_good_ones_is_doubtful() -> None:
    old = OldStore(120)
    old.log.queue.drop_below(old.log.queue.files[0].end_offset)
    number = next(n for n, (offset, _) in enumerate(old.placed) if offset >= old.log.min_offset())
    old.set_unit(number + 4, 0, 100)
    assert outcome(old.get(number + 4)) == (GetStatus.IN_DOUBT, 0, number + 4)


def test_a_delayed_messages_due_time_is_checked_against_its_record() -> None:
    old = OldStore(6, topic=SCHEDULE_TOPIC, properties="\x02DELAY\x013")
    assert outcome(old.get(0)) == (GetStatus.FOUND, 6, 6)
    old.flip_unit(2, 150)
    assert outcome(old.get(2)) == (GetStatus.IN_DOUBT, 0, 2)


def test_a_filter_that_reads_records_reads_a_mebibyte_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checked_get, "READ_BYTES_MAX", 1000)
    old = OldStore(12)
    size = old.placed[0][1]
    result = old.get(0, tags={99})
    assert outcome(result) == (GetStatus.NO_MATCHED_MESSAGE, 0, 1000 // size)
    seen: list[str] = []

    def note(properties: Mapping[str, str]) -> bool:
        seen.append(properties["UNIQ_KEY"])
        return False

    wanted = MessageFilter(matches=note)
    old.queue.verified_from = 0
    result = old.get(0, wanted=wanted)
    assert result.next_offset == len(seen) < 12
    monkeypatch.setattr(checked_get, "READ_BYTES_MAX", 1)
    assert outcome(old.get(0, wanted=wanted)) == (GetStatus.NO_MATCHED_MESSAGE, 0, 1)


def test_a_filter_reads_fewer_records_where_their_properties_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}
    for names in (0, 40):
        old = OldStore(12, properties="".join(f"\x02{n}\x01v" for n in range(names)))
        old.queue.verified_from = 0
        monkeypatch.setattr(checked_get, "READ_BYTES_MAX", 8 * old.placed[0][1])
        seen[names] = old.get(0, wanted=MessageFilter(matches=lambda _: False)).next_offset
    assert seen[40] < seen[0] <= 8


def test_a_filter_reads_a_limited_number_of_short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a large maximum of messages, one pull evaluated ten thousand: 0.1 s."""
    monkeypatch.setattr(checked_get, "READ_COUNT_MAX", 5)
    old = OldStore(12)
    old.queue.verified_from = 0
    wanted = MessageFilter(matches=lambda _: False)
    assert old.get(0, wanted=wanted, count=1 << 30).next_offset == 5


def test_a_filter_with_a_long_expression_reads_fewer_records() -> None:
    """8,192 characters take 0.3 ms for each message."""
    old = OldStore(60)
    old.queue.verified_from = 0
    wanted = MessageFilter(matches=lambda _: False, chars=8_192)
    result = old.get(0, wanted=wanted)
    assert 20 < result.next_offset < 40
    assert result.read_bytes > 20 * 8_192
    assert old.get(0, wanted=replace(wanted, chars=10)).next_offset == 60


def test_a_filter_reads_one_record_at_least() -> None:
    old = OldStore(12)
    old.queue.verified_from = 0
    wanted = MessageFilter(matches=lambda _: False)
    results = [
        get_message(
            old.queue, old.log, 3, 32, wanted, old.limits, damage=old.damage, filter_bytes_max=most
        )
        for most in (0, 1, 4_096, 1 << 30)
    ]
    assert [each.next_offset for each in results][:2] == [4, 4]
    assert 4 < results[2].next_offset <= results[3].next_offset == 12


def test_a_filter_is_evaluated_on_the_record() -> None:
    for verified_from in (0, 12):
        old = OldStore(12)
        old.queue.verified_from = verified_from
        wanted = MessageFilter(matches=lambda properties: int(properties["UNIQ_KEY"]) % 2 == 0)
        assert outcome(old.get(0, wanted=wanted)) == (GetStatus.FOUND, 6, 12)
        assert outcome(old.get(0, wanted=replace(wanted, tag_codes={A}))) == (
            GetStatus.FOUND,
            2,
            12,
        )
        for no in (lambda _: None, lambda properties: properties["missing"] == "x"):
            result = old.get(0, wanted=MessageFilter(matches=no))
            assert outcome(result) == (GetStatus.NO_MATCHED_MESSAGE, 0, 12)


def test_views_of_a_deleted_file_stay_readable() -> None:
    old = OldStore(120)
    wanted = old.bytes_of(0, 10)
    result = old.get(0, count=10)
    old.log.queue.drop_below(old.log.queue.files[0].end_offset)
    assert body_of(result) == wanted


def test_limits_apply_to_checked_records() -> None:
    old = OldStore(40)
    assert old.get(0, count=64).count == 32
    old.limits = replace(old.limits, in_memory_bytes=0)
    result = old.get(0)
    assert (result.count, result.is_far_behind) == (8, True)
    old.limits = replace(old.limits, in_memory_bytes=1 << 40, memory_bytes_max=10)
    assert old.get(0).count == 1
