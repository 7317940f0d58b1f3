"""The name server on one page: its children in start order, and its start."""

from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING

from actors.access.access_state import new_guard
from actors.access.acl_store import AclStore
from actors.access.refusals import Refusals
from actors.access.rights import NAMESRV_RIGHTS, STRICT_NAMESRV_RIGHTS, administration
from actors.admin.access_control import AclWatch
from actors.admin.settings import NamesrvSettings
from actors.children.tls import TlsPortSpec, door_children
from actors.config import NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics.metrics_server import MetricsServer, open_metrics
from actors.naming.namesrv import Namesrv
from actors.naming.registration_reader import RegistrationReader
from actors.network.connections import Acceptor, Connections, Listener, open_listener
from actors.network.limits import ConnectionSlots
from actors.network.long_answers import LongAnswers
from actors.network.request import Service, codes_of
from actors.network.start_access import opened_acl, warn_if_open, warn_if_plain_needs_no_certificate
from actors.network.tls_contexts import TlsContexts, tls_contexts
from actors.tables.config_writer import ConfigWriter

if TYPE_CHECKING:
    from actors.metrics.page_server import PageServer

RESPONDERS = (
    ("namesrv", Namesrv),
    ("namesrv_settings", NamesrvSettings),
    ("namesrv_access_control", AclWatch),
)
STOP_AFTER_FAILURE_S = 10.0


TOO_MANY_TOPICS = (
    "a broker with so many topics: set its compressedRegister=true, or raise"
    " com.rocketmq.remoting.frameMaxLength of this name server"
)


def service(
    system: ActorSystem,
    config: NamesrvConfig,
    acl: AclStore | None = None,
    refusals: Refusals | None = None,
) -> Service:
    """Return the routes of the name server's port; unknown codes stay unanswered, as in 4.9.7."""
    guard = None
    if acl is not None:
        guard = new_guard(
            acl.published,
            STRICT_NAMESRV_RIGHTS if config.acl_route_perm_enable else NAMESRV_RIGHTS,
            system.clock.now_ms,
            refusals or Refusals(system.clock.now_ms, system.rarely),
            is_white_admin=config.is_white_admin,
        )
    routes = {code: system.address(name) for code, name in codes_of(RESPONDERS).items()}
    return Service(
        routes,
        answer_unknown=False,
        tell_closed=[system.address("namesrv")],
        frame_bytes_max=config.frame_bytes_max,
        cure=TOO_MANY_TOPICS,
        guard=guard,
        administration=administration(NAMESRV_RIGHTS, config.admin_allowed, system.rarely),
    )


def children(
    system: ActorSystem,
    config: NamesrvConfig,
    listeners: Sequence[tuple[Listener, socket]],
    acl: AclStore | None = None,
    tls: TlsContexts | None = None,
    refusals: Refusals | None = None,
) -> list[ChildSpec]:
    idle_ms = config.channel_max_idle_seconds * 1000
    places = ConnectionSlots(config.connections_max, config.connections_of_address_max)
    writer, connections = (
        system.address("namesrv_config_writer"),
        system.address("namesrv_connections"),
    )
    door = TlsPortSpec("namesrv_entrance", connections, config.port_mode, places)
    behind = door.leads_to(system)
    return [
        ChildSpec(
            "namesrv_connections", lambda _: Connections(idle_ms, places, config.frame_bytes_max)
        ),
        ChildSpec("namesrv_config_writer", lambda _: ConfigWriter()),
        ChildSpec("registration_reader", lambda _: RegistrationReader()),
        ChildSpec("namesrv_long_answers", lambda _: LongAnswers()),
        ChildSpec(
            "namesrv",
            lambda _: Namesrv(
                config,
                writer,
                system.address("registration_reader"),
                system.address("namesrv_long_answers"),
            ),
        ),
        ChildSpec("namesrv_settings", lambda _: NamesrvSettings(config)),
        ChildSpec(
            "namesrv_access_control",
            lambda _: AclWatch(acl, refusals or Refusals(system.clock.now_ms, system.rarely)),
        ),
        *door_children(system, tls, (door,), "namesrv_handshakes"),
        ChildSpec("namesrv_acceptor", lambda _: Acceptor(listeners, behind)),
    ]


@dataclass
class RunningNamesrv:
    system: ActorSystem
    port: int
    metrics: MetricsServer | None = None

    @property
    def metrics_port(self) -> int:
        return 0 if self.metrics is None else self.metrics.server.port

    def stop(self, timeout_s: float) -> bool:
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None
        return self.system.stop(timeout_s)


def start_namesrv(
    config: NamesrvConfig, *, system: ActorSystem, pages: "PageServer | None" = None
) -> RunningNamesrv:
    """Open the port and start all actors. Raises PortTaken, StoreError or StartFailed.

    `pages` answers health requests, if metrics use the same port.
    """
    acl = opened_acl(system, config, config.config_store_path) if config.acl_enable else None
    tls = tls_contexts(config)
    sock = open_listener(config.bind_address, config.listen_port, "listenPort")
    warn_if_open(config, config.bind_address)
    warn_if_plain_needs_no_certificate(config)
    port = sock.getsockname()[1]
    refusals = Refusals(system.clock.now_ms, system.rarely)
    serves = service(system, config, acl, refusals)
    listener = Listener("listenPort", config.bind_address, port, serves)
    metrics: MetricsServer | None = None
    try:
        metrics = open_metrics(config, pages)
        system.start(
            *children(system, config, [(listener, sock)], acl, tls, refusals),
            *([] if metrics is None else _metrics_children(system, metrics, tls)),
        )
    except BaseException:
        system.stop(STOP_AFTER_FAILURE_S)
        if metrics is not None:
            metrics.close()
        sock.close()  # the acceptor, which owns it, may never have started
        raise
    return RunningNamesrv(system, port, metrics)


def _metrics_children(
    system: ActorSystem, metrics: MetricsServer, tls: TlsContexts | None
) -> list[ChildSpec]:
    # Imported here because most name servers show no metrics.
    from actors.children.metrics import namesrv_metrics_children

    return namesrv_metrics_children(system, metrics.server, tls)
