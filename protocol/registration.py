"""A broker's registration, read in slices because it may have tens of thousands of topics.

The body is what RegisterBrokerBody or, of brokers before V3_0_11, TopicConfigTable reads whole. The
topics of a plain text are cut out entry by entry. A text with references or escapes in names is
read whole if short.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from re import compile as compile_pattern
from typing import TypeAlias

from protocol.bodies_tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.fastjson import loads_object
from protocol.fastjson_limits import FastjsonError
from protocol.table_rules import INT_MAX, INT_MIN

SLICE_TOPICS = 500
VERSION_FILTER_SERVERS = 37
"""V3_0_11: older brokers register a bare table of topics."""

_TABLE = compile_pattern(rb'"topicConfigTable"\s*:\s*\{')
_ENTRY = compile_pattern(rb'\s*+"[^"\\]*+"\s*+:\s*+\{[^{}]*+\}\s*+(,?)')
WHOLE_BYTES_MAX = 4 << 20
"""Maximum JSON that is read in one piece, some 20,000 topics; no other thread runs meanwhile."""

Slice: TypeAlias = Mapping[str, TopicConfig]


@dataclass(slots=True)
class BrokerRegistration:
    """Contents of a registration. Iterate over `slices` once."""

    version: DataVersion
    filter_servers: list[str] | None
    """Filter servers; None if the broker reports none at all."""
    slices: Iterator[Slice]


def read_registration(
    body: bytes,
    broker_version: int,
    *,
    compressed: bool,
    check_topics: Callable[[int], None] = lambda _: None,
) -> BrokerRegistration:
    """Return the registration of a broker with this protocol version.

    `check_topics` receives the number of topics before any is made, and may raise RemoteError. So
    does this function for an invalid body, and the iterator at a topic that is invalid or has
    numbers outside Java's ranges.
    """
    found = _read(body, broker_version, check_topics, compressed=compressed)
    return BrokerRegistration(found.version, found.filter_servers, map(_checked, found.slices))


def _checked(topics: Slice) -> Slice:
    for each in topics.values():
        for name, number in (
            ("readQueueNums", each.read_queue_nums),
            ("writeQueueNums", each.write_queue_nums),
            ("perm", each.perm),
            ("topicSysFlag", each.topic_sys_flag),
        ):
            if not INT_MIN <= number <= INT_MAX:
                remark = f"com.alibaba.fastjson.JSONException: parseInt error, field : {name}"
                raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
    return topics


def _read(
    body: bytes, broker_version: int, check_topics: Callable[[int], None], *, compressed: bool
) -> BrokerRegistration:
    if not body:
        return BrokerRegistration(DataVersion(), [], iter(()))
    if broker_version < VERSION_FILTER_SERVERS:
        table = TopicConfigTable.decode(_short(body))
        check_topics(len(table.topic_configs))
        return BrokerRegistration(table.data_version, None, _sliced(table))
    if compressed:
        decoded = RegisterBrokerBody.decode(body, compressed=True, check_topics=check_topics)
        table = decoded.topic_config_table
        return BrokerRegistration(table.data_version, decoded.filter_servers, _sliced(table))
    spans, count = _entry_spans(body)
    if not spans:
        decoded = RegisterBrokerBody.decode(_short(body))
        table = decoded.topic_config_table
        check_topics(len(table.topic_configs))
        return BrokerRegistration(table.data_version, decoded.filter_servers, _sliced(table))
    check_topics(count)
    first, last = spans[0][0], spans[-1][1]
    around = RegisterBrokerBody.decode(_short(body[:first] + body[last:]))
    slices = (_topics(body[start:end]) for start, end in spans)
    return BrokerRegistration(around.topic_config_table.data_version, around.filter_servers, slices)


def _short(text: bytes) -> bytes:
    if len(text) > WHOLE_BYTES_MAX:
        remark = f"{len(text)} bytes of a registration that cannot be read in slices"
        raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
    return text


def _sliced(table: TopicConfigTable) -> Iterator[Slice]:
    names = list(table.topic_configs)
    for start in range(0, len(names), SLICE_TOPICS):
        yield {name: table.topic_configs[name] for name in names[start : start + SLICE_TOPICS]}


def _entry_spans(body: bytes) -> tuple[list[tuple[int, int]], int]:
    """Yield the places of entries, SLICE_TOPICS at a time, and their number.

    Yield nothing if entries cannot be told apart.
    """
    found = _TABLE.search(body)
    if found is None or b'"$ref"' in body:
        return [], 0
    spans: list[tuple[int, int]] = []
    start = position = found.end()
    count = 0
    while entry := _ENTRY.match(body, position):
        position = entry.end()
        count += 1
        if count % SLICE_TOPICS == 0:
            spans.append((start, position))
            start = position
        if not entry[1]:
            break
    spans.append((start, position))
    return (spans, count) if body[position : position + 1] == b"}" else ([], 0)


def _topics(entries: bytes) -> Slice:
    """Return the topics of some entries of the table."""
    text = entries.strip().removesuffix(b",")
    try:
        found = loads_object(b"{%b}" % text)
    except FastjsonError as error:
        raise RemoteError(
            ResponseCode.SYSTEM_ERROR, f"com.alibaba.fastjson.JSONException: {error}"
        ) from None
    configs = map(TopicConfig.from_json, found.values())
    return {config.topic_name: config for config in configs}
