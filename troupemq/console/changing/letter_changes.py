"""Changes of dead letters: redrive and discard, of some or of all."""

from collections.abc import Iterable
from threading import Event
from time import monotonic
from typing import Any

from protocol.java_numbers import plain_number
from protocol.properties import RETRY_TOPIC
from troupemq.cli.copying import sentence_of
from troupemq.client.admin import Admin, Result, Time
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.client.message import MessageView
from troupemq.console.asking import PageRequest, failures_of
from troupemq.console.changes import CHANGE_S, ConsoleChange, Given, Preview, register
from troupemq.console.cluster import CommandResult
from troupemq.console.given import number
from troupemq.console.names import GROUPS
from troupemq.console.parts import PICKED, Input, Note, Notes, Part, RowTable
from troupemq.redrive import Redrive, Redriven, discard, redrive_some, to_discard

RATE = 100
REDRIVEN_MAX = 1000
"""Limit of dead letters per change; the command line handles more, with progress."""

PICKED_MAX = 500
ABOUT = "All groups that consume the original topics get them."
DISCARD_ABOUT = (
    "A redrive of all passes over discarded dead letters. They stay in the dead-letter topic until"
    " their retention time, and can still be redriven one by one."
)


def _group_input() -> Input:
    return Input("group", "Group", needed=True, offers=GROUPS)


def _ids_input() -> Input:
    return Input(
        PICKED, "Dead letters", "long", needed=True, hint="offset message ids, separated by commas"
    )


def ids_of(given: Given) -> list[str]:
    """Return the chosen ids without repetitions. Raises ArgumentIllegal for too many."""
    found = list(dict.fromkeys(filter(None, map(str.strip, given[PICKED].split(",")))))
    if not 0 < len(found) <= PICKED_MAX:
        raise ArgumentIllegal(f"choose 1 to {PICKED_MAX} dead letters")
    return found


def _too_many(given: Given) -> str:
    try:
        if given[PICKED]:
            ids_of(given)
    except ArgumentIllegal as error:
        return str(error)
    return ""


# --- redrive


def _count(asked: PageRequest, given: Given) -> Preview:
    state = asked.snapshot().groups.get(given["group"])
    count = 0 if state is None else state.dead_letters or 0
    notes = [
        Note("fine", f"{count:,} dead letters are stored; those sent before are not sent again."),
        Note("watch", ABOUT),
    ]
    return Preview([Notes("effect", "Effect", notes)], {"dead_letters": count})


