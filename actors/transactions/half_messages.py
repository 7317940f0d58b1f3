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
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from zlib import crc32

from actors.sending.half_message_cache import OWNER, HalfRecord, without_owner
from actors.sending.property_rewriter import Redirect, delayed, timer_redirect
from actors.sending.records import InternalRecord
from actors.sending.timer_rules import TimerRules
from protocol.codes import RequestCode, ResponseCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.headers.transaction import CheckTransactionStateHeader
from protocol.host import HOST_V4_BYTES
from protocol.java_numbers import NumberFormatError, int_in, long_in
from protocol.message import MessageRecord, encode_record
from protocol.message_id import offset_message_id
from protocol.properties import find_pairs, pairs_of
from protocol.sysflag import BORN_HOST_V6, TRANSACTION_COMMIT, TRANSACTION_MASK
from protocol.tags import tags_code as tags_code_of
from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from storage.dispatching.dispatch import index_keys_of, tags_code

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
