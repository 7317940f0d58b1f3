"""Changes of consumer offsets, each with a preview per queue."""

from collections.abc import Sequence

from protocol.java_numbers import plain_number
from troupemq.client.admin import Time
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.client.message import MessageQueue
from troupemq.console.asking import PageRequest
from troupemq.console.changes import ConsoleChange, Given, Preview, exist, register
from troupemq.console.names import GROUPS, TOPICS
from troupemq.console.parts import Cells, Input, Note, Notes, Part, RowTable
from troupemq.console.reading import queues_of

NEWEST = "now"


def _inputs(asked: PageRequest) -> Sequence[Input]:
    return (
        Input("group", "Group", needed=True, offers=GROUPS),
        Input("topic", "Topic", needed=True, offers=TOPICS),
        Input("time", "Time", "time", needed=True),
        Input(
            "forward",
            "Forward moves",
            "choice",
            "true",
            ("true", "false"),
            "false: no unconsumed messages are skipped",
        ),
    )


def _words(given: Given) -> list[str]:
    return [
        *("admin", "resetOffsetByTime", "-g", given["group"], "-t", given["topic"]),
        *("-s", given["time"], "-f", given["forward"] or "true"),
    ]


def _where(asked: PageRequest, group: str, topic: str) -> dict[MessageQueue, int]:
    found = asked.cluster.ask(lambda admin: admin.group_progress(group)).found
    return {
        MessageQueue(topic, each.broker, each.queue_id): each.consumer_offset
        for each in found
        if each.topic == topic
    }


def _time_ms(given: Given) -> int | None:
    """Return the target time; None for the max offset. Raises ArgumentIllegal."""
    time_ms = plain_number(given["time"])
    if time_ms is None and given["time"] != NEWEST:
        raise ArgumentIllegal(f"{given['time']!r} is not a time")
    return time_ms


def _to_time(asked: PageRequest, given: Given) -> Preview:
    """Preview the new offset of each queue, and its effect."""
    group, topic, is_forward = given["group"], given["topic"], given["forward"] != "false"
    before = _where(asked, group, topic)
    failures: list[str] = []
    rows: list[Cells] = []
    session = asked.cluster.session
    try:
        with session.within():
            time_ms = _time_ms(given)
            for each in queues_of(session, topic, failures):
                after = each.ends.max_offset if time_ms is None else each.reader.offset_at(time_ms)
                now = before.get(each.queue, each.ends.min_offset)
                if after > now and not is_forward:
                    after = now
                rows.append(_row(each.queue, now, after))
    except ClientError as error:
        failures.append(str(error))
    again = sum(row["again"] for row in rows)
    skipped = sum(row["skipped"] for row in rows)
    notes = [
        Note("watch" if again else "fine", f"{again:,} messages are consumed again."),
        Note("trouble" if skipped else "fine", f"{skipped:,} messages are never consumed."),
        *(Note("watch", f"{each}.") for each in failures),
    ]
    parts: list[Part] = [
        Notes("effect", "Effect", notes),
        RowTable("queues", "Offsets by queue", rows, "The topic has no queues."),
    ]
    return Preview(parts, {"offsets": {f"{queue}": offset for queue, offset in before.items()}})


def _row(queue: MessageQueue, now: int, after: int) -> Cells:
    return {
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "offset_now": now,
        "offset_then": after,
        "again": max(0, now - after),
        "skipped": max(0, after - now),
    }


def _to_end(asked: PageRequest, given: Given) -> Preview:
    return _to_time(asked, {**given, "time": NEWEST, "forward": "true"})


def _copied(asked: PageRequest, given: Given) -> Preview:
    theirs = _where(asked, given["from_group"], given["topic"])
    ours = _where(asked, given["group"], given["topic"])
    rows = [_row(queue, ours.get(queue, 0), offset) for queue, offset in sorted(theirs.items())]
    nothing = f"{given['from_group']} has no offsets in {given['topic']}."
    parts = [RowTable("queues", "Offsets by queue", rows, nothing)]
    return Preview(parts, {"offsets": {f"{queue}": offset for queue, offset in ours.items()}})


def time_of(asked: PageRequest, text: str) -> str:
    """Return a time as commands accept it, in ms or `now`; invalid text stays, to be refused."""
    if text == NEWEST:
        return text
    found = PageRequest(asked.console, asked.viewer, {"time": text}, asked.zone).time_ms("time")
    return text if found is None else str(int(Time(found)))


register(
    ConsoleChange(
        "reset-offset",
        "Reset a group's offsets to a time",
        "admin",
        _inputs,
        _words,
        _to_time,
        lambda admin, given: admin.reset_offsets(
            given["group"], given["topic"], _time_ms(given), force=given["forward"] != "false"
        ),
        checks=exist(group=GROUPS, topic=TOPICS),
    ),
    ConsoleChange(
        "skip",
        "Skip the backlog of a group",
        "admin",
        lambda asked: (
            Input("group", "Group", needed=True, offers=GROUPS),
            Input("topic", "Topic", needed=True, offers=TOPICS),
        ),
        lambda given: [
            *("admin", "skipAccumulatedMessage", "-g", given["group"], "-t", given["topic"])
        ],
        _to_end,
        lambda admin, given: admin.reset_offsets(given["group"], given["topic"]),
        checks=exist(group=GROUPS, topic=TOPICS),
    ),
    ConsoleChange(
        "clone-offset",
        "Copy offsets from another group",
        "admin",
        lambda asked: (
            Input("from_group", "From the group", needed=True, offers=GROUPS),
            Input("group", "To the group", needed=True, offers=GROUPS),
            Input("topic", "Topic", needed=True, offers=TOPICS),
        ),
        lambda given: [
            *("admin", "cloneGroupOffset", "-s", given["from_group"], "-d", given["group"]),
            *("-t", given["topic"], "-o", "true"),
        ],
        _copied,
        lambda admin, given: admin.clone_offsets(
            given["from_group"], given["group"], given["topic"], offline=True
        ),
        checks=exist(from_group=GROUPS, topic=TOPICS),
    ),
)
