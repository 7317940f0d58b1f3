"""The ledger of transactions, derived from the log's records: open ones, and ends of others.

    record                                         effect
    of RMQ_SYS_TRANS_HALF_TOPIC                    opens one; replaces an older half message with
                                                   TRANSACTION_CHECK_TIMES or
                                                   TRAN_PREPARED_QUEUE_OFFSET
    type commit, prepared_transaction_offset       marks the half message there as committing
    of RMQ_SYS_TRANS_OP_HALF_TOPIC, TAGS d         settles the half message with the queue offset in
                                                   its body: committed if committing, else rolled
                                                   back
    of TRANS_CHECK_MAX_TIME_TOPIC                  discards the half message of the same identity
    type prepared, TRAN_MSG true (older stores)    opens one, which type commit or rollback settles

Source: broker/transaction/queue/TransactionalMessageBridge.java, TransactionalMessageServiceImpl.

Of a record the ledger reads head fields and properties, laid out as in protocol/message.py.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias

from protocol.codes import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES
from protocol.java_numbers import NumberFormatError, long_in
from protocol.message import (
    HEAD_START,
    HEADS,
    PROPERTIES_LENGTH,
    RECORD_MAGIC,
    SYS_FLAG_POSITION,
    MessageRecord,
    RecordError,
    body_crc,
)
from protocol.properties import (
    PGROUP,
    REAL_TOPIC,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TROUPE_OWNER,
    UNIQ_KEY,
)
from protocol.topic_names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from storage.dispatching.dispatch import property_of, tags_code
from storage.errors import OffsetError
from storage.log.reader import View, message_of
from storage.queues.dispatch_entry import Dispatched, DispatchEntry, single_entries
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

_HOST_FLAGS_POSITION: Final = SYS_FLAG_POSITION + 3
"""Lowest byte of sys_flag, which has the host bits."""
_HOST_BYTES: Final = HOST_V4_BYTES, HOST_V6_BYTES


def _head_layout(born_host_bytes: int, store_host_bytes: int) -> Struct:
    return Struct(
        f"{HEAD_START.format}"
        "q"  # born_timestamp, ms
        f"{born_host_bytes}x"
        "8x"  # store_timestamp
        f"{store_host_bytes}x"
        "4x"  # reconsume_times
        "q"  # prepared_transaction_offset
        "i"  # body length
    )


_HEADS: Final = tuple(_head_layout(born, store) for store in _HOST_BYTES for born in _HOST_BYTES)
"""Layouts of the head with the fields for the ledger, by the two host bits of sys_flag."""
assert [head.size for head in _HEADS] == [head.size for head in HEADS]
_BORN_HOST_POSITION: Final = SYS_FLAG_POSITION + 12


def head_at(data: memoryview, at: int, offset: int, size: int) -> tuple[tuple[Any, ...], int]:
    """Return the head fields of the record that begins at `at`, and the start of its body.

    A MessageRecord would cost twice as much. Raise RecordError.
    """
    try:
        layout = _HEADS[data[at + _HOST_FLAGS_POSITION] >> 4 & 3]
        head = layout.unpack_from(data, at)
    except (IndexError, StructError):
        raise RecordError(f"the record at {offset} is cut off") from None
    if head[0] != size or head[1] != RECORD_MAGIC or head[5] != offset or head[9] < 0:
        raise RecordError(f"another record is at {offset}")
    return head, at + layout.size


def properties_at(data: memoryview, body_end: int, end: int) -> int:
    """Return the start of the properties in a record with these ends. Raise RecordError."""
    try:
        length_at = body_end + 1 + data[body_end]
        length = data[length_at] << 8 | data[length_at + 1]
    except IndexError:
        raise RecordError("the record is cut off") from None
    start = length_at + PROPERTIES_LENGTH.size
    if start + length != end:
        raise RecordError("the lengths of the record do not add up")
    return start


def raw_at(data: memoryview, start: int, end: int) -> bytes:
    """Return the properties behind 0x02, for `property_of`."""
    return b"\x02" + data[start:end]


def born_host_at(data: memoryview, at: int) -> bytes:
    """Return the packed born host of the record that begins at `at`."""
    start = at + _BORN_HOST_POSITION
    is_v6 = data[at + _HOST_FLAGS_POSITION] >> 4 & 1
    return bytes(data[start : start + _HOST_BYTES[is_v6]])


_HALF, _OP, _MAX_TIME, _SCHEDULE = (
    topic.encode()
    for topic in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC)
)
_TOPICS = frozenset((_HALF, _OP, _MAX_TIME))
_PGROUP, _UNIQ_KEY, _CHECK_TIMES, _PREPARED_QUEUE_OFFSET, _REAL_TOPIC, _OWNER, _TRAN_MSG = (
    f"\x02{name}\x01".encode()
    for name in (
        *(PGROUP, UNIQ_KEY, TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET),
        *(REAL_TOPIC, TROUPE_OWNER, TRAN_MSG),
    )
)
_REMOVE_TAG: Final = tags_code(b"d")
_NO_KEY = Struct(">qi")
_UNSIGNED_MASK = 0xFFFFFFFF
"""Mask of a queue offset."""


@dataclass(slots=True)
class PendingTransaction:
    """An unsettled half message; about half a kilobyte of memory each."""

    number: int
    physical_offset: int
    record_bytes: int
    timestamp_s: int
    """Birth time, set by the producer."""
    group_hash: int
    """Java's hashCode of the producer group."""
    queue_id: int
    queue_offset: int
    """Queue offset of the half message; meaningless if `is_half` is False."""
    is_half: bool
    """False for a prepared record of an older store."""
    state: int = PREPARED
    key: bytes = b""
    """Identity, the same in every copy of the half message."""
    replaces: bool = False
    prepared_queue_offset: int = -1

    def packed(self) -> bytes:
        return UNIT.pack(
            self.physical_offset, self.record_bytes, self.timestamp_s, self.group_hash, self.state
        )


