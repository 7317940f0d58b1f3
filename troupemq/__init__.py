"""TroupeMQ from Python: `from troupemq import Producer, PushConsumer, Message`."""

from troupemq.client.admin import Admin
from troupemq.client.consume import ConsumeResult, ConsumerSettings
from troupemq.client.consumer import PushConsumer
from troupemq.client.consumer_offsets import ConsumeFrom
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientBusy,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from troupemq.client.producer import Producer, ProducerSettings
from troupemq.client.queue_choice import by_hash_of

__all__ = [
    "Admin",
    "BadAnswer",
    "BrokerError",
    "ClientBusy",
    "ClientClosed",
    "ClientError",
    "ConnectionFailed",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerSettings",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageView",
    "Producer",
    "ProducerSettings",
    "PushConsumer",
    "RequestTimeout",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
    "by_hash_of",
]
