"""Frames: the encoding of one command each, with both serialisations of its header.

All integers big-endian.

    offset  size  type   field
    0       4     i32    length           of all that follows
    4       1     u8     serialize type   0 JSON, 1 ROCKETMQ
    5       3     u24    header length
    8       h     bytes  header
    8+h     rest  bytes  body             none when nothing is left

Header serialisation 0 is one JSON object:

    code, extFields, flag, language, opaque, remark, serializeTypeCurrentRPC, version

in this order (fastjson sorts), nulls left out, language and serialisation by name, extFields a map
of string to string in the order it was filled. A Go client writes its struct's order instead:
code, language, version, opaque, flag, remark, extFields, empty ones too.

Header serialisation 1 ("ROCKETMQ") is the same in bytes:

    size  type   field
    2     i16    code
    1     i8     language
    2     i16    version
    4     i32    opaque
    4     i32    flag
    4     i32    remark length, then the remark, UTF-8; 0 = no remark
    4     i32    length of the entries; 0 = no ext fields

    entry: i16 name length | name | i32 value length | value     a length of 0 = null

Source: remoting/netty/NettyDecoder.java, remoting/protocol/RemotingCommand.java (decode, encode),
RemotingSerializable.java, RocketMQSerializable.java; Go client internal/remote/codec.go.
Input on which RocketMQ closes the connection raises FrameError.
"""

from dataclasses import dataclass
from re import compile as compile_pattern
from struct import Struct
from struct import error as StructError

from protocol.codes import VERSION, LanguageCode, ResponseCode, SerializeType
from protocol.errors import FrameError
from protocol.fastjson import dumps, quote
from protocol.fastjson_limits import FastjsonError
from protocol.standard_json import dumps as standard_dumps
from protocol.standard_json import loads as standard_loads

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2


@dataclass(slots=True)
class RemotingCommand:
    """One request, one-way request or response.

    `fields` are the extFields: None leaves the key out of a JSON header, {} writes it empty.
    The requester chooses `opaque`; the response repeats it.
    """

    code: int
    fields: dict[str, str] | None = None
    body: bytes | memoryview | None = None
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: int = LanguageCode.PYTHON
    version: int = VERSION
    serialize_type: int = SerializeType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def answer(
        self,
        code: int = 0,
        fields: dict[str, str] | None = None,
        *,
        remark: str | None = None,
        body: bytes | memoryview | None = None,
    ) -> "RemotingCommand":
        """Return a response to this request, in its serialisation."""
        return RemotingCommand(
            code,
            fields,
            body,
            opaque=self.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            serialize_type=self.serialize_type,
        )


FRAME_BYTES_MAX = 16_777_216
"""With its length field; com.rocketmq.remoting.frameMaxLength of RocketMQ."""

HEADER_BYTES_MAX = 1 << 20
"""Maximum header length. The longest of a client has 32 KiB of properties, six times that escaped.
"""

_MARK = Struct(">I")
_LENGTH_AND_MARK = Struct(">iI")
_HEADER_LENGTH_MASK = 0xFFFFFF
_SERIALIZE_TYPE_SHIFT = 24
BINARY_OPAQUE_AT = _LENGTH_AND_MARK.size + Struct(">hbh").size
"""Position of opaque in a binary frame, behind code, language and version."""

FIELDS_MAX = 4096
"""Maximum ext fields of one header, a hundred times what any request has."""

DIALECT_BYTES_MAX = 16 << 10
"""Maximum length of a header that is no standard JSON, or has objects or lists as ext fields.

No client of RocketMQ writes those, and they take 2 µs a value on the loop.
"""

BRACKETS_MAX = 40_000
"""Maximum brackets, those within texts included.

A megabyte of objects and lists takes 0.1 s; the properties of a message have fewer.
"""

QUOTED_NAMES_MAX, QUOTED_NAME_CHARS_MAX = 1024, 64
_QUOTED_NAMES: dict[str, str] = {}
"""Names of fields in quotes; peers may send any, so there is a limit."""

_REFERENCE = "$ref"

_LANGUAGE_NAMES = {int(code): code.name for code in LanguageCode}
_LANGUAGES = {code.name: int(code) for code in LanguageCode}
_SERIALIZE_NAMES = {int(kind): kind.name for kind in SerializeType}
_KEYS = frozenset(
    [
        "code",
        "extFields",
        "flag",
        "language",
        "opaque",
        "remark",
        "serializeTypeCurrentRPC",
        "version",
    ]
)
_NUMBER = compile_pattern(r"[+-]?[0-9]{1,19}")
_GO_ESCAPED = compile_pattern("[<>&\u2028\u2029]")
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1

