"""The dispatcher of records: a queue unit, and an entry for what else follows the log.

The broker's send path has all fields of a record at hand and makes its DispatchEntry itself;
`entry_of` makes the same entry from a record of the log, for recovery.

Source: store/CommitLog.java (checkMessageAndReturnSize), DefaultMessageStore.java
(CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from sys import maxsize
from typing import Protocol

from protocol.java_numbers import NumberFormatError, int_in
from protocol.message import RecordHead
from protocol.properties import DELAY, KEYS, TAGS, UNIQ_KEY
from protocol.sink import may_be_of_sink
from protocol.sysflag import TRANSACTION_MASK
from protocol.topic_names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from storage.delay_levels import delay_levels_ms
from storage.errors import StoreError
from storage.index.key_hash import java_hash
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import (
    Dispatched,
    DispatchEntry,
    EntryRun,
    MixedEntries,
    extended,
)

__all__ = [
    "INDEXED_WORDS_MAX",
    "TAGS_NAME",
    "Dispatcher",
    "Follower",
    "delay_levels_ms",
    "entry_of",
    "index_keys",
    "index_keys_of",
    "property_of",
    "tags_code",
    "tags_code_of",
    "words_of",
]

FED_TOGETHER = 64
"""Records that followers are told at once. Told of each by itself they cost a lone send 12 µs more,
of 70: what is called rarely finds the processor's caches cold."""

INDEXED_WORDS_MAX = 128
"""Words of KEYS that the index gets of one message. 4.9.7 indexes all: properties of 32 KiB hold
16,000, and a few such messages took seconds of a tick. Dispatch, recovery and a slave agree."""
_OF_TRANSACTIONS = frozenset(
    topic.encode() for topic in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
)
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_CACHED_TAGS = 4096
_TAGS, _KEYS, _UNIQ_KEY, _DELAY = (
    f"\x02{name}\x01".encode() for name in (TAGS, KEYS, UNIQ_KEY, DELAY)
)
TAGS_NAME = _TAGS[1:]
"""The name of the property TAGS and what ends it."""


class Follower(Protocol):
    """Something derived of the log that follows behind it: the index, the transaction table.

    One owner at a time: while it is behind at a start the catch-up actor, afterwards Reput.
    """

    name: str
    """For logs; unique in a store."""

    @property
    def covered_offset(self) -> int:
        """What of the log is known: all records that begin below it. Where a record begins or ends.

        0 means nothing is known. Dispatching never moves it back.
        """

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Takes records in the order of the log; what is covered already is skipped.

        `covered_offset` is the end of the last of them afterwards. Raises DiskFull or StoreError;
        what was taken by then is covered, and the same entries may be dispatched again.
        """

    def write_out(self) -> None:
        """Puts what is only in memory into its files. Raises DiskFull or StoreError."""

    def trim_before(self, min_physical: int) -> list[str]:
        """Takes files out of use all of whose records lie before; somebody else deletes them.

        Gives their paths, the oldest first.
        """


class TakesEntries(Protocol):
    """The queues, or who feeds them."""

    def append(self, entries: Sequence[DispatchEntry]) -> None:
        """As `ConsumeQueues.append`."""


class Dispatcher:
    """Feeds the queues, then the followers that are not behind. Told records in log order."""

    def __init__(self, queues: ConsumeQueues, followers: Sequence[Follower] = ()) -> None:
        self.followers: tuple[Follower, ...] = tuple(followers)
        """Those that know the log up to `dispatched_offset`; only they may be fed from here."""
        self.dispatched_offset = 0
        """The end of the last record of which the queues know."""
        self.feeder: TakesEntries = queues
        """Who feeds the queues; of a slave somebody who sees where they begin anew."""
        self._queues = queues
        self._unfed: list[Dispatched] = []
        self._left = 0
        """Queues to write out, of those that `write_out` began with."""

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        """Adds what these records give. What is there already is not added again.

        Raises DiskFull or StoreError; the same entries may then be dispatched again. When the
        queues have taken them `dispatched_offset` says so, whatever became of the followers.
        """
        self.dispatch_to_queues(entries)
        self.feed()

    def dispatch_to_queues(self, entries: Sequence[Dispatched]) -> None:
        """The same, but that followers are told of plain messages later, some together: `feed`.

        Of those of transactions and sinks they are told at once: their tables are asked without a
        word to who feeds them. Whoever asks the index has it fed first.
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
                or (entry.keys and may_be_of_sink(entry.keys[0]))
            ):
                self.feed()
                return

    def feed(self) -> None:
        """Tells the followers what they have not been told yet. Raises DiskFull or StoreError.

        Who has not taken it by then is not told again: see its `covered_offset`.
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
        """Puts what is only in memory into the files; call it on a tick. Raises as `dispatch`.

        Of so many queues; True if others are left of those that had something when the first were
        taken. The followers come with the last ones.
        """
        queues = self._queues
        left, self._left = self._left or queues.unwritten_count, 0
        queues.write_out_some(min(left, queues_max))
        if left > queues_max:
            self._left = left - queues_max
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


def entry_of(head: RecordHead, delay_levels: Sequence[int]) -> DispatchEntry:
    """The entry of a record of the log; `delay_levels` in ms, level 1 first."""
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
    """Return the words of a KEYS value that are indexed: of its first INDEXED_WORDS_MAX pieces."""
    if b" " not in keys:
        return [keys] if keys else []
    return [word for word in keys.split(b" ", INDEXED_WORDS_MAX)[:INDEXED_WORDS_MAX] if word]


def index_keys(properties: bytes) -> tuple[bytes, ...]:
    """The keys of a message with these properties: UNIQ_KEY, then the words of KEYS."""
    return _keys_in(b"\x02" + properties)


def index_keys_of(pairs: Mapping[bytes, bytes]) -> tuple[bytes, ...]:
    """The same of properties that are taken apart."""
    unique, keys = pairs.get(b"UNIQ_KEY"), pairs.get(b"KEYS")
    first = () if unique is None else (unique,)
    return first if keys is None else (*first, *words_of(keys))


def _keys_in(raw: bytes) -> tuple[bytes, ...]:
    unique, keys = property_of(raw, _UNIQ_KEY), property_of(raw, _KEYS)
    first = (unique,) if unique else ()
    return (*first, *words_of(keys)) if keys else first


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


def tags_code_of(tail: bytes, text_at: int, at: int) -> int:
    """The code of the TAGS whose name may stand at `at`; the properties begin at `text_at`."""
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
