"""Commands for consumer groups, their members and offsets, and for producers."""

from time import sleep
from typing import Any

import click

from protocol.bodies_assignment import POP, PULL
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
from troupemq.cli.options import FiniteRange
from troupemq.client.admin import Admin
from troupemq.client.admin.base import INT_MAX
from troupemq.client.admin.groups import STATS_TIMEOUT_MS, GroupSettings
from troupemq.client.admin.progress import CurrentMessage

SECTION, PRODUCERS, OFFSETS = "Consumer groups", "Producers", "Offsets"
RETRIES = WholeNumber(-1, INT_MAX)
CURRENT = (
    "last_message_id",
    "current_offset",
    "current_message_id",
    "current_since_ms",
    "current_tries",
)
_MEMBERS_OF = option("g", "consumerGroup", "The consumer group.", to="group", required=True)
_GROUP = option("g", "group", "The consumer group.", required=True)
_STUCK = click.Option(
    ["--stuck-after", "stuck_after_s"],
    type=FiniteRange(min=0.1, max=86_400),
    metavar="SECONDS",
    help="A queue is stuck if messages wait and none was consumed for this long."
    " [default: the broker's stuckAfterSeconds]",
)


@command(
    "updateSubGroup",
    SECTION,
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("s", "consumeEnable", "Allow its members to pull.", "true"),
    yes_no("m", "consumeFromMinEnable", "Allow new members to start at the first message."),
    yes_no("d", "consumeBroadcastEnable", "Allow its members to consume in broadcast mode."),
    option("q", "retryQueueNums", "Number of queues of its retry topic.", type=NUMBER, default=1),
    option(
        "r",
        "retryMaxTimes",
        "Number of retries before a message becomes a dead letter.",
        type=RETRIES,
        default=16,
    ),
    option(
        "i",
        "brokerId",
        "Id of the broker to consume from; 0 is the master.",
        type=OFFSET,
        default=0,
    ),
    option(
        "w",
        "whichBrokerWhenConsumeSlowly",
        "Id of the broker to consume from with a large consumer lag.",
        type=OFFSET,
        default=1,
    ),
    yes_no(
        "a",
        "notifyConsumerIdsChanged",
        "Notify members when others join or leave.",
        "true",
        to="notify_consumer_ids_changed_enable",
    ),
    needs_target=True,
)
def update_sub_group(
    admin: Admin, out: Output, *, broker: str | None, cluster: str | None, group: str, **given: Any
) -> None:
    """Create or change a consumer group."""
    settings = GroupSettings(group_name=group, **given)
    out.changes(admin.update_group(settings, broker=broker, cluster=cluster))


changing(
    "deleteSubGroup",
    SECTION,
    Admin.delete_group,
    "Delete a consumer group; with -c also its retry topic and dead letters.",
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("r", "removeOffset", "Also delete its consumer offsets.", to="with_offsets"),
    needs_target=True,
)


changing(
    "setConsumeMode",
    SECTION,
    Admin.set_consume_mode,
    "Set whether a group of RocketMQ 5 clients pulls or pops a topic.",
    BROKER,
    CLUSTER,
    option("t", "topicName", "The topic.", to="topic", required=True),
    option("g", "groupName", "The consumer group.", to="group", required=True),
    option(
        "m",
        "mode",
        "PULL: by consumer offset; POP: message by message.",
        type=click.Choice([PULL, POP], case_sensitive=False),
        required=True,
    ),
    option(
        "q",
        "popShareQueueNum",
        "In POP mode, number of members whose queues a member shares. 0: those of all.",
        type=WholeNumber(0, INT_MAX),
        default=0,
    ),
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
    option("g", "groupName", "Show this group, queue by queue. [default: all groups]", to="group"),
    yes_no(
        "s",
        "showClientIP",
        "Also ask the members: show which one has each queue, and its current message.",
        to="with_clients",
    ),
    _STUCK,
)
def consumer_progress(
    admin: Admin,
    out: Output,
    *,
    group: str | None,
    with_clients: bool,
    stuck_after_s: float | None,
) -> None:
    """Show the progress of a group, or of all groups: consumed, in flight, lag, and what is stuck.

    A queue is stuck if messages wait in it and none was consumed for a while. What a server does
    not report is shown as -; RocketMQ's brokers do not report when messages are consumed.
    """
    if group is None:
        groups = admin.group_list(stuck_after_s=stuck_after_s)
        out.table(groups, "There are no consumer groups.")
        for each in groups:
            if each.is_stuck:
                _advise(out, each.group, f"{each.group} is {each.verdict}")
        return
    found = admin.group_progress(group, with_clients=with_clients, stuck_after_s=stuck_after_s)
    hidden = () if with_clients or out.as_json else CURRENT
    rows = ({key: cell for key, cell in each.row().items() if key not in hidden} for each in found)
    if out.table(rows, f"The group {group} has consumed nothing."):
        tps = sum({each.broker: each.group_tps for each in found}.values())
        lag, stuck = sum(each.lag for each in found), sum(bool(each.is_stuck) for each in found)
        out.footer(f"Total lag: {lag} messages; throughput: {tps:.2f} msg/s; stuck queues: {stuck}")
        if stuck:
            _advise(out, group, f"{group} has {stuck} stuck queue{'' if stuck == 1 else 's'}")
    found.tell(out.fail)


def _advise(out: Output, group: str, finding: str) -> None:
    out.note(f"{finding}; its members: troupemq admin memberProgress -g {group}")


