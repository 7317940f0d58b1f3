"""Operations: methods of Admin that are written once, for threads and for event loops.

An operation is a coroutine function. Its requests go to a Caller (callers.py), whose methods are
coroutines as well. Those of the threaded Admin block and never suspend, so that one step runs a
whole operation. In `troupemq.aio` they suspend, and the event loop runs the operation.

The descriptors below show each operation as the method that its class has: one that blocks on
a subclass of BlockingMethods, else a coroutine function. Types, signatures and docstrings are kept.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from inspect import signature
from types import GenericAlias
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, get_args, overload

from troupemq.client.admin.answers import Answers, Failures
from troupemq.client.admin.argument_types import PLACES, check_arguments
from troupemq.client.connection.calls import finished

Found = TypeVar("Found")
Given = ParamSpec("Given")


class BlockingMethods:
    """Base of a class whose operations block."""

    _flows: Any
    """Object of the same operations, whose Caller never suspends."""


def stepped(found: AsyncIterator[Found]) -> Iterator[Found]:
    """Yield from an asynchronous generator that never suspends."""

    async def following() -> Found:
        return await anext(found)

    while True:
        try:
            yield finished(following())
        except StopAsyncIteration:
            return


class _Shown:
    """The two functions of an operation, of which a class has one as its method."""

    def __init__(self, blocking: Callable[..., Any], awaited: Callable[..., Any]) -> None:
        self._blocking, self._awaited = blocking, awaited

    def _shown(self, asked: object, owner: type) -> Any:
        function: Any = self._blocking if issubclass(owner, BlockingMethods) else self._awaited
        return function if asked is None else function.__get__(asked, owner)


class operation(_Shown, Generic[Given, Found]):
    """Make a coroutine function a method of Admin."""

    def __init__(
        self, method: Callable[Concatenate[Any, Given], Coroutine[Any, Any, Found]]
    ) -> None:
        name = method.__name__

        @wraps(method)
        async def awaited(asked: object, /, *given: Any, **named: Any) -> Found:
            check_arguments(method, given, named)
            return await method(asked, *given, **named)

        @wraps(method)
        def blocking(asked: BlockingMethods, /, *given: Any, **named: Any) -> Found:
            work: Coroutine[Any, Any, Found] = getattr(asked._flows, name)(*given, **named)
            return finished(work)

        super().__init__(blocking, awaited)

    @overload
    def __get__(self, asked: None, owner: type) -> Callable[Concatenate[Any, Given], Found]: ...
    @overload
    def __get__(self, asked: BlockingMethods, owner: type) -> Callable[Given, Found]: ...
    @overload
    def __get__(
        self, asked: object, owner: type
    ) -> Callable[Given, Coroutine[Any, Any, Found]]: ...
    def __get__(self, asked: object, owner: type) -> Any:
        return self._shown(asked, owner)


_LEFT_OUT = ("failures", "where")


class reads(_Shown, Generic[Given, Found]):
    """Make a generator a method of Admin that returns Answers.

    A blocking method asks servers as its answers are iterated over, an awaited one at once.
    """

    is_change: ClassVar[bool] = False

    def __init__(
        self, method: Callable[Concatenate[Any, Failures, Given], AsyncIterator[Found]]
    ) -> None:
        @wraps(method)
        def blocking(asked: BlockingMethods, /, *given: Any, **named: Any) -> Answers[Found]:
            check_arguments(method, given, named)
            flows = asked._flows
            answers = Answers(lambda failures: stepped(method(flows, failures, *given, **named)))
            return answers.carry_out() if self.is_change else answers

        @wraps(method)
        async def awaited(asked: object, /, *given: Any, **named: Any) -> Answers[Found]:
            check_arguments(method, given, named)
            return await Answers.gathered(
                lambda failures: method(asked, failures, *given, **named), is_change=self.is_change
            )

        super().__init__(blocking, awaited)
        shown = signature(method)
        kept = [each for each in shown.parameters.values() if each.name not in _LEFT_OUT]
        kept += PLACES if "where" in shown.parameters else ()
        made = GenericAlias(Answers, get_args(shown.return_annotation))
        for each in (self._blocking, self._awaited):
            each.__signature__ = shown.replace(  # type: ignore[attr-defined]
                parameters=kept, return_annotation=made
            )

    @overload
    def __get__(
        self, asked: None, owner: type
    ) -> Callable[Concatenate[Any, Given], Answers[Found]]: ...
    @overload
    def __get__(self, asked: BlockingMethods, owner: type) -> Callable[Given, Answers[Found]]: ...
    @overload
    def __get__(
        self, asked: object, owner: type
    ) -> Callable[Given, Coroutine[Any, Any, Answers[Found]]]: ...
    def __get__(self, asked: object, owner: type) -> Any:
        return self._shown(asked, owner)


class changes(reads[Given, Found]):
    """Make a generator a method of Admin that completes all changes before it returns."""

    is_change = True
