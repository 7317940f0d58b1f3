"""The limits of one heartbeat: in how many groups a client may be, under which names, and what it
may have compiled.

Names are those that 4.9.7's clients let through (Validators.java); its broker takes any.
"""

from collections.abc import Container, Iterable, Mapping

from actors.network.request import Peer
from actors.pulling.compile_budget import CompileBudget
from actors.pulling.property_filters import TAG_EXPRESSIONS
from actors.tables.groups import GroupFinder
from actors.tables.names import check_group_name, check_topic_name
from protocol.bodies import HeartbeatData
from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.tags import TAG_EXPRESSION_CHARS_MAX, tags_too_long
from protocol.topic_names import RETRY_TOPIC_PREFIX

GROUPS_MAX = 1000
"""Of one connection. Each of them costs 10 µs, and a change of its group tells others."""
PLACES_MAX = 500_000
"""Members of all groups and their subscriptions, counted together; about 1 KiB each."""
PRODUCERS_MAX = 100_000
"""Members of all producer groups; every ten seconds all are looked at."""


def check_heartbeat(
    data: HeartbeatData,
    peer: Peer,
    budget: CompileBudget,
    groups: GroupFinder,
    topics: Container[str],
) -> None:
    """Raises RemoteError; nothing of the heartbeat counts then."""
    if len(data.consumer_data_set) + len(data.producer_data_set) > GROUPS_MAX:
        remark = f"a client may be in {GROUPS_MAX} groups at the most"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a client is in too many groups")
    for producer in data.producer_data_set:
        check_group_name(producer.group_name)
    for group, subscribed in data.subscribed():
        groups.check(group)
        for topic in subscribed:
            if topic.startswith(RETRY_TOPIC_PREFIX):  # longer than other topics may be
                groups.check(topic[len(RETRY_TOPIC_PREFIX) :])
            elif topic not in topics:
                check_topic_name(topic)
    for consumer in data.consumer_data_set:
        for each in consumer.subscription_data_set:
            if each.expression_type not in TAG_EXPRESSIONS:
                budget.take(peer, each.expression_type, each.sub_string)
            elif len(each.sub_string) > TAG_EXPRESSION_CHARS_MAX:
                raise tags_too_long(each.sub_string)


def check_groups_of(own: Mapping[str, None], names: Iterable[str]) -> None:
    """Raise RemoteError if a connection would be in too many groups."""
    if len({*own, *names}) > GROUPS_MAX:
        remark = f"a client may be in {GROUPS_MAX} groups at the most"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a client is in too many groups")


def check_places(held: int, added: int, most: int) -> None:
    """Raise RemoteError if all groups together would have too many members and subscriptions."""
    if added > 0 and held + added > most:
        remark = f"all groups have {most} members and subscriptions at the most"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "groups have too many members")
