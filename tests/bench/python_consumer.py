"""Rate of the Python PushConsumer on a backlog at our broker, on a machine of two cores.

Run as python -m tests.bench.python_consumer.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from time import monotonic, process_time

from tests.compat.servers import OurBroker, OurNameServer
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import Message, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ConsumerSettings

TOPIC = "Backlog"
QUEUES = 8
MESSAGES = 200_000
BATCH = 500
BODY = b"x" * 128
TIMEOUT_S = 300.0
SEND_TIMEOUT_MS = 30_000
WAYS = (
    ("20 threads, one message a call", ConsumerSettings(), False),
    ("20 threads, 32 messages a call", ConsumerSettings(consume_batch_size=32), False),
    ("1 thread, 32 messages a call", ConsumerSettings(1, 32), False),
    ("orderly, 32 messages a call", ConsumerSettings(consume_batch_size=32), True),
)


class Counter:
    """A listener that does nothing but count; by far the most of what is measured is the client."""

    def __init__(self, count: int = MESSAGES) -> None:
        self.begun_s = 0.0
        self.ended_s = 0.0
        self.over = Event()
        self._lock = Lock()
        self._left = count

    def __call__(self, views: Sequence[MessageView]) -> None:
        with self._lock:
            self.begun_s = self.begun_s or monotonic()
            self._left -= len(views)
            if self._left <= 0:
                self.ended_s = monotonic()
                self.over.set()


def fill(name_server: str) -> None:
    """Sends the backlog."""
    with Admin(name_server) as admin:
        admin.create_topic(TOPIC, QUEUES)
    with Producer("senders", name_server) as producer:
        message = Message(TOPIC, BODY, tags="t", keys="k")
        for _ in range(MESSAGES // BATCH):
            producer.send_batch([message] * BATCH, SEND_TIMEOUT_MS)


def consume(name_server: str, group: str, settings: ConsumerSettings, orderly: bool) -> str:
    """The rate of one way."""
    counter = Counter()
    consumer = PushConsumer(
        group,
        counter,
        name_server,
        orderly=orderly,
        begin=ConsumeFrom.FIRST_OFFSET,
        settings=settings,
    )
    consumer.subscribe(TOPIC)
    cpu_s = process_time()
    with consumer:
        if not counter.over.wait(TIMEOUT_S):
            raise SystemExit("the backlog was not consumed in time")
        cpu_s = process_time() - cpu_s
    rate = MESSAGES / (counter.ended_s - counter.begun_s)
    return f"{rate:>9,.0f} messages/s {1e6 * cpu_s / MESSAGES:6.1f} µs CPU each"


def main() -> None:
    with (
        TemporaryDirectory() as folder,
        OurNameServer(Path(folder) / "name-server") as name_server,
        OurBroker(Path(folder) / "broker", name_server) as broker,
    ):
        fill(broker.name_server.address)
        for number, (title, settings, orderly) in enumerate(WAYS):
            told = consume(broker.name_server.address, f"g{number}", settings, orderly)
            sys.stdout.write(f"{title:<32} {told}\n")


if __name__ == "__main__":
    main()
