"""Health checks of servers, and their HTTP pages.

    live    the event loop answers an actor within a second, and no supervisor has given up
    ready   broker        it has recovered and listens; if name servers are configured, it is
                          registered at one; the disk is below the ratio at which sends are refused;
                          no flush has failed; a slave is connected to its master
            name server   it has listened for five seconds, so brokers have had time to register

No check waits for the disk or a peer; only the event loop's answer takes time.

The pages answer 200 or 503, with JSON:

    GET /health/live     200 {"ok": true, "checks": [{"check": "loop", "ok": true, "why": ""}]}
    GET /health/ready    503 with a "why" for each failed check

They need no login, because they contain no names of topics or clients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from json import dumps
from time import monotonic
from typing import TYPE_CHECKING

from actors.engine.system import ActorSystem
from actors.metrics.page_server import HttpRequest, Page, PageAnswer, PageServer
from actors.network.bind_address import KnownHosts
from actors.network.connections import open_listener
from storage.retention.cleaning import disk_use

if TYPE_CHECKING:
    from actors.broker import Broker


LOOP_TIMEOUT_S = 1.0
NAMESRV_SETTLES_S = 5.0
RECOVERS = "it is starting; recovery of a large store takes a while"


@dataclass(frozen=True)
class HealthCheck:
    check: str
    ok: bool
    why: str = ""
    """Reason for a failure; else empty."""


Look = Callable[[], Sequence[HealthCheck]]


def is_well(checks: Sequence[HealthCheck]) -> bool:
    return all(each.ok for each in checks)


class Health:
    """Health of a process, to which servers are added when they have started."""

    def __init__(self) -> None:
        self._systems: list[ActorSystem] = []
        self._ready: list[Look] = []
        self._stopping = False

    def watch(self, system: ActorSystem) -> None:
        """Add an actor system, which must answer from now on."""
        self._systems.append(system)

    def joins(self, look: Look) -> None:
        """Add a started server's function for its checks of readiness."""
        self._ready.append(look)

    def leaves(self) -> None:
        """Begin the stop: live, but no longer ready."""
        self._stopping = True

    def live(self, timeout_s: float = LOOP_TIMEOUT_S) -> list[HealthCheck]:
        """Return the check of liveness; it also passes during a start."""
        whys = [system.why_not_alive(timeout_s) for system in list(self._systems)]
        return [_check("loop", next(filter(None, whys), ""))]

    def ready(self) -> list[HealthCheck]:
        """Return the checks of readiness for clients."""
        if self._stopping:
            return [HealthCheck("serving", False, "it is stopping")]
        if not self._ready:
            return [HealthCheck("serving", False, RECOVERS)]
        return [
            HealthCheck("serving", True),
            *self.live(),
            *(one for look in self._ready for one in look()),
        ]


def broker_checks(broker: "Broker") -> list[HealthCheck]:
    """Return the checks of a broker that listens."""
    config, store = broker.config, broker.store
    found = [_registered(broker), _disk(broker)]
    failure = store.commit_log.sync_failure
    why = failure and f"a flush of the commit log failed ({failure}): restart the broker"
    found.append(_check("flush", why))
    if config.is_slave:
        found.append(_check("master", broker.attachment.why_behind.value))
    return found


def namesrv_checks(clock: Callable[[], float] = monotonic) -> Look:
    """Return the function for the checks of a name server that listens from now on."""
    began_s = clock()

    def look() -> list[HealthCheck]:
        settles = clock() - began_s < NAMESRV_SETTLES_S
        why = "it has just started, brokers may not have registered yet" if settles else ""
        return [_check("settled", why)]

    return look


def _registered(broker: "Broker") -> HealthCheck:
    wanted = len(broker.config.namesrv_addresses)
    is_out = wanted and not broker.attachment.registered.value
    return _check("registered", "not registered at any name server" if is_out else "")


def _disk(broker: "Broker") -> HealthCheck:
    config = broker.store.config
    use, limit = disk_use(config, broker.system.disk), config.disk_warning_ratio
    why = f"{use.most:.0%} of the disk are used: above {limit:.0%} sends are refused"
    return _check("disk", why if use.is_full else "")


def _check(name: str, why: str) -> HealthCheck:
    return HealthCheck(name, not why, why)


JSON = "application/json"


def health_pages(health: Health) -> Mapping[str, Page]:
    return {"/health/live": _page(health.live), "/health/ready": _page(health.ready)}


def health_server(
    host: str, port: int, health: Health, hosts: KnownHosts | None = None
) -> PageServer:
    """Start a server for these pages only. Raises PortTaken."""
    server = PageServer(open_listener(host, port, "healthPort"), hosts=hosts)
    server.add(health_pages(health))
    return server


def checks_answer(checks: Sequence[HealthCheck]) -> PageAnswer:
    """Return 200 if all checks pass, else 503, with the checks as JSON."""
    well = is_well(checks)
    body = dumps({"ok": well, "checks": [asdict(each) for each in checks]}).encode() + b"\n"
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return PageAnswer(status, body, content_type=JSON)


def _page(look: Callable[[], Sequence[HealthCheck]]) -> Page:
    def page(_: HttpRequest) -> PageAnswer:
        return checks_answer(look())

    return page
