"""Who listens, and who tells the name servers."""

from collections.abc import Sequence
from socket import socket

from actors.connections import Acceptor, Listener
from actors.parts import Parts
from actors.registration import Listening, Registration
from actors.supervisor import ChildSpec

CLIENT_PORTS = 2
"""The first of the listeners are for clients, the rest for slaves."""


def talking_children(parts: Parts, listeners: Sequence[tuple[Listener, socket]]) -> list[ChildSpec]:
    """What needs sockets: stopped first, except that connections may send what is left."""
    address = parts.system.address
    for_clients, for_slaves = listeners[:CLIENT_PORTS], listeners[CLIENT_PORTS:]
    return [
        ChildSpec("ha_acceptor", lambda _: Acceptor(for_slaves, address("ha_master"))),
        ChildSpec("acceptor", lambda _: Acceptor(for_clients, address("connections"))),
        ChildSpec("registration", lambda _: _registration(parts)),
    ]


def _registration(parts: Parts) -> Registration:
    address = parts.system.address("registration")
    address.tell(Listening(parts.ports.main, parts.ports.ha))
    names = ("topics", "ha_slave", "slave_sync")
    return Registration(
        parts.config,
        table=parts.tables.topic_table,
        addresses={name: parts.system.address(name) for name in names},
    )
