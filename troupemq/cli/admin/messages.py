"""Commands about messages: found and shown, printed by the queue, sent."""

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
from troupemq.cli.admin.times import COUNT, NUMBER, OFFSET, SECONDS, TIME
from troupemq.cli.message_json import as_object
from troupemq.client.admin import Admin, Time
from troupemq.client.admin.offsets import NEWEST
from troupemq.client.admin.reading import QueueReader
from troupemq.client.admin.trials import TRIAL_GROUP, SendTrial, TrialSummary
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.client.message import MessageQueue, MessageView

SECTION, TRIALS = "Messages", "Trial sends"

_DIRECT_GROUP = option(
    "g", "consumerGroup", "Let a member of this group consume it now.", to="group"
)
_DIRECT_CLIENT = option("d", "clientId", "Which member.")
_SIZE = option("s", "size", "Bytes of each.", type=NUMBER, default=128, show_default=True)


@command(
    "queryMsgById",
    SECTION,
    option(
        "i",
        "msgId",
        "The id of a message, the broker's or its producer's; several with commas.",
        required=True,
    ),
    option("t", "topic", "Where to look for a producer's id. [default: all topics]"),
    _DIRECT_GROUP,
    _DIRECT_CLIENT,
    yes_no("s", "sendMessage", "Send it to its topic again."),
    option("u", "unitName", "Taken and not used: there are no units here.", expose_value=False),
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
    """Show the message with this id, and who has consumed it."""
    for each in filter(None, map(str.strip, msg_id.split(","))):
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
    """Show a message, or what a member makes of it."""
    if group is not None and client_id is not None:
        out.fields(admin.consume_directly(view, group, client_id).row())
        return
    tracks = admin.message_tracks(view)
    if tracks.failures:
        raise ClientError(tracks.failures[0])
    out.fields(
        {
            **as_object(view),
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
    option("i", "msgId", "The id that the client gave it.", required=True),
    _DIRECT_GROUP,
    _DIRECT_CLIENT,
    TOPIC,
    flag("a", "showAll", "All messages with this id, not only the first."),
)
def query_msg_by_unique_key(
    admin: Admin, out: Output, *, msg_id: str, topic: str, show_all: bool, **member: str | None
) -> None:
    """Show the message with this id of its producer's, and who has consumed it."""
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
    option("i", "queueId", "The queue.", type=NUMBER, required=True),
    option("o", "offset", "Its queue offset.", type=OFFSET, required=True),
)
def query_msg_by_offset(
    admin: Admin, out: Output, *, topic: str, broker_name: str, queue_id: int, offset: int
) -> None:
    """Show the message at an offset of a queue."""
    reader = admin.reader(MessageQueue(topic, broker_name, queue_id))
    found = reader.at(offset)
    if found is None:
        out.fail(f"There is no message at {offset} in {reader.queue}.")
    else:
        _show(admin, out, found)


listing(
    "queryMsgTraceById",
    SECTION,
    Admin.trace_events,
    "Show what clients have noted about a message: sent, consumed, how long it took.",
    "No trace of {message_id} is in {trace_topic}.",
    option("i", "msgId", "The id that the client gave it.", to="message_id", required=True),
    option("t", "traceTopic", "Where traces are.", default=TRACE_TOPIC, show_default=True),
    aliases=("QueryMsgTraceById",),
)


@command(
    "sendMessage",
    SECTION,
    TOPIC,
    option("p", "body", "The message.", required=True),
    option("k", "key", "Its keys, with blanks between."),
    option("c", "tags", "Its tag."),
    option("b", "broker", "The broker's name; needs -i."),
    option("i", "qid", "The queue; needs -b.", type=NUMBER),
    yes_no("m", "msgTraceEnable", "Leave a trace of it, as clients do.", to="trace"),
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
        raise click.UsageError("A queue is named by its broker (-b) and its number (-i).")
    queue = None if broker is None or qid is None else MessageQueue(topic, broker, qid)
    keys = (key or "").split()
    out.fields(admin.send_message(topic, body.encode(), keys=keys, queue=queue, **given).row())


# --- whole queues


def _charset(ctx: click.Context, param: click.Parameter, value: str) -> str:
    try:
        b"x".decode(value, "replace")
    except LookupError:
        raise click.BadParameter(
            f"{value!r} is no charset that is known here", ctx, param
        ) from None
    return value


_SINCE = "Stored since: ms since 1970, or 2026-01-31T12:00:00."
_BEGIN = option("b", "beginTimestamp", _SINCE, to="begin", type=TIME)
_END = option("e", "endTimestamp", "Stored until.", to="end", type=TIME)
_CHARSET = option(
    "c",
    "charsetName",
    "Character set of the bodies.",
    to="charset",
    default="UTF-8",
    show_default=True,
    callback=_charset,
)
_TAGS = option("s", "subExpression", "Only with one of these tags: a || b.", to="tags", default="*")


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
    _TAGS,
    _BEGIN,
    _END,
    yes_no("d", "printBody", "With bodies.", "true"),
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
    option("i", "queueId", "The queue.", type=NUMBER, required=True),
    _CHARSET,
    _TAGS,
    _BEGIN,
    _END,
    yes_no("p", "print", "Print them."),
    yes_no("d", "printBody", "With bodies."),
    yes_no("f", "calculate", "Count them by tag."),
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
    option("b", "brokerName", "Only this broker's queues."),
    option("i", "queueId", "Only this queue; needs -b.", type=NUMBER),
    option("o", "offset", "From there; needs -i.", type=OFFSET),
    option("g", "consumerGroup", "As this group; its offsets stay as they are."),
    option("s", "beginTimestamp", _SINCE, to="begin", type=TIME),
    _END,
    option("c", "MessageNumber", "At most that many.", to="count", type=COUNT, default=128),
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
    """Print some messages of a topic, without consuming them for anybody."""
    if (queue_id is not None and broker_name is None) or (offset is not None and queue_id is None):
        raise click.UsageError("An offset (-o) needs a queue (-i), and a queue a broker (-b).")
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
        raise ArgumentIllegal(f"{reader.queue} has the offsets from {first} to before {last}")
    return reader.messages(offset, last)


@command(
    "queryCq",
    SECTION,
    TOPIC,
    option("q", "queue", "The queue.", to="queue_id", type=NUMBER, required=True),
    option("i", "index", "From that entry on.", type=OFFSET, required=True),
    option("c", "count", "So many.", type=COUNT, default=10, show_default=True),
    option("b", "broker", "At this broker.", metavar="HOST:PORT"),
    option("g", "consumer", "And what this group's filter says of them.", to="group"),
)
def query_cq(
    admin: Admin, out: Output, *, topic: str, queue_id: int, group: str | None, **given: Any
) -> None:
    """Show entries of a consume queue."""
    found = admin.queue_units(topic, queue_id, group=group, **given)
    more = {"subscription": found.subscription, "filter": found.filter}
    shown = more if group is not None and out.as_json else {}
    entries = f"{topic} {queue_id} has entries {found.min_index} to {found.max_index}."
    if out.table(({**each.row(), **shown} for each in found.units), entries) and not out.as_json:
        out.footer(entries)
        if group is not None:
            out.fields({f"{group} {name}": value for name, value in more.items()})


# --- trial sends


@command(
    "sendMsgStatus",
    TRIALS,
    option("b", "brokerName", "The broker's name.", required=True),
    option("s", "messageSize", "Bytes of each.", type=NUMBER, default=128),
    option("c", "count", "How many.", type=COUNT, default=50, show_default=True),
)
def send_msg_status(
    admin: Admin, out: Output, *, broker_name: str, message_size: int, count: int
) -> None:
    """Send messages to one broker, each with its time; they go to the topic of its name."""
    trials = admin.trial_sends(broker_name, count, message_size, broker_name=broker_name)
    out.table(trials, "Nothing was sent.")
    _note_failures(out, trials)


def _note_failures(out: Output, trials: list[SendTrial]) -> None:
    failed = sum(each.status != "OK" for each in trials)
    if failed:
        out.fail(f"{failed} of {len(trials)} messages were not stored.")


@command(
    "checkMsgSendRT",
    TRIALS,
    TOPIC,
    option("a", "amount", "How many.", type=COUNT, default=100, show_default=True),
    _SIZE,
)
def check_msg_send_rt(admin: Admin, out: Output, *, topic: str, amount: int, size: int) -> None:
    """Send messages to the queues of a topic in turn, each with its time, and the average."""
    trials = admin.trial_sends(topic, amount, size)
    out.table(trials, "Nothing was sent.")
    out.fields(TrialSummary.of(trials).row())
    _note_failures(out, trials)


@command(
    "clusterRT",
    TRIALS,
    option("a", "amount", "Messages a round.", to="count", type=COUNT, default=100),
    _SIZE,
    option("c", "cluster", "This cluster only.", metavar="NAME"),
    yes_no(
        "p", "printLog", "Taken and not used: --json gives lines for a program.", expose_value=False
    ),
    option("m", "machineRoom", "A name for where this runs.", to="room", default="noname"),
    option("i", "interval", "Seconds between rounds.", type=SECONDS, default=10),
    option("r", "rounds", "End after that many.", type=COUNT),
    until_interrupted=True,
)
def cluster_rt(
    admin: Admin, out: Output, *, interval: float, rounds: int | None, **given: Any
) -> None:
    """Send to every broker of a cluster again and again: average times. Ends at Ctrl-C."""
    with admin.producer(TRIAL_GROUP) as producer:
        done = 0
        while rounds is None or done < rounds:
            if done:
                sleep(interval)
            done += 1
            found = list(admin.cluster_trials(producer, **given).tell(out.fail))
            out.table(found, "There are no brokers.")
