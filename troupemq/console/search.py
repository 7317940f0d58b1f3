"""Search for messages of a topic in bounded steps, the newest or the oldest matches first.

Each step reads a limited number of messages within a limited time. The browser asks for the next
one, so a search that no page shows reads nothing. The queue whose unread messages are best goes
first; therefore a search ends as soon as no unread message can be among the wanted ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappush, heappushpop
from math import inf
from time import monotonic
from typing import Generic, TypeVar

from protocol.compression import CompressionError, beginning
from protocol.properties import TROUPE_FAILURE
from troupemq.client.admin.reading import PULLED_MAX
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageView
from troupemq.console.cluster import DEADLINE_S, DeadlineSession
from troupemq.console.reading import ReadableQueue, queues_of

STEP_READ_MAX = 5_000
"""Messages that one step reads."""

STEP_S = 1.0
RUN_S = 3.0
"""Time for all steps of a search that one request makes."""

READ_MAX = 1_000_000
"""Messages that one search reads in all its steps."""

BODY_BYTES_MAX = 4 << 20
"""Bytes of a body in which a text is searched for: a small message may unfold to many more."""

CHUNK_MIN = 8
SKIPPED_AT_ONCE = 25 * PULLED_MAX
"""Queue offsets of one pull by tag; brokers compare tags without reading the messages."""

SKIPPED_COST = 25
"""Queue offsets without the tag that count as one message."""

Made = TypeVar("Made")
Looked = TypeVar("Looked")


@dataclass(frozen=True)
class Filters:
    """Conditions for a message; empty fields accept any."""

    tag: str = ""
    """Tag, or several separated by ||; readers of queues apply it."""
    key: str = ""
    having: str = ""
    """Name of a property, or name=value."""
    text: str = ""
    """Text in the body or in the value of a property."""
    begin_ms: int | None = None
    end_ms: int | None = None
    broker: str = ""
    queue: int | None = None
    offset: int | None = None
    """First queue offset to read."""
    hidden: frozenset[str] = frozenset()
    """Properties that count as missing, because the viewer may not see them."""

    @property
    def is_forward(self) -> bool:
        return self.begin_ms is not None or self.offset is not None

    @property
    def is_selective(self) -> bool:
        """Return whether few messages of a queue may fit."""
        return bool(self.tag or self.key or self.having or self.text)

    def has(self, queue: ReadableQueue) -> bool:
        """Return whether a queue is among those to read."""
        place = queue.queue
        is_broker = not self.broker or place.broker_name == self.broker
        return is_broker and (self.queue is None or place.queue_id == self.queue)

    def fits(self, view: MessageView) -> bool:
        time_ms = view.store_timestamp_ms
        return (
            (self.begin_ms is None or time_ms >= self.begin_ms)
            and (self.end_ms is None or time_ms <= self.end_ms)
            and (not self.key or self.key in view.keys or self.key == view.message_id)
            and (not self.having or self._has_property(view))
            and (not self.text or self._has_text(view))
        )

    def fits_in_place(self, view: MessageView) -> bool:
        """Return whether a message fits that no reader of this queue has chosen."""
        tags = {each.strip() for each in self.tag.split("||")}
        return (
            bool(tags & {view.tags, "*", ""})
            and (not self.broker or view.queue.broker_name == self.broker)
            and (self.queue is None or view.queue.queue_id == self.queue)
            and self.fits(view)
        )

    def is_past(self, view: MessageView) -> bool:
        return self.end_ms is not None and view.store_timestamp_ms > self.end_ms

    def _has_property(self, view: MessageView) -> bool:
        name, with_value, value = self.having.partition("=")
        found = None if name.strip() in self.hidden else view.properties.get(name.strip())
        return found is not None and (not with_value or found == value.strip())

    def _has_text(self, view: MessageView) -> bool:
        if any(self.text in each for each in view.properties.values()):
            return True
        try:
            body = beginning(view.stored_body, view.sys_flag, BODY_BYTES_MAX)
            return self.text.encode() in body
        except CompressionError:
            return False


HIDDEN_PROPERTIES = frozenset((TROUPE_FAILURE,))
"""Properties that often quote the body."""


@dataclass
class QueueCursor:
    """Unread part of a queue, from `low` on and before `high`."""

    at: ReadableQueue
    low: int
    high: int
    edge: float = inf
    """Largest possible order of an unread message; see MessageSearch."""

    @property
    def unread(self) -> int:
        return max(0, self.high - self.low)

    def close(self) -> None:
        self.low = self.high

    def chunk(
        self, count: int, look: Callable[[MessageView], Looked], *, is_forward: bool
    ) -> list[Looked]:
        """Read the next `count` offsets; return what `look` makes of each message, in their order.

        No message is kept: 800 may have gigabytes.
        """
        if is_forward:
            first, last = self.low, min(self.high, self.low + count)
        else:
            first, last = max(self.low, self.high - count), self.high
        found = [look(view) for view in self.at.reader.messages(first, last)]
        if is_forward:
            self.low = last
            return found
        self.high = first
        return found[::-1]


@dataclass(slots=True)
class _Seen(Generic[Made]):
    """Values of a message that a search keeps."""

    stored_ms: int
    queue_offset: int
    is_past: bool
    made: list[Made]
    """Row of the page, if the message fits; else nothing."""


class MessageSearch(Generic[Made]):
    """Search of one topic; `make` turns each match into what the page shows.

    The order of a message is its store time, negative in a search that goes forward: the matches
    with the largest orders are wanted.
    """

    def __init__(
        self, topic: str, filters: Filters, count: int, make: Callable[[MessageView], Made]
    ) -> None:
        self.topic = topic
        self.filters = filters
        self.failures: list[str] = []
        self.found: list[Made] = []
        """Matches after the last step, at most `count`, in their order; never changed in place."""
        self.read = 0
        """Queue offsets passed."""
        self.total = 0
        """Queue offsets to pass in all."""
        self.is_over = self.is_cut = self.is_paused = self.is_stopped = False
        self.reached_ms: int | None = None
        """Store time up to which everything was read."""
        self._cost = 0
        self._count = count
        self._make = make
        self._sign = -1 if filters.is_forward else 1
        self._cursors: list[QueueCursor] | None = None
        self._found: list[tuple[int, int, Made]] = []
        self._best: list[int] = []
        """Heap of the `count` largest orders found."""

    @property
    def is_running(self) -> bool:
        return not (self.is_over or self.is_paused or self.is_stopped)

    def step(self, session: DeadlineSession) -> None:
        """Read on for at most STEP_S and STEP_READ_MAX messages. Raises ClientError."""
        until_s = monotonic() + STEP_S
        with session.within(DEADLINE_S):
            if self._cursors is None:
                self._cursors = self._open(session)
                self.total = sum(each.unread for each in self._cursors)
            cost_max = min(self._cost + STEP_READ_MAX, READ_MAX)
            while not self._is_complete():
                if self._cost >= cost_max or monotonic() > until_s:
                    break
                self._advance(max(self._cursors, key=lambda each: each.edge))
        self._trim()
        self.is_cut = not self.is_over and self._cost >= READ_MAX
        self.is_over = self.is_over or self.is_cut

    def run(self, session: DeadlineSession) -> list[Made]:
        """Take the steps of RUN_S and return the matches; `is_cut` if more are unread."""
        until_s = monotonic() + RUN_S
        self.step(session)
        while not self.is_over and monotonic() < until_s:
            self.step(session)
        self.is_cut = self.is_cut or not self.is_over
        return self.found

    def _open(self, session: DeadlineSession) -> list[QueueCursor]:
        found = []
        filters = self.filters
        for each in queues_of(session, self.topic, self.failures, filters.tag or "*"):
            if not filters.has(each):
                continue
            low, high = each.ends.min_offset, each.ends.max_offset
            try:
                if filters.offset is not None:
                    low = max(low, filters.offset)
                elif filters.begin_ms is not None:
                    low = max(low, each.reader.offset_at(filters.begin_ms))
                if filters.end_ms is not None:  # servers may return the last message's offset
                    high = min(high, each.reader.offset_at(filters.end_ms + 1) + 1)
            except ClientError as error:
                self._fail(str(error))
                continue
            found.append(QueueCursor(each, low, high))
        return found

    def _is_complete(self) -> bool:
        """Return whether no unread message can be among the wanted ones."""
        assert self._cursors is not None
        self._cursors = [each for each in self._cursors if each.unread]
        if not self._cursors:
            self.is_over = True
        elif len(self._best) >= self._count:
            self.is_over = self._best[0] >= max(each.edge for each in self._cursors)
        return self.is_over

    def _advance(self, cursor: QueueCursor) -> None:
        is_by_tag = bool(self.filters.tag)
        before = cursor.unread
        size = SKIPPED_AT_ONCE if is_by_tag else PULLED_MAX
        if not is_by_tag and not self.filters.is_selective:
            size = min(size, max(CHUNK_MIN, self._count // len(self._cursors or ()) + 1))
        try:
            seen = cursor.chunk(size, self._look, is_forward=self.filters.is_forward)
            edge_ms = seen[-1].stored_ms if seen else self._edge_ms(cursor)
        except ClientError as error:
            self._give_up(cursor, str(error))
            return
        passed = before - cursor.unread
        self.read += passed
        self._cost += max(len(seen), passed // SKIPPED_COST, 1)
        if edge_ms is not None:
            cursor.edge = min(cursor.edge, self._sign * edge_ms)
            edge = max(each.edge for each in self._cursors or ())
            self.reached_ms = None if edge == inf else int(edge) * self._sign
        for each in seen:
            if each.made:
                self._take(each)
            elif each.is_past:
                cursor.close()

    def _look(self, view: MessageView) -> _Seen[Made]:
        filters = self.filters
        made = [self._make(view)] if filters.fits(view) else []
        is_past = filters.is_forward and filters.is_past(view)
        return _Seen(view.store_timestamp_ms, view.queue_offset, is_past, made)

    def _edge_ms(self, cursor: QueueCursor) -> int | None:
        """Return the store time at the cursor, if no message before it has the tag."""
        reader = cursor.at.reader
        place = cursor.low - 1 if self.filters.is_forward else cursor.high
        plain = type(reader)(reader.admin, reader.address, reader.queue, "*", reader.group)
        view = plain.at(place)
        return None if view is None else view.store_timestamp_ms

    def _take(self, seen: _Seen[Made]) -> None:
        order = self._sign * seen.stored_ms
        if len(self._best) < self._count:
            heappush(self._best, order)
        elif order > self._best[0]:
            heappushpop(self._best, order)
        else:
            return
        position = -self._sign * seen.queue_offset
        self._found.append((order, position, seen.made[0]))

    def _trim(self) -> None:
        """Keep the `count` best matches, and publish them."""
        self._found.sort(key=lambda each: (-each[0], each[1]))
        del self._found[self._count :]
        self.found = [made for *_, made in self._found]

    def _give_up(self, cursor: QueueCursor, why: str) -> None:
        """Leave out all queues of a broker that fails, so that the others are read in time."""
        self._fail(why)
        address = cursor.at.reader.address
        for each in self._cursors or ():
            if each.at.reader.address == address:
                each.close()

    def _fail(self, why: str) -> None:
        if why not in self.failures:
            self.failures.append(why)
