"""Commands that find, show, print and send messages."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from time import sleep
from typing import Any

import click

from protocol.topic_names import TRACE_TOPIC
from troupemq.cli.admin.command import TOPIC, command, flag, listing, option, yes_no
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import COUNT, NUMBER, OFFSET, SECONDS, TIME, WholeNumber
from troupemq.cli.messages import as_object
from troupemq.client.admin import Admin, Time
from troupemq.client.admin.offsets import NEWEST
from troupemq.client.admin.reading import QueueReader
from troupemq.client.admin.trials import TRIAL_GROUP, TrialSummary
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import MESSAGE_BYTES_MAX

SECTION, TRIALS = "Messages", "Trial sends"

_DIRECT_GROUP = option(
    "g",
    "consumerGroup",
    "Let a member of this group consume the message now; needs -d.",
    to="group",
)
_DIRECT_CLIENT = option("d", "clientId", "The member, with -g.")
_BYTES = WholeNumber(1, MESSAGE_BYTES_MAX)
_SIZE = option("s", "size", "Size of each message in bytes.", type=_BYTES, default=128)


@command(
    "queryMsgById",
    SECTION,
    option(
        "i",
        "msgId",
        "The broker's or the producer's message id; several separated by commas.",
        required=True,
    ),
    option("t", "topic", "Look for a producer's id in this topic. [default: all topics]"),
    _DIRECT_GROUP,
    _DIRECT_CLIENT,
    yes_no("s", "sendMessage", "Send the message to its topic again."),
    option("u", "unitName", "Ignored, for compatibility with mqadmin.", expose_value=False),
)
def query_msg_by_id(
    admin: Admin,
    out: Output,
    *,
    msg_id: str,
    topic: str | None,
    send_message: bool,
    **member: str | None,
) -> None:
    """Show the message with this id, and its state in each consumer group."""
    ids = [each.strip() for each in msg_id.split(",") if each.strip()]
    if not ids:
        raise click.BadParameter("it names no message id.", param_hint="'--msgId'")
    for each in ids:
        with out.attempt():
            view = admin.find_message(each, topic)
            if send_message and None in member.values():
                out.done(admin.send_again(view))
            else:
                _show(admin, out, view, **member)


def _show(
    admin: Admin,
    out: Output,
    view: MessageView,
    group: str | None = None,
    client_id: str | None = None,
) -> None:
    """Show a message, or the result of its direct consumption by a member."""
    if group is not None and client_id is not None:
        out.fields(admin.consume_directly(view, group, client_id).row())
        return
    fields = as_object(view)
    if (why := fields.get("body_unreadable")) is not None:
        raise ClientError(f"the body of {view.offset_message_id} is unreadable: {why}")
    tracks = admin.message_tracks(view)
    if tracks.failures:
        raise ClientError(tracks.failures[0])
    out.fields(
        {
            **fields,
            "store_timestamp_ms": Time(view.store_timestamp_ms),
            "tracks": {each.group: each.state for each in tracks},
            "offset_message_id": view.offset_message_id,
            "physical_offset": view.physical_offset,
            "born_timestamp_ms": Time(view.born_timestamp_ms),
            "born_host": view.born_host,
            "store_host": view.store_host,
            "sys_flag": view.sys_flag,
        }
    )


@command("queryMsgByKey", SECTION, TOPIC, option("k", "msgKey", "The key.", required=True))
def query_msg_by_key(admin: Admin, out: Output, *, topic: str, msg_key: str) -> None:
    """List the messages of a topic with this key."""
    rows = (
        {
            "message_id": view.message_id,
            "offset_message_id": view.offset_message_id,
            "broker": view.queue.broker_name,
            "queue_id": view.queue.queue_id,
            "queue_offset": view.queue_offset,
            "store_timestamp_ms": Time(view.store_timestamp_ms),
        }
        for view in admin.query_by_key(topic, msg_key)
    )
    out.table(rows, f"No message of {topic} has the key {msg_key}.")


@command(
    "queryMsgByUniqueKey",
    SECTION,
    option("i", "msgId", "The producer's message id.", required=True),
    _DIRECT_GROUP,
    _DIRECT_CLIENT,
    TOPIC,
    flag("a", "showAll", "Show all messages with this id, not only the first."),
)
def query_msg_by_unique_key(
    admin: Admin, out: Output, *, msg_id: str, topic: str, show_all: bool, **member: str | None
) -> None:
    """Show the message with this producer's id, and its state in each consumer group."""
    found = [view for view in admin.query_by_key(topic, msg_id) if view.message_id == msg_id]
    if not found:
        out.fail(f"No message of {topic} has the id {msg_id}.")
    for view in found if show_all else found[:1]:
        _show(admin, out, view, **member)


