"""Who listens, and who tells the name servers."""

from collections.abc import Sequence
from socket import socket

from actors.connections import Acceptor, Listener
from actors.parts import Parts
from actors.registration import Listening, Registration
from actors.supervisor import ChildSpec


def talking_children(parts: Parts, listeners: Sequence[tuple[Listener, socket]]) -> list[ChildSpec]:
    """What needs sockets: stopped first, except that connections may send what is left."""
    address = parts.system.address
    return [
        ChildSpec("acceptor", lambda _: Acceptor(listeners, address("connections"))),
        ChildSpec("registration", lambda _: _registration(parts)),
    ]


def _registration(parts: Parts) -> Registration:
    address = parts.system.address("registration")
    address.tell(Listening(parts.ports.main, parts.ports.ha))
    return Registration(
        parts.config, table=parts.tables.topic_table, topics=parts.system.address("topics")
    )
