"""Listener calls under virtual time: order, rests, locks, retries and timeouts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from protocol.message import MessageRecord
from tests.troupemq.client.hand_tasks import (
    HandTasks,
    HandWorkers,
    carry_out_here,
    hand_flows,
    run_here,
)
from troupemq.client.connection.calls import Flow
from troupemq.client.connection.client import Client
from troupemq.client.consuming.consume import ORDERLY_RETRIES_MAX, ConcurrentConsuming, SendingBack
from troupemq.client.consuming.consumer import ListenerThreads
from troupemq.client.consuming.consumer_statistics import ConsumerStatistics
from troupemq.client.consuming.listener import (
    DEAD_LETTER,
    ConsumeResult,
    Listener,
    Result,
    RetryLater,
)
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.queue_locks import MemberLocks, OrderlyConsuming
from troupemq.client.message import MessageQueue, MessageView, view_of
from troupemq.client.settings import UNLIMITED, ConsumerSettings

QUEUE = MessageQueue("T", "b", 0)
SETTINGS = ConsumerSettings(consume_batch_size=2)


@dataclass
class Back:
    """Takes messages back, or does not."""

    takes: bool = True
    retries_max: int = ORDERLY_RETRIES_MAX
    given: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def next_try(self, view: MessageView, delay_level: int, seconds: float | None = None) -> str:
        return f"level {delay_level}"

    def give_back(
        self,
        view: MessageView,
        delay_level: int = 0,
        reason: str = "",
        seconds: float | None = None,
    ) -> Flow[bool]:
        yield from ()
        self.reasons.append(reason)
        self.given.append((view.queue_offset, delay_level))
        return self.takes

    def send_again(self, view: MessageView, reconsume_times: int, reason: str = "") -> Flow[bool]:
        yield from ()
        self.reasons.append(reason)
        self.given.append((view.queue_offset, reconsume_times))
        return self.takes


@dataclass
class Locks:
    """Renews as it is told."""

    ours: bool = True
    renewals: int = 0

    def renew(self, held: Sequence[ProcessQueue]) -> Flow[bool]:
        yield from ()
        self.renewals += 1
        for each in held:
            each.set_locked(self.ours)
        return self.ours


class Calls:
    """A listener that remembers its calls and says what it is told to, in the end SUCCESS."""

    def __init__(self, *results: Result | Exception) -> None:
        self.offsets: list[list[int]] = []
        self.times: list[list[int]] = []
        self._results = list(results)

    def __call__(self, views: Sequence[MessageView]) -> Result:
        self.offsets.append([view.queue_offset for view in views])
        self.times.append([view.reconsume_times for view in views])
        result = self._results.pop(0) if self._results else ConsumeResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        return result


class Bench:
    """One queue with some messages, and either way of consuming, by hand."""

    def __init__(
        self,
        listener: Listener,
        orderly: bool,
        settings: ConsumerSettings = SETTINGS,
        back: Back | None = None,
        locks: Locks | None = None,
    ) -> None:
        self.tasks = HandTasks()
        self.room: list[ProcessQueue] = []
        self.queue = ProcessQueue(QUEUE, 0, self.tasks.now_s)
        given = cast(SendingBack | None, back)
        self.statistics = ConsumerStatistics()
        client = cast(Client, SimpleNamespace(carry_out=carry_out_here))
        listening = ListenerThreads(client, "g", listener, 0)
        listening.workers = HandWorkers(self.tasks)
        flows, room = hand_flows(self.tasks), self.room.append
        if orderly:
            self.consuming: OrderlyConsuming | ConcurrentConsuming = OrderlyConsuming(
                "g",
                listening,
                settings,
                self.statistics,
                room,
                given,
                flows,
                cast(MemberLocks | None, locks),
                self.tasks.now_s,
            )
        else:
            self.consuming = ConcurrentConsuming(
                "g", listening, settings, self.statistics, room, given, flows
            )

    def put(self, *offsets: int) -> list[MessageView]:
        views = [
            view_of(MessageRecord("T", b"x", queue_offset=offset, record_bytes=10), QUEUE)
            for offset in offsets
        ]
        self.queue.put(views, offsets[-1] + 1)
        self.consuming.submit(self.queue, views)
        return views


def test_an_orderly_queue_is_consumed_in_order_and_batches() -> None:
    calls = Calls()
    bench = Bench(calls, orderly=True)
    bench.put(0, 1, 2)
    bench.put(3, 4)
    bench.tasks.advance(0)
    assert calls.offsets == [[0, 1], [2, 3], [4]]
    assert bench.queue.committable() == 5


@pytest.mark.parametrize("failure", [ConsumeResult.RETRY_LATER, RetryLater(), ValueError("no")])
def test_an_orderly_queue_pauses_after_a_failure_and_retries_the_message(
    failure: Result | Exception,
) -> None:
    calls = Calls(failure, failure)
    bench = Bench(calls, orderly=True)
    bench.put(0, 1, 2)
    bench.tasks.advance(0)
    assert (calls.offsets, bench.queue.committable()) == ([[0, 1]], 0)
    bench.tasks.advance(999)
    assert len(calls.offsets) == 1
    bench.tasks.advance(1)
    assert (calls.offsets, calls.times[1]) == ([[0, 1], [0, 1]], [1, 1])
    bench.put(3)  # while it rests
    bench.tasks.advance(999)
    assert len(calls.offsets) == 2
    bench.tasks.advance(1)
    assert calls.offsets[2:] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("asked_ms, rest_ms", [(0, 10), (500, 500), (10**9, 30_000)])
def test_a_listener_can_set_the_pause_of_its_queue(asked_ms: int, rest_ms: int) -> None:
    calls = Calls(RetryLater(suspend_ms=asked_ms))
    bench = Bench(calls, orderly=True)
    bench.put(0)
    bench.tasks.advance(rest_ms - 1)
    assert len(calls.offsets) == 1
    bench.tasks.advance(1)
    assert len(calls.offsets) == 2


def test_an_orderly_batch_continues_at_its_first_failure() -> None:
    failed: list[MessageView] = []
    calls = Calls(RetryLater(failed))
    bench = Bench(calls, orderly=True)
    failed.append(bench.put(0, 1, 2)[1])
    bench.tasks.advance(0)
    assert bench.queue.committable() == 1
    bench.tasks.advance(1000)
    assert calls.offsets == [[0, 1], [1, 2]]


def test_over_the_limit_an_orderly_message_goes_to_the_retry_topic() -> None:
    back = Back(retries_max=2)
    calls = Calls(*[ConsumeResult.RETRY_LATER] * 3)
    bench = Bench(calls, orderly=True, settings=ConsumerSettings(), back=back)
    bench.put(0, 1)
    bench.tasks.advance(5000)
    assert calls.offsets == [[0], [0], [0], [1]]
    assert back.given == [(0, 2)]
    assert bench.queue.committable() == 2


def test_a_message_behind_a_failed_one_of_its_batch_is_no_dead_letter() -> None:
    """Each repetition counted as its failure, and it was given up with the failed one."""
    back, seen = Back(retries_max=2), []

    def listen(views: Sequence[MessageView]) -> Result:
        seen.append([(view.queue_offset, view.reconsume_times) for view in views])
        failed = [view for view in views if view.queue_offset == 0]
        return RetryLater(failed) if failed else None

    bench = Bench(listen, orderly=True, back=back)
    bench.put(0, 1)
    bench.tasks.advance(5000)
    assert seen == [*([(0, times), (1, 0)] for times in range(3)), [(1, 0)]]
    assert back.given == [(0, 2)]
    assert bench.queue.committable() == 2


def test_messages_that_cannot_reach_the_retry_topic_are_retried_locally() -> None:
    back = Back(takes=False, retries_max=0)
    calls = Calls(ConsumeResult.RETRY_LATER)
    bench = Bench(calls, orderly=True, settings=ConsumerSettings(), back=back)
    bench.put(0)
    bench.tasks.advance(1000)
    assert calls.offsets == [[0], [0]]


def test_without_a_fresh_lock_no_message_is_consumed() -> None:
    calls, locks = Calls(), Locks(ours=False)
    bench = Bench(calls, orderly=True, locks=locks)
    bench.queue.set_locked(True)
    bench.tasks.advance(30_001)  # without a renewal
    bench.put(0)
    bench.tasks.advance(10)
    assert (calls.offsets, locks.renewals) == ([], 1)
    locks.ours = True
    bench.tasks.advance(3020)
    assert (calls.offsets, locks.renewals) == ([[0]], 2)


def test_a_lock_that_expires_during_consumption_stops_the_queue() -> None:
    locks = Locks()
    seen: list[int] = []

    def listen(views: Sequence[MessageView]) -> None:
        seen.extend(view.queue_offset for view in views)
        bench.tasks._now_s += 31

    bench = Bench(listen, orderly=True, locks=locks)
    bench.queue.set_locked(True)
    bench.put(0, 1, 2, 3)
    bench.tasks.advance(0)
    assert seen == [0, 1]
    bench.tasks.advance(21)
    assert seen == [0, 1, 2, 3] and locks.renewals == 1


def test_a_dropped_queue_is_not_consumed_further() -> None:
    calls = Calls(ConsumeResult.RETRY_LATER)
    bench = Bench(calls, orderly=True)
    bench.put(0)
    bench.tasks.advance(0)
    bench.queue.drop()
    bench.tasks.advance(60_000)
    assert len(calls.offsets) == 1 and bench.queue.committable() == 0


def test_only_the_failed_messages_of_a_batch_are_sent_back() -> None:
    back = Back()
    failed: list[MessageView] = []
    calls = Calls(RetryLater(failed, delay_level=DEAD_LETTER))
    bench = Bench(calls, orderly=False, back=back)
    failed.append(bench.put(0, 1)[1])
    bench.tasks.advance(0)
    assert back.given == [(1, DEAD_LETTER)]
    assert bench.queue.committable() == 2


def test_a_message_that_cannot_be_sent_back_is_retried_locally_after_5_s() -> None:
    back = Back(takes=False)
    calls = Calls(ConsumeResult.RETRY_LATER)
    bench = Bench(calls, orderly=False, settings=ConsumerSettings(), back=back)
    bench.put(0, 1)
    bench.tasks.advance(4999)
    assert (calls.offsets, bench.queue.committable()) == ([[0], [1]], 0)
    bench.tasks.advance(1)
    assert (calls.offsets[2:], calls.times[2:]) == ([[0]], [[1]])
    assert bench.queue.committable() == 2


def test_a_failed_broadcast_message_is_dropped() -> None:
    calls = Calls(ConsumeResult.RETRY_LATER)
    bench = Bench(calls, orderly=False)
    bench.put(0)
    bench.tasks.advance(60_000)
    assert len(calls.offsets) == 1 and bench.queue.committable() == 1


def test_a_message_in_flight_for_15_minutes_is_sent_back() -> None:
    back = Back()
    committed: list[int] = []

    def listen(views: Sequence[MessageView]) -> ConsumeResult:
        assert isinstance(bench.consuming, ConcurrentConsuming)
        for minute_ms in (14 * 60_000, 60_001):
            bench.tasks._now_s += minute_ms / 1000
            run_here(bench.consuming.give_back_overdue([bench.queue]))
            committed.append(bench.queue.committable())
        return ConsumeResult.RETRY_LATER

    bench = Bench(listen, orderly=False, settings=ConsumerSettings(), back=back)
    bench.put(0)
    bench.tasks.advance(0)
    assert committed == [0, 1]
    assert back.given == [(0, 3)]  # once: what the listener says of it now does not count


def test_overdue_messages_ask_a_broker_that_takes_none_once_a_round() -> None:
    """One that did not answer took 20 s for each queue, in which no heartbeat was sent."""
    back = Back(takes=False)

    def listen(views: Sequence[MessageView]) -> Result:
        assert isinstance(bench.consuming, ConcurrentConsuming)
        bench.tasks._now_s += 16 * 60
        run_here(bench.consuming.give_back_overdue([bench.queue] * 3))
        return ConsumeResult.SUCCESS

    bench = Bench(listen, orderly=False, settings=ConsumerSettings(), back=back)
    bench.put(0)
    bench.tasks.advance(0)
    assert back.given == [(0, 3)]


def test_statistics_count_successes_and_failures() -> None:
    calls = Calls(ConsumeResult.RETRY_LATER)
    bench = Bench(calls, orderly=False, settings=ConsumerSettings(), back=Back())
    bench.put(0, 1, 2)
    bench.tasks.advance(0)
    assert bench.statistics.status("T").consume_failed_msgs == 1


@pytest.mark.parametrize("name, value", [("consume_threads", 0), ("pull_batch_size", 1025)])
def test_settings_refused_by_the_java_client_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        ConsumerSettings(**{name: value})


@pytest.mark.parametrize("orderly, expected", [(False, 16), (True, 2**31 - 1)])
def test_the_limit_of_retries_is_16_and_unlimited_when_orderly(
    orderly: bool, expected: int
) -> None:
    client = cast(Client, None)
    assert SendingBack(client, "g", UNLIMITED, orderly).retries_max == expected
    assert SendingBack(client, "g", 3, orderly).retries_max == 3
