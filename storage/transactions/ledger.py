"""The ledger of transactions as the log's records tell it: open ones, and how others ended.

    record                                         what it does
    of RMQ_SYS_TRANS_HALF_TOPIC                    opens one; with TRANSACTION_CHECK_TIMES or
                                                   TRAN_PREPARED_QUEUE_OFFSET in place of an older
    type commit, prepared_transaction_offset       the half message there is being committed
    of RMQ_SYS_TRANS_OP_HALF_TOPIC, TAGS d         settles the half with the queue offset that its
                                                   body names: committed if that was told, else
                                                   rolled back
    of TRANS_CHECK_MAX_TIME_TOPIC                  gives up the half with the same UNIQ_KEY
    type prepared (older stores)                   opens one, which type commit or rollback settles

Source: broker/transaction/queue/TransactionalMessageBridge.java, TransactionalMessageServiceImpl.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from protocol.message import HEADS, RECORD_MAGIC, MessageRecord, RecordError
from protocol.properties import (
    PGROUP,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
)
from protocol.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from storage.dispatching.dispatch import property_of, tags_code
from storage.errors import OffsetError
from storage.log.reader import View, message_of
from storage.queues.consume_queues import DispatchEntry
from storage.transactions.units import (
    COMMITTED,
    COMMITTING,
    DISCARDED,
    PREPARED,
    REPLACED,
    ROLLED_BACK,
    UNIT,
    TransactionUnit,
)

_HALF, _OP, _MAX_TIME = (
    topic.encode() for topic in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
)
_TOPICS = frozenset((_HALF, _OP, _MAX_TIME))
_PGROUP, _UNIQ_KEY, _CHECK_TIMES, _PREPARED_QUEUE_OFFSET = (
    f"\x02{name}\x01".encode()
    for name in (PGROUP, UNIQ_KEY, TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET)
)
_REMOVE_TAG: Final = tags_code(b"d")
_NO_KEY = Struct(">qi")
_UNSIGNED_MASK = 0xFFFFFFFF
_PREPARED_OFFSET_FIELD: Final = 13
"""Of HEADS."""
_DIGITS_MAX = 19
"""Of a queue offset."""


@dataclass(slots=True)
class PendingTransaction:
    """A half message that nothing has settled; about half a kilobyte of memory each."""

    number: int
    """Of its unit."""
    physical_offset: int
    record_bytes: int
    timestamp_s: int
    """When the producer made it."""
    group_hash: int
    """Java's hashCode of the producer group."""
    queue_id: int
    queue_offset: int
    """Of the half message; without meaning where `is_half` is False."""
    is_half: bool
    """False for a prepared record of an older store."""
    state: int = PREPARED
    key: bytes = b""
    """The same in every copy of the half message."""
    replaces: bool = False
    prepared_queue_offset: int = -1

    def packed(self) -> bytes:
        """Its unit."""
        return UNIT.pack(
            self.physical_offset, self.record_bytes, self.timestamp_s, self.group_hash, self.state
        )


class Change(NamedTuple):
    """One step of the table, and how far the log must be on disk before it may be."""

    record_end: int
    number: int
    state: int
    unit: bytes
    """A new unit; empty where only the state changes."""