Change: TypeAlias = tuple[
    int,  # record_end: so far the log must be on disk before it may be
    int,  # number
    int,  # state
    bytes,  # a new unit; empty where only the state changes
]
"""One step of the table; a transaction has three.

A tuple instead of a class saves 0.2 µs each.
"""


class TransactionLedger:
    """The open transactions of a log, in its order."""

    def __init__(self, view: View) -> None:
        self.pending: dict[int, PendingTransaction] = {}
        """Transactions by log offset, oldest first."""
        self.next_number = 0
        self.unreadable_count = 0
        """Records that were unreadable when dispatched; they changed nothing."""
        self._view = view
        self._by_queue: dict[tuple[int, int], PendingTransaction] = {}
        self._by_key: dict[bytes, list[PendingTransaction]] = {}

    def start_at(self, number: int) -> None:
        """Drop everything; the next transaction gets this number."""
        self.pending.clear()
        self._by_queue.clear()
        self._by_key.clear()
        self.next_number = number

    def restore(self, number: int, unit: TransactionUnit) -> bool:
        """Take a pending unit of the table; return False without such a half message in the log."""
        try:
            offset, size = unit.physical_offset, unit.record_bytes
            head, body_at = head_at(data := self._view(offset, size), 0, offset, size)
            text_at = properties_at(data, body_at + head[9], size)
        except (OffsetError, RecordError):
            return False
        raw = raw_at(data, text_at, size)
        pending = _pending_of(number, head, raw, born_host_at(data, 0))
        pending.state = unit.state
        if pending.packed() != UNIT.pack(*unit):
            return False
        self._add(pending)
        return True

    def forget_before(self, min_physical: int) -> None:
        # The first of a dict is found slowly behind many deleted ones.
        oldest = takewhile(lambda each: each.physical_offset < min_physical, self.pending.values())
        for pending in [*oldest]:
            self._remove(pending)

    # -- taking records (the loop is hot: nearly every record is of no interest) --------------

    def changes_of(self, entries: Sequence[Dispatched]) -> list[Change]:
        """Return the changes made by these records, in the order of the log."""
        topics, mask = _TOPICS, TRANSACTION_MASK
        noted = [entry for entry in entries if entry.sys_flag & mask or entry.topic in topics]
        changes: list[Change] = []
        if noted:
            # a single view saves 0.8 µs a record
            data, start = self._run(noted[0].physical_offset, noted[-1].end_offset)
            for entry in single_entries(noted):
                self._note(entry, data, start, changes)
        return changes

    def _run(self, start: int, end: int) -> tuple[memoryview | None, int]:
        """Return the log between two offsets, and `start`; None if it spans several files."""
        with suppress(OffsetError):
            return self._view(start, end - start), start
        return None, start

    def _note(
        self, entry: DispatchEntry, run: memoryview | None, start: int, changes: list[Change]
    ) -> None:
        topic, offset, size = entry.topic, entry.physical_offset, entry.record_bytes
        is_op = topic == _OP
        if is_op and entry.tags_code != _REMOVE_TAG:
            return
        end, kind = offset + size, entry.sys_flag & TRANSACTION_MASK
        try:
            data, at = (run, offset - start) if run is not None else (self._view(offset, size), 0)
            head, body_at = head_at(data, at, offset, size)
            body_end = body_at + head[9]
            if kind in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
                if (ended := self.pending.get(head[8])) is None:
                    return
                if kind == TRANSACTION_COMMIT:
                    if head[8] or _commits_first(ended, entry, data, body_end, at + size):
                        self._commit(ended, end, changes)
                elif not ended.is_half:
                    self._settle(ended, ROLLED_BACK, end, changes)
                return
            text_at = properties_at(data, body_end, at + size)
            body = bytes(data[body_at:body_end]) if is_op else b""
            if body and body_crc(body) != head[2]:
                raise RecordError(f"the body of the record at {offset} does not have its CRC")
        except (OffsetError, RecordError):
            self.unreadable_count += 1
            return
        if kind == TRANSACTION_PREPARED or topic == _HALF:
            raw = raw_at(data, text_at, at + size)
            if topic != _HALF and property_of(raw, _TRAN_MSG).lower() != b"true":
                return  # its sender calls it prepared, and nothing would ever settle it
            pending = _pending_of(self.next_number, head, raw, born_host_at(data, at))
            self._open(pending, end, changes)
        elif is_op:
            self._settle_named(head[3], body, end, changes)
        else:
            raw = raw_at(data, text_at, at + size)
            key = _identity(raw, head[7], head[2], born_host_at(data, at))
            self._replace(key, DISCARDED, end, changes)

    def _open(self, pending: PendingTransaction, end: int, changes: list[Change]) -> None:
        if pending.replaces:
            self._replace(pending.key, REPLACED, end, changes)
        self.next_number += 1
        self._add(pending)
        changes.append((end, pending.number, PREPARED, pending.packed()))

    def _commit(self, pending: PendingTransaction, end: int, changes: list[Change]) -> None:
        """Mark a half message as committing."""
        if not pending.is_half:
            self._settle(pending, COMMITTED, end, changes)
        elif pending.state == PREPARED:
            pending.state = COMMITTING
            changes.append((end, pending.number, COMMITTING, b""))

    def _settle_named(self, queue_id: int, body: bytes, end: int, changes: list[Change]) -> None:
        """Settle the named half messages.

        The body has one queue offset; 5.x writes several, each followed by a comma.
        """
        for word in body.split(b",") if b"," in body else (body,):
            pending = self._by_queue.get((queue_id, _queue_offset(word)))
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
        changes.append((end, pending.number, state, b""))

    def newest(self, key: bytes) -> PendingTransaction | None:
        """Return the last pending copy of the half message with this identity, or None."""
        same = self._by_key.get(key)
        return same[-1] if same else None

    # -- the pending ones ---------------------------------------------------------------------

    def _add(self, pending: PendingTransaction) -> None:
        self.pending[pending.physical_offset] = pending
        if not pending.is_half:
            return
        self._by_key.setdefault(pending.key, []).append(pending)
        if pending.prepared_queue_offset >= 0:
            name = pending.queue_id, pending.prepared_queue_offset
            if self._by_queue.setdefault(name, pending).key == pending.key:
                self._by_queue[name] = pending
        self._by_queue[pending.queue_id, pending.queue_offset] = pending

    def _remove(self, pending: PendingTransaction) -> None:
        del self.pending[pending.physical_offset]
        if not pending.is_half:
            return
        self._forget_name(pending, pending.queue_offset)
        if pending.prepared_queue_offset >= 0:
            self._forget_name(pending, pending.prepared_queue_offset)
        same = self._by_key[pending.key]
        if len(same) == 1:
            del self._by_key[pending.key]
        else:  # exactly this one: equal copies differ in their number
            same.remove(pending)

    def _forget_name(self, pending: PendingTransaction, queue_offset: int) -> None:
        name = pending.queue_id, queue_offset
        if self._by_queue.get(name) is pending:
            del self._by_queue[name]

    def read(self, offset: int, size: int) -> MessageRecord | None:
        """Return the record at `offset` without checking its body, or None."""
        try:
            return message_of(self._view(offset, size), offset, check_crc=False)
        except (OffsetError, RecordError):
            return None


