"""The asyncio client against the official broker and ours: its Admin and its pull consumer."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.compat.conftest import MakeBroker, MakeNameServer
from troupemq import ConsumeFrom, Message, RouteNotFound, aio

pytestmark = pytest.mark.slow(seconds=20)

COUNT = 200


async def registered(admin: aio.Admin, topic: str) -> None:
    while True:
        with suppress(RouteNotFound):
            await admin.queues(topic)
            return
        await asyncio.sleep(0.1)


async def use(namesrv: str) -> None:
    async with (
        aio.Admin(namesrv) as admin,
        aio.Producer("senders", namesrv) as producer,
        aio.PullConsumer("readers", namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        await admin.create_topic("Orders", 4)
        await registered(admin, "Orders")
        bodies = [b"%d" % number for number in range(COUNT)]
        await asyncio.gather(*(producer.send(Message("Orders", each)) for each in bodies))
        await consumer.subscribe("Orders")
        found: list[bytes] = []
        async for message in consumer:
            found.append(message.body)
            if len(found) == COUNT // 2:
                break
        async for batch in consumer.batches(32, 200):
            found += [each.body for each in batch]
            if len(found) == COUNT:
                break
        await consumer.commit()
        assert sorted(found) == sorted(bodies)
        (member,) = (await admin.group_members("readers")).members
        assert member.client == consumer.client_id
        progress = await admin.group_progress("readers")
        assert progress.failures == () and sum(each.lag for each in progress) == 0
        (master,) = await admin.masters()
        assert "Orders" in await admin.topics()
        assert (await admin.settings_at(master.address))["brokerName"] == master.name


@pytest.mark.parametrize("kind", ["official", "ours"])
def test_admin_and_pull_consumer_work(
    kind: str, tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    with (
        make_name_server(kind, tmp_path / "name-server") as name_server,
        make_broker(kind, tmp_path / "broker", name_server),
    ):

        async def main() -> None:
            async with asyncio.timeout(60):
                await use(name_server.address)

        asyncio.run(main())
