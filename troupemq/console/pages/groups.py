"""Pages of consumer groups and of their members."""

from collections.abc import Iterator, Mapping, Sequence
from time import time_ns

from troupemq.client.admin import Time
from troupemq.client.admin.progress import QueueProgress
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue
from troupemq.console.asking import NotThere, PageRequest, failures_of, page
from troupemq.console.changes import change_links
from troupemq.console.given import legal_name
from troupemq.console.pages.overview import group_row
from troupemq.console.parts import (
    Cells,
    Facts,
    Form,
    Input,
    Link,
    Links,
    LongText,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Span,
)
from troupemq.console.reading import ReadableQueue, queues_of
from troupemq.console.snapshot import GroupSummary

NO_GROUPS = "No group has consumed yet: start a consumer, or create a group."
ORDERS = ("late", "lag", "name")
OLDEST_ASKED_MAX = 16
"""Limit of queues per page to read the oldest unconsumed message from."""

TOPICS_MAX = 20
"""Limit of topics of a group for reading their queues."""

HELD = {
    "commit_offset": "commitOffset",
    "waiting_in_it": "cachedMsgCount",
    "mebibytes": "cachedMsgSizeInMiB",
    "from_offset": "cachedMsgMinOffset",
    "to_offset": "cachedMsgMaxOffset",
    "last_pulled_ms": "lastPullTimestamp",
    "last_consumed_ms": "lastConsumeTimestamp",
    "locked": "locked",
    "last_locked_ms": "lastLockTimestamp",
    "dropped": "droped",
}
RATES = {
    "pulled_tps": "pullTPS",
    "consumed_tps": "consumeOKTPS",
    "failed_tps": "consumeFailedTPS",
    "failed_in_an_hour": "consumeFailedMsgs",
    "milliseconds_to_pull": "pullRT",
    "milliseconds_to_consume": "consumeRT",
}
WANTED = {
    "topic": "topic",
    "expression": "subString",
    "kind": "expressionType",
    "since_ms": "subVersion",
}
"""Names of fields here, and in the running info of a client; `_ms` marks a time."""


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
        Input("order", "Sort by", "choice", order, ORDERS),
        Input("which", "Groups", "choice", "all" if shows_all else "used", ("used", "all")),
    ]
    nothing = f"No group contains {wanted!r}: change the filter." if wanted else NO_GROUPS
    return Page(
        "Consumer groups",
        [
            Form("", "/groups", inputs, "Filter"),
            RowTable("groups", "", [group_row(each) for each in some], nothing, pager=pager),
            change_links(asked, [("Create a group", "group", {})]),
        ],
        now.missing,
        taken_ms=now.taken_ms,
    )


def _order(each: GroupSummary, order: str) -> tuple[int, int, str]:
    if order == "name":
        return 0, 0, each.name
    if order == "lag":
        return -each.lag, 0, each.name
    return -(each.late_ms or 0), -each.lag, each.name


@page("/group")
def group(asked: PageRequest) -> Page:
    name = asked.needed("name", legal_name)
    now = asked.snapshot()
    state = now.groups.get(name)
    progress = asked.cluster.ask(lambda admin: admin.group_progress(name, with_clients=True))
    queues = progress.found
    if state is None and not queues:
        raise NotThere(f"Group {name} not found at any broker that answers.")
    state = state or GroupSummary(name)
    known = _queues_of(asked, [each.topic for each in queues], progress.failures)
    waits_ms = _waits_ms(queues, known, asked)
    rows = [_queue_row(each, known, waits_ms) for each in queues]
    exact = {"late_ms": Span(max(waits_ms.values()))} if waits_ms else {}
    history, differing = _history(asked, name)
    page = Page(
        f"Group {name}",
        [
            Notes("differing", "", differing),
            Facts("group", "", {**group_row(state), **exact}),
            *failures_of(progress.failures, "progress"),
            RowTable(
                "queues", "Queue progress", rows, "No offsets yet: start a consumer of the group."
            ),
            *_members(asked, name),
            *history,
            *_settings(asked, name),
        ],
        now.missing,
        taken_ms=now.taken_ms,
    )
    topics = sorted(state.topics) or [""]
    topic = next((each for each in topics if not each.startswith("%")), topics[0])
    page.parts.append(
        change_links(
            asked,
            [
                ("Reset offsets to a time", "reset-offset", {"group": name, "topic": topic}),
                ("Skip the backlog", "skip", {"group": name, "topic": topic}),
                (
                    "Copy offsets from another group",
                    "clone-offset",
                    {"group": name, "topic": topic},
                ),
                ("Change settings", "group", {"group": name}),
                ("Delete", "delete-group", {"group": name}),
            ],
        )
    )
    page.parts.append(
        Links(
            [
                Link("Member states", "/group/members", {"name": name}),
                Link("Dead letters", "/dead-letters/group", {"name": name}),
            ]
        )
    )
    return page


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


def _queue_of(each: QueueProgress) -> MessageQueue:
    return MessageQueue(each.topic, each.broker, each.queue_id)


