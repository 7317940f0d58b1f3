"""subscriptionGroup.json: the consumer groups of a broker, in the form 4.9.7 writes.

    {"dataVersion": {"counter": n, "timestamp": ms},
     "subscriptionGroupTable": {group: {"brokerId", "consumeBroadcastEnable", "consumeEnable",
        "consumeFromMinEnable", "groupName", "notifyConsumerIdsChangedEnable", "retryMaxTimes",
        "retryQueueNums", "whichBrokerWhenConsumeSlowly"}}}

Source: broker/subscription/SubscriptionGroupManager.java.
"""

from protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.fastjson import dumps, loads

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


def always_present() -> list[SubscriptionGroupConfig]:
    """The configurations of those groups."""
    return [SubscriptionGroupConfig(name) for name in ALWAYS_PRESENT]


def parse_groups(text: str) -> SubscriptionGroupTable:
    """The table in the file's text, in its order. Raises RemoteError or FastjsonError."""
    return SubscriptionGroupTable.from_json(loads(text))


def format_groups(table: SubscriptionGroupTable) -> str:
    """The text of the file."""
    return dumps(table.to_json(), pretty=True).decode("utf-8")