@command(
    "queryMsgByOffset",
    SECTION,
    TOPIC,
    option("b", "brokerName", "The broker's name.", required=True),
    option("i", "queueId", "The queue id.", type=NUMBER, required=True),
    option("o", "offset", "The queue offset.", type=OFFSET, required=True),
)
def query_msg_by_offset(
    admin: Admin, out: Output, *, topic: str, broker_name: str, queue_id: int, offset: int
) -> None:
    """Show the message at a queue offset."""
    reader = admin.reader(MessageQueue(topic, broker_name, queue_id))
    found = reader.at(offset)
    if found is None:
        out.fail(f"No message at queue offset {offset} in {reader.queue}.")
    else:
        _show(admin, out, found)


@command(
    "trace",
    SECTION,
    click.Argument(["key"]),
    option("t", "topic", "Look in this topic. [default: all topics]"),
    option("r", "traceTopic", "Topic of the clients' traces.", default=TRACE_TOPIC),
)
def trace(admin: Admin, out: Output, *, key: str, topic: str | None, trace_topic: str) -> None:
    """Show the life of a message, in order, from everything that brokers and clients know.

    KEY is one of its keys, the producer's id or the broker's id. Shown are its send, where it is
    stored, delays, deliveries, retries with their reasons, dead letters, redriven copies, and its
    state in each group. A TroupeMQ extension, which works with RocketMQ's brokers, too.
    """
    lives = admin.message_lives(key, topic=topic, trace_topic=trace_topic).tell(out.fail)
    for number, life in enumerate(lives):
        if number and not out.as_json:
            out.item({}, "")
        tags = f", tag {life.tags}" if life.tags else ""
        keys = f", keys {' '.join(life.keys)}" if life.keys else ""
        out.item(life.row(), f"Message {life.message_id} of {life.topic}{tags}{keys}")
        if out.as_json:
            continue
        for event in life.events:
            time = "at present" if event.time_ms is None else str(event.time_ms)
            out.item({}, f"{time:<23}  {event.sentence}")
        for sentence in life.unknown:
            out.item({}, f"{'unknown':<23}  {sentence}")


listing(
    "queryMsgTraceById",
    SECTION,
    Admin.trace_events,
    "Show the trace of a message: when clients sent and consumed it, and how long it took.",
    "No trace of {message_id} is in {trace_topic}.",
    option("i", "msgId", "The producer's message id.", to="message_id", required=True),
    option("t", "traceTopic", "Topic of the traces.", default=TRACE_TOPIC),
    aliases=("QueryMsgTraceById",),
)


@command(
    "sendMessage",
    SECTION,
    TOPIC,
    option("p", "body", "The message body.", required=True),
    option("k", "key", "The message keys, separated by blanks."),
    option("c", "tags", "The message tag."),
    option("b", "broker", "Send to the broker of this name; needs -i."),
    option("i", "qid", "Send to the queue with this id; needs -b.", type=NUMBER),
    yes_no("m", "msgTraceEnable", "Also send a trace message, as clients do.", to="trace"),
)
def send_message(
    admin: Admin,
    out: Output,
    *,
    topic: str,
    body: str,
    key: str | None,
    broker: str | None,
    qid: int | None,
    **given: Any,
) -> None:
    """Send one message."""
    if (broker is None) != (qid is None):
        raise click.UsageError("incomplete queue: give both its broker (-b) and its id (-i).")
    queue = None if broker is None or qid is None else MessageQueue(topic, broker, qid)
    keys = (key or "").split()
    out.fields(admin.send_message(topic, body.encode(), keys=keys, queue=queue, **given).row())


@command(
    "recallMessage",
    SECTION,
    TOPIC,
    option("i", "handle", "The recall handle that the send has printed.", required=True),
)
def recall_message(admin: Admin, out: Output, *, topic: str, handle: str) -> None:
    """Cancel a delayed delivery that is not due yet."""
    out.done(admin.recall_message(topic, handle))


# --- whole queues


