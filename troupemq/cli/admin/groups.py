"""Commands about consumer groups, their members and offsets, and about producers."""

from time import sleep
from typing import Any

import click

from troupemq.cli.admin.command import (
    BROKER,
    CLUSTER,
    GROUP,
    THE_BROKER,
    TOPIC,
    changing,
    command,
    flag,
    listing,
    option,
    yes_no,
)
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import COUNT, NUMBER, OFFSET, SECONDS, TIME, WholeNumber
from troupemq.client.admin import Admin
from troupemq.client.admin.base import INT_MAX
from troupemq.client.admin.groups import STATS_TIMEOUT_MS, GroupSettings

SECTION, PRODUCERS, OFFSETS = "Consumer groups", "Producers", "Offsets"
RETRIES = WholeNumber(-1, INT_MAX)
_MEMBERS_OF = option("g", "consumerGroup", "The consumer group.", to="group", required=True)
_GROUP = option("g", "group", "The consumer group.", required=True)


@command(
    "updateSubGroup",
    SECTION,
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("s", "consumeEnable", "Its members may pull.", "true"),
    yes_no("m", "consumeFromMinEnable", "A new member may begin at the first message."),
    yes_no("d", "consumeBroadcastEnable", "Its members may consume in broadcast."),
    option("q", "retryQueueNums", "Queues of its retry topic.", type=NUMBER, default=1),
    option("r", "retryMaxTimes", "Retries before the dead letters.", type=RETRIES, default=16),
    option("i", "brokerId", "Which broker of a name it consumes from.", type=OFFSET, default=0),
    option(
        "w",
        "whichBrokerWhenConsumeSlowly",
        "Which one when it is far behind.",
        type=OFFSET,
        default=1,
    ),
    yes_no(
        "a",
        "notifyConsumerIdsChanged",
        "Members are told who joins and leaves.",
        "true",
        to="notify_consumer_ids_changed_enable",
    ),
    needs_target=True,
)
def update_sub_group(
    admin: Admin, out: Output, *, broker: str | None, cluster: str | None, group: str, **given: Any
) -> None:
    """Create a consumer group, or change it."""
    settings = GroupSettings(group_name=group, **given)
    out.changes(admin.update_group(settings, broker=broker, cluster=cluster))


changing(
    "deleteSubGroup",
    SECTION,
    Admin.delete_group,
    "Delete a consumer group; of a whole cluster, with its retry topic and dead letters.",
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("r", "removeOffset", "Its offsets too.", to="with_offsets"),
    needs_target=True,
)


@command("getConsumerConfig", SECTION, GROUP)
def get_consumer_config(admin: Admin, out: Output, *, group: str) -> None:
    """Show a group's settings at each broker."""
    for each in admin.group_settings(group).tell(out.fail):
        out.fields(each.row())


@command(
    "consumerProgress",
    SECTION,
    option("g", "groupName", "This group, queue by queue.", to="group"),
    yes_no("s", "showClientIP", "Who has each queue.", to="with_clients"),
)
def consumer_progress(admin: Admin, out: Output, *, group: str | None, with_clients: bool) -> None:
    """Show how far a group is behind, or all groups."""
    if group is None:
        out.table(admin.group_list(), "No group has consumed here.")
        return
    found = admin.group_progress(group, with_clients=with_clients)
    if out.table(found, f"The group {group} has consumed nothing."):
        tps = sum({each.broker: each.group_tps for each in found}.values())
        lag = sum(each.lag for each in found)
        out.footer(f"{lag} behind in all; {tps:.2f} consumed a second.")


listing(
    "brokerConsumeStats",
    SECTION,
    Admin.broker_lags,
    "Show how far all groups of a broker are behind.",
    "No group has consumed from {broker}.",
    THE_BROKER,
    option(
        "t",
        "timeoutMillis",
        "How long to wait.",
        to="timeout_ms",
        type=COUNT,
        default=STATS_TIMEOUT_MS,
        show_default=True,
    ),
    option("l", "level", "Only queues at least that far behind.", type=int, default=0),
    yes_no("o", "order", "Only ordered topics.", to="only_ordered"),
)


