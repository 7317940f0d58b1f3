"""The push consumer for event loops, against a broker in this process."""

import asyncio
import contextvars
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from socket import create_server
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.troupemq.client.aio.conftest import RunOnLoop
from tests.troupemq.client.aio.handled import (
    QUEUES,
    QUICK,
    Handled,
    apart,
    consumer,
    in_order,
    numbered,
    send,
)
from tests.troupemq.fake_server import FakeServer, serve_routes
from troupemq import (
    ArgumentIllegal,
    BrokerError,
    ClientClosed,
    ConsumeResult,
    ConsumerSettings,
    MessageView,
    RetryLater,
)
from troupemq.aio import PushConsumer
from troupemq.testing import LocalBroker, running_broker

STALL_S_MAX = 0.5
"""Far below the 3 s for which a look-up waits, and far above the pauses of a busy machine."""
WORK_S_MAX = 0.1 if sys.implementation.name == "pypy" else 0.025
"""Processor time of the loop's thread between two turns of another task; PyPy's JIT needs some."""


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": QUEUES, "Bills": 1}) as made:
        yield made


def test_messages_are_handled_concurrently_and_committed(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, *numbered(40))

    async def main() -> Handled:
        handled = Handled(lambda _: asyncio.sleep(0.01))
        made = consumer(broker, handled, concurrency=10)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(40)
            assert len(made.queues()) == QUEUES + 1
        return handled

    handled = run(main())
    assert sorted(handled.bodies) == sorted(numbered(40))
    assert handled.most_at_once == 10
    assert broker.lag("billing") == 0


def test_handlers_that_never_wait_leave_turns_to_others(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, *numbered(200))

    async def main() -> None:
        handled = Handled()
        made = consumer(broker, handled)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(200)

    run(main())
    assert broker.lag("billing") == 0


