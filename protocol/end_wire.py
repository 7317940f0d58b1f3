"""The fast decoder of END_TRANSACTION: names are compared, numbers cut out.

The layout of a binary header: protocol/header_pattern.py, of a JSON one: protocol/header_json.py.
Java writes the fields in the order of a hash map, other clients in theirs; most always in the same.
So the names in their order, of a binary header with the lengths of the texts, are learnt as a
regular expression of which the groups are the values. What does not match is left to the general
decoder, and learnt from, a few times for each connection.

Measured, one core: 2.6 µs a header, binary or JSON, against 9 there.

Source: common/protocol/header/EndTransactionRequestHeader.java.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from re import DOTALL, Match, escape
from re import compile as compile_pattern
from struct import Struct
from typing import Any, ClassVar, Final, NamedTuple

from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.command import RESPONSE_FLAG, RemotingCommand
from protocol.errors import FrameError, RemoteError
from protocol.header_binary import decode_header
from protocol.header_json import decode_header as decode_json_header
from protocol.header_pattern import HEAD_AT, INT_DIGITS, LONG_DIGITS
from protocol.headers.transaction import EndTransactionHeader

End = tuple[RemotingCommand, EndTransactionHeader]
"""The command has no fields: they are in the header."""

_CODE_NUMBER: Final = int(RequestCode.END_TRANSACTION)
_CODE: Final = _CODE_NUMBER.to_bytes(2)
_HEAD: Final = Struct(
    ">b"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark length
    "i"  # length of the fields
)
assert len(_CODE) + _HEAD.size == HEAD_AT
_ROCKETMQ, _JSON = int(SerializeType.ROCKETMQ), int(SerializeType.JSON)
_JSON_HEAD: Final = b'{"code":%d,' % _CODE_NUMBER
_OFFSETS: Final = "tranStateTableOffset", "commitLogOffset"
_OUTCOME: Final = "commitOrRollback"
_FLAG: Final = "fromTransactionCheck"
_TEXTS: Final = "producerGroup", "msgId", "transactionId", "bname", "topic"
"""The topic is what clients of 5.x say; nobody asks for it, for the half message says it, too."""
_NAMES: Final = frozenset((*_OFFSETS, _OUTCOME, _FLAG, *_TEXTS))
_MANDATORY: Final = frozenset(("producerGroup", *_OFFSETS, _OUTCOME))
_TEXT_BYTES_MAX: Final = 255
_LEARNT_MAX: Final = 4
"""Forms that one connection is learnt by; to compile one takes some 0.5 ms."""

_OF_HEADER: Final = (
    "producerGroup",
    "tranStateTableOffset",
    "commitLogOffset",
    "commitOrRollback",
    "msgId",
    "fromTransactionCheck",
    "transactionId",
    "bname",
)
_JSON_TEXT: Final = rb"(?P<%%b>[ !#%%%%-\[\]-~]{1,%d})" % _TEXT_BYTES_MAX
"""Nothing that is escaped, and no dollar sign: it may begin a reference of fastjson's."""


class _Form(NamedTuple):
    match: Callable[..., Match[bytes] | None]
    groups: Sequence[int]
    """Of the binary header the lengths of both offsets, of the JSON one its flag and opaque; then
    the fields in the order of EndTransactionHeader. By number: 0.3 µs less than by name."""


class _JsonForm(NamedTuple):
    form: _Form
    language: int
    version: int


