"""A broker as its administrator finds it: a topic with messages, a producer and a live consumer."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.compat.groups import wait_for_commits
from tests.compat.patience import wait_until
from tests.compat.servers import Broker
from troupemq import Message, Producer, PushConsumer, SendResult

MESSAGE_COUNT = 8
QUEUE_COUNT = 4


@dataclass(frozen=True)
class Inhabited:
    """Sent messages and their consumers."""

    results: list[SendResult]
    consumer: str
    """The consumer's client id."""


@contextmanager
def inhabited(broker: Broker, topic: str, group: str, key: str) -> Iterator[Inhabited]:
    """MESSAGE_COUNT messages with that key, all consumed, and that committed; both clients stay.

    The topic has QUEUE_COUNT queues.
    """
    namesrv, seen = broker.name_server.address, set[str]()
    with (
        Producer(f"{group}-producers", namesrv) as producer,
        PushConsumer(
            group, lambda views: seen.update(view.message_id for view in views), namesrv
        ) as consumer,
    ):
        results = [
            producer.send(Message(topic, b"%d" % number, tags="A", keys=key))
            for number in range(MESSAGE_COUNT)
        ]
        consumer.subscribe(topic)
        wait_until(lambda: len(seen) == MESSAGE_COUNT, "all messages consumed")
        ends = Counter(result.queue.queue_id for result in results)
        wait_for_commits(broker, group, topic, ends)
        yield Inhabited(results, consumer.client_id)