def _queue_row(
    each: QueueProgress, known: dict[MessageQueue, ReadableQueue], waits_ms: dict[MessageQueue, int]
) -> Cells:
    """Return a queue, whether the next message is retained, and a link to it."""
    queue, offset = _queue_of(each), each.consumer_offset
    there, waits = known.get(queue), waits_ms.get(queue)
    is_kept = None if there is None else there.ends.min_offset <= offset
    place = {"topic": each.topic, "broker": each.broker, "queue": each.queue_id, "offset": offset}
    return {
        "topic": Link(each.topic, "/topic", {"name": each.topic}),
        "broker": each.broker,
        "queue_id": each.queue_id,
        "lag": each.lag,
        "late_ms": None if waits is None else Span(waits),
        "consumer_offset": offset,
        "broker_offset": each.broker_offset,
        "still_kept": is_kept,
        "last_consumed_ms": each.last_consumed_ms,
        "client": each.client,
        "next": Link("Show", "/message", place) if each.lag > 0 else None,
    }


def _waits_ms(
    queues: Sequence[QueueProgress], known: dict[MessageQueue, ReadableQueue], asked: PageRequest
) -> dict[MessageQueue, int]:
    """Return the age of the first unconsumed message by queue.

    Only the OLDEST_ASKED_MAX queues with the oldest consumption are read, and only as long as
    brokers answer.
    """
    behind = sorted(
        (each for each in queues if each.lag > 0), key=lambda each: each.last_consumed_ms
    )
    now_ms = time_ns() // 1_000_000
    found: dict[MessageQueue, int] = {}
    with asked.cluster.session.within(2.0):
        for each in behind[:OLDEST_ASKED_MAX]:
            queue = _queue_of(each)
            there = known.get(queue)
            if there is None:
                continue
            try:
                view = there.reader.at(max(each.consumer_offset, there.ends.min_offset))
            except ClientError:
                return found
            if view is not None:
                found[queue] = max(0, now_ms - view.store_timestamp_ms)
    return found


def _members(asked: PageRequest, name: str) -> list[Part]:
    found = asked.cluster.ask(lambda admin: [admin.group_members(name)])
    if not found.found:
        sentence = found.failures[0] if found.failures else "no broker answers"
        return [
            Notes(
                "members_missing",
                "Members",
                [Note("watch", f"No members found: {sentence}. Start a consumer of the group.")],
            )
        ]
    fields = found.found[0]
    rows = [
        {
            **each.row(),
            "client": Link(each.client, "/client", {"group": name, "client": each.client}),
        }
        for each in fields.members
    ]
    wanted = [
        {"topic": Link(topic, "/topic", {"name": topic}), "expression": expression}
        for topic, expression in sorted(fields.subscriptions.items())
    ]
    kinds = {
        "consume_type": fields.consume_type,
        "message_model": fields.message_model,
        "consume_from_where": fields.consume_from_where,
    }
    return [
        RowTable("members", "Members", rows),
        RowTable("subscriptions", "Subscriptions", wanted, "No subscriptions."),
        Facts("how", "Consumption mode", kinds),
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


def _settings(asked: PageRequest, name: str) -> list[Part]:
    found = asked.cluster.ask(lambda admin: admin.group_settings(name))
    return [
        Facts(f"settings_{row['broker']}", f"Settings at {row['broker']}", row, True)
        for row in found.rows
    ]


@page("/client")
def client(asked: PageRequest) -> Page:
    """Show the running info of one member, with the stacks of its threads."""
    group_name, client_id = asked.needed("group"), asked.needed("client")
    found = asked.cluster.ask(
        lambda admin: [admin.running_info(group_name, client_id, with_stacks=True)], 8.0
    )
    page = Page(
        f"Client {client_id}",
        [Links([Link(f"Group {group_name}", "/group", {"name": group_name})])],
    )
    page.parts += failures_of(found.failures, "client")
    if not found.found:
        return page
    said = found.found[0].said
    tables = (
        ("held", "Assigned queues", "queue", "mqTable", HELD),
        ("rates", "Throughput and latency", "topic", "statusTable", RATES),
    )
    page.parts += [
        RowTable(name, title, [{first: key, **row} for key, row in _picked(said.get(of), keys)])
        for name, title, first, of, keys in tables
    ]
    wanted = said.get("subscriptionSet")
    wanted = dict(enumerate(wanted)) if isinstance(wanted, list) else {}
    settings = said.get("properties")
    page.parts += [
        RowTable("subscriptions", "Subscriptions", [row for _, row in _picked(wanted, WANTED)]),
        Facts(
            "settings",
            "Client settings",
            settings if isinstance(settings, dict) else {},
            True,
            True,
        ),
        LongText(
            "stacks", "Thread stacks", str(said.get("jstack") or "The client sent none."), True
        ),
    ]
    return page


def _picked(said: object, keys: Mapping[str, str]) -> Iterator[tuple[str, Cells]]:
    """Yield each entry of a running-info table with the fields of `keys`, renamed."""
    for name, each in said.items() if isinstance(said, dict) else ():
        found = each if isinstance(each, dict) else {}
        row = {ours: found.get(theirs) for ours, theirs in keys.items()}
        for ours, value in row.items():
            if ours.endswith("_ms") and isinstance(value, int):
                row[ours] = Time(value)
        yield str(name), row
