"""Ends of messages in flight, over ledgers that follow the table of consumer offsets."""

from collections import deque
from typing import Any, cast

import pytest

from actors.engine.interfaces import SnapshotRef
from actors.receipts import settlement
from actors.receipts.hand_out import Haul
from actors.receipts.ledger import AHEAD_MAX, Entry, EntryState, Holder, Ledger
from actors.receipts.ledgers import Ledgers
from actors.receipts.settlement import AGAIN_MS, Deadlines, Settlement, Terms
from actors.sending.appender import InternalRecord
from actors.sending.messages import HeldReturned
from protocol.codes import ResponseCode
from protocol.headers.pop import FROM_MAX
from protocol.receipts import ReceivedQueue

HOLDER = Holder(7, "192.0.2.7:1")


class Queue:
    """Stand-in for a consume queue."""

    min_offset, max_offset = 10, 50


class Store:
    """Stand-in for a store in which all topics have the same queue."""

    class consume_queues:
        @staticmethod
        def get(topic: str, queue_id: int) -> Queue | None:
            return None if topic == "None" else Queue()


class Bench:
    def __init__(self) -> None:
        self.offsets: dict[str, dict[int, int]] = {}
        self.came_ms: dict[int, int] = {}
        self.ledgers = Ledgers(
            cast(Any, Store),
            SnapshotRef(self.offsets),
            SnapshotRef({}),
            lambda topic, queue_id: topic == "Young",
        )
        self.deadlines = Deadlines(0)
        self.settlement = Settlement(
            self.ledgers,
            self.deadlines,
            lambda _t, _q, offset: offset * 100,
            lambda _: 2,
            lambda _t, _q, offset: self.came_ms.get(offset, 0),
        )

    def store(self) -> None:
        """Store what is to be committed, as ConsumerOffsets does."""
        commits = self.ledgers.commits()
        for each in commits:
            queues = self.offsets.setdefault(f"{each.topic}@{each.group}", {})
            if queues.get(each.queue_id) == each.expected:
                queues[each.queue_id] = each.offset
        self.ledgers.committed(commits)

    def stored(self) -> int | None:
        self.store()
        return self.ledgers.stored("g", "T", 0)

    def deliver(
        self, *offsets: int, nonce: int = 1, at_ms: float = 1_000, in_order: bool = False
    ) -> Ledger:
        ledger = self.ledgers.open("g", "T", 0)
        haul = Haul(ledger)
        if in_order:
            tries = ledger.tries
            haul.entries = [
                Entry(ledger, each, each * 100, EntryState.HELD, tries.get(each, 0))
                for each in offsets
            ]
        else:
            haul.offsets = [*offsets]
        haul.order = [*offsets]
        ledger.advance(offsets[-1] + 1)
        terms = Terms(nonce, at_ms, HOLDER, 0.0, in_order)
        assert self.settlement.deliver(haul, terms).offsets == [*offsets]
        self.store()
        return ledger

    def pass_time(self, now_ms: float) -> list[tuple[int, int | None]]:
        """Expire what is due; return the copies to make, by offset and delay level."""
        for delivery in self.deadlines.due(now_ms):
            self.settlement.expire(delivery, now_ms)
        copies = [*self.settlement.copies]
        return [(each.entry.offset, each.delay_level) for each in copies]

    def copied(
        self,
        *,
        is_stored: bool = True,
        queue_offset: int = 0,
        refusal: ResponseCode = ResponseCode.SYSTEM_ERROR,
    ) -> None:
        """Answer the first copy."""
        copy = self.settlement.copies.popleft()
        result = HeldReturned(copy.entry, None, copy.is_move)
        record = InternalRecord("%RETRY%g", 0, b"")
        record.queue_offset = queue_offset
        record.code = int(ResponseCode.SUCCESS if is_stored else refusal)
        result.results = [record]
        retries = lambda group, queue_id: self.ledgers.open(group, "%RETRY%" + group, queue_id)  # noqa: E731
        self.settlement.returned(result, retries)


def test_new_group_begins_where_it_says() -> None:
    bench = Bench()
    assert bench.ledgers.open("g", "T", 0).next == 10
    assert bench.ledgers.open("h", "T", 0, FROM_MAX).next == 50
    assert bench.ledgers.open("h", "Young", 0, FROM_MAX).next == 0
    assert bench.ledgers.open("h", "%RETRY%h", 0, FROM_MAX).next == 10
    assert bench.ledgers.open("h", "None", 0).next == 0
    assert bench.stored() == 10


