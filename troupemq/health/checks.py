"""The checks of health: each with what it found, and why it is not well.

    live    the loop answers an actor within a second, and no supervisor has given up
    ready   broker   it has recovered and listens; it is registered at a name server at least, where
                     there are any; the disk is below the ratio from which sends are refused; no
                     flush has failed; a slave follows its master
            name server   it has listened for five seconds: brokers have had time to register

Nobody who asks waits for the disk or a peer: all of it is known already, but for the loop's answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from actors.engine.system import ActorSystem
from storage.retention.cleaning import used_ratio

if TYPE_CHECKING:
    from actors.broker import Broker

LOOP_TIMEOUT_S = 1.0
NAMESRV_SETTLES_S = 5.0
RECOVERS = "it starts; a large store is recovered for a while"


@dataclass(frozen=True)
class HealthCheck:
    """One line of an answer."""

    check: str
    ok: bool
    why: str = ""
    """What is wrong; empty if nothing is."""


Look = Callable[[], Sequence[HealthCheck]]


def is_well(checks: Sequence[HealthCheck]) -> bool:
    """Whether nothing is wrong."""
    return all(each.ok for each in checks)


class Health:
    """What is asked for live and ready; servers join as they come up."""

    def __init__(self) -> None:
        self._systems: list[ActorSystem] = []
        self._ready: list[Look] = []
        self._stopping = False

    def watch(self, system: ActorSystem) -> None:
        """From now on its loop has to answer."""
        self._systems.append(system)

    def joins(self, look: Look) -> None:
        """Something serves, and this says how well."""
        self._ready.append(look)

    def leaves(self) -> None:
        """The stop has begun: alive, and not ready any more."""
        self._stopping = True

    def live(self, timeout_s: float = LOOP_TIMEOUT_S) -> list[HealthCheck]:
        """Whether it should be let live. A start that recovers a store is alive."""
        whys = [system.why_not_alive(timeout_s) for system in list(self._systems)]
        return [_check("loop", next(filter(None, whys), ""))]

    def ready(self) -> list[HealthCheck]:
        """Whether clients should be sent here."""
        if self._stopping:
            return [HealthCheck("serving", False, "it stops")]
        if not self._ready:
            return [HealthCheck("serving", False, RECOVERS)]
        return [
            HealthCheck("serving", True),
            *self.live(),
            *(one for look in self._ready for one in look()),
        ]


def broker_checks(broker: "Broker") -> list[HealthCheck]:
    """Of a broker that listens."""
    config, store = broker.config, broker.store
    found = [_registered(broker), _disk(broker)]
    failure = store.commit_log.sync_failure
    found.append(_check("flush", failure and f"a flush of the log failed ({failure}): restart it"))
    if config.is_slave:
        found.append(_check("master", broker.attachment.why_behind.value))
    return found


def namesrv_checks(clock: Callable[[], float] = monotonic) -> Look:
    """Of a name server that listens from now on."""
    began_s = clock()

    def look() -> list[HealthCheck]:
        settles = clock() - began_s < NAMESRV_SETTLES_S
        why = "brokers have not had time to register" if settles else ""
        return [_check("settled", why)]

    return look


def _registered(broker: "Broker") -> HealthCheck:
    wanted = len(broker.config.namesrv_addresses)
    is_out = wanted and not broker.attachment.registered.value
    return _check("registered", "no name server knows this broker" if is_out else "")


def _disk(broker: "Broker") -> HealthCheck:
    config, disk = broker.store.config, broker.system.disk
    ratio = used_ratio(disk, config.commit_log_dir)
    limit = config.disk_warning_ratio
    if ratio <= limit:
        return HealthCheck("disk", True)
    return _check("disk", f"{ratio:.0%} of the disk are used: beyond {limit:.0%} sends are refused")


def _check(name: str, why: str) -> HealthCheck:
    return HealthCheck(name, not why, why)
