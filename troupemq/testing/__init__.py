"""Brokers for tests: `running_broker` with sockets, `simulated` without, and fixtures for pytest.

local_broker.py         a broker and a name server in this process, for any client
collecting_consumer.py  its consumers
virtual_broker.py       a simulated broker for coroutines, seeded and in virtual time
broker_under_test.py    checks and faults of both
faults.py               the actor that applies faults to requests; messages.py: its messages
virtual_loop.py         the event loop of the simulated broker's clients
simulation.py           the scheduler of simulated actors
fake_disk.py            a disk in memory that forgets
quiet.py                log lines of the servers
pytest_plugin.py        fixtures, which pytest finds by itself
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from troupemq.testing.collecting_consumer import CollectingConsumer
    from troupemq.testing.local_broker import LocalBroker, running_broker
    from troupemq.testing.messages import InjectedFault
    from troupemq.testing.virtual_broker import VirtualBroker, simulated

__all__ = [
    "CollectingConsumer",
    "InjectedFault",
    "LocalBroker",
    "VirtualBroker",
    "running_broker",
    "simulated",
]


_HOMES = {
    "CollectingConsumer": "collecting_consumer",
    "InjectedFault": "messages",
    "LocalBroker": "local_broker",
    "VirtualBroker": "virtual_broker",
    "running_broker": "local_broker",
    "simulated": "virtual_broker",
}
"""Modules of each name, which are loaded at its first use: a simulation needs no client."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
