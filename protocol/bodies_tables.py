"""Bodies with a broker's tables: topics, groups, offsets, and their registration at name servers.

The config files of a store have the same forms.

Source: common/TopicConfig.java, common/DataVersion.java, common/protocol/body/*.java,
common/subscription/SubscriptionGroupConfig.java.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import ClassVar, Self
from zlib import compress

from protocol.bodies import PERM_READ, PERM_WRITE
from protocol.codes import ResponseCode
from protocol.compression import DECOMPRESSED_BYTES_MAX, CompressionError, inflate
from protocol.errors import RemoteError
from protocol.fastjson import dumps, loads
from protocol.fastjson_limits import SHORT_NODES_MAX, FastjsonError
from protocol.java_numbers import parse_long
from protocol.json_body import Body, named, value

_UNFOLDED_BYTES_FREE = 1 << 20

_UNFOLDED_TIMES_MAX = 128
"""Maximum ratio of compression. Lines of topics shrink to a tenth, alike ones to a 90th."""

_LENGTH = Struct(">i")

_BEST_COMPRESSION = 9

_LONG_END = 1 << 63


@value
class TopicConfig(Body):
    """One topic as its broker has it."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False

    def encode_line(self) -> str:
        """Return its line of a compressed registration, without topic_sys_flag and order."""
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} "
            f"{self.perm} {self.topic_filter_type}"
        )

    @classmethod
    def decode_line(cls, line: str) -> Self:
        """Parse a line. Raises ValueError for an invalid one."""
        name, read_queue_nums, write_queue_nums, perm, filter_type = line.split(" ")
        read, write = parse_long(read_queue_nums), parse_long(write_queue_nums)
        return cls(name, read, write, parse_long(perm), filter_type)


@dataclass(frozen=True, slots=True)
class DataVersion(Body):
    """Version of a table; two are equal when both parts are."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int) -> "DataVersion":
        """Return the version after a change made now. Its counter wraps round like a Java long."""
        return DataVersion(now_ms, (self.counter + 1 + _LONG_END) % (2 * _LONG_END) - _LONG_END)


@value
class TopicConfigTable(Body):
    """All topics of a broker: answer of GET_ALL_TOPIC_CONFIG, topics.json."""

    topic_configs: dict[str, TopicConfig] = field(
        default_factory=dict, metadata=named("topicConfigTable")
    )
    data_version: DataVersion = field(default_factory=DataVersion)


@value
class RegisterBrokerBody(Body):
    """The registration of a broker at a name server: REGISTER_BROKER.

    Compressed it is zlib of: i32 length | data version | i32 count | { i32 length | topic line } |
    i32 length | filter servers, a JSON list.
    """

    topic_config_table: TopicConfigTable = field(
        default_factory=TopicConfigTable, metadata=named("topicConfigSerializeWrapper")
    )
    filter_servers: list[str] = field(default_factory=list, metadata=named("filterServerList"))

    def encode(self, *, compressed: bool = False) -> bytes:
        """Return the body; `compressed` as a broker with compressedRegister writes it."""
        if not compressed:
            return dumps(self.to_json())
        lines = [
            config.encode_line().encode("utf-8", "replace")
            for config in self.topic_config_table.topic_configs.values()
        ]
        parts = [_counted(self.topic_config_table.data_version.encode()), _LENGTH.pack(len(lines))]
        parts += map(_counted, lines)
        parts.append(_counted(dumps(self.filter_servers)))
        return compress(b"".join(parts), _BEST_COMPRESSION)

    @classmethod
    def decode(
        cls,
        data: bytes | memoryview | None,
        *,
        compressed: bool = False,
        check_topics: Callable[[int], None] = lambda _: None,
    ) -> Self:
        """Parse a body. Raises RemoteError(SYSTEM_ERROR) if it is invalid.

        `check_topics` receives the number of topics of a compressed body before they are made.
        """
        if not compressed:
            return cls._decode(data)
        try:
            data = bytes(data or b"")
            limit = max(_UNFOLDED_BYTES_FREE, _UNFOLDED_TIMES_MAX * len(data))
            plain = inflate(data, min(limit, DECOMPRESSED_BYTES_MAX))
            version, position = _take(plain, 0)
            (count,) = _LENGTH.unpack_from(plain, position)
            position += _LENGTH.size
            check_topics(count)
            table: dict[str, TopicConfig] = {}
            for _ in range(count):
                line, position = _take(plain, position)
                config = TopicConfig.decode_line(line.decode("utf-8", "replace"))
                table[config.topic_name] = config
            servers, _ = _take(plain, position)
            listed = loads(servers, SHORT_NODES_MAX)
        except (CompressionError, FastjsonError, StructError, ValueError) as error:
            remark = f"java.io.IOException: {error}"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark) from None
        names = [str(name) for name in listed] if isinstance(listed, list) else []
        return cls(TopicConfigTable(table, DataVersion.decode(version)), names)


def _counted(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    if length < 0 or start + length > len(data):
        raise ValueError("End of compressed data has reached")
    return data[start : start + length], start + length


@value
class SubscriptionGroupConfig(Body):
    """One consumer group as its broker has it: UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True


@value
class SubscriptionGroupTable(Body):
    """All groups of a broker: GET_ALL_SUBSCRIPTIONGROUP_CONFIG, subscriptionGroup.json."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@value
class KVTable(Body):
    """Names and texts: GET_BROKER_RUNTIME_INFO, GET_KVLIST_BY_NAMESPACE, REGISTER_BROKER."""

    table: dict[str, str] = field(default_factory=dict)


@value
class ConsumerOffsetTable(Body):
    """Offsets by `topic@group` and queue: GET_ALL_CONSUMER_OFFSET, consumerOffset.json."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    journal: int | None = None
    """Generation of the journal that follows the file; a TroupeMQ extension, absent without it."""


@value
class DelayOffsetTable(Body):
    """Offsets by delay level: GET_ALL_DELAY_OFFSET, delayOffset.json."""

    offset_table: dict[int, int] = field(default_factory=dict)
    delivered_ahead: dict[int, str] | None = None
    """Messages behind these offsets that are done; a TroupeMQ extension, absent without timers."""
    timers_from: int | None = None
    """Offset of the log; copies of timers behind it may not be noted yet. An extension, too."""
