"""Commands about messages: found by id, key or offset; printed; sent."""

import click

from protocol.bodies_admin import ConsumeMessageDirectlyResult
from protocol.codes import RequestCode
from protocol.headers.client import ConsumeMessageDirectlyHeader
from protocol.properties import RESERVED_NAMES
from protocol.topic_names import TRACE_TOPIC
from troupemq.cli.admin.command import TOPIC, command, flag, option, parse_bool, yes_no
from troupemq.cli.admin.output import Output, Row, Time, snake_case
from troupemq.cli.admin.reading import reader_of
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.times import NUMBER, OFFSET
from troupemq.cli.admin.trace import events_of
from troupemq.cli.admin.tracks import tracks_of
from troupemq.cli.message_json import as_object
from troupemq.client.errors import MessageNotFound
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.producer_settings import ProducerSettings
from troupemq.redrive import has_accounts, original_of

SECTION = "Messages"
PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"

_DIRECT_GROUP = option("g", "consumerGroup", "Let a member of this group consume it now.")
_DIRECT_CLIENT = option("d", "clientId", "Which member.")


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
    option("u", "unitName", "Taken and not used: there are no units here."),
)
def query_msg_by_id(
    session: Session,
    out: Output,
    *,
    msg_id: str,
    topic: str | None,
    consumer_group: str | None,
    client_id: str | None,
    send_message: str,
    unit_name: str | None,
) -> None:
    """Show the message with this id, and who has consumed it."""
    for each in filter(None, map(str.strip, msg_id.split(","))):
        with out.attempt():
            view = session.find_message(each, topic)
            if consumer_group is not None and client_id is not None:
                _consume_directly(session, out, view, consumer_group, client_id)
            elif parse_bool(send_message):
                _send_again(session, out, view)
            else:
                _show(session, out, view)


def _show(session: Session, out: Output, view: MessageView) -> None:
    stored = {"store_timestamp_ms": Time(view.store_timestamp_ms)}
    tracks = tracks_of(session, view)
    out.fields({**as_object(view), **stored, "tracks": tracks, **_places(view)})


def _places(view: MessageView) -> Row:
    return {
        "offset_message_id": view.offset_message_id,
        "physical_offset": view.physical_offset,
        "born_timestamp_ms": Time(view.born_timestamp_ms),
        "born_host": view.born_host,
        "store_host": view.store_host,
        "sys_flag": view.sys_flag,
    }


def _consume_directly(
    session: Session, out: Output, view: MessageView, group: str, client_id: str
) -> None:
    header = ConsumeMessageDirectlyHeader(group, client_id, view.offset_message_id)
    found = session.read(
        ConsumeMessageDirectlyResult,
        session.listed(view.store_host)[1],
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        header,
        timeout_ms=30_000,
    )
    out.fields(snake_case(found.to_json()))


def _send_again(session: Session, out: Output, view: MessageView) -> None:
    is_retry = view.queue.topic != view.topic  # its sender says which topic it is from
    if is_retry and has_accounts(session, view.queue.topic):
        source = original_of(view, session)
        if source is None:
            raise MessageNotFound(
                f"{view.offset_message_id} is a retry that names {view.topic} as its topic, and no"
                " broker has that message there: it is not sent"
            )
        view = source
    own = {name: view.properties[name] for name in view.properties if name not in RESERVED_NAMES}
    message = Message(view.topic, view.body, view.tags, view.keys, own)
    with Producer(PRODUCER_GROUP, session.namesrv) as producer:
        result = producer.send(message)
    out.done(
        f"{view.offset_message_id} is sent again: {result.message_id} in {result.queue}.",
        before=view.offset_message_id,
        message_id=result.message_id,
        offset_message_id=result.offset_message_id,
    )


@command("queryMsgByKey", SECTION, TOPIC, option("k", "msgKey", "The key.", required=True))
def query_msg_by_key(session: Session, out: Output, *, topic: str, msg_key: str) -> None:
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
        for view in session.query_by_key(topic, msg_key)
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
    session: Session,
    out: Output,
    *,
    msg_id: str,
    consumer_group: str | None,
    client_id: str | None,
    topic: str,
    show_all: bool,
) -> None:
    """Show the message with this id of its producer's, and who has consumed it."""
    found = [view for view in session.query_by_key(topic, msg_id) if view.message_id == msg_id]
    if not found:
        out.fail(f"No message of {topic} has the id {msg_id}.")
    for view in found if show_all else found[:1]:
        if consumer_group is not None and client_id is not None:
            _consume_directly(session, out, view, consumer_group, client_id)
        else:
            _show(session, out, view)


@command(
    "queryMsgByOffset",
    SECTION,
    TOPIC,
    option("b", "brokerName", "The broker's name.", required=True),
    option("i", "queueId", "The queue.", type=NUMBER, required=True),
    option("o", "offset", "Its queue offset.", type=OFFSET, required=True),
)
def query_msg_by_offset(
    session: Session, out: Output, *, topic: str, broker_name: str, queue_id: int, offset: int
) -> None:
    """Show the message at an offset of a queue."""
    reader = reader_of(session, MessageQueue(topic, broker_name, queue_id))
    found = reader.at(offset)
    if found is None:
        out.fail(f"There is no message at {offset} in {reader.queue}.")
    else:
        _show(session, out, found)


@command(
    "queryMsgTraceById",
    SECTION,
    option("i", "msgId", "The id that the client gave it.", required=True),
    option("t", "traceTopic", "Where traces are.", default=TRACE_TOPIC, show_default=True),
    aliases=("QueryMsgTraceById",),
)
def query_msg_trace_by_id(session: Session, out: Output, *, msg_id: str, trace_topic: str) -> None:
    """Show what clients have noted about a message: sent, consumed, how long it took."""
    events = [
        event
        for view in session.query_by_key(trace_topic, msg_id)
        for event in events_of(view.body)
        if event["message_id"] == msg_id
    ]
    events.sort(key=lambda event: str(event["time_ms"] or ""))
    out.table(events, f"No trace of {msg_id} is in {trace_topic}.")


@command(
    "sendMessage",
    SECTION,
    TOPIC,
    option("p", "body", "The message.", required=True),
    option("k", "key", "Its keys, with blanks between."),
    option("c", "tags", "Its tag."),
    option("b", "broker", "The broker's name; needs -i."),
    option("i", "qid", "The queue; needs -b.", type=NUMBER),
    yes_no("m", "msgTraceEnable", "Leave a trace of it, as clients do."),
)
def send_message(
    session: Session,
    out: Output,
    *,
    topic: str,
    body: str,
    key: str | None,
    tags: str | None,
    broker: str | None,
    qid: int | None,
    msg_trace_enable: str,
) -> None:
    """Send one message."""
    if (broker is None) != (qid is None):
        raise click.UsageError("A queue is named by its broker (-b) and its number (-i).")
    queue = None if broker is None or qid is None else MessageQueue(topic, broker, qid)
    message = Message(topic, body.encode(), tags=tags, keys=tuple((key or "").split()))
    settings = ProducerSettings(trace=parse_bool(msg_trace_enable))
    with Producer(PRODUCER_GROUP, session.namesrv, settings=settings) as producer:
        result = producer.send(message, queue=queue)
    out.fields(
        {
            "broker": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
            "status": result.status.value,
            "message_id": result.message_id,
            "offset_message_id": result.offset_message_id,
        }
    )
