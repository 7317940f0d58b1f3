"""TroupeMQ for asyncio: `from troupemq import aio`, then `async with aio.Producer(...)`.

The classes have the names, arguments and errors of those in `troupemq`; their methods are
coroutines, and none of them blocks the event loop. Values such as Message, settings and errors are
imported from `troupemq`. Each class is imported at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from troupemq.client.aio.admin import Admin
    from troupemq.client.aio.producer import Producer
    from troupemq.client.aio.push_consumer import PushConsumer
    from troupemq.client.aio.simple_consumer import Delivery, SimpleConsumer
    from troupemq.client.aio.transaction import TransactionProducer

__all__ = ["Admin", "Delivery", "Producer", "PushConsumer", "SimpleConsumer", "TransactionProducer"]

_HOMES = {
    "Admin": "admin",
    "Delivery": "simple_consumer",
    "Producer": "producer",
    "PushConsumer": "push_consumer",
    "SimpleConsumer": "simple_consumer",
    "TransactionProducer": "transaction",
}
"""Modules below client/aio/; must match the imports for type checkers above."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__package__}.client.aio.{_HOMES[name]}"), name)
    globals()[name] = value  # later look-ups do not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
