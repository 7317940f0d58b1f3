"""Commands that print the messages of whole queues, and consume queues."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

import click

from protocol.bodies_admin import ConsumeQueueView
from protocol.codes import RequestCode
from protocol.headers.admin import QueryConsumeQueueHeader
from troupemq.cli.admin.command import TOPIC, command, option, parse_bool, yes_no
from troupemq.cli.admin.output import Output, Time, snake_case
from troupemq.cli.admin.reading import QueueReader, reader_of
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.times import COUNT, NEWEST, NUMBER, OFFSET, TIME
from troupemq.cli.message_json import as_object
from troupemq.client.connection.route import route_of
from troupemq.client.errors import ArgumentIllegal, RouteNotFound
from troupemq.client.message import MessageQueue, MessageView

SECTION = "Messages"


def _charset(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        b"x".decode(value, "replace")
    except LookupError:
        raise click.BadParameter(
            f"{value!r} is no charset that is known here", ctx, param
        ) from None
    return value


SINCE = "Stored since: ms since 1970, or 2026-01-31T12:00:00."
_BEGIN = option("b", "beginTimestamp", SINCE, type=TIME)
_END = option("e", "endTimestamp", "Stored until.", type=TIME)
_CHARSET = option(
    "c",
    "charsetName",
    "Character set of the bodies.",
    default="UTF-8",
    show_default=True,
    callback=_charset,
)
_EXPRESSION = option("s", "subExpression", "Only with one of these tags: a || b.", default="*")


def _print(out: Output, view: MessageView, charset: str = "UTF-8", with_body: bool = True) -> None:
    fields = {**as_object(view), "store_timestamp_ms": Time(view.store_timestamp_ms)}
    body = fields.pop("body", None)
    if with_body and (body is None or charset.upper() != "UTF-8"):
        with suppress(ValueError):
            body = view.body.decode(charset)
            fields.pop("body_base64", None)
    if not with_body:
        fields.pop("body_base64", None)
    elif body is not None:
        fields["body"] = body
    tags = f" [{view.tags}]" if view.tags else ""
    text = f" {view.body.decode(charset, 'replace')}" if with_body else ""
    where = f"{view.queue}+{view.queue_offset} {fields['store_timestamp_ms']} {view.message_id}"
    out.item(fields, f"{where}{tags}{text}")


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
    begin_timestamp: int | None,
    end_timestamp: int | None,
    print_body: str,
) -> None:
    """Print all messages of a topic, queue by queue."""
    with_body = parse_bool(print_body)
    printed = 0
    for queue in _queues(session, topic):
        with out.attempt():
            reader = reader_of(session, queue, sub_expression)
            for view in _between(reader, begin_timestamp, end_timestamp):
                _print(out, view, charset_name, with_body)
                printed += 1
    _note_none(out, printed)


def _queues(
    session: Session, topic: str, broker_name: str | None = None, queue_id: int | None = None
) -> list[MessageQueue]:
    """The queues that can be read. Raises RouteNotFound where those that are named do not exist."""
    found = [
        queue
        for queue in sorted(route_of(topic, session.route(topic)).subscribe_queues)
        if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    if not found:
        which = "queue to read" if queue_id is None else f"queue {queue_id} to read"
        where = "" if broker_name is None else f" at the broker {broker_name}"
        raise RouteNotFound(f"the topic {topic} has no {which}{where}")
    return found


def _note_none(out: Output, printed: int) -> None:
    if not printed and not out.failed:
        out.note("There are no messages.")


def _between(reader: QueueReader, begin: int | None, end: int | None) -> Iterator[MessageView]:
    first, last = reader.ends()
    if begin not in (None, NEWEST):
        first = reader.offset_at(begin or 0)
    for view in reader.messages(first, last):
        if end is not None and end != NEWEST and view.store_timestamp_ms > end:
            return
        yield view


@command(
    "printMsgByQueue",
    SECTION,
    TOPIC,
    option("a", "brokerName", "The broker's name.", required=True),
    option("i", "queueId", "The queue.", type=NUMBER, required=True),
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
    begin_timestamp: int | None,
    end_timestamp: int | None,
    print: str,
    print_body: str,
    calculate: str,
) -> None:
    """Print the messages of one queue, or count them by tag."""
    counts: Counter[str] = Counter()
    (queue,) = _queues(session, topic, broker_name, queue_id)
    reader = reader_of(session, queue, sub_expression)
    for view in _between(reader, begin_timestamp, end_timestamp):
        counts[view.tags or ""] += 1
        if parse_bool(print):
            _print(out, view, charset_name, parse_bool(print_body))
    if parse_bool(calculate):
        rows = ({"tag": tag, "count": count} for tag, count in counts.most_common())
        out.table(rows, "There are no messages.")
    elif not parse_bool(print):
        out.note(f"{counts.total()} messages; -p true prints them, -f true counts them by tag.")
    else:
        _note_none(out, counts.total())


@command(
    "consumeMessage",
    SECTION,
    TOPIC,
    option("b", "brokerName", "Only this broker's queues."),
    option("i", "queueId", "Only this queue; needs -b.", type=NUMBER),
    option("o", "offset", "From there; needs -i.", type=OFFSET),
    option("g", "consumerGroup", "As this group; its offsets stay as they are."),
    option("s", "beginTimestamp", SINCE, type=TIME),
    _END,
    option("c", "MessageNumber", "At most that many.", to="count", type=COUNT, default=128),
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
    begin_timestamp: int | None,
    end_timestamp: int | None,
    count: int,
) -> None:
    """Print some messages of a topic, without consuming them for anybody."""
    if (queue_id is not None and broker_name is None) or (offset is not None and queue_id is None):
        raise click.UsageError("An offset (-o) needs a queue (-i), and a queue a broker (-b).")
    printed = 0
    for queue in _queues(session, topic, broker_name, queue_id):
        with out.attempt():
            reader = reader_of(session, queue, group=consumer_group)
            if offset is None:
                views = _between(reader, begin_timestamp, end_timestamp)
            else:
                views = _from(reader, offset)
            for view in islice(views, count - printed):
                _print(out, view)
                printed += 1
        if printed == count:
            return
    _note_none(out, printed)


def _from(reader: QueueReader, offset: int) -> Iterator[MessageView]:
    first, last = reader.ends()
    if not first <= offset < max(last, first + 1):
        raise ArgumentIllegal(f"{reader.queue} has the offsets from {first} to before {last}")
    return reader.messages(offset, last)


@command(
    "queryCq",
    SECTION,
    TOPIC,
    option("q", "queue", "The queue.", type=NUMBER, required=True),
    option("i", "index", "From that entry on.", type=OFFSET, required=True),
    option("c", "count", "So many.", type=COUNT, default=10, show_default=True),
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
    wanted = found.subscription_data
    more = {
        "subscription": None if wanted is None else wanted.sub_string,
        "filter": found.filter_data,
    }
    rows = (
        {
            "index": number,
            **snake_case(each.to_json()),
            **({} if consumer is None or not out.as_json else more),
        }
        for number, each in enumerate(found.queue_data, index)
    )
    entries = f"{topic} {queue} has entries {found.min_queue_index} to {found.max_queue_index}."
    if out.table(rows, entries) and not out.as_json:
        out.footer(entries)
        if consumer is not None:
            out.fields({f"{consumer} {name}": value for name, value in more.items()})
