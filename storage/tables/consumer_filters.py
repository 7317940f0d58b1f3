"""consumerFilter.json: the filter expressions of consumer groups, in the form 4.9.7 writes.

    {"filterDataByTopic": {topic: {"groupFilterData": {group: {"bloomFilterData": {"bitNum",
        "bitPos": [..]}, "bornTime", "clientVersion", "consumerGroup", "dead", "deadTime",
        "expression", "expressionType", "topic"}}, "topic": topic}}}

A filter of a group without consumers is dead, and is dropped a day later. Until then it has bits in
the bit map of each message of its topic (read by storage/queues/message_filter.py).

Source: broker/filter/ConsumerFilterManager.java, ConsumerFilterData.java,
CommitLogDispatcherCalcBitMap.java.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar

from protocol import properties
from protocol.bloom import BloomFilter
from protocol.fastjson import dumps
from protocol.json_body import text_of
from protocol.message import RecordError
from protocol.sql92 import EvaluationError, Filter, SqlError, compile_filter
from protocol.table_rules import INT_MAX, LONG_MAX, LONG_MIN
from storage.errors import OffsetError
from storage.log.reader import View, head_of
from storage.queues.dispatch_entry import DispatchEntry
from storage.queues.message_filter import BloomBits
from storage.tables.json_config import parsed_table
from storage.tables.skipped_entry import LeftOuts, taken_entries

Part = TypeVar("Part")

TAG: Final = "TAG"
SQL92: Final = "SQL92"
CLEAN_TIME_SPAN_MS: Final = 24 * 3_600_000
"""Lifetime of a dead filter: RocketMQ's filterDataCleanTimeSpan."""
FORGOTTEN_MAX = 10_000
"""Dead filters that are dropped at once: 25 ms."""
FILTERS_MAX: Final = 50_000
"""Filters of all groups, 50 MiB; beyond it the longest dead are dropped, then none is added."""
_DEAD_BEFORE_LOAD_MS = 30_000
_TABLE, _GROUPS = "filterDataByTopic", "groupFilterData"


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """A group's filter expression for a topic."""

    group: str
    topic: str
    expression: str
    bit_count: int
    """Size of the bit maps that it was made for."""
    positions: tuple[int, ...]
    """Bits of the filter in the bit maps."""
    born_ms: int
    client_version: int
    dead_ms: int = 0
    expression_type: str = SQL92

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    def compiled(self) -> Filter | None:
        """Return the compiled expression, or None; each text is compiled once."""
        if self.expression_type != SQL92:
            return None
        try:
            return compile_filter(self.expression)
        except SqlError:
            return None

    def fits(self, bloom: BloomFilter) -> bool:
        """Return whether it was made for bit maps of the present size."""
        return (self.bit_count, len(self.positions)) == (bloom.bit_count, bloom.hash_count)

    def bits(self, bloom: BloomFilter) -> BloomBits | None:
        """Return its bits in the bit maps of messages, or None if they do not fit."""
        if not self.fits(bloom):
            return None
        return BloomBits(self.bit_count, self.positions, self.born_ms)


