"""A broker for tests: `from troupemq.testing import running_broker`, and fixtures for pytest.

local_broker.py   a broker and a name server in this process; assertions, time, faults
faults.py         the actor that applies faults to requests; messages.py: its messages
pytest_plugin.py  fixtures, which pytest finds by itself
"""

from troupemq.testing.local_broker import CollectingConsumer, LocalBroker, running_broker
from troupemq.testing.messages import InjectedFault

__all__ = ["CollectingConsumer", "InjectedFault", "LocalBroker", "running_broker"]