class TransactionLedger:
    """The open transactions of a log, in its order."""

    def __init__(self, view: View) -> None:
        self.pending: dict[int, PendingTransaction] = {}
        """By offset in the log, oldest first."""
        self.next_number = 0
        self.unreadable_count = 0
        """Records that could not be read when they were dispatched; they change nothing."""
        self._view = view
        self._by_queue: dict[tuple[int, int], PendingTransaction] = {}
        self._by_key: dict[bytes, list[PendingTransaction]] = {}

    def start_at(self, number: int) -> None:
        """Forgets everything; the next transaction gets this number."""
        self.pending.clear()
        self._by_queue.clear()
        self._by_key.clear()
        self.next_number = number

    def restore(self, number: int, unit: TransactionUnit) -> bool:
        """Takes a pending unit of the table; False if the log holds no such half message."""
        record = self._read(unit.physical_offset, unit.record_bytes, check_crc=False)
        if record is None:
            return False
        pending = _pending_of(record, number)
        pending.state = unit.state
        if pending.packed() != UNIT.pack(*unit):
            return False
        self._add(pending)
        return True

    def forget_before(self, min_physical: int) -> None:
        """Drops transactions whose half messages are gone."""
        pending = self.pending
        while pending and (oldest := next(iter(pending))) < min_physical:
            self._remove(pending[oldest])

    # -- taking records (the loop is hot: nearly every record is of no interest) --------------

    def changes_of(self, entries: Sequence[DispatchEntry]) -> list[Change]:
        """What these records, in the order of the log, change."""
        changes: list[Change] = []
        topics, mask = _TOPICS, TRANSACTION_MASK
        for entry in entries:
            if entry[7] & mask or entry[0] in topics:
                self._note(entry, changes)
        return changes

    def _note(self, entry: DispatchEntry, changes: list[Change]) -> None:
        topic, offset, size, sys_flag = entry[0], entry[3], entry[4], entry[7]
        if topic == _OP and entry[5] != _REMOVE_TAG:
            return
        end, kind = offset + size, sys_flag & TRANSACTION_MASK
        if kind in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            self._end(entry, kind, end, changes)
            return
        record = self._read(offset, size, check_crc=topic == _OP)
        if record is None:
            self.unreadable_count += 1
        elif kind == TRANSACTION_PREPARED or topic == _HALF:
            self._open(record, end, changes)
        elif topic == _OP:
            self._settle_named(record, end, changes)
        else:
            self._replace(identity(record), DISCARDED, end, changes)

    def _open(self, record: MessageRecord, end: int, changes: list[Change]) -> None:
        pending = _pending_of(record, self.next_number)
        if pending.replaces:
            self._replace(pending.key, REPLACED, end, changes)
        self.next_number += 1
        self._add(pending)
        changes.append(Change(end, pending.number, PREPARED, pending.packed()))

    def _end(self, entry: DispatchEntry, kind: int, end: int, changes: list[Change]) -> None:
        """What a record of type commit or rollback says: of its head one field is wanted."""
        offset, size = entry[3], entry[4]
        try:
            head = HEADS[entry[7] >> 4 & 3].unpack_from(self._view(offset, size))
        except (OffsetError, StructError):
            head = ()
        if not head or (head[0], head[1], head[6]) != (size, RECORD_MAGIC, offset):
            self.unreadable_count += 1
            return
        prepared_offset = head[_PREPARED_OFFSET_FIELD]
        if kind == TRANSACTION_COMMIT:
            self._commit(prepared_offset, entry[8], end, changes)
        elif (pending := self.pending.get(prepared_offset)) is not None:
            self._settle(pending, ROLLED_BACK, end, changes)

    def _commit(
        self, prepared_offset: int, keys: Sequence[bytes], end: int, changes: list[Change]
    ) -> None:
        """A copy of a committed message (delayed, sent back) names 0, or has none to name."""
        pending = self.pending.get(prepared_offset)
        if pending is None or (not prepared_offset and pending.is_half and pending.key not in keys):
            return
        if not pending.is_half:
            self._settle(pending, COMMITTED, end, changes)
        elif pending.state == PREPARED:
            pending.state = COMMITTING
            changes.append(Change(end, pending.number, COMMITTING, b""))

    def _settle_named(self, record: MessageRecord, end: int, changes: list[Change]) -> None:
        """The body names one queue offset; 5.x writes several, each with a comma behind it."""
        for word in record.body.split(b","):
            pending = self._by_queue.get((record.queue_id, _queue_offset(word)))
            if pending is not None:
                state = COMMITTED if pending.state == COMMITTING else ROLLED_BACK
                self._settle(pending, state, end, changes)

    def _replace(self, key: bytes, state: int, end: int, changes: list[Change]) -> None:
        older = self._by_key.get(key)
        if older:
            self._settle(older[0], state, end, changes)

    def _settle(
        self, pending: PendingTransaction, state: int, end: int, changes: list[Change]
    ) -> None:
        self._remove(pending)
        changes.append(Change(end, pending.number, state, b""))

    def newest(self, key: bytes) -> PendingTransaction | None:
        """The pending copy that came last of the half message with this identity; None without."""
        same = self._by_key.get(key)
        return same[-1] if same else None

    # -- the pending ones ---------------------------------------------------------------------

    def _add(self, pending: PendingTransaction) -> None:
        self.pending[pending.physical_offset] = pending
        if not pending.is_half:
            return
        self._by_key.setdefault(pending.key, []).append(pending)
        if pending.prepared_queue_offset >= 0:
            self._by_queue[pending.queue_id, pending.prepared_queue_offset] = pending
        self._by_queue[pending.queue_id, pending.queue_offset] = pending

    def _remove(self, pending: PendingTransaction) -> None:
        del self.pending[pending.physical_offset]
        for queue_offset in {pending.queue_offset, pending.prepared_queue_offset}:
            name = pending.queue_id, queue_offset
            if self._by_queue.get(name) is pending:
                del self._by_queue[name]
        same = self._by_key.get(pending.key)
        if same is not None and pending.is_half:
            same.remove(pending)
            if not same:
                del self._by_key[pending.key]

    def read(self, offset: int, size: int) -> MessageRecord | None:
        """The record there, its body not checked; None if there is none."""
        return self._read(offset, size, check_crc=False)

    def _read(self, offset: int, size: int, *, check_crc: bool) -> MessageRecord | None:
        try:
            return message_of(self._view(offset, size), offset, check_crc=check_crc)
        except (OffsetError, RecordError):
            return None


def _pending_of(record: MessageRecord, number: int) -> PendingTransaction:
    """What the ledger keeps of a half message."""
    raw = b"\x02" + record.properties
    check_times = property_of(raw, _CHECK_TIMES)
    earlier = property_of(raw, _PREPARED_QUEUE_OFFSET)
    return PendingTransaction(
        number=number,
        physical_offset=record.physical_offset,
        record_bytes=record.record_bytes,
        timestamp_s=record.born_timestamp // 1000 & _UNSIGNED_MASK,
        group_hash=tags_code(property_of(raw, _PGROUP)),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        is_half=not record.sys_flag & TRANSACTION_MASK,
        key=identity(record),
        replaces=bool(check_times or earlier),
        prepared_queue_offset=_queue_offset(earlier),
    )


def identity(record: MessageRecord) -> bytes:
    """What all copies of a half message share: UNIQ_KEY, else time of birth and body."""
    key = property_of(b"\x02" + record.properties, _UNIQ_KEY)
    return key or _NO_KEY.pack(record.born_timestamp, record.body_crc) + record.born_host


def _queue_offset(text: bytes) -> int:
    """The number in a text; -1 if it is none."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else -1
