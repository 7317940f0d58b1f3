"""Event loops of the tests: that of asyncio and uvloop."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

LIMIT_S = 60.0

RunOnLoop = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.whole)])
def either_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have asyncio.run use a loop of either kind; the suite by default has uvloop with `run`."""
    if request.param == "uvloop":
        asyncio.set_event_loop_policy(pytest.importorskip("uvloop").EventLoopPolicy())
    yield
    asyncio.set_event_loop_policy(None)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> RunOnLoop:
    """Function that runs a coroutine on a new loop, and returns its result."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    async def limited(main: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(LIMIT_S):
            result = await main
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
        return result

    def run_on_new_loop(main: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(debug=True, loop_factory=factory) as runner:
            return runner.run(limited(main))

    return run_on_new_loop
