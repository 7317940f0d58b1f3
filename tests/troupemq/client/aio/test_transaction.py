"""Transactions of coroutines, against a broker in this process."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from troupemq import ArgumentIllegal, Message, MessageView, TransactionState
from troupemq.aio import TransactionProducer
from troupemq.client.aio.transaction import Execute
from troupemq.client.producing.transaction import TransactionResult
from troupemq.testing import LocalBroker, running_broker

COMMIT, ROLLBACK, UNKNOWN = TransactionState


async def check(_: MessageView) -> TransactionState:
    return COMMIT


pytestmark = pytest.mark.usefixtures("either_loop")


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with running_broker(topics={"Orders": 1}) as made:
        yield made


def run(broker: LocalBroker, execute: Execute) -> TransactionResult:
    async def main() -> TransactionResult:
        async with TransactionProducer("shop", check, broker.namesrv) as producer:
            return await producer.send_in_transaction(Message("Orders", b"new"), execute)

    return asyncio.run(main())


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_decided_transaction_is_committed_or_rolled_back(
    broker: LocalBroker, state: TransactionState
) -> None:
    async def execute(message: Message, transaction_id: str) -> TransactionState:
        await asyncio.sleep(0)
        return state

    result = run(broker, execute)
    assert (result.state, result.told) == (state, True)
    assert len(broker.messages("Orders")) == (state is COMMIT)


@pytest.mark.parametrize("fails", [True, False])
def test_undecided_transaction_is_decided_by_a_check_back(broker: LocalBroker, fails: bool) -> None:
    async def execute(message: Message, transaction_id: str) -> None:
        if fails:
            raise LookupError("no such order")

    async def main() -> TransactionResult:
        async with TransactionProducer("shop", check, broker.namesrv) as producer:
            result = await producer.send_in_transaction(Message("Orders", b"new"), execute)
            assert broker.messages("Orders") == []
            await asyncio.to_thread(broker.advance, "2m")
            await asyncio.to_thread(broker.expect, "Orders", body=b"new")
            return result

    result = asyncio.run(main())
    assert (result.state, isinstance(result.error, LookupError)) == (UNKNOWN, fails)


def test_check_that_ignores_its_cancellation_delays_a_stop_by_a_second(broker: LocalBroker) -> None:
    """The stop never returned."""

    async def main() -> None:
        checks, goes_on = asyncio.Event(), asyncio.Event()

        async def stubborn(_: MessageView) -> None:
            checks.set()
            while not goes_on.is_set():
                with suppress(asyncio.CancelledError):
                    await goes_on.wait()

        producer = TransactionProducer("shop", stubborn, broker.namesrv)
        await producer.start()
        await producer.send_in_transaction(Message("Orders", b"new"), undecided)
        await asyncio.to_thread(broker.advance, "2m")
        await checks.wait()
        async with asyncio.timeout(10):
            await producer.stop(0)
        goes_on.set()

    async def undecided(message: Message, transaction_id: str) -> None:
        return None

    asyncio.run(main())


def test_cancelled_transaction_is_decided_by_a_check_back(broker: LocalBroker) -> None:
    async def execute(message: Message, transaction_id: str) -> TransactionState:
        await asyncio.sleep(10)
        return ROLLBACK

    async def main() -> None:
        async with TransactionProducer("shop", check, broker.namesrv) as producer:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await producer.send_in_transaction(Message("Orders", b"new"), execute)
            await asyncio.to_thread(broker.advance, "2m")
            await asyncio.to_thread(broker.expect, "Orders", body=b"new")

    asyncio.run(main())


def test_plain_functions_are_refused_where_coroutines_are_needed(broker: LocalBroker) -> None:
    with pytest.raises(ArgumentIllegal, match="check is a coroutine function"):
        TransactionProducer("shop", lambda _: COMMIT, broker.namesrv)  # type: ignore[arg-type, return-value]
    with pytest.raises(ArgumentIllegal, match="execute is a coroutine function"):
        run(broker, lambda *_: COMMIT)  # type: ignore[arg-type]


class Accounts:
    """The application of the page."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.booked = 0

    async def pay(self, key: str, _: str) -> None:
        self.paid.append(key)

    async def knows(self, _: str) -> bool:
        return True

    async def book(self, _: bytes) -> None:
        """Note a call, and end the program."""
        self.booked += 1
        for task in asyncio.all_tasks():
            if "PushConsumer.run" in repr(task.get_coro()):
                task.cancel()


def test_program_of_the_page_sends_what_it_says(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[4] / "docs/asyncio.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    accounts = Accounts()
    exec(
        program.replace("10.0.0.1:9876;10.0.0.2:9876", broker.namesrv).replace(
            "was_it_paid)", f"was_it_paid, {broker.namesrv!r})"
        ),
        {"accounts": accounts},
    )
    *states, body = capsys.readouterr().out.splitlines()
    assert states == ["OK", "COMMIT"]
    assert body == "one book" or body.isdigit()
    assert accounts.paid == ["order-1"]
    assert accounts.booked
    assert len(broker.messages("Orders")) == 1001
