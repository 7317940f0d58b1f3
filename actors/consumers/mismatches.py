"""Members of a consumer group that do not subscribe alike.

The broker keeps one subscription for a group, that of the newest heartbeat.  Members that want
something else get the messages of others, or never get some: a mistake that 4.9.7 does not notice.

A client that is in the group by several connections counts once, with what it said last.  Retry
topics do not count, clients add those by themselves; the order of tags does not either.
"""

from collections.abc import Mapping

from actors.tables.consumer_views import NOT_SUBSCRIBED, Mismatch, Wanting
from protocol.bodies import SubscriptionData
from protocol.topic_names import RETRY_TOPIC_PREFIX

CLIENTS_MAX = 8
"""Clients named for each expression; the number is exact."""

_TAG_EXPRESSIONS = (None, "", "TAG")


def mismatches_of(wants: Mapping[str, Mapping[str, SubscriptionData]]) -> tuple[Mismatch, ...]:
    """By client what it wants by topic; the topics that not all want alike, in their order."""
    if len(wants) < 2:
        return ()
    first, *others = wants.values()
    if all(each is first or _same(each, first) for each in others):
        return ()
    topics = {topic for each in wants.values() for topic in each}
    found = []
    for topic in sorted(topics):
        if topic.startswith(RETRY_TOPIC_PREFIX):
            continue
        by_expression: dict[str, list[str]] = {}
        for client_id, wanted in wants.items():
            by_expression.setdefault(_expression(wanted.get(topic)), []).append(client_id)
        if len(by_expression) > 1:
            found.append(Mismatch(topic, _wanted(by_expression)))
    return tuple(found)


def _wanted(by_expression: Mapping[str, list[str]]) -> tuple[Wanting, ...]:
    return tuple(
        Wanting(expression, len(clients), tuple(sorted(clients)[:CLIENTS_MAX]))
        for expression, clients in sorted(by_expression.items())
    )


def _same(one: Mapping[str, SubscriptionData], other: Mapping[str, SubscriptionData]) -> bool:
    return one.keys() == other.keys() and all(
        data.sub_string == other[topic].sub_string
        and data.expression_type == other[topic].expression_type
        for topic, data in one.items()
    )


def alike(one: SubscriptionData, other: SubscriptionData) -> bool:
    """Return whether both want the same messages."""
    return _expression(one) == _expression(other)


def _expression(data: SubscriptionData | None) -> str:
    if data is None:
        return NOT_SUBSCRIBED
    if data.class_filter_mode:
        return f"class: {data.sub_string}"
    if data.expression_type in _TAG_EXPRESSIONS:
        tags = sorted({tag.strip() for tag in data.sub_string.split("||")} - {""})
        return " || ".join(tags) if tags and "*" not in tags else "*"
    return f"{data.expression_type}: {data.sub_string}"
