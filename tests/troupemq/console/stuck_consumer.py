"""Consumer that hangs in its own code or works: `stuck_consumer.py NAMESRV GROUP hangs|works`."""

import sys
from collections.abc import Sequence
from threading import Event

from troupemq import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import MessageView
from troupemq.client.settings import ConsumerSettings

FOREVER = Event()


def slow() -> None:
    FOREVER.wait()


def handle(views: Sequence[MessageView]) -> None:
    if sys.argv[3] == "hangs":
        slow()


def main() -> None:
    settings = ConsumerSettings(consume_threads=2, commit_interval_ms=100)
    namesrv, group = sys.argv[1:3]
    consumer = PushConsumer(
        group, handle, namesrv, begin=ConsumeFrom.FIRST_OFFSET, settings=settings
    )
    consumer.subscribe("Incidents")
    with consumer:
        FOREVER.wait()


if __name__ == "__main__":
    main()
