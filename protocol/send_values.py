"""Sends as their producers made them, headers that the decoder has learnt, and answers to sends.

The fields of a successful answer are always the same five; only the numbers change. The general
encoder makes the frame for given lengths of its numbers once. Holes take the place of the numbers,
and one bytes format fills them: 0.4 µs an answer, where the encoder takes 2.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import Generic, TypeVar

from protocol.codes import LanguageCode, SerializeType
from protocol.frame import (
    BINARY_OPAQUE_AT,
    RESPONSE_FLAG,
    RemotingCommand,
    decode_json_header,
    encode,
)

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


_ROCKETMQ, _JSON = int(SerializeType.ROCKETMQ), int(SerializeType.JSON)
_TEMPLATES_MAX = 4096
_OFFSET_CHARS = 16
"""Hexadecimal digits of a physical offset in a message id."""

_PLACES = b"msgId", b"queueOffset"
_JSON_PLACES = b'"opaque":', b'"msgId":"', b'"queueOffset":"'
_Form = tuple[int, int, int, int]
"""Queue id; lengths of queue offset, of opaque (0: the header is binary) and of message ids.

A length of 0 for message ids means a single id, made of a physical offset.
"""


class SendReplies:
    """Encoder of the success frames of one broker. Not shared between threads."""

    def __init__(
        self, store_host: bytes, region_id: str, *, trace_on: bool, language: LanguageCode
    ) -> None:
        self.id_prefix = store_host.hex().upper()
        """The store host's part of every offset message id."""
        self._store_host, self._id = store_host, Struct(f">{len(store_host)}sq")
        self.constant_fields = {
            "MSG_REGION": region_id,
            "TRACE_ON": "true" if trace_on else "false",
        }
        """Fields of every answer to a send, errors included."""
        self._language = language
        self._templates: dict[_Form, bytes] = {}

    def message_ids(self, physical_offsets: Sequence[int]) -> str:
        """Return the offset message ids of the records at these offsets, joined as in an answer."""
        ids = b"".join(map(self._id.pack, repeat(self._store_host), physical_offsets))
        return ids.hex(",", self._id.size).upper()

    def success(
        self, serialize_type: int, opaque: int, physical_offset: int, queue_id: int, offset: int
    ) -> bytes:
        """Return the whole frame that answers a send with its place."""
        offset_text = b"%d" % offset
        if serialize_type == _ROCKETMQ:
            form = queue_id, len(offset_text), 0, 0
            template = self._templates.get(form) or self._make(form)
            return template % (opaque.to_bytes(4, signed=True), physical_offset, offset_text)
        opaque_text = b"%d" % opaque
        form = queue_id, len(offset_text), len(opaque_text), 0
        template = self._templates.get(form) or self._make(form)
        return template % (physical_offset, offset_text, opaque_text)

    def batch_success(self, opaque: int, message_ids: str, queue_id: int, offset: int) -> bytes:
        """Return the binary frame for a batch; `offset` is its first queue offset."""
        offset_text = b"%d" % offset
        form = queue_id, len(offset_text), 0, len(message_ids)
        template = self._templates.get(form) or self._make(form)
        return template % (opaque.to_bytes(4, signed=True), message_ids.encode(), offset_text)

    def _make(self, form: _Form) -> bytes:
        """Return the frame of this form, with holes for its numbers."""
        queue_id, offset_chars, opaque_chars, ids_chars = form
        texts = {
            "msgId": "F" * ids_chars or self.id_prefix + "F" * _OFFSET_CHARS,
            "queueId": str(queue_id),
            "queueOffset": "9" * offset_chars,
            **self.constant_fields,
        }
        order = ("msgId", "queueId", "queueOffset", "TRACE_ON", "MSG_REGION")
        if opaque_chars:
            order = ("queueId", "TRACE_ON", "MSG_REGION", "msgId", "queueOffset")
        fields = {name: texts[name] for name in order}
        answer = RemotingCommand(0, fields, flag=RESPONSE_FLAG, language=self._language)
        answer.serialize_type = _JSON if opaque_chars else _ROCKETMQ
        answer.opaque = int("9" * opaque_chars or "0")
        frame = encode(answer)
        if opaque_chars:  # the region, which may be any text, is in front of these
            places = [frame.rindex(name) + len(name) for name in _JSON_PLACES]
        else:
            places = [BINARY_OPAQUE_AT, *(frame.index(name) + len(name) + 4 for name in _PLACES)]
        opaque_at, id_at, offset_at = places
        id_hole = id_at, ids_chars, b"%b"
        if not ids_chars:
            id_hole = id_at + len(self.id_prefix), _OFFSET_CHARS, b"%016X"
        holes = (opaque_at, opaque_chars or 4, b"%b"), id_hole, (offset_at, offset_chars, b"%b")
        template, position = b"", 0
        for at, size, hole in sorted(holes):
            template += frame[position:at].replace(b"%", b"%%") + hole
            position = at + size
        template += frame[position:].replace(b"%", b"%%")
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        self._templates[form] = template
        return template
