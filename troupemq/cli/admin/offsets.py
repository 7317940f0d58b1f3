"""Commands about where consumer groups are: reset, skip, clone."""

from collections.abc import Iterator

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ConsumeStatsBody, ResetOffsetBody, TopicStatsTable
from protocol.codes import LanguageCode, RequestCode, ResponseCode
from protocol.headers.admin import CloneGroupOffsetHeader, GetConsumeStatsHeader, TopicHeader
from protocol.headers.client import ResetOffsetHeader
from protocol.headers.offset import (
    OffsetResponseHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.topic_names import group_name_fault, topic_name_fault
from troupemq.cli.admin.command import TOPIC, command, flag, option, parse_bool, yes_no
from troupemq.cli.admin.output import Output, Row
from troupemq.cli.admin.session import BrokerPlace, Session
from troupemq.cli.admin.times import NEWEST, TIME
from troupemq.cli.admin.topics import consumers_of
from troupemq.client.errors import ArgumentIllegal, BrokerError, understood

SECTION = "Offsets"
GROUP_OPTION = option("g", "group", "The consumer group.", required=True)


@command(
    "resetOffsetByTime",
    SECTION,
    GROUP_OPTION,
    TOPIC,
    option(
        "s", "timestamp", "now, ms since 1970, or 2026-01-31T12:00:00.", required=True, type=TIME
    ),
    yes_no("f", "force", "Forward too; else only back.", "true"),
    flag("c", "cplus", "The members are C++ clients."),
)
def reset_offset_by_time(
    session: Session,
    out: Output,
    *,
    group: str,
    topic: str,
    timestamp: int,
    force: str,
    cplus: bool,
) -> None:
    """Set a group to a time, in one topic; its members are told if there are any."""
    _reset(
        session,
        out,
        ResetOffsetHeader(topic, group, timestamp, parse_bool(force)),
        cplus,
    )


@command(
    "skipAccumulatedMessage",
    SECTION,
    GROUP_OPTION,
    TOPIC,
    yes_no("f", "force", "Also where that is forward.", "true"),
)
def skip_accumulated_message(
    session: Session, out: Output, *, group: str, topic: str, force: str
) -> None:
    """Set a group behind the last message of a topic: what it has not consumed is skipped."""
    _reset(session, out, ResetOffsetHeader(topic, group, NEWEST, parse_bool(force)), cplus=False)


def _reset(session: Session, out: Output, header: ResetOffsetHeader, cplus: bool) -> None:
    rows: list[Row] = []
    for place in session.topic_brokers(header.topic):
        with out.attempt():
            try:
                rows += _reset_online(session, place, header, cplus)
            except BrokerError as error:
                if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                    raise
                rows += _reset_offline(session, place, header)
    if rows or not out.failed:
        out.table(rows, f"The topic {header.topic} has no queues that {header.group} consumes.")


def _reset_online(
    session: Session, place: BrokerPlace, header: ResetOffsetHeader, cplus: bool
) -> Iterator[Row]:
    """The broker tells the members, and they go there."""
    language = LanguageCode.CPP if cplus else LanguageCode.JAVA
    answer = session.ask(
        place.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, language=language
    )
    table = understood(ResetOffsetBody.decode, answer.body).offset_table
    for queue, offset in sorted(table.items(), key=lambda item: item[0].queue_id):
        yield {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset": offset,
            "members": "told",
        }


def _reset_offline(
    session: Session, place: BrokerPlace, header: ResetOffsetHeader
) -> Iterator[Row]:
    """Nobody is there to be told: their offsets are set where the broker keeps them.

    Raises ArgumentIllegal for names under which it keeps none.
    """
    if fault := topic_name_fault(header.topic) or group_name_fault(header.group):
        raise ArgumentIllegal(fault)
    for queue, before in _consumed(session, place, header):
        offset = _offset_at(session, place, queue, header.timestamp)
        if header.is_force or offset <= before:
            update = UpdateConsumerOffsetHeader(
                header.group, header.topic, queue.queue_id, offset, queue.broker_name
            )
            session.ask(place.address, RequestCode.UPDATE_CONSUMER_OFFSET, update)
        else:
            offset = before
        yield {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset": offset,
            "members": "offline",
        }


def _consumed(
    session: Session, place: BrokerPlace, header: ResetOffsetHeader
) -> list[tuple[MessageQueue, int]]:
    """Where the group is in each queue; at the first message where it never was."""
    stats = session.read(
        ConsumeStatsBody,
        place.address,
        RequestCode.GET_CONSUME_STATS,
        GetConsumeStatsHeader(header.group),
    )
    found = [
        (queue, where.consumer_offset)
        for queue, where in stats.offset_table.items()
        if queue.topic == header.topic
    ]
    if not found:
        code = RequestCode.GET_TOPIC_STATS_INFO
        ends = session.read(TopicStatsTable, place.address, code, TopicHeader(header.topic))
        found = [(queue, where.min_offset) for queue, where in ends.offset_table.items()]
    return sorted(found, key=lambda item: item[0].queue_id)


def _offset_at(session: Session, place: BrokerPlace, queue: MessageQueue, time_ms: int) -> int:
    if time_ms == NEWEST:
        header = QueueHeader(queue.topic, queue.queue_id, queue.broker_name)
        answer = session.ask(place.address, RequestCode.GET_MAX_OFFSET, header)
    else:
        search = SearchOffsetHeader(queue.topic, queue.queue_id, time_ms, queue.broker_name)
        answer = session.ask(place.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    return understood(OffsetResponseHeader.decode, answer.fields).offset


@command(
    "cloneGroupOffset",
    SECTION,
    option("s", "srcGroup", "The group to take them from.", required=True),
    option("d", "destGroup", "The group to set.", required=True),
    TOPIC,
    yes_no("o", "offline", "Even if the group to set has no members."),
)
def clone_group_offset(
    session: Session, out: Output, *, src_group: str, dest_group: str, topic: str, offline: str
) -> None:
    """Set a group to where another one is."""
    if fault := group_name_fault(dest_group):
        raise ArgumentIllegal(fault)
    header = CloneGroupOffsetHeader(src_group, dest_group, topic, parse_bool(offline))
    for place in session.topic_brokers(topic):
        with out.attempt():
            if src_group not in consumers_of(session, place, topic):
                out.fail(f"{place.address} has no offsets of the group {src_group} in {topic}.")
                continue
            session.ask(place.address, RequestCode.CLONE_GROUP_OFFSET, header)
            out.done(
                f"{dest_group} is where {src_group} is, in {topic} at {place.address}.",
                broker_address=place.address,
                source_group=src_group,
                group=dest_group,
                topic=topic,
            )
