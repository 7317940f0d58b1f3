"""Messages as an application sends and receives them, and results of sends."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import Any

from protocol import properties as names
from protocol.compression import decompress
from protocol.host import host_text
from protocol.message import MessageRecord, RecordError, decode_records
from protocol.message_id import offset_message_id
from protocol.properties import (
    KEY_SEPARATOR,
    NAME_VALUE_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    RESERVED_NAMES,
    format,
    parse,
)
from protocol.topic_names import (
    LEGAL_CHARACTERS,
    REFUSED_TOPICS,
    RETRY_TOPIC_PREFIX,
    TOPIC_CHARS_MAX,
    group_name_fault,
    is_legal_name,
)
from troupemq.client.arguments import delay_milliseconds, milliseconds
from troupemq.client.errors import ArgumentIllegal, MessageIllegal

TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
"""Properties of timers, by RocketMQ 5's names. RocketMQ 4.9 does not reserve them."""

LONG_PULL_BYTES = 256 << 10
"""Maximum answer to a pull that an event loop reads itself; brokers add more for one message."""

RECORDS_MAX = 1024
"""Limit of messages in an answer to a pull: no client asks for more."""

DEFAULT_REGION = "DefaultRegion"

_BLANK = re.compile(r"\s")


@dataclass(frozen=True)
class Message:
    """A message to send. It may be sent any number of times; each send has its own id.

        Message("Orders", b"...", tags="new", keys="4711", properties={"amount": "120"})

    `tags` is the one tag that subscriptions filter by. `keys`, a string or several, are indexed
    for queries; a key has no blanks. `properties` belong to the application: names and values are
    not empty, and the names that RocketMQ reserves (`protocol/properties.py`) are rejected.
    Raises MessageIllegal for invalid arguments, with the Java client's text where it has one.
    """

    topic: str
    body: bytes
    """Must not be empty: the Java client rejects an empty body, and some consumers fail on one."""

    tags: str | None = None
    keys: str | Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    """Number of the broker's delay level, from 1 (by default 1 s); 0 delivers at once."""

    wait_store_ok: bool = True
    """With False the broker answers without waiting for the sync or the slave it is set to."""

    delay: float | timedelta | None = field(default=None, kw_only=True)
    """Delay of delivery in seconds, or as a timedelta, to the millisecond. TroupeMQ and RocketMQ 5
    keep to it; RocketMQ 4.9 delivers at once, and knows only delay levels."""

    deliver_at: datetime | int | None = field(default=None, kw_only=True)
    """Time of delivery: a datetime, local without a zone, or ms since 1970. See `delay`."""

    system_properties: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    """Reserved properties; only the client itself sets them."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not isinstance(self.body, bytes):
            raise MessageIllegal(f"the body is bytes, {_given(self.body, _TO_BYTES)}")
        if not self.body:
            raise MessageIllegal("the message body length is zero")
        if isinstance(self.keys, str):
            object.__setattr__(self, "keys", (self.keys,) if self.keys else ())
        elif not isinstance(self.keys, tuple):
            if not isinstance(self.keys, Iterable):
                raise MessageIllegal(f"keys are a string or several, {_given(self.keys, _TO_TEXT)}")
            if isinstance(self.keys, bytes | bytearray):
                raise MessageIllegal(f"keys are strings, {_given(self.keys, _TO_TEXT)}")
            object.__setattr__(self, "keys", tuple(self.keys))
        for key in self.keys:
            _check_text("key", key)
            if _BLANK.search(key):
                raise MessageIllegal(f"a key holds no blanks: {key!r}")
        if not _is_integer(self.flag) or not -1 << 31 <= self.flag < 1 << 31:
            raise MessageIllegal(f"a flag is a number of 32 bits, and not {self.flag!r}")
        if not _is_integer(self.delay_level) or self.delay_level < 0:
            raise MessageIllegal(
                f"a delay level is a number from 0, and not {self.delay_level!r}:"
                " 3 is 10 s, where the broker has its default levels"
            )
        if self.delay is not None or self.deliver_at is not None:
            self._check_timer()
        if not isinstance(self.wait_store_ok, bool):
            raise MessageIllegal(f"wait_store_ok is True or False, and not {self.wait_store_ok!r}")
        if not isinstance(self.properties, Mapping):
            raise MessageIllegal(f"properties are a dict, and not {self.properties!r}")
        for name, value in self.properties.items():
            _check_text("property name", name)
            if name in RESERVED_NAMES:
                raise MessageIllegal(f"the property name {name} is RocketMQ's own")
            _check_text(f"property {name}", value)
        if self.tags is not None:
            if isinstance(self.tags, Iterable) and not isinstance(self.tags, str | bytes):
                raise MessageIllegal(
                    f"a message has one tag, a string, {_given(self.tags, {})}:"
                    " several words belong into keys or properties"
                )
            _check_text("tag", self.tags)
            if "||" in self.tags or self.tags != self.tags.strip():
                raise MessageIllegal(f"no subscription could name the tag {self.tags!r}")

    def _check_timer(self) -> None:
        if (self.delay is not None) + (self.deliver_at is not None) + bool(self.delay_level) > 1:
            raise MessageIllegal("a message has a delay, deliver_at or delay_level, one of them")
        try:
            self._timer()
        except ArgumentIllegal as error:
            raise MessageIllegal(str(error)) from None

    def _timer(self) -> tuple[str, int]:
        """Return the property of the timer and its value in ms. Raises ArgumentIllegal."""
        if self.deliver_at is not None:
            return TIMER_DELIVER_MS, milliseconds(self.deliver_at, "deliver_at")
        return TIMER_DELAY_MS, delay_milliseconds(self.delay, "delay")

    @property
    def is_delayed(self) -> bool:
        """Whether it is delivered later than it is sent."""
        return bool(self.delay_level) or self.delay is not None or self.deliver_at is not None

    def wire_properties(self, message_id: str) -> bytes:
        """Return the encoded properties of this message with the id `message_id`."""
        properties = {**self.properties, **self.system_properties}
        if self.keys:
            properties[names.KEYS] = KEY_SEPARATOR.join(self.keys)
        if self.tags:
            properties[names.TAGS] = self.tags
        if self.delay_level:
            properties[names.DELAY] = str(self.delay_level)
        if self.delay is not None or self.deliver_at is not None:
            name, value_ms = self._timer()
            properties[name] = str(value_ms)
        properties.setdefault(names.UNIQ_KEY, message_id)
        properties[names.WAIT] = "true" if self.wait_store_ok else "false"
        text = format(properties)
        if len(text) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(
                f"tags, keys and properties take {len(text)} bytes; "
                f"at most {PROPERTIES_BYTES_MAX} fit a message"
            )
        return text


def word_of(text: object) -> str | None:
    """Return a text that can be a key and a tag, else None."""
    is_word = isinstance(text, str) and text.isprintable() and text and " " not in text
    return text if is_word and isinstance(text, str) and "||" not in text else None


def check_sendable(topic: str) -> None:
    """Raise MessageIllegal for a topic that brokers reserve."""
    if topic in REFUSED_TOPICS:
        raise MessageIllegal(f"Sending message to topic[{topic}] is forbidden.")


def check_topic(topic: str) -> None:
    """Raise MessageIllegal unless the Java client accepts the name `topic`."""
    if not isinstance(topic, str):
        raise MessageIllegal(
            f"a topic's name is a string, and not {topic!r}: {_given(topic, _TO_TEXT)}"
        )
    if not topic.strip():
        raise MessageIllegal("The specified topic is blank")
    if len(topic) > TOPIC_CHARS_MAX:
        raise MessageIllegal(
            f"The specified topic is longer than topic max length {TOPIC_CHARS_MAX}."
        )
    if not is_legal_name(topic):
        raise MessageIllegal(
            f"The specified topic[{shown(topic)}] contains illegal characters,"
            f" allowing only {LEGAL_CHARACTERS}"
        )


def check_group(group: str) -> None:
    """Raise ArgumentIllegal unless the Java client accepts the name `group`."""
    if not isinstance(group, str):
        raise ArgumentIllegal(
            f"a group's name is a string, and not {group!r}: {_given(group, _TO_TEXT)}"
        )
    if not group.strip():
        raise ArgumentIllegal("the specified group is blank")
    if fault := group_name_fault(shown(group)):
        raise ArgumentIllegal(fault)


def check_own_group(group: str, kind: str) -> None:
    """Raise ArgumentIllegal as `check_group`, and for the Java client's default group of `kind`."""
    check_group(group)
    if group == f"DEFAULT_{kind.upper()}":
        raise ArgumentIllegal(f"{kind}Group can not equal {group}, please specify another one.")