def _charset(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        b"x".decode(value, "replace")
    except (LookupError, ValueError):
        raise click.BadParameter(
            f"unknown charset {value!r}: use a name such as UTF-8", ctx, param
        ) from None
    return value


_SINCE = "Only messages stored at this time or later: ms since 1970, or 2026-01-31T12:00:00."
_BEGIN = option("b", "beginTimestamp", _SINCE, to="begin", type=TIME)
_END = option("e", "endTimestamp", "Only messages stored until this time.", to="end", type=TIME)
_CHARSET = option(
    "c",
    "charsetName",
    "Character set of the bodies.",
    to="charset",
    default="UTF-8",
    callback=_charset,
)
_TAGS = option(
    "s", "subExpression", "Only messages with these tags: a || b.", to="tags", default="*"
)


def _print(out: Output, view: MessageView, charset: str = "UTF-8", with_body: bool = True) -> None:
    fields = {**as_object(view), "store_timestamp_ms": Time(view.store_timestamp_ms)}
    body = fields.pop("body", None)
    unreadable = fields.get("body_unreadable")
    if with_body and (body is None or charset.upper() != "UTF-8"):
        with suppress(ValueError):
            body = view.body.decode(charset)
            fields.pop("body_base64", None)
    if not with_body:
        fields.pop("body_base64", None)
    elif body is not None:
        fields["body"] = body
    tags = f" [{view.tags}]" if view.tags else ""
    text = f" {unreadable or view.body.decode(charset, 'replace')}" if with_body else ""
    where = f"{view.queue}+{view.queue_offset} {fields['store_timestamp_ms']} {view.message_id}"
    out.item(fields, f"{where}{tags}{text}")


@command(
    "printMsg",
    SECTION,
    TOPIC,
    _CHARSET,
    _TAGS,
    _BEGIN,
    _END,
    yes_no("d", "printBody", "Print bodies.", "true"),
)
def print_msg(
    admin: Admin,
    out: Output,
    *,
    topic: str,
    tags: str,
    charset: str,
    print_body: bool,
    **times: int | None,
) -> None:
    """Print all messages of a topic, queue by queue."""
    printed = 0
    for queue in admin.readable_queues(topic):
        with out.attempt():
            for view in _between(admin.reader(queue, tags), **times):
                _print(out, view, charset, print_body)
                printed += 1
    _note_none(out, printed)


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
    option("i", "queueId", "The queue id.", type=NUMBER, required=True),
    _CHARSET,
    _TAGS,
    _BEGIN,
    _END,
    yes_no("p", "print", "Print the messages."),
    yes_no("d", "printBody", "Print bodies; needs -p true."),
    yes_no("f", "calculate", "Count the messages by tag."),
)
def print_msg_by_queue(
    admin: Admin,
    out: Output,
    *,
    topic: str,
    broker_name: str,
    queue_id: int,
    tags: str,
    charset: str,
    print: bool,
    print_body: bool,
    calculate: bool,
    **times: int | None,
) -> None:
    """Print the messages of one queue, or count them by tag."""
    counts: Counter[str] = Counter()
    (queue,) = admin.readable_queues(topic, broker_name, queue_id)
    for view in _between(admin.reader(queue, tags), **times):
        counts[view.tags or ""] += 1
        if print:
            _print(out, view, charset, print_body)
    if calculate:
        rows = ({"tag": tag, "count": count} for tag, count in counts.most_common())
        out.table(rows, "There are no messages.")
    elif not print:
        out.note(f"{counts.total()} messages; -p true prints them, -f true counts them by tag.")
    else:
        _note_none(out, counts.total())


@command(
    "consumeMessage",
    SECTION,
    TOPIC,
    option("b", "brokerName", "Only the queues of this broker."),
    option("i", "queueId", "Only the queue with this id; needs -b.", type=NUMBER),
    option("o", "offset", "Start at this queue offset; needs -i.", type=OFFSET),
    option("g", "consumerGroup", "Pull as this group; its offsets do not change."),
    option("s", "beginTimestamp", _SINCE, to="begin", type=TIME),
    _END,
    option("c", "MessageNumber", "Print at most N.", to="count", type=COUNT, default=128),
)
def consume_message(
    admin: Admin,
    out: Output,
    *,
    topic: str,
    broker_name: str | None,
    queue_id: int | None,
    offset: int | None,
    consumer_group: str | None,
    count: int,
    **times: int | None,
) -> None:
    """Print some messages of a topic, without changing consumer offsets."""
    if (queue_id is not None and broker_name is None) or (offset is not None and queue_id is None):
        raise click.UsageError("incomplete queue: -o needs -i, and -i needs -b.")
    printed = 0
    for queue in admin.readable_queues(topic, broker_name, queue_id):
        with out.attempt():
            reader = admin.reader(queue, group=consumer_group)
            views = _between(reader, **times) if offset is None else _from(reader, offset)
            for view in islice(views, count - printed):
                _print(out, view)
                printed += 1
        if printed == count:
            return
    _note_none(out, printed)


