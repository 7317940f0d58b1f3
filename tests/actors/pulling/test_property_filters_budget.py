"""Budget of a connection or an address for compiling new expressions."""

import pytest

from actors.pulling.property_filters import (
    ADDRESS_TIMES,
    BURST_CHARS,
    CHARS_PER_MS,
    PEERS_MAX,
    CompileBudget,
)
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.sql92 import EXPRESSION_CHARS_MAX, compile_filter
from tests.support.peers import RecordingPeer


class Clock:
    """Wound by hand."""

    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def of(peer_id: int, address: str = "127.0.0.1") -> RecordingPeer:
    peer = RecordingPeer()
    peer.peer_id, peer.remote = peer_id, f"{address}:{peer_id}"
    return peer


def taken(budget: CompileBudget, peer: RecordingPeer, expressions: list[str]) -> int:
    """Return the number of expressions compiled before the first refusal."""
    for count, expression in enumerate(expressions):
        try:
            budget.take(peer, "SQL92", expression)
        except RemoteError as error:
            assert error.code == ResponseCode.SYSTEM_BUSY
            return count
    return len(expressions)


def expressions(count: int, chars: int = 1000) -> list[str]:
    return [f"a = {number}".ljust(chars) for number in range(count)]


def test_only_the_connection_with_many_new_expressions_is_refused() -> None:
    budget = CompileBudget(Clock())
    assert taken(budget, of(1), expressions(100)) == BURST_CHARS // 1000
    assert taken(budget, of(2), expressions(3)) == 3


def test_connections_of_one_address_share_the_budget_of_four() -> None:
    budget = CompileBudget(Clock())
    counts = [taken(budget, of(n, "10.0.0.1"), expressions(60)) for n in range(8)]
    assert sum(counts) == ADDRESS_TIMES * BURST_CHARS // 1000
    assert counts[:4] == [60] * 4 and counts[5:] == [0] * 3
    assert taken(budget, of(9, "10.0.0.2"), expressions(3)) == 3
    assert [taken(budget, of(10 + n), expressions(60)) for n in range(8)] == [60] * 8


def test_the_compile_budget_refills() -> None:
    clock = Clock()
    budget = CompileBudget(clock)
    taken(budget, of(1), expressions(100))
    clock.now_ms += 1000
    assert taken(budget, of(1), expressions(200)[100:]) >= CHARS_PER_MS - 1


def test_compiled_expressions_are_free_for_every_client() -> None:
    budget = CompileBudget(Clock())
    compile_filter("a = 'compiled'")
    for peer_id in range(50):
        assert not budget.take(of(peer_id), "SQL92", "a = 'compiled'")
    assert taken(budget, of(1), ["a = 'compiled'"] * 10_000) == 10_000
    assert not budget.take(of(1), "SQL92", "x" * (EXPRESSION_CHARS_MAX + 1)), "refused without"
    assert not budget.take(of(1), "CLASS", "x")


def test_the_budget_table_is_bounded() -> None:
    budget = CompileBudget(Clock())
    for peer_id in range(PEERS_MAX + 5):
        budget.take(of(peer_id), "SQL92", "a = 'nobody compiled it'")
    with pytest.raises(RemoteError):
        for each in expressions(100):
            budget.take(of(PEERS_MAX), "SQL92", each)
