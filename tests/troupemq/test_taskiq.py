"""The broker for taskiq: its receivers against a broker in this process, and worker processes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.compat.patience import wait_until
from tests.support.runtimes import needs_installed
from tests.support.unreadable import send_unreadable

needs_installed("taskiq")

from taskiq import (  # noqa: E402
    AsyncBroker,
    BrokerMessage,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
)
from taskiq.acks import AcknowledgeType  # noqa: E402
from taskiq.brokers.inmemory_broker import InmemoryResultBackend  # noqa: E402
from taskiq.exceptions import SendTaskError  # noqa: E402
from taskiq.receiver import Receiver  # noqa: E402
from taskiq.result import TaskiqResult  # noqa: E402

from troupemq import ArgumentIllegal, Message, MessageIllegal, Producer  # noqa: E402
from troupemq.taskiq import TroupeMQBroker  # noqa: E402
from troupemq.testing import LocalBroker, running_broker  # noqa: E402

GROUP = "taskiq"
ADDRESSES = "10.0.0.1:9876;10.0.0.2:9876"
WAIT_S = 10.0
SHORT = 60


@pytest.fixture(autouse=True)
def short_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits for the end of its receive."""
    monkeypatch.setattr("troupemq.taskiq.WAIT_MS", 50)


@pytest.fixture
def local() -> Iterator[LocalBroker]:
    with running_broker(topics={GROUP: 2}) as made:
        yield made


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await main

    asyncio.run(bounded())


@asynccontextmanager
async def working(broker: AsyncBroker, **options: Any) -> AsyncIterator[asyncio.Event]:
    """Run a receiver, as `taskiq worker` does; give the event that ends it."""
    broker.is_worker_process = True
    await broker.startup()
    receiver = Receiver(broker, run_startup=False, **{"max_async_tasks": 4, **options})
    finish = asyncio.Event()
    listening = asyncio.create_task(receiver.listen(finish))
    try:
        yield finish
    finally:
        finish.set()
        await listening
        await broker.shutdown()


@asynccontextmanager
async def sending(broker: AsyncBroker) -> AsyncIterator[None]:
    await broker.startup()
    try:
        yield
    finally:
        await broker.shutdown()


async def until(true: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, true, what, WAIT_S)


async def consumed(local: LocalBroker) -> None:
    await until(lambda: local.lag(GROUP) == 0, "all tasks acknowledged")


def recording(local: LocalBroker) -> tuple[TroupeMQBroker, Any, list[int]]:
    """Return a broker with a task that records its argument, the task, and the record."""
    broker, ran = TroupeMQBroker(local.namesrv), list[int]()

    @broker.task("record")
    async def record(number: int) -> None:
        ran.append(number)

    return broker, record, ran


def test_task_runs_and_is_acknowledged(local: LocalBroker) -> None:
    async def main() -> None:
        broker = TroupeMQBroker(local.namesrv).with_result_backend(InmemoryResultBackend())

        @broker.task("add")
        async def add(one: int, other: int = 0) -> int:
            return one + other

        async with working(broker):
            task = await add.kiq(1, other=2)
            assert (await task.wait_result(timeout=WAIT_S)).return_value == 3
            await consumed(local)
            (message,) = local.messages(GROUP)
            assert (message.tags, message.keys) == ("add", (task.task_id,))

    run(main())


def test_unreadable_task_is_a_dead_letter(local: LocalBroker) -> None:
    async def main() -> None:
        broker, record, ran = recording(local)
        await asyncio.to_thread(send_unreadable, local, GROUP)
        async with working(broker):
            await asyncio.to_thread(local.expect_dead_letters, GROUP, within_s=WAIT_S)
            await record.kiq(1)
            await until(lambda: ran == [1], "the task behind it")

    run(main())


@pytest.mark.parametrize("delay", [3600, 3600.0, "3600"])
def test_label_delay_is_a_timer_of_the_broker(local: LocalBroker, delay: object) -> None:
    async def main() -> None:
        broker, record, ran = recording(local)
        async with working(broker):
            await record.kicker().with_labels(delay=delay).kiq(1)
            await record.kiq(2)
            await until(lambda: bool(ran), "the task without a delay")
            assert ran == [2]
            await asyncio.to_thread(local.advance, "1h")
            await until(lambda: ran == [2, 1], "the delayed task")

    run(main())


