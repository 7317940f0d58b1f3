"""Notes that the loop takes of sends and pulls, for a thread to make spans of.

A hook (network/hooks.py). Of a send it looks for `traceparent` in the properties, and notes it if
it is sampled; of a batch, and of a pull, the messages are looked at by the thread. What does not
fit is dropped and counted: nobody waits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time_ns

from actors.network.hooks import PullContext, SendContext
from protocol.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from protocol.span_names import TRACEPARENT, TraceParent, parse_traceparent

MARK = f"{TRACEPARENT}{NAME_VALUE_SEPARATOR}".encode()
_END = PROPERTY_SEPARATOR.encode()
_ID_BITS = 64


@dataclass(frozen=True, slots=True)
class StoredNote:
    """A send was answered."""

    parent: TraceParent | None
    """None: the messages of the batch say it, each by itself."""
    topic: str
    queue_id: int
    ids: str
    """The broker's, of a batch several."""
    body_bytes: int
    client: str
    begun_ns: int
    ended_ns: int
    failure: str
    """Why it was refused; empty: stored."""


@dataclass(frozen=True, slots=True)
class DeliveredNote:
    """A pull was answered with messages."""

    group: str
    client: str
    runs: Sequence[tuple[int, int]]
    """Where they lie in the log."""
    begun_ns: int
    ended_ns: int


class Sampling:
    """Which traces are chosen, as OpenTelemetry's TraceIdRatioBased does."""

    def __init__(self, ratio: float) -> None:
        self._bound = round(ratio * (1 << _ID_BITS))

    def takes(self, parent: TraceParent) -> bool:
        """Whether its producer has sampled it, and we do."""
        return parent.is_sampled and parent.trace_id & ((1 << _ID_BITS) - 1) < self._bound


class SpanQueue:
    """Filled on the loop, emptied by one thread."""

    def __init__(self, ratio: float, most: int, now_ns: Callable[[], int] = time_ns) -> None:
        """`most` that may wait; `now_ns` since 1970."""
        self.sampling = Sampling(ratio)
        self.dropped_count = 0
        """Sends and pulls that found no room."""
        self.sent_count = 0
        self.lost_count = 0
        """Spans that the collector took, and did not take."""
        self._most, self._now_ns = most, now_ns
        self._waiting: deque[StoredNote | DeliveredNote] = deque()

    # --- what the loop calls

    def before_send(self, context: SendContext) -> None:
        """Notes when it came."""
        context.begun_ns = self._now_ns()

    def after_send(self, context: SendContext) -> None:
        """Notes it if it is sampled."""
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
        """Notes when it came."""
        context.begun_ns = self._now_ns()

    def after_pull(self, context: PullContext) -> None:
        """Notes it if it brought something; a pull that waited begins when its messages came."""
        if context.success:
            now_ns = self._now_ns()
            begun_ns = now_ns if context.held else context.begun_ns
            self._note(DeliveredNote(context.group, context.client, context.runs, begun_ns, now_ns))

    def _note(self, found: StoredNote | DeliveredNote) -> None:
        if len(self._waiting) >= self._most:
            self.dropped_count += 1
        else:
            self._waiting.append(found)

    # --- what the thread calls

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def take(self) -> StoredNote | DeliveredNote | None:
        """The oldest; None: there is none."""
        return self._waiting.popleft() if self._waiting else None


def carried(properties: bytes | memoryview) -> TraceParent | None:
    """What a property text has as `traceparent`."""
    text = bytes(properties)
    at = text.find(MARK)
    if at < 0 or (at and text[at - 1 : at] != _END):
        return None
    at += len(MARK)
    end = text.find(_END, at)
    return parse_traceparent(text[at : end if end >= 0 else None].decode("latin-1"))
