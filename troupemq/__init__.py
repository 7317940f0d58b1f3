"""TroupeMQ from Python: `from troupemq import Producer, PushConsumer, Message`."""

from troupemq.client.admin import Admin
from troupemq.client.batches import split_batch
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
    QueueChoiceFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from troupemq.client.producer import Producer, ProducerSettings
from troupemq.client.queue_choice import FaultAvoiding, LowestLatency, RoundRobin, by_hash_of
from troupemq.client.request_reply import create_reply_message
from troupemq.client.transaction import TransactionProducer, TransactionResult, TransactionState

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
    "FaultAvoiding",
    "LowestLatency",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageView",
    "Producer",
    "ProducerSettings",
    "PushConsumer",
    "QueueChoiceFailed",
    "RequestTimeout",
    "RoundRobin",
    "RouteNotFound",
    "SendResult",
    "SendStatus",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "by_hash_of",
    "create_reply_message",
    "split_batch",
]
