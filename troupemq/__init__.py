"""TroupeMQ from Python: `from troupemq import Producer, PushConsumer, Message`."""

from troupemq.client.admin import Admin
from troupemq.client.assignment import (
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
)
from troupemq.client.batches import split_batch
from troupemq.client.consumer import PushConsumer
from troupemq.client.consumer_offsets import ConsumeFrom, timestamp_ms
from troupemq.client.consumer_settings import ConsumerSettings
from troupemq.client.errors import (
    ArgumentIllegal,
    BadAnswer,
    BrokerError,
    ClientBusy,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    QueueChoiceFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.idempotent import Idempotent, MemorySeen, Seen, SeenStore, SqliteSeen
from troupemq.client.listener import DEAD_LETTER, ConsumeResult, Listener, RetryLater
from troupemq.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from troupemq.client.producer import Producer, ProducerSettings
from troupemq.client.pull_consumer import PullConsumer
from troupemq.client.queue_choice import FaultAvoiding, LowestLatency, RoundRobin, by_hash_of
from troupemq.client.request_reply import create_reply_message
from troupemq.client.transaction import TransactionProducer, TransactionResult, TransactionState

__all__ = [
    "DEAD_LETTER",
    "Admin",
    "ArgumentIllegal",
    "BadAnswer",
    "BrokerError",
    "ClientBusy",
    "ClientClosed",
    "ClientError",
    "ConnectionFailed",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumerSettings",
    "FaultAvoiding",
    "Idempotent",
    "Listener",
    "LowestLatency",
    "MemorySeen",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageView",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PushConsumer",
    "QueueChoiceFailed",
    "RequestTimeout",
    "RetryLater",
    "RoundRobin",
    "RouteNotFound",
    "Seen",
    "SeenStore",
    "SendResult",
    "SendStatus",
    "SqliteSeen",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "averagely",
    "averagely_by_circle",
    "by_config",
    "by_hash_of",
    "by_machine_room",
    "consistent_hash",
    "create_reply_message",
    "split_batch",
    "timestamp_ms",
]
