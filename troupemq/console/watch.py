"""Watch of a cluster: its newest snapshot, the figures of the last hour, and the alerts.

One thread takes snapshots at an interval, while pages are requested or alerts are configured.
A page request takes one itself if the newest is too old. Two are never taken at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread
from time import monotonic

from troupemq.client.log import client_logger
from troupemq.console.snapshot import ClusterSnapshot

log = client_logger(__name__)

INTERVAL_S = 5.0
ALERT_INTERVAL_S = 30.0
"""Interval for alerts while no page is requested."""

SHARE = 10
"""The interval is at least this multiple of a snapshot's duration, for large clusters."""

LOOKED_S = 60.0
"""The console counts as in use for this long after a page request."""

STALE_S = 60.0
"""Older snapshots are not shown."""

HISTORY_COUNT = 720
"""One hour at INTERVAL_S."""


@dataclass(frozen=True)
class Moment:
    """Point of the overview chart."""

    taken_ms: int
    in_tps: float
    out_tps: float
    lag: int


class ClusterWatch:
    """Newest snapshot and history of a cluster, for any thread."""

    def __init__(
        self,
        take: Callable[[], ClusterSnapshot],
        told: Callable[[ClusterSnapshot], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Prepare the thread; it passes each snapshot to `told` unless that is None."""
        self._take = take
        self._told = told
        self._clock = clock
        self._taking = Lock()
        self._newest: ClusterSnapshot | None = None
        self._taken_s = 0.0
        self._looked_s = -LOOKED_S
        self.history: deque[Moment] = deque(maxlen=HISTORY_COUNT)
        self._over = Event()
        self._thread = Thread(target=self._run, name="console-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; return False if it did not end in time."""
        self._over.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def newest(self) -> ClusterSnapshot:
        """Return the newest snapshot; if it is too old, wait for a new one."""
        self._looked_s = self._clock()
        found, age_s = self._newest, self._clock() - self._taken_s
        if found is not None and age_s < self._interval_s(found):
            return found
        if found is not None and age_s < STALE_S and self._thread.is_alive():
            return found  # the thread is taking a newer one
        asked_s = self._clock()
        with self._taking:
            if self._newest is not None and self._taken_s >= asked_s:
                return self._newest
            return self._take_now()

    def forget(self) -> None:
        """Discard the snapshot after a change, so that the next page shows its effect."""
        self._taken_s = -STALE_S * 2

    def _interval_s(self, snapshot: ClusterSnapshot) -> float:
        return max(INTERVAL_S, SHARE * snapshot.took_s)

    def _take_now(self) -> ClusterSnapshot:
        found = self._take()
        self._newest, self._taken_s = found, self._clock()
        if found.brokers:
            self.history.append(
                Moment(
                    found.taken_ms,
                    sum(each.number("putTps") or 0.0 for each in found.masters),
                    sum(each.number("getTransferedTps") or 0.0 for each in found.masters),
                    sum(group.lag for group in found.groups.values()),
                )
            )
        return found

    def _run(self) -> None:
        while not self._over.wait(self._pause_s()):
            is_looked_at = self._clock() - self._looked_s < LOOKED_S
            if not is_looked_at and self._told is None:
                continue
            try:
                self._round()
            except Exception:  # one invalid answer must not silently end the alerts
                log.error("cluster snapshot failed", exc_info=True)

    def _round(self) -> None:
        with self._taking:
            found = self._take_now()
        if self._told is not None:
            self._told(found)

    def _pause_s(self) -> float:
        is_looked_at = self._clock() - self._looked_s < LOOKED_S
        if self._newest is None:
            return INTERVAL_S
        if self._told is not None and not is_looked_at:
            return max(ALERT_INTERVAL_S, self._interval_s(self._newest))
        return self._interval_s(self._newest)
