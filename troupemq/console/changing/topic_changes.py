"""Changes of topics, each previewed broker by broker in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from protocol.bodies import PERM_READ, PERM_WRITE
from protocol.bodies_tables import TopicConfig
from protocol.java_numbers import plain_number
from protocol.topic_names import REFUSED_TOPICS, topic_name_fault
from troupemq.client.admin import Admin, Result
from troupemq.client.admin.base import INT_MAX
from troupemq.console.asking import PageRequest
from troupemq.console.changes import ConsoleChange, Given, Preview, exist, number_of, register
from troupemq.console.changing.cluster_changes import cluster_input
from troupemq.console.names import TOPICS
from troupemq.console.parts import Cells, Facts, Input, Note, Notes, RowTable
from troupemq.console.snapshot import ClusterSnapshot, permission_words

PERMISSION_WORDS = {str(perm): permission_words(perm) for perm in (6, 4, 2)}
DEFAULT_QUEUES = "8"


def _topic_input(value: str = "") -> Input:
    return Input("topic", "Topic", value=value, needed=True, offers=TOPICS)


def _permission_input(value: str) -> Input:
    return Input(
        "permission",
        "Permission",
        "choice",
        value,
        tuple(PERMISSION_WORDS),
        "",
        True,
        labels=PERMISSION_WORDS,
    )


def _configs(now: ClusterSnapshot, topic: str, cluster: str) -> dict[str, TopicConfig | None]:
    """Return the topic as each master of a cluster has it; None: it does not."""
    at = now.topic_at(topic)
    return {
        each.place.name: at.get(each.place.name)
        for each in now.masters
        if each.place.cluster == cluster
    }


# --- create or change


def _inputs(asked: PageRequest) -> Sequence[Input]:
    """Return the form with the topic's present values; hints name brokers that differ."""
    topic = asked.text("topic")
    at = asked.snapshot().topic_at(topic)
    first = next(iter(at.values()), None)

    def number(name: str, label: str) -> Input:
        values = {broker: getattr(config, f"{name}_nums") for broker, config in at.items()}
        hint = ", ".join(f"{broker} has {value}" for broker, value in values.items())
        value = next(map(str, values.values()), DEFAULT_QUEUES)
        hint = hint if len(set(values.values())) > 1 else ""
        return Input(f"{name}s", f"{label} queues per broker", "number", value, (), hint, True)

    permission = "6" if first is None else str(first.perm)
    return (
        cluster_input(asked),
        _topic_input(),
        number("read_queue", "Read"),
        number("write_queue", "Write"),
        _permission_input(permission if permission in PERMISSION_WORDS else "6"),
    )


def _words(given: Given) -> list[str]:
    return [
        *("admin", "updateTopic", "-c", given["cluster"], "-t", given["topic"]),
        *("-r", given["read_queues"], "-w", given["write_queues"], "-p", given["permission"]),
    ]


def _update(admin: Admin, given: Given) -> Iterable[Result]:
    return admin.update_topic(
        given["topic"],
        number_of(given, "read_queues"),
        number_of(given, "write_queues"),
        perm=number_of(given, "permission"),
        cluster=given["cluster"],
    )


def _illegal(asked: PageRequest, given: Given) -> str:
    """Return why no broker would create or change the topic."""
    topic = given["topic"]
    if topic in REFUSED_TOPICS:
        return f"{topic} is a topic of the brokers themselves: choose another name"
    return "" if topic in asked.snapshot().topics else topic_name_fault(topic)


def _after(given: Given, before: TopicConfig | None) -> TopicConfig:
    """Return the topic after the change; invalid numbers stay, since the change rejects them."""
    new = TopicConfig(given["topic"], perm=number_of(given, "permission"))
    if "read_queues" not in given:
        return new if before is None else replace(before, perm=new.perm)
    new.read_queue_nums = plain_number(given["read_queues"], INT_MAX) or 0
    new.write_queue_nums = plain_number(given["write_queues"], INT_MAX) or 0
    return new


