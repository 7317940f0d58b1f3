"""Sends as their producers made them, and tables of what the decoder of sends has learnt."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from protocol.header_json import decode_header

HEADS_MAX = 16_384
"""More topics in turn than that are learnt again and again, at 10 to 20 µs a send."""
HEADS_BYTES_MAX = 4 << 20
"""Bytes of all heads; what is kept of each is some 600 bytes and three times its length."""
HEAD_BYTES_MAX = 1024
"""Longer heads, which no client writes with valid names, go through the general decoder."""


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
    values: bytes = b""
    """Its fields as they are signed. Empty: it was not learnt, and stands for one send only."""


@dataclass(slots=True, eq=False)
class SendSignature:
    """Signature of a send; the gate of the connection finds out whether it is right."""

    access_key: str
    signature: bytes
    timestamp: str
    """Time of the signature in ms, as the text that is signed; empty without one."""
    values: bytes
    """What is signed before the body."""
    header: bytes | Mapping[str, str] = b""
    """Where there is a timestamp: the ext fields, or the JSON header that they are in. Few accounts
    want them looked at, and to decode them takes 8 µs."""

    def fields(self) -> Mapping[str, str]:
        """Return all ext fields of a send that has a timestamp, under their own names."""
        header = self.header
        return (decode_header(header).fields or {}) if isinstance(header, bytes) else header


@dataclass(slots=True, eq=False)
class Send:
    """One send as its producer made it; times in ms."""

    shape: SendShape
    tail: SendTail
    opaque: int
    flag: int
    """The flag of the command."""
    queue_id: int
    """Negative: any."""
    sys_flag: int
    born_timestamp: int
    message_flag: int
    properties: bytes
    body: bytes
    signature: SendSignature | None = None


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Learnt(Generic[Key, Value]):
    """Values by the bytes that stand for them. Lives on one thread."""

    __slots__ = ("_bytes", "_limits", "_values", "get")

    def __init__(self, count_max: int, key_bytes_max: int, bytes_max: int) -> None:
        self._limits = count_max, key_bytes_max, bytes_max
        self._values: dict[Key, Value] = {}
        self._bytes = 0
        self.get = self._values.get
        """Return the value of a key; None: it is not known."""

    def keep(self, key: Key, key_bytes: int, value: Value) -> bool:
        """Keep a value; past a limit all are learnt again. Return False where the key is too long.

        One table serves the heads of a whole port, so that its limits hold for all peers together.
        """
        count_max, key_bytes_max, bytes_max = self._limits
        if key_bytes > key_bytes_max:
            return False
        if len(self._values) >= count_max or self._bytes + key_bytes > bytes_max:
            self._values.clear()
            self._bytes = 0
        self._values[key] = value
        self._bytes += key_bytes
        return True


class Heads(Learnt[bytes, SendShape]):
    """The shapes of the heads that the connections of one port have learnt.

    A client is one connection for all of its producers, and takes topics in turn: each head comes
    again, but not at once. Admission knows a shape again, whichever connection it comes by.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(HEADS_MAX, HEAD_BYTES_MAX, HEADS_BYTES_MAX)
