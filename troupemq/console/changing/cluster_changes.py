"""Changes of topics, groups and broker settings."""

from collections.abc import Iterable, Mapping, Sequence

from troupemq.client.admin import Admin, Result
from troupemq.client.admin.groups import GroupSettings
from troupemq.console.asking import PageRequest
from troupemq.console.changes import ConsoleChange, Given, Preview, number_of, register
from troupemq.console.given import word
from troupemq.console.parts import Facts, Input, Note, Notes, RowTable
from troupemq.setting_meanings import broker_settings

YES_NO = ("true", "false")
PERMISSIONS = ("6", "4", "2")


def cluster_input(asked: PageRequest) -> Input:
    names = asked.snapshot().clusters or [""]
    return Input("cluster", "Cluster", "choice", names[0], names, needed=True)


def broker_input(asked: PageRequest) -> Input:
    addresses = [each.place.address for each in asked.snapshot().brokers] or [""]
    return Input("address", "Broker", "choice", "", addresses, needed=True)


def _topic_words(given: Given) -> list[str]:
    return [
        *("admin", "updateTopic", "-c", given["cluster"], "-t", given["topic"]),
        *("-r", given["read_queues"], "-w", given["write_queues"], "-p", given["permission"]),
    ]


def _topic(admin: Admin, given: Given) -> Iterable[Result]:
    return admin.update_topic(
        given["topic"],
        number_of(given, "read_queues"),
        number_of(given, "write_queues"),
        perm=number_of(given, "permission"),
        cluster=given["cluster"],
    )


def _topic_inputs(asked: PageRequest) -> Sequence[Input]:
    return (
        cluster_input(asked),
        Input("topic", "Topic", needed=True),
        Input("read_queues", "Read queues per broker", "number", "8", needed=True),
        Input("write_queues", "Write queues per broker", "number", "8", needed=True),
        Input(
            "permission",
            "Permission",
            "choice",
            "6",
            PERMISSIONS,
            "6 read and write, 4 read, 2 write",
            needed=True,
        ),
    )


def _topic_now(asked: PageRequest, given: Given) -> Preview:
    state = asked.snapshot().topics.get(given["topic"])
    if state is None:
        return Preview([Notes("now", "Now", [Note("fine", "The topic is new.")])])
    before: Mapping[str, object] = {
        "brokers": state.brokers,
        "read_queues": state.read_queues,
        "write_queues": state.write_queues,
        "permission": state.perm,
    }
    return Preview([Facts("now", "Now, sum of all brokers", before)], before)


def _topic_loss(asked: PageRequest, given: Given) -> Preview:
    """Preview the loss of messages when a topic is deleted."""
    state = asked.snapshot().topics.get(given["topic"])
    found = asked.cluster.ask(lambda admin: admin.topic_status(given["topic"])).found
    count = sum(each.max_offset - each.min_offset for each in found)
    groups = sorted(state.groups) if state is not None else []
    before = {"messages": count, "groups": ", ".join(groups)}
    sentence = f"{count:,} messages are deleted; {len(groups)} groups have consumed the topic."
    notes = [Note("trouble", sentence)]
    return Preview([Notes("loss", "Loss", notes), Facts("now", "Now", before)], before)


def _group_inputs(asked: PageRequest) -> Sequence[Input]:
    group = asked.text("group")
    now = asked.cluster.ask(lambda admin: admin.group_settings(group)).rows if group else []
    has = now[0] if now else {}

    def value(name: str, default: str) -> str:
        found = has.get(name, default)
        return str(found).lower() if isinstance(found, bool) else str(found)

    return (
        cluster_input(asked),
        Input("group", "Group", needed=True),
        Input("enabled", "Consumption allowed", "choice", value("consume_enable", "true"), YES_NO),
        Input(
            "from_first",
            "Consumption from the min offset allowed",
            "choice",
            value("consume_from_min_enable", "true"),
            YES_NO,
        ),
        Input(
            "broadcast",
            "Broadcast consumption allowed",
            "choice",
            value("consume_broadcast_enable", "true"),
            YES_NO,
        ),
        Input("retries", "Max retries", "number", value("retry_max_times", "16"), needed=True),
        Input(
            "retry_queues",
            "Retry queues",
            "number",
            value("retry_queue_nums", "1"),
            needed=True,
        ),
    )


def _group_words(given: Given) -> list[str]:
    return [
        *("admin", "updateSubGroup", "-c", given["cluster"], "-g", given["group"]),
        *("-s", given["enabled"], "-m", given["from_first"], "-d", given["broadcast"]),
        *("-r", given["retries"], "-q", given["retry_queues"]),
    ]