def shown(name: str) -> str:
    """Return a name for an error, with its unprintable characters escaped."""
    return name if name.isprintable() else repr(name)[1:-1]


_TO_BYTES = {
    "str": ".encode() it",
    "bytearray": "bytes() it",
    "memoryview": "bytes() it",
    "dict": "json.dumps(...).encode() it",
    "list": "json.dumps(...).encode() it",
    "int": "str(...).encode() it",
    "float": "str(...).encode() it",
}
_TO_TEXT = {
    "bytes": ".decode() it",
    "int": "str() it",
    "float": "str() it",
    "bool": "str() it",
    "UUID": "str() it",
    "datetime": ".isoformat() it",
    "Decimal": "str() it",
}


def _given(value: object, advice: Mapping[str, str]) -> str:
    """Return "you gave <type>", and how to convert it."""
    if value is None:
        return "you gave None"
    name = type(value).__name__
    return f"you gave {name}: {advice[name]}" if name in advice else f"you gave {name}"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise MessageIllegal(f"a {what} is a string, {_given(text, _TO_TEXT)}")
    if not text:
        raise MessageIllegal(f"a {what} is a string and not empty: {text!r}")
    if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
        raise MessageIllegal(f"a {what} must not hold the characters 1 and 2: {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise MessageIllegal(f"a {what} must be text that UTF-8 can write: {text!r}") from None


@dataclass(frozen=True, order=True)
class MessageQueue:
    """One queue of a topic at one broker; sorts as in the Java client."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


def check_queues(queues: object, what: str) -> tuple[MessageQueue, ...]:
    """Return the queues without duplicates. Raises ArgumentIllegal unless all are MessageQueues."""
    if isinstance(queues, str | bytes | MessageQueue) or not isinstance(queues, Iterable):
        raise ArgumentIllegal(f"{what} are a list of MessageQueues, and not {queues!r}")
    found = tuple(dict.fromkeys(queues))
    for each in found:
        if not isinstance(each, MessageQueue):
            raise ArgumentIllegal(f"{what} are MessageQueues, and not {each!r}")
    return found


class SendStatus(Enum):
    """Durability of a stored message, compared with the broker's settings."""

    OK = "OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True)
class SendResult:
    """The place of a stored message. For a batch: ids joined with commas, the first offset."""

    status: SendStatus
    message_id: str
    """Id that the client assigned (property UNIQ_KEY); queries find the message by it."""

    offset_message_id: str
    """Id that the broker assigned: its address and the record's physical offset."""

    queue: MessageQueue
    queue_offset: int
    region_id: str = DEFAULT_REGION
    trace_on: bool = False
    """Whether the broker asks for traces of its messages."""

    recall_handle: str | None = None
    """Handle to cancel a delayed delivery (`Producer.recall`), from brokers that can."""


@dataclass(slots=True)
class MessageView:
    """A received message."""

    topic: str
    """Topic that the message was sent to, also for a retry."""

    stored_body: bytes
    """Body as the broker stores it, compressed if the producer compressed it."""

    properties: Mapping[str, str]
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    """Queue that the message was pulled from; for a retry, of the group's retry topic."""

    queue_offset: int
    flag: int
    born_timestamp_ms: int
    store_timestamp_ms: int
    born_host: str
    store_host: str
    reconsume_times: int
    physical_offset: int
    stored_bytes: int
    sys_flag: int
    _body: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Make copies and pickles, for other processes; these cannot hold a MappingProxyType."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _view_with, ({**values, "properties": dict(self.properties)},)

    @property
    def body(self) -> bytes:
        """The body as sent. Raises CompressionError for a codec that is not installed."""
        if self._body is None:
            self._body = decompress(self.stored_body, self.sys_flag)
        return self._body

    @property
    def tags(self) -> str | None:
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def failure(self) -> str | None:
        """Reason of the last failed consumption; only TroupeMQ clients and brokers record it."""
        return self.properties.get(names.TROUPE_FAILURE)


def _view_with(values: dict[str, Any]) -> MessageView:
    return MessageView(**{**values, "properties": MappingProxyType(values["properties"])})


def records_in(body: bytes | memoryview | None) -> list[MessageRecord]:
    """Return the records of a pull. Raises RecordError for an invalid one, or too many."""
    records = list(islice(decode_records(body or b""), RECORDS_MAX + 1))
    if len(records) > RECORDS_MAX:
        raise RecordError(f"more than {RECORDS_MAX} messages in an answer")
    return records


def view_of(record: MessageRecord, queue: MessageQueue) -> MessageView:
    properties = parse(record.properties)
    topic = record.topic
    if topic.startswith(RETRY_TOPIC_PREFIX):
        topic = properties.get(names.RETRY_TOPIC, topic)
    offset_id = offset_message_id(record.store_host, record.physical_offset)
    return MessageView(
        topic=topic,
        stored_body=record.body,
        properties=MappingProxyType(properties),
        message_id=properties.get(names.UNIQ_KEY, offset_id),
        offset_message_id=offset_id,
        queue=queue,
        queue_offset=record.queue_offset,
        flag=record.flag,
        born_timestamp_ms=record.born_timestamp,
        store_timestamp_ms=record.store_timestamp,
        born_host=host_text(record.born_host),
        store_host=host_text(record.store_host),
        reconsume_times=record.reconsume_times,
        physical_offset=record.physical_offset,
        stored_bytes=record.record_bytes,
        sys_flag=record.sys_flag,
    )
