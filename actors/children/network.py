"""Construction of the actors that listen, and of those that register at name servers."""

from collections.abc import Sequence
from functools import partial
from socket import socket

from actors.children.tls import TlsPortSpec, door_children
from actors.engine.interfaces import SnapshotRef, System
from actors.engine.supervisor import ChildSpec
from actors.naming.messages import Listening
from actors.naming.namesrv_link import NamesrvLink
from actors.naming.registration import Registration
from actors.network.connections import Acceptor, Listener
from actors.network.tls_contexts import to_call_with
from actors.parts import Parts
from actors.replication.ha_master import Followers
from remoting.sync_connection import SyncConnection

CLIENT_PORTS = 2
"""Number of listeners for clients; further listeners are for slaves."""


def network_children(parts: Parts, listeners: Sequence[tuple[Listener, socket]]) -> list[ChildSpec]:
    address = parts.system.address
    leaving = SnapshotRef(False)
    for_clients, for_slaves = listeners[:CLIENT_PORTS], listeners[CLIENT_PORTS:]
    door = TlsPortSpec("entrance", address("connections"), parts.config.port_mode, parts.places)
    followers = Followers(parts.config, parts.guard, parts.system.rarely)
    ha_door = TlsPortSpec(
        "ha_entrance",
        address("ha_master"),
        parts.config.ha_port_mode,
        may_come=followers.may_follow,
    )
    to_clients, to_slaves = door.leads_to(parts.system), ha_door.leads_to(parts.system)
    return [
        *door_children(parts.system, parts.tls, (ha_door, door), "handshakes"),
        ChildSpec("ha_acceptor", lambda _: Acceptor(for_slaves, to_slaves)),
        ChildSpec("acceptor", lambda _: Acceptor(for_clients, to_clients)),
        *(_link(parts, namesrv, leaving) for namesrv in parts.config.namesrv_addresses),
        ChildSpec("registration", lambda _: _registration(parts, leaving)),
    ]


def _link(parts: Parts, namesrv: str, leaving: SnapshotRef[bool]) -> ChildSpec:
    """Return the child for one name server; it gets the ports again after each restart."""

    def make(_: System) -> NamesrvLink:
        parts.system.address(_link_name(namesrv)).tell(Listening(parts.ports.main, parts.ports.ha))
        return NamesrvLink(
            parts.config,
            namesrv,
            table=parts.tables.topic_table,
            registration=parts.system.address("registration"),
            connect=partial(
                SyncConnection,
                is_cancelled=lambda: leaving.value,
                credentials=parts.config.credentials,
                context=to_call_with(parts.tls, wanted=parts.config.calls_with_tls),
            ),
        )

    return ChildSpec(_link_name(namesrv), make)


def _link_name(namesrv: str) -> str:
    return f"registration {namesrv}"


def _registration(parts: Parts, leaving: SnapshotRef[bool]) -> Registration:
    address = parts.system.address
    return Registration(
        parts.config,
        links=[address(_link_name(namesrv)) for namesrv in parts.config.namesrv_addresses],
        leaving=leaving,
        registered=parts.attachment.registered,
        addresses={name: address(name) for name in ("topics", "ha_slave", "slave_sync")},
    )