def test_offset_from_elsewhere_begins_a_ledger_again() -> None:
    bench = Bench()
    ledger = bench.deliver(10, 11)
    bench.offsets["T@g"][0] = 3
    assert bench.ledgers.find("g", "T", 0) is ledger
    assert (ledger.next, ledger.count) == (3, 0)
    del bench.offsets["T@g"]
    assert bench.ledgers.open("g", "T", 0).next == 10


def test_group_whose_offset_was_deleted_begins_where_its_receives_say() -> None:
    """With LAST_OFFSET, such a group got all retained messages again."""
    bench = Bench()
    for topic, start in (("T", 50), ("Young", 0)):
        assert bench.ledgers.open("g", topic, 0, FROM_MAX).next == start
        bench.store()
        bench.offsets.clear()
        found = bench.ledgers.find("g", topic, 0)
        assert found is not None and found.next == start


def test_unused_ledgers_are_forgotten() -> None:
    bench = Bench()
    ledger = bench.deliver(10)
    for _ in range(2):
        list(bench.ledgers.forget_unused())
    assert [*bench.ledgers] == [ledger]
    bench.settlement.acknowledge(ledger, 10, 1)
    bench.store()
    for _ in range(2):
        list(bench.ledgers.forget_unused())
    assert [*bench.ledgers] == []


def test_handle_is_valid_until_the_message_is_handed_out_again() -> None:
    bench = Bench()
    ledger = bench.deliver(10, 11, 12)
    acknowledge = bench.settlement.acknowledge
    assert not acknowledge(ledger, 10, 2)
    assert acknowledge(ledger, 10, 1)
    assert acknowledge(ledger, 10, 2), "settled already"
    assert bench.stored() == 11
    assert bench.settlement.acknowledge_all(ledger, [11, 12], 1) == 2
    assert bench.stored() == 13
    assert not acknowledge(None, 10, 1)


def test_acknowledgements_from_before_a_restart_have_a_limit() -> None:
    bench = Bench()
    ledger = bench.ledgers.open("g", "T", 0)
    offsets = range(10, 11 + AHEAD_MAX)
    assert bench.settlement.acknowledge_all(ledger, offsets, 1) == AHEAD_MAX


def test_message_past_its_deadline_is_copied_and_then_settled() -> None:
    bench = Bench()
    ledger = bench.deliver(10, 11)
    assert bench.pass_time(900) == []
    assert bench.pass_time(1_000) == [(10, None), (11, None)]
    assert not bench.settlement.acknowledge(ledger, 10, 1)
    bench.copied()
    assert bench.stored() == 11


def test_failed_copy_is_repeated_and_the_handle_stays_valid() -> None:
    bench = Bench()
    ledger = bench.deliver(10)
    bench.pass_time(1_000)
    bench.copied(is_stored=False)
    assert bench.stored() == 10
    assert bench.pass_time(1_000 + AGAIN_MS) == [(10, None)]
    bench.copied(is_stored=False)
    assert bench.settlement.acknowledge(ledger, 10, 1)
    assert bench.stored() == 11


@pytest.mark.parametrize("in_order", [False, True])
def test_message_without_room_for_a_copy_is_handed_out_again_where_it_is(in_order: bool) -> None:
    """Such a message stayed in flight for ever, and the consumer offset below it."""
    bench = Bench()
    ledger = bench.deliver(10, 11, in_order=in_order)
    assert bench.settlement.acknowledge(ledger, 11, 1)
    for at_ms in (1_000, 2_000) if in_order else ():
        assert bench.pass_time(at_ms) == []
        bench.deliver(10, in_order=True, at_ms=at_ms + 1_000)
    end_ms = 3_000 if in_order else 1_000
    assert bench.pass_time(end_ms) == [(10, -1 if in_order else None)]
    bench.settlement.freed.clear()
    bench.copied(is_stored=False, refusal=ResponseCode.MESSAGE_ILLEGAL)
    assert bench.pass_time(end_ms + AGAIN_MS) == []
    assert (ledger.next, ledger.ahead, ledger.count) == (10, {11}, 0)
    assert [*bench.settlement.freed] == [("g", "T", 0)]
    assert bench.stored() == 10
    bench.deliver(10, nonce=8, at_ms=9_000)
    assert bench.settlement.acknowledge(ledger, 10, 8)
    ledger.pass_settled(50)
    assert bench.stored() == 12


