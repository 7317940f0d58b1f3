"""New messages of a topic as they come, read in bounded steps while a page asks for them.

A scan goes on from one request of a browser to the next. It has no id of its own: it belongs to a
viewer, and to the address of its page. A second tab with the same address shows the same scan.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Generic, TypeVar

from troupemq.client.errors import ClientError
from troupemq.client.message import MessageView
from troupemq.console.cluster import DEADLINE_S, DeadlineSession
from troupemq.console.parts import Cells
from troupemq.console.reading import ReadableQueue, queues_of
from troupemq.console.search import STEP_S, Filters, MessageSearch

Made = TypeVar("Made")

TAIL_SHOWN = 50
"""Messages that a live page keeps."""

TAIL_FIRST = 20
TAIL_READ_MAX = 2_000
"""Messages that one step of a live page with a filter reads."""

TAIL_MAX_S = 600.0
"""Time after which a live page ends by itself."""


@dataclass
class LiveTail(Generic[Made]):
    """New messages of a topic as they come; it ends TAIL_MAX_S after its start."""

    topic: str
    filters: Filters
    make: Callable[[MessageView], Made]
    clock: Callable[[], float] = monotonic
    failures: list[str] = field(default_factory=list)
    found: list[Made] = field(default_factory=list)
    """Newest matches after the last step, the newest first; never changed in place."""
    seen: int = 0
    """Messages that came since the start."""
    skipped: int = 0
    """Messages among them that were not read, because they came too fast."""
    matches: int = 0
    is_paused: bool = False
    is_stopped: bool = False
    _rows: list[tuple[int, Made]] = field(default_factory=list)
    _at: dict[object, int] = field(default_factory=dict)
    _began_s: float | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        began_s = self.clock() if self._began_s is None else self._began_s
        return max(0.0, began_s + TAIL_MAX_S - self.clock())

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    @property
    def is_running(self) -> bool:
        return not (self.is_over or self.is_paused or self.is_stopped)

    def step(self, session: DeadlineSession) -> None:
        """Read what came since the last step; the first step reads the newest.

        Raises ClientError.
        """
        is_first = self._began_s is None
        if self._began_s is None:
            self._began_s = self.clock()
        self.failures = []
        until_s = monotonic() + STEP_S
        with session.within(DEADLINE_S):
            queues = [
                each
                for each in queues_of(session, self.topic, self.failures, self.filters.tag or "*")
                if self.filters.has(each)
            ]
            share = self._share(len(queues), is_first=is_first)
            for each in queues:
                try:
                    self._read(each, share, until_s, is_first=is_first)
                except ClientError as error:
                    self.failures.append(str(error))
                    if monotonic() > until_s:
                        break
        self._rows.sort(key=lambda each: -each[0])
        del self._rows[TAIL_FIRST if is_first else TAIL_SHOWN :]
        self.found = [made for _, made in self._rows]

    def _share(self, queues: int, *, is_first: bool) -> int:
        """Return the messages of one queue to read."""
        if self.filters.is_selective:
            return max(1, TAIL_READ_MAX // max(1, queues))
        return TAIL_FIRST if is_first else max(1, TAIL_SHOWN // max(1, queues))

    def _read(self, each: ReadableQueue, share: int, until_s: float, *, is_first: bool) -> None:
        last = each.ends.max_offset
        known = self._at.get(each.queue)
        first = max(each.ends.min_offset, last - share)
        if known is not None:
            self.seen += max(0, last - known)
            self.skipped += max(0, first - known)
            first = max(first, known)
        elif not is_first:  # a new queue
            self.seen += last - each.ends.min_offset
        self._at[each.queue] = last
        taken: list[tuple[int, Made]] = []
        for view in each.reader.messages(first, last):
            if self.filters.fits(view):
                taken.append((view.store_timestamp_ms, self.make(view)))
            if monotonic() > until_s:
                self.skipped += max(0, last - view.queue_offset - 1)
                break
        self.matches += 0 if is_first else len(taken)
        self._rows += taken


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
