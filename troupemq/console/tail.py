"""New messages of a topic as they come, read in bounded steps while a page asks for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Generic, TypeVar

from troupemq.client.errors import ClientError
from troupemq.client.message import MessageView
from troupemq.console.cluster import DEADLINE_S, DeadlineSession
from troupemq.console.reading import ReadableQueue, queues_of
from troupemq.console.search import STEP_S, Filters

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
