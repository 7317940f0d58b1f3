"""Pages of dead letters, open transactions and delayed messages."""

import json
from base64 import b64encode
from collections.abc import Callable
from time import time_ns

from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC
from protocol.topic_names import DLQ_TOPIC_PREFIX, SCHEDULE_TOPIC
from troupemq.client.admin import Time
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue, MessageView
from troupemq.console.asking import NotUsable, PageRequest, failures_of, page, snapshot_page
from troupemq.console.changes import change_link, change_links
from troupemq.console.given import legal_name
from troupemq.console.pages.message import body_of
from troupemq.console.pages.messages import row_of
from troupemq.console.parts import (
    Cells,
    Form,
    Input,
    Link,
    Links,
    Note,
    Notes,
    Page,
    Part,
    Pick,
    Picks,
    RowTable,
    Span,
)
from troupemq.console.search import Filters, Made, MessageSearch
from troupemq.console.snapshot import BrokerSummary
from troupemq.numbers import whole
from troupemq.redrive import to_discard

_OFFSET = "scheduleMessageOffset_"
LETTERS = 50
EXPORTED_MAX = 1000
EXPORTED_BYTES_MAX = 256 << 20
UNFOLDED_BYTES_MAX = 16 << 20
"""Maximum of one body; a longer one is exported as it is stored."""
ONLY_JSON = frozenset(("tags", "queue", "queue_offset", "bytes", "age_ms", "send_back"))
EXPORT = "/dead-letters/export"
WHY = "TroupeMQ consumers report the failure to the broker; other clients only log it."


@page("/dead-letters")
def dead_letters(asked: PageRequest) -> Page:
    now = asked.snapshot()
    found = [each for each in now.groups.values() if each.dead_letters]
    rows = [
        {
            "group": Link(each.name, "/dead-letters/group", {"name": each.name}),
            "dead_letters": each.dead_letters,
            "members": each.members,
        }
        for each in sorted(found, key=lambda each: -(each.dead_letters or 0))
    ]
    nothing = "No group has dead letters."
    return snapshot_page("Dead letters", now, [RowTable("groups", "", rows, nothing)])


@page("/dead-letters/group")
def letters_of_group(asked: PageRequest) -> Page:
    """Show the newest dead letters of one group, with topic, retries and failure."""
    group = asked.needed("name", legal_name)
    picks, cells = _picks(asked, group), row_of(asked)

    def made(view: MessageView) -> tuple[Cells, MessageQueue, int]:
        pick = {"offset_message_id": Pick(view.offset_message_id)} if picks else {}
        return {**pick, **cells(view), **_letter(asked, group, view)}, view.queue, view.queue_offset

    search = _letters(asked, group, asked.number("count", LETTERS, 1, 500), made)
    given = {name: asked.text(name) for name in ("name", "begin", "end") if asked.text(name)}
    try:
        found = search.run(asked.cluster.session)
    except ClientError as error:
        return Page(f"Dead letters of {group}", failures_of([str(error)], "letters"))
    plan = asked.cluster.ask(lambda admin: to_discard(admin, group))
    done = {(each.broker, each.queue_id): each.offset_before for each in plan.found}
    rows = [{**row, "state": _state_of(queue, offset, done)} for row, queue, offset in found]
    waiting = sum(each.discarded for each in plan.found)
    notes = [Note("watch", f"{waiting:,} wait for a redrive or a discard.")] if waiting else []
    inputs = [
        Input("name", "", "hidden", group),
        Input("begin", "From", "time", asked.text("begin")),
        Input("end", "Until", "time", asked.text("end")),
        Input("count", "At most", "number", asked.text("count") or str(LETTERS)),
    ]
    return Page(
        f"Dead letters of {group}",
        [
            Form("", "/dead-letters/group", inputs, "Show"),
            change_links(
                asked,
                [
                    ("Redrive many or all", "redrive", {"group": group}),
                    ("Discard all", "discard-all", {"group": group}),
                ],
            ),
            Notes("waiting", "", notes),
            *failures_of([*search.failures, *plan.failures], "letters"),
            RowTable(
                "letters",
                "",
                rows,
                "No dead letters in this time range.",
                WHY,
                picks=picks,
                only_json=ONLY_JSON,
            ),
            Links(
                [
                    *([Link("Export as JSON lines", EXPORT, given)] if asked.sees_bodies() else []),
                    Link(f"Group {group}", "/group", {"name": group}),
                ]
            ),
        ],
    )


def _picks(asked: PageRequest, group: str) -> Picks | None:
    """Return the changes of chosen dead letters that the viewer may make."""
    wanted = [("Redrive", "redrive-some"), ("Discard", "discard")]
    found = [change_link(asked, text, name, {"group": group}) for text, name in wanted]
    links = [each for each in found if each is not None]
    return Picks("offset_message_id", links) if links else None