_HEAD = Struct(
    ">h"  # code
    "b"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark length
)
_NAME_LENGTH = Struct(">h")
_LENGTH = Struct(">i")
assert _HEAD.size == 17


class SlowHeader(Exception):
    """A header takes milliseconds to read."""


def decode_frame(frame: bytes | memoryview, *, quick_only: bool = False) -> RemotingCommand:
    """Return the command of a whole frame without its length field.

    The body is copied. Raises FrameError where RocketMQ closes the connection, and with
    `quick_only` SlowHeader for the dialect.
    """
    total = len(frame)
    if total < _MARK.size:
        raise _broken(f"a frame length of {total}")
    (mark,) = _MARK.unpack_from(frame)
    header_bytes = mark & _HEADER_LENGTH_MASK
    kind = mark >> _SERIALIZE_TYPE_SHIFT
    body_start = _MARK.size + header_bytes
    if body_start > total:
        raise _broken(f"a header of {header_bytes} bytes in a frame of {total}")
    if header_bytes > HEADER_BYTES_MAX:
        raise _broken(f"a header of {header_bytes} bytes; at most {HEADER_BYTES_MAX}")
    body_bytes = total - body_start
    if kind == SerializeType.JSON:
        command = decode_json_header(frame[_MARK.size : body_start], quick_only)
    elif kind == SerializeType.ROCKETMQ:
        command, body_start = read_binary_header(frame, _MARK.size, header_bytes)
        if body_start + body_bytes > total:
            raise _broken("the header ends behind its length")
    else:
        raise _broken(f"unknown serialize type {kind}")
    if body_bytes:
        command.body = bytes(frame[body_start : body_start + body_bytes])
    return command


def encode(command: RemotingCommand) -> bytes:
    """Return the whole frame."""
    body = command.body or b""
    return b"".join((encode_head(command, len(body)), body))


def encode_head(command: RemotingCommand, body_bytes: int) -> bytes:
    """Return the frame up to its body, for bodies that are sent from their place."""
    if command.serialize_type == SerializeType.ROCKETMQ:
        header = encode_binary_header(command)
    else:
        header = encode_json_header(command)
    mark = command.serialize_type << _SERIALIZE_TYPE_SHIFT | len(header)
    return _LENGTH_AND_MARK.pack(_MARK.size + len(header) + body_bytes, mark) + header


def _broken(why: str) -> FrameError:
    return FrameError(ResponseCode.SYSTEM_ERROR, f"decode error: {why}")


# --- JSON headers


def _quoted_name(name: str) -> str:
    """Return the name of a field in quotes, and keep it while there are few."""
    quoted = quote(name)
    if len(_QUOTED_NAMES) < QUOTED_NAMES_MAX and len(name) <= QUOTED_NAME_CHARS_MAX:
        _QUOTED_NAMES[name] = quoted
    return quoted


def encode_json_header(command: RemotingCommand) -> bytes:
    """Return the header as its author writes it: Go clients in their own order, others as Java."""
    if command.language == LanguageCode.GO:
        return _encode_go(command)
    parts = [f'{{"code":{int(command.code)}']
    fields = command.fields
    if fields is not None:
        names = _QUOTED_NAMES
        pairs = ",".join(
            [
                f"{names.get(name) or _quoted_name(name)}:{quote(value)}"
                for name, value in fields.items()
            ]
        )
        parts.append(f',"extFields":{{{pairs}}}')
    language = _LANGUAGE_NAMES.get(command.language, "OTHER")
    parts.append(f',"flag":{command.flag},"language":"{language}","opaque":{command.opaque}')
    if command.remark is not None:
        parts.append(f',"remark":{quote(command.remark)}')
    kind = _SERIALIZE_NAMES[command.serialize_type]
    parts.append(f',"serializeTypeCurrentRPC":"{kind}","version":{command.version}}}')
    return "".join(parts).encode("utf-8", "replace")


def _encode_go(command: RemotingCommand) -> bytes:
    found = {
        "code": int(command.code),
        "language": "GO",
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark or "",
        "extFields": command.fields or {},
    }
    text = standard_dumps(found).decode("utf-8")
    return _GO_ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", text).encode("utf-8")