def _group(admin: Admin, given: Given) -> Iterable[Result]:
    settings = GroupSettings(
        group_name=given["group"],
        consume_enable=given["enabled"] == "true",
        consume_from_min_enable=given["from_first"] == "true",
        consume_broadcast_enable=given["broadcast"] == "true",
        retry_queue_nums=number_of(given, "retry_queues", 0),
        retry_max_times=number_of(given, "retries", -1),
    )
    return admin.update_group(settings, cluster=given["cluster"])


def _group_now(asked: PageRequest, given: Given) -> Preview:
    found = asked.cluster.ask(lambda admin: admin.group_settings(given["group"]))
    if not found.rows:
        return Preview([Notes("now", "Now", [Note("fine", "The group is new.")])])
    return Preview([RowTable("now", "Now", found.rows)], {"settings": found.rows})


def _group_loss(asked: PageRequest, given: Given) -> Preview:
    state = asked.snapshot().groups.get(given["group"])
    members = None if state is None else state.members
    notes = [Note("trouble", "Its settings, offsets, retries and dead letters are deleted.")]
    if members:
        notes.append(Note("trouble", f"Its {members} members continue without stored offsets."))
    lag = 0 if state is None else state.lag
    return Preview([Notes("loss", "Loss", notes)], {"members": members, "lag": lag})


def _setting_now(asked: PageRequest, given: Given) -> Preview:
    found = asked.cluster.ask(lambda admin: admin.broker_settings(broker=given["address"])).found
    value = found[0].values.get(given["key"]) if found else None
    before = {"key": given["key"], "value": value}
    parts = [Facts("now", "Now", before)]
    return Preview(parts, before)


def _secret_setting(given: Given) -> str:
    """Reject secrets: the audit log would contain them, and brokers refuse to change them."""
    known = broker_settings().get(given["key"].strip())
    if known is None or not known.is_secret:
        return ""
    return f"{given['key']} is a secret: change it in the broker's configuration file"


register(
    ConsoleChange(
        "topic",
        "Create or change a topic",
        "admin",
        _topic_inputs,
        _topic_words,
        _topic_now,
        _topic,
    ),
    ConsoleChange(
        "topic-permission",
        "Change the permission of a topic",
        "admin",
        lambda asked: (
            cluster_input(asked),
            Input("topic", "Topic", needed=True),
            Input("permission", "Permission", "choice", "6", PERMISSIONS, needed=True),
        ),
        lambda given: [
            *("admin", "updateTopicPerm", "-c", given["cluster"], "-t", given["topic"]),
            *("-p", given["permission"]),
        ],
        _topic_now,
        lambda admin, given: admin.update_topic_permission(
            given["topic"], number_of(given, "permission"), cluster=given["cluster"]
        ),
    ),
    ConsoleChange(
        "delete-topic",
        "Delete a topic",
        "admin",
        lambda asked: (cluster_input(asked), Input("topic", "Topic", needed=True)),
        lambda given: [*("admin", "deleteTopic", "-c", given["cluster"], "-t", given["topic"])],
        _topic_loss,
        lambda admin, given: admin.delete_topic(given["topic"], given["cluster"]),
    ),
    ConsoleChange(
        "group",
        "Create or change a group",
        "admin",
        _group_inputs,
        _group_words,
        _group_now,
        _group,
    ),
    ConsoleChange(
        "delete-group",
        "Delete a group",
        "admin",
        lambda asked: (cluster_input(asked), Input("group", "Group", needed=True)),
        lambda given: [
            *("admin", "deleteSubGroup", "-c", given["cluster"], "-g", given["group"]),
            *("-r", "true"),
        ],
        _group_loss,
        lambda admin, given: admin.delete_group(
            given["group"], with_offsets=True, cluster=given["cluster"]
        ),
    ),
    ConsoleChange(
        "setting",
        "Change a setting of a broker",
        "admin",
        lambda asked: (
            broker_input(asked),
            Input("key", "Setting", needed=True, rule=word),
            Input("value", "Value", needed=True),
        ),
        lambda given: [
            *("admin", "updateBrokerConfig", "-b", given["address"]),
            *("-k", given["key"], "-v", given["value"]),
        ],
        _setting_now,
        lambda admin, given: admin.update_broker_setting(
            given["key"], given["value"], broker=given["address"]
        ),
        refuses=_secret_setting,
    ),
)
