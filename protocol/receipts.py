"""Texts and bodies by which a client settles the messages that it received by POP.

A handle ("extra info") names a message in flight. Clients build it from the answer's header and
give it back unchanged. Its fields are separated by blanks; a ninth is ignored:

    start offset   queue offset of the first message of the queue in that answer
    pop time       ms, the broker's clock
    invisible      ms
    revive queue   a number below 999; 999: received in order
    topic kind     0 the topic itself; 1 its retry topic, 2 that of later brokers
    broker         name
    queue id
    queue offset

An answer describes its messages by three lists. Entries are separated by ';', their fields by
blanks, offsets by ',':

    startOffsetInfo   kind queue start-offset
    msgOffsetInfo     kind queue offset,offset,...
    orderCountInfo    kind queue tries      or      kind qo<queue>%<offset> tries

In a batch of acknowledgements the offsets are bits behind a start offset, as Java's BitSet writes
them: bit n in byte n / 8, the lowest first; base64.

Source: remoting/protocol/header/ExtraInfoUtil.java, body/BatchAck.java,
body/BatchAckMessageRequestBody.java, remoting/protocol/BitSetSerializerDeserializer.java.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from protocol.fastjson_limits import SHORT_NODES_MAX
from protocol.headers.pop import PopMessageHeader
from protocol.java_numbers import NumberFormatError, parse_int, parse_long
from protocol.json_body import Body, named
from protocol.topic_names import RETRY_TOPIC_PREFIX

NORMAL_KIND, RETRY_KIND, LATER_RETRY_KIND = "0", "1", "2"

ORDER_REVIVE_QUEUE = 999
"""Revive queue in handles of messages received in order."""

HANDLE_CHARS_MAX = 1024
"""Maximum length of a handle: eight numbers and a broker's name."""
LIST_CHARS_MAX = 64 << 10
"""Maximum length of a list; 32 messages of 32 queues take 3 KiB."""
BITS_BYTES_MAX = 4096
"""Maximum size of a bit set: more offsets than a queue has in flight."""

_HANDLE_FIELDS = 8
_ENTRY_FIELDS = 3
_BITS_OF_BYTE = 8


class ReceiptError(ValueError):
    """A text that is no handle, list or bit set. Its message is that of RocketMQ."""


