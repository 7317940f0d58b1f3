"""Processor time of the asyncio client for sends and for a backlog that is consumed.

Run as python -m tests.bench.aio_client [MESSAGES]. The broker and the name server are processes of
their own. µs are processor time of the client; each figure is the median of ROUNDS in turn.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from tests.bench.python_consumer import BODY, QUEUES, TIMEOUT_S, Counter
from tests.compat.servers import OurBroker, OurNameServer
from troupemq import Admin, ConsumeFrom, ConsumerSettings, Message, MessageView, PushConsumer, aio
from troupemq import Producer as ThreadedProducer

TOPIC = "AioBench"
MESSAGES = 40_000
COROUTINES = 1000
ROUNDS = 3
BATCH = 500

Figure = tuple[float, float]
"""Processor time for each message in µs, and messages per second."""


async def sends(name_server: str, count: int) -> Figure:
    async with aio.Producer("senders", name_server) as producer:

        async def some(number: int) -> None:
            for _ in range(number):
                await producer.send(Message(TOPIC, BODY, tags="t", keys="k"))

        await asyncio.gather(*(some(5) for _ in range(COROUTINES)))
        cpu_s, begun_s = process_time(), perf_counter()
        await asyncio.gather(*(some(count // COROUTINES) for _ in range(COROUTINES)))
        return figure(cpu_s, begun_s, count)


def figure(cpu_s: float, begun_s: float, count: int) -> Figure:
    return 1e6 * (process_time() - cpu_s) / count, count / (perf_counter() - begun_s)


async def consumes(name_server: str, count: int, group: str, **options: Any) -> Figure:
    over, left = asyncio.Event(), count

    async def handle(messages: Sequence[MessageView]) -> None:
        nonlocal left
        left -= len(messages)
        if left <= 0:
            over.set()

    begin = ConsumeFrom.FIRST_OFFSET
    consumer = aio.PushConsumer(group, handle, name_server, begin=begin, **options)
    await consumer.subscribe(TOPIC)
    cpu_s, begun_s = process_time(), perf_counter()
    async with asyncio.timeout(TIMEOUT_S), consumer:
        await over.wait()
        return figure(cpu_s, begun_s, count)


def consumes_with_threads(name_server: str, count: int, group: str) -> Figure:
    counter = Counter(count)
    consumer = PushConsumer(group, counter, name_server, begin=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(TOPIC)
    cpu_s, begun_s = process_time(), perf_counter()
    with consumer:
        assert counter.over.wait(TIMEOUT_S)
        return figure(cpu_s, begun_s, count)


def fill(name_server: str, count: int) -> None:
    with ThreadedProducer("fillers", name_server) as producer:
        message = Message(TOPIC, BODY, tags="t", keys="k")
        for _ in range(count // BATCH):
            producer.send_batch([message] * BATCH, 30_000)


def main(count: int) -> None:
    import uvloop

    made = (("asyncio", asyncio.new_event_loop), ("uvloop", uvloop.new_event_loop))
    batches = ConsumerSettings(consume_batch_size=32)
    with (
        TemporaryDirectory() as folder,
        OurNameServer(Path(folder) / "name-server") as server,
        OurBroker(Path(folder) / "broker", server) as broker,
    ):
        name_server = broker.name_server.address
        with Admin(name_server) as admin:
            admin.create_topic(TOPIC, QUEUES)
        fill(name_server, count)
        ways: dict[str, Callable[[str], Coroutine[Any, Any, Figure]]] = {
            "send, 1,000 coroutines": lambda _: sends(name_server, count),
            "consume, one message a call": lambda group: consumes(name_server, count, group),
            "consume, 32 messages a call": lambda group: consumes(
                name_server, count, group, settings=batches
            ),
            "consume in order, one message a call": lambda group: consumes(
                name_server, count, group, orderly=True
            ),
        }
        for title, way in ways.items():
            found: dict[str, list[Figure]] = {name: [] for name, _ in made}
            for turn in range(ROUNDS):
                for name, factory in made:
                    with asyncio.Runner(loop_factory=factory) as runner:
                        group = f"{name}-{turn}-{len(title)}"
                        found[name].append(runner.run(way(group)))
            for name, figures in found.items():
                show(f"{title}, {name}", figures)
        threads = [consumes_with_threads(name_server, count, f"t{n}") for n in range(ROUNDS)]
        show("consume, threads", threads)
        load = os.getloadavg()[0]
        sys.stdout.write(f"{sys.implementation.name} {sys.version.split()[0]}, load {load:.1f}\n")


def show(title: str, figures: Sequence[Figure]) -> None:
    cpu_us, rate = (median(column) for column in zip(*figures, strict=True))
    sys.stdout.write(f"{title:<46} {cpu_us:6.1f} µs {rate:>9,.0f} messages/s\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
