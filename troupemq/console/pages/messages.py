"""Pages of messages: search by time, key, id or queue, and the newest of a topic.

The page of live messages shows those of a topic as they come, until it ends by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, tzinfo

from protocol.compression import CompressionError, beginning
from troupemq.client.admin import Time
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageView
from troupemq.console.asking import PageRequest, failures_of, page, snapshot_page
from troupemq.console.findings import spoken
from troupemq.console.names import TOPICS
from troupemq.console.pages.topics import kind_here
from troupemq.console.parts import (
    Cells,
    Form,
    Input,
    Link,
    Links,
    LivePart,
    Note,
    Notes,
    Page,
    Part,
    ProgressLine,
    RowTable,
    Size,
)
from troupemq.console.reading import found_by_key
from troupemq.console.search import HIDDEN_PROPERTIES, READ_MAX, Filters, MessageSearch
from troupemq.console.tail import GO, NEXT, ON, PAUSE, STOP, TAIL_SHOWN, LiveTail, Scan, owner_of

SHOWN = 50
SHOWN_MAX = 500
SEARCH_EVERY_S = 1
PREVIEW_CHARS = 80
KEYS_CHARS_MAX = 1000
HIDDEN_TEXT = (
    "Your role cannot see message bodies, so it cannot search by text:"
    " use key, tag, property or time."
)
GONE = "This search is no longer kept: start it again."


def filters_of(asked: PageRequest) -> Filters:
    """Return the filters of the query; the text only for viewers who may see bodies."""
    return Filters(
        tag=asked.text("tag"),
        key=asked.text("key"),
        having=asked.text("having"),
        text=asked.text("text") if asked.sees_bodies() else "",
        begin_ms=asked.time_ms("begin"),
        end_ms=asked.time_ms("end"),
        broker=asked.text("broker"),
        queue=asked.number("queue", 0, 0, 1 << 30) if asked.text("queue") else None,
        offset=asked.number("offset", 0, 0, 1 << 62) if asked.text("offset") else None,
        hidden=frozenset() if asked.sees_bodies() else HIDDEN_PROPERTIES,
    )


def filter_inputs(asked: PageRequest) -> list[Input]:
    """Return the fields of the filters that every list of messages has."""
    return [
        Input("key", "Key", value=asked.text("key")),
        Input("tag", "Tag", value=asked.text("tag")),
        *(
            [Input("text", "Text contained", value=asked.text("text"))]
            if asked.sees_bodies()
            else []
        ),
        Input(
            "having",
            "Property",
            value=asked.text("having"),
            hint="a name, or name=value",
            is_rare=True,
        ),
        Input("broker", "Broker", value=asked.text("broker"), is_rare=True),
        Input("queue", "Queue", "number", asked.text("queue"), is_rare=True),
    ]


@page("/messages")
def messages(asked: PageRequest) -> Page:
    """Show messages of a topic: the newest, or the result of a search."""
    topic, key, message_id = asked.text("topic"), asked.text("key"), asked.text("id")
    parts: list[Part] = [_form(asked)]
    if asked.text("text") and not asked.sees_bodies():
        parts += [Notes("hidden", "", [Note("watch", HIDDEN_TEXT)]), RowTable("messages", "", [])]
    elif message_id:
        parts += _by_id(asked, message_id, topic)
    elif topic and key:
        parts += _by_key(asked, topic, key)
    elif topic:
        parts += _by_search(asked, topic)
    else:
        return _topics(asked, parts)
    return Page("Messages", parts)


def _form(asked: PageRequest) -> Form:
    inputs = [
        Input("topic", "Topic", value=asked.text("topic"), offers=TOPICS),
        *filter_inputs(asked),
        Input("begin", "From", "time", asked.text("begin")),
        Input("end", "Until", "time", asked.text("end")),
        Input("id", "Message id", value=asked.text("id"), is_rare=True),
        Input("offset", "Queue offset", "number", asked.text("offset"), is_rare=True),
        Input(
            "count", "At most", "number", asked.text("count"), hint=f"default {SHOWN}", is_rare=True
        ),
    ]
    return Form("", "/messages", inputs, "Find")


def _topics(asked: PageRequest, parts: list[Part]) -> Page:
    """Return the page without a topic: the topics, each a click from its newest messages."""
    now = asked.snapshot()
    found = [name for name in sorted(now.topics) if kind_here(name, now) == "own"]
    some, pager = asked.rows_of_page("/messages", found, {})
    rows = [
        {
            "topic": Link(name, "/messages", {"topic": name}),
            "live": Link("Live", "/tail", {"topic": name}),
            "details": Link("Queues and groups", "/topic", {"name": name}),
        }
        for name in some
    ]
    sentence = "Select a topic to see its newest messages, or search for a message."
    parts += [
        Notes("hint", "", [Note("fine", sentence)]),
        RowTable("topics", "Topics", rows, "No topics yet: create one.", pager=pager),
    ]
    return snapshot_page("Messages", now, parts)


def _by_search(asked: PageRequest, topic: str) -> list[Part]:
    """Return a search after its next step, or after the first one of a new search."""
    notes = [
        Note("watch", f"{asked.text(name)!r} is not a time: use the form 2026-01-31T12:00.")
        for name in ("begin", "end")
        if asked.text(name) and asked.time_ms(name) is None
    ]
    count = asked.number("count", SHOWN, 1, SHOWN_MAX)
    try:
        scan = gone_on(
            asked,
            "/messages",
            lambda: MessageSearch(topic, filters_of(asked), count, row_of(asked)),
        )
    except ClientError as error:
        return failures_of([str(error)], "messages")
    if scan is None:
        return [gone(asked, "/messages")]
    assert isinstance(scan, MessageSearch)
    if asked.is_api and scan.is_running:
        sentence = f"The search has read {scan.read:,} messages: add go=next to read on."
        notes.append(Note("watch", sentence))
    nothing = f"No message of {topic} matches: change the search."
    if scan.is_running:
        nothing = "No match so far."
    parts: list[Part] = [
        Notes("notes", "", notes),
        _progress(asked, scan),
        *failures_of(scan.failures, "messages"),
        RowTable("messages", "", scan.found, nothing),
    ]
    every_s = SEARCH_EVERY_S if scan.is_running else 0
    return [LivePart("search", parts, link_to(asked, "/messages", NEXT), every_s)]


def _progress(asked: PageRequest, scan: MessageSearch[Cells]) -> ProgressLine:
    filters = scan.filters
    reached = ""
    if scan.reached_ms is not None and scan.read < scan.total:
        direction = "up to" if filters.is_forward else "back to"
        reached = f", {direction} {time_text(scan.reached_ms, asked.zone)}"
    text = f"Read {scan.read:,} of {scan.total:,} messages{reached}; {len(scan.found):,} match"
    links = []
    if scan.is_stopped:
        text = f"Stopped. {text}"
    elif scan.is_paused:
        text = f"Paused. {text}"
        links = [link_to(asked, "/messages", ON, "Continue")]
    elif scan.is_cut:
        text = f"Stopped at the limit of {READ_MAX:,} messages. {text}"
    elif scan.is_running:
        text = f"Searching. {text}"
        links = [link_to(asked, "/messages", PAUSE, "Pause")]
    if scan.is_running or scan.is_paused:
        links.append(link_to(asked, "/messages", STOP, "Stop"))
    elif scan.read < scan.total and scan.reached_ms is not None:
        bound = "begin" if filters.is_forward else "end"
        on: dict[str, object] = {**query_of(asked), bound: scan.reached_ms}
        on.pop("offset", None)
        links.append(Link("Search on from there", "/messages", on))
    is_partial = scan.is_running or scan.is_paused
    share = scan.read / scan.total if scan.total and is_partial else None
    facts = {
        "state": state_of(scan),
        "read": scan.read,
        "of": scan.total,
        "matches": len(scan.found),
        "reached_ms": None if scan.reached_ms is None else Time(scan.reached_ms),
    }
    return ProgressLine("progress", f"{text}.", facts, links, share)


# --- searches and live pages that go on


def gone_on(asked: PageRequest, path: str, new: Callable[[], Scan]) -> Scan | None:
    """Return the scan of this address after its next step; None if it is no longer kept.

    An address without the parameter GO starts a new one. Raises ClientError.
    """
    scans, how = asked.console.scans, asked.text(GO)
    owner = owner_of(asked.viewer.name, path, query_of(asked), sees_bodies=asked.sees_bodies())
    if how:
        kept = scans.find(owner)
        if kept is None:
            return None
        kept.go(asked.cluster.session, how)
        return kept.scan
    scan = new()
    scan.step(asked.cluster.session)
    if scan.is_running:
        scans.keep(owner, scan)
    return scan


def gone(asked: PageRequest, path: str) -> LivePart:
    """Return the part that says that a scan is no longer kept; its name ends all requests."""
    again = link_to(asked, path, "", "Start it again")
    name = "search" if path == "/messages" else "live"
    return LivePart(name, [Notes("gone", "", [Note("watch", GONE, again)])], again)


def query_of(asked: PageRequest) -> dict[str, str]:
    """Return the parameters of the address, without what to do with the scan."""
    return {name: value for name, value in asked.query.items() if name != GO and value}


def link_to(asked: PageRequest, path: str, how: str, text: str = "") -> Link:
    query = query_of(asked)
    return Link(text, path, {**query, GO: how} if how else query)


def state_of(scan: Scan) -> str:
    if scan.is_stopped:
        return "stopped"
    if scan.is_paused:
        return "paused"
    return "running" if scan.is_running else "over"


def time_text(time_ms: int, zone: tzinfo) -> str:
    """Return a time in the viewer's zone, for a sentence."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, zone):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


