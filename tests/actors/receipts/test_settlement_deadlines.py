"""Deadlines of deliveries, and deliveries that live with a connection."""

from time import process_time

from actors.receipts.ledger import NEVER_MS, Delivery, Holder, Ledger
from actors.receipts.settlement import Deadlines


def delivery(deadline_ms: float, *, peer_id: int = 1, group: str = "g", count: int = 1) -> Delivery:
    ledger = Ledger(group, "T", 0, is_retry=False)
    holder = Holder(peer_id, "client")
    return Delivery(ledger, 1, [*range(count)], deadline_ms=deadline_ms, peer=holder, since_ms=0)


def test_delivery_is_due_at_the_tick_behind_its_deadline() -> None:
    table = Deadlines(0)
    early, late = delivery(150), delivery(250)
    table.add(late)
    table.add(early)
    assert table.due(100) == []
    assert table.due(200) == [early]
    assert table.due(1_000_000) == [late]


def test_delivery_without_messages_is_forgotten() -> None:
    table = Deadlines(0)
    each = delivery(150, count=2)
    table.add(each)
    table.leave(each)
    table.leave(each)
    assert table.due(1_000) == []


def test_deadline_that_has_passed_is_due_at_the_next_tick() -> None:
    table = Deadlines(0)
    table.due(1_000)
    each = delivery(5)
    table.add(each)
    assert table.due(1_100) == [each]


def test_connection_that_ends_gives_its_deliveries_a_deadline() -> None:
    table = Deadlines(0)
    mine, other = delivery(NEVER_MS), delivery(NEVER_MS, peer_id=2)
    of_group = delivery(NEVER_MS, group="h")
    for each in (mine, other, of_group):
        table.add(each)
    assert table.due(1e12) == []
    table.end(1, 1e12 + 1_000, "h")
    assert table.due(1e12 + 1_000) == [of_group]
    table.end(1, 1e12 + 2_000)
    assert table.due(1e12 + 2_000) == [mine]


def test_end_of_a_connection_takes_no_time_for_each_of_its_messages() -> None:
    """The loop took 0.4 s for 200,000 messages that were received one by one."""
    table = Deadlines(0)
    for _n in range(50_000):
        table.add(delivery(NEVER_MS))
    begun_s = process_time()
    table.end(1, 1_000)
    assert process_time() - begun_s < 0.01
    assert len(table.due(1_000)) == 50_000


def test_messages_that_are_settled_after_the_end_of_their_connection_stay_settled() -> None:
    table = Deadlines(0)
    first, second = delivery(NEVER_MS), delivery(NEVER_MS)
    table.add(first)
    table.end(1, 1_000)
    table.add(second)  # the connection lives on: one group has left
    table.leave(first)
    assert table.due(1_000) == [first]
    assert first.left == 0
    table.end(1, 2_000)
    assert table.due(2_000) == [second]