@dataclass(slots=True)
class ReceiptHandle:
    """One message in flight, as a client names it."""

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    topic_kind: str
    broker_name: str
    queue_id: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> "ReceiptHandle":
        """Return the handle of a text. Raises ReceiptError."""
        parts = text.split(" ") if len(text) <= HANDLE_CHARS_MAX else []
        if len(parts) < _HANDLE_FIELDS:
            raise ReceiptError(f"getQueueOffset fail, extraInfoStrs length {len(parts)}")
        start, popped, invisible, revive, kind, broker, queue, offset = parts[:_HANDLE_FIELDS]
        try:
            return cls(
                start_offset=parse_long(start),
                pop_time_ms=parse_long(popped),
                invisible_time_ms=parse_long(invisible),
                revive_queue_id=parse_int(revive),
                topic_kind=kind,
                broker_name=broker,
                queue_id=parse_int(queue),
                offset=parse_long(offset),
            )
        except NumberFormatError as error:
            raise ReceiptError(str(error)) from None

    def format(self) -> str:
        """Return the text of this handle."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_time_ms}"
            f" {self.revive_queue_id} {self.topic_kind} {self.broker_name}"
            f" {self.queue_id} {self.offset}"
        )


def kind_of(topic: str) -> str:
    """Return the kind by which handles and lists name a topic."""
    return RETRY_KIND if topic.startswith(RETRY_TOPIC_PREFIX) else NORMAL_KIND


def topic_of(kind: str, topic: str, group: str) -> str:
    """Return the topic that a client means, in a store that has one retry topic for each group.

    A 5.x client names the retry topic of each topic, `%RETRY%group_topic`. Both kinds of retry
    topics, and those names, are the group's retry topic here.
    """
    retry = RETRY_TOPIC_PREFIX + group
    if kind in (RETRY_KIND, LATER_RETRY_KIND) or topic == retry:
        return retry
    return retry if topic.startswith((f"{retry}_", f"{retry}+")) else topic


class ReceivedQueue(NamedTuple):
    """Messages of one queue in an answer."""

    kind: str
    queue_id: int
    offsets: Sequence[int]
    """Queue offsets in the order of the messages in the body: clients match them by position."""
    tries: int = 0
    """Deliveries before this one, for messages received in order."""


def format_start_offsets(queues: Iterable[ReceivedQueue]) -> str:
    """Return `startOffsetInfo`: the lowest offset of each queue."""
    return ";".join(f"{each.kind} {each.queue_id} {min(each.offsets)}" for each in queues)


def format_offsets(queues: Iterable[ReceivedQueue]) -> str:
    """Return `msgOffsetInfo`: all offsets of each queue."""
    return ";".join(
        f"{each.kind} {each.queue_id} {','.join(map(str, each.offsets))}" for each in queues
    )


def format_order_counts(queues: Iterable[ReceivedQueue]) -> str:
    """Return `orderCountInfo`: the tries of each message."""
    return ";".join(
        f"{each.kind} {_order_key(each.queue_id, offset)} {each.tries}"
        for each in queues
        for offset in each.offsets
    )


def answer_fields(
    asked: PopMessageHeader, pop_time_ms: int, rest_num: int, queues: Sequence[ReceivedQueue]
) -> dict[str, str]:
    """Return the ext fields of the answer to a receive, as PopMessageResponseHeader has them."""
    fields = {
        "popTime": str(pop_time_ms),
        "invisibleTime": str(asked.invisible_time_ms),
        "reviveQid": str(ORDER_REVIVE_QUEUE if asked.order else 0),
        "restNum": str(rest_num),
    }
    if queues:
        fields["startOffsetInfo"] = format_start_offsets(queues)
        fields["msgOffsetInfo"] = format_offsets(queues)
        if asked.order:
            fields["orderCountInfo"] = format_order_counts(queues)
    if asked.hold_with_connection:
        fields["holdWithConnection"] = "true"
    return fields


def parse_start_offsets(text: str) -> dict[tuple[str, int], int]:
    """Return the start offset by kind and queue. Raises ReceiptError."""
    return {(kind, _int(queue)): _long(start) for kind, queue, start in _entries(text)}


def parse_offsets(text: str) -> dict[tuple[str, int], list[int]]:
    """Return the offsets by kind and queue. Raises ReceiptError."""
    return {
        (kind, _int(queue)): [_long(each) for each in offsets.split(",")]
        for kind, queue, offsets in _entries(text)
    }


class OrderCounts:
    """The tries of messages received in order."""

    def __init__(self, text: str) -> None:
        """Read `orderCountInfo`. Raises ReceiptError."""
        self._tries = {(kind, key): _int(tries) for kind, key, tries in _entries(text)}

    def tries(self, kind: str, queue_id: int, offset: int) -> int:
        """Return the deliveries of a message before this one."""
        found = self._tries.get((kind, _order_key(queue_id, offset)))
        return self._tries.get((kind, str(queue_id)), 0) if found is None else found


def _order_key(queue_id: int, offset: int) -> str:
    return f"qo{queue_id}%{offset}"


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    if len(text) > LIST_CHARS_MAX:
        raise ReceiptError(f"a list of {len(text)} characters")
    for entry in text.split(";") if text else ():
        parts = entry.split(" ")
        if len(parts) != _ENTRY_FIELDS:
            raise ReceiptError(f"{entry[:100]!r} has {len(parts)} fields")
        yield parts[0], parts[1], parts[2]


def _int(text: str) -> int:
    try:
        return parse_int(text)
    except NumberFormatError as error:
        raise ReceiptError(str(error)) from None


def _long(text: str) -> int:
    try:
        return parse_long(text)
    except NumberFormatError as error:
        raise ReceiptError(str(error)) from None


def parse_bits(text: str, start_offset: int) -> list[int]:
    """Return the offsets of a bit set behind `start_offset`. Raises ReceiptError."""
    if len(text) > BITS_BYTES_MAX * 4 // 3 + 4:
        raise ReceiptError(f"a bit set of {len(text)} characters")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ReceiptError("a bit set that is no base64") from None
    return [
        start_offset + position * _BITS_OF_BYTE + bit
        for position, byte in enumerate(data)
        if byte
        for bit in range(_BITS_OF_BYTE)
        if byte >> bit & 1
    ]


def format_bits(offsets: Iterable[int], start_offset: int) -> str:
    """Return the bit set of offsets, none of them below `start_offset`."""
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - start_offset
    data = bits.to_bytes((bits.bit_length() + _BITS_OF_BYTE - 1) // _BITS_OF_BYTE, "little")
    return base64.b64encode(data).decode("ascii")


@dataclass(slots=True)
class BatchAck(Body):
    """Messages of one queue that were received together."""

    consumer_group: str = field(default="", metadata=named("c"))
    topic: str = field(default="", metadata=named("t"))
    retry: str = field(default=NORMAL_KIND, metadata=named("r"))
    start_offset: int = field(default=0, metadata=named("so"))
    queue_id: int = field(default=0, metadata=named("q"))
    revive_queue_id: int = field(default=0, metadata=named("rq"))
    pop_time_ms: int = field(default=0, metadata=named("pt"))
    invisible_time_ms: int = field(default=0, metadata=named("it"))
    bits: str = field(default="", metadata=named("b"))

    def offsets(self) -> list[int]:
        """Return the queue offsets of the messages. Raises ReceiptError."""
        return parse_bits(self.bits, self.start_offset)


@dataclass(slots=True)
class BatchAckBody(Body):
    """Messages that are consumed: the body of BATCH_ACK_MESSAGE."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    broker_name: str | None = None
    acks: list[BatchAck] = field(default_factory=list)
