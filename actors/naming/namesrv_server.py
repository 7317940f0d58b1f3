"""A name server on one page: its children in start order, and how it is started."""

from collections.abc import Sequence
from dataclasses import dataclass
from socket import socket

from actors.config import NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.naming.namesrv import Namesrv
from actors.naming.registration_reader import RegistrationReader
from actors.network.connections import Acceptor, Connections, Listener, open_listener
from actors.network.request import codes_of
from actors.network.service import Service
from actors.settings.settings import NamesrvSettings
from actors.tables.config_writer import ConfigWriter

RESPONDERS = (("namesrv", Namesrv), ("namesrv_settings", NamesrvSettings))
STOP_AFTER_FAILURE_S = 10.0


TOO_MANY_TOPICS = (
    "a broker with that many topics: set its compressedRegister=true, or raise"
    " com.rocketmq.remoting.frameMaxLength of this name server"
)


def service(system: ActorSystem, config: NamesrvConfig) -> Service:
    """What the name server's port serves; an unknown code is not answered, as in 4.9.7."""
    routes = {code: system.address(name) for code, name in codes_of(RESPONDERS).items()}
    return Service(
        routes,
        answer_unknown=False,
        tell_closed=[system.address("namesrv")],
        frame_bytes_max=config.frame_bytes_max,
        cure=TOO_MANY_TOPICS,
    )


def children(
    system: ActorSystem, config: NamesrvConfig, listeners: Sequence[tuple[Listener, socket]]
) -> list[ChildSpec]:
    """In start order; the names leave room for a broker in the same process."""
    idle_ms = config.channel_max_idle_seconds * 1000
    writer, connections = (
        system.address("namesrv_config_writer"),
        system.address("namesrv_connections"),
    )
    return [
        ChildSpec("namesrv_connections", lambda _: Connections(idle_ms)),
        ChildSpec("namesrv_config_writer", lambda _: ConfigWriter()),
        ChildSpec("registration_reader", lambda _: RegistrationReader()),
        ChildSpec(
            "namesrv", lambda _: Namesrv(config, writer, system.address("registration_reader"))
        ),
        ChildSpec("namesrv_settings", lambda _: NamesrvSettings(config)),
        ChildSpec("namesrv_acceptor", lambda _: Acceptor(listeners, connections)),
    ]


@dataclass
class RunningNamesrv:
    """A name server that listens."""

    system: ActorSystem
    port: int

    def stop(self, timeout_s: float) -> bool:
        """Stops in order. False when something was stuck."""
        return self.system.stop(timeout_s)


def start_namesrv(config: NamesrvConfig, *, system: ActorSystem) -> RunningNamesrv:
    """Opens the port and starts everything. Raises PortTaken or StartFailed."""
    sock = open_listener(config.bind_address, config.listen_port, "listenPort")
    port = sock.getsockname()[1]
    listener = Listener("listenPort", config.bind_address, port, service(system, config))
    try:
        system.start(*children(system, config, [(listener, sock)]))
    except BaseException:
        system.stop(STOP_AFTER_FAILURE_S)
        sock.close()  # who should have listened on it may never have started
        raise
    return RunningNamesrv(system, port)
