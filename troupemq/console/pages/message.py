"""Pages of one message: body, consumption by group, and trace."""

import json
import time
from collections.abc import Mapping, Sequence

from protocol.compression import DECOMPRESSED_BYTES_MAX, CompressionError, decompress
from protocol.java_numbers import plain_number
from protocol.properties import REAL_TOPIC, TROUPE_FAILURE
from protocol.timers import TIMER_OUT_MS, RecallHandle
from protocol.topic_names import SCHEDULE_TOPIC, TRACE_TOPIC
from troupemq.client.admin import Time
from troupemq.client.admin.life import LifeEvent
from troupemq.client.admin.messages import MessageTrack
from troupemq.client.admin.reading import events_in
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue, MessageView
from troupemq.console.asking import NotThere, PageRequest, failures_of, page
from troupemq.console.changes import change_links
from troupemq.console.pages.messages import place_of
from troupemq.console.parts import (
    Cells,
    CommandLine,
    Facts,
    Form,
    Input,
    Link,
    Links,
    LivePart,
    LongText,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Size,
    Span,
)
from troupemq.console.reading import found_by_key

BODY_SHOWN_BYTES = 64 << 10
HEX_COLUMNS = 16
HEX_BYTES_MAX = 4 << 10
LIKE_BYTES_MAX = 1_000
"""Bytes of a body that a link or a command line may hold."""

LIFE = "/message/life"
OFTEN_EMPTY = ("group", "client", "stored_at", "tries", "took_ms", "detail")
"""Columns of a life that a page leaves out if they are empty."""

LIFE_S = 8.0
"""Deadline for the life of a message; members of its groups are asked, too."""

HIDDEN = "Your role cannot see message bodies."
HIDDEN_TRACES = f"Your role can see traces in {TRACE_TOPIC} only."

_HIDDEN_BODY = Notes("hidden", "Body", [Note("fine", HIDDEN)])


def find_one(asked: PageRequest) -> MessageView:
    """Return the message at the queue and offset of the query. Raises NotThere, ClientError."""
    topic, broker = asked.needed("topic"), asked.needed("broker")
    queue = MessageQueue(topic, broker, asked.number("queue", 0, 0, 1 << 30))
    offset = asked.number("offset", 0, 0, 1 << 62)
    with asked.cluster.session.within():
        found = asked.cluster.session.reader(queue).at(offset)
    if found is None:
        raise NotThere(
            f"No message at offset {offset} of {queue}: it is deleted or not yet stored."
        )
    return found


@page("/message")
def message(asked: PageRequest) -> Page:
    """Show one message: body, properties, and consumption by group."""
    view = find_one(asked)
    tracks = asked.cluster.ask(lambda admin: admin.message_tracks(view))
    rows = [
        {"group": Link(each.group, "/group", {"name": each.group}), "state": _spoken_track(each)}
        for each in tracks.found
    ]
    facts = {
        "topic": Link(view.queue.topic, "/topic", {"name": view.queue.topic}),
        "queue": f"{view.queue.broker_name}:{view.queue.queue_id}",
        "queue_offset": view.queue_offset,
        "stored_ms": Time(view.store_timestamp_ms),
        "born_ms": Time(view.born_timestamp_ms),
        "tags": view.tags,
        "keys": " ".join(view.keys) or None,
        "message_id": view.message_id,
        "offset_message_id": view.offset_message_id,
        "born_host": view.born_host,
        "store_host": view.store_host,
        "times_consumed_before": view.reconsume_times,
        "stored_size": Size(view.stored_bytes),
    }
    properties = dict(view.properties)
    if not asked.sees_bodies():  # exceptions often quote the body
        properties.pop(TROUPE_FAILURE, None)
    links = [
        Link("Trace", "/trace", {"id": view.message_id}),
        Link("Neighbouring messages", "/messages", _around(view)),
        *([Link("Body as a file", "/message/body", place_of(view))] if asked.sees_bodies() else []),
    ]
    return Page(
        "Message",
        [
            Links([*links, *_changes(asked, view, tracks.found).links]),
            Facts("message", "", facts),
            *(_body(view) if asked.sees_bodies() else [_HIDDEN_BODY]),
            RowTable("consumers", "Consumption by group", rows, "No group consumes the topic."),
            *failures_of(tracks.failures, "consumers"),
            LivePart(
                "life",
                [Links([Link("Life of the message", LIFE, place_of(view))])],
                Link("", LIFE, place_of(view)),
                comes_later=True,
            ),
            Facts("properties", "Properties", properties, as_is=True),
            Facts("commands", "Command lines", _commands(asked, view)),
        ],
    )


