"""What the cases of our Python producer share: topics, consumers, and what they got."""

from collections.abc import Sequence
from threading import Condition

from tests.compat.conftest import wait_for_route
from tests.compat.servers import Broker
from troupemq import Admin, ConsumeFrom, MessageView, ProducerSettings, PushConsumer

PATIENT = ProducerSettings(send_timeout_ms=10_000)


class Collector:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.views: list[MessageView] = []
        self._news = Condition()

    def __call__(self, views: Sequence[MessageView]) -> None:
        with self._news:
            self.views += views
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.views) >= count, 60), len(self.views)


def new_topic(broker: Broker, topic: str, queues: int = 4) -> str:
    with Admin(broker.name_server.address) as admin:
        admin.create_topic(topic, queues)
    wait_for_route(broker, topic)
    return topic


def listening(broker: Broker, topic: str, listener: Collector) -> PushConsumer:
    consumer = PushConsumer(
        f"python-group-of-{topic}",
        listener,
        broker.name_server.address,
        begin=ConsumeFrom.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    return consumer
