"""Checks of the application's functions, and of what they return.

A function that cannot work is refused where it is passed: a coroutine function, a generator, a
class in place of an instance, a wrong number of parameters.  A lambda hides what it returns, so
results are checked too.
"""

import sys
from collections.abc import Callable
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
    (isasyncgenfunction, "an async generator, whose body would never run: pass a plain function"),
    (isgeneratorfunction, "a generator, whose body would never run: return instead of yield"),
)


def check_callback(value: object, what: str, *parameters: str) -> None:
    """Raise ArgumentIllegal unless `value` can be called with so many arguments and returns at
    once. `parameters` names the arguments for the error."""
    if not callable(value):
        raise ArgumentIllegal(f"{what} is a function, and not {value!r}")
    if isclass(value):
        name = value.__name__
        raise ArgumentIllegal(f"{what} is the class {name}: pass an instance, such as {name}()")
    check_runs(value, what)
    try:
        wanted = signature(value)
    except (TypeError, ValueError):  # a builtin without one
        return
    try:
        wanted.bind(*parameters)
    except TypeError as error:
        raise ArgumentIllegal(
            f"{what} is called with {len(parameters)} arguments ({', '.join(parameters)}),"
            f" which {_name(value)}{wanted} does not take: {error}"
        ) from None


def check_runs(value: object, what: str) -> None:
    """Raise ArgumentIllegal for a function whose body does not run when it is called."""
    function = value
    while isinstance(function, partial):
        function = function.func
    for each in (function, getattr_static(type(function), "__call__", None)):
        for is_kind, said in _KINDS:
            if is_kind(each):
                raise ArgumentIllegal(f"{what} {_name(value)} is {said}")


class ResultFuture(Future[Result]):
    """The future of a send or a request: its callbacks run on the I/O thread."""

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call `fn` with this future when it is done. Raises ArgumentIllegal for an async one."""
        if not callable(fn):
            raise ArgumentIllegal(f"the callback is a function, and not {short(fn)}")
        check_runs(fn, "the callback")

        def call(done: Future[Result]) -> None:
            try:
                result = fn(done)
            except SystemExit:  # others are logged by the future itself
                log.error("callback failed", callback=_name(fn), exc_info=True)
            else:
                if iscoroutine(result):
                    error = unknown_result(result, "the callback", "what it returns is ignored")
                    log.error("callback failed", callback=_name(fn), error=str(error))

        super().add_done_callback(call)


def runs_event_loop() -> bool:
    """Return whether the calling thread runs an event loop of asyncio, which must not wait."""
    asyncio = sys.modules.get("asyncio")  # importing it takes as long as all of the client
    return asyncio is not None and asyncio._get_running_loop() is not None


def unknown_result(result: object, what: str, wanted: str) -> ResultUnknown:
    """Return the error of a callback that returned `result`; a coroutine is closed."""
    said = "returned" if not isclass(result) else "returned the class"
    named = short(result) if not isclass(result) else result.__name__
    if iscoroutine(result) or isgenerator(result):
        result.close()  # else Python warns later that it was never awaited
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