def test_orderly_queues_are_handled_in_order_with_retries_between(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    sent = numbered(80)
    send(broker, *sent)
    chance = random.Random(1)

    async def act(view: MessageView) -> Any:
        await asyncio.sleep(chance.random() * 0.003)
        if chance.random() < 0.1:
            raise LookupError("no stock")
        return RetryLater(suspend_ms=10) if chance.random() < 0.1 else None

    async def main() -> list[str]:
        handled = Handled(act)
        made = consumer(broker, handled, orderly=True)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(len(sent))
        return handled.bodies

    bodies = run(main())
    assert in_order(bodies) and sorted(bodies) == sorted(sent)
    assert broker.lag("billing") == 0


def test_queues_move_as_members_come_and_go(run: RunOnLoop, broker: LocalBroker) -> None:
    async def main() -> list[str]:
        first, second = Handled(), Handled()
        one, other = consumer(broker, first), consumer(broker, second)
        for each in (one, other):
            await each.subscribe("Orders")
        async with one:
            async with other:
                while not (one.queues().keys() and len(other.queues()) >= QUEUES // 2) or (
                    one.queues().keys() & other.queues().keys()
                ):
                    await asyncio.sleep(0.01)
                await apart(send, broker, *numbered(40))
                async with asyncio.timeout(20):
                    while len(first.bodies) + len(second.bodies) < 40:
                        await asyncio.sleep(0.01)
                assert first.bodies and second.bodies
            async with asyncio.timeout(20):
                while len(one.queues()) < QUEUES + 1:
                    await asyncio.sleep(0.01)
        return first.bodies + second.bodies

    assert sorted(run(main())) == sorted(numbered(40))
    assert broker.lag("billing") == 0


def test_failed_messages_are_retried_and_become_dead_letters(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, "bad", "good")

    def act(view: MessageView) -> Any:
        tries.append((view.body, view.reconsume_times))
        if view.body == b"bad":
            raise OSError("no route")

    tries: list[tuple[bytes, int]] = []

    async def main() -> None:
        handled = Handled(act)
        settings = ConsumerSettings(max_reconsume_times=1, rebalance_interval_ms=50, settle_ms=10)
        made = consumer(broker, handled, settings=settings)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(1)
            async with asyncio.timeout(20):
                while len(tries) < 3:
                    await apart(broker.advance, "10s")

    run(main())
    assert sorted(tries) == [(b"bad", 0), (b"bad", 1), (b"good", 0)]
    (dead,) = broker.dead_letters("billing")
    assert (dead.body, dead.failure) == (b"bad", "OSError: no route")


def test_messages_that_no_broker_takes_back_are_retried_here(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, "bad")
    broker.fail("CONSUMER_SEND_MSG_BACK", "SYSTEM_ERROR")
    broker.fail("send", "SYSTEM_ERROR")

    def act(view: MessageView) -> Any:
        return None if view.reconsume_times else ConsumeResult.RETRY_LATER

    async def main() -> int:
        handled = Handled(act)
        made = consumer(broker, handled)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(1)
        return handled.views[0].reconsume_times

    assert run(main()) == 1
    assert broker.lag("billing") == 0


def test_topics_have_handlers_of_their_own_and_filters(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, "a", topic="Bills", tags="new")
    send(broker, "b", topic="Bills", tags="paid")
    send(broker, "c")

    async def main() -> tuple[list[str], list[str]]:
        orders, bills = Handled(), Handled()
        made = consumer(broker, None)
        with pytest.raises(ArgumentIllegal, match="no listener for Orders"):
            await made.subscribe("Orders")
        await made.subscribe("Orders", listener=orders)
        async with made:
            await made.subscribe("Bills", "paid", listener=bills)
            await orders.wait(1)
            await bills.wait(1)
            with pytest.raises(BrokerError):
                await made.subscribe("Orders", sql="a >> 1")
            await made.unsubscribe("Bills")
            while any(queue.topic == "Bills" for queue in made.queues()):
                await asyncio.sleep(0.01)
        return orders.bodies, bills.bodies

    assert run(main()) == (["c"], ["b"])


def test_cancelled_handler_has_its_message_retried(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, *numbered(8))
    broker_delays: list[int] = []

    async def act(view: MessageView) -> None:
        broker_delays.append(view.reconsume_times)
        if view.reconsume_times == 0:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.sleep(10)

    async def main() -> list[str]:
        handled = Handled(act)
        made = consumer(broker, handled)
        await made.subscribe("Orders")
        async with made:
            async with asyncio.timeout(20):
                while len(broker_delays) < 8:
                    await asyncio.sleep(0.001)
                while len(handled.bodies) < 8:
                    await apart(broker.advance, "10s")
        return handled.bodies

    assert sorted(run(main())) == sorted(numbered(8))
    assert broker.lag("billing") == 0


def test_cancelled_handler_of_an_orderly_queue_keeps_the_order(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, *numbered(20))
    chance = random.Random(2)

    async def act(view: MessageView) -> None:
        if chance.random() < 0.3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)

    async def main() -> list[str]:
        handled = Handled(act)
        made = consumer(broker, handled, orderly=True)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(20)
        return handled.bodies

    bodies = run(main())
    assert in_order(bodies) and sorted(bodies) == sorted(numbered(20))


def test_stop_waits_for_handlers_and_cancels_those_over_its_timeout(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, "quick", "slow")

    async def main() -> tuple[list[str], list[str]]:
        begun, cancelled = asyncio.Semaphore(0), []

        async def act(view: MessageView) -> None:
            begun.release()
            try:
                await asyncio.sleep(0.2 if view.body == b"quick" else 60)
            except asyncio.CancelledError:
                cancelled.append(view.body.decode())
                raise

        handled = Handled(act)
        made = consumer(broker, handled)
        await made.subscribe("Orders")
        await made.start()
        await begun.acquire()
        await begun.acquire()
        await made.stop(1)
        return handled.bodies, cancelled

    assert run(main()) == (["quick"], ["slow"])
    assert broker.lag("billing") == 1


def test_cancelled_stop_closes_at_once(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, "slow")

    async def main() -> None:
        begun = asyncio.Event()

        async def act(view: MessageView) -> None:
            begun.set()
            await asyncio.sleep(60)

        made = consumer(broker, Handled(act))
        await made.subscribe("Orders")
        await made.start()
        await begun.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await made.stop()
        assert not made._client.remoting._connections
        handled = Handled()
        again = consumer(broker, handled)
        await again.subscribe("Orders")
        async with again:
            await handled.wait(1)

    run(main())


