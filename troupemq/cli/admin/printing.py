"""Commands that print the messages of whole queues, and consume queues."""

from collections import Counter
from collections.abc import Callable, Iterator

import click

from protocol.bodies_admin import ConsumeQueueView
from protocol.codes import RequestCode
from protocol.headers.admin import QueryConsumeQueueHeader
from troupemq.cli.admin.command import TOPIC, command, option, parse_bool, yes_no
from troupemq.cli.admin.offsets import NEWEST, parse_time
from troupemq.cli.admin.output import Output, Time
from troupemq.cli.admin.reading import QueueReader, reader_of
from troupemq.cli.admin.session import Session
from troupemq.cli.messages import as_object
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.route import route_of

SECTION = "Messages"

_BEGIN = option("b", "beginTimestamp", "Stored since: ms since 1970, or 2026-01-31T12:00:00.")
_END = option("e", "endTimestamp", "Stored until.")
_CHARSET = option("c", "charsetName", "Of the bodies.", default="UTF-8", show_default=True)
_EXPRESSION = option("s", "subExpression", "Only with one of these tags: a || b.", default="*")


def _line(charset: str, with_body: bool) -> Callable[[MessageView], str]:
    def line(view: MessageView) -> str:
        tags = f" [{view.tags}]" if view.tags else ""
        body = f" {view.body.decode(charset, 'replace')}" if with_body else ""
        stored = Time(view.store_timestamp_ms)
        return f"{view.queue}+{view.queue_offset} {stored} {view.message_id}{tags}{body}"

    return line


@command(
    "printMsg",
    SECTION,
    TOPIC,
    _CHARSET,
    _EXPRESSION,
    _BEGIN,
    _END,
    yes_no("d", "printBody", "With bodies.", "true"),
)
def print_msg(
    session: Session,
    out: Output,
    *,
    topic: str,
    charset_name: str,
    sub_expression: str,
    begin_timestamp: str | None,
    end_timestamp: str | None,
    print_body: str,
) -> None:
    """Print all messages of a topic, queue by queue."""
    line = _line(charset_name, parse_bool(print_body))
    for queue in sorted(route_of(topic, session.route(topic)).subscribe_queues):
        reader = reader_of(session, queue, sub_expression)
        for view in _between(reader, begin_timestamp, end_timestamp):
            out.item(as_object(view), line(view))


def _between(reader: QueueReader, begin: str | None, end: str | None) -> Iterator[MessageView]:
    first, last = reader.ends()
    if begin is not None and (begin_ms := parse_time(begin)) != NEWEST:
        first = reader.offset_at(begin_ms)
    end_ms = None if end is None else parse_time(end)
    for view in reader.messages(first, last):
        if end_ms is not None and end_ms != NEWEST and view.store_timestamp_ms > end_ms:
            return
        yield view


@command(
    "printMsgByQueue",
    SECTION,
    TOPIC,
    option("a", "brokerName", "The broker's name.", required=True),
    option("i", "queueId", "The queue.", type=int, required=True),
    _CHARSET,
    _EXPRESSION,
    _BEGIN,
    _END,
    yes_no("p", "print", "Print them."),
    yes_no("d", "printBody", "With bodies."),
    yes_no("f", "calculate", "Count them by tag."),
)
def print_msg_by_queue(
    session: Session,
    out: Output,
    *,
    topic: str,
    broker_name: str,
    queue_id: int,
    charset_name: str,
    sub_expression: str,
    begin_timestamp: str | None,
    end_timestamp: str | None,
    print: str,
    print_body: str,
    calculate: str,
) -> None:
    """Print the messages of one queue, or count them by tag."""
    line = _line(charset_name, parse_bool(print_body))
    counts: Counter[str] = Counter()
    reader = reader_of(session, MessageQueue(topic, broker_name, queue_id), sub_expression)
    for view in _between(reader, begin_timestamp, end_timestamp):
        counts[view.tags or ""] += 1
        if parse_bool(print):
            out.item(as_object(view), line(view))
    if parse_bool(calculate):
        rows = ({"tag": tag, "count": count} for tag, count in counts.most_common())
        out.table(rows, "There are no messages.")


@command(
    "consumeMessage",
    SECTION,
    TOPIC,
    option("b", "brokerName", "Only this broker's queues."),
    option("i", "queueId", "Only this queue; needs -b.", type=int),
    option("o", "offset", "From there; needs -i.", type=int),
    option("g", "consumerGroup", "As this group; its offsets stay as they are."),
    option("s", "beginTimestamp", "Stored since."),
    option("e", "endTimestamp", "Stored until."),
    option("c", "MessageNumber", "At most that many.", to="count", type=int, default=128),
)
def consume_message(
    session: Session,
    out: Output,
    *,
    topic: str,
    broker_name: str | None,
    queue_id: int | None,
    offset: int | None,
    consumer_group: str | None,
    begin_timestamp: str | None,
    end_timestamp: str | None,
    count: int,
) -> None:
    """Print some messages of a topic, without consuming them for anybody."""
    if (queue_id is not None and broker_name is None) or (offset is not None and queue_id is None):
        raise click.UsageError("An offset (-o) needs a queue (-i), and a queue a broker (-b).")
    line = _line("UTF-8", with_body=True)
    left = count
    for queue in sorted(route_of(topic, session.route(topic)).subscribe_queues):
        if broker_name not in (None, queue.broker_name) or queue_id not in (None, queue.queue_id):
            continue
        reader = reader_of(session, queue, group=consumer_group)
        if offset is not None:
            views = reader.messages(offset, reader.ends()[1])
        else:
            views = _between(reader, begin_timestamp, end_timestamp)
        for view in views:
            if not left:
                return
            left -= 1
            out.item(as_object(view), line(view))


@command(
    "queryCq",
    SECTION,
    TOPIC,
    option("q", "queue", "The queue.", type=int, required=True),
    option("i", "index", "From that entry on.", type=int, required=True),
    option("c", "count", "So many.", type=int, default=10, show_default=True),
    option("b", "broker", "At this broker.", metavar="HOST:PORT"),
    option("g", "consumer", "And what this group's filter says of them."),
)
def query_cq(
    session: Session,
    out: Output,
    *,
    topic: str,
    queue: int,
    index: int,
    count: int,
    broker: str | None,
    consumer: str | None,
) -> None:
    """Show entries of a consume queue."""
    address = broker or session.topic_brokers(topic)[0].address
    header = QueryConsumeQueueHeader(topic, queue, index, count, consumer)
    found = session.read(ConsumeQueueView, address, RequestCode.QUERY_CONSUME_QUEUE, header)
    rows = (
        {"index": number, **each.to_json()} for number, each in enumerate(found.queue_data, index)
    )
    out.table(
        rows, f"{topic} {queue} has entries {found.min_queue_index} to {found.max_queue_index}."
    )
