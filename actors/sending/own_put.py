"""Messages that other actors have stored: delayed ones, those sent back, ends of transactions.

`PutOwn` is told to PutMessage; whoever told it gets one `OwnPut`.  The records come prepared:
nothing of them is checked but what the log itself cannot take.  `OwnPuts` is a plain class;
PutMessage owns the one there is.  It shares nothing with the path of a producer's send but the log
and the numbers of the queues, so that that path pays nothing for it.

A PutOwn waits for topics that have to be made first, and for the next file.  Its records get into
the log in their order: when one is refused for want of a place, so are those behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from zlib import crc32

from structlog import get_logger

from actors.engine.address import Address
from actors.following.reput import Appended
from actors.sending.group_commit import CommitUpTo
from actors.sending.send_rules import PROPERTIES_BYTES_MAX, RefusedError, TopicState
from actors.statistics.put_stats import PutStats
from actors.tables.topics import CreateSystemTopic, TopicReady
from protocol.codes import ResponseCode
from protocol.host import HOST_V4_BYTES
from protocol.message import HEAD_V6, TOPIC_BYTES_MAX
from protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from storage.append import PutRecord
from storage.commit_log import CommitLog
from storage.dispatch import DispatchEntry
from storage.errors import StoreError

log = get_logger(__name__)

COMMIT_RECORDS = 512
"""So many are written without waiting for the end of the batch: 5 ms of the loop."""

_NO_HOST_FLAGS = ~(BORN_HOST_V6 | STORE_HOST_V6)
_OVERHEAD_BYTES = HEAD_V6.size + 1 + 2
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


@dataclass(slots=True)
class OwnRecord:
    """One message as it is to lie in the log; the store host is this broker's."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    tags_code: int = 0
    keys: tuple[bytes, ...] = ()
    """What the index gets: UNIQ_KEY, then the words of KEYS."""

    flag: int = 0
    sys_flag: int = 0
    """The bits that say how long the hosts are need not be right."""
    born_timestamp: int = 0
    born_host: bytes = bytes(HOST_V4_BYTES)
    reconsume_times: int = 0
    prepared_offset: int = 0
    delay_ms: int = 0
    """Above 0 the tags code is the store time and so much more: when the message is due."""


@dataclass(slots=True)
class OwnResult:
    """What became of one record; without a place it is not in the log."""

    code: int
    queue_offset: int = -1
    physical_offset: int = -1
    record_bytes: int = 0

    @property
    def is_stored(self) -> bool:
        """Whether the record is in the log, if perhaps not as safe as it was to be."""
        return self.code in _STORED


@dataclass(slots=True)
class OwnPut:
    """The answer to a PutOwn: one result for each record, in order, and why some are refused."""

    token: object
    results: Sequence[OwnResult]
    remark: str | None = None

    def refuse(self, remark: str) -> None:
        """Whoever asked is gone; if it asked for somebody else, that one is told."""
        answer = getattr(self.token, "refuse", None)
        if answer is not None:
            answer(remark)


@dataclass(slots=True, eq=False)
class PutOwn:
    """Append these; then tell `reply_to` OwnPut with this token. Told to PutMessage."""

    records: Sequence[OwnRecord]
    reply_to: Address | None
    """None: nobody wants to know."""
    token: object = None
    waits: bool = False
    """The answer comes when they are on the disk under SYNC_FLUSH, of a SYNC_MASTER at a slave."""
    topics: Sequence[CreateSystemTopic] = ()
    """What is to be made first where it is not there; a topic that nobody makes is stored all
    the same."""
    is_chain: bool = False
    """A record that does not fit into the log takes those behind it along."""
    results: list[OwnResult] = field(default_factory=list)

    def answer(self, code: int, remark: str | None = None) -> None:
        """Tells the outcome; those that have none yet get `code`."""
        missing = len(self.records) - len(self.results)
        self.results += [OwnResult(code) for _ in range(missing)]
        if self.reply_to is not None:
            self.reply_to.tell(OwnPut(self.token, self.results, remark))

    def flushed(self, code: int) -> None:
        """Tells the outcome once it is known how safe the records are."""
        for result in self.results:
            if result.is_stored:
                result.code = code
        self.answer(code)

    def refuse(self, remark: str) -> None:
        """Nobody will append what is left of it."""
        self.answer(ResponseCode.SYSTEM_ERROR, remark)


FindState: TypeAlias = Callable[[str], TopicState]