# --- without steps


def _by_key(asked: PageRequest, topic: str, key: str) -> list[Part]:
    """Return the messages that the brokers' index has for a key, and that fit all filters."""
    session, failures = asked.cluster.session, list[str]()
    filters = filters_of(asked)
    try:
        with session.within():
            found = found_by_key(session, topic, key, failures, filters.begin_ms, filters.end_ms)
    except ClientError as error:
        return failures_of([str(error)], "messages")
    found = [each for each in found if filters.fits_in_place(each)]
    found = found[: asked.number("count", SHOWN, 1, SHOWN_MAX)]
    nothing = f"No message of {topic} has the key {key}: check key and time range."
    table = RowTable("messages", "", rows_of(asked, found), nothing)
    return [*failures_of(failures, "messages"), table]


def _by_id(asked: PageRequest, message_id: str, topic: str) -> list[Part]:
    try:
        with asked.cluster.session.within():
            found = [asked.cluster.session.find_message(message_id, topic or None)]
    except ClientError as error:
        return failures_of([str(error)], "messages")
    return [RowTable("messages", "", rows_of(asked, found))]


def rows_of(asked: PageRequest, found: Iterable[MessageView]) -> Sequence[Cells]:
    """Return rows of messages, with the start of the body if the viewer may see it."""
    make = row_of(asked)
    return [make(view) for view in found]


