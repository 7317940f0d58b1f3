"""Timers: messages delivered at a time of their own, by the property names of RocketMQ 5.x.

    TIMER_DELAY_SEC    delay in seconds; the first of the three that a message has counts
    TIMER_DELAY_MS     delay in ms
    TIMER_DELIVER_MS   time of delivery, ms since the epoch
    TIMER_OUT_MS       time of delivery as the broker has decided it, ms since the epoch

A pending timer is a delayed message of RocketMQ 4.9.7 (DELAY, REAL_TOPIC, REAL_QID) whose property
text ends with TIMER_OUT_MS. Only the broker writes that end: a delayed message of a sender ends
with another property, whatever its sender has set.

A copy of a timer that the broker stores, in its topic or in another level, names the record that it
is a copy of in its prepared transaction offset, which no sender can set:

    bits 48 to 62  COPY_MARK
    bits 40 to 47  delay level
    bits 0 to 39   queue offset in SCHEDULE_TOPIC_XXXX

A recall handle names a timer to cancel. It is the URL-safe Base64 form of
`v1 topic brokerName time uniqueKey`, with the time in ms since the epoch.

Source: common/message/MessageConst.java, common/producer/RecallMessageHandle.java.
"""

from binascii import Error as Base64Error
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from protocol.java_numbers import plain_number

TIMER_DELAY_SEC: Final = b"TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = b"TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = b"TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = b"TIMER_OUT_MS"
TIMER_NAMES: Final = frozenset((TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS))
"""Names by which a sender asks for a timer."""

_DUE_DIGITS: Final = 15
"""Digits of a due time; the text has leading zeros, so that the end of a record has one length."""
_BEFORE_DUE: Final = b"\x02" + TIMER_OUT_MS + b"\x01"
DUE_BYTES: Final = len(_BEFORE_DUE) + _DUE_DIGITS
"""Length of the end of a pending timer's properties; it is also the end of its record."""

COPY_MARK: Final = 0x5449
_LEVEL_BITS: Final = 8
_OFFSET_BITS: Final = 40
"""34 years of a timer each millisecond."""

_VERSION: Final = "v1"
_HANDLE_CHARS_MAX: Final = 2048
INVALID_HANDLE: Final = "recall handle is invalid"


def due_property(due_ms: int) -> bytes:
    """Return the end of a pending timer's property text."""
    return b"%b%0*d" % (_BEFORE_DUE, _DUE_DIGITS, due_ms)


def due_of(end: bytes | memoryview) -> int:
    """Return the due time, ms, of a record or property text with this end; 0 without a timer."""
    text = bytes(end[-DUE_BYTES:])
    if len(text) < DUE_BYTES or not text.startswith(_BEFORE_DUE):
        return 0
    return plain_number(text[-_DUE_DIGITS:].decode("latin-1")) or 0


def copy_mark(level: int, queue_offset: int) -> int:
    """Return the prepared transaction offset of a copy; 0 if the numbers do not fit into it."""
    if level >= 1 << _LEVEL_BITS or queue_offset >= 1 << _OFFSET_BITS:
        return 0
    return (COPY_MARK << _LEVEL_BITS | level) << _OFFSET_BITS | queue_offset


def copied_from(prepared_offset: int) -> tuple[int, int] | None:
    """Return delay level and queue offset of the timer that a record is a copy of, or None."""
    level = prepared_offset >> _OFFSET_BITS
    if level >> _LEVEL_BITS != COPY_MARK:
        return None
    return level & ((1 << _LEVEL_BITS) - 1), prepared_offset & ((1 << _OFFSET_BITS) - 1)


class RecallHandle(NamedTuple):
    """Name of a pending timer."""

    topic: str
    broker_name: str
    due_ms: int
    """Due time, ms since the epoch; -1 if the handle has no number there."""
    unique_key: str

    def encode(self) -> str:
        from base64 import urlsafe_b64encode

        words = _VERSION, self.topic, self.broker_name, str(self.due_ms), self.unique_key
        return urlsafe_b64encode(" ".join(words).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> "RecallHandle":
        """Return the handle of a text. Raises ValueError with 5.x's remark."""
        from base64 import urlsafe_b64decode

        if not text or len(text) > _HANDLE_CHARS_MAX or not text.isascii():
            raise ValueError(INVALID_HANDLE)
        try:
            padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
            words = urlsafe_b64decode(padded).decode("utf-8", "replace").split(" ")
        except (Base64Error, ValueError):
            raise ValueError(INVALID_HANDLE) from None
        if words[0] != _VERSION or len(words) < 5:
            raise ValueError(INVALID_HANDLE)
        _, topic, broker_name, due, unique_key, *_ = words
        number = plain_number(due)
        return cls(topic, broker_name, -1 if number is None else number, unique_key)


TIMERS_OF_LEVEL = "timersOfLevel_"
"""Name of a level's figures in an answer to code 28, followed by the level."""


@dataclass(slots=True)
class LevelTimers:
    """Timers of one level; its Schedule actor writes them, any thread may read."""

    pending: int = 0
    """Timers that wait, as far as they have been counted since the start."""
    next_due_ms: int = 0
    """Earliest due time, or up to a second less; 0 without one. Later turns do not count."""
    stored_count: int = 0
    """Timers stored since the start, each once per stay in the level."""
    delivered_count: int = 0
    moved_count: int = 0
    """Timers stored again because they were not due at the end of their level."""
    recalled_count: int = 0
    late_max_ms: int = 0
    """Greatest lateness of a delivery since the start."""
    unread: int = 0
    """Messages of the level that the start has still to look at."""

    @property
    def is_used(self) -> bool:
        return bool(self.pending or self.stored_count or self.delivered_count)

    def encode(self) -> str:
        """Return the numbers in the order of their fields, as an answer to code 28 has them."""
        return ",".join(str(getattr(self, each.name)) for each in fields(self))

    @classmethod
    def decode(cls, text: str) -> "LevelTimers":
        """Return the figures of a text that `encode` or a later version has made."""
        numbers = (plain_number(each) for each in text.split(",")[: len(fields(cls))])
        return cls(*(number or 0 for number in numbers))
