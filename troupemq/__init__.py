"""TroupeMQ from Python: `from troupemq import Producer, PushConsumer, Message`."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  older ones come so far
    sys.stderr.write("troupemq: TroupeMQ needs Python 3.11 or later: install one, or name it.\n")
    raise SystemExit(17)  # troupemq/exit_codes.py

from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.admin import Admin
from troupemq.client.consuming.assignment import (
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
)
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom, timestamp_ms
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.idempotent import Idempotent, MemorySeen, Seen, SeenStore, SqliteSeen
from troupemq.client.consuming.listener import DEAD_LETTER, ConsumeResult, Listener, RetryLater
from troupemq.client.consuming.pull_consumer import PullConsumer
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
from troupemq.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
from troupemq.client.producing.batches import split_batch
from troupemq.client.producing.producer import Producer, ProducerSettings
from troupemq.client.producing.queue_choice import (
    FaultAvoiding,
    LowestLatency,
    RoundRobin,
    by_hash_of,
)
from troupemq.client.producing.request_reply import create_reply_message
from troupemq.client.producing.transaction import (
    TransactionProducer,
    TransactionResult,
    TransactionState,
)

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
    "Credentials",
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
    "Tls",
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