class ConsumerFilters:
    """The filters of all topics. One owner."""

    def __init__(self, bloom: BloomFilter, filters: Iterable[ConsumerFilter] = ()) -> None:
        self.bloom = bloom
        self.change_count = 0
        """Incremented by every change."""
        self._by_topic: dict[str, dict[str, ConsumerFilter]] = {}
        self._topics_of: dict[str, dict[str, None]] = {}
        """Topics by group."""
        self._own_topics: set[str] = set()
        self._own_groups: set[str] = set()
        """Topics and groups whose parts no copy of the table shares."""
        self._dead: dict[tuple[str, str], None] = {}
        """Topic and group of dead filters, in the order of their deaths."""
        self._count = 0
        for each in filters:
            self._put(each)

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return the filter of a group in a topic, or None."""
        return self._by_topic.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> Collection[ConsumerFilter]:
        """Return the filters of a topic, dead ones included."""
        return self._by_topic.get(topic, {}).values()

    def has_group(self, group: str) -> bool:
        """Return whether the group has filters, dead or alive."""
        return group in self._topics_of

    def copy(self) -> "ConsumerFilters":
        """Return a copy; the filters of a topic are copied when they change."""
        made = ConsumerFilters(self.bloom)
        made._by_topic, made._topics_of = self._by_topic.copy(), self._topics_of.copy()
        made._dead, made._count = self._dead.copy(), self._count
        made.change_count = self.change_count
        self._own_topics.clear()
        self._own_groups.clear()
        return made

    def __iter__(self) -> Iterator[ConsumerFilter]:
        return (each for filters in self._by_topic.values() for each in filters.values())

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether no new filter is added, because there are too many and none is dead."""
        return self._count >= FILTERS_MAX and not self._dead

    def register(
        self,
        topic: str,
        group: str,
        expression: str,
        expression_type: str,
        client_version: int,
        now_ms: int,
    ) -> bool:
        """Register a group's filter; return whether the group filters by it from now on.

        A version older than the known one is ignored, unless the known filter is dead: the clock of
        the group's only client may have gone back. An expression that does not compile removes the
        previous one, so that the client gets an error.
        """
        if expression_type in ("", TAG) or not expression:
            return False
        if not LONG_MIN <= client_version <= LONG_MAX:
            return False  # the file would be unreadable
        old = self.get(topic, group)
        positions = self.bloom.positions(group, topic)
        if old is not None and client_version <= old.client_version and not old.is_dead:
            return False
        new = ConsumerFilter(
            group,
            topic,
            expression,
            self.bloom.bit_count,
            positions,
            now_ms,
            client_version,
            expression_type=expression_type,
        )
        same = (expression, expression_type, positions, self.bloom.bit_count)
        if old is not None and same == (
            old.expression,
            old.expression_type,
            old.positions,
            old.bit_count,
        ):
            dead_ms = 0 if old.is_dead else old.dead_ms
            self._put(replace(old, client_version=client_version, dead_ms=dead_ms))
            return True
        if new.compiled() is None:
            if old is not None:
                self._remove(old)
            return False
        if old is None and self._count >= FILTERS_MAX:
            if not self._dead:
                return False
            topic, group = next(iter(self._dead))
            self._remove(self._by_topic[topic][group])
        self._put(new)
        return True

    def keep_only(self, group: str, topics: Collection[str], now_ms: int) -> Iterator[None]:
        """Mark a group's filters of all other topics as dead, one in a step."""
        for topic in tuple(self._topics_of.get(group, ())):
            each = self.get(topic, group)
            if each is not None and topic not in topics and not each.is_dead:
                self._put(replace(each, dead_ms=now_ms))
                yield

    def unregister(self, group: str, now_ms: int) -> Iterator[None]:
        return self.keep_only(group, (), now_ms)

    def forget_long_dead(self, now_ms: int, span_ms: int = CLEAN_TIME_SPAN_MS) -> int:
        """Drop filters that have been dead for `span_ms`, some at a time; return their number."""
        dead = (each for each in self if each.is_dead and now_ms - each.dead_ms >= span_ms)
        gone = [*islice(dead, FORGOTTEN_MAX)]
        for each in gone:
            self._remove(each)
        return len(gone)

    def loaded(self, now_ms: int, *, is_newest: bool = True) -> "ConsumerFilters":
        """Return the filters as after a start: dead, because no client is connected.

        Filters made for other bit maps (other settings) are left out: the bits of stored messages
        would be misread. Unless the file is the newest, all are born now: the bits of stored
        messages may be those of a later expression.
        """
        usable = [each for each in self if each.fits(self.bloom)]
        if not is_newest:
            usable = [replace(each, born_ms=now_ms, dead_ms=now_ms) for each in usable]
        dead_ms = now_ms - _DEAD_BEFORE_LOAD_MS
        return ConsumerFilters(
            self.bloom,
            (replace(each, dead_ms=each.dead_ms or max(dead_ms, each.born_ms)) for each in usable),
        )

    def bit_map(self, topic: str, raw_properties: bytes) -> bytes | None:
        """Return the bits of a message with these properties (as text); None without filters.

        Dead filters count, too, as in 4.9.7: their groups may return.
        """
        filters = self._by_topic.get(topic)
        if not filters:
            return None
        found = properties.parse(raw_properties)
        positions: list[int] = []
        for each in filters.values():
            if each.fits(self.bloom) and _is_true(each.compiled(), found):
                positions += each.positions
        return self.bloom.bit_map(positions)

    def _put(self, each: ConsumerFilter) -> None:
        of_topic, place = self._filters_of(each.topic), (each.topic, each.group)
        if each.group not in of_topic:
            self._count += 1
            _owned(self._topics_of, each.group, self._own_groups)[each.topic] = None
        of_topic[each.group] = each
        self._dead.pop(place, None)
        if each.is_dead:
            self._dead[place] = None
        self.change_count += 1

    def _remove(self, each: ConsumerFilter) -> None:
        of_topic = self._filters_of(each.topic)
        topics = _owned(self._topics_of, each.group, self._own_groups)
        del of_topic[each.group], topics[each.topic]
        if not of_topic:
            del self._by_topic[each.topic]
            self._own_topics.discard(each.topic)
        if not topics:
            del self._topics_of[each.group]
            self._own_groups.discard(each.group)
        self._dead.pop((each.topic, each.group), None)
        self._count -= 1
        self.change_count += 1

    def _filters_of(self, topic: str) -> dict[str, ConsumerFilter]:
        return _owned(self._by_topic, topic, self._own_topics)


def _owned(table: dict[str, dict[str, Part]], key: str, own: set[str]) -> dict[str, Part]:
    """Return a part of the table, to be changed: a copy if a copy of the table has it, too."""
    if key not in own:
        own.add(key)
        table[key] = table.get(key, {}).copy()
    return table[key]


