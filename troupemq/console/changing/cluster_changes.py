"""Changes of groups and broker settings."""

from collections.abc import Iterable, Sequence

from troupemq.client.admin import Admin, Result
from troupemq.client.admin.groups import GroupSettings
from troupemq.console.asking import PageRequest
from troupemq.console.changes import (
    ConsoleChange,
    Given,
    Preview,
    exist,
    number_of,
    register,
)
from troupemq.console.given import word
from troupemq.console.names import GROUPS
from troupemq.console.parts import Facts, Input, Note, Notes, RowTable
from troupemq.setting_meanings import SettingMeaning, broker_settings, in_words

YES_NO = ("true", "false")


def cluster_input(asked: PageRequest) -> Input:
    names = asked.snapshot().clusters or [""]
    return Input("cluster", "Cluster", "choice", names[0], names, needed=True)


def broker_input(asked: PageRequest) -> Input:
    addresses = [each.place.address for each in asked.snapshot().brokers] or [""]
    return Input("address", "Broker", "choice", "", addresses, needed=True)


def _group_inputs(asked: PageRequest) -> Sequence[Input]:
    group = asked.text("group")
    now = asked.cluster.ask(lambda admin: admin.group_settings(group)).rows if group else []
    has = now[0] if now else {}

    def value(name: str, default: str) -> str:
        found = has.get(name, default)
        return str(found).lower() if isinstance(found, bool) else str(found)

    return (
        cluster_input(asked),
        Input("group", "Group", needed=True, offers=GROUPS),
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
    meaning = broker_settings().get(given["key"])
    facts: dict[str, object] = {
        "setting": given["key"],
        "value_now": _with_words(value, meaning),
        "value_then": _with_words(given["value"], meaning),
    }
    if meaning is not None:
        facts["default"] = _with_words(meaning.default, meaning)
        address, now = given["address"], asked.snapshot()
        if any(each.store for each in now.brokers if each.place.address == address):  # ours
            facts["holds"] = "at once" if meaning.is_live else "after a restart"
        facts["means"] = meaning.words
    return Preview([Facts("now", "Change", facts)], before)


def _with_words(value: str | None, meaning: SettingMeaning | None) -> str | None:
    """Return a value, with its words in parentheses."""
    words = "" if meaning is None or value is None else in_words(value, meaning.words)
    return f"{value} ({words})" if words and value else words or value


def _unknown_setting(asked: PageRequest, given: Given) -> str:
    """Return why a broker does not have a setting; empty if it does not answer."""
    address, key = given["address"], given["key"]
    found = asked.cluster.ask(lambda admin: admin.broker_settings(broker=address)).found
    known = found[0].values if found else {}
    if not known or key in known:
        return ""
    near = [each for each in known if each.casefold() == key.casefold()] or [
        each for each in known if key.casefold() in each.casefold()
    ]
    question = f": did you mean {' or '.join(sorted(near)[:3])}?" if near else ""
    return f"{address} has no setting {key}{question}"


def _secret_setting(given: Given) -> str:
    """Reject secrets: the audit log would contain them, and brokers refuse to change them."""
    known = broker_settings().get(given["key"].strip())
    if known is None or not known.is_secret:
        return ""
    return f"{given['key']} is a secret: change it in the broker's configuration file"


register(
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
        lambda asked: (cluster_input(asked), Input("group", "Group", needed=True, offers=GROUPS)),
        lambda given: [
            *("admin", "deleteSubGroup", "-c", given["cluster"], "-g", given["group"]),
            *("-r", "true"),
        ],
        _group_loss,
        lambda admin, given: admin.delete_group(
            given["group"], with_offsets=True, cluster=given["cluster"]
        ),
        checks=exist(group=GROUPS),
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
        checks=_unknown_setting,
    ),
)
