"""The watch over a cluster: the newest snapshot, what was in the minutes before, and who is told.

Snapshots are taken by one thread, every so often while somebody looks or alerts are on, and by
whoever asks when the newest one is too old; never two at once.
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
"""When nobody looks."""

SHARE = 10
"""Taking snapshots gets a tenth of the time: of a large cluster they are rarer."""

LOOKED_S = 60.0
"""So long after somebody has asked, it is somebody who looks."""

STALE_S = 60.0
"""An older snapshot is shown to nobody."""

HISTORY_COUNT = 720
"""An hour at the usual interval."""


@dataclass(frozen=True)
class Moment:
    """What charts are made of."""

    taken_ms: int
    in_tps: float
    out_tps: float
    lag: int


class ClusterWatch:
    """Any thread."""

    def __init__(
        self,
        take: Callable[[], ClusterSnapshot],
        told: Callable[[ClusterSnapshot], None] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`told` gets each snapshot that the thread takes: alerts; None: there are none."""
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
        """False if it is still asking."""
        self._over.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def newest(self) -> ClusterSnapshot:
        """Waits if there is none that is new enough, one snapshot's time at the most."""
        self._looked_s = self._clock()
        found, age_s = self._newest, self._clock() - self._taken_s
        if found is not None and age_s < self._interval_s(found):
            return found
        if found is not None and age_s < STALE_S and self._thread.is_alive():
            return found  # the thread is about to have a newer one
        asked_s = self._clock()
        with self._taking:
            if self._newest is not None and self._taken_s >= asked_s:
                return self._newest
            return self._take_now()

    def forget(self) -> None:
        """Something was changed: the next page shows what is now."""
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
            except Exception:  # one odd answer must not end the alerts without a word
                log.error("round of the watch failed", exc_info=True)

    def _round(self) -> None:
        """Take a snapshot, and compare it for alerts."""
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
