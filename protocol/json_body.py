"""Dataclasses as JSON bodies and back, with the names, order and leniency of fastjson.

A field's wire name is its own in camelCase unless it names another. An encoded body has all fields
but nulls, in alphabetical order of their wire names. A decoder skips unknown keys and keeps the
default for missing fields and nulls. Numbers may be strings.

The wire has some 150 such classes, and a client imports 50 of them. Python compiles each method of
a dataclass on its own; `Value` has two of three for all, which saves 0.14 ms a class.

Source: remoting/protocol/RemotingSerializable.java, and what fastjson 1.2.69 does with beans.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.fastjson import dumps, loads_object
from protocol.fastjson_limits import NODES_MAX, FastjsonError
from protocol.java_numbers import parse_double, parse_long
from protocol.standard_json import loads as standard_loads

Made = TypeVar("Made", bound="Value")
_getters: dict[type, Callable[[Any], object]] = {}
"""Functions that return all fields of a value, by its class."""


class Value:
    """Base of values; two are equal if they have one class and equal fields."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        get = _getters.get(type(self)) or _getter(type(self))
        return get(self) == get(other)

    __hash__ = None  # type: ignore[assignment]  # values may change

    def __repr__(self) -> str:
        shown = (f"{name}={content!r}" for name, content in _content(self).items())
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _content(value: Any) -> dict[str, object]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _getter(kind: type) -> Callable[[Any], object]:
    """Return the getter of a class; comparing dicts of fields took 7 µs, this 0.7."""
    names = [each.name for each in fields(kind)]
    _getters[kind] = attrgetter(*names) if names else _content
    return _getters[kind]


@dataclass_transform(field_specifiers=(field,))
def value(made: type[Made]) -> type[Made]:
    """Make a class a dataclass with slots, whose `==` and `repr` are those of Value."""
    return dataclass(slots=True, eq=False, repr=False)(made)


_LONG_END = 1 << 63
_SHOWN_CHARS_MAX = 100
_JSON_EXCEPTION = "com.alibaba.fastjson.JSONException"


def named(name: str) -> dict[str, str]:
    """Return the metadata of a field whose wire name is not its own in camelCase."""
    return {"name": name}


class _Property(NamedTuple):
    attribute: str
    name: str
    read: Callable[[object], Any]
    mandatory: bool


class Body(Value):
    """Base of JSON bodies. Subclasses are dataclasses, most of them made by `value`."""

    __slots__ = ()
    _plans: ClassVar[dict[type, tuple[_Property, ...]]] = {}
    nodes_max: ClassVar[int] = NODES_MAX
    """Node limit of a body (fastjson_reader.py). SHORT_NODES_MAX for bodies read on the loop."""

    @classmethod
    def decode(cls, data: bytes | memoryview | None) -> Self:
        """Return the value of a body.

        Raises RemoteError(SYSTEM_ERROR) if it is missing or invalid.
        """
        return cls._decode(data)

    @classmethod
    def _decode(cls, data: bytes | memoryview | None) -> Self:
        if data is None:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: the body is missing"
            )
        try:
            return cls.from_json(loads_object(data, cls.nodes_max))
        except FastjsonError as error:
            raise _refused(str(error)) from None

    def encode(self) -> bytes:
        return dumps(self.to_json())

    @classmethod
    def from_json(cls, found: object) -> Self:
        """Return the value of a parsed object. Raises RemoteError for a field of a wrong type."""
        if not isinstance(found, dict):
            raise _refused(f"an object is missing where {cls.__name__} should be")
        values: dict[str, Any] = {}
        for each in cls._plan():
            value = found.get(each.name)
            if value is not None:
                try:
                    values[each.attribute] = each.read(value)
                except (ValueError, TypeError, OverflowError) as error:
                    raise _refused(f"{each.name}: {error}") from None
            elif each.mandatory:
                values[each.attribute] = each.read("")
        return cls(**values)

    def to_json(self) -> dict[str, object]:
        """Return the object that `encode` writes."""
        return {each.name: _plain(getattr(self, each.attribute)) for each in self._plan()}

    @classmethod
    def _plan(cls) -> tuple[_Property, ...]:
        plan = cls._plans.get(cls)
        if plan is None:
            hints = get_type_hints(cls)
            found = [
                _Property(each.name, _name(each), _reader(hints[each.name]), _mandatory(each))
                for each in fields(cls)  # type: ignore[arg-type]
            ]
            plan = cls._plans[cls] = tuple(sorted(found, key=lambda each: each.name))
        return plan