@page(LIFE)
def life(asked: PageRequest) -> Page:
    """Show what brokers and clients know of a message, from its sending to its end, in order."""
    view = find_one(asked)
    found = asked.cluster.ask(lambda admin: admin.life_of(view), LIFE_S)
    lives = found.found
    events = lives[0].events if lives else ()
    first_ms: int = next((each.time_ms for each in events if each.time_ms), 0)
    rows = [_life_row(asked, each, first_ms) for each in events]
    unknown = lives[0].unknown if lives else ()
    parts: list[Part] = [
        *failures_of(found.failures, "life"),
        RowTable(
            "events",
            "Life of the message",
            rows,
            "Nothing is known of it.",
            only_json=[key for key in OFTEN_EMPTY if not any(row[key] for row in rows)],
        ),
        Notes("unknown", "", [Note("fine", each) for each in unknown]),
    ]
    back = Links([Link(f"Message {view.message_id}", "/message", place_of(view))])
    again = Link("", LIFE, place_of(view))
    return Page("Life of a message", [back, LivePart("life", parts, again)])


def _life_row(asked: PageRequest, event: LifeEvent, first_ms: int) -> Cells:
    """Return an event as a row; reasons of failures only for viewers who may see bodies."""
    detail = event.detail
    if not asked.sees_bodies():
        detail = detail.partition("reason: ")[0].rstrip("; ")
    stored = None
    if event.topic is not None and event.broker is not None:
        place = {"topic": event.topic, "broker": event.broker}
        place |= {"queue": str(event.queue_id), "offset": str(event.offset)}
        text = f"{event.topic} {event.broker}:{event.queue_id} at {event.offset}"
        stored = Link(text, "/message", place)
    client: Link | str | None = event.client
    if event.group and event.client:
        client = Link(event.client, "/client", {"group": event.group, "client": event.client})
    return {
        "time_ms": event.time_ms,
        "after_ms": Span(event.time_ms - first_ms) if event.time_ms else None,
        "what": event.what,
        "group": Link(event.group, "/group", {"name": event.group}) if event.group else None,
        "client": client,
        "stored_at": stored,
        "tries": event.tries,
        "took_ms": None if event.took_ms is None else Span(event.took_ms),
        "detail": detail or None,
    }


def _changes(asked: PageRequest, view: MessageView, tracks: Sequence[MessageTrack]) -> Links:
    """Return links to the changes of a message."""
    given = {"id": view.offset_message_id}
    wanted: list[tuple[str, str, Mapping[str, object]]] = [("Send again", "resend", given)]
    if (text := _short_text(view)) is not None:
        tag, keys = view.tags or "", " ".join(view.keys)
        like = {"topic": view.queue.topic, "body": text, "tag": tag, "key": keys}
        wanted.append(("Send a message like it", "send", like))
    if (timer := _pending_timer(view)) is not None:
        recall = {"topic": timer.topic, "handle": timer.encode()}
        wanted.append(("Recall", "recall", recall))
    group = tracks[0].group if tracks else ""
    wanted.append(("Consume again by one member", "consume-again", {**given, "group": group}))
    return change_links(asked, wanted)


def _pending_timer(view: MessageView) -> RecallHandle | None:
    """Return the recall handle of a message that waits for its delivery time; else None."""
    due_ms = plain_number(view.properties.get(TIMER_OUT_MS.decode(), "")) or 0
    topic = view.properties.get(REAL_TOPIC)
    if view.queue.topic != SCHEDULE_TOPIC or not topic or due_ms <= time.time() * 1000:
        return None
    return RecallHandle(topic, view.queue.broker_name, due_ms, view.message_id)


def _short_text(view: MessageView) -> str | None:
    """Return the body if it is a text that fits into a link and a command line."""
    try:
        text = view.body.decode()
    except (CompressionError, UnicodeDecodeError):
        return None
    return text if len(view.body) <= LIKE_BYTES_MAX and "\0" not in text else None


def _commands(asked: PageRequest, view: MessageView) -> Cells:
    """Return the command lines that show and send this message."""
    line, queue = asked.cluster.line, view.queue
    place = ["-b", queue.broker_name, "-i", str(queue.queue_id), "-o", str(view.queue_offset)]
    found = {
        "show_it": CommandLine(line(["admin", "queryMsgByOffset", "-t", queue.topic, *place])),
        "send_it_again": CommandLine(
            line(["admin", "queryMsgById", "-i", view.offset_message_id, "-s", "true"])
        ),
    }
    text = _short_text(view) if asked.sees_bodies() else None
    if text is not None and text.isprintable():
        words = ["admin", "sendMessage", "-t", queue.topic, "-p", text]
        words += ["-c", view.tags] if view.tags else []
        words += ["-k", " ".join(view.keys)] if view.keys else []
        found["send_a_message_like_it"] = CommandLine(line(words))
    return found


