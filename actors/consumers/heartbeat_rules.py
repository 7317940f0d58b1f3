"""Limits of a heartbeat: number and names of groups, and expressions to compile.

Names must pass the check of 4.9.7's clients (Validators.java); its broker accepts any.
"""

from collections.abc import Container, Iterable, Mapping

from actors.network.messages import Peer
from actors.pulling.property_filters import TAG_EXPRESSIONS, CompileBudget
from actors.tables.groups import GroupFinder
from actors.tables.names import check_group_name, check_topic_name
from protocol.bodies import HeartbeatData, SubscriptionData
from protocol.codes import ResponseCode
from protocol.errors import LimitReached
from protocol.tags import TAG_EXPRESSION_CHARS_MAX, tags_too_long
from protocol.topic_names import RETRY_TOPIC_PREFIX

SUBSCRIPTIONS_MAX = 10_000
"""Subscriptions of one heartbeat, 4 µs each; its body has no more unless their names are short."""
GROUPS_MAX = 1000
"""Groups of one connection. Each costs 10 µs, and its changes notify others."""
PLACES_MAX = 500_000
"""Members of all groups plus their subscriptions; about 1 KiB each, longer ones count more."""
PLACE_BYTES = 1 << 10
TEXT_CHARS_MAX = 1024
"""Longest client id, and longest mode of a group; the history of groups keeps client ids, too."""
TAG_CHARS_MAX = 512 << 10
"""Characters of all tags, which are hashed on the loop: 30 ms.

Clients take them from their expressions, so a body of 1 MiB has no more.
"""
_TAG_BYTES = 64
PRODUCERS_MAX = 100_000
"""Members of all producer groups; a scan visits all of them every ten seconds."""


def check_heartbeat(
    data: HeartbeatData,
    peer: Peer,
    budget: CompileBudget,
    groups: GroupFinder,
    topics: Container[str],
) -> None:
    """Raise RemoteError for an invalid heartbeat, before any of it is registered."""
    if len(data.consumer_data_set) + len(data.producer_data_set) > GROUPS_MAX:
        remark = f"a client may be in at most {GROUPS_MAX} groups"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "client group limit reached")
    if sum(len(each.subscription_data_set) for each in data.consumer_data_set) > SUBSCRIPTIONS_MAX:
        remark = f"a client may have at most {SUBSCRIPTIONS_MAX} subscriptions"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "client subscription limit reached")
    texts = [data.client_id]
    for consumer in data.consumer_data_set:
        modes = consumer.consume_type, consumer.message_model, consumer.consume_from_where
        texts += filter(None, modes)
    if max(map(len, texts)) > TEXT_CHARS_MAX:
        remark = f"client ids and modes have at most {TEXT_CHARS_MAX} characters"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "client id too long")
    for producer in data.producer_data_set:
        check_group_name(producer.group_name)
    for group, subscribed in data.subscribed():
        groups.check(group)
        for topic in subscribed:
            if topic.startswith(RETRY_TOPIC_PREFIX):  # may be longer than other topic names
                groups.check(topic[len(RETRY_TOPIC_PREFIX) :])
            elif topic not in topics:
                check_topic_name(topic)
    tag_chars = 0
    for consumer in data.consumer_data_set:
        for each in consumer.subscription_data_set:
            own_chars = sum(map(len, each.tags_set))
            tag_chars += own_chars
            if each.expression_type not in TAG_EXPRESSIONS:
                budget.take(peer, each.expression_type, each.sub_string)
            elif max(len(each.sub_string), own_chars) > TAG_EXPRESSION_CHARS_MAX:
                raise tags_too_long(max(each.sub_string, "".join(each.tags_set), key=len))
    if tag_chars > TAG_CHARS_MAX:
        remark = f"the tags of a client have at most {TAG_CHARS_MAX} characters"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "client tag limit reached")


def check_groups_of(own: Mapping[str, None], names: Iterable[str]) -> None:
    if len({*own, *names}) > GROUPS_MAX:
        remark = f"a client may be in at most {GROUPS_MAX} groups"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "client group limit reached")


def places_of(wanted: Iterable[SubscriptionData]) -> int:
    """Return the places of a member with these subscriptions: one, and one or more for each."""
    places = 1
    for each in wanted:
        size = len(each.sub_string) + len(each.expression_type)
        if each.tags_set or each.code_set:
            size += sum(map(len, each.tags_set))
            size += _TAG_BYTES * (len(each.tags_set) + len(each.code_set))
        places += 1 + size // PLACE_BYTES
    return places


def check_places(held: int, added: int, most: int) -> None:
    """Raise RemoteError if all groups together would have too many members and subscriptions."""
    if added > 0 and held + added > most:
        remark = f"all groups have at most {most} members and subscriptions"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "group member limit reached")


def check_share(held: int, added: int) -> None:
    """Raise RemoteError if an account would have more producers than there is room for others.

    `held` counts all producers, and those of the account once more.
    """
    if added > 0 and held + added > PRODUCERS_MAX:
        remark = "an account has at most as many producers as there is room for others"
        raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "account producer limit reached")