def _redrive(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    count = plain_number(given["count"]) or 0
    if not 0 < count <= REDRIVEN_MAX:
        why = f"The limit must be 1 to {REDRIVEN_MAX}: use the command line for more"
        raise ArgumentIllegal(why)
    rate = max(RATE, count / (CHANGE_S / 2))
    run = Redrive(
        given["group"], asked.cluster.namesrv, rate=rate, count_max=count, wait=Event().wait
    )
    try:
        out.done(sentence_of(given["group"], run.run()), sent=run.done.sent)
    except ClientError as error:
        out.fail(f"{error} ({run.done.sent} were sent; repeat to continue)")


def _redrive_ids(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    """Redrive chosen dead letters, as many as the deadline of a change allows."""
    group, ids = given["group"], [given["id"]] if "id" in given else ids_of(given)
    done, tried = Redriven(), 0
    until_s = monotonic() + CHANGE_S
    try:
        for each in redrive_some(group, asked.cluster.namesrv, ids):
            tried += 1
            if isinstance(each, ClientError):
                out.fail(str(each))
            else:
                done = done.plus(each)
            if monotonic() > until_s and tried < len(ids):
                out.fail(f"{len(ids) - tried} were not tried in time: repeat to continue")
                break
    except ClientError as error:
        out.fail(str(error))
    if done != Redriven():
        out.done(sentence_of(group, done), sent=done.sent)


def _chosen(asked: PageRequest, given: Given) -> tuple[list[MessageView], list[Part]]:
    """Return the chosen dead letters that exist, and parts that show them."""

    def views(admin: Admin) -> Iterable[MessageView]:
        return (admin.view_message(each) for each in ids_of(given))

    found = asked.cluster.ask(views, CHANGE_S)
    sees = asked.sees_bodies()
    rows = [
        {
            "stored_ms": Time(view.store_timestamp_ms),
            "keys": " ".join(view.keys) or None,
            "from_topic": view.properties.get(RETRY_TOPIC),
            "failure": view.failure if sees else None,
            "offset_message_id": view.offset_message_id,
        }
        for view in found.found
    ]
    table = RowTable("letters", "Chosen dead letters", rows, "None of them is stored any more.")
    return found.found, [*failures_of(found.failures, "letters"), table]


def _redrive_preview(asked: PageRequest, given: Given) -> Preview:
    views, parts = _chosen(asked, given)
    count = len(views)
    without = sum(not view.properties.get(RETRY_TOPIC) for view in views)
    notes = [
        Note("fine", f"{_letters(count - without)} sent, except those that were sent before."),
        Note("watch", ABOUT),
    ]
    if without:
        why = "they name no original topic" if without > 1 else "it names no original topic"
        notes.append(Note("watch", f"{_letters(without)} not sent: {why}."))
    before = {"ids": [view.offset_message_id for view in views]}
    return Preview([Notes("effect", "Effect", notes), *parts], before)


def _letters(count: int) -> str:
    return "1 dead letter is" if count == 1 else f"{count:,} dead letters are"


# --- discard


def _discard_preview(asked: PageRequest, given: Given) -> Preview:
    """Preview the progress of the redrive in each queue, and the dead letters between."""
    ids = ids_of(given) if PICKED in given else []
    views, parts = _chosen(asked, given) if ids else ([], [])
    plan = asked.cluster.ask(lambda admin: to_discard(admin, given["group"], ids), CHANGE_S)
    count = sum(each.discarded for each in plan.found)
    moved = {(each.broker, each.queue_id): each for each in plan.found}
    open_ones = sum(
        each is not None and each.offset_before <= view.queue_offset < each.offset
        for view in views
        for each in [moved.get((view.queue.broker_name, view.queue.queue_id))]
    )
    notes = [Note("watch" if count else "fine", f"{_letters(count)} discarded.")]
    if ids and count > open_ones:
        sentence = (
            f"{_letters(count - open_ones)} among them that you did not choose: a discard takes"
            " all that are older in the same queue."
        )
        notes.append(Note("trouble", sentence))
    if ids and open_ones < len(views):
        notes.append(Note("fine", f"{len(views) - open_ones} were redriven or discarded before."))
    rows = [
        {
            "broker": each.broker,
            "queue_id": each.queue_id,
            "offset_now": each.offset_before,
            "offset_then": each.offset,
            "discarded": each.discarded,
        }
        for each in plan.found
    ]
    shown: list[Part] = [
        Notes("effect", "Effect", notes),
        *failures_of(plan.failures, "plan"),
        RowTable("queues", "Progress of the redrive by queue", rows, "No queues."),
        *parts,
    ]
    before = {f"{each.broker}:{each.queue_id}": each.offset_before for each in plan.found}
    return Preview(shown, {"offsets": before})


def _discard_all(admin: Admin, given: Given) -> Iterable[Result]:
    return discard(admin, given["group"])


def _discard_some(admin: Admin, given: Given) -> Iterable[Result]:
    return discard(admin, given["group"], ids_of(given))


def _words(given: Given, *more: str) -> list[str]:
    ids = filter(None, map(str.strip, given.get(PICKED, "").split(",")))
    return ["job", "redrive", given["group"], *more, *(w for each in ids for w in ("--id", each))]


register(
    ConsoleChange(
        "redrive",
        "Redrive dead letters to their original topics",
        "operator",
        lambda asked: (
            _group_input(),
            Input("count", "At most", "number", "100", needed=True, rule=number),
        ),
        lambda given: ["job", "redrive", given["group"], "--count", given["count"]],
        _count,
        do=_redrive,
    ),
    ConsoleChange(
        "redrive-one",
        "Redrive one dead letter to its original topic",
        "operator",
        lambda asked: (_group_input(), Input("id", "Offset message id", needed=True)),
        lambda given: ["job", "redrive", given["group"], "--id", given["id"]],
        _count,
        do=_redrive_ids,
    ),
    ConsoleChange(
        "redrive-some",
        "Redrive chosen dead letters to their original topics",
        "operator",
        lambda asked: (_group_input(), _ids_input()),
        lambda given: _words(given),
        _redrive_preview,
        do=_redrive_ids,
        refuses=_too_many,
    ),
    ConsoleChange(
        "discard",
        "Discard chosen dead letters",
        "admin",
        lambda asked: (_group_input(), _ids_input()),
        lambda given: _words(given, "--discard"),
        _discard_preview,
        act=_discard_some,
        about=DISCARD_ABOUT,
        refuses=_too_many,
    ),
    ConsoleChange(
        "discard-all",
        "Discard all dead letters of a group",
        "admin",
        lambda asked: (_group_input(),),
        lambda given: _words(given, "--discard"),
        _discard_preview,
        act=_discard_all,
        about=DISCARD_ABOUT,
    ),
)
