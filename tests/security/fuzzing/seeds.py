"""The inputs with which the fuzz runs begin."""

from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from protocol.batch import BatchMessage, encode_batch
from protocol.bodies_tables import RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.headers.fields import Header
from protocol.json_body import Body
from protocol.message import (
    MessageRecord,
    encode_record,
)
from protocol.properties import format as format_properties
from protocol.sink import (
    SinkMark,
)
from tests.support.by_hand.frames import frames_by_hand

_JSON_STARTS = (b"{", b"[")
EXPRESSIONS = (
    b"a > 5 AND b = 'x'",
    b"a BETWEEN 0 AND 3 OR b IN ('x', 'y') AND NOT (c IS NULL)",
    b"a IS NOT NULL AND -1.5e3 <= d\0a\x011\x02d\x012.5",
)
TREES = (
    b'{"a":{"b":[1,2]},"c":[{"$ref":"$.a"},{"$ref":"$.a.b[0]"},{"$ref":".."}],"d":{"$ref":"$.c"}}',
    b'{\'a\':{{"brokerName":"b","queueId":3,"topic":"t"}:{x:1,0:5}},/**/b:[1L,-2.5e3,NaN,\'\\u0041\']}',
)


@cache
def _frames() -> list[bytes]:
    """Frames by hand, in both forms."""
    return [each["frame"] for each in frames_by_hand()]


def whole_seeds() -> list[bytes]:
    return _frames()


def without_length_seeds() -> list[bytes]:
    return [frame[4:] for frame in _frames()]


def headers_seeds(form: int) -> list[bytes]:
    found = [each for each in _frames() if each[4] == form]
    return [frame[8 : 8 + int.from_bytes(frame[5:8])] for frame in found]


@cache
def _bodies() -> list[bytes]:
    found = [frame[8 + int.from_bytes(frame[5:8]) :] for frame in _frames()]
    return [each for each in dict.fromkeys(found) if each]


def texts_seeds() -> list[bytes]:
    return [*(each for each in _bodies() if each.startswith(_JSON_STARTS)), *TREES]


def body_seeds(kind: type[Body]) -> list[bytes]:
    values = [*map(_example, _hints(kind).values())]
    return [kind(*values).encode(), kind(*values).encode().replace(b'"', b"'"), *TREES]


def _hints(kind: type[Body]) -> dict[str, Any]:
    found = get_type_hints(kind)
    return {each.name: found[each.name] for each in fields(kind)}  # type: ignore[arg-type]


def _example(hint: Any) -> Any:
    """A value of this type, with one element in each container."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _example(next(each for each in arguments if each is not NoneType))
    if origin is list:
        return [_example(arguments[0])]
    if origin is dict:
        return {_example(arguments[0]): _example(arguments[1])}
    if isinstance(hint, type) and issubclass(hint, Body):
        return hint(*map(_example, _hints(hint).values()))
    simple: dict[Any, Any] = {str: "t", int: 7, bool: True, float: 1.5}
    return simple.get(hint, {"a": [1]})


def header_seeds(kind: type[Header], *, short: bool = False) -> list[bytes]:
    names = [each.metadata["short" if short else "name"] for each in fields(kind)]
    return [format_properties({name: value for name in names}) for value in ("1", "true", "-9x")]


def records_seeds() -> list[bytes]:
    plain = encode_record(MessageRecord("Topic", b"body", b"TAGS\x01a\x02KEYS\x01k"))
    v6 = MessageRecord("T", b"", sys_flag=0x30, born_host=bytes(20), store_host=bytes(20))
    return [plain, encode_record(v6), plain + encode_record(v6)]


def registrations_seeds() -> list[bytes]:
    topics = {f"t{n}": TopicConfig(f"t{n}") for n in range(3)}
    body = RegisterBrokerBody(TopicConfigTable(topics), ["f:1"])
    return [body.encode(), body.encode(compressed=True), TopicConfigTable(topics).encode()]


def batches_seeds() -> list[bytes]:
    return [encode_batch([BatchMessage(b"body", b"UNIQ_KEY\x01%04d" % n) for n in range(3)])]


MARK = SinkMark("query", 1, 2, 3, bytes(8))
PROPERTIES = (b"TAGS\x01a\x02KEYS\x01k v\x02WAIT\x01true\x02UNIQ_KEY\x01" + b"0" * 32, b"a\x01b")
