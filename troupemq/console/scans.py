"""Searches and live pages that go on from one request of a browser to the next.

A scan has no id of its own: it belongs to a viewer, and to the address of its page. A second tab
with the same address shows the same scan.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from time import monotonic

from troupemq.console.cluster import DeadlineSession
from troupemq.console.parts import Cells
from troupemq.console.search import MessageSearch
from troupemq.console.tail import LiveTail

SCANS_MAX = 40
SCANS_OF_VIEWER_MAX = 4
KEPT_S = 900.0
"""Time for which a scan is kept after its last request."""

GO = "go"
"""Parameter of an address: what the request does with the scan of the page."""

NEXT, ON, PAUSE, STOP = "next", "on", "pause", "stop"

Scan = MessageSearch[Cells] | LiveTail[Cells]
Owner = tuple[str, bool, str, tuple[tuple[str, str], ...]]


class KeptScan:
    """Scan with the lock that its steps take."""

    def __init__(self, scan: Scan, now_s: float) -> None:
        self.scan = scan
        self.used_s = now_s
        self._stepping = Lock()

    def go(self, session: DeadlineSession, how: str) -> None:
        """Do what a request wants; a step while another one runs reads nothing.

        Raises ClientError.
        """
        scan = self.scan
        if how == STOP:
            scan.is_stopped = True
        elif how in (PAUSE, ON):
            scan.is_paused = how == PAUSE
        if scan.is_running and self._stepping.acquire(blocking=False):
            try:
                scan.step(session)
            finally:
                self._stepping.release()


class Scans:
    """Scans of all viewers, for any thread; the oldest ones make room for new ones."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: dict[Owner, KeptScan] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, owner: Owner, scan: Scan) -> KeptScan:
        """Keep a new scan in the place of the viewer's former one at this address."""
        kept = KeptScan(scan, self._clock())
        with self._lock:
            self._kept.pop(owner, None)
            self._drop_old()
            own = [each for each in self._kept if each[0] == owner[0]]
            for each in own[: max(0, len(own) - SCANS_OF_VIEWER_MAX + 1)]:
                del self._kept[each]
            while len(self._kept) >= SCANS_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[owner] = kept
        return kept

    def find(self, owner: Owner) -> KeptScan | None:
        with self._lock:
            self._drop_old()
            found = self._kept.pop(owner, None)
            if found is not None:
                found.used_s = self._clock()
                self._kept[owner] = found
            return found

    def _drop_old(self) -> None:
        """Drop unused scans; they are in the order of their last use."""
        oldest_s = self._clock() - KEPT_S
        for owner in [each for each, kept in self._kept.items() if kept.used_s < oldest_s]:
            del self._kept[owner]


def owner_of(viewer: str, path: str, query: Mapping[str, str], *, sees_bodies: bool) -> Owner:
    """Return the key of a scan; rows with bodies are kept apart from rows without."""
    rest = tuple(sorted((name, value) for name, value in query.items() if name != GO and value))
    return viewer, sees_bodies, path, rest
