"""Rate of the Python producer in messages per second: `python -m tests.bench.python_client`.

It sends to our broker on the same machine, with 128-byte bodies to 8 queues. Each form of sending
is warmed up for a second and then measured; µs are processor time of the client.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, process_time

from tests.compat.conftest import wait_for_route
from tests.compat.servers import OurBroker, OurNameServer
from troupemq import Admin, Message, Producer, ProducerSettings

WARM_UP_S = 1.0
MEASURE_S = 5.0
BODY = bytes(range(128))
TOPIC = "PythonBench"
BATCH = 32

Send = Callable[[Producer], int]
"""Sends some and says how many."""


def sync(producer: Producer) -> int:
    producer.send(Message(TOPIC, BODY))
    return 1


def in_background(producer: Producer) -> int:
    for _ in range(100):
        producer.send_async(Message(TOPIC, BODY))
    return 100


def oneway(producer: Producer) -> int:
    for _ in range(100):
        producer.send_oneway(Message(TOPIC, BODY))
    return 100


def batch(producer: Producer) -> int:
    producer.send_batch([Message(TOPIC, BODY)] * BATCH)
    return BATCH


def batch_in_background(producer: Producer) -> int:
    producer.send_batch_async([Message(TOPIC, BODY)] * BATCH)
    return BATCH


WAYS: dict[str, tuple[Send, int]] = {
    "sync, 1 thread": (sync, 1),
    "sync, 16 threads": (sync, 16),
    "async, 1 thread": (in_background, 1),
    "one-way, 1 thread": (oneway, 1),
    f"batches of {BATCH}, sync, 1 thread": (batch, 1),
    f"batches of {BATCH}, async, 1 thread": (batch_in_background, 1),
}


@contextmanager
def servers() -> Iterator[str]:
    """Our name server and broker with the topic; the name server's address."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        with (
            OurNameServer(scratch / "name-server") as name_server,
            OurBroker(scratch / "broker", name_server) as broker,
        ):
            with Admin(name_server.address) as admin:
                admin.create_topic(TOPIC, 8)
            wait_for_route(broker, TOPIC)
            yield name_server.address


def sent_for(producer: Producer, send: Send, threads: int, duration_s: float) -> int:
    """Return the number of messages that the threads sent in that time."""
    counts = [0] * threads
    end_s = perf_counter() + duration_s

    def run(number: int) -> None:
        while perf_counter() < end_s:
            counts[number] += send(producer)

    workers = [Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts)


def main() -> None:
    settings = ProducerSettings(send_timeout_ms=30_000)
    with servers() as namesrv:
        for name, (send, threads) in WAYS.items():
            with Producer("bench", namesrv, settings=settings) as producer:
                sent_for(producer, send, threads, WARM_UP_S)
                begun_s, cpu_s = perf_counter(), process_time()
                count = sent_for(producer, send, threads, MEASURE_S)
                producer.stop(30.0)
                took_s, cpu_s = perf_counter() - begun_s, process_time() - cpu_s
            rate, cost_us = count / took_s, cpu_s / count * 1e6
            sys.stdout.write(f"{name:32} {rate:10,.0f} messages/s {cost_us:8.1f} µs\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