def decode_json_header(data: bytes | memoryview, quick_only: bool = False) -> RemotingCommand:
    """Return the command of a header, without body.

    Numbers may be strings, ext fields of any type become text, unknown keys are skipped, as in
    RocketMQ. Raises FrameError where RocketMQ closes, for a wrong separator behind a value, over
    which fastjson sometimes fails, and for references and objects as keys, which no client of
    RocketMQ writes into a header; with `quick_only` SlowHeader for the dialect.
    """
    value = _loads(bytes(data), quick_only)
    if not isinstance(value, dict):
        raise _bad_json("the header is not an object")
    if len(value) > FIELDS_MAX:
        raise _bad_json(f"more than {FIELDS_MAX} names")
    if not value.keys() <= _KEYS:
        value = _smart(value)
    fields = value.get("extFields")
    if fields is not None:
        fields = _json_fields(fields, len(data))
    remark = value.get("remark")
    if remark is not None and not isinstance(remark, str):
        remark = _text(remark, len(data))
    return RemotingCommand(
        _int(value, "code"),
        fields,
        None,
        _int(value, "opaque"),
        _int(value, "flag"),
        remark,
        _language(value.get("language", "JAVA")),
        _int(value, "version"),
        SerializeType.JSON,
    )


def _loads(raw: bytes, quick_only: bool) -> object:
    if len(raw) > BRACKETS_MAX < raw.count(b"{") + raw.count(b"["):
        raise _bad_json("too many objects and lists")
    try:
        value: object = standard_loads(raw)
    except ValueError:
        if quick_only:
            raise SlowHeader from None
        value = _loads_other(raw)
    return value


def _loads_other(raw: bytes) -> object:
    """Return the value of a header in the dialect or with invalid UTF-8."""
    text = raw.decode("utf-8", "replace")
    try:
        if len(raw) > DIALECT_BYTES_MAX:
            return standard_loads(text.encode())
        from protocol.fastjson_reader import read

        return read(text, is_plain=True)
    except FastjsonError as error:
        raise _bad_json(str(error)) from None
    except ValueError:
        raise _bad_json("a long text that is no standard JSON") from None


def _smart(found: dict[object, object]) -> dict[object, object]:
    """Return `found` with the spelling of known keys: fastjson ignores case, `-` and `_`."""
    known = {str(key).lower().replace("-", "").replace("_", ""): key for key in found}
    return {name: found[known[name.lower()]] for name in _KEYS if name.lower() in known} | found


def _json_fields(found: object, header_bytes: int) -> dict[str, str]:
    if not isinstance(found, dict):
        raise _bad_json("extFields is not an object")
    if len(found) > FIELDS_MAX:
        raise _bad_json(f"more than {FIELDS_MAX} ext fields")
    if _REFERENCE in found:
        raise _bad_json("a reference")
    fields: dict[str, str] = {}
    for name, value in found.items():
        if isinstance(value, str):
            fields[name] = value
        elif value is not None:
            fields[name] = _text(value, header_bytes)
        if not isinstance(name, str):
            raise _bad_json("the name of an ext field is not a string")
    return fields


def _text(value: object, header_bytes: int) -> str:
    if header_bytes > DIALECT_BYTES_MAX and isinstance(value, dict | list):
        raise _bad_json("a long header with an object or a list as a text")
    try:
        text = dumps(value).decode("utf-8")
    except FastjsonError as error:
        raise _bad_json(str(error)) from None
    if f'"{_REFERENCE}":' in text:  # within a string its quotes are escaped
        raise _bad_json("a reference")
    return text


def _int(found: dict[object, object], key: str) -> int:
    value = found.get(key)
    if type(value) is int:
        number = value
    elif value is None or value == "":
        return 0
    else:
        is_text = isinstance(value, str) and _NUMBER.fullmatch(value)
        if not is_text and not isinstance(value, bool | float):
            raise _bad_json(f"{key} is not a number")
        number = int(value)  # type: ignore[call-overload]
    if not _INT_MIN <= number <= _INT_MAX:
        raise _bad_json(f"{key} does not fit an int")
    return number


def _language(value: object) -> int:
    if isinstance(value, str):
        return _LANGUAGES.get(value.upper(), LanguageCode.OTHER)
    if isinstance(value, int):
        if value not in _LANGUAGE_NAMES:
            raise _bad_json(f"there is no language {value}")
        return int(value)
    return LanguageCode.OTHER


def _bad_json(why: str) -> FrameError:
    return FrameError(ResponseCode.SYSTEM_ERROR, f"broken JSON header: {why}")


