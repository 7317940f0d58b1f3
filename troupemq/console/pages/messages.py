"""Pages of messages: search by time, key, id or queue, and the newest of a topic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from time import monotonic

from protocol.compression import CompressionError
from troupemq.client.admin import Time
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageView
from troupemq.console.asking import PageRequest, failures_of, page
from troupemq.console.parts import (
    Cells,
    Form,
    Input,
    Link,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Size,
)
from troupemq.console.reading import ReadableQueue, found_by_key, queues_of

SHOWN = 50
SHOWN_MAX = 500
LOOKED_AT_MAX = 5_000
"""Limit of messages that one search reads."""

SEARCH_S = 4.0
PREVIEW_CHARS = 80
TAIL_COUNT = 20
TAIL_S = 2


@dataclass
class Search:
    """Search for messages in a topic; `is_cut` if it stopped at a limit."""

    topic: str
    begin_ms: int | None = None
    end_ms: int | None = None
    tag: str = ""
    text: str = ""
    broker: str = ""
    queue: int | None = None
    offset: int | None = None
    count: int = SHOWN
    failures: list[str] = field(default_factory=list)
    looked_at: int = 0
    is_cut: bool = False

    def run(self, asked: PageRequest) -> list[MessageView]:
        """Return the newest matches, or the first ones from a time or an offset."""
        session = asked.cluster.session
        until_s = monotonic() + SEARCH_S
        with session.within(SEARCH_S):
            queues = [
                each
                for each in queues_of(session, self.topic, self.failures, self.tag or "*")
                if (not self.broker or each.queue.broker_name == self.broker)
                and (self.queue is None or each.queue.queue_id == self.queue)
            ]
            found: list[MessageView] = []
            for each in queues:
                try:
                    found += self._of_queue(each, len(queues), until_s)
                except ClientError as error:
                    self.failures.append(str(error))
        if self._is_forward:
            found.sort(key=lambda view: view.store_timestamp_ms)
            return found[: self.count]
        return nlargest(self.count, found, key=lambda view: view.store_timestamp_ms)

    @property
    def _is_forward(self) -> bool:
        return self.begin_ms is not None or self.offset is not None

    def _of_queue(
        self, each: ReadableQueue, queue_count: int, until_s: float
    ) -> Iterator[MessageView]:
        last = each.ends.max_offset
        share = max(1, LOOKED_AT_MAX // max(1, queue_count))
        if self.offset is not None:
            first = self.offset
        elif self.begin_ms is not None:
            first = each.reader.offset_at(self.begin_ms)
        else:
            first = last - (share if self.text else self.count)
        found = 0
        for view in each.reader.messages(max(first, each.ends.min_offset), last):
            self.looked_at += 1
            share -= 1
            if self.end_ms is not None and view.store_timestamp_ms > self.end_ms:
                return
            if self._fits(view):
                found += 1
                yield view
            if share <= 0 or monotonic() > until_s:
                self.is_cut = True
                return
            if self._is_forward and found >= self.count:
                return

    def _fits(self, view: MessageView) -> bool:
        if self.begin_ms is not None and view.store_timestamp_ms < self.begin_ms:
            return False
        if not self.text:
            return True
        if any(self.text in each for each in view.properties.values()):
            return True
        try:
            return self.text.encode() in view.body
        except CompressionError:
            return False


@page("/messages")
def messages(asked: PageRequest) -> Page:
    """Show messages of a topic: the newest, or the result of a search."""
    topic, key, message_id = asked.text("topic"), asked.text("key"), asked.text("id")
    parts: list[Part] = [_form(asked)]
    if message_id:
        parts += _by_id(asked, message_id, topic)
    elif topic and key:
        parts += _by_key(asked, topic, key)
    elif topic:
        parts += _by_search(asked, topic)
    else:
        sentence = "Enter a topic to see its newest messages, or an id to find one message."
        parts.append(Notes("hint", "", [Note("fine", sentence)]))
    return Page("Messages", parts)


def _form(asked: PageRequest) -> Form:
    inputs = [
        Input("topic", "Topic", value=asked.text("topic")),
        Input("key", "Key", value=asked.text("key")),
        Input("id", "Message id", value=asked.text("id")),
        Input("begin", "From", "time", asked.text("begin")),
        Input("end", "Until", "time", asked.text("end")),
        Input("tag", "Tag", value=asked.text("tag")),
        Input("text", "Text contained", value=asked.text("text")),
        Input("broker", "Broker", value=asked.text("broker")),
        Input("queue", "Queue", "number", asked.text("queue")),
        Input("offset", "Queue offset", "number", asked.text("offset")),
        Input("count", "At most", "number", asked.text("count") or str(SHOWN)),
    ]
    return Form("", "/messages", inputs, "Find")


def _by_search(asked: PageRequest, topic: str) -> list[Part]:
    search = Search(
        topic,
        asked.time_ms("begin"),
        asked.time_ms("end"),
        asked.text("tag"),
        asked.text("text") if asked.sees_bodies() else "",
        asked.text("broker"),
        asked.number("queue", 0, 0, 1 << 30) if asked.text("queue") else None,
        asked.number("offset", 0, 0, 1 << 62) if asked.text("offset") else None,
        asked.number("count", SHOWN, 1, SHOWN_MAX),
    )
    notes = [
        Note("watch", f"{asked.text(name)!r} is not a time: use the form 2026-01-31T12:00.")
        for name in ("begin", "end")
        if asked.text(name) and asked.time_ms(name) is None
    ]
    try:
        found = search.run(asked)
    except ClientError as error:
        return failures_of([str(error)], "messages")
    if search.is_cut:
        sentence = f"The search stopped after {search.looked_at:,} messages: narrow it."
        notes.append(Note("watch", sentence))
    return [
        Notes("notes", "", notes),
        *failures_of(search.failures, "messages"),
        RowTable(
            "messages",
            "",
            rows_of(asked, found),
            f"No message of {topic} matches: change the search.",
        ),
    ]


def _by_key(asked: PageRequest, topic: str, key: str) -> list[Part]:
    session, failures = asked.cluster.session, list[str]()
    begin_ms, end_ms = asked.time_ms("begin"), asked.time_ms("end")
    try:
        with session.within():
            found = found_by_key(session, topic, key, failures, begin_ms, end_ms)
    except ClientError as error:
        return failures_of([str(error)], "messages")
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


def rows_of(asked: PageRequest, found: Sequence[MessageView]) -> list[Cells]:
    """Return rows of messages, with the start of the body if the viewer may see it."""
    return [
        {
            "stored_ms": Time(view.store_timestamp_ms),
            "message": Link(view.message_id, "/message", place_of(view)),
            "tags": view.tags,
            "keys": " ".join(view.keys) or None,
            "queue": f"{view.queue.broker_name}:{view.queue.queue_id}",
            "queue_offset": view.queue_offset,
            "bytes": Size(view.stored_bytes),
            "body": _preview(view) if asked.sees_bodies() else None,
        }
        for view in found
    ]


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
        body = view.body[: PREVIEW_CHARS * 4]
    except CompressionError as error:
        return str(error)
    text = " ".join(body.decode(errors="replace").split())
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"


@page("/tail")
def tail(asked: PageRequest) -> Page:
    """Show the newest messages of a topic, refreshed every TAIL_S."""
    topic = asked.text("topic")
    inputs = [
        Input("topic", "Topic", value=topic, needed=True),
        Input("tag", "Tag", value=asked.text("tag")),
        Input("text", "Text contained", value=asked.text("text")),
    ]
    parts: list[Part] = [Form("", "/tail", inputs, "Follow")]
    if not topic:
        return Page("Live messages", parts)
    text = asked.text("text") if asked.sees_bodies() else ""
    search = Search(topic, tag=asked.text("tag"), text=text, count=TAIL_COUNT)
    try:
        found = search.run(asked)
    except ClientError as error:
        return Page(f"Live messages of {topic}", [*parts, *failures_of([str(error)], "messages")])
    parts += failures_of(search.failures, "messages")
    parts.append(
        RowTable("messages", "", rows_of(asked, found), "No messages yet: send one to this topic.")
    )
    return Page(f"Live messages of {topic}", parts, refresh_s=TAIL_S)
