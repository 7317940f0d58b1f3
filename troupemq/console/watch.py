"""Watch of a cluster: its newest snapshot, the figures of the last hour, and the alerts.

One thread takes snapshots at an interval, while pages are requested or alerts are configured.
A page request takes one itself if the newest is too old for it. Two are never taken at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
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

STALE_INTERVALS = 2
"""A page request takes a snapshot itself if the newest is as many intervals old."""

FRESH_S = 2.0
"""Maximum age of the snapshot on a page that opens fresh."""

PAUSE_MIN_S = 1.0
"""Shortest pause of the thread, if each snapshot fails."""

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
        self._looked_s = asked_s = self._clock()
        found, age_s = self._newest, asked_s - self._taken_s
        if found is not None:
            limit_s = self._interval_s(found)
            if self._thread.is_alive():  # it is taking a newer one
                limit_s *= STALE_INTERVALS
            if age_s < limit_s:
                return found
        return self._taken_after(asked_s)

    def renew(self, max_age_s: float = FRESH_S) -> None:
        """Take a snapshot if the newest is older, or older than the time that it took."""
        asked_s, found = self._clock(), self._newest
        if found is None or asked_s - self._taken_s >= max(max_age_s, found.took_s):
            self._taken_after(asked_s)

    def _taken_after(self, asked_s: float) -> ClusterSnapshot:
        with self._taking:
            if self._newest is not None and self._taken_s >= asked_s:
                return self._newest
            return self._take_now()

    def forget(self) -> None:
        """Discard the snapshot after a change, so that the next page shows its effect."""
        self._taken_s = -inf

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
        while True:
            known_s = self._taken_s
            if self._over.wait(self._pause_s()):
                return
            is_looked_at = self._clock() - self._looked_s < LOOKED_S
            if not is_looked_at and self._told is None:
                continue
            try:
                self._round(known_s)
            except Exception:  # one invalid answer must not silently end the alerts
                log.error("cluster snapshot failed", exc_info=True)

    def _round(self, known_s: float) -> None:
        """Take a snapshot unless a page request has taken one since `known_s`; send its alerts."""
        with self._taking:
            newest = self._newest
            found = newest if newest and self._taken_s > known_s else self._take_now()
        if self._told is not None:
            self._told(found)

    def _pause_s(self) -> float:
        is_looked_at = self._clock() - self._looked_s < LOOKED_S
        if self._newest is None:
            return INTERVAL_S
        interval_s = self._interval_s(self._newest)
        if not is_looked_at:
            return interval_s if self._told is None else max(ALERT_INTERVAL_S, interval_s)
        return max(PAUSE_MIN_S, interval_s - (self._clock() - self._taken_s))
