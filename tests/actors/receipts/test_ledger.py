"""One queue of one group: what is in flight, and the consumer offset that follows from it."""

import gc
import tracemalloc

from actors.receipts.ledger import NEVER_MS, Delivery, Entry, EntryState, Holder, Ledger
from actors.receipts.settlement import Deadlines

HOLDER = Holder(7, "192.0.2.7:1")


def ledger(start: int = 0, *, is_retry: bool = False) -> Ledger:
    made = Ledger("g", "T", 0, is_retry=is_retry)
    made.begin(start, start)
    return made


def deliver(made: Ledger, *offsets: int, nonce: int = 1) -> Delivery:
    delivery = Delivery(made, nonce, [*offsets], deadline_ms=NEVER_MS, peer=HOLDER, since_ms=0)
    for offset in offsets:
        entry = Entry(made, offset, offset * 100, EntryState.HELD, 0)
        entry.delivery = delivery
        made.take(entry)
    made.advance(max(offsets) + 1)
    return delivery


def settle(made: Ledger, *offsets: int) -> None:
    for offset in offsets:
        found = made.find(offset)
        assert found is not None
        made.settle(found)


def test_lowest_is_the_first_offset_that_is_not_settled() -> None:
    made = ledger()
    deliver(made, 0, 1, 2, 3)
    settle(made, 1, 2)
    assert made.lowest == 0
    settle(made, 0)
    assert made.lowest == 3
    settle(made, 3)
    assert made.lowest == made.next == 4


def test_commits_only_go_forward_and_name_the_one_before() -> None:
    made = ledger()
    assert made.commit() is None
    deliver(made, 0, 1)
    assert made.commit() is None
    settle(made, 0)
    assert made.commit() == (0, 1, [])
    settle(made, 1)
    assert made.commit() == (1, 2, [])
    assert made.commit() is None


def test_offset_of_a_pending_commit_agrees_and_a_former_one_does_not() -> None:
    made = ledger()
    deliver(made, 0, 1, 2)
    settle(made, 0)
    made.commit()
    settle(made, 1)
    made.commit()
    assert made.agrees(0) and made.agrees(1) and made.agrees(2)
    made.committed(2)
    assert made.agrees(2)
    assert not made.agrees(1) and not made.agrees(0) and not made.agrees(None)


def test_new_group_commits_its_start() -> None:
    made = Ledger("g", "T", 0, is_retry=False)
    made.begin(None, 5)
    assert made.commit() == (None, 5, [])


def test_queue_that_has_lost_its_end_commits_a_lower_offset() -> None:
    made = Ledger("g", "T", 0, is_retry=False)
    made.begin(9, 5)
    assert made.commit() == (9, 5, [])
    assert made.commit() is None


def test_batch_in_order_is_handed_out_again_without_what_is_settled() -> None:
    made = ledger()
    deliver(made, 0, 1, 2)
    made.is_ordered = True
    settle(made, 1)
    made.rewind()
    assert (made.next, made.lowest) == (0, 0)
    assert made.ahead == {1}


def test_settled_messages_of_former_batches_in_order_are_not_handed_out_again() -> None:
    made = ledger()
    deliver(made, 0, 1, 2)
    made.is_ordered = True
    settle(made, 1, 2)
    made.rewind()
    deliver(made, 0, 3)
    made.is_ordered = True
    made.rewind()
    assert made.ahead == {1, 2}


def test_retry_is_kept_for_its_own_topic() -> None:
    made = ledger(is_retry=True)
    entry = Entry(made, 0, 0, EntryState.KEPT, 1)
    made.keep(entry, "Other")
    made.advance(1)
    assert made.lowest == 0
    assert made.has_kept("Other") and not made.has_kept("Topic")
    assert [*made.kept("Other")] == [entry]
    assert [*made.kept("Other")] == []


def test_queue_is_crowded_by_its_span_or_its_entries() -> None:
    made = ledger()
    deliver(made, 0, 19_999)
    assert not made.is_crowded
    deliver(made, 20_000)
    assert made.is_crowded and not made.is_full
    deliver(made, 40_001)
    assert made.is_full
    dense = ledger()
    deliver(dense, *range(4_097))
    assert dense.is_crowded


def test_retry_topic_is_crowded_only_if_storing_again_gains_room() -> None:
    made = ledger(is_retry=True)
    deliver(made, *range(6_000))
    deliver(made, 20_001)
    assert not made.is_crowded
    settle(made, *range(1, 6_000))
    assert made.is_crowded


def test_ten_thousand_entries_take_less_than_four_mebibytes() -> None:
    start, ids = 1 << 40, Holder(1, "192.0.2.7:1")
    made, deadlines = ledger(start), Deadlines(0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for first in range(start, start + 10_000, 32):
        offsets = [*range(first, min(first + 32, start + 10_000))]
        delivery = Delivery(made, first, offsets, deadline_ms=1e9, peer=ids, since_ms=float(first))
        made.hand_out(delivery)
        deadlines.add(delivery)
        made.advance(offsets[-1] + 1)
    held = tracemalloc.get_traced_memory()[0] - before
    entries = [made.find(offset) for offset in range(start, start + 10_000)]
    each_alone = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(entries) == made.count == 10_000
    assert held < 2 << 20, held
    assert each_alone < 4 << 20, each_alone


def test_message_that_is_treated_alone_still_counts_for_the_lowest() -> None:
    made = ledger()
    delivery = Delivery(made, 1, range(4), deadline_ms=NEVER_MS, peer=HOLDER, since_ms=0)
    made.hand_out(delivery)
    made.advance(4)
    alone = made.find(1)
    assert alone is not None and alone.delivery is delivery
    del made.held[0]
    assert made.lowest == 1
    del made.held[2]
    made.settle(alone)
    assert made.lowest == 3
    assert [each.offset for each in delivery.held()] == [3]
    assert made.lowest == 3


def test_deleted_messages_are_forgotten() -> None:
    made = ledger()
    made.hand_out(Delivery(made, 1, range(4), deadline_ms=NEVER_MS, peer=HOLDER, since_ms=0))
    made.advance(4)
    made.find(0)
    made.drop_below(2)
    assert made.lowest == 2
