"""Options of the data source: parsed, compared with each other, and named in errors.

Names are those of Spark's Kafka connector where the meaning is equal; docs/pipeline.md has the
table. Spark passes option names in any case, so they are compared without it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from re import Pattern, compile
from re import error as PatternError
from typing import Any, TypeAlias

from protocol.java_numbers import plain_number
from protocol.signature import Credentials
from remoting.address import split_addresses
from spark.accounts import ACCOUNT_NAMES, account_in
from spark.source.plan import RANGE_BYTES
from spark.source.row_filter import Expression
from storage.errors import StoreError
from storage.retention.leases import LEASE_MS_MAX
from storage.spelling import did_you_mean

LATEST, EARLIEST = -1, -2
"""In place of a queue offset, as in Kafka's JSON."""

LEASE_TIMEOUT_MS = 3_600_000
"""Default lease time of a batch read: Spark does not report the end of the read."""

QueueName: TypeAlias = tuple[str, int] | tuple[str, int, str]
"""Topic and queue id; and the name of the broker, over the network."""

NAMES = (
    "store",
    "nameServer",
    "commitLog",
    "publishedOffset",
    "brokerName",
    "topic",
    "topics",
    "topicPattern",
    "includeSystemTopics",
    "subExpression",
    "expressionType",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxBytesPerPartition",
    "failOnDataLoss",
    "includeProperties",
    "leaseTimeoutMs",
    "ranges",
    *ACCOUNT_NAMES,
)
_FOR_STREAMS = ("maxOffsetsPerTrigger", "maxBytesPerTrigger")
_FOR_BATCHES = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "ranges")
_OF_STORES = {
    "store": "give one of them",
    "commitLog": "it is of a store: leave it out",
    "publishedOffset": "it is of a store: leave it out",
    "brokerName": "brokers tell their names themselves: leave it out",
    "ranges": "they are of a store: leave it out",
}
"""Options that contradict nameServer, with advice."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every queue: of the same kind in all, or told for each one."""

    option: str
    """Name of the option that set the position."""

    offset: int | None = None
    """EARLIEST or LATEST."""

    timestamp_ms: int | None = None
    """The first message stored then or later."""

    offsets: Mapping[QueueName, int] | None = None
    timestamps_ms: Mapping[QueueName, int] | None = None

    @property
    def named(self) -> Mapping[QueueName, int] | None:
        """Return the offsets per queue; None if one word was given for all."""
        return self.timestamps_ms if self.offsets is None else self.offsets


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a read, parsed and checked."""

    given: Mapping[str, str]
    store: str
    """Empty over the network."""

    name_servers: tuple[str, ...]
    """Empty for a store."""

    commit_log: str | None
    published_offset: int | None
    broker_name: str | None
    topics: frozenset[str] | None
    topic_pattern: Pattern[str] | None
    include_system_topics: bool
    expression: Expression | None
    starting: Position | None
    ending: Position | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    fail_on_data_loss: bool
    include_properties: bool
    lease_timeout_ms: int
    """Time for which old log files are retained for a read; 0 for none."""
    ranges: str | None
    credentials: Credentials | None = field(repr=False)

    def check_batch(self) -> None:
        """Refuse options for streams only. Raises StoreError."""
        for name in _FOR_STREAMS:
            if name in self.given:
                raise StoreError(
                    f"{name} limits the batches of a stream: for a read with an end give "
                    "endingOffsets, or use readStream"
                )

    def check_stream(self) -> None:
        """Refuse options for batch reads only. Raises StoreError."""
        for name in _FOR_BATCHES:
            if name in self.given:
                raise StoreError(
                    f"{name} is for reads with an end: leave it out of a stream, whose end is what "
                    "there is, or use read"
                )


def parse_options(raw: Mapping[str, str]) -> Options:
    """Parse the options.

    Raises StoreError for one that is unknown, invalid, or contradicts another one.
    """
    given = _known(raw)
    credentials = account_in(given) if "nameServer" in given else None
    _one_of(given, "topic", "topics", "topicPattern")
    for edge in ("starting", "ending"):
        _one_of(given, f"{edge}Offsets", f"{edge}Timestamp", f"{edge}OffsetsByTimestamp")
    starting = _position(given, "starting", refused=None)
    ending = _position(given, "ending", refused=EARLIEST)
    _check_order(starting, ending)
    expression = given.get("subExpression")
    kind = given.get("expressionType")
    if kind is not None and expression is None:
        raise StoreError("expressionType says what subExpression is: give that, too")
    return Options(
        given=given,
        store=given.get("store", ""),
        name_servers=_name_servers(given),
        commit_log=given.get("commitLog"),
        published_offset=_number(given, "publishedOffset", 0),
        broker_name=given.get("brokerName"),
        topics=_topics(given),
        topic_pattern=_pattern(given),
        include_system_topics=_flag(given, "includeSystemTopics", False),
        expression=None if expression is None else Expression.parse(expression, kind),
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=_number(given, "maxBytesPerTrigger"),
        min_partitions=_number(given, "minPartitions"),
        max_records_per_partition=_number(given, "maxRecordsPerPartition"),
        max_bytes_per_partition=_number(given, "maxBytesPerPartition") or RANGE_BYTES,
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        include_properties=_flag(given, "includeProperties", True),
        lease_timeout_ms=_lease_timeout_ms(given),
        ranges=given.get("ranges"),
        credentials=credentials,
    )


def _known(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their documented spelling; `path` of load() is the store."""
    spelling = {name.lower(): name for name in NAMES}
    given: dict[str, str] = {}
    for name, value in raw.items():
        known = "path" if name.lower() == "path" else spelling.get(name.lower())
        if known is None:
            hint = did_you_mean(name, NAMES, f"it has {', '.join(NAMES)}")
            raise StoreError(f"troupemq has no option {name}: {hint}")
        given[known] = value
    path = given.pop("path", None)
    if path is not None and given.setdefault("store", path) != path:
        raise StoreError("store and the path of load() name two stores: give one of them")
    if "nameServer" in given:
        for name, what_to_do in _OF_STORES.items():
            if name in given:
                raise StoreError(f"nameServer and {name} contradict each other: {what_to_do}")
    elif named := [name for name in ACCOUNT_NAMES if name in given]:
        raise StoreError(f"{named[0]} is for servers: a store needs file permissions only")
    elif not given.get("store"):
        raise StoreError(
            "store is missing: give the broker's storePathRootDir, or nameServer to read over the "
            "network"
        )
    return given