def _around(view: MessageView) -> dict[str, object]:
    return {**place_of(view), "offset": max(0, view.queue_offset - 10), "count": 20}


def _spoken_track(track: MessageTrack) -> str:
    return {
        "not_yet": "not yet",
        "pull": "unknown: pull consumer",
        "offline": "no member connected",
        "filtered": "filtered out by its tag",
    }.get(track.state, track.state)


def _body(view: MessageView) -> list[Part]:
    try:
        body = view.body
    except CompressionError as error:
        return [
            Notes(
                "body_fault", "Body", [Note("watch", f"The body cannot be decompressed: {error}.")]
            )
        ]
    cut = body[:BODY_SHOWN_BYTES]
    more = "" if len(cut) == len(body) else f", the first {len(cut):,} of {len(body):,} bytes"
    try:
        text = cut.decode()
    except UnicodeDecodeError as error:
        text = cut.decode(errors="replace")
        if error.start < len(cut) - 4:
            return [
                LongText("hex", f"Body in hexadecimal{more}", hexadecimal(cut)),
                LongText("text", "Body as text", text, True),
            ]
    parts: list[Part] = []
    if len(cut) == len(body) and text.lstrip()[:1] in ("{", "["):
        try:
            shown = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
        else:
            parts.append(LongText("json", "Body as JSON", shown))
    title = "Original body" if parts else "Body"
    parts.append(LongText("body", f"{title}{more}", text, bool(parts)))
    parts.append(LongText("hex", "Body in hexadecimal", hexadecimal(cut), True))
    return parts


def hexadecimal(data: bytes) -> str:
    """Return lines of offset, bytes, and their printable ASCII characters."""
    cut = data[:HEX_BYTES_MAX]
    lines = []
    for start in range(0, len(cut), HEX_COLUMNS):
        part = cut[start : start + HEX_COLUMNS]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{HEX_COLUMNS * 3}} {text}")
    if len(cut) < len(data):
        lines.append(f"… {len(data) - len(cut):,} bytes more")
    return "\n".join(lines)


@page("/trace")
def trace(asked: PageRequest) -> Page:
    """Show the trace events of a message, with the time since the first."""
    message_id = asked.text("id")
    topic = asked.text("trace_topic") or TRACE_TOPIC
    inputs = [
        Input("id", "Message id or key", value=message_id, needed=True),
        Input("trace_topic", "Trace topic", value=topic),
    ]
    parts: list[Part] = [Form("", "/trace", inputs, "Show")]
    if not message_id:
        return Page("Trace", parts)
    if topic != TRACE_TOPIC and not asked.sees_bodies():  # records of other topics show bodies
        return Page("Trace", [*parts, Notes("hidden", "", [Note("fine", HIDDEN_TRACES)])])
    failures: list[str] = []
    try:
        with asked.cluster.session.within():
            views = found_by_key(asked.cluster.session, topic, message_id, failures)
    except ClientError as error:
        return Page("Trace", [*parts, *failures_of([str(error)], "trace")])
    parts += failures_of(failures, "trace")
    events = list(events_in(views))
    ids = {event.message_id for event in events}
    wanted = [each for each in events if message_id not in ids or each.message_id == message_id]
    wanted.sort(key=lambda event: _time_of(event.time_ms))
    began_ms = next((_time_of(each.time_ms) for each in wanted if _time_of(each.time_ms)), 0)
    rows = [
        {
            "what": _SPOKEN.get(event.kind, event.kind),
            "after_ms": (
                Span(_time_of(event.time_ms) - began_ms) if _time_of(event.time_ms) else None
            ),
            **{key: value for key, value in event.row().items() if key != "kind"},
        }
        for event in wanted
    ]
    nothing = f"No trace of {message_id} in {topic}: enable message tracing in the clients."
    return Page("Trace", [*parts, RowTable("events", "", rows, nothing)])


_SPOKEN = {
    "Pub": "sent",
    "SubBefore": "delivered to a consumer",
    "SubAfter": "consumed",
    "EndTransaction": "transaction ended",
}


def _time_of(value: object) -> int:
    return int(value) if isinstance(value, Time) else 0


def body_of(view: MessageView, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return the body, decompressed if possible and not too long, else as it is stored."""
    try:
        return decompress(view.stored_body, view.sys_flag, max_bytes)
    except CompressionError:
        return view.stored_body