class FilterBitMaps:
    """Bit maps of dispatched records: a BitMaps (storage/queues/dispatch_entry.py)."""

    def __init__(self, filters: Callable[[], ConsumerFilters], view: View) -> None:
        """Create the function; `filters` returns the present filters."""
        self._filters, self._view = filters, view

    def __call__(self, entry: DispatchEntry) -> bytes | None:
        """Return None without filters, and for an unreadable record: both hide no message."""
        filters = self._filters()
        topic = entry.topic.decode("utf-8", "surrogateescape")
        if not filters.of_topic(topic):
            return None
        try:
            data = self._view(entry.physical_offset, entry.record_bytes)
            head = head_of(data, entry.physical_offset)
        except (OffsetError, RecordError):
            return None
        return filters.bit_map(topic, head.properties)


def _is_true(compiled: Filter | None, found: Mapping[str, str]) -> bool:
    try:
        return compiled is not None and compiled(found) is True
    except EvaluationError:
        return False


# -- the file -------------------------------------------------------------------------------------


def parse_filters(
    text: str, bloom: BloomFilter, left_out: LeftOuts | None = None
) -> ConsumerFilters:
    """Return the filters in the file's text, in its order (with `bloom`, a Parse).

    An entry is the filter of one group in one topic. One made for other bit maps is left out if
    another one fits: then the settings are unchanged.
    """

    def groups_of(key: object, value: object) -> tuple[str, Mapping[object, object]]:
        topic = text_of(key)
        groups = value.get(_GROUPS) if isinstance(value, dict) else None
        if not isinstance(groups, dict):
            raise ValueError("it has no groupFilterData")
        return topic, groups

    _, topics = parsed_table(text, _TABLE)
    groups_by_topic = taken_entries(topics, groups_of, left_out, (_TABLE,))
    some_fit = any(
        _was_made_for(bloom, fields)
        for groups in groups_by_topic.values()
        for fields in groups.values()
    )
    filters = ConsumerFilters(bloom)
    for topic, groups in groups_by_topic.items():

        def filter_of(key: object, value: object, topic: str = topic) -> tuple[str, ConsumerFilter]:
            each = _filter_of(topic, text_of(key), value)
            if some_fit and not each.fits(bloom):
                raise ValueError("it is for other bit maps than the others")
            return each.group, each

        for each in taken_entries(groups, filter_of, left_out, (_TABLE, topic, _GROUPS)).values():
            filters._put(each)
    return filters


def _was_made_for(bloom: BloomFilter, fields: object) -> bool:
    bits = fields.get("bloomFilterData") if isinstance(fields, dict) else None
    positions = bits.get("bitPos") if isinstance(bits, dict) else None
    return (
        isinstance(bits, dict)
        and isinstance(positions, list)
        and (bits.get("bitNum"), len(positions)) == (bloom.bit_count, bloom.hash_count)
    )


def _filter_of(topic: str, group: str, fields: object) -> ConsumerFilter:
    if not isinstance(fields, dict):
        raise ValueError("it is not an object")
    bits = fields.get("bloomFilterData")
    bits = bits if isinstance(bits, dict) else {}
    positions = bits.get("bitPos") or []
    bit_count = _number(bits, "bitNum", INT_MAX)
    if not isinstance(positions, list) or not all(
        type(each) is int and 0 <= each < bit_count for each in positions
    ):
        raise ValueError(f"it has bits {positions!r:.100} of {bit_count}")
    found = ConsumerFilter(
        group,
        topic,
        text_of(fields.get("expression") or ""),
        bit_count,
        tuple(positions),
        _number(fields, "bornTime", LONG_MAX),
        _number(fields, "clientVersion", LONG_MAX, LONG_MIN),
        _number(fields, "deadTime", LONG_MAX),
        text_of(fields.get("expressionType") or ""),
    )
    if found.compiled() is None:
        raise ValueError("its expression does not compile")
    return found


def _number(fields: Mapping[object, object], name: str, most: int, least: int = 0) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}")
    return value


def format_filters(filters: ConsumerFilters) -> str:
    topics: dict[str, object] = {}
    for topic in dict.fromkeys(each.topic for each in filters):
        groups = {each.group: fields_of(each) for each in filters.of_topic(topic)}
        topics[topic] = {"groupFilterData": groups, "topic": topic}
    return dumps({_TABLE: topics}, pretty=True).decode("utf-8")


def fields_of(each: ConsumerFilter) -> dict[str, object]:
    """Return one filter in the form of 4.9.7."""
    return {
        "bloomFilterData": {"bitNum": each.bit_count, "bitPos": each.positions},
        "bornTime": each.born_ms,
        "clientVersion": each.client_version,
        "consumerGroup": each.group,
        "dead": each.is_dead,
        "deadTime": each.dead_ms,
        "expression": each.expression,
        "expressionType": each.expression_type,
        "topic": each.topic,
    }
