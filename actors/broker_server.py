"""A broker that listens: its ports, its start and its stop.

listenPort serves everything. The fast port, two below it, serves everything except pulls. The HA
port, one above it, is opened by masters only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from socket import socket
from typing import TYPE_CHECKING

from actors.broker import Broker
from actors.config import BrokerConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics.metrics_server import MetricsServer, open_metrics
from actors.network.bind_address import require_listened
from actors.network.connections import Listener, PortTaken, open_listener
from actors.network.hooks import Hook
from actors.network.request import Responders, Service
from actors.network.start_access import warn_if_open, warn_if_plain_needs_no_certificate
from actors.parts import Ports
from storage.config import StoreConfig

if TYPE_CHECKING:
    from actors.metrics.page_server import PageServer

FAST_PORT_BELOW = 2
HA_PORT_ABOVE = 1
FREE_PORT_TRIES = 200
STOP_AFTER_FAILURE_S = 10.0
PORT_NAMES = ("listenPort", "fast port", "HA port")


@dataclass
class RunningBroker:
    system: ActorSystem
    broker: Broker
    metrics: MetricsServer | None = None
    _closed: bool = False

    @property
    def ports(self) -> Ports:
        return self.broker.ports

    @property
    def metrics_port(self) -> int:
        return 0 if self.metrics is None else self.metrics.server.port

    def stop(self, timeout_s: float) -> bool:
        """Stop in order: reject new work, answer held pulls, flush everything.

        Returns False if an actor hung; then `abort` stays, and the next start recovers. A second
        call returns the result of the first one.
        """
        if not self._closed and self.metrics is not None:
            self.metrics.close()
        stopped = self.system.stop(timeout_s)
        if self._closed:
            return stopped
        self._closed = True
        if stopped:
            self.broker.close()
        else:
            self.broker.store.abandon()
        return stopped


def start_broker(
    config: BrokerConfig,
    store_config: StoreConfig,
    *,
    system: ActorSystem,
    hooks: Sequence[Hook] = (),
    make_more: Callable[[Broker], Sequence[ChildSpec]] = lambda _: (),
    more_responders: Responders = (),
    pages: "PageServer | None" = None,
    through: Callable[[Service], Service] = lambda service: service,
) -> RunningBroker:
    """Open the ports and the store, and start all actors.

    `make_more` adds children, and `more_responders` names those that serve requests. `pages`
    answers health requests, if metrics use the same port. `through` may put an actor between the
    ports for clients and the actors that serve them. Raises PortTaken, StoreError or
    StartFailed, each with a sentence for the operator, and leaves nothing open.
    """
    require_listened(config)
    opened, ports = open_ports(config)
    metrics: MetricsServer | None = None
    try:
        metrics = open_metrics(config, pages)
        broker = Broker(system, config, store_config, ports=ports, hooks=hooks)
    except BaseException:
        _close(opened, metrics)
        raise
    more = more_responders
    services = (
        through(broker.service(more=more)),
        through(broker.service(fast=True, more=more)),
        Service({}),
    )
    listeners = [
        (Listener(name, sock.getsockname()[0], sock.getsockname()[1], service), sock)
        for name, sock, service in zip(PORT_NAMES, opened, services)  # noqa: B905  a slave has two
    ]
    try:
        system.start(
            broker.connections_child(),
            *broker.children(),
            *make_more(broker),
            *broker.network_children(listeners),
            *([] if metrics is None else _metrics_children(broker, metrics)),
        )
    except BaseException:
        system.stop(STOP_AFTER_FAILURE_S)
        broker.store.abandon()
        _close(opened, metrics)  # the acceptors, which own them, may never have started
        raise
    if config.one_of in ("", config.broker_name):  # only the first of several masters logs it
        gives_log = not (config.is_slave or config.ha_allowed_addresses)
        warn_if_open(config, config.bind_address, config.ha_address if gives_log else "")
        warn_if_plain_needs_no_certificate(config)
    return RunningBroker(system, broker, metrics)


def _metrics_children(broker: Broker, metrics: MetricsServer) -> list[ChildSpec]:
    # Imported here because most brokers show no metrics.
    from actors.children.metrics import broker_metrics_children

    return broker_metrics_children(broker, metrics.server)


def _close(opened: Sequence[socket], metrics: MetricsServer | None) -> None:
    for each in (*opened, metrics):
        if each is not None:
            each.close()


def open_ports(config: BrokerConfig) -> tuple[list[socket], Ports]:
    """Open the sockets of the main and the fast port, and a master's HA port. Raises PortTaken."""
    if config.listen_port:
        return _open(config, config.listen_port)
    if config.ha_bind_address:  # report an invalid address as such
        open_for_slaves(config, 0, "HA port").close()
    for _ in range(FREE_PORT_TRIES):
        probe = open_listener(config.bind_address, 0, "listenPort")
        port = probe.getsockname()[1]
        probe.close()
        try:
            open_for_slaves(config, port + HA_PORT_ABOVE, "HA port").close()
            return _open(config, port)
        except PortTaken:
            continue
    raise PortTaken("No three free ports were found: set listenPort.")


def _open(config: BrokerConfig, port: int) -> tuple[list[socket], Ports]:
    main = open_listener(config.bind_address, port, "listenPort")
    try:
        fast = open_listener(config.bind_address, port - FAST_PORT_BELOW, "listenPort - 2")
    except PortTaken:
        main.close()
        raise
    ports = Ports(port, port - FAST_PORT_BELOW, port + HA_PORT_ABOVE)
    if config.is_slave:
        return [main, fast], ports
    try:
        ha = open_for_slaves(config, ports.ha, "listenPort + 1")
    except PortTaken:
        main.close()
        fast.close()
        raise
    return [main, fast, ha], ports


def open_for_slaves(config: BrokerConfig, port: int, name: str) -> socket:
    if not config.ha_bind_address:
        return open_listener(config.bind_address, port, name)
    return open_listener(config.ha_bind_address, port, name, "haBindAddress")
