"""Half messages of transactions, and every record that is made from one, as in 4.9.7.

    committed   the message in its real topic, or in the queue of its delay level
    operation   states that the half message with this queue offset is settled
    checked     copy of the half message with its count of checks increased
    given_up    copy of the half message in the topic of those that were checked too often
    resumed     copy of a discarded one in the half topic, its count reset to 0
    question    check-back of a producer: its body is the record with its real topic

New properties are last in the text. The flag, which 4.9.7 loses at a check, is kept.

Source: EndTransactionProcessor.endMessageTransaction, TransactionalMessageBridge,
DefaultTransactionalMessageCheckListener, AbstractTransactionalMessageCheckListener.

HalfReader reads half messages for an actor on the event loop. Recent half messages come from
actors/sending/half_message_cache.py. After a cold read, ColdRead sends `ColdReadOfHalf`.

The producer names the offset of a half message, so a record counts only if its consume queue
confirms it. Otherwise a body could contain a forged record with the queue offset of another one.

HalfMessageList and OpenTransactionView list open transactions for operators.

Owns: nothing; reads the transaction table and the commit log.
Receives: Request from connections; AskFigures from MetricsPort; ListOpen from OpenTransactionView.
Sends: ListOpen to HalfMessageList; answers to the requesters.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from struct import Struct
from struct import error as StructError
from typing import ClassVar
from zlib import crc32

from actors.dispatching.messages import AwaitDispatch
from actors.engine.actor import Actor, AskFigures, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.pulling.messages import ReadCold
from actors.sending.appender import InternalRecord
from actors.sending.half_message_cache import OWNER, HalfMessageCache, HalfRecord, without_owner
from actors.sending.property_rewriter import Redirect, delayed, timer_redirect
from actors.sending.send_rules import TimerRules
from actors.transactions.messages import ColdReadOfHalf, End, ListOpen, OpenHalves, Resume
from protocol.bodies_own import OpenTransaction, OpenTransactions
from protocol.codes import (
    BORN_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    RequestCode,
    ResponseCode,
)
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader, OpenTransactionsHeader
from protocol.host import HOST_V4_BYTES, host_text
from protocol.java_numbers import NumberFormatError, int_in, long_in
from protocol.message import MessageRecord, RecordError, encode_record
from protocol.message_id import offset_message_id
from protocol.properties import find_pairs, pairs_of
from protocol.tags import tags_code as tags_code_of
from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from storage.dispatching.dispatch import index_keys_of, tags_code
from storage.log.reader import RECORD_BYTES_MAX, message_of
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import RecordPlace, UnitsOfRecords, place_of

_OPERATION = b"WAIT\x01true\x02TAGS\x01d"
_OPERATION_CODE = tags_code_of("d")
_OP_TOPIC = OP_HALF_TOPIC.encode()
_SUCCESS = int(ResponseCode.SUCCESS)

_opaques = count(1)


class HalfMessage:
    """A stored half message with its properties parsed."""

    def __init__(self, record: MessageRecord) -> None:
        self.record = record
        self.pairs = pairs_of(record.properties)

    def text(self, name: bytes) -> str | None:
        value = self.pairs.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    @property
    def group(self) -> str | None:
        """Producer group; None if the message does not name one."""
        return self.text(b"PGROUP")

    @property
    def owner(self) -> str | None:
        """Checksum of the account that owns it; None if the broker had no access control."""
        return self.text(OWNER)

    @property
    def waits(self) -> bool:
        """Whether its answer waits for flush and replica."""
        return self.pairs.get(b"WAIT", b"true").lower() == b"true"

    @property
    def check_times(self) -> int | None:
        """Number of checks; None if never checked, -1 if the number is invalid."""
        text = self.pairs.get(b"TRANSACTION_CHECK_TIMES")
        return None if text is None else _number(text)

    def immunity_ms(self, usual_ms: int) -> tuple[int, bool]:
        """Return its immunity time after its birth, ms, and whether the message sets it itself."""
        text = self.pairs.get(b"CHECK_IMMUNITY_TIME_IN_SECONDS")
        if text is None:
            return usual_ms, False
        seconds = _number(text, long_in)
        return (usual_ms if seconds == -1 else seconds * 1000), True

    def target(self) -> tuple[str, int] | None:
        """Return its real topic and queue; None if the message does not name them."""
        topic, queue_id = self.text(b"REAL_TOPIC"), _number(self.pairs.get(b"REAL_QID", b""))
        return (topic, queue_id) if topic and queue_id >= 0 else None

    # --- records

    def committed(
        self, prepared_offset: int, delays_ms: Sequence[int], timers: TimerRules
    ) -> InternalRecord | None:
        """Return the committed message; None if it does not name its topic and queue."""
        target = self.target()
        if target is None:
            return None
        redirect, text = Redirect(*target, 0), without_owner(self.record.properties)
        # An earlier version stored levels that Java cannot parse: such a message is due at once.
        level = _number(self.pairs.get(b"DELAY", b"0"))
        if level > 0:
            pairs = {name: value for name, value in self.pairs.items() if name != OWNER}
            redirect = delayed(pairs, *target, level, delays_ms)
            text = _text(pairs)
        elif timers.is_asked(self.pairs) and (due_ms := timers.due_at_commit_ms(self.pairs)):
            pairs = {name: value for name, value in self.pairs.items() if name != OWNER}
            redirect, end = timer_redirect(pairs, *target, due_ms, timers)
            text = _text(pairs) + end
        sys_flag = self.record.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
        own = self._copy(redirect.topic, redirect.queue_id, text, sys_flag)
        own.prepared_offset, own.delay_ms = prepared_offset, redirect.delay_ms
        own.due_ms = redirect.due_ms
        return own

    def checked(self) -> InternalRecord:
        """Return its copy for the half topic, with the count of checks increased."""
        times = self.check_times
        pairs = {
            **self.pairs,
            b"TRANSACTION_CHECK_TIMES": b"%d" % (1 if times is None else times + 1),
        }
        own = self._copy(HALF_TOPIC, self.record.queue_id, _text(pairs), self.record.sys_flag)
        own.reconsume_times = 0
        return own

    def given_up(self) -> InternalRecord:
        """Return its copy for the topic of discarded half messages, which operators can inspect."""
        record = self.record
        return self._copy(TRANS_CHECK_MAX_TIME_TOPIC, 0, record.properties, record.sys_flag)

    def resumed(self) -> InternalRecord:
        """Return its copy for the half topic, with the count of checks reset."""
        text = _text({**self.pairs, b"TRANSACTION_CHECK_TIMES": b"0"})
        return self._copy(HALF_TOPIC, 0, text, self.record.sys_flag)

    def _copy(self, topic: str, queue_id: int, text: bytes, sys_flag: int) -> InternalRecord:
        record = self.record
        return InternalRecord(
            topic,
            queue_id,
            record.body,
            text,
            tags_code(self.pairs.get(b"TAGS", b"")),
            index_keys_of(self.pairs),
            record.flag,
            sys_flag,
            record.born_timestamp,
            record.born_host,
            record.reconsume_times,
        )

    # --- check-back

    def question(
        self, own: InternalRecord, queue_offset: int, physical_offset: int, store_host: bytes
    ) -> RemotingCommand | None:
        """Return CHECK_TRANSACTION_STATE (one-way) about its stored copy `own`.

        Return None if the message does not name its topic.
        """
        target = self.target()
        if target is None:
            return None
        key = self.text(b"UNIQ_KEY")
        header = CheckTransactionStateHeader(
            tran_state_table_offset=queue_offset,
            commit_log_offset=physical_offset,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=offset_message_id(store_host, physical_offset),
        )
        pairs = {**dict(find_pairs(without_owner(own.properties))), b"WAIT": b"false"}
        topic, queue_id = target
        body = replace(
            self.record,
            topic=topic,
            queue_id=queue_id,
            properties=_text(pairs),
            queue_offset=queue_offset,
            physical_offset=physical_offset,
        )
        return RemotingCommand(
            RequestCode.CHECK_TRANSACTION_STATE,
            header.encode(),
            encode_record(body),
            opaque=next(_opaques),
            flag=ONEWAY_FLAG,
        )


def operation(queue_id: int, queue_offset: int, now_ms: int, store_host: bytes) -> InternalRecord:
    """Return the record that settles the half message with this queue offset."""
    # Fields are set without the constructor, here and below: 0.5 µs less each.
    own = InternalRecord.__new__(InternalRecord)
    own.topic_name, own.topic = OP_HALF_TOPIC, _OP_TOPIC
    own.queue_id, own.queue_offset = queue_id, 0
    own.flag = own.reconsume_times = own.prepared_offset = own.delay_ms = own.record_bytes = 0
    own.due_ms = 0
    own.sys_flag = 0 if len(store_host) == HOST_V4_BYTES else BORN_HOST_V6
    own.born_timestamp, own.born_host = now_ms, store_host
    own.body = body = b"%d" % queue_offset
    own.body_crc = crc32(body) & 0x7FFFFFFF
    own.properties, own.tags_code, own.keys = _OPERATION, _OPERATION_CODE, ()
    own.physical_offset, own.code = -1, _SUCCESS
    return own


def committed_as_sent(half: HalfRecord) -> InternalRecord:
    """Return the committed message of a recent half message without a delay."""
    own = InternalRecord.__new__(InternalRecord)
    own.topic_name, own.topic = half.real_name, half.real_topic
    own.queue_id, own.queue_offset = half.real_queue_id, 0
    own.flag, own.sys_flag = half.flag, half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    own.born_timestamp, own.born_host = half.born_timestamp, half.born_host
    own.reconsume_times, own.prepared_offset = half.reconsume_times, half.physical_offset
    own.body, own.body_crc, own.properties = half.body, half.body_crc, half.properties
    own.tags_code, own.keys, own.delay_ms, own.due_ms = half.tags_code, half.keys, 0, 0
    own.physical_offset, own.record_bytes, own.code = -1, 0, _SUCCESS
    return own


def _text(pairs: dict[bytes, bytes]) -> bytes:
    return b"\x02".join(name + b"\x01" + value for name, value in pairs.items())


def _number(text: bytes, read: Callable[[bytes], int] = int_in) -> int:
    """Return the number as 4.9.7 reads it: -1 if it is invalid."""
    try:
        return read(text)
    except NumberFormatError:
        return -1


_FIRST_BYTES = 4096
"""Bytes probed first; most records are shorter."""
_HEAD_READ, _UNKNOWN_READ, _DISPATCHED, _UNIT_READ, _RECORD_READ = range(1, 6)

_PLACE = Struct(
    ">i"  # record_bytes
    "8x"  # magic, body_crc
    "i"  # queue_id
    "4x"  # flag
    "q"  # queue_offset
)


class HalfReader:
    def __init__(
        self,
        store: MessageStore,
        probe: PageProbe,
        *,
        cold_read: ActorAddress,
        reput: ActorAddress,
        recent: HalfMessageCache,
    ) -> None:
        self._recent = recent
        self._units = UnitsOfRecords(store.consume_queues, store.dispatcher, probe)
        self._log, self._damage = store.commit_log, store.damage
        self._probe = probe
        self._cold_read, self._reput = cold_read, reput

    def recent(self, offset: int) -> HalfRecord | None:
        """Return the cached half message; None if it is not cached, or if the log is damaged."""
        return None if self._damage.ranges else self._recent.find(offset)

    def drop_recent(self, offset: int) -> None:
        self._recent.drop(offset)

    def read(
        self, offset: int, asker: End | Resume, reply_to: ActorAddress, reads: int = 0
    ) -> tuple[bool, MessageRecord | None]:
        """Return whether the result is known, and the record; None if no whole record is there.

        If the result is not known, `reply_to` receives `ColdReadOfHalf`. A record is read only
        after its unit confirms it, as a body may name any size. Only an operator's request, whose
        topic is unknown before, is read first.
        """
        recent = self._recent.take(offset)
        if recent is not None and not self._damage.ranges:
            return True, recent
        end = self._log.end_offset
        file = self._log.queue.find(offset) if 0 <= offset < end else None
        if file is None:
            return True, None
        limit = min(end, file.end_offset)
        first_end = min(offset + _FIRST_BYTES, limit)
        if reads < _HEAD_READ and self._is_cold(offset, first_end, asker, reply_to, _HEAD_READ):
            return False, None
        is_end, position = isinstance(asker, End), offset - file.first_offset
        try:
            size, queue_id, queue_offset = _PLACE.unpack_from(file.view, position)
            longest = min(limit - offset, RECORD_BYTES_MAX)
            if not 0 < size <= longest or self._damage.overlaps(offset, offset + size):
                return True, None
            place = RecordPlace(HALF_TOPIC, queue_id, queue_offset, offset, size)
            if is_end and not (known := self._vouched(place, asker, reply_to, reads)):
                return known is not None, None
            step = _RECORD_READ if is_end else _UNKNOWN_READ
            is_long = size > _FIRST_BYTES and reads < step
            if is_long and self._is_cold(offset, offset + size, asker, reply_to, step):
                return False, None
            record = message_of(file.view[position : position + size], offset)
        except (StructError, RecordError):
            return True, None
        known = is_end or self._vouched(place_of(record), asker, reply_to, reads)
        return known is not None, record if known else None

    def _vouched(
        self, place: RecordPlace, asker: End | Resume, reply_to: ActorAddress, reads: int
    ) -> bool | None:
        """Return whether the queue confirms a record; None if `reply_to` is told when it can."""
        units, offset = self._units, place.physical_offset
        if reads < _DISPATCHED and not units.is_dispatched(place):
            again = ColdReadOfHalf(offset, asker, _DISPATCHED)
            self._reput.tell(AwaitDispatch(place.end_offset, again, reply_to))
            return None
        if reads < _UNIT_READ and (parts := units.cold(place)):
            again = ColdReadOfHalf(offset, asker, _UNIT_READ)
            self._cold_read.tell(ReadCold(parts, again, reply_to))
            return None
        return units.agree(place)

    def _is_cold(
        self, start: int, end: int, asker: End | Resume, reply_to: ActorAddress, step: int
    ) -> bool:
        self._probe.forget()
        parts = self._probe.cold_records([(start, end)])
        if not parts:
            return False
        again = ColdReadOfHalf(start, asker, step)
        self._cold_read.tell(ReadCold(parts, again, reply_to))
        return True


LISTED_MAX = 1000
"""Maximum entries of one answer; the next request begins after the last one."""


class OpenTransactionView(Responder):
    """Actor on the event loop, like the table's owner, that selects the open transactions."""

    def __init__(self, store: MessageStore, half_message_list: ActorAddress) -> None:
        super().__init__()
        self._store = store
        self._half_message_list = half_message_list

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        table = self._store.transaction_table
        found = table.pending(LISTED_MAX)
        message.reply(OpenHalves(table.pending_count, [each.physical_offset for each in found]))

    @serves(RequestCode.GET_OPEN_TRANSACTIONS)
    def list_open(self, request: Request) -> RemotingCommand | None:
        """Select the half messages after an offset of the log; HalfMessageList reads them."""
        header = OpenTransactionsHeader.decode(request.command.fields)
        limit = min(max(header.max_count, 0), LISTED_MAX)
        table = self._store.transaction_table
        found = table.pending(limit, after_offset=header.after_offset)
        offsets = [each.physical_offset for each in found]
        self._half_message_list.tell(ListOpen(request, table.pending_count, offsets))
        return None


class HalfMessageList(Actor):
    """Actor on a thread, because half messages may be cold."""

    where: ClassVar[Where] = "thread"

    def __init__(self, store: MessageStore) -> None:
        super().__init__()
        self._store = store

    @handles(ListOpen, reads_only=True)
    def on_list(self, message: ListOpen) -> None:
        """Answer with the half messages; those that cannot be read are left out."""
        found = map(self._read, message.offsets)
        body = OpenTransactions(message.count, [each for each in found if each is not None])
        message.request.answer(body=body.encode())

    def _read(self, offset: int) -> OpenTransaction | None:
        record = self._store.commit_log.read_record(offset, self._store.damage)
        if record is None:
            return None
        half = HalfMessage(record)
        return OpenTransaction(
            producer_group=half.group or "",
            topic=half.text(b"REAL_TOPIC") or "",
            message_id=half.text(b"UNIQ_KEY") or "",
            offset_message_id=offset_message_id(record.store_host, offset),
            physical_offset=offset,
            born_timestamp=record.born_timestamp,
            store_timestamp=record.store_timestamp,
            born_host=host_text(record.born_host),
            check_times=half.check_times or 0,
        )