def _letter(asked: PageRequest, group: str, view: MessageView) -> Cells:
    """Return what a dead letter has besides the columns of any message."""
    age_ms = max(0, time_ns() // 1_000_000 - view.store_timestamp_ms)
    origin, given = _origin(view), {"group": group, "id": view.offset_message_id}
    return {
        "from_topic": view.properties.get(RETRY_TOPIC),
        "times_tried": view.reconsume_times,
        "failure": view.failure if asked.sees_bodies() else None,
        "trace": Link("Trace", "/trace", {"id": origin}) if origin else None,
        "age_ms": Span(age_ms),
        "send_back": change_link(asked, "Redrive", "redrive-one", given),
    }


def _state_of(
    queue: MessageQueue, queue_offset: int, done: dict[tuple[str, int], int]
) -> str | None:
    """Return whether a redrive of all comes to a dead letter, or has passed it."""
    passed = done.get((queue.broker_name, queue.queue_id))
    if passed is None:
        return None
    return "waiting" if queue_offset >= passed else "redriven or discarded"


def _letters(
    asked: PageRequest, group: str, count: int, make: Callable[[MessageView], Made]
) -> MessageSearch[Made]:
    """Return a search that keeps what `make` returns: 500 messages may have gigabytes."""
    filters = Filters(begin_ms=asked.time_ms("begin"), end_ms=asked.time_ms("end"))
    return MessageSearch(DLQ_TOPIC_PREFIX + group, filters, count, make)


def _origin(view: MessageView) -> str | None:
    return view.properties.get(ORIGIN_MESSAGE_ID)


def export(asked: PageRequest) -> bytes:
    """Return at most EXPORTED_MAX dead letters of a group as JSON lines with bodies.

    Raises NotThere, NotUsable, ClientError.
    """
    size = 0

    def line(view: MessageView) -> bytes:
        nonlocal size
        text = json.dumps(_exported(view)).encode() + b"\n"
        size += len(text)
        if size > EXPORTED_BYTES_MAX:
            most = EXPORTED_BYTES_MAX >> 20
            raise NotUsable(f"These dead letters have more than {most} MiB: choose a time range.")
        return text

    group = asked.needed("name", legal_name)
    return b"".join(_letters(asked, group, EXPORTED_MAX, line).run(asked.cluster.session))


def _exported(view: MessageView) -> dict[str, object]:
    body = body_of(view, UNFOLDED_BYTES_MAX)
    try:
        said = {"body": body.decode()}
    except UnicodeDecodeError:
        said = {"body_base64": b64encode(body).decode()}
    return {
        "message_id": view.message_id,
        "origin_message_id": _origin(view),
        "from_topic": view.properties.get(RETRY_TOPIC),
        "times_tried": view.reconsume_times,
        "failure": view.failure,
        "stored_ms": view.store_timestamp_ms,
        "born_ms": view.born_timestamp_ms,
        "tags": view.tags,
        "keys": list(view.keys),
        "properties": dict(view.properties),
        **said,
    }


@page("/transactions")
def transactions(asked: PageRequest) -> Page:
    """Show the open transactions of TroupeMQ brokers, the oldest first."""
    now = asked.snapshot()
    rows = [
        {
            "producer_group": each.producer_group,
            "topic": Link(each.topic, "/topic", {"name": each.topic}),
            "message_id": each.message_id,
            "age_ms": Span(max(0, now.taken_ms - each.born_timestamp)),
            "born_ms": Time(each.born_timestamp),
            "times_asked": each.check_times,
            "producer": each.born_host,
            "broker": address,
            "offset_message_id": each.offset_message_id,
        }
        for address, ends in now.transactions.items()
        for each in ends.transactions
    ]
    total = sum(ends.count for ends in now.transactions.values())
    about = "" if total <= len(rows) else f"The oldest {len(rows)} of {total:,} only."
    nothing = (
        "No transaction is open."
        if now.transactions
        else "No broker here lists open transactions; RocketMQ brokers do not support it."
    )
    parts: list[Part] = [
        RowTable("transactions", "", rows, nothing, about),
        change_links(asked, [("Resume the check-backs of a transaction", "resume", {})]),
    ]
    return snapshot_page("Open transactions", now, parts)


@page("/delays")
def delays(asked: PageRequest) -> Page:
    """Show each delay level of each master: backlog, next due time and time lag."""
    now = asked.snapshot()
    failures: list[str] = []
    rows: list[Cells] = []
    with asked.cluster.session.within():
        for each in now.masters:
            for level, offset, most in _levels(each):
                due_ms = _due_ms(asked, each, level, offset, failures) if most > offset else None
                late_ms = None if due_ms is None else max(0, now.taken_ms - due_ms)
                rows.append(
                    {
                        "broker": each.place.name,
                        "level": level,
                        "waiting": max(0, most - offset),
                        "next_due_ms": None if due_ms is None else Time(due_ms),
                        "late_ms": None if late_ms is None else Span(late_ms),
                    }
                )
    parts: list[Part] = [
        change_links(asked, [("Recall a timer message", "recall", {})]),
        *failures_of(failures, "delays"),
        RowTable("delays", "", rows, "No broker has delayed messages."),
    ]
    return snapshot_page("Delayed messages", now, parts)


def _levels(each: BrokerSummary) -> list[tuple[int, int, int]]:
    """Return level, next offset and max offset of each delay level."""
    found = []
    for name, value in each.says.items():
        level, (next_one, _, most) = whole(name.removeprefix(_OFFSET)), value.partition(",")
        offset = whole(next_one)
        if name.startswith(_OFFSET) and level is not None and offset is not None:
            found.append((level, offset, whole(most) or 0))
    return sorted(found)


def _due_ms(
    asked: PageRequest, each: BrokerSummary, level: int, offset: int, failures: list[str]
) -> int | None:
    """Return the due time of a level's next message; its unit holds it as the tags code."""
    address = each.place.address
    try:
        found = asked.cluster.session.queue_units(
            SCHEDULE_TOPIC, level - 1, offset, 1, broker=address
        )
    except ClientError as error:
        if str(error) not in failures:
            failures.append(str(error))
        return None
    return found.units[0].tags_code if found.units else None
