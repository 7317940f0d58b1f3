"""Celery and kombu on TroupeMQ: the transport of `broker_url = "troupemq://host:9876//"`.

transport.py    Transport: one connection of kombu, with its drains and its reader in the hub
channel.py      Channel and QoS: kombu's calls
batch.py        publications of `with producer.batch():`
unconfirmed.py  publications that are not waited for
shared.py       state that the channels of a connection share
fetching.py     threads that receive tasks, and one that settles them
readers.py      queues that live with their connection, read from the topics of their exchanges
bindings.py     bindings of exchanges and queues, which all processes share
link.py         the requests of one connection in one process
envelope.py     messages of kombu as bodies of ours
places.py       URLs; names of topics and groups

The import makes the URL schemes `troupemq` and `troupemqs` known to kombu.
"""

from kombu.transport import TRANSPORT_ALIASES

from troupemq.kombu.places import SCHEME, TLS_SCHEME
from troupemq.kombu.transport import Transport

__all__ = ["SCHEME", "TLS_SCHEME", "Transport"]

TRANSPORT_ALIASES[SCHEME] = TRANSPORT_ALIASES[TLS_SCHEME] = f"{__name__}:Transport"