def _preview(asked: PageRequest, given: Given) -> Preview:
    """Preview what changes at each broker, and what that means for clients."""
    now, topic = asked.snapshot(), given["topic"]
    configs = _configs(now, topic, given["cluster"])
    state = now.topics.get(topic)
    notes = [Note("fine", "The topic is new.")] if state is None else []
    rows: list[Cells] = []
    for broker, before in configs.items():
        is_partial = before is None and "read_queues" not in given
        after = None if is_partial else _after(given, before)
        rows.append(_row(broker, before, after))
        if before is not None and after is not None:
            notes += _effects(broker, before, after)
    if state is not None and not notes:
        notes.append(Note("fine", "No messages or clients are affected."))
    notes += [Note("watch", f"Present values are unknown: {each}.") for each in now.missing]
    before_all: dict[str, object] = {}
    if state is not None:
        before_all = {
            "brokers": state.brokers,
            "read_queues": state.read_queues,
            "write_queues": state.write_queues,
            "permission": state.perm,
            "at": {
                broker: f"{each.read_queue_nums} {each.write_queue_nums} {each.perm}"
                for broker, each in now.topic_at(topic).items()
            },
        }
    table = RowTable("brokers", "Changes by broker", rows, "The cluster has no master.")
    return Preview([Notes("effect", "Effect", notes), table], before_all)


def _row(broker: str, before: TopicConfig | None, after: TopicConfig | None) -> Cells:
    def step(old: object, new: object) -> str:
        if before is None:
            return f"{new} (new)"
        return f"{new} (unchanged)" if old == new else f"{old} → {new}"

    if after is None:
        return {"broker": broker, **dict.fromkeys(_CHANGED, "the topic is not there")}
    was = before or after
    return {
        "broker": broker,
        "read_queues": step(was.read_queue_nums, after.read_queue_nums),
        "write_queues": step(was.write_queue_nums, after.write_queue_nums),
        "permission": step(permission_words(was.perm), permission_words(after.perm)),
    }


_CHANGED = ("read_queues", "write_queues", "permission")


def _effects(broker: str, before: TopicConfig, after: TopicConfig) -> list[Note]:
    """Return what a change at one broker means for its messages and clients."""
    found = []
    if after.read_queue_nums < before.read_queue_nums:
        gone = _queues(after.read_queue_nums, before.read_queue_nums)
        sentence = f"Consumers no longer get the messages in {gone} of {broker}."
        found.append(Note("trouble", sentence))
    if after.write_queue_nums > after.read_queue_nums:
        unread = _queues(after.read_queue_nums, after.write_queue_nums)
        sentence = f"Producers send to {unread} of {broker}, which no consumer reads."
        found.append(Note("trouble", sentence))
    if before.perm & PERM_WRITE and not after.perm & PERM_WRITE:
        found.append(Note("watch", f"Sends to the topic at {broker} are refused."))
    if before.perm & PERM_READ and not after.perm & PERM_READ:
        found.append(Note("watch", f"Consumers get no messages of the topic from {broker}."))
    if before.order and not after.order:
        sentence = f"The topic is ordered at {broker}; this change ends that. To keep it, use the"
        found.append(Note("watch", f"{sentence} command with -o true."))
    return found


def _queues(first: int, end: int) -> str:
    return f"queue {first}" if end - first == 1 else f"the queues {first} to {end - 1}"


# --- delete


def _loss(asked: PageRequest, given: Given) -> Preview:
    """Preview the loss of messages when a topic is deleted."""
    state = asked.snapshot().topics.get(given["topic"])
    found = asked.cluster.ask(lambda admin: admin.topic_status(given["topic"])).found
    count = sum(each.max_offset - each.min_offset for each in found)
    groups = sorted(state.groups) if state is not None else []
    before: Mapping[str, object] = {"messages": count, "groups": ", ".join(groups)}
    sentence = f"{count:,} messages are deleted; {len(groups)} groups have consumed the topic."
    notes = [Note("trouble", sentence)]
    return Preview([Notes("loss", "Loss", notes), Facts("now", "Now", before)], before)


register(
    ConsoleChange(
        "topic",
        "Create or change a topic",
        "admin",
        _inputs,
        _words,
        _preview,
        _update,
        checks=_illegal,
    ),
    ConsoleChange(
        "topic-permission",
        "Change the permission of a topic",
        "admin",
        lambda asked: (cluster_input(asked), _topic_input(), _permission_input("6")),
        lambda given: [
            *("admin", "updateTopicPerm", "-c", given["cluster"], "-t", given["topic"]),
            *("-p", given["permission"]),
        ],
        _preview,
        lambda admin, given: admin.update_topic_permission(
            given["topic"], number_of(given, "permission"), cluster=given["cluster"]
        ),
        checks=exist(topic=TOPICS),
    ),
    ConsoleChange(
        "delete-topic",
        "Delete a topic",
        "admin",
        lambda asked: (cluster_input(asked), _topic_input()),
        lambda given: [*("admin", "deleteTopic", "-c", given["cluster"], "-t", given["topic"])],
        _loss,
        lambda admin, given: admin.delete_topic(given["topic"], given["cluster"]),
        checks=exist(topic=TOPICS),
    ),
)
