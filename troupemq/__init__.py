"""TroupeMQ from Python: `from troupemq import Producer, PushConsumer, Message`."""

from troupemq.client.admin import Admin
from troupemq.client.assignment import (
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
)
from troupemq.client.consumer import PushConsumer
from troupemq.client.consumer_offsets import ConsumeFrom, timestamp_ms
from troupemq.client.consumer_settings import ConsumerSettings
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
from troupemq.client.idempotent import Idempotent, MemorySeen, SqliteSeen
from troupemq.client.listener import DEAD_LETTER, ConsumeResult, RetryLater
from troupemq.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from troupemq.client.producer import Producer, ProducerSettings
from troupemq.client.pull_consumer import PullConsumer
from troupemq.client.queue_choice import by_hash_of

__all__ = [
    "DEAD_LETTER",
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
    "Idempotent",
    "MemorySeen",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageView",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PushConsumer",
    "RequestTimeout",
    "RetryLater",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
    "SqliteSeen",
    "averagely",
    "averagely_by_circle",
    "by_config",
    "by_hash_of",
    "by_machine_room",
    "consistent_hash",
    "timestamp_ms",
]