@command(
    "memberProgress",
    SECTION,
    GROUP,
    _STUCK,
    flag("s", "jstack", "Also show the stacks of its worker threads, without library calls."),
)
def member_progress(
    admin: Admin, out: Output, *, group: str, stuck_after_s: float | None, jstack: bool
) -> None:
    """Show what each member of a group does: its current message, and what its threads are in.

    The verdict of a stuck member names the function of the listener. A TroupeMQ extension, which
    works with Java's push consumers, too.
    """
    found = admin.member_progress(group, stuck_after_s=stuck_after_s).tell(out.fail)
    for each in found:
        row = each.row()
        if jstack:
            row["stacks"] = {one.name: one.folded() for one in each.threads if one.is_worker}
        out.item(row, f"{each.client} ({each.address}, {each.language}): {each.verdict}")
        if out.as_json:
            continue
        if each.current is not None:
            out.item({}, f"  current message: {_current_text(each.current)}")
        for one in each.threads if jstack else ():
            if one.is_worker:
                out.item({}, f"  {one.name}")
                for line in one.folded():
                    out.item({}, f"    {line}")
    if not found:
        out.note(f"The group {group} has no members.")


def _current_text(message: CurrentMessage) -> str:
    details = [message.place]
    if message.message_id is not None:
        details.append(message.message_id)
    if message.since_ms is not None:
        details.append(f"since {message.since_ms}")
    if message.tries:
        details.append(f"after {message.tries} failed tries")
    return ", ".join(details)


listing(
    "brokerConsumeStats",
    SECTION,
    Admin.broker_lags,
    "Show the consumer lag of all groups at a broker.",
    "No group has consumed from {broker}.",
    THE_BROKER,
    option(
        "t",
        "timeoutMillis",
        "Timeout in milliseconds.",
        to="timeout_ms",
        type=COUNT,
        default=STATS_TIMEOUT_MS,
        show_default=True,
    ),
    option("l", "level", "Only queues with at least this consumer lag.", type=OFFSET, default=0),
    yes_no("o", "order", "Only ordered topics.", to="only_ordered"),
)


@command(
    "startMonitoring",
    SECTION,
    option("i", "intervalS", "Check every N seconds.", type=SECONDS, default=60, metavar="N"),
    option(
        "r", "rounds", "End after N checks. [default: run until Ctrl-C]", type=COUNT, metavar="N"
    ),
    option("l", "level", "Report a consumer lag from N messages on.", type=OFFSET, default=100_000),
    until_interrupted=True,
)
def start_monitoring(
    admin: Admin, out: Output, *, interval_s: float, rounds: int | None, level: int
) -> None:
    """Watch for groups with a large consumer lag, or with lag and no members, until Ctrl-C."""
    done = 0
    while rounds is None or done < rounds:
        if done:
            sleep(interval_s)
        done += 1
        with out.attempt():  # a stopped name server may come back
            out.table(admin.late_groups(level), "No problems found.")


listing(
    "producerConnection",
    PRODUCERS,
    Admin.producers_of,
    "List the producers of a group at the brokers of a topic.",
    "No producer of the group {group} is connected.",
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
    """List the members of a consumer group and their subscriptions."""
    out.fields(admin.group_members(group, broker=broker).row())


@command(
    "consumerStatus",
    SECTION,
    _MEMBERS_OF,
    option("i", "clientId", "Only this member, with all details."),
    BROKER,
    flag("s", "jstack", "Also show thread stacks."),
)
def consumer_status(
    admin: Admin, out: Output, *, group: str, client_id: str | None, jstack: bool, **given: Any
) -> None:
    """Show the state of a group's members, and whether their subscriptions agree."""
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
    names = [name for name in max(rows, key=len, default={}) if name not in hidden]
    shown = [{name: row.get(name) for name in names} for row in rows]
    some = out.table(shown, f"The group {group} has no members.")
    out.fields({str(row["client"]): row["jstack"] for row in rows} if some and jstack else {})


listing(
    "rebalances",
    SECTION,
    Admin.rebalances,
    """Show recent membership changes of GROUP, each of which causes a rebalance.

    A TroupeMQ extension. Exit code 1 if the members have different subscriptions.
    """,
    "The membership of {group} has not changed since its brokers started.",
    click.Argument(["group"]),
    BROKER,
)
listing(
    "resetOffsetByTime",
    OFFSETS,
    Admin.reset_offsets,
    "Set a group's offsets in a topic to a time; connected members are notified.",
    "The topic {topic} has no queues that {group} consumes.",
    _GROUP,
    TOPIC,
    option(
        "s",
        "timestamp",
        "The time: now, ms since 1970, or 2026-01-31T12:00:00.",
        to="time_ms",
        required=True,
        type=TIME,
    ),
    yes_no("f", "force", "Also move offsets forward, not only back.", "true"),
    flag("c", "cplus", "Notify members as C++ clients expect.", to="is_cplus"),
    is_quiet=True,
)
listing(
    "skipAccumulatedMessage",
    OFFSETS,
    Admin.reset_offsets,
    "Set a group's offsets to the end of a topic, skipping all messages it has not consumed.",
    "The topic {topic} has no queues that {group} consumes.",
    _GROUP,
    TOPIC,
    yes_no("f", "force", "Also move offsets forward.", "true"),
    is_quiet=True,
)
changing(
    "cloneGroupOffset",
    OFFSETS,
    Admin.clone_offsets,
    "Copy a group's consumer offsets to another group.",
    option("s", "srcGroup", "Copy from this group.", to="source_group", required=True),
    option("d", "destGroup", "Copy to this group.", to="group", required=True),
    TOPIC,
    yes_no("o", "offline", "Also if the destination group has no members."),
)
