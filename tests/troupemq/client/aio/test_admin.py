"""Admin for event loops, against a broker in this process."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from inspect import getdoc, iscoroutinefunction, isfunction, signature
from socket import create_server
from typing import Any, assert_type

import pytest

from tests.troupemq.client.aio.stalls import STALL_S_MAX, longest_stall_s
from troupemq import Admin as ThreadedAdmin
from troupemq import BrokerError, ClientClosed, ConnectionFailed, RouteNotFound, aio
from troupemq.client.admin.answers import Answers
from troupemq.client.admin.brokers import KvChanged
from troupemq.client.admin.flows import AdminFlows
from troupemq.client.admin.queues import QueueBounds
from troupemq.client.connection.calls import finished
from troupemq.testing import LocalBroker, running_broker

Use = Callable[[aio.Admin], Awaitable[Any]]


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 2}) as made:
        yield made


def run(broker: LocalBroker, use: Use, **options: Any) -> Any:
    """Run `use` with an Admin, and return its result."""

    async def main() -> Any:
        async with aio.Admin(broker.namesrv, **options) as admin:
            return await use(admin)

    return asyncio.run(main(), debug=True)


def operations() -> list[str]:
    return [
        name
        for name in dir(AdminFlows)
        if not name.startswith("_") and isfunction(getattr(AdminFlows, name))
    ]


def test_threaded_and_asyncio_admin_have_the_same_operations() -> None:
    names = [*operations(), "reader", "read"]
    assert len(names) > 90
    for name in names:
        blocking, awaited = getattr(ThreadedAdmin, name), getattr(aio.Admin, name)
        assert iscoroutinefunction(awaited) and not iscoroutinefunction(blocking), name
        assert signature(blocking).parameters.keys() == signature(awaited).parameters.keys()
        assert getdoc(blocking) == getdoc(awaited), name
        assert "failures" not in signature(awaited).parameters


def test_types_are_those_of_a_blocking_and_of_an_awaited_method(broker: LocalBroker) -> None:
    async def use(admin: aio.Admin) -> None:
        assert_type(await admin.kv("names", "key"), str | None)
        assert_type(await admin.topic_status("Orders"), Answers[QueueBounds])
        changed: Coroutine[Any, Any, Answers[KvChanged]] = admin.put_kv("names", "key", value="1")
        assert (await changed)[0].value == "1"

    run(broker, use)
    with ThreadedAdmin(broker.namesrv) as threaded:
        assert assert_type(threaded.kv("names", "key"), str | None) == "1"
        assert len(assert_type(threaded.topic_status("Orders"), Answers[QueueBounds])) == 2


def test_topics_and_messages_are_administered(broker: LocalBroker) -> None:
    async def use(admin: aio.Admin) -> None:
        await admin.create_topic("Paid", 1)
        assert "Paid" in await admin.topics()
        (queue,) = await admin.queues("Paid")
        sent = await admin.send_message("Paid", b"one", keys=["17"], queue=queue)
        view = await admin.view_message(sent.offset_message_id)
        assert (view.body, await admin.offsets(queue)) == (b"one", (0, 1))
        reader = await admin.reader(queue)
        assert [each.body async for each in reader.messages(0, 1)] == [b"one"]
        assert await reader.at(1) is None and await reader.ends() == (0, 1)
        (life,) = await admin.message_lives("17", topic="Paid")
        assert [each.what for each in life.events][:2] == ["sent", "stored"]
        assert len(await admin.trial_sends("Paid", 3, 10)) == 3
        with pytest.raises(RouteNotFound):
            await admin.queues("missing")
        with pytest.raises(BrokerError):
            await admin.view_message("7F000001" + "00002A9F" + "00" * 8)

    with pytest.raises(RouteNotFound, match="is not asked"):  # of an unlisted server
        run(broker, use)


def test_failures_stand_beside_the_answers_that_came(broker: LocalBroker) -> None:
    async def use(admin: aio.Admin) -> None:
        found = await admin.broker_status(broker="127.0.0.1:1")
        assert list(found) == [] and found.is_partial and "127.0.0.1:1" in found.failures[0]
        statuses = await asyncio.gather(*(admin.broker_status() for _ in range(20)))
        assert all(len(each) == 1 and not each.failures for each in statuses)
        changed = await admin.update_broker_setting("fileReservedTime", "71")
        assert (changed[0].value, changed.failures) == ("71", ())
        with pytest.raises(ConnectionFailed):
            await admin.runtime_info("127.0.0.1:1")

    run(broker, use)


def test_silent_server_stalls_no_other_coroutine_and_a_cancelled_call_harms_none() -> None:
    async def main(port: int) -> None:
        async with aio.Admin(f"127.0.0.1:{port}") as admin:
            for ask in (admin.topics, admin.group_list, admin.brokers):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await ask()
        assert len(asyncio.all_tasks()) == 2

    with create_server(("127.0.0.1", 0)) as silent:
        work = main(silent.getsockname()[1])
        assert asyncio.run(longest_stall_s(work)) < STALL_S_MAX


def test_calls_fail_before_the_start_after_the_stop_and_on_another_loop(
    broker: LocalBroker,
) -> None:
    admin = aio.Admin(broker.namesrv)
    with pytest.raises(ClientClosed, match="not started"):
        asyncio.run(admin.topics())
    asyncio.run(admin.start())
    with pytest.raises(ClientClosed, match="another event loop"):
        asyncio.run(admin.topics())

    async def stopped() -> None:
        async with aio.Admin(broker.namesrv) as ended:
            assert "Orders" in await ended.topics()
        with pytest.raises(ClientClosed, match="stopped"):
            await ended.topics()
        with pytest.raises(ClientClosed, match="stopped"):
            await ended.start()

    asyncio.run(stopped())


def test_operation_that_suspends_without_a_loop_is_an_error() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    work = waits()
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        finished(work)
    work.close()