def change(bench: Bench, ledger: Ledger, offset: int, nonce: int, new: int, at_ms: float) -> bool:
    terms = Terms(new, at_ms, HOLDER, 0.0)
    return bench.settlement.change(ledger, offset, nonce, terms) is not None


def test_change_gives_a_deadline_of_its_own() -> None:
    bench = Bench()
    ledger = bench.deliver(10, 11)
    assert change(bench, ledger, 10, 1, 2, 5_000)
    assert not change(bench, ledger, 10, 1, 3, 5_000)
    assert bench.pass_time(1_000) == [(11, None)]
    bench.copied()
    assert bench.stored() == 10
    assert bench.pass_time(5_000) == [(10, None)]


def test_retry_on_request_begins_a_copy() -> None:
    bench = Bench()
    ledger = bench.deliver(10)
    assert bench.settlement.give_back(ledger, 10, 2, HOLDER) is None
    entry = bench.settlement.give_back(ledger, 10, 1, HOLDER)
    assert entry is not None and entry.state is EntryState.COPYING
    assert bench.pass_time(10_000) == []


def test_last_change_says_why_a_message_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "FAILURES_MAX", 2)
    bench = Bench()
    ledger = bench.deliver(10, 11, 12, 13)
    reasons = {10: ("old", ""), 11: ("oldest",), 12: ("old", "new"), 13: ("only",)}
    for offset, texts in reasons.items():
        for nonce, text in enumerate(texts, 2):
            terms = Terms(nonce, 2_000, HOLDER, 0.0, failure=text)
            assert bench.settlement.change(ledger, offset, nonce - 1, terms)
    bench.pass_time(3_000)
    found = {each.entry.offset: each.entry for each in bench.settlement.copies}
    kept = [bench.settlement.failure_of(found[offset]) for offset in (10, 11, 12, 13)]
    assert kept == [None, None, "new", "only"]


def test_batch_in_order_goes_back_as_a_whole() -> None:
    bench = Bench()
    ledger = bench.deliver(10, 11, in_order=True)
    assert change(bench, ledger, 11, 1, 2, 3_000)
    assert bench.pass_time(1_000) == [] and ledger.is_ordered
    assert bench.settlement.freed == {}
    assert bench.pass_time(3_000) == [] and not ledger.is_ordered
    assert ledger.next == 10
    assert [*bench.settlement.freed] == [("g", "T", 0)]


def test_message_in_order_without_tries_left_is_a_dead_letter() -> None:
    bench = Bench()
    ledger = bench.deliver(10, 11, in_order=True)
    assert bench.settlement.acknowledge(ledger, 11, 1)
    assert bench.pass_time(1_000) == []
    for at_ms in (2_000, 3_000):
        assert bench.settlement.copies == deque()
        bench.deliver(10, in_order=True, at_ms=at_ms)
        bench.pass_time(at_ms)
    assert bench.pass_time(3_000) == [(10, -1)]
    bench.copied()
    assert bench.stored() == 12 and not ledger.is_ordered


def test_message_of_a_crowded_queue_stays_in_flight_in_the_retry_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Ledger, "span_max", 5)
    bench = Bench()
    ledger = bench.deliver(*range(10, 20))
    assert ledger.is_crowded
    bench.settlement.acknowledge_all(ledger, range(11, 20), 1)
    bench.settlement.move(ledger)
    assert bench.settlement.is_moving("g")
    bench.copied(queue_offset=42)
    assert not bench.settlement.is_moving("g")
    assert bench.stored() == 20
    retry = bench.ledgers.open("g", "%RETRY%g", 0)
    assert retry.find(42) is ledger.find(10)
    assert 42 in retry.ahead, "it is not handed out"
    assert bench.settlement.acknowledge(ledger, 10, 1)
    assert retry.count == 0 and ledger.find(10) is None


def test_message_acknowledged_while_it_is_stored_again_is_not_handed_out() -> None:
    bench = Bench()
    ledger = bench.deliver(10)
    bench.settlement.move(ledger)
    assert bench.settlement.acknowledge(ledger, 10, 1)
    bench.copied(queue_offset=42)
    retry = bench.ledgers.open("g", "%RETRY%g", 0)
    assert retry.count == 0 and 42 in retry.ahead


