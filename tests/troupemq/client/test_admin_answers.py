"""Tests of troupemq/client/admin/answers.py: results as they come, beside what failed."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from troupemq.client.admin import Admin
from troupemq.client.admin.answers import OPTIONAL, Change, Failures, Result, Time
from troupemq.client.admin.operations import BlockingMethods, changes, reads
from troupemq.client.errors import ClientClosed, ClientError


@dataclass(frozen=True, slots=True)
class Inner(Result):
    inner_ms: Time


@dataclass(frozen=True, slots=True)
class Changed(Change):
    SENTENCE = "{0.name} is set."
    name: str
    parts: tuple[Result, ...] = ()
    beside: Inner | None = field(default=None, metadata=OPTIONAL)


class Asking(BlockingMethods):
    """Three servers: the second does not answer, the third ends the question if it is told to."""

    def __init__(self, *, ends: bool = False) -> None:
        self.asked: list[str] = []
        self._ends = ends
        self._flows = self

    async def _ask(self, failures: Failures) -> AsyncIterator[Changed]:
        for name in ("a", "b", "c"):
            self.asked.append(name)
            with failures.attempt():
                if name == "b":
                    raise ClientError("b is gone")
                yield Changed(name)
        if self._ends:
            raise ClientError("no name server answers")

    @reads
    async def read(self, failures: Failures) -> AsyncIterator[Changed]:
        async for each in self._ask(failures):
            yield each

    @changes
    async def change(self, failures: Failures) -> AsyncIterator[Changed]:
        async for each in self._ask(failures):
            yield each


def test_servers_are_queried_once_and_lazily() -> None:
    asking = Asking()
    answers = asking.read()
    assert asking.asked == []
    assert next(iter(answers)).name == "a" and asking.asked == ["a"]
    assert [each.name for each in answers] == ["a", "c"]
    assert answers.failures == ("b is gone",) and answers.is_partial
    assert (len(answers), answers[1].name, asking.asked) == (2, "c", ["a", "b", "c"])


def test_an_error_is_raised_each_time_and_never_ends_the_iteration() -> None:
    answers = Asking(ends=True).read()
    for _ in range(2):
        with pytest.raises(ClientError, match="no name server"):
            list(answers)


def test_answers_read_behind_the_with_block_say_where_to_read_them() -> None:
    with Admin("127.0.0.1:1") as admin:
        answers = admin.topic_traffic()
    with pytest.raises(ClientClosed) as caught:
        list(answers)
    (note,) = caught.value.__notes__
    assert note == "read the answers before the end of the Admin's `with` block"


def test_changes_are_executed_at_once_and_an_error_hides_no_results() -> None:
    asking = Asking(ends=True)
    answers = asking.change()
    assert asking.asked == ["a", "b", "c"]
    assert [each.sentence for each in answers] == ["a is set.", "c is set."]
    said: list[str] = []
    answers.tell(said.append)
    assert said == ["b is gone", "no name server answers"]


def test_a_row_has_the_fields_of_nested_results_in_order() -> None:
    inner = Inner(Time(0))
    assert Changed("a", (inner,), inner).row() == {
        "name": "a",
        "parts": [{"inner_ms": 0}],
        "inner_ms": 0,
    }
    assert list(Changed("a").row()) == ["name", "parts"]
