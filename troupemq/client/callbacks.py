"""Checks of the application's callbacks and their results.

A callback that cannot work is rejected when it is passed: a coroutine function, a generator, a
class in place of an instance, a wrong number of parameters. A lambda does not show what it
returns, so results are checked as well.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from inspect import (
    getattr_static,
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    isclass,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
    signature,
)
from typing import TypeVar

from troupemq.client.arguments import shown as short
from troupemq.client.errors import ArgumentIllegal, ResultUnknown
from troupemq.client.log import client_logger

log = client_logger(__name__)

Result = TypeVar("Result")

_KINDS: tuple[tuple[Callable[[object], bool], str], ...] = (
    (iscoroutinefunction, "an async function, which nothing would await: pass a plain one"),
    (isasyncgenfunction, "an async generator, and its body would never run: pass a plain function"),
    (isgeneratorfunction, "a generator, and its body would never run: return instead of yield"),
)


def check_callback(value: object, what: str, *parameters: str) -> None:
    """Raise ArgumentIllegal unless `value` can be called with one argument per name.

    `parameters` names the arguments for the error. A coroutine or generator function is rejected.
    """
    if not callable(value):
        raise ArgumentIllegal(f"{what} is a function, and not {value!r}")
    if isclass(value):
        name = value.__name__
        raise ArgumentIllegal(f"{what} is the class {name}: pass an instance, such as {name}()")
    check_runs(value, what)
    _check_parameters(value, what, parameters)


def check_coroutine(value: object, what: str, *parameters: str) -> None:
    """Raise ArgumentIllegal unless `value` is a coroutine function with such parameters.

    It may be an object with a `__call__` that is a coroutine function.
    """
    function = value
    while isinstance(function, partial):
        function = function.func
    if isclass(value) or not (
        iscoroutinefunction(function)
        or iscoroutinefunction(getattr_static(type(function), "__call__", None))
    ):
        raise ArgumentIllegal(f"{what} is a coroutine function, and not {short(value)}")
    assert callable(value)
    _check_parameters(value, what, parameters)


def _check_parameters(value: Callable[..., object], what: str, parameters: Sequence[str]) -> None:
    try:
        wanted = signature(value, follow_wrapped=False)  # what is called is the decorator's
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        wanted.bind(*parameters)
    except TypeError as error:
        raise ArgumentIllegal(
            f"{what} is called with {len(parameters)} arguments ({', '.join(parameters)}),"
            f" which {_name(value)}{wanted} does not take: {error}"
        ) from None


def check_runs(value: object, what: str) -> None:
    """Raise ArgumentIllegal for a coroutine or generator function: a call does not run its body."""
    function = value
    while isinstance(function, partial):
        function = function.func
    for each in (function, getattr_static(type(function), "__call__", None)):
        for is_kind, said in _KINDS:
            if is_kind(each):
                raise ArgumentIllegal(f"{what} {_name(value)} is {said}")


class ResultFuture(Future[Result]):
    """Future of a send or a request; its callbacks run on the I/O thread."""

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call `fn` with this future when it is done. Raises ArgumentIllegal for async ones."""
        if not callable(fn):
            raise ArgumentIllegal(f"the callback is a function, and not {short(fn)}")
        check_runs(fn, "the callback")

        def call(done: Future[Result]) -> None:
            try:
                result = fn(done)
            except SystemExit:  # the future itself logs other exceptions
                log.error("callback failed", callback=_name(fn), exc_info=True)
            else:
                if iscoroutine(result):
                    error = unknown_result(result, "the callback", "what it returns is ignored")
                    log.error("callback failed", callback=_name(fn), error=str(error))

        super().add_done_callback(call)


def runs_event_loop() -> bool:
    """Return whether the calling thread runs an asyncio event loop, which must not block."""
    asyncio = sys.modules.get("asyncio")  # its import takes as long as that of the whole client
    return asyncio is not None and asyncio._get_running_loop() is not None


def unknown_result(result: object, what: str, wanted: str) -> ResultUnknown:
    """Return the error for a callback that returned `result`; close a coroutine or generator."""
    said = "returned" if not isclass(result) else "returned the class"
    named = short(result) if not isclass(result) else result.__name__
    if iscoroutine(result) or isgenerator(result):
        result.close()  # otherwise Python warns later that it was never awaited
        said, named = "returned a", f"{type(result).__name__}, and its body has not run"
    elif isasyncgen(result):
        said, named = "returned an", "async generator, and its body has not run"
    elif isinstance(result, Future) or isawaitable(result):
        said, named = "returned a", f"{type(result).__name__}, which is not waited for"
    return ResultUnknown(f"{what} {said} {named}: {wanted}")


def _name(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", None) or type(function).__qualname__