def _name(of: Field[Any]) -> str:
    if "name" in of.metadata:
        return str(of.metadata["name"])
    first, *rest = of.name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _mandatory(of: Field[Any]) -> bool:
    return of.default is MISSING and of.default_factory is MISSING


def _refused(why: str) -> RemoteError:
    return RemoteError(ResponseCode.SYSTEM_ERROR, f"{_JSON_EXCEPTION}: {why}")


def _plain(value: object) -> object:
    if isinstance(value, Body):
        return value.to_json()
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _plain_key(key: object) -> object:
    return tuple(key.to_json().items()) if isinstance(key, Body) else key


def _reader(hint: Any) -> Callable[[object], Any]:
    """Return the converter of parsed values to this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _reader(inner)
    if origin is list:
        return _list_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_key_reader(arguments[0]), _reader(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, Body):
        return hint.from_json
    simple: dict[Any, Callable[[object], Any]] = {
        str: text_of,
        int: integer_of,
        bool: _boolean,
        float: _double,
    }
    return simple.get(hint, _json_value)


def _json_value(value: object) -> object:
    """Return `value` for standard JSON. Raises ValueError for objects as keys."""
    level = [value]
    while level:
        names = [name for each in level if isinstance(each, dict) for name in each]
        if any(isinstance(name, tuple) for name in names):
            raise ValueError("an object as a key")
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return value


def _list_reader(read: Callable[[object], Any]) -> Callable[[object], Any]:
    def read_list(value: object) -> list[Any]:
        if value == "":
            return []
        if not isinstance(value, list):
            raise ValueError("a list is missing")
        return [read(item) for item in value]

    return read_list


def _dict_reader(
    read_key: Callable[[object], Any], read: Callable[[object], Any]
) -> Callable[[object], Any]:
    def read_dict(value: object) -> dict[Any, Any]:
        if value == "":
            return {}
        if not isinstance(value, dict):
            raise ValueError("an object is missing")
        return {read_key(key): read(item) for key, item in value.items() if item is not None}

    return read_dict


def _key_reader(hint: Any) -> Callable[[object], Any]:
    if isinstance(hint, type) and issubclass(hint, Body):
        body = hint

        def read_key(key: object) -> Body:
            if isinstance(key, str):  # a standard writer has put the object into a string
                return body.from_json(standard_loads(key.encode("utf-8")))
            return body.from_json(dict(key) if isinstance(key, tuple) else key)

        return read_key
    return integer_of if hint is int else text_of


def text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else dumps(value).decode("utf-8")


def integer_of(value: object) -> int:
    """Return a Java long. Raises ValueError for other values; an empty text is 0."""
    if isinstance(value, str):
        try:
            number = parse_long(value) if value else 0
        except ValueError:
            raise ValueError(f"{value[:_SHOWN_CHARS_MAX]!r} is no number") from None
    elif isinstance(value, int | float):
        try:
            number = int(value)
        except OverflowError:
            raise ValueError("an infinite number") from None
    else:
        raise ValueError("a number is missing")
    if not -_LONG_END <= number < _LONG_END:
        raise ValueError(f"{number} is no long")
    return number


def _double(value: object) -> float:
    if isinstance(value, str):
        return parse_double(value) if value else 0.0
    if isinstance(value, int | float):
        return float(value)
    raise ValueError("a number is missing")


def _boolean(value: object) -> bool:
    if isinstance(value, str):
        if value.lower() in ("true", "1", "y", "t", "yes"):
            return True
        if value.lower() in ("false", "0", "n", "f", "no", ""):
            return False
    elif isinstance(value, int):
        return value == 1
    raise ValueError("true or false is missing")