def row_of(asked: PageRequest) -> Callable[[MessageView], Cells]:
    sees_bodies = asked.sees_bodies()

    def make(view: MessageView) -> Cells:
        return {
            "stored_ms": Time(view.store_timestamp_ms),
            "message": Link(view.message_id, "/message", place_of(view)),
            "tags": view.tags,
            "keys": " ".join(view.keys)[:KEYS_CHARS_MAX] or None,
            "queue": f"{view.queue.broker_name}:{view.queue.queue_id}",
            "queue_offset": view.queue_offset,
            "bytes": Size(view.stored_bytes),
            "body": _preview(view) if sees_bodies else None,
        }

    return make


def place_of(view: MessageView) -> dict[str, object]:
    """Return queue and offset of a message, for a link."""
    return {
        "topic": view.queue.topic,
        "broker": view.queue.broker_name,
        "queue": view.queue.queue_id,
        "offset": view.queue_offset,
    }


def _preview(view: MessageView) -> str:
    try:
        body = beginning(view.stored_body, view.sys_flag, PREVIEW_CHARS * 4)
    except CompressionError as error:
        return str(error)
    text = " ".join(body.decode(errors="replace").split())
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"


TAIL_PATH = "/tail"
TAIL_S = 2


@page(TAIL_PATH)
def tail(asked: PageRequest) -> Page:
    """Show the newest messages of a topic, with new ones every TAIL_S."""
    topic = asked.text("topic")
    inputs = [
        Input("topic", "Topic", value=topic, needed=True, offers=TOPICS),
        *filter_inputs(asked),
    ]
    parts: list[Part] = [Form("", TAIL_PATH, inputs, "Follow")]
    if not topic:
        return Page("Live messages", parts)
    title = f"Live messages of {topic}"
    if asked.text("text") and not asked.sees_bodies():
        return Page(title, [*parts, Notes("hidden", "", [Note("watch", HIDDEN_TEXT)])])
    try:
        scan = gone_on(asked, TAIL_PATH, lambda: LiveTail(topic, filters_of(asked), row_of(asked)))
    except ClientError as error:
        return Page(title, [*parts, *failures_of([str(error)], "messages")])
    if scan is None:
        return Page(title, [*parts, gone(asked, TAIL_PATH)])
    assert isinstance(scan, LiveTail)
    shown: list[Part] = [
        _live_progress(asked, scan),
        *failures_of(scan.failures, "messages"),
        RowTable("messages", "", scan.found, "No messages yet: send one to this topic."),
    ]
    every_s = TAIL_S if scan.is_running else 0
    newest = Link("Newest messages", "/messages", {"topic": topic})
    return Page(
        title,
        [
            *parts,
            LivePart("live", shown, link_to(asked, TAIL_PATH, NEXT), every_s),
            Links([newest]),
        ],
    )


def _live_progress(asked: PageRequest, scan: LiveTail[Cells]) -> ProgressLine:
    text = f"{scan.seen:,} new messages"
    if scan.filters.is_selective:
        text += f", {scan.matches:,} match"
    if scan.skipped:
        text += f"; {scan.skipped:,} came too fast to be read"
    text += f". The newest {TAIL_SHOWN} are shown."
    links = []
    match state_of(scan):
        case "stopped" | "over":
            text = f"Ended. {text}"
            links = [link_to(asked, TAIL_PATH, "", "Follow again")]
        case "paused":
            text = f"Paused. {text}"
            links = [
                link_to(asked, TAIL_PATH, ON, "Continue"),
                link_to(asked, TAIL_PATH, STOP, "Stop"),
            ]
        case _:
            left = spoken(int(scan.left_s * 1000))
            text = f"Live, every {TAIL_S} s, ends in {left}. {text}"
            links = [
                link_to(asked, TAIL_PATH, PAUSE, "Pause"),
                link_to(asked, TAIL_PATH, STOP, "Stop"),
            ]
    facts = {
        "state": state_of(scan),
        "new": scan.seen,
        "not_read": scan.skipped,
        "matches": scan.matches,
        "left_s": int(scan.left_s),
    }
    return ProgressLine("progress", text, facts, links)
