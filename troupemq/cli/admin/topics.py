"""Commands for topics and their queues."""

from collections.abc import Iterable
from typing import Any

import click

from troupemq.cli.admin.command import (
    BROKER,
    CLUSTER,
    PERMISSION,
    TOPIC,
    changing,
    command,
    flag,
    listing,
    option,
    yes_no,
)
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import COUNT
from troupemq.client.admin import Admin
from troupemq.client.admin.topics import order_entries

SECTION = "Topics"
UNIT, UNIT_SUBSCRIPTION = 1, 2
"""Bits of topicSysFlag."""
_QUEUES: dict[str, Any] = {"type": COUNT, "default": 8}


@command(
    "updateTopic",
    SECTION,
    BROKER,
    CLUSTER,
    TOPIC,
    option("r", "readQueueNums", "Number of read queues.", to="read_queues", type=COUNT, default=8),
    option(
        "w", "writeQueueNums", "Number of write queues.", to="write_queues", type=COUNT, default=8
    ),
    option("p", "perm", **{**PERMISSION, "help": f"{PERMISSION['help']} [default: 6]"}),
    yes_no("o", "order", "Keep the order of messages across brokers."),
    yes_no("u", "unit", "Mark the topic as belonging to a unit."),
    yes_no("s", "hasUnitSub", "Mark the topic as subscribed to by a unit."),
    needs_target=True,
)
def update_topic(
    admin: Admin, out: Output, *, perm: int | None, unit: bool, has_unit_sub: bool, **given: Any
) -> None:
    """Create or change a topic."""
    flags = UNIT * unit + UNIT_SUBSCRIPTION * has_unit_sub
    done = admin.update_topic(perm=perm or 6, sys_flag=flags, **given)
    for each in done:
        for sentence in each.warnings:
            out.note(sentence)
    out.changes(done)


changing(
    "deleteTopic",
    SECTION,
    Admin.delete_topic,
    "Delete a topic from a cluster and from the name servers.",
    TOPIC,
    option("c", "clusterName", "The cluster.", to="cluster", required=True),
)
changing(
    "updateTopicPerm",
    SECTION,
    Admin.update_topic_permission,
    "Change the permission of a topic.",
    BROKER,
    CLUSTER,
    TOPIC,
    option("p", "perm", required=True, **PERMISSION),
    needs_target=True,
)


@command("topicRoute", SECTION, TOPIC, flag("l", "list", "Print as a table.", to="as_table"))
def topic_route(admin: Admin, out: Output, *, topic: str, as_table: bool) -> None:
    """Show the brokers of a topic, with the number of queues at each."""
    route = admin.topic_route(topic)
    if as_table:
        out.table(route.places, f"No broker has the topic {topic}.")
    else:
        out.fields(route.row())


listing(
    "topicStatus",
    SECTION,
    Admin.topic_status,
    "Show the min and max offset of each queue, and the time of its last message.",
    "The topic {topic} has no queues.",
    TOPIC,
)


@command("topicClusterList", SECTION, TOPIC)
def topic_cluster_list(admin: Admin, out: Output, *, topic: str) -> None:
    """Show the clusters that have a topic."""
    rows = ({"cluster": name} for name in admin.topic_clusters(topic))
    out.table(rows, f"No cluster has the topic {topic}.")


@command(
    "topicList",
    SECTION,
    flag("c", "clusterModel", "Also show clusters and consumer groups.", to="with_groups"),
)
def topic_list(admin: Admin, out: Output, *, with_groups: bool) -> None:
    """List all topics."""
    if with_groups:
        out.table(admin.topic_groups(), "There are no topics.")
    else:
        out.table(({"topic": topic} for topic in admin.topics()), "There are no topics.")


@command(
    "updateOrderConf",
    SECTION,
    TOPIC,
    option(
        "v",
        "orderConf",
        "Number of queues per broker, as in broker-a:4;broker-b:4; needs -m put.",
        to="order",
        metavar="BROKER:QUEUES;…",
    ),
    option(
        "m", "method", "The action.", type=click.Choice(["get", "put", "delete"]), required=True
    ),
)
def update_order_conf(
    admin: Admin, out: Output, *, topic: str, order: str | None, method: str
) -> None:
    """Get, put or delete the numbers of queues per broker of an ordered topic."""
    if method == "get":
        out.fields({"topic": topic, "order": admin.order_of(topic)})
    elif method == "delete":
        out.changes(admin.delete_order(topic))
    elif not order or not order_entries(order):
        raise click.UsageError("put needs -v with queues per broker, as in broker-a:4;broker-b:4.")
    else:
        out.changes(admin.put_order(topic, order))


def _members(ctx: click.Context, param: click.Parameter, value: str) -> Iterable[str]:
    found = [each.strip() for each in value.split(",") if each.strip()]
    if not found:
        raise click.BadParameter("it names no member.", ctx, param)
    return found


listing(
    "allocateMQ",
    SECTION,
    Admin.allocate_queues,
    "Show the queues that the default allocation would assign to each of these group members.",
    "The topic {topic} has no queues.",
    TOPIC,
    option(
        "i",
        "ipList",
        "The members' addresses.",
        to="members",
        required=True,
        metavar="ADDRESS,ADDRESS…",
        callback=_members,
    ),
)
listing(
    "queues",
    SECTION,
    Admin.queue_states,
    "List the queues of a topic with their offsets and message counts.",
    "The topic {topic} has no queues.",
    TOPIC,
    flag(
        "m", "time", "Also show when the first and the last message were stored.", to="with_times"
    ),
    option(
        "g", "groupName", "Also show whether this group's next message is retained.", to="group"
    ),
)


@command(
    "statsAll",
    SECTION,
    flag("a", "activeTopic", "Only topics with traffic in the last 24 hours.", to="active_only"),
    option("t", "topic", "Only this topic."),
)
def stats_all(admin: Admin, out: Output, *, active_only: bool, topic: str | None) -> None:
    """Show the throughput of each topic, and the consumer lag of its groups."""
    found = admin.topic_traffic(topic).tell(out.fail)
    rows = (each for each in found if each.in_day or each.out_day or not active_only)
    out.table(rows, "No topic has traffic." if active_only else "There are no topics.")
