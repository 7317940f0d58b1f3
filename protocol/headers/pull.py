"""Reading messages: pull, query by key, view by offset.

Source: common/protocol/header/PullMessageRequestHeader.java, PullMessageResponseHeader.java,
QueryMessageRequestHeader.java, ViewMessageRequestHeader.java.
"""

from dataclasses import dataclass
from typing import ClassVar

from protocol.headers.fields import Header, wire, wire_long
from protocol.values import value

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Ext field of QUERY_MESSAGE: "true" asks for a UNIQ_KEY, and the broker picks its own maximum."""


@dataclass(slots=True, kw_only=True)
class PullMessageHeader(Header):
    """Queue, offset, maximum, and time for which the broker may hold the pull."""

    by_hand: ClassVar[bool] = True

    consumer_group: str = wire("consumerGroup")
    topic: str = wire("topic")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    max_msg_nums: int = wire("maxMsgNums")
    sys_flag: int = wire("sysFlag")
    commit_offset: int = wire_long("commitOffset")
    suspend_timeout_ms: int = wire_long("suspendTimeoutMillis")
    subscription: str | None = wire("subscription", default=None)
    sub_version: int = wire_long("subVersion")
    expression_type: str | None = wire("expressionType", default=None)
    broker_name: str | None = wire("bname", default=None)


@value
class PullMessageResponseHeader(Header):
    """Next offset; min and max offset of the queue; broker to ask next."""

    by_hand: ClassVar[bool] = True

    suggest_which_broker_id: int = wire_long("suggestWhichBrokerId")
    next_begin_offset: int = wire_long("nextBeginOffset")
    min_offset: int = wire_long("minOffset")
    max_offset: int = wire_long("maxOffset")


@value
class QueryMessageHeader(Header):
    """Messages of a topic by key, stored between two times (ms)."""

    topic: str = wire("topic")
    key: str = wire("key")
    max_num: int = wire("maxNum")
    begin_timestamp: int = wire_long("beginTimestamp")
    end_timestamp: int = wire_long("endTimestamp")


@value
class QueryMessageResponseHeader(Header):
    """End of the index at the query."""

    index_last_update_timestamp: int = wire_long("indexLastUpdateTimestamp")
    index_last_update_physical_offset: int = wire_long("indexLastUpdatePhyoffset")


@value
class ViewMessageHeader(Header):
    """One message by its physical offset."""

    offset: int = wire_long("offset")