def test_deadline_during_a_move_waits_for_its_end() -> None:
    bench = Bench()
    ledger = bench.deliver(10)
    bench.settlement.move(ledger)
    (copy,) = bench.settlement.copies
    assert copy.is_move
    bench.pass_time(1_000)
    assert len(bench.settlement.copies) == 1
    bench.copied(queue_offset=42)
    assert bench.pass_time(1_200) == [(42, None)]


def test_answer_names_queue_and_tries() -> None:
    bench = Bench()
    bench.deliver(10, in_order=True)
    bench.pass_time(1_000)
    ledger = bench.ledgers.open("g", "T", 0)
    haul = Haul(
        ledger, entries=[Entry(ledger, 10, 0, EntryState.HELD, ledger.tries[10])], order=[10]
    )
    terms = Terms(2, 9_000.0, HOLDER, 0.0, True)
    assert bench.settlement.deliver(haul, terms) == ReceivedQueue("0", 0, [10], 1)


def test_messages_that_were_never_handed_out_cannot_be_taken_without_limit() -> None:
    """Each change of such a message took memory, and the queue ends millions of messages later."""
    bench = Bench()
    ledger = bench.ledgers.open("g", "T", 0)
    terms = Terms(2, 5_000.0, HOLDER, 0.0)
    taken = sum(
        bench.settlement.change(ledger, offset, 1, terms) is not None
        for offset in range(20, 2 * AHEAD_MAX)
    )
    assert taken == AHEAD_MAX == ledger.count


def test_handle_from_before_a_message_does_not_settle_it() -> None:
    bench = Bench()
    bench.offsets["T@g"] = {0: 10}
    ledger = bench.ledgers.open("g", "T", 0)
    bench.came_ms = {offset: 100 * offset for offset in range(10, 50)}
    settlement = bench.settlement
    assert settlement.acknowledge_all(ledger, [10, 12, 14], 1_200) == 2
    assert not settlement.acknowledge(ledger, 20, 1_999)
    terms = Terms(5_000, 60_000, HOLDER, 0.0)
    assert settlement.change(ledger, 20, 1_999, terms) is None
    assert settlement.change(ledger, 20, 2_000, terms) is not None
    assert ledger.ahead == {10, 12, 20}


def test_ledgers_of_deleted_and_refused_offsets_are_forgotten() -> None:
    bench = Bench()
    bench.deliver(10, 11)
    assert bench.stored() == 10
    list(bench.ledgers.forget_unused())
    list(bench.ledgers.forget_unused())
    assert len([*bench.ledgers]) == 1, "in flight"
    bench.offsets.clear()  # the topic is deleted
    bench.ledgers.open("g", "T", 1)
    bench.ledgers.commits()  # the table refuses this one
    list(bench.ledgers.forget_unused())
    list(bench.ledgers.forget_unused())
    assert [*bench.ledgers] == []
    assert bench.pass_time(2_000) == [], "nothing is copied"


def test_copy_begins_at_the_consumer_offset_of_its_retry_queue_past_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger began at the first message, and forgot the copy when it was looked up again."""
    monkeypatch.setattr("actors.receipts.ledgers.LEDGERS_MAX", 1)
    bench = Bench()
    bench.ledgers.open("g", "T", 0)
    bench.offsets["%RETRY%g@g"] = {0: 30}
    assert bench.ledgers.find("g", "%RETRY%g", 0) is None
    assert bench.ledgers.open("g", "%RETRY%g", 0).next == 30


def test_message_at_the_consumer_offset_is_settled_by_a_handle_from_before_a_restart() -> None:
    """A kill before the next receive handed the confirmed message out again."""
    bench = Bench()
    bench.offsets["T@g"] = {0: 10}
    ledger = bench.ledgers.open("g", "T", 0)
    assert bench.settlement.acknowledge(ledger, 10, 1 << 50)
    assert bench.stored() == 11


def test_ledgers_without_messages_in_flight_are_not_counted_again_and_again() -> None:
    """Half a million of them, looked at three times every five seconds, held the loop up."""
    bench = Bench()
    busy = bench.deliver(10)
    for queue_id in range(1, 4):
        bench.ledgers.open("g", "T", queue_id)
    assert bench.ledgers.in_flight == {"g": 1}
    assert [*bench.ledgers] == [busy]
