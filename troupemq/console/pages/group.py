"""Pages of consumer groups: the list, and one group with its verdict, members and queues."""

from collections.abc import Mapping, Sequence
from time import time_ns

from protocol.properties import RETRY_TOPIC
from protocol.topic_names import DLQ_TOPIC_PREFIX
from troupemq.client.admin import Time
from troupemq.client.admin.progress import (
    CurrentMessage,
    GroupProgress,
    MemberProgress,
    ProgressReport,
    QueueProgress,
)
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue
from troupemq.console.asking import NotThere, PageRequest, failures_of, page, snapshot_page
from troupemq.console.changes import change_links
from troupemq.console.findings import sentence_of
from troupemq.console.given import legal_name
from troupemq.console.pages.messages import place_of
from troupemq.console.pages.overview import REFRESH_S, group_row, stuck_rows, stuck_text
from troupemq.console.parts import (
    Cells,
    Facts,
    Form,
    Input,
    Link,
    Links,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Span,
)
from troupemq.console.reading import ReadableQueue, newest_of, queues_of
from troupemq.console.snapshot import GroupSummary

LETTERS = 5
"""Dead letters on the page."""

LETTERS_S = 2.0
TOPICS_MAX = 20
"""Limit of topics for reading their queues."""


@page("/group")
def group(asked: PageRequest) -> Page:
    """Show who is stuck where: members, queues, then what explains them."""
    name = asked.needed("name", legal_name)
    now = asked.snapshot()
    state = now.groups.get(name)
    report, failures = _report(asked, name, bool(state and state.is_stuck))
    if state is None and report is None:
        raise NotThere(f"Group {name} not found at any broker that answers.")
    state = state or GroupSummary(name)
    history, differing = _history(asked, name)
    parts: list[Part] = [
        _actions(asked, state),
        Notes("differing", "", differing),
        *failures_of(failures, "progress"),
    ]
    facts = group_row(state)
    if report is not None:
        found = report.group
        facts = {**facts, "lag": found.lag, "members": found.members, **_exact(found)}
        parts.append(Notes("verdict", "", _verdicts(report)))
    hidden = ("group", "late_at_most_ms") if report else ("group",)
    title = f"Sums of all brokers{now.without}" if now.without else ""
    parts.append(Facts("group", title, facts, only_json=hidden))
    members, subscriptions = _members(asked, name, report)
    parts += [*members, *_queues(asked, report), *subscriptions, *history]
    parts += [*_dead_letters(asked, state), *_settings(asked, name)]
    return Page(f"Group {name}", parts, now.missing, REFRESH_S, time_ns() // 1_000_000)


def _report(
    asked: PageRequest, name: str, is_stuck: bool
) -> tuple[ProgressReport | None, Sequence[str]]:
    """Return the progress, and failures; a refresh asks for stacks only if the group is stuck."""
    with_stacks = is_stuck or not asked.is_refresh
    found = asked.cluster.ask(lambda admin: [admin.progress(name, with_stacks=with_stacks)])
    if not found.found:
        return None, found.failures
    return found.found[0], [*found.failures, *found.found[0].failures]


def _exact(found: GroupProgress) -> Cells:
    return {
        "late_ms": None if found.late_ms is None else Span(found.late_ms),
        "in_flight": found.in_flight,
        "consumed_at_ms": found.consumed_at_ms,
        "stuck": stuck_text(found.is_stuck, found.stuck_since_ms),
    }


def _verdicts(report: ProgressReport) -> list[Note]:
    """Return the verdict of the group, and those of its stuck members."""
    found = report.group
    level = "trouble" if found.is_stuck else "watch" if found.is_stuck is None else "fine"
    if found.lag and not found.members:
        level = "trouble"
    notes = [Note(level, sentence_of(found.verdict), since_ms=found.stuck_since_ms)]
    for each in report.members:
        if each.is_stuck:
            link = Link("Stacks", "/client", {"group": found.group, "client": each.client})
            text = f"The member {each.client} is stuck: {each.verdict}."
            notes.append(Note("trouble", text, link, each.stuck_since_ms))
    return notes


def _actions(asked: PageRequest, state: GroupSummary) -> Links:
    topics = sorted(state.topics) or [""]
    topic = next((each for each in topics if not each.startswith("%")), topics[0])
    given = {"group": state.name, "topic": topic}
    changes = change_links(
        asked,
        [
            ("Reset offsets to a time", "reset-offset", given),
            ("Skip the backlog", "skip", given),
            ("Copy offsets from another group", "clone-offset", given),
            ("Change settings", "group", {"group": state.name}),
            ("Delete", "delete-group", {"group": state.name}),
        ],
    )
    own = [
        Link("Member states", "/group/members", {"name": state.name}),
        Link("Dead letters", "/dead-letters/group", {"name": state.name}),
    ]
    return Links([*own, *changes.links])


def _queues(asked: PageRequest, report: ProgressReport | None) -> list[Part]:
    """Return the queues, stuck ones first, each with the message at which the group stands."""
    queues = () if report is None else report.queues
    failures: list[str] = []
    known = _queues_of(asked, [each.topic for each in queues], failures)
    ordered = sorted(queues, key=lambda each: (not each.is_stuck, each.topic.startswith("%")))
    rows = [_queue_row(each, known, report) for each in ordered]
    hidden = ["consumer_offset", "broker_offset", "last_consumed_ms", "next"]
    if all(row["still_kept"] is not False for row in rows):
        hidden.append("still_kept")
    return [
        *failures_of(failures, "queues"),
        RowTable(
            "queues",
            "Queue progress",
            rows,
            "No offsets yet: start a consumer of the group.",
            marked=[number for number, each in enumerate(ordered) if each.is_stuck],
            only_json=hidden,
        ),
    ]


def _queues_of(
    asked: PageRequest, topics: Sequence[str], failures: list[str]
) -> dict[MessageQueue, ReadableQueue]:
    found: dict[MessageQueue, ReadableQueue] = {}
    session = asked.cluster.session
    with session.within():
        for topic in list(dict.fromkeys(topics))[:TOPICS_MAX]:
            try:
                found.update({each.queue: each for each in queues_of(session, topic, failures)})
            except ClientError as error:
                failures.append(str(error))
    return found


def _queue_row(
    each: QueueProgress,
    known: Mapping[MessageQueue, ReadableQueue],
    report: ProgressReport | None,
) -> Cells:
    """Return a queue, whether the next message is retained, and links to it and to its member."""
    offset = each.consumer_offset
    there = known.get(MessageQueue(each.topic, each.broker, each.queue_id))
    is_kept = None if there is None else there.ends.min_offset <= offset
    client: object = each.client
    if client and report is not None:
        query = {"group": report.group.group, "client": each.client}
        client = Link(each.client or "", "/client", query)
    text = f"{offset:,}"
    if each.is_stuck:
        text += f", stuck {stuck_text(True, each.stuck_since_ms)}"
    return {
        "topic": Link(each.topic, "/topic", {"name": each.topic}),
        "broker": each.broker,
        "queue_id": each.queue_id,
        "lag": each.lag,
        "late_ms": None if each.late_ms is None else Span(each.late_ms),
        "in_flight": each.in_flight,
        "consumer_offset": offset,
        "broker_offset": each.broker_offset,
        "still_kept": is_kept,
        "last_consumed_ms": each.last_consumed_ms,
        "consumed_at_ms": each.consumed_at_ms,
        "stands_at": _message_link(each, offset, text) if each.lag > 0 else text,
        "next": _message_link(each, offset, "Show") if each.lag > 0 else None,
        "client": client,
    }


def _message_link(at: QueueProgress | CurrentMessage, offset: int, text: str) -> Link:
    place = {"topic": at.topic, "broker": at.broker, "queue": at.queue_id, "offset": offset}
    return Link(text, "/message", place)


def _members(
    asked: PageRequest, name: str, report: ProgressReport | None
) -> tuple[list[Part], list[Part]]:
    """Return the members with their progress, and their subscriptions."""
    found = asked.cluster.ask(lambda admin: [admin.group_members(name)])
    if not found.found:
        sentence = found.failures[0] if found.failures else "no broker answers"
        text = f"No members found: {sentence}. Start a consumer of the group."
        return [Notes("members_missing", "Members", [Note("watch", text)])], []
    fields = found.found[0]
    by_client = {} if report is None else {each.client: each for each in report.members}
    known = [(each, by_client.get(each.client)) for each in fields.members]
    known.sort(key=lambda item: item[1] is None or not item[1].is_stuck)
    rows = [{**_member_row(name, each.client, member), **each.row()} for each, member in known]
    for row in rows:
        row["client"] = Link(
            str(row["client"]), "/client", {"group": name, "client": row["client"]}
        )
    wanted = [
        {"topic": Link(topic, "/topic", {"name": topic}), "expression": expression}
        for topic, expression in sorted(fields.subscriptions.items())
    ]
    kinds = {
        "consume_type": fields.consume_type,
        "message_model": fields.message_model,
        "consume_from_where": fields.consume_from_where,
    }
    marked = [number for number, (_, each) in enumerate(known) if each and each.is_stuck]
    hidden = ("address", "language", "version")
    return [RowTable("members", "Members", rows, marked=marked, only_json=hidden)], [
        RowTable("subscriptions", "Subscriptions", wanted, "No subscriptions."),
        Facts("how", "Consumption mode", kinds, True),
    ]


def _member_row(group: str, client: str, found: MemberProgress | None) -> dict[str, object]:
    at = None if found is None else found.current
    is_known = found is not None and found.queues is not None
    text = "" if at is None else f"{at.topic}, {at.broker}, queue {at.queue_id}: {at.queue_offset}"
    return {
        "client": client,
        "verdict": "unknown: no progress is reported" if found is None else found.verdict,
        "queues": found.queues if found else None,
        "lag": found.lag if found else None,
        "cached": found.cached if found else None,
        "consumed_tps": found.tps if found else None,
        "consumed_at_ms": found.consumed_at_ms if found and is_known else None,
        "current": None if at is None else _message_link(at, at.queue_offset, text),
        "current_since_ms": None if at is None else at.since_ms,
    }


def _dead_letters(asked: PageRequest, state: GroupSummary) -> list[Part]:
    """Return the newest dead letters, with the failures that clients reported."""
    if not state.dead_letters:
        return []
    failures: list[str] = []
    session, topic = asked.cluster.session, DLQ_TOPIC_PREFIX + state.name
    try:
        with session.within(LETTERS_S):
            found = newest_of(session, topic, LETTERS, failures)
    except ClientError as error:
        found, failures = [], [str(error)]
    rows = [
        {
            "stored_ms": Time(view.store_timestamp_ms),
            "message": Link(view.message_id, "/message", place_of(view)),
            "from_topic": view.properties.get(RETRY_TOPIC),
            "times_tried": view.reconsume_times,
            "failure": view.failure if asked.sees_bodies() else None,
        }
        for view in found
    ]
    total = state.dead_letters
    about = f"The newest {len(rows)} of {total:,}." if total > len(rows) else ""
    return [
        *failures_of(failures, "letters"),
        RowTable("letters", "Dead letters", rows, "They cannot be read now.", about),
    ]


def _history(asked: PageRequest, name: str) -> tuple[list[Part], list[Note]]:
    """Return the membership changes, and notes about differing subscriptions."""
    found = asked.cluster.ask(lambda admin: admin.rebalances(name))
    differing = [each for each in found.failures if "subscribe differently" in each]
    others = [
        each for each in found.failures if each not in differing and "not supported" not in each
    ]
    parts: list[Part] = [
        *failures_of(others, "changes"),
        RowTable(
            "rebalances",
            "Membership changes and rebalances",
            found.rows[::-1],
            "None since the brokers started; RocketMQ brokers do not record them.",
        ),
    ]
    sentence = " Messages are lost: give all members the same subscriptions."
    return parts, [Note("trouble", f"{each}{sentence}") for each in differing]


def _settings(asked: PageRequest, name: str) -> list[Part]:
    found = asked.cluster.ask(lambda admin: admin.group_settings(name))
    return [
        Facts(f"settings_{row['broker']}", f"Settings at {row['broker']}", row, True)
        for row in found.rows
    ]


NO_GROUPS = "No group has consumed yet: start a consumer, or create a group."
ORDERS = {"late": "time lag", "lag": "consumer lag", "name": "name"}
"""Words for the orders of the list; stuck groups come first in the order by time lag."""

STUCK_FIRST = 1 << 62
"""Sort key of stuck groups, before each time lag."""


@page("/groups")
def groups(asked: PageRequest) -> Page:
    """Show the groups with a text in their names, sorted and in pages."""
    now = asked.snapshot()
    wanted, order = asked.text("filter"), asked.text("order") or "late"
    shows_all = asked.text("which") == "all"
    folded = wanted.casefold()
    found = [
        each
        for each in now.groups.values()
        if folded in each.name.casefold() and (each.topics or each.dead_letters or shows_all)
    ]
    found.sort(key=lambda each: _order(each, order))
    given = {"filter": wanted, "order": order, "which": asked.text("which")}
    some, pager = asked.rows_of_page("/groups", found, given)
    inputs = [
        Input("filter", "Name contains", value=wanted),
        Input("order", "Sort by", "choice", order, [*ORDERS], labels=ORDERS),
        Input("which", "Groups", "choice", "all" if shows_all else "used", ("used", "all")),
    ]
    nothing = f"No group contains {wanted!r}: change the filter." if wanted else NO_GROUPS
    parts: list[Part] = [
        Form("", "/groups", inputs, "Filter"),
        RowTable(
            "groups",
            "",
            [group_row(each) for each in some],
            nothing,
            pager=pager,
            marked=stuck_rows(some),
        ),
        change_links(asked, [("Create a group", "group", {})]),
    ]
    return snapshot_page("Consumer groups", now, parts)


def _order(each: GroupSummary, order: str) -> tuple[int, int, str]:
    if order == "name":
        return 0, 0, each.name
    if order == "lag":
        return -each.lag, 0, each.name
    return -(each.late_ms or 0) if not each.is_stuck else -STUCK_FIRST, -each.lag, each.name


@page("/group/members")
def members(asked: PageRequest) -> Page:
    """Show the state of each member, and whether their subscriptions agree."""
    name = asked.needed("name", legal_name)
    found = asked.cluster.ask(lambda admin: admin.member_states(name), 8.0)
    rows = [
        {
            "client": Link(each.client, "/client", {"group": name, "client": each.client}),
            "version": each.version,
            "model": each.model,
            "subscriptions": list(each.subscriptions),
            "queues": each.queues,
            "waiting_in_it": each.cached,
            "in_flight": each.in_flight,
            "queue_names": list(each.queue_names),
        }
        for each in found.found
    ]
    notes = [Note("trouble", f"{each}.".replace("..", ".")) for each in found.failures]
    if not notes and len(rows) > 1:
        notes = [Note("fine", f"All {len(rows)} members have the same subscriptions.")]
    return Page(
        f"Members of {name}",
        [
            Links([Link(f"Group {name}", "/group", {"name": name})]),
            Notes("agreement", "", notes),
            RowTable("members", "", rows, "No member answers: start a consumer of the group."),
        ],
    )