class OwnPuts:
    """Those that wait for the end of the batch, for the next file, or for a topic."""

    def __init__(
        self,
        commit_log: CommitLog,
        find_state: FindState,
        stats: PutStats,
        *,
        is_sync: bool,
        addresses: Mapping[str, Address],
        put_message: Callable[[], Address],
    ) -> None:
        self._log = commit_log
        self._find_state = find_state
        self._stats = stats
        self._is_sync = is_sync
        self._to = addresses
        self._put_message = put_message
        self.pending: list[PutOwn] = []
        self.pending_count = 0
        """Records that are in `pending`, those that got into the log aside."""
        self._parked: dict[str, list[PutOwn]] = {}

    def take(self, put: PutOwn, known_topics: Mapping[str, object]) -> None:
        """Keeps it for the end of the batch, or until its topics are made."""
        for wanted in put.topics:
            if wanted.topic in known_topics:
                continue
            parked = self._parked.setdefault(wanted.topic, [])
            parked.append(put)
            if len(parked) == 1:
                self._to["topics"].tell(replace(wanted, reply_to=self._put_message()))
            return
        self.pending.append(put)
        self.pending_count += len(put.records)

    def topic_ready(self, message: TopicReady, known_topics: Mapping[str, object]) -> None:
        """What waited for this topic goes on, perhaps to wait for the next one."""
        for put in self._parked.pop(message.topic, ()):
            if message.config is None:
                put.answer(ResponseCode.SYSTEM_ERROR, f"topic[{message.topic}] not exist")
            else:
                self.take(put, {**known_topics, message.topic: message.config})

    def append(self, now_ms: int, not_available: Callable[[], RefusedError]) -> bool:
        """One write for all that is pending; True when some of it waits for the next file."""
        puts = self.pending
        chosen: list[tuple[PutOwn, OwnRecord, TopicState]] = []
        groups: list[list[PutRecord]] = []
        for put in puts:
            for number in range(len(put.results), len(put.records)):
                record = put.records[number]
                if self._fits(record):
                    state = self._find_state(record.topic)
                    chosen.append((put, record, state))
                    groups.append([self._numbered(record, state)])
                elif groups and chosen[-1][0] is put:
                    break  # its result comes behind those of the records before it
                else:
                    refused = len(put.records) - number if put.is_chain else 1
                    illegal = ResponseCode.MESSAGE_ILLEGAL
                    put.results += [OwnResult(illegal) for _ in range(refused)]
                    if put.is_chain:
                        break
        try:
            placed = self._log.append(groups, now_ms) if groups else []
        except (OSError, StoreError) as error:
            log.error("append failed", reason=str(error), own=len(groups))
            self._give_back(chosen, groups, 0)
            self.refuse_all(not_available())
            return False
        except BaseException:
            self._give_back(chosen, groups, 0)
            raise
        self._give_back(chosen, groups, len(placed))
        timestamp = self._log.last_store_timestamp
        entries: list[DispatchEntry] = []
        for (put, record, state), (packed,), place in zip(chosen, groups, placed):  # noqa: B905
            entries.append(_entry(record, packed, place, timestamp))
            counts = state.puts
            counts.count += 1
            counts.bytes += place[1]
            counts.times += 1
            put.results.append(OwnResult(ResponseCode.SUCCESS, packed[2], *place))
        self.pending = [put for put in puts if len(put.results) < len(put.records)]
        self.pending_count = sum(len(put.records) - len(put.results) for put in self.pending)
        self._told([put for put in puts if len(put.results) == len(put.records)], entries)
        if self.pending and len(placed) == len(groups):
            return self.append(now_ms, not_available)  # only those behind an illegal one are left
        return bool(self.pending)

    def _fits(self, record: OwnRecord) -> bool:
        """Whether the log can take it at all."""
        properties_bytes = len(record.properties)
        topic_bytes = len(record.topic.encode())
        size = _OVERHEAD_BYTES + topic_bytes + len(record.body) + properties_bytes
        return (
            properties_bytes <= PROPERTIES_BYTES_MAX
            and topic_bytes <= TOPIC_BYTES_MAX
            and size <= self._log.group_bytes_max
        )

    def _numbered(self, record: OwnRecord, state: TopicState) -> PutRecord:
        """The record with the next number of its queue."""
        offset, queue_id = 0, record.queue_id
        if not record.sys_flag & TRANSACTION_PREPARED:
            offset = state.next_offsets.get(queue_id, 0)
            state.next_offsets[queue_id] = offset + 1
        return (
            state.topic,
            queue_id,
            offset,
            record.flag,
            record.sys_flag & _NO_HOST_FLAGS,
            record.born_timestamp,
            record.born_host,
            record.reconsume_times,
            record.prepared_offset,
            record.body,
            record.properties,
            crc32(record.body) & 0x7FFFFFFF,
        )

    @staticmethod
    def _give_back(
        chosen: Sequence[tuple[PutOwn, OwnRecord, TopicState]],
        groups: Sequence[Sequence[PutRecord]],
        done: int,
    ) -> None:
        """Takes back the numbers of the records that did not get into the log."""
        for (_, record, state), _ in zip(chosen[done:], groups[done:], strict=True):
            if not record.sys_flag & TRANSACTION_PREPARED:
                state.next_offsets[record.queue_id] -= 1

    def _told(self, done: Sequence[PutOwn], entries: Sequence[DispatchEntry]) -> None:
        end_offset = self._log.end_offset
        later = [put for put in done if self._is_sync and put.waits]
        if self._is_sync:
            self._to["group_commit"].tell(CommitUpTo(end_offset, (), later))
        for put in done:
            if not (self._is_sync and put.waits):
                put.answer(ResponseCode.SUCCESS)
        if entries:
            self._stats.put_count += len(entries)
            self._stats.put_bytes += sum(entry[4] for entry in entries)
            self._to["reput"].tell(Appended(end_offset, entries))

    def refuse_all(self, error: RefusedError) -> None:
        """What waits for the log is refused; what got into it before, says so."""
        pending, self.pending, self.pending_count = self.pending, [], 0
        for put in pending:
            put.answer(error.code, error.remark)

    def give_up(self, error: RefusedError) -> None:
        """Everything is refused, also what waits for a topic."""
        parked = [put for waiting in self._parked.values() for put in waiting]
        self._parked.clear()
        self.pending += parked
        self.refuse_all(error)


def _entry(
    record: OwnRecord, packed: PutRecord, place: tuple[int, int], timestamp: int
) -> DispatchEntry:
    sys_flag = packed[4]
    if len(record.born_host) != HOST_V4_BYTES:
        sys_flag |= BORN_HOST_V6
    return (
        packed[0],
        packed[1],
        packed[2],
        *place,
        timestamp + record.delay_ms if record.delay_ms else record.tags_code,
        timestamp,
        sys_flag,
        record.keys,
    )
