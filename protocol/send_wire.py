"""Sends on the wire: a decoder that recognises a producer's headers, and the answers.

The requests of a producer differ in a handful of fields. The bytes before and behind these, the
head and the tail, are decoded once and looked up afterwards. One regular expression parses the part
between. A header of any other form is left to the general decoder.

    binary header of a send (codes 310 and 320), from its first byte
    0    5   code, language, version        a part of the head
    5    4   opaque
    9    4   flag
    13   4   remark length                  0, else the general decoder
    17   4   length of the fields
    21   n   a b c d                        the rest of the head
             e f g h, length of i           one regular expression
             i                              the properties
             j k l m n                      the tail
             a … n  Signature  AccessKey    of signed sends: all fields again, and two more

    field    a length of 2 bytes, name, a length of 4 bytes, value; numbers are text, too

    JSON header: the head from `{"code":310` to `"e":"`, the tail from `,"j":` to the end of the
    fields. The tail of a signed send:

        ,"j":"0","k":"false","m":"false","n":"broker-a"[,"SecurityToken":"…"]
        ,"Signature":"dhWKtm6bxA/TgQrApw0oNdH+3X0="
        ,"AccessKey":"…"[,"Timestamp":"…"][,"SecurityToken":"…"][,"Seal":"…"]

The decoder assembles the signed content, since it has the texts of the fields. The connection's
authorizer verifies the signature.

The fields of a successful answer are always the same five; only the numbers change. The general
encoder makes the frame for given lengths of its numbers once. Holes take the place of the numbers,
and one bytes format fills them: 0.4 µs an answer, where the encoder takes 2.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from re import DOTALL, escape
from re import compile as compile_pattern
from struct import Struct
from struct import error as StructError
from typing import ClassVar, NamedTuple

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.frame import BINARY_OPAQUE_AT, RESPONSE_FLAG, RemotingCommand, encode, read_fields
from protocol.send_values import (
    HEAD_BYTES_MAX,
    Heads,
    Learnt,
    Send,
    SendShape,
    SendSignature,
    SendTail,
    send_of,
)
from protocol.signature import (
    ACCESS_KEY,
    CREDENTIALS,
    SEAL,
    SIGNATURE,
    TIMESTAMP,
    signed_values,
)
from protocol.standard_json import loads as json_loads
from protocol.topic_names import RETRY_TOPIC_PREFIX

_TAILS_MAX = 64
"""Maximum learnt tails, and signers, of one connection."""
_TAIL_BYTES_MAX = 4096
"""Maximum length of a learnt tail; 64 of a MiB each would be too much for one peer."""

INT_DIGITS = 9
LONG_DIGITS = 18
"""Maximum digits of a number that fits in any case; longer ones go to the general decoder."""
_OPAQUE_LIMIT = 1 << 31

SEND_CODES = frozenset(
    (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
)
"""Request codes that `send_of` accepts."""
_USUAL = (int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE))
_ROCKETMQ, _JSON = int(SerializeType.ROCKETMQ), int(SerializeType.JSON)
_Fields = Callable[[bytes], dict[str, str] | None]


def _number(name: bytes, digits_max: int) -> bytes:
    """Return the expression of a binary number field, with its value as a group.

    The length must be that of the value: a zero byte, of the next field, follows it.
    """
    lengths = [
        escape(bytes((size,))) + rb"(?=[^\x00]{%d}\x00)" % size for size in range(1, digits_max + 1)
    ]
    start = escape(b"\x00\x01%b\x00\x00\x00" % name)
    return rb"%b(?:%b)(0|-?[1-9][0-9]*)" % (start, b"|".join(lengths))


_PREFIX_BYTES = 5
_FIXED = Struct(
    ">i"  # opaque
    "i"  # flag
    "i"  # remark length
    "i"  # length of the fields
)
_FIELDS_AT = _PREFIX_BYTES + _FIXED.size
assert _FIELDS_AT == 21
BINARY_E = b"\x00\x01e\x00\x00\x00"
_BINARY_REST = compile_pattern(
    _number(b"e", INT_DIGITS)
    + _number(b"f", INT_DIGITS)
    + _number(b"g", LONG_DIGITS)
    + _number(b"h", INT_DIGITS)
    + rb"\x00\x01i(....)",
    DOTALL,
)
_USUAL_E, _USUAL_F, _USUAL_H = (
    {entry % number: number for number in range(10)}
    for entry in (
        b"\x00\x01e\x00\x00\x00\x01%d",
        b"\x00\x01f\x00\x00\x00\x01%d\x00\x01g\x00\x00\x00\x0d",
        b"\x00\x01h\x00\x00\x00\x01%d\x00\x01i",
    )
)
"""Fields e, f and h with one digit, with the names of the next fields."""
_BORN_DIGITS = 13


@lru_cache(maxsize=HEAD_BYTES_MAX)
def _usual_layout(head_bytes: int) -> Struct:
    """Return the byte layout of an ordinary header up to its properties.

    `head_bytes` is the length of fields a to d.
    """
    return Struct(f">{_PREFIX_BYTES}s iiii {head_bytes}s 8s 15s {_BORN_DIGITS}s 11s I")


_JSON_E = b'","e":"'
_JSON_REST = compile_pattern(
    rb'(-?[0-9]{1,9})","f":"(-?[0-9]{1,9})","g":"(-?[0-9]{1,18})","h":"(-?[0-9]{1,9})",'
    rb'"i":"([^"\\\x00-\x1f]*(?:\\u000[12][^"\\\x00-\x1f]*)*)"(,"j"[^{}]*)\},'
    rb'"flag":(0|[1-9][0-9]{0,8}),"language":"[A-Z]+","opaque":(0|-?[1-9][0-9]{0,9}),'
    rb'"serializeTypeCurrentRPC":"JSON","version":(0|[1-9][0-9]{0,8})\}'
)
_SIGNATURE_CHARS = 28
_BINARY_SIGNATURE = b"\x00\x09Signature\x00\x00\x00\x1c"
assert _BINARY_SIGNATURE[-1] == _SIGNATURE_CHARS
_JSON_SIGNATURE = b',"Signature":"'


_NO_SHAPE = SendShape(0, 0, 0, "", "", b"", "", 0)


class SendDecoder:
    """Decoder of the sends of one connection, with the headers it has learnt."""

    __slots__ = (
        "_born",
        "_born_text",
        "_head",
        "_heads",
        "_layout",
        "_prefix",
        "_shape",
        "_signers",
        "_tails",
    )
    CODES: ClassVar = SEND_CODES
    BINARY_HEADS: ClassVar = tuple(code.to_bytes(2) for code in _USUAL)
    """First bytes of the binary header of a usual send."""
    JSON_HEADS: ClassVar = tuple(b'{"code":%d,' % code for code in _USUAL)
    """First bytes of its JSON header."""

    def __init__(self, heads: Heads | None = None) -> None:
        """Create a decoder. `heads` are shared with other connections."""
        self._heads = Heads() if heads is None else heads
        self._prefix = self._head = b""
        self._layout = _usual_layout(0)
        self._shape = _NO_SHAPE
        """Shape and layout of the last send."""
        self._born_text, self._born = b"", 0
        limits = _TAILS_MAX, _TAIL_BYTES_MAX, _TAILS_MAX * _TAIL_BYTES_MAX
        self._tails: Learnt[bytes, SendTail] = Learnt(*limits)
        self._signers: Learnt[tuple[bytes, bytes], _Signer] = Learnt(*limits)

    def binary(self, data: bytes, start: int, header_end: int, end: int) -> Send | None:
        """Decode the binary header at `start`; return None for an unusual one.

        `data[header_end:end]` is the body.
        """
        try:
            prefix, opaque, flag, remark_bytes, fields_bytes, head, e, f, g, h, length = (
                self._layout.unpack_from(data, start)
            )
            queue_id, sys_flag, message_flag = _USUAL_E[e], _USUAL_F[f], _USUAL_H[h]
            is_usual = head == self._head and prefix == self._prefix
        except (KeyError, StructError):
            is_usual = False
        fields_at = start + _FIELDS_AT
        if is_usual and (g == self._born_text or self._learn_born(g)):
            born, properties_at = self._born, start + self._layout.size
        else:
            e_at = data.find(BINARY_E, fields_at, header_end)
            prefix, head = data[start : start + _PREFIX_BYTES], data[fields_at:e_at]
            if e_at > 0 and (head != self._head or prefix != self._prefix):
                is_known = self._expect(prefix, head)
                return self.binary(data, start, header_end, end) if is_known else None
            if e_at < 0 or (found := _BINARY_REST.match(data, e_at, header_end)) is None:
                return None
            queue_id, sys_flag, born, message_flag = map(int, found.groups()[:4])
            length, properties_at = int.from_bytes(found[5]), found.end()
            fixed = _FIXED.unpack_from(data, start + _PREFIX_BYTES)
            opaque, flag, remark_bytes, fields_bytes = fixed
        properties_end = properties_at + length
        properties = data[properties_at:properties_end]
        if (
            remark_bytes
            or flag & RESPONSE_FLAG
            or fields_at + fields_bytes != header_end
            or properties_end > header_end
            or not (properties.isascii() or _is_utf8(properties))
        ):
            return None
        tail, signature = self._tails.get(data[properties_end:header_end]), None
        if tail is None:
            numbers = b"%d%d%d%d" % (queue_id, sys_flag, born, message_flag)
            ending = self._binary_ending(
                data, fields_at, properties, properties_end, header_end, numbers
            )
            if ending is None:
                return None
            tail, signature = ending
        return Send(
            self._shape,
            tail,
            opaque,
            flag,
            queue_id,
            sys_flag,
            born,
            message_flag,
            properties,
            data[header_end:end],
            signature,
        )

    def _binary_ending(
        self, data: bytes, fields_at: int, properties: bytes, at: int, end: int, numbers: bytes
    ) -> "_Ending | None":
        """Return the tail, from `at` to `end`, and the signature.

        The encoder of the Java client writes the fields of a signed send twice.
        """
        signature_at = data.rfind(_BINARY_SIGNATURE, at, end)
        if signature_at < 0:
            return self._learn_tail(data[at:end], read_fields)
        again_at = fields_at + (signature_at - fields_at) // 2
        if data[fields_at:again_at] != data[again_at:signature_at]:
            return None
        text_at = signature_at + len(_BINARY_SIGNATURE)
        rest_at = text_at + _SIGNATURE_CHARS
        own, text, rest = data[at:again_at], data[text_at:rest_at], data[rest_at:end]
        ending = self._signed(own, text, rest, read_fields, self._shape.values, numbers, properties)
        return None if ending is None or ending[1].timestamp else ending

    def _learn_born(self, text: bytes) -> bool:
        if not text.isdigit() or text.startswith(b"0"):  # the signature covers the original text
            return False
        self._born_text, self._born = text, int(text)
        return True

    def _expect(self, prefix: bytes, head: bytes) -> bool:
        """Expect the next headers to begin with this head; return whether it can be learnt."""
        shape = self._heads.get(prefix + head)
        if shape is None:
            code, version = int.from_bytes(prefix[:2]), int.from_bytes(prefix[3:], signed=True)
            shape = self._learn(prefix + head, code, version, _ROCKETMQ, read_fields(head))
        if shape is None:
            return False
        self._prefix, self._head, self._shape = prefix, head, shape
        self._layout = _usual_layout(len(head))
        return True

    def json(self, data: bytes, start: int, header_end: int, end: int) -> Send | None:
        """Decode the JSON header at `start`; return None for an unusual one."""
        e_at = data.find(_JSON_E, start, header_end)
        rest_at = e_at + len(_JSON_E)
        found = _JSON_REST.fullmatch(data, rest_at, header_end)
        if found is None:
            return None
        e, f, g, h, properties, tail_bytes, flag_text, opaque_text, version = found.groups()
        head = data[start:rest_at] + version
        shape = self._heads.get(head)
        if shape is None:
            shape = self._learn_json(head, data[start:e_at], version)
        if b"\\" in properties:
            properties = properties.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")
        flag, opaque = int(flag_text), int(opaque_text)
        if (
            shape is None
            or flag & RESPONSE_FLAG
            or not -_OPAQUE_LIMIT <= opaque < _OPAQUE_LIMIT
            or not (properties.isascii() or _is_utf8(properties))
        ):
            return None
        tail, signature = self._tails.get(tail_bytes), None
        if tail is None:
            ending = self._json_ending(tail_bytes, shape, e + f + g + h, properties)
            if ending is None:
                return None
            tail, signature = ending
            if signature is not None and signature.timestamp:
                signature.header = data[start:header_end]
        return Send(
            shape,
            tail,
            opaque,
            flag,
            int(e),
            int(f),
            int(g),
            int(h),
            properties,
            data[header_end:end],
            signature,
        )

    def _json_ending(
        self, text: bytes, shape: SendShape, numbers: bytes, properties: bytes
    ) -> "_Ending | None":
        own, mark, behind = text.partition(_JSON_SIGNATURE)
        if not mark:
            return self._learn_tail(text, _json_fields)
        signature, rest = behind[:_SIGNATURE_CHARS], behind[_SIGNATURE_CHARS:]
        if b'"' in signature or b"\\" in signature or not rest.startswith(b'",'):
            return None
        return self._signed(own, signature, rest, _json_fields, shape.values, numbers, properties)

    def general(self, command: RemotingCommand) -> Send:
        """Return the send of any command of CODES. Raises RemoteError."""
        return send_of(command)

    def _learn_json(self, head: bytes, begin: bytes, version: bytes) -> SendShape | None:
        try:
            found = json_loads(begin + b'"}}')
        except ValueError:
            return None
        if found.keys() != {"code", "extFields"} or not isinstance(found["extFields"], dict):
            return None
        return self._learn(head, found["code"], int(version), _JSON, found["extFields"])

    def _learn(
        self, head: bytes, code: int, version: int, kind: int, fields: dict[str, str] | None
    ) -> SendShape | None:
        """Learn a shape; return None for odd fields, codes and retry topics."""
        if fields is None or [*fields] != ["a", "b", "c", "d"] or not _all_text(fields):
            return None
        group, topic, default_topic, queue_nums = fields.values()
        if code not in _USUAL or topic.startswith(RETRY_TOPIC_PREFIX) or not _is_int(queue_nums):
            return None
        values = "".join(fields.values()).encode("utf-8", "replace")
        names = group, topic, topic.encode(), default_topic, int(queue_nums)
        shape = SendShape(code, version, kind, *names, values)
        return shape if self._heads.keep(head, len(head), shape) else None

    def _learn_tail(self, text: bytes, read: _Fields) -> "_Ending | None":
        tail = _tail_of(read(text))
        if tail is None:
            return None
        self._tails.keep(text, len(text), tail)
        return tail, None

    def _signed(
        self, own: bytes, signature: bytes, rest: bytes, read: _Fields, *content: bytes
    ) -> tuple[SendTail, SendSignature] | None:
        """Return the tail and the signature of the fields.

        `content` has the values of the fields a to i.
        """
        signer = self._signers.get((own, rest)) or self._learn_signer(own, rest, read)
        if signer is None:
            return None
        tail, access_key, timestamp, before, behind = signer
        values = b"".join((before, *content, behind))
        return tail, SendSignature(access_key, signature, timestamp, values)

    def _learn_signer(self, own: bytes, rest: bytes, read: _Fields) -> "_Signer | None":
        own_fields, rest_fields = read(own), read(rest)
        if not own_fields or not rest_fields:
            return None
        fields = {**own_fields, **rest_fields}
        shown = {name: fields.pop(name) for name in CREDENTIALS if name in fields}
        tail, timestamp = _tail_of(fields), shown.get(TIMESTAMP, "")
        if (
            tail is None
            or not fields
            or ACCESS_KEY not in shown
            or SIGNATURE in shown
            or (SEAL in shown and not timestamp)
        ):
            return None
        values = signed_values(shown), signed_values(fields)
        signer = _Signer(tail, shown[ACCESS_KEY], timestamp, *values)
        if not timestamp:  # with one it differs each time
            self._signers.keep((own, rest), len(own) + len(rest), signer)
        return signer


class _Signer(NamedTuple):
    """Common values of the signed sends with one tail and one account."""

    tail: SendTail
    access_key: str
    timestamp: str
    before: bytes
    """Values of the credentials, whose names sort before those of all other fields."""
    behind: bytes
    """Values of the tail."""


_Ending = tuple[SendTail, SendSignature | None]


def _tail_of(fields: dict[str, str] | None) -> SendTail | None:
    """Return the tail with these fields; None for unusual ones."""
    if fields is None or not fields.keys() <= {*"jklmn"}:
        return None
    if not (_is_int(fields.get("j", "0")) and _is_int(fields.get("l", "0"))):
        return None
    limit = int(fields["l"]) if "l" in fields else None
    unit_mode, batch = (fields.get(name, "").lower() == "true" for name in "km")
    return SendTail(int(fields.get("j", "0")), unit_mode, limit, batch)


def _json_fields(text: bytes) -> dict[str, str] | None:
    """Return the fields in a part of a JSON header that begins behind a value or its text."""
    try:
        fields = json_loads(b"{" + text.lstrip(b'"').removeprefix(b",") + b"}")
    except ValueError:
        return None
    return fields if _all_text(fields) else None


def _all_text(fields: dict[str, str]) -> bool:
    return all(isinstance(value, str) for value in fields.values())


def _is_int(text: str) -> bool:
    """Return whether Java and Python read this text as the same small number."""
    return text.isascii() and text.isdigit() and len(text) <= INT_DIGITS


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


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
