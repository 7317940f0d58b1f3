"""How far a group has come never passes a message that is not consumed."""

from threading import Event, Thread

from hypothesis import given
from hypothesis import strategies as st

from protocol.message import MessageRecord
from troupemq.client.consumer_settings import ConsumerSettings
from troupemq.client.message import MessageQueue, MessageView, view_of
from troupemq.client.process_queue import ProcessQueue

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


def test_a_new_queue_is_where_the_group_was() -> None:
    assert queue_with().committable() == 10


def test_the_slowest_message_holds_the_offset() -> None:
    queue = queue_with(10, 11, 12)
    finish(queue, 11, 12)
    assert queue.committable() == 10
    finish(queue, 10)
    assert queue.committable() == 13


def test_messages_that_nobody_wanted_are_passed() -> None:
    queue = ProcessQueue(QUEUE, 10)
    queue.put([], 500)
    assert queue.committable() == 500


@given(st.permutations(range(20)), st.integers(0, 20))
def test_whatever_the_order_what_is_not_consumed_is_not_passed(order: list[int], n: int) -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put([view(offset) for offset in range(20)], 25)
    finish(queue, *order[:n])
    left = sorted(order[n:])
    assert queue.committable() == (left[0] if left else 25)


def test_a_full_queue_says_once_when_it_is_half_empty() -> None:
    queue = queue_with(10, 11, 12, 13)
    assert queue.pause_if_full(LIMITS)
    assert [finish(queue, offset) for offset in (10, 11, 12)] == [False, True, False]


def test_large_messages_fill_a_queue_too() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put([view(0, LIMITS.queue_bytes_max)], 1)
    assert queue.pause_if_full(LIMITS)
    assert finish(queue, 0)
    assert not queue.pause_if_full(LIMITS)


def test_a_moved_queue_forgets_what_waited() -> None:
    queue = queue_with(10, 11)
    queue.move_to(3)
    finish(queue, 10)
    assert (queue.committable(), queue.waiting_count()) == (3, 0)


def test_a_dropped_queue_begins_nothing_and_waits_for_what_runs() -> None:
    queue = queue_with(10)
    assert queue.begin()
    assert not queue.drop(0)
    assert not queue.begin()
    dropped = Event()

    def drop() -> None:
        if queue.drop(10):
            dropped.set()

    waiter = Thread(target=drop)
    waiter.start()
    queue.end()
    waiter.join(10)
    assert dropped.is_set()
