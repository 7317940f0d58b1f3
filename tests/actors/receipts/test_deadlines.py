"""Deadlines of deliveries, and deliveries that live with a connection."""

import pytest

from actors.receipts.deadlines import Deadlines
from actors.receipts.ledger import NEVER_MS, Delivery, Holder, Ledger


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


def test_many_deliveries_of_a_connection_end_in_several_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.receipts.deadlines.ENDED_AT_ONCE", 2)
    table = Deadlines(0)
    found = [delivery(NEVER_MS) for _ in range(5)]
    for each in found:
        table.add(each)
    table.end(1, 100)
    table.leave(found[4])
    assert [table.due(now) for now in (100, 200, 300)] == [found[:4], [], []]
