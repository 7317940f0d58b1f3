"""Min and max offsets of queues, and the ranges that a reader's options select.

A queue ends after its last unit that points to its own record below the published offset, or whose
record has expired. Later units are not complete yet, or were lost in a power cut. Offsets of the
options are compared with that end. Selected offsets that the store no longer has are a loss, which
failOnDataLoss handles.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.source.options import EARLIEST, LATEST, Options, Position, QueueName, queue_text
from storage.errors import StoreError
from storage.reading.queue_times import first_at_time

_BACKWARDS = 64
"""Units looked at for the last whole one; four times as many at each further step."""

_LOOK_AHEAD = 4096
"""Units passed over for one that is whole, at each step of a search by time."""

_NAMED_MAX = 5
"""Queues or topics that an error names."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Queue offsets [first, end) that are there."""

    first: int
    end: int


def open_store(options: Options) -> Store:
    """Open the store. Raises StoreError without one."""
    return Store(options.store, options.commit_log)


def open_queue(store: Store, name: QueueName, options: Options) -> Queue:
    return Queue(store, name[0], name[1], options.published_offset)


def is_ordinary(topic: str) -> bool:
    """Return whether a topic is read by default: no retry, dead-letter or system topic."""
    return not is_system_topic(topic) and not topic.startswith(DLQ_TOPIC_PREFIX)


def chosen_queues(store: Store, options: Options) -> list[QueueName]:
    """Return the queues of the topics in the options."""
    return [name for name in store.queue_names() if wants_topic(name[0], options)]


def wants_topic(topic: str, options: Options) -> bool:
    """Return whether the options ask for a topic.

    A pattern asks for retries or dead letters if it begins like their topics.
    """
    if options.topics is not None:
        return topic in options.topics
    pattern = options.topic_pattern
    if pattern is not None:
        if not pattern.fullmatch(topic):
            return False
        for prefix in (DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX):
            if topic.startswith(prefix) and pattern.pattern.startswith(prefix):
                return True
    return options.include_system_topics or is_ordinary(topic)


def check_topics(queues: Iterable[QueueName], store: Store, options: Options) -> None:
    """Check that each named topic exists. Raises StoreError."""
    missing = sorted((options.topics or frozenset()) - {name[0] for name in queues})
    if missing:
        there = {topic for topic, _ in store.queue_names() if is_ordinary(topic)}
        raise no_topic(options, options.store, missing[0], there)


def no_topic(options: Options, where: str, missing: str, there: Iterable[str]) -> StoreError:
    """Return the error for topics that are missing at `where`, with those that exist."""
    known = sorted(there)
    name = "topic" if "topic" in options.given else "topics"
    return StoreError(
        f"{name}: {where} has no topic {missing}; it has "
        f"{', '.join(known[:_NAMED_MAX]) or 'none'}{' and more' * (len(known) > _NAMED_MAX)}"
    )


def bounds(queue: Queue) -> Bounds:
    """Return the min and max offset of a queue."""
    end = queue_end(queue)
    first = queue.first_message()
    return Bounds(end if first is None else min(first, end), end)


def queue_end(queue: Queue, known_end: int = 0) -> int:
    """Return the offset after the last unit that has its record, or whose record has expired.

    0 without one. `known_end` is an earlier result.
    """
    files = queue.store.queue(queue.topic, queue.queue_id)
    top = end = files.max_offset(known_end)
    first = files.min_offset
    count = _BACKWARDS
    while end > first:
        start = max(first, end - count)
        for part in reversed(list(queue.scan(start, end))):
            if part.records is not None:
                return int(part.records.heads["queue_offset"][-1]) + 1
        kept = queue.first_message(start)
        if kept != start:  # the unit at the start has expired, and so has all before it
            return top if kept is None else min(kept, top)
        end, count = start, count * 4
    return end


def first_stored_at(queue: Queue, there: Bounds, timestamp_ms: int) -> int:
    """Return the first message stored at that time or later, or the end."""
    return first_at_time(partial(_time_from, queue), timestamp_ms, there.first, there.end)


def _time_from(queue: Queue, first: int, end: int) -> tuple[int, int] | None:
    """Return (queue offset, store timestamp) of the first complete message near `first`."""
    for limit in (first + 1, min(end, first + _LOOK_AHEAD)):
        for part in queue.scan(first, limit):
            if part.records is not None:
                return part.records.first, int(part.records.store_timestamps[0])
    return None


def resolve(
    position: Position | None,
    default: int,
    name: QueueName,
    there: Bounds,
    stored_at: Callable[[int], int],
) -> int:
    """Return the queue offset of a position; it may lie outside of the queue.

    `stored_at` returns the first message stored at a time (ms since 1970) or later.
    """
    offset: int | None = default
    timestamp_ms = None
    if position is not None:
        offset, timestamp_ms = position.offset, position.timestamp_ms
        if position.offsets is not None:
            offset = position.offsets[name]
        if position.timestamps_ms is not None:
            timestamp_ms = position.timestamps_ms[name]
    if timestamp_ms is not None:
        return stored_at(timestamp_ms)
    return {EARLIEST: there.first, LATEST: there.end}.get(offset or 0, offset or 0)


def check_named(position: Position | None, queues: Iterable[QueueName]) -> None:
    """Check that a position with queues names exactly these. Raises StoreError."""
    if position is None or position.named is None:
        return
    chosen, named = set(queues), set(position.named)
    if chosen - named:
        raise StoreError(
            f"{position.option} says nothing of {_listed(chosen - named)}: name every queue"
            + ("" if position.offsets is None else ", -2 is its earliest and -1 its latest offset")
        )
    if named - chosen:
        raise StoreError(
            f"{position.option} names {_listed(named - chosen)}, which is not read: leave it out, "
            "or choose its topic"
        )


def _listed(names: Iterable[QueueName]) -> str:
    texts = [queue_text(*name) for name in sorted(names)]
    more = f" and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    return ", ".join(texts[:_NAMED_MAX]) + more


def within(name: QueueName, wanted: Bounds, there: Bounds, *, fail_on_data_loss: bool) -> Bounds:
    """Return the wanted range within what exists.

    Raises StoreError where that is less, if a loss is an error.
    """
    lost = None
    if wanted.first < min(wanted.end, there.first):
        lost = f"begins at {there.first}, not at {wanted.first}"
    elif max(wanted.first, wanted.end) > there.end:
        lost = f"ends at {there.end}, not at {max(wanted.first, wanted.end)}"
    if lost is not None and fail_on_data_loss:
        raise StoreError(
            f"{queue_text(*name)} {lost}: messages are gone, or never were; "
            "failOnDataLoss=false reads what is there"
        )
    first = min(max(wanted.first, there.first), there.end)
    return Bounds(first, max(first, min(wanted.end, there.end)))


def to_json(offsets: Mapping[QueueName, int]) -> dict[str, Any]:
    """Return the form of startingOffsets: topic, broker if known, queue id, offset."""
    found: dict[str, Any] = {}
    for name, offset in sorted(offsets.items()):
        queues = found.setdefault(name[0], {})
        for broker in name[2:]:
            queues = queues.setdefault(broker, {})
        queues[str(name[1])] = offset
    return found


def from_json(found: Mapping[str, Mapping[str, Any]]) -> dict[QueueName, int]:
    offsets: dict[QueueName, int] = {}
    for topic, queues in found.items():
        for key, value in queues.items():
            if isinstance(value, Mapping):
                offsets.update({(topic, int(number), key): value[number] for number in value})
            else:
                offsets[topic, int(key)] = value
    return offsets