def test_run_serves_until_it_is_cancelled_or_stopped(run: RunOnLoop, broker: LocalBroker) -> None:
    async def main() -> None:
        for is_cancelled in (True, False):
            handled = Handled()
            made = consumer(broker, handled)
            await made.subscribe("Orders")
            serving = asyncio.create_task(made.run())
            await apart(send, broker, "a")
            await handled.wait(1)
            if is_cancelled:
                serving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await serving
            else:
                await made.stop()
                await serving
            assert not made.is_running

    run(main())
    assert broker.lag("billing") == 0


def test_handler_may_stop_its_consumer(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, "a")

    async def main() -> None:
        async def handle(messages: Sequence[MessageView]) -> None:
            await made.stop()

        made = consumer(broker, handle)
        await made.subscribe("Orders")
        await made.run()

    run(main())


def test_context_of_a_call_is_not_seen_by_the_next(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, *numbered(12))
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="none")

    def act(view: MessageView) -> None:
        assert seen.get() == "none"
        seen.set(view.message_id)

    async def main() -> None:
        handled = Handled(act)
        made = consumer(broker, handled, concurrency=1)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(12)

    run(main())


def test_full_queues_pause_their_pulls_and_nothing_is_dropped(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, *numbered(120))

    async def main() -> list[str]:
        gate = asyncio.Event()
        handled = Handled(lambda _: gate.wait())
        handled._act = None
        held = Handled()

        async def handle(messages: Sequence[MessageView]) -> None:
            await gate.wait()
            await held(messages)

        settings = ConsumerSettings(queue_count_max=4, pull_batch_size=2, rebalance_interval_ms=50)
        made = consumer(broker, handle, settings=settings)
        await made.subscribe("Orders")
        async with made:
            while sum(each.info().cached_msg_count for each in made._rebalancing.own.values()) < 16:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            own = made._rebalancing.own.values()
            assert max(each.info().cached_msg_count for each in own) <= 5
            gate.set()
            await held.wait(120)
        return held.bodies

    assert sorted(run(main())) == sorted(numbered(120))


def test_broadcast_offsets_are_kept_in_files(
    run: RunOnLoop, broker: LocalBroker, tmp_path: Path
) -> None:
    send(broker, *numbered(8))

    async def main() -> list[str]:
        handled = Handled()
        made = consumer(broker, handled, broadcast=True, offsets_folder=tmp_path)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(8)
        second = Handled()
        made = consumer(broker, second, broadcast=True, offsets_folder=tmp_path)
        await made.subscribe("Orders")
        async with made:
            await apart(send, broker, "0-new")
            await second.wait(1)
        return second.bodies

    assert run(main()) == ["0-new"]
    assert list(tmp_path.rglob("offsets.json"))


def test_overdue_message_returns_to_the_broker(run: RunOnLoop, broker: LocalBroker) -> None:
    send(broker, "slow")

    async def main() -> list[int]:
        tries: list[int] = []
        again = asyncio.Event()

        async def handle(messages: Sequence[MessageView]) -> None:
            tries.append(messages[0].reconsume_times)
            if messages[0].reconsume_times:
                again.set()
            await again.wait()

        settings = ConsumerSettings(
            consume_timeout_ms=50, rebalance_interval_ms=50, commit_interval_ms=50, settle_ms=10
        )
        made = consumer(broker, handle, settings=settings)
        await made.subscribe("Orders")
        async with made:
            while not again.is_set():
                await apart(broker.advance, "10s")
        return tries

    assert run(main()) == [0, 1]


