"""A broker's registration read in slices: one with tens of thousands of topics takes its time.

The body is what RegisterBrokerBody or, of brokers before V3_0_11, TopicConfigTable reads whole. Of
a plain one the table of topics is cut out entry by entry; a text that cannot be cut so (object
keys, references) is read whole after all.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from re import compile as compile_pattern
from typing import TypeAlias

from protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.fastjson import FastjsonError, loads_object
from protocol.table_rules import INT_MAX, INT_MIN

SLICE_TOPICS = 500
VERSION_FILTER_SERVERS = 37
"""V3_0_11: older brokers register with a table of topics and nothing around it."""

_TABLE = compile_pattern(rb'"topicConfigTable"\s*:\s*\{')
_ENTRY = compile_pattern(rb'\s*"(?:[^"\\]|\\.)*"\s*:\s*\{[^{}]*\}\s*(,?)')
Slice: TypeAlias = Mapping[str, TopicConfig]


@dataclass(slots=True)
class BrokerRegistration:
    """What a broker registers; `slices` is to be gone through once."""

    version: DataVersion
    filter_servers: list[str] | None
    """None: the broker says nothing of any."""
    slices: Iterator[Slice]


def read_registration(
    body: bytes,
    broker_version: int,
    *,
    compressed: bool,
    check_count: Callable[[int], None] = lambda _: None,
) -> BrokerRegistration:
    """The registration of a broker that speaks this version of the protocol.

    Raises RemoteError; so does the iterator, at a topic that cannot be read, or whose numbers no
    client of Java's could read. `check_count`: as of RegisterBrokerBody.decode.
    """
    found = _read(body, broker_version, compressed, check_count)
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
    body: bytes, broker_version: int, compressed: bool, check_count: Callable[[int], None]
) -> BrokerRegistration:
    if not body:
        return BrokerRegistration(DataVersion(), [], iter(()))
    if broker_version < VERSION_FILTER_SERVERS:
        table = TopicConfigTable.decode(body)
        return BrokerRegistration(table.data_version, None, _sliced(table))
    if compressed:
        decoded = RegisterBrokerBody.decode(body, compressed=True, check_count=check_count)
        table = decoded.topic_config_table
        return BrokerRegistration(table.data_version, decoded.filter_servers, _sliced(table))
    spans = _entry_spans(body)
    if spans is None:
        decoded = RegisterBrokerBody.decode(body)
        table = decoded.topic_config_table
        return BrokerRegistration(table.data_version, decoded.filter_servers, _sliced(table))
    first, last = spans[0][0], spans[-1][1]
    around = RegisterBrokerBody.decode(body[:first] + body[last:])
    slices = (_topics(body[start:end]) for start, end in spans)
    return BrokerRegistration(around.topic_config_table.data_version, around.filter_servers, slices)


def _sliced(table: TopicConfigTable) -> Iterator[Slice]:
    names = list(table.topic_configs)
    for start in range(0, len(names), SLICE_TOPICS):
        yield {name: table.topic_configs[name] for name in names[start : start + SLICE_TOPICS]}


def _entry_spans(body: bytes) -> list[tuple[int, int]] | None:
    """Where the entries of the table lie, SLICE_TOPICS at a time; None if they cannot be told."""
    found = _TABLE.search(body)
    if found is None or b'"$ref"' in body:
        return None
    spans: list[tuple[int, int]] = []
    start = position = found.end()
    count = 0
    while entry := _ENTRY.match(body, position):
        position = entry.end()
        count += 1
        if count == SLICE_TOPICS:
            spans.append((start, position))
            start, count = position, 0
        if not entry[1]:
            break
    spans.append((start, position))
    return spans if body[position : position + 1] == b"}" else None


def _topics(entries: bytes) -> Slice:
    """Some entries of the table."""
    text = entries.strip().removesuffix(b",")
    try:
        found = loads_object(b"{%b}" % text)
    except FastjsonError as error:
        raise RemoteError(
            ResponseCode.SYSTEM_ERROR, f"com.alibaba.fastjson.JSONException: {error}"
        ) from None
    configs = map(TopicConfig.from_json, found.values())
    return {config.topic_name: config for config in configs}
