"""Notes of sends and pulls, taken on the loop; a thread makes spans of them.

A hook (network/hooks.py). A send is noted if its property `traceparent` is sampled. The thread
checks the messages of batches and pulls. Notes over the limit are dropped and counted.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time_ns

from actors.network.hooks import PullContext, SendContext
from protocol.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from protocol.span_names import TRACEPARENT, TraceParent, parse_traceparent

NOTE_BYTES = 8 << 10
"""Bytes that count as another note: the message ids of one batch may have two million."""
_RUN_BYTES = 128
MARK = f"{TRACEPARENT}{NAME_VALUE_SEPARATOR}".encode()
_END = PROPERTY_SEPARATOR.encode()
_ID_BITS = 64


@dataclass(frozen=True, slots=True)
class StoredNote:
    parent: TraceParent | None
    """Parent span; None for a batch, as each message has its own."""
    topic: str
    queue_id: int
    ids: str
    """Message ids of the broker, several for a batch."""
    body_bytes: int
    client: str
    begun_ns: int
    ended_ns: int
    failure: str
    """Reason of a refusal; empty: stored."""


@dataclass(frozen=True, slots=True)
class DeliveredNote:
    """A pull answered with messages."""

    group: str
    client: str
    runs: Sequence[tuple[int, int]]
    """Ranges of the messages in the log."""
    begun_ns: int
    ended_ns: int


class Sampling:
    """Choice of traces, as by OpenTelemetry's TraceIdRatioBased."""

    def __init__(self, ratio: float) -> None:
        self._bound = round(ratio * (1 << _ID_BITS))

    def takes(self, parent: TraceParent) -> bool:
        """Return whether both the producer and this broker sample the trace."""
        return parent.is_sampled and parent.trace_id & ((1 << _ID_BITS) - 1) < self._bound


class SpanQueue:
    """Bounded queue of notes: the loop fills it, one thread empties it."""

    def __init__(self, ratio: float, most: int, now_ns: Callable[[], int] = time_ns) -> None:
        self.sampling = Sampling(ratio)
        self.dropped_count = 0
        """Sends and pulls dropped at the limit."""
        self.sent_count = 0
        self.lost_count = 0
        """Spans that the collector accepted, and that it did not."""
        self._most, self._now_ns = most, now_ns
        self._waiting: deque[StoredNote | DeliveredNote] = deque()
        self._noted = self._taken = 0
        """Notes in all, with their weight; the loop writes the first, the thread the second."""

    # --- called on the loop

    def before_send(self, context: SendContext) -> None:
        context.begun_ns = self._now_ns()

    def after_send(self, context: SendContext) -> None:
        """Note the send if it is sampled."""
        parent = carried(context.properties)
        is_batch = parent is None and "," in context.message_id
        if not is_batch and (parent is None or not self.sampling.takes(parent)):
            return
        failure = "" if context.success else context.remark or str(context.code)
        self._note(
            StoredNote(
                parent,
                context.topic,
                context.queue_id,
                context.message_id,
                context.body_bytes,
                context.client,
                context.begun_ns,
                self._now_ns(),
                failure,
            )
        )

    def before_pull(self, context: PullContext) -> None:
        context.begun_ns = self._now_ns()

    def after_pull(self, context: PullContext) -> None:
        """Note a pull with messages; a held pull begins when its messages arrive."""
        if context.success:
            now_ns = self._now_ns()
            begun_ns = now_ns if context.held else context.begun_ns
            self._note(DeliveredNote(context.group, context.client, context.runs, begun_ns, now_ns))

    def _note(self, found: StoredNote | DeliveredNote) -> None:
        weight = _weight(found)
        if self._waiting and self._noted - self._taken + weight > self._most:
            self.dropped_count += 1
        else:
            self._noted += weight
            self._waiting.append(found)

    # --- called on the thread

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self) -> StoredNote | DeliveredNote | None:
        if not self._waiting:
            return None
        found = self._waiting.popleft()
        self._taken += _weight(found)
        return found


def _weight(note: StoredNote | DeliveredNote) -> int:
    """Return the number of notes that a note counts as."""
    size = len(note.ids) if isinstance(note, StoredNote) else _RUN_BYTES * len(note.runs)
    return 1 + size // NOTE_BYTES


def carried(properties: bytes | memoryview) -> TraceParent | None:
    """Return the `traceparent` of a property text, or None."""
    text = bytes(properties)
    at = text.find(MARK)
    if at < 0 or (at and text[at - 1 : at] != _END):
        return None
    at += len(MARK)
    end = text.find(_END, at)
    return parse_traceparent(text[at : end if end >= 0 else None].decode("latin-1"))