def test_administrators_reset_offsets_and_see_the_state(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    send(broker, *numbered(8))

    async def main() -> tuple[Any, Any]:
        handled = Handled()
        made = consumer(broker, handled, concurrency=7)
        await made.subscribe("Orders")
        async with made:
            await handled.wait(8)
            await apart(broker.join, "billing")
            info = await apart(
                broker.admin.running_info, "billing", made.client_id, with_stacks=True
            )
            await apart(broker.admin.reset_offsets, "billing", "Orders", 0)
            async with asyncio.timeout(20):
                while len(handled.bodies) < 16:
                    await asyncio.sleep(0.01)
            view = (await apart(broker.messages, "Orders"))[0]
            result = await apart(broker.admin.consume_directly, view, "billing", made.client_id)
        return info, result

    info, result = run(main())
    assert result.consume_result == "CR_SUCCESS"
    assert info.said["properties"]["consumeThreadMax"] == "7"
    assert len(info.queues) == QUEUES + 1 and info.said["jstack"]


@pytest.mark.parametrize("silent", ["name server", "broker"])
def test_silent_server_stalls_no_other_coroutine(run: RunOnLoop, silent: str) -> None:
    async def main(namesrv: str) -> tuple[float, float]:
        """Return the longest turn of other tasks, and of its processor time."""
        longest_s = work_s = 0.0

        async def tick() -> None:
            nonlocal longest_s, work_s
            while True:
                before_s, worked_s = monotonic(), thread_time()
                await asyncio.sleep(0)
                longest_s = max(longest_s, monotonic() - before_s)
                work_s = max(work_s, thread_time() - worked_s)

        ticking = asyncio.create_task(tick())
        made = PushConsumer("billing", Handled(), namesrv, settings=QUICK)
        await made.subscribe("Orders")
        for _ in range(2):  # a start may be repeated
            with suppress(TimeoutError):
                async with asyncio.timeout(0.15):
                    await made.start()
                    await asyncio.sleep(10)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await made.stop()
        ticking.cancel()
        await asyncio.wait((ticking,))
        return longest_s, work_s

    with create_server(("127.0.0.1", 0)) as server, FakeServer() as namesrv:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if silent == "broker":
            routes = {"b": cast(FakeServer, SimpleNamespace(address=address))}
            serve_routes(namesrv, routes, {"Orders": 2, "%RETRY%billing": 1})
            address = namesrv.address
        longest_s, work_s = run(main(address))
    assert longest_s < STALL_S_MAX  # on any machine, and this on a quiet one
    assert work_s < WORK_S_MAX


def test_other_loops_and_forked_processes_are_refused(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consumer(broker, Handled())
    with asyncio.Runner() as runner:
        runner.run(made.start())
        with pytest.raises(ClientClosed, match="another event loop"):
            asyncio.run(made.subscribe("Orders"))
        with pytest.raises(ClientClosed, match="another event loop"):
            asyncio.run(asyncio.wait_for(made.run(), 10))  # it waited for ever
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            with pytest.raises(ClientClosed, match="forked"):
                runner.run(made.subscribe("Orders"))
        runner.run(made.stop())


@pytest.mark.parametrize("handler", [print, lambda messages: None, 7])
def test_handler_that_is_no_coroutine_function_is_refused(handler: Any) -> None:
    with pytest.raises(ArgumentIllegal, match="a coroutine function"):
        PushConsumer("billing", handler)


def test_handler_with_wrong_parameters_is_refused() -> None:
    async def handle() -> None: ...

    with pytest.raises(ArgumentIllegal, match="called with 1 arguments"):
        PushConsumer("billing", handle)  # type: ignore[arg-type]


@pytest.mark.parametrize("orderly", [False, True])
def test_any_exception_of_a_handler_is_a_failure(
    run: RunOnLoop, broker: LocalBroker, orderly: bool
) -> None:
    """An orderly queue stopped for good after one that is no Exception, such as pytest's."""

    async def main() -> list[int]:
        tries: list[int] = []

        def act(view: MessageView) -> None:
            tries.append(view.reconsume_times)
            if len(tries) == 1:
                raise GeneratorExit

        handled = Handled(act)
        async with consumer(broker, handled, orderly=orderly) as made:
            await made.subscribe("Orders")
            await apart(send, broker, "0-0")
            async with asyncio.timeout(20):
                while len(tries) < 2:
                    await apart(broker.advance, "10s")
        return tries

    assert run(main()) == [0, 1]