def test_delay_between_tries_does_not_delay_the_first_one(local: LocalBroker) -> None:
    """SmartRetryMiddleware reads it from the task's definition (taskiq-aio-pika #54)."""

    async def main() -> None:
        broker = TroupeMQBroker(local.namesrv)
        broker.add_middlewares(SmartRetryMiddleware(use_jitter=False))
        ran = list[int]()

        @broker.task("fail", retry_on_error=True, delay=3600, max_retries=2)
        async def fail() -> None:
            ran.append(1)
            raise ValueError("always")

        async with working(broker):
            await fail.kiq()
            await until(lambda: len(ran) == 1, "the first try")
            await consumed(local)
            await asyncio.to_thread(local.advance, "59m")
            assert len(ran) == 1
            await asyncio.to_thread(local.advance, "1m")
            await until(lambda: len(ran) == 2, "the second try")
            await fail.kicker().with_labels(delay=60).kiq()
            await asyncio.to_thread(local.advance, "59s")
            assert len(ran) == 2
            await asyncio.to_thread(local.advance, "1s")
            await until(lambda: len(ran) == 3, "the delayed task")

    run(main())


def test_task_id_of_several_words_is_no_key(local: LocalBroker) -> None:
    async def main() -> None:
        broker, record, ran = recording(local)
        async with working(broker):
            await record.kicker().with_task_id("order 4711").kiq(1)
            await until(lambda: ran == [1], "the task")
        (message,) = local.messages(GROUP)
        assert (message.tags, message.keys) == ("record", ())

    run(main())


def test_impossible_tasks_are_refused(local: LocalBroker) -> None:
    async def main() -> None:
        broker = TroupeMQBroker(local.namesrv)
        with pytest.raises(ArgumentIllegal, match="startup"):
            await broker.kick(
                BrokerMessage(task_id="1", task_name="record", message=b"1", labels={})
            )
        async with sending(broker):
            for delay, error in {"soon": ArgumentIllegal, -1: MessageIllegal}.items():
                message = BrokerMessage(
                    task_id="1", task_name="record", message=b"1", labels={"delay": delay}
                )
                with pytest.raises(error, match="delay"):
                    await broker.kick(message)
        assert local.messages(GROUP) == []

    run(main())


def test_label_priority_orders_what_waits(local: LocalBroker) -> None:
    async def main() -> None:
        ran = list[object]()
        sender, worker = (
            TroupeMQBroker(local.namesrv, topic="ranked", max_priority=9) for _ in range(2)
        )

        @sender.task("record")
        async def record(priority: object) -> None:
            ran.append(priority)

        worker.register_task(record.original_func, "record")
        async with sending(sender):
            for priority in (0, "9", 3.0, 5):
                await record.kicker().with_labels(priority=priority).kiq(priority)
            with pytest.raises(SendTaskError):
                await record.kicker().with_labels(priority="high").kiq(1)
        await until(lambda: len(local.messages("ranked")) == 4, "all tasks")
        async with working(worker, max_async_tasks=1):
            await until(lambda: len(ran) == 4, "all tasks")
        assert ran == ["9", 5, 3.0, 0]

    run(main())
    with pytest.raises(ArgumentIllegal, match="max_priority"):
        TroupeMQBroker(local.namesrv, max_priority=0)


@pytest.mark.parametrize("wrong", [{"fetch_count": 0}, {"fetch_count": "8"}, {"topic": "a b"}])
def test_a_wrong_argument_ended_each_worker_by_another_name(wrong: dict[str, Any]) -> None:
    """The error of fetch_count=0 was that count_max is 0, once the worker ran."""
    with pytest.raises(ArgumentIllegal, match=r"fetch_count is|specified topic\[a b\]"):
        TroupeMQBroker(**wrong)


