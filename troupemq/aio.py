"""TroupeMQ for asyncio: `from troupemq import aio`, then `async with aio.Producer(...)`.

The classes have the names, arguments and errors of those in `troupemq`; their methods are
coroutines, and none of them blocks the event loop. Values such as Message, settings and errors are
imported from `troupemq`.
"""

from troupemq.client.aio.producer import Producer
from troupemq.client.aio.push_consumer import PushConsumer
from troupemq.client.aio.simple_consumer import Delivery, SimpleConsumer
from troupemq.client.aio.transaction import TransactionProducer

__all__ = ["Delivery", "Producer", "PushConsumer", "SimpleConsumer", "TransactionProducer"]
