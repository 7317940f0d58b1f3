"""Header serialisation 0: one JSON object.

    code, extFields, flag, language, opaque, remark, serializeTypeCurrentRPC, version

in this order (fastjson sorts), nulls left out, language and serialisation by name, extFields a map
of string to string in the order it was filled. A Go client writes its struct's order instead:
code, language, version, opaque, flag, remark, extFields, empty ones too.

Source: remoting/protocol/RemotingCommand.java, RemotingSerializable.java; Go client
internal/remote/codec.go.
"""

from re import compile as compile_pattern

from protocol.codes import LanguageCode, ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.errors import FrameError
from protocol.fastjson import FastjsonError, dumps, quote
from protocol.fastjson_reader import read
from protocol.header_binary import FIELDS_MAX
from protocol.standard_json import dumps as standard_dumps
from protocol.standard_json import loads as standard_loads

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


def _quoted_name(name: str) -> str:
    """Return the name of a field in quotes, and keep it while there are few."""
    quoted = quote(name)
    if len(_QUOTED_NAMES) < QUOTED_NAMES_MAX and len(name) <= QUOTED_NAME_CHARS_MAX:
        _QUOTED_NAMES[name] = quoted
    return quoted


def encode_header(command: RemotingCommand) -> bytes:
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


def decode_header(data: bytes | memoryview) -> RemotingCommand:
    """Return the command of a header, without body.

    Numbers may be strings, ext fields of any type become text, unknown keys are skipped, as in
    RocketMQ. Raises FrameError where RocketMQ closes, for a wrong separator behind a value, over
    which fastjson sometimes fails, and for references and objects as keys, which no client of
    RocketMQ writes into a header.
    """
    value = _loads(bytes(data))
    if not isinstance(value, dict):
        raise _broken("the header is not an object")
    if len(value) > FIELDS_MAX:
        raise _broken(f"more than {FIELDS_MAX} names")
    if not value.keys() <= _KEYS:
        value = _smart(value)
    fields = value.get("extFields")
    if fields is not None:
        fields = _fields(fields, len(data))
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


def _loads(raw: bytes) -> object:
    if len(raw) > BRACKETS_MAX < raw.count(b"{") + raw.count(b"["):
        raise _broken("too many objects and lists")
    try:
        value: object = standard_loads(raw)
    except ValueError:
        value = _loads_other(raw)
    return value


def _loads_other(raw: bytes) -> object:
    """Return the value of a header in the dialect or with invalid UTF-8."""
    text = raw.decode("utf-8", "replace")
    try:
        if len(raw) > DIALECT_BYTES_MAX:
            return standard_loads(text.encode())
        return read(text, is_plain=True)
    except FastjsonError as error:
        raise _broken(str(error)) from None
    except ValueError:
        raise _broken("a long text that is no standard JSON") from None


def _smart(found: dict[object, object]) -> dict[object, object]:
    """Return `found` with the spelling of known keys: fastjson ignores case, `-` and `_`."""
    known = {str(key).lower().replace("-", "").replace("_", ""): key for key in found}
    return {name: found[known[name.lower()]] for name in _KEYS if name.lower() in known} | found


def _fields(found: object, header_bytes: int) -> dict[str, str]:
    if not isinstance(found, dict):
        raise _broken("extFields is not an object")
    if len(found) > FIELDS_MAX:
        raise _broken(f"more than {FIELDS_MAX} ext fields")
    if _REFERENCE in found:
        raise _broken("a reference")
    fields: dict[str, str] = {}
    for name, value in found.items():
        if isinstance(value, str):
            fields[name] = value
        elif value is not None:
            fields[name] = _text(value, header_bytes)
        if not isinstance(name, str):
            raise _broken("the name of an ext field is not a string")
    return fields


def _text(value: object, header_bytes: int) -> str:
    if header_bytes > DIALECT_BYTES_MAX and isinstance(value, dict | list):
        raise _broken("a long header with an object or a list as a text")
    try:
        text = dumps(value).decode("utf-8")
    except FastjsonError as error:
        raise _broken(str(error)) from None
    if f'"{_REFERENCE}":' in text:  # within a string its quotes are escaped
        raise _broken("a reference")
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
            raise _broken(f"{key} is not a number")
        number = int(value)  # type: ignore[call-overload]
    if not _INT_MIN <= number <= _INT_MAX:
        raise _broken(f"{key} does not fit an int")
    return number


def _language(value: object) -> int:
    if isinstance(value, str):
        return _LANGUAGES.get(value.upper(), LanguageCode.OTHER)
    if isinstance(value, int):
        if value not in _LANGUAGE_NAMES:
            raise _broken(f"there is no language {value}")
        return int(value)
    return LanguageCode.OTHER


def _broken(why: str) -> FrameError:
    return FrameError(ResponseCode.SYSTEM_ERROR, f"broken JSON header: {why}")
