"""`queues`: the queues of a topic, how old what they hold is, and if a group is still inside."""

from collections.abc import Iterator

from protocol.bodies import MessageQueue
from protocol.bodies_admin import TopicOffset, TopicStatsTable
from protocol.codes import RequestCode, ResponseCode
from protocol.headers.admin import TopicHeader
from protocol.headers.offset import (
    EarliestStoreTimeResponseHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
)
from troupemq.cli.admin.command import TOPIC, command, flag, option
from troupemq.cli.admin.output import Output, Row, Time
from troupemq.cli.admin.session import BrokerPlace, Session
from troupemq.cli.admin.topics import consumers_of
from troupemq.client.errors import BrokerError, understood


@command(
    "queues",
    "Topics",
    TOPIC,
    flag("m", "time", "When the first and the last message were stored.", to="with_times"),
    option("g", "groupName", "And whether what this group wants next is still kept."),
)
def queues(
    session: Session, out: Output, *, topic: str, with_times: bool, group_name: str | None
) -> None:
    """List the queues of a topic, how much they hold, and since when."""
    rows: list[Row] = []
    known = False
    for place in session.topic_brokers(topic):
        with out.attempt():
            known = known or group_name in consumers_of(session, place, topic)
            rows += _queues_at(session, place, topic, with_times, group_name)
    out.table(rows, f"The topic {topic} has no queues.")
    if group_name is not None and not known:
        out.fail(f"The group {group_name} has no offsets in {topic}.")


def _queues_at(
    session: Session, place: BrokerPlace, topic: str, with_times: bool, group: str | None
) -> Iterator[Row]:
    header = TopicHeader(topic)
    code = RequestCode.GET_TOPIC_STATS_INFO
    table = session.read(TopicStatsTable, place.address, code, header).offset_table
    for queue, ends in sorted(table.items(), key=lambda item: item[0].queue_id):
        row: dict[str, object] = {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "messages": ends.max_offset - ends.min_offset,
        }
        if with_times:
            row |= _times(session, place, queue, ends)
        if group is not None:
            offset = _offset_of(session, place, queue, group)
            row["group_offset"] = offset
            row["group_offset_kept"] = (
                None if offset is None else ends.min_offset <= offset <= ends.max_offset
            )
        yield row


def _times(session: Session, place: BrokerPlace, queue: MessageQueue, ends: TopicOffset) -> Row:
    header = QueueHeader(queue.topic, queue.queue_id, queue.broker_name)
    answer = session.ask(place.address, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
    first = understood(EarliestStoreTimeResponseHeader.decode, answer.fields).timestamp
    return {"first_stored_ms": Time(first), "last_stored_ms": Time(ends.last_update_timestamp)}


def _offset_of(session: Session, place: BrokerPlace, queue: MessageQueue, group: str) -> int | None:
    """Where a group is in a queue; None where it never was."""
    if group not in consumers_of(session, place, queue.topic):
        return None
    header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id, queue.broker_name)
    try:
        answer = session.ask(place.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
    except BrokerError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return None
    return understood(OffsetResponseHeader.decode, answer.fields).offset
