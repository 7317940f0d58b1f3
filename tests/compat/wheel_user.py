"""Program of a user of the installed package; run by test_wheel.py.

It sends one message and waits until that arrives. Argument: the name server's address.
"""

import sys
from collections.abc import Sequence
from queue import SimpleQueue

from troupemq import ConsumeFrom, Message, MessageView, Producer, PushConsumer

TOPIC = "FromAWheel"
WAIT_S = 60.0


def main(namesrv: str) -> None:
    arrived: SimpleQueue[MessageView] = SimpleQueue()

    def take(views: Sequence[MessageView]) -> None:
        for view in views:
            arrived.put(view)

    with Producer("writers", namesrv) as producer:
        result = producer.send(Message(TOPIC, b"hello", tags="greeting", keys="key-1"))
    with PushConsumer("readers", take, namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe(TOPIC, "greeting")
        view = arrived.get(timeout=WAIT_S)
    assert view.message_id == result.message_id
    print(view.body.decode(), view.tags, view.keys)


if __name__ == "__main__":
    main(sys.argv[1])
