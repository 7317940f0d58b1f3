"""The conversion between extFields and typed values, by annotation.

A header is a dataclass whose fields name their wire key. Without a default a field is mandatory:
4.9.7 fails where it uses a missing one, and answers SYSTEM_ERROR with the exception's text. An
invalid optional number stays at its default, except in the headers RocketMQ decodes by hand
(`by_hand`), where it is an error too.

Source: remoting/protocol/RemotingCommand.java (decodeCommandCustomHeader), FastCodesHeader.java.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from types import NoneType, UnionType
from typing import Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.java_numbers import NumberFormatError, parse_int, parse_long
from protocol.json_body import Value, value

_INT_BITS, _LONG_BITS = 32, 64


def wire(name: str, *, default: Any = MISSING, short: str | None = None) -> Any:
    """Return a field with its key in extFields; `short` is its key in the v2 send header."""
    return _wire(name, default, short, _INT_BITS)


def wire_long(name: str, *, default: Any = MISSING, short: str | None = None) -> Any:
    """Return a field with a 64-bit integer; `wire` is for 32 bits and for other types."""
    return _wire(name, default, short, _LONG_BITS)


def _wire(name: str, default: Any, short: str | None, bits: int) -> Any:
    metadata = {"name": name, "short": short or name, "bits": bits}
    return field(default=default, metadata=metadata)


class _Field(NamedTuple):
    attribute: str
    name: str
    convert: Callable[[str], Any] | None
    """Converter of the text; None keeps the text."""
    mandatory: bool


@value
class Header(Value):
    """Base of typed headers."""

    by_hand: ClassVar[bool] = False

    @classmethod
    def decode(cls, found: Mapping[str, str] | None) -> Self:
        """Return the header of these extFields; unknown keys are skipped. Raises RemoteError."""
        return cls._decode(found or {}, short=False)

    def encode(self) -> dict[str, str]:
        """Return the extFields of this header, in field order, without None."""
        return self._encode(short=False)

    @classmethod
    def _decode(cls, found: Mapping[str, str], *, short: bool) -> Self:
        values: dict[str, Any] = {}
        strict = cls.by_hand or short
        for attribute, name, convert, mandatory in _plan(cls, short):
            text = found.get(name)
            if text is None:
                if mandatory:
                    raise _missing(name, strict)
                continue
            try:
                values[attribute] = text if convert is None else convert(text)
            except NumberFormatError as error:
                if strict:
                    raise RemoteError(ResponseCode.SYSTEM_ERROR, str(error)) from None
                if mandatory:
                    raise _missing(name, strict) from None
        header = cls(**values)
        header.check()
        return header

    def check(self) -> None:
        """Validate as RocketMQ does while decoding. Raises RemoteError."""

    def _encode(self, *, short: bool) -> dict[str, str]:
        encoded: dict[str, str] = {}
        for attribute, name, _, _ in _plan(type(self), short):
            value = getattr(self, attribute)
            if value is None:
                continue
            if isinstance(value, bool):
                value = "true" if value else "false"
            encoded[name] = str(value)
        return encoded


COMMAND_EXCEPTION = "org.apache.rocketmq.remoting.exception.RemotingCommandException"
NULL_POINTER = "java.lang.NullPointerException"


def _missing(name: str, strict: bool) -> RemoteError:
    kind = COMMAND_EXCEPTION if strict else NULL_POINTER
    return RemoteError(ResponseCode.SYSTEM_ERROR, f"{kind}: the custom field <{name}> is null")


_PLANS: dict[tuple[type[Header], bool], tuple[_Field, ...]] = {}


def _plan(header: type[Header], short: bool) -> tuple[_Field, ...]:
    plan = _PLANS.get((header, short))
    if plan is None:
        hints = get_type_hints(header)
        plan = _PLANS[header, short] = tuple(
            _Field(
                each.name,
                each.metadata["short" if short else "name"],
                _converter(hints[each.name], each.metadata["bits"]),
                each.default is MISSING,
            )
            for each in fields(header)
        )
    return plan


def _converter(hint: Any, bits: int) -> Callable[[str], Any] | None:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if hint is int:
        return parse_int if bits == _INT_BITS else parse_long
    return _parse_bool if hint is bool else None


def _parse_bool(text: str) -> bool:
    return text.lower() == "true"