# --- binary headers


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Return the header. Code and version are cut to 16 bits, as RocketMQ does."""
    remark = command.remark.encode("utf-8", "replace") if command.remark else b""
    entries = _entries(command.fields) if command.fields else b""
    head = _HEAD.pack(
        _signed_16(command.code),
        command.language,
        _signed_16(command.version),
        command.opaque,
        command.flag,
        len(remark),
    )
    return b"".join((head, remark, _LENGTH.pack(len(entries)), entries))


def _entries(fields: dict[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in fields.items():
        name_bytes = name.encode("utf-8", "replace")
        value_bytes = value.encode("utf-8", "replace")
        parts += (
            _NAME_LENGTH.pack(len(name_bytes)),
            name_bytes,
            _LENGTH.pack(len(value_bytes)),
            value_bytes,
        )
    return b"".join(parts)


def decode_binary_header(data: bytes | memoryview) -> RemotingCommand:
    """Return the command of a header, without body. Raises FrameError where RocketMQ closes."""
    return read_binary_header(data, 0, len(data))[0]


def read_binary_header(
    frame: bytes | memoryview, position: int, header_bytes: int
) -> tuple[RemotingCommand, int]:
    """Return the header at `position`, and its end.

    `header_bytes` is its length by the frame. RocketMQ reads on by the lengths inside and takes the
    body from wherever that ends, so a caller must do so, too. Raises FrameError for a header that
    ends early or has impossible lengths.
    """
    try:
        code, language, version, opaque, flag, remark_length = _HEAD.unpack_from(frame, position)
        remark, position = _string(frame, position + _HEAD.size, remark_length, header_bytes)
        (fields_bytes,) = _LENGTH.unpack_from(frame, position)
        position += _LENGTH.size
        fields = None
        if fields_bytes > 0:
            if fields_bytes > header_bytes:
                raise _bad_binary(
                    f"ext fields of {fields_bytes} bytes in a header of {header_bytes}"
                )
            entries = bytes(frame[position : position + fields_bytes])
            fields = read_fields(entries) if len(entries) == fields_bytes else None
            if fields is None:
                fields, position = _any_fields(frame, position, fields_bytes)
            else:
                position += fields_bytes
    except StructError:
        raise _bad_binary("it ends too early") from None
    command = RemotingCommand(
        code, fields, None, opaque, flag, remark, language, version, SerializeType.ROCKETMQ
    )
    return command, position


def read_fields(entries: bytes) -> dict[str, str] | None:
    """Return the fields of regular entries in ASCII, None for others.

    Takes a third of the time of `_any_fields`.
    """
    if not entries.isascii():  # lengths above 127, too
        return None
    text, end, position = entries.decode(), len(entries), 0
    fields: dict[str, str] = {}
    try:
        for _ in range(FIELDS_MAX):
            if position == end:
                break
            name_end = position + 2 + _NAME_LENGTH.unpack_from(entries, position)[0]
            value_end = name_end + 4 + _LENGTH.unpack_from(entries, name_end)[0]
            if not position + 2 < name_end < value_end - 4 or value_end > end:
                return None
            fields[text[position + 2 : name_end]] = text[name_end + 4 : value_end]
            position = value_end
    except StructError:
        return None
    return fields if position == end else None


def _any_fields(
    frame: bytes | memoryview, position: int, fields_bytes: int
) -> tuple[dict[str, str], int]:
    end = position + fields_bytes
    fields: dict[str, str] = {}
    count = 0
    while position < end:
        count += 1
        if count > FIELDS_MAX:
            raise _bad_binary(f"more than {FIELDS_MAX} ext fields")
        (length,) = _NAME_LENGTH.unpack_from(frame, position)
        name, position = _string(frame, position + _NAME_LENGTH.size, length, fields_bytes)
        (length,) = _LENGTH.unpack_from(frame, position)
        value, position = _string(frame, position + _LENGTH.size, length, fields_bytes)
        if name is not None and value is not None:
            fields[name] = value
    return fields, position


def _string(
    frame: bytes | memoryview, position: int, length: int, limit: int
) -> tuple[str | None, int]:
    if length == 0:
        return None, position
    end = position + length
    if length < 0 or length > limit or end > len(frame):
        raise _bad_binary(f"a string of {length} bytes")
    return str(frame[position:end], "utf-8", "replace"), end


def _signed_16(value: int) -> int:
    return (value + 0x8000 & 0xFFFF) - 0x8000


def _bad_binary(why: str) -> FrameError:
    return FrameError(ResponseCode.SYSTEM_ERROR, f"broken binary header: {why}")