def _from(reader: QueueReader, offset: int) -> Iterator[MessageView]:
    first, last = reader.ends()
    if not first <= offset < max(last, first + 1):
        raise ArgumentIllegal(
            f"offset {offset} is outside {reader.queue}: use one from {first} to below {last}"
        )
    return reader.messages(offset, last)


@command(
    "queryCq",
    SECTION,
    TOPIC,
    option("q", "queue", "The queue id.", to="queue_id", type=NUMBER, required=True),
    option("i", "index", "Queue offset of the first unit.", type=OFFSET, required=True),
    option("c", "count", "Show at most N units.", type=COUNT, default=10, metavar="N"),
    option("b", "broker", "Read from this broker.", metavar="HOST:PORT"),
    option("g", "consumer", "Also show the result of this group's filter.", to="group"),
)
def query_cq(
    admin: Admin, out: Output, *, topic: str, queue_id: int, group: str | None, **given: Any
) -> None:
    """Show units of a consume queue."""
    found = admin.queue_units(topic, queue_id, group=group, **given)
    more = {"subscription": found.subscription, "filter": found.filter}
    shown = more if group is not None and out.as_json else {}
    entries = f"{topic} {queue_id} has units {found.min_index} to {found.max_index}."
    if out.table(({**each.row(), **shown} for each in found.units), entries) and not out.as_json:
        out.footer(entries)
        if group is not None:
            out.fields({f"{group} {name}": value for name, value in more.items()})


# --- trial sends


@command(
    "sendMsgStatus",
    TRIALS,
    option("b", "brokerName", "The broker's name.", required=True),
    option("s", "messageSize", "Size of each message in bytes.", type=_BYTES, default=128),
    option("c", "count", "Number of messages.", type=COUNT, default=50),
)
def send_msg_status(
    admin: Admin, out: Output, *, broker_name: str, message_size: int, count: int
) -> None:
    """Send messages to a broker, to the topic of its name, and show the time of each."""
    trials = admin.trial_sends(broker_name, count, message_size, broker_name=broker_name)
    out.table(trials, "Nothing was sent.")
    _note_failures(out, TrialSummary.of(trials))


def _note_failures(out: Output, found: TrialSummary) -> None:
    if found.failed:
        out.fail(f"{found.failed} of {found.sent + found.failed} messages were not stored.")


@command(
    "checkMsgSendRT",
    TRIALS,
    TOPIC,
    option("a", "amount", "Number of messages.", type=COUNT, default=100),
    _SIZE,
)
def check_msg_send_rt(admin: Admin, out: Output, *, topic: str, amount: int, size: int) -> None:
    """Send messages to the queues of a topic in turn; show the time of each and the average."""
    trials = admin.trial_sends(topic, amount, size)
    out.table(trials, "Nothing was sent.")
    summary = TrialSummary.of(trials)
    out.fields(summary.row())
    _note_failures(out, summary)


@command(
    "clusterRT",
    TRIALS,
    option("a", "amount", "Number of messages a round.", to="count", type=COUNT, default=100),
    _SIZE,
    option("c", "cluster", "Only this cluster.", metavar="NAME"),
    yes_no(
        "p", "printLog", "Ignored, for compatibility with mqadmin; see --json.", expose_value=False
    ),
    option("m", "machineRoom", "Name of this machine's room.", to="room", default="noname"),
    option(
        "i", "interval", "Wait N seconds between rounds.", type=SECONDS, default=10, metavar="N"
    ),
    option(
        "r", "rounds", "End after N rounds. [default: run until Ctrl-C]", type=COUNT, metavar="N"
    ),
    until_interrupted=True,
)
def cluster_rt(
    admin: Admin, out: Output, *, interval: float, rounds: int | None, **given: Any
) -> None:
    """Send to every broker of a cluster in rounds and show average times, until Ctrl-C."""
    with admin.producer(TRIAL_GROUP) as producer:
        done = 0
        while rounds is None or done < rounds:
            if done:
                sleep(interval)
            done += 1
            found = list(admin.cluster_trials(producer, **given).tell(out.fail))
            out.table(found, "There are no brokers.")
            for each in found:
                _note_failures(out, each.summary)
