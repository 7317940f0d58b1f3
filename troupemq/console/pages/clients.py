"""Page of one member of a group: its verdict, its workers' stacks, and its running info."""

from collections.abc import Iterator, Mapping, Sequence
from time import time_ns

from troupemq.client.admin import Time
from troupemq.client.admin.members import ClientInfo
from troupemq.client.admin.progress import MemberProgress
from troupemq.client.admin.stacks import ThreadStack
from troupemq.console.asking import PageRequest, failures_of, page
from troupemq.console.findings import counted, sentence_of
from troupemq.console.parts import (
    Cells,
    Facts,
    Link,
    Links,
    LongText,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
)

IN_HAND_SHOWN_MAX = 20
NAMES_MAX = 10
"""Limit of threads named above one stack."""

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
RECEIVED = {"in_flight": "waitAckCount", "last_received_ms": "lastPopTimestamp"}
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


@page("/client")
def client(asked: PageRequest) -> Page:
    """Show what one member does, then its state, with the stacks of its threads."""
    name, client_id = asked.needed("group"), asked.needed("client")
    found = asked.cluster.ask(lambda admin: [admin.progress(name, client=client_id)], 8.0)
    parts: list[Part] = [Links([Link(f"Group {name}", "/group", {"name": name})])]
    member = next((one for each in found.found for one in each.members), None)
    failures = [*found.failures, *(one for each in found.found for one in each.failures)]
    info = None if member is None else member.info
    if member is None:  # its group has no offsets, or no broker lists it
        told = asked.cluster.ask(
            lambda admin: [admin.running_info(name, client_id, with_stacks=True)]
        )
        info, failures = next(iter(told.found), None), told.failures
    parts += failures_of(failures, "client")
    if member is not None:
        parts += _progress(member)
    if info is not None:
        parts += _state(info)
    return Page(f"Client {client_id}", parts, taken_ms=time_ns() // 1_000_000)


def _progress(member: MemberProgress) -> list[Part]:
    """Return the verdict, the stacks of the workers, and the messages in listener calls."""
    level = "trouble" if member.is_stuck else "watch" if member.is_stuck is None else "fine"
    notes = [Note(level, sentence_of(member.verdict), since_ms=member.stuck_since_ms)]
    return [Notes("verdict", "", notes), *_workers(member.threads), *_in_hand(member)]


def _workers(threads: Sequence[ThreadStack]) -> list[Part]:
    """Return the stacks of the workers; equal ones once, and calls of libraries folded."""
    blocks: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for each in threads:
        if each.is_worker:
            blocks.setdefault((each.is_busy, tuple(each.folded())), []).append(each.name)
    texts = []
    for (is_busy, lines), names in blocks.items():
        some = ", ".join(names[:NAMES_MAX]) + (" …" if len(names) > NAMES_MAX else "")
        head = f"{counted(len(names), 'thread')} {'busy' if is_busy else 'idle'}: {some}"
        texts.append("\n".join([head, *(f"    {line}" for line in lines)]))
    return [LongText("workers", "Worker threads", "\n\n".join(texts))] if texts else []


def _in_hand(member: MemberProgress) -> list[Part]:
    """Return the messages in listener calls, the longest call first."""
    rows = [
        {
            "message": Link(
                each.message_id or "Show",
                "/message",
                {
                    "topic": each.topic,
                    "broker": each.broker,
                    "queue": each.queue_id,
                    "offset": each.queue_offset,
                },
            ),
            "topic": each.topic,
            "broker": each.broker,
            "queue_id": each.queue_id,
            "queue_offset": each.queue_offset,
            "since_ms": each.since_ms,
            "times_tried": each.tries,
        }
        for each in member.in_hand[:IN_HAND_SHOWN_MAX]
    ]
    count = len(member.in_hand)
    about = "" if count <= len(rows) else f"The {len(rows)} longest of {count:,}."
    return [RowTable("in_hand", "Messages in listener calls", rows, about=about)] if rows else []


def _state(info: ClientInfo) -> list[Part]:
    """Return the running info, as the member reports it."""
    said = info.said
    shown = (
        ("held", "Assigned queues", "queue", "mqTable", HELD),
        ("received", "Messages in flight", "queue", "mqPopTable", RECEIVED),
        ("rates", "Throughput and latency", "topic", "statusTable", RATES),
    )
    parts: list[Part] = [
        RowTable(name, title, [{first: key, **row} for key, row in _picked(said.get(of), keys)])
        for name, title, first, of, keys in shown
        if of in said or of != "mqPopTable"
    ]
    wanted = said.get("subscriptionSet")
    wanted = dict(enumerate(wanted)) if isinstance(wanted, list) else {}
    settings = said.get("properties")
    settings = settings if isinstance(settings, dict) else {}
    stacks = str(said.get("jstack") or "The client sent none.")
    return [
        *parts,
        RowTable("subscriptions", "Subscriptions", [row for _, row in _picked(wanted, WANTED)]),
        Facts("settings", "Client settings", settings, True, True),
        LongText("stacks", "All thread stacks", stacks, True),
    ]


def _picked(said: object, keys: Mapping[str, str]) -> Iterator[tuple[str, Cells]]:
    """Yield each entry of a running-info table with the fields of `keys`, renamed."""
    for name, each in said.items() if isinstance(said, dict) else ():
        found = each if isinstance(each, dict) else {}
        row = {ours: found.get(theirs) for ours, theirs in keys.items()}
        for ours, value in row.items():
            if ours.endswith("_ms") and isinstance(value, int):
                row[ours] = Time(value)
        yield str(name), row
