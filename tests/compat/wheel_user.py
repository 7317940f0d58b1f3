"""Program of a user of the installed package, run by the tests of the wheels.

It sends one message with threads and one with asyncio, and waits until both arrive. Argument: the
name server's address.
"""

import asyncio
import sys
from collections.abc import Sequence
from queue import SimpleQueue

from troupemq import ConsumeFrom, Message, MessageView, Producer, PushConsumer, aio

TOPIC = "FromAWheel"
AIO_TOPIC = "FromAWheelByAio"
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
    print(asyncio.run(there_and_back(namesrv)).decode())


async def there_and_back(namesrv: str) -> bytes:
    first = ConsumeFrom.FIRST_OFFSET
    async with (
        aio.Producer("aio-writers", namesrv) as producer,
        aio.SimpleConsumer("aio-readers", namesrv, begin=first) as consumer,
    ):
        await producer.send(Message(AIO_TOPIC, b"hello again"))
        await consumer.subscribe(AIO_TOPIC)
        async with asyncio.timeout(WAIT_S):
            while True:
                for delivery in await consumer.receive():
                    async with delivery:
                        return delivery.message.body


if __name__ == "__main__":
    main(sys.argv[1])
