"""Members of a consumer group that do not subscribe alike.

The broker keeps one subscription for a group, that of the newest heartbeat. Members with another
subscription get messages of others, or miss some. 4.9.7 does not notice this mistake.

A client with several connections in a group counts once, with its newest subscription. Retry topics
do not count, because clients add them. The order of tags does not count either.
"""

from collections.abc import Collection, Mapping

from actors.tables.consumer_views import NOT_SUBSCRIBED, Mismatch, Wanting
from protocol.bodies import SubscriptionData
from protocol.topic_names import RETRY_TOPIC_PREFIX

CLIENTS_MAX = 8
"""Clients named for each expression; the count is exact."""
EXPRESSIONS_MAX = 2_000
"""Subscriptions compared per group, 3 µs each; only the first topics are shown beyond it."""

SORTED_CHARS_MAX = 1024
"""Longest tag expression whose tags are sorted; a longer one counts as it is written."""

_TAG_EXPRESSIONS = (None, "", "TAG")


def mismatches_of(wants: Mapping[str, Mapping[str, SubscriptionData]]) -> tuple[Mismatch, ...]:
    """Return the topics with differing subscriptions, sorted; `wants` is client → topic → data."""
    if len(wants) < 2:
        return ()
    topics = _differing(wants.values())
    shown = sorted(topic for topic in topics if not topic.startswith(RETRY_TOPIC_PREFIX))
    found = []
    for topic in shown[: EXPRESSIONS_MAX // len(wants) + 1]:
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


def _differing(wants: Collection[Mapping[str, SubscriptionData]]) -> set[str]:
    """Return the topics that may differ; cheaper than `_expression`."""
    counts: dict[str, int] = {}
    first: dict[str, SubscriptionData] = {}
    found: set[str] = set()
    for each in wants:
        for topic, own in each.items():
            counts[topic] = counts.get(topic, 0) + 1
            data = first.setdefault(topic, own)
            if own is not data and not _is_same(data, own):
                found.add(topic)
    return found | {topic for topic, count in counts.items() if count < len(wants)}


def alike(one: SubscriptionData, other: SubscriptionData) -> bool:
    """Return whether both select the same messages."""
    return _is_same(one, other) or _expression(one) == _expression(other)


def _is_same(one: SubscriptionData, other: SubscriptionData) -> bool:
    return (
        one.sub_string == other.sub_string
        and one.expression_type == other.expression_type
        and one.class_filter_mode == other.class_filter_mode
    )


def _expression(data: SubscriptionData | None) -> str:
    if data is None:
        return NOT_SUBSCRIBED
    if data.class_filter_mode:
        return f"class: {data.sub_string}"
    if data.expression_type in _TAG_EXPRESSIONS:
        if len(data.sub_string) > SORTED_CHARS_MAX:
            return data.sub_string
        tags = sorted({tag.strip() for tag in data.sub_string.split("||")} - {""})
        return " || ".join(tags) if tags and "*" not in tags else "*"
    return f"{data.expression_type}: {data.sub_string}"
