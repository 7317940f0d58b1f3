"""Ends of clients on an event loop: nothing waits for ever, and nothing is said that is not so."""

import asyncio
import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.troupemq.client.aio.conftest import RunOnLoop
from tests.troupemq.client.aio.handled import send
from troupemq import (
    ClientClosed,
    ConsumeFrom,
    Message,
)
from troupemq.aio import Producer, SimpleConsumer
from troupemq.testing import LocalBroker, running_broker

LONG_MS = 60_000
LONG_S = 60.0


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 4}) as made:
        yield made


async def until(is_true: Any) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.001)


def test_close_ends_a_send_that_pauses_before_its_next_try(
    run: RunOnLoop, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("troupemq.client.producing.sending.SAME_BROKER_PAUSE_MS", LONG_MS)
    fault = broker.fail("send")

    async def main() -> None:
        async with Producer("shop", broker.namesrv) as producer:
            sending = asyncio.create_task(producer.send(Message("Orders", b"new"), LONG_MS))
            await until(lambda: fault.hits and not any(producer._lanes.values()))
            await asyncio.sleep(0.05)
            await producer.stop(0)
            async with asyncio.timeout(5):
                with pytest.raises(ClientClosed):
                    await sending

    run(main())


def test_cancelled_stop_ends_requests(run: RunOnLoop, broker: LocalBroker) -> None:
    async def main() -> None:
        producer = Producer("shop", broker.namesrv)
        await producer.start()
        request = asyncio.create_task(producer.request(Message("Orders", b"?"), LONG_MS))
        await asyncio.to_thread(broker.expect, "Orders", body=b"?")
        broker.lose("send")
        sending = asyncio.create_task(producer.send(Message("Orders", b"lost"), LONG_MS))
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await producer.stop()
        async with asyncio.timeout(5):
            for each in (request, sending):
                with pytest.raises(ClientClosed):
                    await each

    run(main())


def test_stop_with_a_receive_that_waits_logs_no_error(
    run: RunOnLoop, broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said "Future exception was never retrieved"."""

    async def main() -> None:
        async with SimpleConsumer("workers", broker.namesrv) as made:
            await made.subscribe("Orders")
            receiving = asyncio.create_task(made.receive(wait_ms=LONG_MS))
            await asyncio.sleep(0.05)
            await made.stop()
            assert await receiving == []

    run(main())
    gc.collect()
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_settlement_that_a_stop_cuts_off_is_not_cancelled(
    run: RunOnLoop, broker: LocalBroker
) -> None:
    """A worker that only saw a CancelledError would end without a word."""
    send(broker, "a")
    fault = broker.lose("ack")

    async def main() -> None:
        begin = ConsumeFrom.FIRST_OFFSET
        async with SimpleConsumer("workers", broker.namesrv, begin=begin) as made:
            await made.subscribe("Orders")
            (delivery,) = await made.receive()
            ack = asyncio.create_task(delivery.ack())
            await until(lambda: fault.hits)
            await made.stop(0)
            await asyncio.wait([ack])
            assert not ack.cancelled()
            with pytest.raises(ClientClosed):
                await ack

    run(main())


# --- event loops that begin tasks at once (asyncio.eager_task_factory), from Python 3.12 on
