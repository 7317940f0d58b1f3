"""TroupeMQ from Python: `from troupemq import Producer, PushConsumer, Message`.

Each name is imported at its first use. A producer therefore loads no consumers, and the command
line, which also imports this package, loads no client.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  before all code that older versions cannot run
    _importer = sys._getframe(1)
    while _importer.f_back and _importer.f_globals["__name__"].startswith("importlib."):
        _importer = _importer.f_back
    _program = "".join(sys.argv[:1]).rpartition("/")[2]
    _version = ".".join(map(str, sys.version_info[:2]))
    _sentence = f"TroupeMQ needs Python 3.11 or later, but this is {_version}: use a newer one."
    # `python -m troupemq` imports this package from runpy, the installed command from its script.
    if _importer.f_globals["__name__"] == "runpy" or _program == "troupemq":
        sys.stderr.write(f"troupemq: {_sentence}\n")
        raise SystemExit(17)  # troupemq/exit_codes.py
    raise ImportError(_sentence)

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:  # `python -m …` is looking for its module
    _named = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
    _here = __file__.rpartition("/")[0].rpartition("/")[0]
    if _named and _named[0].partition(".")[0] == __name__ and sys.path[:1] != [_here]:
        del sys.path[0]  # The module is in this package: import nothing from the working directory.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from troupemq.client.consuming.idempotent import (
        Idempotent,
        MemorySeen,
        Seen,
        SeenStore,
        SqliteSeen,
    )
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
        DeliveryExpired,
        DeliverySettled,
        MessageIllegal,
        NotSupported,
        QueueChoiceFailed,
        RequestTimeout,
        ResultUnknown,
        RouteNotFound,
    )
    from troupemq.client.message import Message, MessageQueue, MessageView, SendResult, SendStatus
    from troupemq.client.producing.batches import split_batch
    from troupemq.client.producing.producer import Producer
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
    from troupemq.client.receiving.delivery import Delivery
    from troupemq.client.receiving.simple_consumer import SimpleConsumer
    from troupemq.client.settings import ConsumerSettings, ProducerSettings

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
    "Delivery",
    "DeliveryExpired",
    "DeliverySettled",
    "FaultAvoiding",
    "Idempotent",
    "Listener",
    "LowestLatency",
    "MemorySeen",
    "Message",
    "MessageIllegal",
    "MessageQueue",
    "MessageView",
    "NotSupported",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PushConsumer",
    "QueueChoiceFailed",
    "RequestTimeout",
    "ResultUnknown",
    "RetryLater",
    "RoundRobin",
    "RouteNotFound",
    "Seen",
    "SeenStore",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
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

_HOMES = {
    "connection.client": "Credentials Tls",
    "admin": "Admin",
    "consuming.assignment": (
        "averagely averagely_by_circle by_config by_machine_room consistent_hash"
    ),
    "consuming.consumer": "PushConsumer",
    "consuming.consumer_offsets": "ConsumeFrom timestamp_ms",
    "consuming.idempotent": "Idempotent MemorySeen Seen SeenStore SqliteSeen",
    "consuming.listener": "DEAD_LETTER ConsumeResult Listener RetryLater",
    "consuming.pull_consumer": "PullConsumer",
    "errors": (
        "ArgumentIllegal BadAnswer BrokerError ClientBusy ClientClosed "
        "ClientError ConnectionFailed DeliveryExpired DeliverySettled MessageIllegal "
        "NotSupported QueueChoiceFailed RequestTimeout ResultUnknown RouteNotFound"
    ),
    "message": "Message MessageQueue MessageView SendResult SendStatus",
    "producing.batches": "split_batch",
    "producing.producer": "Producer",
    "producing.queue_choice": "FaultAvoiding LowestLatency RoundRobin by_hash_of",
    "producing.request_reply": "create_reply_message",
    "producing.transaction": "TransactionProducer TransactionResult TransactionState",
    "receiving.delivery": "Delivery",
    "receiving.simple_consumer": "SimpleConsumer",
    "settings": "ConsumerSettings ProducerSettings",
}
"""Public names by module below client/; must match the imports for type checkers above."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            value = getattr(import_module(f"{__name__}.client.{home}"), name)
            globals()[name] = value  # later look-ups do not call this function
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
