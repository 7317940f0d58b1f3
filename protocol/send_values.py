"""Sends as their producers made them, and headers that the decoder has learnt."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from protocol.frame import RemotingCommand, decode_json_header
from protocol.headers.send import SendMessageHeader
from protocol.signature import ACCESS_KEY, SIGNATURE, TIMESTAMP, signed_values

HEADS_MAX = 16_384
"""Maximum heads. With more topics in turn heads are learnt again, at 10 to 20 µs a send."""
HEADS_BYTES_MAX = 4 << 20
"""Maximum bytes of all heads. A head takes 600 bytes and three times its length."""
HEAD_BYTES_MAX = 1024
"""Longer heads, which no client writes with valid names, go through the general decoder."""


@dataclass(slots=True, eq=False)
class SendTail:
    """Fields of a send behind its properties."""

    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool


@dataclass(slots=True, eq=False)
class SendShape:
    """Common values of the sends of one producer to one topic."""

    code: int
    version: int
    serialize_type: int
    producer_group: str
    topic: str
    topic_bytes: bytes
    default_topic: str
    default_topic_queue_nums: int
    values: bytes = b""
    """Fields as they are signed. Empty if the shape is not learnt and describes one send only.
    """


@dataclass(slots=True, eq=False)
class SendSignature:
    """Signature of a send; the connection's authorizer verifies it."""

    access_key: str
    signature: bytes
    timestamp: str
    """Time of the signature in ms, as the signed text; empty without one."""
    values: bytes
    """Signed bytes before the body."""
    header: bytes | Mapping[str, str] = b""
    """Ext fields, or the JSON header that contains them, of a send with a timestamp.

    They are decoded on demand, since that takes 8 µs and few accounts need them.
    """

    def fields(self) -> Mapping[str, str]:
        """Return all ext fields of a send with a timestamp, under their own names."""
        header = self.header
        return (decode_json_header(header).fields or {}) if isinstance(header, bytes) else header


@dataclass(slots=True, eq=False)
class Send:
    """One send as its producer made it; times in ms."""

    shape: SendShape
    tail: SendTail
    opaque: int
    flag: int
    """The flag of the command."""
    queue_id: int
    """Queue id; a negative one means any queue."""
    sys_flag: int
    born_timestamp: int
    message_flag: int
    properties: bytes
    body: bytes
    signature: SendSignature | None = None


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Learnt(Generic[Key, Value]):
    """Bounded table of values by their encoded bytes. Lives on one thread."""

    __slots__ = ("_bytes", "_limits", "_values", "get")

    def __init__(self, count_max: int, key_bytes_max: int, bytes_max: int) -> None:
        self._limits = count_max, key_bytes_max, bytes_max
        self._values: dict[Key, Value] = {}
        self._bytes = 0
        self.get = self._values.get
        """Return the value of a key, or None."""

    def keep(self, key: Key, key_bytes: int, value: Value) -> bool:
        """Store a value; return whether the key is short enough.

        Past a limit the table is cleared. One table serves all heads of a port, so that limits hold
        for all peers together.
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
    """Shapes of heads that the connections of one port have learnt.

    A client uses one connection for all producers and takes topics in turn, so heads repeat at a
    distance. Admission recognises a shape whichever connection it comes by.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(HEADS_MAX, HEAD_BYTES_MAX, HEADS_BYTES_MAX)


def send_of(command: RemotingCommand) -> Send:
    """Return the send of a decoded command (codes 10, 310, 320).

    Raises RemoteError for a mandatory field that is missing or no number.
    """
    header = SendMessageHeader.of_command(command)
    shape = SendShape(
        command.code,
        command.version,
        command.serialize_type,
        header.producer_group,
        header.topic,
        header.topic.encode("utf-8", "replace"),
        header.default_topic,
        header.default_topic_queue_nums,
    )
    tail = SendTail(
        header.reconsume_times or 0, header.unit_mode, header.max_reconsume_times, header.batch
    )
    return Send(
        shape,
        tail,
        command.opaque,
        command.flag,
        header.queue_id,
        header.sys_flag,
        header.born_timestamp,
        header.flag,
        (header.properties or "").encode("utf-8", "surrogatepass"),
        bytes(command.body) if command.body is not None else b"",
        _signature_of(command.fields or {}),
    )


def _signature_of(fields: Mapping[str, str]) -> SendSignature | None:
    """Return the signature in these ext fields; None without an account."""
    if ACCESS_KEY not in fields:
        return None
    signature = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    timestamp = fields.get(TIMESTAMP, "")
    values = signed_values(fields)
    return SendSignature(
        fields[ACCESS_KEY], signature, timestamp, values, fields if timestamp else b""
    )
