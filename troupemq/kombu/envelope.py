"""Messages of kombu as bodies of ours: a line of JSON, then the body as it was given.

The line has the headers and properties. kombu's own JSON keeps dates and ids as it does elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any

from kombu.utils.json import JSONEncoder, loads

from troupemq.client.message import Message, MessageView, word_of

Payload = dict[str, Any]
"""A message as kombu's virtual channels have it."""

PRIORITY_MAX, STEPS = 9, 4
"""Priorities 0 to 9 share four queues of a topic: 0 to 2, 3 to 5, 6 to 8, and 9."""

_to_json = JSONEncoder().encode

HELD_BY_WORKERS_MS = 60_000
"""Longest delay that a worker waits for itself."""
HOP_MS = 86_400_000
"""Longest stay in the broker's timers, which take three days by default."""


def encode(payload: Payload) -> bytes:
    body = payload["body"]
    line: str = _to_json({name: value for name, value in payload.items() if name != "body"})
    return b"%b\n%b" % (line.encode(), body.encode() if isinstance(body, str) else body)


def decode(body: bytes) -> Payload:
    """Return the payload. Raises ValueError for another body."""
    line, newline, rest = body.partition(b"\n")
    try:
        payload = loads(line)
    except Exception as error:
        raise ValueError(f"unreadable headers: {error!r}") from error
    if not newline or not isinstance(payload, dict):
        raise ValueError("no line of JSON before the body")
    properties = payload.get("properties")
    if not isinstance(properties, dict):
        raise ValueError("a message without properties")
    if not isinstance(payload.get("headers") or {}, dict):
        raise ValueError("headers is no object")
    if properties.get("body_encoding") is not None:
        raise ValueError("body_encoding, which bodies do not have here")
    if not isinstance(properties.setdefault("delivery_info", {}), dict):
        raise ValueError("delivery_info is no object")
    payload["body"] = rest
    return payload


def step_of(payload: Payload) -> int:
    """Return the queue id of a message's priority."""
    priority = payload["properties"].get("priority")
    return min(max(priority, 0), PRIORITY_MAX) // 3 if isinstance(priority, int) else 0


def due_ms(payload: Payload) -> int | None:
    """Return the `eta` of a task, in ms since 1970; Celery takes one without a zone as UTC."""
    headers = payload.get("headers")
    eta = headers.get("eta") if isinstance(headers, dict) else None
    if not isinstance(eta, str):
        return None
    try:
        when = datetime.fromisoformat(eta)
        return ceil((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def waits_in_broker(payload: Payload, now_ms: int) -> int | None:
    """Return when the broker should deliver a task that is due much later; None: at once."""
    due = due_ms(payload)
    if due is None or due - now_ms <= HELD_BY_WORKERS_MS:
        return None
    return min(due, now_ms + HOP_MS)


@dataclass(frozen=True)
class QueueMessage(Message):
    """A message for a queue's topic, and the number of the queue that its priority has there."""

    step: int = field(default=0, kw_only=True)


def message_of(topic: str, payload: Payload, now_ms: int) -> QueueMessage:
    """Return the message for a queue's topic: KEYS is the task's id, TAGS its name."""
    headers = payload.get("headers")
    task: Any = headers if isinstance(headers, dict) else {}
    return QueueMessage(
        topic,
        encode(payload),
        tags=word_of(task.get("task")),
        keys=word_of(task.get("id")) or (),
        deliver_at=waits_in_broker(payload, now_ms),
        step=step_of(payload),
    )


def is_expired(
    view: MessageView, payload: Payload, queue_ttl_ms: float | None, now_ms: int
) -> bool:
    """Return whether a message has outlived its `expiration` or its queue's `x-message-ttl`.

    The time counts from its storing in the queue.
    """
    limits = [queue_ttl_ms, _number(payload["properties"].get("expiration"))]
    age_ms = now_ms - view.store_timestamp_ms
    return any(limit is not None and age_ms >= limit for limit in limits)


def _number(text: object) -> float | None:
    try:
        return None if text is None else float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def queue_ttl_ms(arguments: Mapping[str, Any] | None) -> float | None:
    """Return the `x-message-ttl` of a queue's arguments."""
    return _number((arguments or {}).get("x-message-ttl"))


def mark_redelivered(payload: Payload) -> None:
    payload["redelivered"] = payload["properties"]["delivery_info"]["redelivered"] = True
