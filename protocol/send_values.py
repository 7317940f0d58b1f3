"""Sends as their producers made them, as the decoders give them to who stores them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class SendTail:
    """The fields of a send behind its properties."""

    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool


@dataclass(slots=True, eq=False)
class SendShape:
    """What the sends of one producer to one topic have in common."""

    code: int
    version: int
    serialize_type: int
    producer_group: str
    topic: str
    topic_bytes: bytes
    default_topic: str
    default_topic_queue_nums: int


class LearntShape(SendShape):
    """A shape that stands for the next send of its kind too, so that it may be a key."""

    __slots__ = ("values",)
    values: bytes
    """Of its fields, as they are signed."""


@dataclass(slots=True, eq=False)
class Send:
    """One send as its producer made it; times in ms."""

    shape: SendShape
    tail: SendTail
    opaque: int
    flag: int
    """Of the command."""
    queue_id: int
    """Negative: any."""
    sys_flag: int
    born_timestamp: int
    message_flag: int
    properties: bytes
    body: bytes


class SignedSend(Send):
    """One that somebody has signed, or says so."""

    __slots__ = ("access_key", "header", "signature", "timestamp", "values")
    access_key: str
    signature: bytes
    timestamp: str
    """As it is signed, in ms; empty without one."""
    header: bytes | Mapping[str, str]
    """Where there is a timestamp: its ext fields, or the JSON header that they are in. Few accounts
    want them looked at, and to decode them takes 8 µs."""
    values: bytes
    """What is signed before the body."""


new_object = object.__new__
"""To be filled in by hand: docs/decisions/0021-a-send-is-an-object-filled-in-by-name.md."""
