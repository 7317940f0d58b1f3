"""Check of a method's arguments against its annotations, before the call has any effect."""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from troupemq.client.arguments import shown, unknown_name
from troupemq.client.errors import ArgumentIllegal

Checks = Mapping[str, "tuple[tuple[type, ...], str] | None"]
"""Types and description of each parameter; None for one that takes any value."""

_WORDS = {
    str: "a string",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    bytes: "bytes",
    NoneType: "None",
}
_SAID = {
    "topic": "a topic's name",
    "group": "a group's name",
    "key": "a key",
    "queue": "the queue",
    "message_id": "a message's id",
    "offset_message_id": "a message's id",
}
"""Parameters in the words of the client's other errors."""

PLACES = tuple(
    Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=str | None)
    for name in ("broker", "cluster")
)
"""Parameters that `**where` stands for."""

_ANY: tuple[type, ...] = (object,)


def check_arguments(
    method: Callable[..., Any], given: tuple[object, ...], named: Mapping[str, object]
) -> None:
    """Raise ArgumentIllegal for a value of another type than its annotation, or an unknown name.

    `given` begins with the first argument behind `self` and the failures.
    """
    known = _checks_of(method)
    for name in named:
        if name not in known:
            raise ArgumentIllegal(unknown_name(method.__name__, name, list(known)))
    for name, value in [*zip(known, given, strict=False), *named.items()]:
        check = known[name]
        if check is None:
            continue
        kinds, wanted = check
        if not _fits(value, kinds):
            raise ArgumentIllegal(
                f"{name} is {shown(value)}, and not an integer"
                if kinds == (int,)
                else f"{_SAID.get(name, name)} is {wanted}, and not {shown(value)}"
            )


def _fits(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds or object in kinds
    if isinstance(value, float):
        return float in kinds and value == value
    if isinstance(value, str | bytes) and type(value) not in kinds:  # one text is no list of texts
        return any(issubclass(kind, str | bytes) and isinstance(value, kind) for kind in kinds)
    return isinstance(value, kinds)


@cache
def _checks_of(method: Callable[..., Any]) -> Checks:
    hints = get_type_hints(method)
    found = [*signature(method).parameters.values()][1:]
    checks = {
        each.name: _check_of(hints.get(each.name, object))
        for each in found
        if each.name not in ("failures", "where")
    }
    if any(each.name == "where" for each in found):
        checks |= {each.name: _check_of(each.annotation) for each in PLACES}
    return checks


def _check_of(annotation: Any) -> tuple[tuple[type, ...], str] | None:
    union = get_origin(annotation) in (Union, UnionType)
    members = get_args(annotation) if union else (annotation,)
    kinds = tuple(dict.fromkeys(kind for each in members for kind in _kinds_of(each)))
    if object in kinds:
        return None
    return kinds, " or ".join(dict.fromkeys(_word_of(each) for each in members))


def _kinds_of(annotation: Any) -> tuple[type, ...]:
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or kind is Any or getattr(kind, "_is_protocol", False):
        return _ANY
    if issubclass(kind, Enum):  # RequestCode takes integers
        return (kind, *(each for each in (int, str) if issubclass(kind, each)))
    return (int, float) if kind is float else (kind,)


def _word_of(annotation: Any) -> str:
    kind = get_origin(annotation) or annotation
    if kind in _WORDS:
        return _WORDS[kind]
    name = kind.__name__.lower() if get_args(annotation) else kind.__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