class SlowResults(InmemoryResultBackend[Any]):
    """Results that are saved when a test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.allowed = asyncio.Event(), asyncio.Event()

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        self.begun.set()
        await self.allowed.wait()
        await super().set_result(task_id, result)


@pytest.mark.parametrize(
    ("ack_type", "running", "saving"),
    [
        (AcknowledgeType.WHEN_RECEIVED, 0, 0),
        (AcknowledgeType.WHEN_EXECUTED, 1, 0),
        (AcknowledgeType.WHEN_SAVED, 1, 1),
    ],
)
def test_task_is_acknowledged_when_its_ack_type_says(
    local: LocalBroker, ack_type: AcknowledgeType, running: int, saving: int
) -> None:
    async def main() -> None:
        results = SlowResults()
        broker = TroupeMQBroker(local.namesrv).with_result_backend(results)
        begun, allowed = asyncio.Event(), asyncio.Event()

        @broker.task("wait")
        async def wait() -> None:
            begun.set()
            await allowed.wait()

        async with working(broker, ack_type=ack_type):
            await wait.kiq()
            await begun.wait()
            await until(lambda: local.lag(GROUP) == running, "the lag of a running task")
            allowed.set()
            await results.begun.wait()
            await until(lambda: local.lag(GROUP) == saving, "the lag of a task being saved")
            results.allowed.set()
            await consumed(local)

    run(main())


def test_workers_share_the_tasks(local: LocalBroker) -> None:
    async def main() -> None:
        first, record, ran = recording(local)
        second, _, ran_there = recording(local)
        async with working(first), working(second):
            for number in range(SHORT):
                await record.kiq(number)
            await until(lambda: len(ran) + len(ran_there) == SHORT, "all tasks")
            await consumed(local)
        assert sorted(ran + ran_there) == [*range(SHORT)]
        assert ran and ran_there

    run(main())


def test_running_task_is_not_repeated_and_holds_back_no_other(local: LocalBroker) -> None:
    """A worker with one long task joins and leaves; its own stop gives back what came late."""

    async def main() -> None:
        first, second = TroupeMQBroker(local.namesrv), TroupeMQBroker(local.namesrv)
        begun, allowed, ran = asyncio.Event(), asyncio.Event(), list[int]()

        @first.task("work")
        async def work(number: int) -> None:
            ran.append(number)
            if number == 0:
                begun.set()
                await allowed.wait()

        second.register_task(work.original_func, "work")
        async with working(first, max_async_tasks=2) as finish:
            await work.kiq(0)
            await begun.wait()
            finish.set()  # while a receive waits at the broker
            async with working(second):
                for number in range(1, SHORT):
                    await work.kiq(number)
                await until(lambda: len(ran) == SHORT, "the tasks behind the long one")
            allowed.set()
        await consumed(local)
        assert sorted(ran) == [*range(SHORT)]

    run(main())


def test_task_that_a_stopping_worker_abandons_is_delivered_again(local: LocalBroker) -> None:
    async def main() -> None:
        first, second = TroupeMQBroker(local.namesrv), TroupeMQBroker(local.namesrv)
        begun, ran = asyncio.Event(), list[int]()

        @first.task("work")
        async def work(number: int) -> None:
            ran.append(number)
            begun.set()
            if len(ran) == 1:
                await asyncio.Event().wait()  # for ever

        second.register_task(work.original_func, "work")
        async with working(first, wait_tasks_timeout=0.01) as finish:
            await work.kiq(1)
            await begun.wait()
            finish.set()
        async with working(second):
            await until(lambda: ran == [1, 1], "the task that never ended")
            await consumed(local)

    run(main())


def test_fetched_tasks_without_a_slot_are_given_back_at_a_stop(local: LocalBroker) -> None:
    async def main() -> None:
        first = TroupeMQBroker(local.namesrv, fetch_count=8)
        second, record, ran = recording(local)
        begun, allowed = asyncio.Event(), asyncio.Event()

        @first.task("record")
        async def wait(number: int) -> None:
            begun.set()
            await allowed.wait()
            ran.append(number)

        async with sending(second):
            for number in range(8):
                await record.kiq(number)
            await until(lambda: len(local.messages(GROUP)) == 8, "all tasks")
        async with working(first, max_async_tasks=1) as finish:
            await begun.wait()
            finish.set()
            async with working(second):
                await until(lambda: len(ran) == 7, "the tasks that have not begun")
            allowed.set()
        assert sorted(ran) == [*range(8)]

    run(main())


def test_cancelled_task_is_delivered_again(local: LocalBroker) -> None:
    async def main() -> None:
        broker = TroupeMQBroker(local.namesrv)
        begun, ran = asyncio.Event(), list[asyncio.Task[Any] | None]()

        @broker.task("work")
        async def work() -> None:
            ran.append(asyncio.current_task())
            if len(ran) == 1:
                begun.set()
                await asyncio.Event().wait()

        async with working(broker):
            await work.kiq()
            await begun.wait()
            assert ran[0] is not None
            ran[0].cancel()
            await until(lambda: len(ran) == 2, "the second delivery")
            await consumed(local)

    run(main())


def test_failed_task_is_retried_by_the_middleware_only(local: LocalBroker) -> None:
    async def main() -> None:
        broker = TroupeMQBroker(local.namesrv)
        broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
        ran = list[int]()

        @broker.task("fail", retry_on_error=True)
        async def fail() -> None:
            ran.append(1)
            raise ValueError("always")

        async with working(broker):
            await fail.kiq()
            await until(lambda: len(ran) == 3, "three tries")
            await consumed(local)
        assert len(local.messages(GROUP)) == 3

    run(main())


def test_refused_receive_does_not_end_the_worker(
    local: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """taskiq ends a process whose broker raises, and all of its tasks with it (taskiq #658)."""
    monkeypatch.setattr("troupemq.taskiq.REST_S", 0.01)
    local.fail("receive", "SYSTEM_ERROR", times=2)

    async def main() -> None:
        broker, record, ran = recording(local)
        async with working(broker):
            await record.kiq(1)
            await until(lambda: ran == [1], "the task")
            await consumed(local)

    run(main())


def test_settlements_outlast_a_stall_of_the_broker(
    local: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection holds the messages on: they would come again after the worker's stop."""
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_TIMEOUT_MS", 200)
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_TRY_MS", 100)
    monkeypatch.setattr("troupemq.taskiq.REST_S", 0.01)

    async def main() -> None:
        broker, record, ran = recording(local)
        await asyncio.to_thread(send_unreadable, local, GROUP)
        local.lose("CONSUMER_SEND_MSG_BACK", times=1)
        local.lose("ack", times=1)
        async with working(broker):
            await asyncio.to_thread(local.expect_dead_letters, GROUP, within_s=WAIT_S)
            await record.kiq(1)
            await until(lambda: ran == [1], "the task")
            await consumed(local)

    run(main())


def test_foreign_message_is_dropped_by_taskiq(local: LocalBroker) -> None:
    with Producer("others", local.namesrv) as producer:
        producer.send(Message(GROUP, b"no task"))

    async def main() -> None:
        broker, record, ran = recording(local)
        async with working(broker):
            await record.kiq(1)
            await until(lambda: ran == [1], "the task behind it")
            await consumed(local)

    run(main())


def test_tasks_outlive_a_kill_and_a_restart_of_the_broker(local: LocalBroker) -> None:
    async def main() -> None:
        broker, record, ran = recording(local)
        async with sending(broker):
            for number in range(SHORT):
                await record.kiq(number)
        async with working(broker):
            await until(lambda: len(ran) >= SHORT // 3, "some tasks")
            await asyncio.to_thread(local.kill)
            await until(lambda: len(ran) >= SHORT // 2, "more tasks")
            await asyncio.to_thread(local.restart)
            await until(lambda: len(set(ran)) == SHORT, "all tasks")
            await consumed(local)

    run(main())


def test_program_of_the_page_runs(local: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    (program,) = re.findall(r"```python\n(# tasks.py\nimport asyncio.*?)```", text, re.DOTALL)
    printed = list[str]()
    module = ModuleType("tasks")
    monkeypatch.setitem(sys.modules, "tasks", module)
    names = vars(module)
    names["print"] = lambda *words: printed.append(words[1])
    exec(program.replace(ADDRESSES, local.namesrv), names)

    async def main() -> None:
        await names["main"]()
        async with working(names["broker"]):
            await until(lambda: printed == ["cat.png"], "the first task")
            await asyncio.to_thread(local.advance, "1m")
            await until(lambda: printed == ["cat.png", "dog.png"], "the delayed task")

    run(main())


PROGRAM = """
import asyncio
import os

from troupemq.taskiq import TroupeMQBroker

broker = TroupeMQBroker(os.environ["NAMESRV"])


@broker.task("work")
async def work(number: int, seconds: float) -> None:
    print("begun", number, flush=True)
    await asyncio.sleep(seconds)
    print("ended", number, flush=True)
"""
IN_FLIGHT_MAX = 4


@pytest.mark.slow(seconds=6)
def test_killed_worker_process_repeats_only_what_was_in_flight(
    local: LocalBroker, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    output = tmp_path / "output"

    def begun(number: int | None = None) -> list[str]:
        wanted = "begun" if number is None else f"begun {number}"
        return [line for line in output.read_text().splitlines() if line.startswith(wanted)]

    async def send() -> None:
        broker = TroupeMQBroker(local.namesrv)
        async with sending(broker):
            for number in range(SHORT):
                seconds = 3600 if number == 0 else 0
                await broker.task("work")(lambda number, seconds: None).kiq(number, seconds)

    run(send())
    with worker_process(local, tmp_path, output):
        wait_until(lambda: len(begun()) == SHORT, "all tasks begun")
        wait_until(lambda: local.lag(GROUP) > 0, "the long task in flight")
    first = Counter(begun())
    assert set(first.values()) == {1}
    with worker_process(local, tmp_path, output):
        wait_until(lambda: len(begun(0)) == 2, "the long task again")
    again = Counter(begun()) - first
    assert again["begun 0"] == 1
    assert again.total() <= IN_FLIGHT_MAX


@contextmanager
def worker_process(local: LocalBroker, folder: Path, output: Path) -> Iterator[None]:
    """Run `taskiq worker`; in the end kill it with its children, as kill -9 does."""
    options = ("--workers", "1", "--max-async-tasks", str(IN_FLIGHT_MAX))
    command = [sys.executable, "-m", "taskiq", "worker", "program:broker", *options]
    root = str(Path(__file__).parents[2])
    with (
        output.open("a") as opened,
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "NAMESRV": local.namesrv, "PYTHONPATH": root},
            stdout=opened,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
