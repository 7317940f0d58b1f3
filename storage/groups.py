"""subscriptionGroup.json: the consumer groups of a broker, in the form 4.9.7 writes.

    {"dataVersion": {"counter": n, "timestamp": ms},
     "subscriptionGroupTable": {group: {"brokerId", "consumeBroadcastEnable", "consumeEnable",
        "consumeFromMinEnable", "groupName", "notifyConsumerIdsChangedEnable", "retryMaxTimes",
        "retryQueueNums", "whichBrokerWhenConsumeSlowly"}}}

Source: broker/subscription/SubscriptionGroupManager.java.
"""

from collections.abc import Iterable

from protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.fastjson import dumps
from storage.json_config import parsed_table

ALWAYS_PRESENT = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has, without being asked."""

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""In its name transactions are checked."""

_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1


def always_present() -> list[SubscriptionGroupConfig]:
    """The configurations of those groups."""
    return [SubscriptionGroupConfig(name) for name in ALWAYS_PRESENT]


def parse_groups(text: str) -> SubscriptionGroupTable:
    """The table in the file's text, in its order. Raises RemoteError or ValueError."""
    table = SubscriptionGroupTable.from_json(parsed_table(text, "subscriptionGroupTable"))
    for name, group in table.subscription_group_table.items():
        group.group_name = group.group_name or name
        for number in (group.retry_queue_nums, group.retry_max_times):
            if abs(number) > _INT_MAX:
                raise ValueError(f"the group {name} has a number {number}")
        for number in (group.broker_id, group.which_broker_when_consume_slowly):
            if abs(number) > _LONG_MAX:
                raise ValueError(f"the group {name} has a broker {number}")
    return table


def format_groups(table: SubscriptionGroupTable) -> str:
    """The text of the file."""
    return dumps(table.to_json(), pretty=True).decode("utf-8")


def completed_groups(
    table: SubscriptionGroupTable | None, groups: Iterable[str], now_ms: int
) -> tuple[SubscriptionGroupTable, list[str]]:
    """The table with these groups in it, and the names that it lacked."""
    table = table or SubscriptionGroupTable()
    configs = dict(table.subscription_group_table)
    missing = sorted(set(groups) - configs.keys() - set(ALWAYS_PRESENT))
    configs.update({name: SubscriptionGroupConfig(name) for name in missing})
    version = table.data_version
    return SubscriptionGroupTable(configs, version.next(now_ms) if missing else version), missing
