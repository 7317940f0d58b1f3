"""The consumer offset never passes an unconsumed message."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.bodies_client import MessageInHand
from protocol.message import MessageRecord
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.message import MessageQueue, MessageView, view_of
from troupemq.client.settings import ConsumerSettings

QUEUE = MessageQueue("T", "b", 0)
LIMITS = ConsumerSettings(queue_count_max=4, queue_bytes_max=1000, queue_span_max=50)


def view(offset: int, size_bytes: int = 100) -> MessageView:
    return view_of(MessageRecord("T", b"x", queue_offset=offset, record_bytes=size_bytes), QUEUE)


def queue_with(*offsets: int) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, 10)
    queue.put([view(offset) for offset in offsets], offsets[-1] + 1 if offsets else 10)
    return queue


def finish(queue: ProcessQueue, *offsets: int) -> bool:
    held = {each.queue_offset: each for each in queue.first(100)}
    queue.release()
    return queue.done([held[offset] for offset in offsets if offset in held], LIMITS)


def test_a_new_queue_starts_at_the_groups_offset() -> None:
    assert queue_with().committable() == 10


def test_the_slowest_message_determines_the_offset() -> None:
    queue = queue_with(10, 11, 12)
    finish(queue, 11, 12)
    assert queue.committable() == 10
    finish(queue, 10)
    assert queue.committable() == 13


def test_offsets_of_unmatched_messages_are_skipped() -> None:
    queue = ProcessQueue(QUEUE, 10)
    queue.put([], 500)
    assert queue.committable() == 500


@given(st.permutations(range(20)), st.integers(0, 20))
def test_the_offset_never_passes_an_unconsumed_message(order: list[int], n: int) -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put([view(offset) for offset in range(20)], 25)
    finish(queue, *order[:n])
    left = sorted(order[n:])
    assert queue.committable() == (left[0] if left else 25)


def test_a_full_queue_reports_once_when_it_is_half_empty() -> None:
    queue = queue_with(10, 11, 12, 13)
    assert queue.pause_if_full(LIMITS)
    assert [finish(queue, offset) for offset in (10, 11, 12)] == [False, True, False]


def test_large_messages_fill_a_queue_by_size() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put([view(0, LIMITS.queue_bytes_max)], 1)
    assert queue.pause_if_full(LIMITS)
    assert finish(queue, 0)
    assert not queue.pause_if_full(LIMITS)


def test_a_moved_queue_drops_its_buffered_messages() -> None:
    queue = queue_with(10, 11)
    queue.move_to(3)
    finish(queue, 10)
    assert queue.committable() == 3


def test_a_dropped_queue_starts_nothing_and_tells_when_it_is_idle() -> None:
    queue = queue_with(10)
    told: list[str] = []
    queue.when_idle(lambda: told.append("before"))
    assert queue.begin() and queue.begin()
    assert not queue.drop()
    assert not queue.begin()
    queue.when_idle(lambda: told.append("after"))
    queue.end()
    assert told == ["before"]
    queue.end()
    assert told == ["before", "after"]
    assert queue.drop()


def test_a_queue_with_a_slow_first_message_is_full_by_its_span() -> None:
    queue = queue_with(10, 11)
    queue.put([view(61)], 62)
    assert queue.pause_if_full(LIMITS)
    assert not finish(queue, 11)
    assert finish(queue, 10)
    assert not queue.pause_if_full(LIMITS)


def test_the_span_of_an_orderly_queue_does_not_count() -> None:
    queue = queue_with(10, 100)
    assert not queue.pause_if_full(LIMITS, spans=False)


def test_only_the_first_unfinished_message_becomes_overdue() -> None:
    now_s = [0.0]
    queue = ProcessQueue(QUEUE, 0, lambda: now_s[0])
    views = [view(0), view(1)]
    queue.put(views, 2)
    assert queue.begin(views[1:])
    now_s[0] = 100.0
    assert queue.overdue(50_000) is None
    assert queue.begin(views[:1])
    assert queue.overdue(50_000) is None
    now_s[0] = 151.0
    assert queue.overdue(50_000) is views[0]
    assert queue.holds(views[0])
    queue.done(views[:1], LIMITS)
    assert not queue.holds(views[0])
    assert queue.overdue(50_000) is views[1]


def test_a_call_from_before_a_move_does_not_finish_a_later_message() -> None:
    queue = ProcessQueue(QUEUE, 0)
    before, after = view(0), view(0)
    queue.put([before], 1)
    queue.move_to(0)
    queue.put([after], 1)
    queue.done([before], LIMITS)
    assert queue.committable() == 0
    queue.done([after], LIMITS)
    assert queue.committable() == 1


def test_a_queue_is_claimed_by_one_thread_at_a_time() -> None:
    queue = ProcessQueue(QUEUE, 0)
    assert not queue.claim()
    views = [view(0), view(1), view(2)]
    queue.put(views, 3)
    assert queue.claim() and not queue.claim()
    assert list(queue.first(2)) == views[:2]
    queue.done(views, LIMITS)
    assert not queue.first(2)  # and the claim is over
    queue.put([view(3)], 4)
    assert queue.claim()


def test_a_queue_reports_its_listener_calls_and_the_last_finished_message() -> None:
    now_s = 100.0
    queue = ProcessQueue(QUEUE, 10, lambda: now_s)
    queue.put([view(offset) for offset in (10, 11, 12)], 13)
    assert (queue.info().in_hand, queue.info().last_consumed_offset) == ([], -1)
    held = queue.first(100)
    queue.begin(held[1:])
    now_s = 280.0
    queue.done(held[2:], LIMITS)
    found = queue.info()
    (call,) = found.in_hand
    assert isinstance(call, MessageInHand)
    assert (call.queue_offset, call.tries) == (11, 0)
    assert 179_000 <= found.last_consume_timestamp - call.since <= 181_000
    assert found.last_consumed_offset == 12


def test_a_returned_message_stays_in_the_hands_of_its_listener_until_the_call_ends() -> None:
    """Regression: a member looked alive each time its overdue messages were returned."""
    queue = queue_with(10, 11)
    (first, _) = queue.first(100)
    queue.begin([first])
    queue.last_consume_ms = 7
    queue.done([first], LIMITS, in_call=True)
    found = queue.info()
    assert (found.last_consume_timestamp, found.last_consumed_offset) == (7, -1)
    assert ([each.queue_offset for each in found.in_hand], queue.committable()) == ([10], 11)
    queue.done([first], LIMITS)
    found = queue.info()
    assert (found.in_hand, found.last_consumed_offset) == ([], 10)
