"""subscriptionGroup.json: the consumer groups of a broker, in the form 4.9.7 writes.

    {"dataVersion": {"counter": n, "timestamp": ms},
     "subscriptionGroupTable": {group: {"brokerId", "consumeBroadcastEnable", "consumeEnable",
        "consumeFromMinEnable", "groupName", "notifyConsumerIdsChangedEnable", "retryMaxTimes",
        "retryQueueNums", "whichBrokerWhenConsumeSlowly"}}}

Source: broker/subscription/SubscriptionGroupManager.java.
"""

from collections.abc import Iterable

from protocol.bodies_tables import SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.fastjson import dumps
from protocol.json_body import text_of
from protocol.table_rules import group_fault
from protocol.topic_names import ALWAYS_PRESENT
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, raise_fault, taken_entries, taken_version

_TABLE = "subscriptionGroupTable"


def always_present() -> list[SubscriptionGroupConfig]:
    """Return the configurations of the groups that every broker has."""
    return [SubscriptionGroupConfig(name) for name in ALWAYS_PRESENT]


def parse_groups(text: str | bytes, left_out: LeftOuts | None = None) -> SubscriptionGroupTable:
    """Return the table in the file's text, in its order (a Parse: skipped_entry.py)."""
    found, groups = parsed_table(text, _TABLE)
    return SubscriptionGroupTable(
        taken_entries(groups, _group, left_out, (_TABLE,)), taken_version(found, left_out)
    )


def _group(key: object, value: object) -> tuple[str, SubscriptionGroupConfig]:
    group = SubscriptionGroupConfig.from_json(value)
    group.group_name = text_of(key)
    raise_fault(group_fault(group))
    return group.group_name, group


def format_groups(table: SubscriptionGroupTable) -> str:
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def completed_groups(
    table: SubscriptionGroupTable | None, groups: Iterable[str], now_ms: int
) -> tuple[SubscriptionGroupTable, list[str]]:
    """Return the table with these groups added, and the names that were missing."""
    table = table or SubscriptionGroupTable()
    configs = dict(table.subscription_group_table)
    missing = sorted(set(groups) - configs.keys() - set(ALWAYS_PRESENT))
    configs.update({name: SubscriptionGroupConfig(name) for name in missing})
    version = table.data_version
    return SubscriptionGroupTable(configs, version.next(now_ms) if missing else version), missing