@command(
    "startMonitoring",
    SECTION,
    option("i", "intervalS", "Seconds between two rounds.", type=SECONDS, default=60),
    option("r", "rounds", "End after that many.", type=COUNT),
    option("l", "level", "Groups at least that far behind.", type=int, default=100_000),
    until_interrupted=True,
)
def start_monitoring(
    admin: Admin, out: Output, *, interval_s: float, rounds: int | None, level: int
) -> None:
    """Watch all groups: those far behind, and those behind without members. Ends at Ctrl-C."""
    done = 0
    while rounds is None or done < rounds:
        if done:
            sleep(interval_s)
        done += 1
        with out.attempt():  # a name server that is gone may come back
            out.table(admin.late_groups(level), "Nothing to worry about.")


listing(
    "producerConnection",
    PRODUCERS,
    Admin.producers_of,
    "List the producers of a group at the brokers of a topic.",
    "The producer group {group} is not connected.",
    option("g", "producerGroup", "The producer group.", to="group", required=True),
    TOPIC,
)
listing(
    "producer",
    PRODUCERS,
    Admin.producers_at,
    "List all producers of a broker, by group.",
    "No producer is connected to {broker}.",
    option("b", "broker", "The broker.", required=True, metavar="HOST:PORT"),
)


@command("consumerConnection", SECTION, _MEMBERS_OF, BROKER)
def consumer_connection(admin: Admin, out: Output, *, group: str, broker: str | None) -> None:
    """List the members of a consumer group, and what they subscribe to."""
    out.fields(admin.group_members(group, broker=broker).row())


@command(
    "consumerStatus",
    SECTION,
    _MEMBERS_OF,
    option("i", "clientId", "This member only, with all it says of itself."),
    BROKER,
    flag("s", "jstack", "With the stacks of its threads."),
)
def consumer_status(
    admin: Admin, out: Output, *, group: str, client_id: str | None, jstack: bool, **given: Any
) -> None:
    """Show what the members of a group say of themselves, and whether they agree."""
    if client_id is not None:
        info = admin.running_info(group, client_id, with_stacks=jstack, **given)
        out.fields(info.row())
        return
    found = admin.member_states(group, with_stacks=jstack, **given).tell(out.fail)
    if out.as_json:
        out.table(found, "")
        return
    hidden = ("queue_names", "jstack")
    rows = [each.row() for each in found]
    shown = [{name: row[name] for name in row if name not in hidden} for row in rows]
    some = out.table(shown, f"The group {group} has no members.")
    out.fields({str(row["client"]): row["jstack"] for row in rows} if some and jstack else {})


listing(
    "rebalances",
    SECTION,
    Admin.rebalances,
    """Show the latest changes of GROUP: each one makes its members share out the queues again.

    Of our brokers only: RocketMQ does not remember it. Exit code 1 if the members of the
    group subscribe differently.
    """,
    "Nothing has happened to {group} since its brokers were started.",
    click.Argument(["group"]),
    BROKER,
)
listing(
    "resetOffsetByTime",
    OFFSETS,
    Admin.reset_offsets,
    "Set a group to a time, in one topic; its members are told if there are any.",
    "The topic {topic} has no queues that {group} consumes.",
    _GROUP,
    TOPIC,
    option(
        "s",
        "timestamp",
        "now, ms since 1970, or 2026-01-31T12:00:00.",
        to="time_ms",
        required=True,
        type=TIME,
    ),
    yes_no("f", "force", "Forward too; else only back.", "true"),
    flag("c", "cplus", "The members are C++ clients.", to="is_cplus"),
    is_quiet=True,
)
listing(
    "skipAccumulatedMessage",
    OFFSETS,
    Admin.reset_offsets,
    "Set a group behind the last message of a topic: what it has not consumed is skipped.",
    "The topic {topic} has no queues that {group} consumes.",
    _GROUP,
    TOPIC,
    yes_no("f", "force", "Also where that is forward.", "true"),
    is_quiet=True,
)
changing(
    "cloneGroupOffset",
    OFFSETS,
    Admin.clone_offsets,
    "Set a group to where another one is.",
    option("s", "srcGroup", "The group to take them from.", to="source_group", required=True),
    option("d", "destGroup", "The group to set.", to="group", required=True),
    TOPIC,
    yes_no("o", "offline", "Even if the group to set has no members."),
)