def _name_servers(given: Mapping[str, str]) -> tuple[str, ...]:
    if "nameServer" not in given:
        return ()
    try:
        return split_addresses(given["nameServer"])
    except ValueError as error:
        raise StoreError(f"nameServer: {error}; several have ; between them") from None


def _one_of(given: Mapping[str, str], *names: str) -> None:
    both = [name for name in names if name in given]
    if len(both) > 1:
        raise StoreError(f"{' and '.join(both)} contradict each other: give one of them")


def _number(given: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    number = plain_number(text.strip())
    if number is None or number < least:
        raise StoreError(f"{name} is {text}: it must be a number from {least} on")
    return number


def _lease_timeout_ms(given: Mapping[str, str]) -> int:
    timeout_ms = _number(given, "leaseTimeoutMs", 0)
    if timeout_ms is None:
        return LEASE_TIMEOUT_MS
    if timeout_ms > LEASE_MS_MAX:
        raise StoreError(f"leaseTimeoutMs is {timeout_ms}: it must be {LEASE_MS_MAX} at most")
    return timeout_ms


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise StoreError(f"{name} is {given[name]}: it must be true or false")
    return text == "true"


def _topics(given: Mapping[str, str]) -> frozenset[str] | None:
    name = "topic" if "topic" in given else "topics"
    if name not in given:
        return None
    wanted = [topic.strip() for topic in given[name].split(",")]
    if name == "topic" and len(wanted) > 1:
        raise StoreError("topic is one topic: several with commas between are given as topics")
    if not all(wanted):
        raise StoreError(f"{name} has an empty name in it: give names with commas between")
    return frozenset(wanted)


def _pattern(given: Mapping[str, str]) -> Pattern[str] | None:
    text = given.get("topicPattern")
    if text is None:
        return None
    try:
        return compile(text)
    except PatternError as error:
        raise StoreError(f"topicPattern is no regular expression: {error}") from None


def _position(given: Mapping[str, str], edge: str, refused: int | None) -> Position | None:
    """Parse a position; `refused` is EARLIEST where a read cannot end there."""
    name = f"{edge}Offsets"
    if name in given:
        text = given[name].strip()
        word = {"latest": LATEST, "earliest": EARLIEST}.get(text.lower())
        if word is not None and word != refused:
            return Position(name, offset=word)
        words = "latest" if refused == EARLIEST else "earliest, latest"
        if not text.startswith("{"):
            raise StoreError(f'{name} is {text}: it must be {words}, or JSON {{"topic":{{"0":7}}}}')
        least = EARLIEST if refused is None else LATEST
        return Position(name, offsets=_by_queue(name, given, least))
    name = f"{edge}Timestamp"
    if name in given:
        return Position(name, timestamp_ms=_number(given, name, 0))
    name = f"{edge}OffsetsByTimestamp"
    if name in given:
        return Position(name, timestamps_ms=_by_queue(name, given, 0))
    return None


def _by_queue(name: str, given: Mapping[str, str], least: int) -> dict[QueueName, int]:
    """Parse JSON of topic, optional broker, queue id and number."""
    broker_name = given.get("brokerName")
    over_network = "nameServer" in given
    right = f'{name} must be JSON {{"topic":{{"0":7,"1":9}}}} or {{"topic":{{"broker":{{"0":7}}}}}}'
    if over_network:
        right = f'{name} must be JSON {{"topic":{{"broker":{{"0":7,"1":9}}}}}} with nameServer'
    found: dict[QueueName, int] = {}
    for topic, queues in _object(given[name], right).items():
        if not isinstance(queues, dict):
            raise StoreError(right)
        for key, value in queues.items():
            if over_network:
                for number, offset in _part(value, right).items():
                    queue = topic, _queue_id(number, right), key
                    found[queue] = _at_least(offset, least, name, right)
                continue
            if not isinstance(value, dict):
                found[topic, _queue_id(key, right)] = _at_least(value, least, name, right)
                continue
            if broker_name is None or key != broker_name:
                raise StoreError(
                    f"{name} names broker {key}: this is one store, "
                    + (f"of {broker_name}" if broker_name else "whose name brokerName can give")
                )
            for number, offset in value.items():
                found[topic, _queue_id(number, right)] = _at_least(offset, least, name, right)
    return found


def _object(text: str, right: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise StoreError(right) from None
    if not isinstance(value, dict):
        raise StoreError(right)
    return value


def _part(value: object, right: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StoreError(right)
    return value


def _queue_id(text: str, right: str) -> int:
    number = plain_number(text)
    if number is None:
        raise StoreError(right)
    return number


def _at_least(value: object, least: int, name: str, right: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise StoreError(right)
    if value < least:
        allowed = {EARLIEST: "-2 (earliest), -1 (latest)", LATEST: "-1 (latest)"}.get(least)
        raise StoreError(f"{name} has {value} in it: {allowed or '0'} and more are possible")
    return value


def _check_order(starting: Position | None, ending: Position | None) -> None:
    """Raise StoreError if the end is before the start, as far as the options alone tell."""
    if starting is None or ending is None:
        return
    if starting.offset == LATEST:
        raise StoreError(
            f"{starting.option} is latest: with {ending.option} nothing can be between"
        )
    pairs: list[tuple[int | None, int | None]] = [(starting.timestamp_ms, ending.timestamp_ms)]
    first, last = starting.offsets or {}, ending.offsets or {}
    pairs += [(first[queue], last[queue]) for queue in first.keys() & last.keys()]
    since, until = starting.timestamps_ms or {}, ending.timestamps_ms or {}
    pairs += [
        (since.get(queue, starting.timestamp_ms), until.get(queue, ending.timestamp_ms))
        for queue in since.keys() | until.keys()
    ]
    for start, end in pairs:
        if start is not None and end is not None and 0 <= end < start:
            raise StoreError(
                f"{ending.option} {end} is before {starting.option} {start}: exchange them"
            )


def broker_of(name: QueueName) -> str | None:
    """Return the name of the queue's broker; None in a store, where names lack it."""
    return name[2] if len(name) == 3 else None


def queue_text(topic: str, queue_id: int, broker: str | None = None) -> str:
    """Return the name of a queue in sentences."""
    return f"queue {queue_id} of {topic}" + (f" at {broker}" if broker else "")
