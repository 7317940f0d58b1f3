"""The dispatcher of records: feeds the consume queues and the other followers of the commit log.

The broker's send path has all fields of a record and builds its DispatchEntry itself. For recovery,
`entry_of` builds the same entry from a record of the log.

Source: store/CommitLog.java (checkMessageAndReturnSize), DefaultMessageStore.java
(CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from sys import maxsize
from typing import Protocol

from protocol.codes import TRANSACTION_MASK
from protocol.delay_levels import delay_levels_ms
from protocol.java_numbers import NumberFormatError, int_in
from protocol.message import RecordHead
from protocol.properties import DELAY, KEYS, TAGS, UNIQ_KEY
from protocol.sink import KEY_TIME, NO_TIME, may_be_of_sink
from protocol.tags import CACHED_TAG_CHARS
from protocol.topic_names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from storage.errors import StoreError
from storage.index.key_hash import java_hash
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import (
    Dispatched,
    DispatchEntry,
    EntryRun,
    MixedEntries,
)

__all__ = [
    "INDEXED_WORDS_MAX",
    "TAGS_NAME",
    "Dispatcher",
    "Follower",
    "cut_behind",
    "delay_levels_ms",
    "entry_of",
    "extended",
    "index_keys",
    "index_keys_of",
    "property_of",
    "tags_code",
    "tags_code_of",
    "words_of",
]

FED_TOGETHER = 64
"""Records passed to followers in one call.

Single calls cost a lone send 12 µs more, of 70: code that rarely runs finds cold caches.
"""

INDEXED_WORDS_MAX = 128
"""Words of KEYS that are indexed per message.

4.9.7 indexes all: properties of 32 KiB hold 16,000, and a few such messages took seconds of a tick.
Dispatch, recovery and a slave agree.
"""
_OF_TRANSACTIONS = frozenset(
    topic.encode() for topic in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
)
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_CACHED_TAGS = 4096
_TAGS, _KEYS, _UNIQ_KEY, _DELAY = (
    f"\x02{name}\x01".encode() for name in (TAGS, KEYS, UNIQ_KEY, DELAY)
)
TAGS_NAME = _TAGS[1:]
"""The name of the property TAGS with its end mark."""


class Follower(Protocol):
    """A structure derived from the commit log, such as the index or the transaction table.

    It has one owner at a time: the catch-up actor while it lags at a start, afterwards Reput.
    """

    name: str
    """Unique in a store; appears in logs."""

    @property
    def covered_offset(self) -> int:
        """Start or end of a record; all records that begin below it are known.

        0 means that no record is known. Dispatching never moves it back.
        """

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Take records in the order of the log; skip those that are covered already.

        Afterwards `covered_offset` is the end of the last of them. Raise DiskFull or StoreError:
        then the records taken so far are covered, and the same entries may be dispatched again.
        """

    def write_out(self) -> None:
        """Write what is only in memory to the files. Raise DiskFull or StoreError."""

    def trim_before(self, min_physical: int) -> list[str]:
        """Take files out of use that have only records below `min_physical`.

        Return their paths, oldest first; the caller deletes them.
        """


class TakesEntries(Protocol):
    """The queues, or a component that feeds them."""

    def append(self, entries: Sequence[DispatchEntry]) -> None:
        """Append entries like `ConsumeQueues.append`."""


