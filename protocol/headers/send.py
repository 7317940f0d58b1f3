"""Sending: long names (SEND_MESSAGE), one-letter names (v2 and batch), replies, the answer.

    a producerGroup  b topic  c defaultTopic  d defaultTopicQueueNums  e queueId  f sysFlag
    g bornTimestamp  h flag  i properties  j reconsumeTimes  k unitMode  l maxReconsumeTimes
    m batch  n bname

Source: common/protocol/header/SendMessageRequestHeader.java, SendMessageRequestHeaderV2.java,
SendMessageResponseHeader.java, ReplyMessageRequestHeader.java.
"""

from collections.abc import Mapping
from typing import Self

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.fields import Header, wire, wire_long
from protocol.json_body import value

_LONG_NAMES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
"""Ext fields that every answer to a send carries beside its header, errors included."""


SYS_FLAG_V2, BORN_TIMESTAMP_V2, FLAG_V2, PROPERTIES_V2 = "f", "g", "h", "i"
"""One-letter names of the fields of a send that differ between messages."""


@value
class SendMessageHeader(Header):
    """Metadata of a message or a batch from its producer."""

    producer_group: str = wire("producerGroup", short="a")
    topic: str = wire("topic", short="b")
    default_topic: str = wire("defaultTopic", short="c")
    default_topic_queue_nums: int = wire("defaultTopicQueueNums", short="d")
    queue_id: int = wire("queueId", short="e")
    sys_flag: int = wire("sysFlag", short=SYS_FLAG_V2)
    born_timestamp: int = wire_long("bornTimestamp", short=BORN_TIMESTAMP_V2)
    flag: int = wire("flag", short=FLAG_V2)
    properties: str | None = wire("properties", short=PROPERTIES_V2, default=None)
    reconsume_times: int | None = wire("reconsumeTimes", short="j", default=None)
    unit_mode: bool = wire("unitMode", short="k", default=False)
    max_reconsume_times: int | None = wire("maxReconsumeTimes", short="l", default=None)
    batch: bool = wire("batch", short="m", default=False)
    broker_name: str | None = wire("bname", short="n", default=None)

    @classmethod
    def decode_v2(cls, found: Mapping[str, str] | None) -> Self:
        """Return the header of the one-letter names."""
        return cls._decode(found or {}, short=True)

    def encode_v2(self) -> dict[str, str]:
        """Return the fields under one-letter names."""
        return self._encode(short=True)

    @classmethod
    def of_command(cls, command: RemotingCommand) -> Self:
        """Return the header of any send or reply, under the names of its code."""
        long_names = command.code in _LONG_NAMES
        return cls._decode(command.fields or {}, short=not long_names)


@value
class SendMessageResponseHeader(Header):
    """Place of a stored message.

    Ids of a batch are joined with commas; its offset is that of the first message.
    """

    msg_id: str = wire("msgId")
    queue_id: int = wire("queueId")
    queue_offset: int = wire_long("queueOffset")
    transaction_id: str | None = wire("transactionId", default=None)


@value
class RecallMessageHeader(Header):
    """Request of RocketMQ 5.x to cancel a pending timer, named by its handle (timers.py)."""

    topic: str = wire("topic")
    recall_handle: str = wire("recallHandle")
    producer_group: str | None = wire("producerGroup", default=None)


@value
class RecallMessageResponseHeader(Header):
    msg_id: str = wire("msgId")
    """Unique key of the cancelled message."""


@value
class ReplyMessageHeader(Header):
    """A reply that the broker forwards to the requesting producer."""

    producer_group: str = wire("producerGroup")
    topic: str = wire("topic")
    default_topic: str = wire("defaultTopic")
    default_topic_queue_nums: int = wire("defaultTopicQueueNums")
    queue_id: int = wire("queueId")
    sys_flag: int = wire("sysFlag")
    born_timestamp: int = wire_long("bornTimestamp")
    flag: int = wire("flag")
    born_host: str = wire("bornHost")
    store_host: str = wire("storeHost")
    store_timestamp: int = wire_long("storeTimestamp")
    properties: str | None = wire("properties", default=None)
    reconsume_times: int | None = wire("reconsumeTimes", default=None)
    unit_mode: bool = wire("unitMode", default=False)