def _pending_of(
    number: int, head: tuple[Any, ...], raw: bytes, born_host: bytes
) -> PendingTransaction:
    """Return the ledger's entry for a half message; `raw` has its properties behind 0x02."""
    earlier = property_of(raw, _PREPARED_QUEUE_OFFSET) if _PREPARED_QUEUE_OFFSET in raw else b""
    size, _, crc, queue_id, queue_offset, offset, sys_flag, born_ms, _, _ = head
    return PendingTransaction(
        number,
        offset,
        size,
        born_ms // 1000 & _UNSIGNED_MASK,
        tags_code(property_of(raw, _PGROUP)),
        queue_id,
        queue_offset,
        not sys_flag & TRANSACTION_MASK,
        PREPARED,
        _identity(raw, born_ms, crc, born_host),
        bool(earlier or (_CHECK_TIMES in raw and property_of(raw, _CHECK_TIMES))),
        _queue_offset(earlier) if earlier else -1,
    )


def _commits_first(
    pending: PendingTransaction, entry: DispatchEntry, data: memoryview, body_end: int, end: int
) -> bool:
    """Return whether a commit that names offset 0 is that of the half message there.

    A copy of a committed message (delayed, sent back) names 0, and any message that its sender
    calls a commit.
    """
    if not pending.is_half:
        return True
    unique, real, _ = pending.key.rsplit(b"\x02", 2)
    topic = entry.topic
    if topic == _SCHEDULE:
        topic = property_of(raw_at(data, properties_at(data, body_end, end), end), _REAL_TOPIC)
    return unique in entry.keys and real in (topic, b"")


def identity(record: MessageRecord) -> bytes:
    """Return the identity of all copies: UNIQ_KEY, else birth time and body; topic and owner.

    The sender chooses all but the last two: it must not replace half messages of others.
    """
    raw = b"\x02" + record.properties
    return _identity(raw, record.born_timestamp, record.body_crc, record.born_host)


def _identity(raw: bytes, born_ms: int, crc: int, born_host: bytes) -> bytes:
    key = property_of(raw, _UNIQ_KEY) or _NO_KEY.pack(born_ms, crc) + born_host
    return b"\x02".join((key, property_of(raw, _REAL_TOPIC), property_of(raw, _OWNER)))


def _queue_offset(text: bytes) -> int:
    """Return the number in a text, or -1."""
    try:
        return long_in(text)
    except NumberFormatError:
        return -1
