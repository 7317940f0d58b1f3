"""Answers: results of the methods of Admin, with the failures of servers.

A Result is frozen, and its fields are the keys of `troupemq admin --json`, in this order.
"""

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from re import sub
from typing import Any, ClassVar, Generic, TypeVar, overload

from troupemq.client.errors import ClientClosed, ClientError
from troupemq.text import span_text

Row = Mapping[str, object]
OPTIONAL = {"optional": True}
"""Metadata of a field that `row` leaves out where it is None."""
HIDDEN = {"hidden": True}
"""Metadata of a field that `row` leaves out."""

Found = TypeVar("Found")

GATHERED_PER_ROUND = 500
"""Results that an event loop gathers before others have their turn: 1 to 5 ms."""


class Time(int):
    """A wall-clock time in ms since 1970: a number in JSON, local time in a table.

    0 and less mean that there is no time: null, and `-`.
    """

    def __str__(self) -> str:
        if self <= 0:
            return "-"
        try:
            return datetime.fromtimestamp(self / 1000).isoformat(" ", "milliseconds")
        except (ValueError, OverflowError, OSError):  # beyond the year 9999
            return str(int(self))


class Span(int):
    """A duration in ms: a number in JSON, in one unit in a table."""

    def __str__(self) -> str:
        return span_text(self / 1000)


@dataclass(frozen=True, slots=True)
class Result:
    def row(self) -> dict[str, object]:
        """Return the fields by name; the fields of a nested result are merged in."""
        found: dict[str, object] = {}
        for each in fields(self):
            if "hidden" in each.metadata:
                continue
            value = getattr(self, each.name)
            if isinstance(value, Result):
                found |= value.row()
            elif isinstance(value, tuple):
                found[each.name] = [one.row() if isinstance(one, Result) else one for one in value]
            elif value is not None or "optional" not in each.metadata:
                found[each.name] = value
        return found


@dataclass(frozen=True, slots=True)
class Change(Result):
    """Base of the results of changes; each describes the change in a sentence."""

    SENTENCE: ClassVar[str]

    @property
    def sentence(self) -> str:
        return self.SENTENCE.format(self)


class Failures:
    """Failed parts of one method call, a sentence each."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._told: Callable[[str], None] | None = None

    def add(self, sentence: str) -> None:
        """Record a failed part; the method continues."""
        self._said.append(sentence)
        if self._told is not None:
            self._told(sentence)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Run a part that may fail, such as the request to one of several brokers."""
        try:
            yield
        except ClientError as error:
            self.add(str(error))

    def tell(self, told: Callable[[str], None]) -> None:
        """Call `told` with each earlier failure now, and with each later one as it occurs."""
        for each in self._said:
            told(each)
        self._told = told

    def __iter__(self) -> Iterator[str]:
        return iter(self._said)


READ_BEFORE = "read the answers before the end of the Admin's `with` block"


class Answers(Sequence[Found], Generic[Found]):
    """The results of one method, in order, without those of failed servers.

        answers = admin.broker_rates()
        for each in answers:
            print(each.broker, each.in_tps)
        print(answers.failures)

    Servers are asked during the first iteration, or when its length or its failures are read.
    Raises ClientError then.
    """

    def __init__(self, ask: Callable[[Failures], Iterator[Found]]) -> None:
        self._found: list[Found] = []
        self._failures = Failures()
        self._error: ClientError | None = None
        self._rest = ask(self._failures)

    def tell(self, told: Callable[[str], None]) -> "Answers[Found]":
        """Call `told` with each earlier failure now, and with each later one as it occurs."""
        self._failures.tell(told)
        return self

    @property
    def failures(self) -> tuple[str, ...]:
        """A sentence for each server that did not answer, and for each fault that was found."""
        self._complete()
        return tuple(self._failures)

    @property
    def is_partial(self) -> bool:
        return bool(self.failures)

    def __iter__(self) -> Iterator[Found]:
        place = 0
        while True:
            if place == len(self._found):
                if self._error is not None:
                    raise self._error
                try:
                    self._found.append(next(self._rest))
                except StopIteration:
                    return
                except ClientError as error:
                    if isinstance(error, ClientClosed):
                        error.add_note(READ_BEFORE)
                    self._error = error
                    raise
            yield self._found[place]
            place += 1

    def __len__(self) -> int:
        self._complete()
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Found: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Found]: ...
    def __getitem__(self, index: int | slice) -> Found | Sequence[Found]:
        self._complete()
        return self._found[index]

    def _complete(self) -> None:
        for _ in self:
            pass

    def carry_out(self) -> "Answers[Found]":
        """Ask all servers now; an error after the first change becomes a failure."""
        try:
            self._complete()
        except ClientError as error:
            if not self._found and not list(self._failures):
                raise
            self._error = None
            self._failures.add(str(error))
        return self

    @classmethod
    async def gathered(
        cls, ask: Callable[[Failures], AsyncIterator[Found]], *, is_change: bool
    ) -> "Answers[Found]":
        """Return the complete answers of an event loop. Raises as they do while iterated over."""
        failures = Failures()
        found: list[Found] = []
        error: ClientError | None = None
        try:
            async for each in ask(failures):
                found.append(each)
                if len(found) % GATHERED_PER_ROUND == 0:
                    await _Turn()
        except ClientError as raised:
            error = raised

        def again(into: Failures) -> Iterator[Found]:
            for sentence in failures:
                into.add(sentence)
            yield from found
            if error is not None:
                raise error

        answers = cls(again)
        if is_change:
            return answers.carry_out()
        answers._complete()
        return answers


class _Turn:
    """A pause in which an event loop runs other coroutines once, as asyncio's `sleep(0)` is."""

    def __await__(self) -> Generator[None]:
        yield


def snake_case(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return RocketMQ's names in snake case: `readQueueNums` is `read_queue_nums`."""
    return {_snake(name): value for name, value in found.items()}


def _snake(name: str) -> str:
    return sub(r"(?<=[a-z0-9])([A-Z]+)", lambda found: "_" + found[1].lower(), name)