class Dispatcher:
    """Feeds records, in log order, to the queues, then to the followers that do not lag."""

    def __init__(self, queues: ConsumeQueues, followers: Sequence[Follower] = ()) -> None:
        self.followers: tuple[Follower, ...] = tuple(followers)
        """Followers that know the log up to `dispatched_offset`; only these may be fed here."""
        self.dispatched_offset = 0
        """End of the last record that the queues know."""
        self.feeder: TakesEntries = queues
        """Component that feeds the queues; on a slave, one that notices where they restart."""
        self._queues = queues
        self._unfed: list[Dispatched] = []
        self._left = 0
        """Queues left to write out, of those that `write_out` began with."""

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Dispatch these records; those already known are skipped.

        Raise DiskFull or StoreError; the same entries may then be dispatched again. Once the queues
        have taken them, `dispatched_offset` says so, even if a follower failed.
        """
        self.dispatch_to_queues(entries)
        self.feed()

    def dispatch_to_queues(self, entries: Sequence[Dispatched]) -> None:
        """Dispatch to the queues; the followers get plain messages later, in groups (`feed`).

        Followers get records of transactions and sinks at once: their tables are read without a
        feed. A reader of the index must have it fed first.
        """
        if not entries:
            return
        is_mixed = isinstance(entries, MixedEntries)
        if is_mixed:
            self._feed_mixed(entries)
        else:
            self.feeder.append(entries)  # type: ignore[arg-type]
        last = entries[-1]
        end_offset = last.physical_offset + last.record_bytes
        if end_offset > self.dispatched_offset:
            self.dispatched_offset = end_offset
        self._unfed = extended(self._unfed, entries)
        if is_mixed or len(self._unfed) >= FED_TOGETHER:
            self.feed()
            return
        entry: DispatchEntry
        for entry in entries:  # type: ignore[assignment]
            if (
                entry.sys_flag & TRANSACTION_MASK
                or entry.topic in _OF_TRANSACTIONS
                or (
                    entry.keys
                    and entry.keys[0][KEY_TIME] == NO_TIME  # few: saves the call
                    and may_be_of_sink(entry.keys[0])
                )
            ):
                self.feed()
                return

    def feed(self) -> None:
        """Pass the collected records to the followers. Raise DiskFull or StoreError.

        A follower that fails does not get them again: see its `covered_offset`.
        """
        entries, self._unfed = self._unfed, []
        if not entries:
            return
        failure: StoreError | None = None
        for follower in self.followers:  # one that fails holds back none of the others
            try:
                follower.dispatch(entries)
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _feed_mixed(self, entries: Sequence[Dispatched]) -> None:
        for is_run, stretch in groupby(entries, lambda entry: isinstance(entry, EntryRun)):
            if not is_run:
                self.feeder.append(list(stretch))  # type: ignore[arg-type]
                continue
            for run in stretch:
                assert isinstance(run, EntryRun)
                if self.feeder is not self._queues or not self._queues.append_run(run):
                    self.feeder.append(run.entries())

    def write_out(self, queues_max: int = maxsize) -> bool:
        """Write what is only in memory to the files; called on a tick. Raise like `dispatch`.

        Write `queues_max` queues, fewer if they are new. Return True if some are left of those that
        had something to write when the first were taken. The followers come with the last ones.
        """
        queues = self._queues
        left, self._left = self._left or queues.unwritten_count, 0
        left -= queues.write_out_some(left, queues_max)
        if left > 0:
            self._left = left
            return True
        failure: StoreError | None = None
        for follower in self.followers:
            try:
                follower.write_out()
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return False


def extended(entries: list[Dispatched], more: Sequence[Dispatched]) -> list[Dispatched]:
    """Return `entries` extended by `more`: the same list, or a MixedEntries."""
    if isinstance(more, MixedEntries) and not isinstance(entries, MixedEntries):
        entries = MixedEntries(entries)
    entries.extend(more)
    return entries


def cut_behind(
    entries: list[Dispatched], count: int, keys_max: int
) -> tuple[list[Dispatched], list[Dispatched]]:
    """Split into the first entries, of about `count` records and `keys_max` keys, and the rest.

    Runs are not split.
    """
    is_short = not isinstance(entries, MixedEntries) and len(entries) <= count
    if is_short and (len(entries) == 1 or sum([len(each.keys) for each in entries]) <= keys_max):
        return entries, []
    number = records = keys = 0
    while number < len(entries) and records < count and keys < keys_max:
        entry = entries[number]
        if isinstance(entry, EntryRun):
            records += len(entry.keys)
            keys += sum(map(len, entry.keys))
        else:
            records += 1
            keys += len(entry.keys)
        number += 1
    if number == len(entries):
        return entries, []
    kind = type(entries)
    return kind(entries[:number]), kind(entries[number:])


def entry_of(head: RecordHead, delay_levels: Sequence[int]) -> DispatchEntry:
    """Return the entry of a record in the log; `delay_levels` in ms, level 1 first."""
    raw = b"\x02" + head.properties
    code = tags_code(property_of(raw, _TAGS))
    if head.topic == _SCHEDULE_TOPIC:
        due = _due_time(property_of(raw, _DELAY), head.store_timestamp, delay_levels)
        code = code if due is None else due
    return DispatchEntry(
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


def words_of(keys: bytes) -> list[bytes]:
    """Return the indexed words of a KEYS value: those of its first INDEXED_WORDS_MAX pieces."""
    if b" " not in keys:
        return [keys] if keys else []
    return [word for word in keys.split(b" ", INDEXED_WORDS_MAX)[:INDEXED_WORDS_MAX] if word]


def index_keys(properties: bytes) -> tuple[bytes, ...]:
    """Return the index keys for these properties: UNIQ_KEY, then the words of KEYS."""
    return _keys_in(b"\x02" + properties)


def index_keys_of(pairs: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """Return the index keys for parsed properties."""
    unique, keys = pairs.get(b"UNIQ_KEY"), pairs.get(b"KEYS")
    first = () if unique is None else (unique,)
    return first if keys is None else (*first, *words_of(keys))


def _keys_in(raw: bytes) -> tuple[bytes, ...]:
    unique, keys = property_of(raw, _UNIQ_KEY), property_of(raw, _KEYS)
    first = (unique,) if unique else ()
    return (*first, *words_of(keys)) if keys else first


def property_of(raw: bytes, name: bytes) -> bytes:
    """Return a property's value, the last one of duplicates, or an empty one.

    `raw` is the properties text with a separator (0x02) in front. `name` is the property's name
    between 0x02 and 0x01, so that it is never found inside a value.
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


def tags_code(tags: bytes) -> int:
    """Return the hash of a TAGS value, UTF-8; 0 for an empty one."""
    if not tags:
        return 0
    return java_hash(tags) if len(tags) > CACHED_TAG_CHARS else _code_of(tags)


@lru_cache(maxsize=_CACHED_TAGS)
def _code_of(tags: bytes) -> int:
    return java_hash(tags)


def tags_code_of(tail: bytes, text_at: int, at: int) -> int:
    """Return the code of TAGS, with its name possibly at `at`; properties begin at `text_at`."""
    value_at = at + len(TAGS_NAME)
    if (at == text_at or tail[at - 1] == 2) and tail.find(TAGS_NAME, value_at) < 0:
        value_end = tail.find(b"\x02", value_at)
        value = tail[value_at:] if value_end < 0 else tail[value_at:value_end]
        return tags_code(value)
    return tags_code(property_of(b"\x02" + tail[text_at:], _TAGS))


def _due_time(delay: bytes, store_timestamp: int, delay_levels: Sequence[int]) -> int | None:
    try:
        level = min(int_in(delay), len(delay_levels))
    except NumberFormatError:
        return None
    return store_timestamp + delay_levels[level - 1] if level > 0 else None