class EndDecoder:
    """Recognises the ends of transactions of one connection; keeps what it has learnt of them."""

    __slots__ = ("_forms", "_json_forms", "_tries")
    BINARY_HEADS: ClassVar = (_CODE,)
    """How the binary header begins."""
    JSON_HEADS: ClassVar = (_JSON_HEAD,)
    """How its JSON header begins."""

    def __init__(self) -> None:
        self._forms: list[_Form] = []
        self._json_forms: list[_JsonForm] = []
        self._tries = _LEARNT_MAX

    def binary(self, data: bytes, start: int, header_end: int) -> End | None:
        """Decodes the binary header at `start`; None: not of a form that is known."""
        fields_at = start + HEAD_AT
        if fields_at > header_end:
            return None
        language, version, opaque, flag, remark_bytes, fields_bytes = _HEAD.unpack_from(
            data, start + len(_CODE)
        )
        if remark_bytes or flag & RESPONSE_FLAG or fields_at + fields_bytes != header_end:
            return None
        for form in self._forms:
            found = form.match(data, fields_at, header_end)
            if found is not None:
                break
        else:
            self._learn(data[start:header_end])
            return None
        values = found.group(*form.groups)
        if values[0][0] != len(values[3]) or values[1][0] != len(values[4]):
            return None
        command = RemotingCommand(
            _CODE_NUMBER, None, None, opaque, flag, None, language, version, _ROCKETMQ
        )
        return command, _header_of(values)

    def json(self, data: bytes, start: int, header_end: int) -> End | None:
        """Decodes the JSON header at `start`; None: not of a form that is known."""
        for known in self._json_forms:
            found = known.form.match(data, start, header_end)
            if found is not None:
                break
        else:
            self._learn_json(data[start:header_end])
            return None
        values = found.group(*known.form.groups)
        flag, opaque = int(values[0]), int(values[1])
        if flag & RESPONSE_FLAG:
            return None
        command = RemotingCommand(
            _CODE_NUMBER, None, None, opaque, flag, None, known.language, known.version, _JSON
        )
        return command, _header_of(values)

    def _learn(self, header: bytes) -> None:
        """Expects the fields of this one, if the general decoder understands it."""
        command = self._understood(decode_header, header)
        if command is None or command.fields is None:
            return
        lengths = {name: len(text.encode()) for name, text in command.fields.items()}
        if max(lengths[name] for name in _TEXTS if name in lengths) <= _TEXT_BYTES_MAX:
            form = tuple((name, lengths[name] if name in _TEXTS else 0) for name in lengths)
            self._forms.append(_form_of(form))

    def _learn_json(self, header: bytes) -> None:
        """The same; its texts may have any length."""
        command = self._understood(decode_json_header, header)
        if command is not None and command.fields is not None and not command.is_response:
            language, version = command.language, command.version
            form = _json_form_of(tuple(command.fields), LanguageCode(language).name, version)
            if form.match(header):  # a Go client writes another order
                self._json_forms.append(_JsonForm(form, language, version))

    def _understood(
        self, decode: Callable[[bytes], RemotingCommand], header: bytes
    ) -> RemotingCommand | None:
        """What the general decoder makes of it, if it has the usual fields and was to be learnt."""
        if not self._tries:
            return None
        self._tries -= 1
        try:
            command = decode(header)
            fields = command.fields or {}
            EndTransactionHeader.decode(fields)
        except (FrameError, RemoteError):
            return None
        return command if _MANDATORY <= fields.keys() <= _NAMES else None


def _header_of(values: Sequence[Any]) -> EndTransactionHeader:
    """Of the groups of a form."""
    _, _, group, table_offset, log_offset, outcome, msg_id, from_check, transaction, broker = values
    return EndTransactionHeader(
        group.decode(),
        int(table_offset),
        int(log_offset),
        int(outcome),
        None if msg_id is None else msg_id.decode(),
        from_check == b"true",
        None if transaction is None else transaction.decode(),
        None if broker is None else broker.decode(),
    )


@lru_cache(maxsize=256)
def _form_of(fields: tuple[tuple[str, int], ...]) -> _Form:
    """The fields in this order, texts of these lengths; groups of those that lack are None."""
    text = b""
    for name, length in fields:
        group = name.encode()
        text += escape(len(group).to_bytes(2) + group + bytes(3))
        if name in _OFFSETS:
            text += rb"(?P<%b_>.)(?P<%b>[0-9]{1,%d})" % (group, group, LONG_DIGITS)
        elif name == _OUTCOME:
            text += rb"(?:\x01(?=[08])|\x02(?=12))(?P<%b>0|8|12)" % group
        elif name == _FLAG:
            text += rb"(?:\x04(?=t)|\x05(?=f))(?P<%b>true|false)" % group
        else:
            text += escape(bytes((length,))) + rb"(?P<%b>[ -~]{%d})" % (group, length)
    return _compiled(text, [name for name, _ in fields], [f"{name}_" for name in _OFFSETS])


@lru_cache(maxsize=256)
def _json_form_of(fields: tuple[str, ...], language: str, version: int) -> _Form:
    """The fields in this order, of a client that writes all else as Java does."""
    values = {
        **dict.fromkeys(_TEXTS, _JSON_TEXT),
        **dict.fromkeys(_OFFSETS, rb"(?P<%%b>[0-9]{1,%d})" % LONG_DIGITS),
        _OUTCOME: rb"(?P<%b>0|8|12)",
        _FLAG: rb"(?P<%b>true|false)",
    }
    pairs = [b'"%b":"%b"' % (name.encode(), values[name] % name.encode()) for name in fields]
    number = rb"[1-9][0-9]{0,%d}" % (INT_DIGITS - 1)
    text = escape(_JSON_HEAD + b'"extFields":{') + b",".join(pairs)
    text += rb'\},"flag":(?P<flag>0|%b),"language":"%b"' % (number, language.encode())
    text += rb',"opaque":(?P<opaque>0|-?%b),' % number
    text += b'"serializeTypeCurrentRPC":"JSON","version":%d' % version
    return _compiled(text + rb"\}", fields, ("flag", "opaque"))


def _compiled(text: bytes, names: Sequence[str], first: Sequence[str]) -> _Form:
    """The form with these fields; the groups of the others never take part."""
    for name in _NAMES.difference(names):
        text += rb"(?P<%b>(?!))?" % name.encode()
    pattern = compile_pattern(text + rb"\Z", DOTALL)
    return _Form(pattern.match, [pattern.groupindex[name] for name in (*first, *_OF_HEADER)])
