"""What is compiled for one connection in a second, and what is not."""

import pytest

from actors.pulling.compile_budget import (
    BURST_CHARS,
    CHARS_PER_MS,
    KNOWN_MAX,
    PEERS_MAX,
    CompileBudget,
)
from protocol.codes import ResponseCode
from protocol.errors import RemoteError


class Clock:
    """Wound by hand."""

    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def taken(budget: CompileBudget, peer_id: int, expressions: list[str]) -> int:
    """How many of them are compiled before one is refused."""
    for count, expression in enumerate(expressions):
        try:
            budget.take(peer_id, expression)
        except RemoteError as error:
            assert error.code == ResponseCode.SYSTEM_BUSY
            return count
    return len(expressions)


def expressions(count: int, chars: int = 1000) -> list[str]:
    return [f"a = {number}".ljust(chars) for number in range(count)]


def test_who_names_others_all_the_time_is_refused_and_nobody_else() -> None:
    budget = CompileBudget(Clock())
    assert taken(budget, 1, expressions(100)) == BURST_CHARS // 1000
    assert taken(budget, 2, expressions(3)) == 3


def test_it_fills_again() -> None:
    clock = Clock()
    budget = CompileBudget(clock)
    taken(budget, 1, expressions(100))
    clock.now_ms += 1000
    assert taken(budget, 1, expressions(200)[100:]) >= CHARS_PER_MS - 1


def test_what_was_named_before_is_free() -> None:
    budget = CompileBudget(Clock())
    same = expressions(60)
    for _ in range(50):
        assert taken(budget, 1, same) == 60


def test_only_so_much_is_remembered() -> None:
    clock = Clock()
    budget = CompileBudget(clock)
    many = expressions(KNOWN_MAX + 1, 20)
    assert taken(budget, 1, many) == len(many)
    for peer_id in range(PEERS_MAX + 5):
        budget.take(peer_id, "a = 1")
    clock.now_ms += 3_600_000
    with pytest.raises(RemoteError):
        budget.take(7, "x" * (BURST_CHARS + 1))
