"""From the record to what is derived of it: a consume queue unit and index entries.

The broker's send path has all fields of a record at hand and makes its DispatchEntry itself;
`entry_of` makes the same entry from a record of the log, for recovery.

Source: store/CommitLog.java (checkMessageAndReturnSize), DefaultMessageStore.java
(CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex).
"""

from collections.abc import Sequence
from functools import lru_cache

from protocol.message import RecordHead
from protocol.properties import DELAY, KEYS, TAGS, UNIQ_KEY
from protocol.topic_names import SCHEDULE_TOPIC
from storage.consume_queues import ConsumeQueues, DispatchEntry
from storage.index import Index
from storage.key_hash import java_hash

__all__ = [
    "DispatchEntry",
    "Dispatcher",
    "delay_levels_ms",
    "entry_of",
    "index_keys",
    "property_of",
    "tags_code",
]

_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_CACHED_TAGS = 4096
_TAGS, _KEYS, _UNIQ_KEY, _DELAY = (
    f"\x02{name}\x01".encode() for name in (TAGS, KEYS, UNIQ_KEY, DELAY)
)


class Dispatcher:
    """Feeds the queues and the index. Told records in the order of the log, without gaps."""

    def __init__(self, queues: ConsumeQueues, index: Index | None) -> None:
        """`index` is None where messages are not indexed."""
        self._queues = queues
        self._index = index

    def dispatch(self, entries: Sequence[DispatchEntry]) -> None:
        """Adds what these records give. What is there already is not added again.

        Raises DiskFull or StoreError; the same entries may then be dispatched again.
        """
        self._queues.append(entries)
        if self._index is not None:
            self._index.put_many(entries)

    def write_out(self) -> None:
        """Puts what is only in memory into the files; call it on a tick. Raises as `dispatch`."""
        self._queues.write_out_all()
        if self._index is not None:
            self._index.write_out()


def entry_of(head: RecordHead, delay_levels: Sequence[int]) -> DispatchEntry:
    """The entry of a record of the log; `delay_levels` in ms, level 1 first."""
    raw = b"\x02" + head.properties
    code = tags_code(property_of(raw, _TAGS))
    if head.topic == _SCHEDULE_TOPIC:
        due = _due_time(property_of(raw, _DELAY), head.store_timestamp, delay_levels)
        code = code if due is None else due
    return (
        head.topic,
        head.queue_id,
        head.queue_offset,
        head.physical_offset,
        head.record_bytes,
        code,
        head.store_timestamp,
        head.sys_flag,
        _keys_in(raw),
    )


def index_keys(properties: bytes) -> tuple[bytes, ...]:
    """The keys of a message with these properties: UNIQ_KEY, then the words of KEYS."""
    return _keys_in(b"\x02" + properties)


def _keys_in(raw: bytes) -> tuple[bytes, ...]:
    unique, keys = property_of(raw, _UNIQ_KEY), property_of(raw, _KEYS)
    first = (unique,) if unique else ()
    return (*first, *filter(None, keys.split(b" "))) if keys else first


def property_of(raw: bytes, name: bytes) -> bytes:
    """A property's value, the last one if it is there twice, empty if it is not there.

    `raw` is the properties text with a separator (0x02) before it, `name` the property's name
    between 0x02 and 0x01: so a name is never found inside a value.
    """
    end = len(raw)
    while (start := raw.rfind(name, 0, end)) >= 0:
        value_start = start + len(name)
        value_end = raw.find(b"\x02", value_start)
        value = raw[value_start:] if value_end < 0 else raw[value_start:value_end]
        if value:
            return value
        end = start + 1
    return b""


@lru_cache(maxsize=_CACHED_TAGS)
def tags_code(tags: bytes) -> int:
    """The hash of a TAGS value, UTF-8; 0 without one."""
    return java_hash(tags) if tags else 0


def _due_time(delay: bytes, store_timestamp: int, delay_levels: Sequence[int]) -> int | None:
    try:
        level = min(int(delay), len(delay_levels))
    except ValueError:
        return None
    return store_timestamp + delay_levels[level - 1] if level > 0 else None


def delay_levels_ms(text: str) -> tuple[int, ...]:
    """`1s 5s 1m 2h` (the setting messageDelayLevel) in ms. Raises ValueError."""
    return tuple(int(word[:-1]) * _UNIT_MS[word[-1:]] for word in text.split())
