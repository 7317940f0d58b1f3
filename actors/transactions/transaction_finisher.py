"""Commits and rollbacks of half messages: checked, carried out and answered.

A commit appends the message and the record that settles its half message; a rollback appends only
the latter. Both go into one append, so that nothing comes between them. A repeated commit or
rollback is answered without an append; 4.9.7 would deliver the message twice. If a check has copied
the half message, its newest copy is settled.

Source: broker/processor/EndTransactionProcessor.java.
"""

from collections.abc import Callable, Sequence

from actors.access.grant import AccessRefused
from actors.engine.server_log import get_logger
from actors.sending.appender import InternalRecord
from actors.sending.half_message_cache import HalfRecord
from actors.sending.messages import InternalAppend
from actors.sending.put_message import CREATE_FAILED
from actors.sending.send_rules import TimerRules
from actors.statistics.counts import TransactionStats
from actors.transactions.half_messages import HalfMessage, committed_as_sent, operation
from actors.transactions.half_state import HalfState, Standings
from actors.transactions.messages import End, EndStored
from protocol.codes import TRANSACTION_COMMIT, ResponseCode
from protocol.headers.transaction import EndTransactionHeader
from protocol.message import MessageRecord
from protocol.sink import owner_of
from protocol.timers import TIMER_DELIVER_MS
from protocol.topic_names import HALF_TOPIC
from storage.access.acl_file import PUB
from storage.config import StoreConfig
from storage.log.commit_log import CommitLog
from storage.transactions.units import (
    COMMITTED,
    COMMITTING,
    DISCARDED,
    PREPARED,
    ROLLED_BACK,
)

log = get_logger(__name__)

_PGROUP = b"\x02PGROUP\x01"

ASKED_MAX = 20_000
"""Two rounds. A forgotten check-back is repeated in the next round."""

WAITING_MAX = 100
"""Ends of one half message behind the append of another; producers and checks make a few."""

NOT_SET = "not set any response code"
NOT_FOUND = "Find prepared transaction message failed"
TOO_MANY_WAIT = "too many ends of this transaction wait"
_ILLEGAL = (
    "The message is illegal, maybe msg body or properties length not matched."
    " msg body length limit %dB, msg properties length limit 32KB."
)


class TransactionFinisher:
    """Executor of commits and rollbacks. One owner."""

    def __init__(
        self,
        commit_log: CommitLog,
        config: StoreConfig,
        standings: Standings[End],
        *,
        delays_ms: Sequence[int],
        timers: TimerRules,
        now_ms: Callable[[], int],
        stats: TransactionStats,
        warn: Callable[..., None],
    ) -> None:
        """Initialize the finisher; `warn` writes a rate-limited log line."""
        self._warn = warn
        self._log, self._config = commit_log, config
        self._standings = standings
        self._delays_ms, self._timers = delays_ms, timers
        self._now_ms, self._stats = now_ms, stats
        self._asked: dict[int, int] = {}
        """Connection that was last asked about the half message at an offset."""

    def records_for(self, end: End, record: MessageRecord | None) -> InternalAppend | None:
        """Return the append for a request.

        Return None if it is answered or waits for an earlier append.
        """
        half = HalfMessage(record) if record is not None and record.topic == HALF_TOPIC else None
        fault = _fault(end.header, half)
        if fault is not None or record is None or half is None:
            end.answer(ResponseCode.SYSTEM_ERROR, fault)
            return None
        topic = half.text(b"REAL_TOPIC") or record.topic
        if (refused := self._refused(end, half, topic)) is not None:
            end.answer(refused.code, refused.remark)
            return None
        standing = self._standings.of(record)
        waiting = self._standings.busy.get(standing.physical_offset)
        if waiting is not None:
            if len(waiting) < WAITING_MAX:
                waiting.append(end)
            else:  # of one-way ones any number may come before a slave has the first
                end.answer(ResponseCode.SYSTEM_BUSY, TOO_MANY_WAIT)
            return None
        state = standing.state
        if state in (COMMITTED, ROLLED_BACK):
            if end.is_commit is (state == COMMITTED):
                end.answer(ResponseCode.SUCCESS, None if end.is_commit else NOT_SET)
            else:
                self._contradicts(end, standing)
            return None
        if state not in (PREPARED, COMMITTING, DISCARDED):  # its copy no longer exists
            self._contradicts(end, standing)
            return None
        settle = self.operation(standing.queue_offset, record.queue_id)
        if not end.is_commit or state == COMMITTING:
            if state == COMMITTING and not end.is_commit:
                self._warn("rollback of committed transaction ignored", **_names(end))
            records = [settle]
        else:
            committed = half.committed(standing.physical_offset, self._delays_ms, self._timers)
            if committed is None:
                end.answer(ResponseCode.SYSTEM_ERROR, NOT_FOUND)
                return None
            records = [committed, settle]
        self._standings.busy[standing.physical_offset] = []
        before_last = COMMITTING if len(records) > 1 else state
        stored = EndStored(end, standing, topic, record.store_timestamp, before_last)
        return InternalAppend(records, None, stored, waits=half.waits, is_chain=True)

    def records_for_recent(self, end: End, half: HalfRecord) -> InternalAppend | None:
        """Return the append for a commit of a recent half message, the most common request.

        Return None, with no effect, for any other request.
        """
        header, offset = end.header, half.physical_offset
        text = b"\x02" + half.properties
        group_at = text.find(_PGROUP) + len(_PGROUP)
        group_end = text.find(b"\x02", group_at)
        if (
            group_at < len(_PGROUP)
            or group_end < 0
            or text[group_at:group_end].decode("utf-8", "replace") != header.producer_group
            or half.queue_offset != header.tran_state_table_offset
            or header.commit_or_rollback != TRANSACTION_COMMIT
            or b"DELAY" in text
            or TIMER_DELIVER_MS in text
            or end.request.grant is not None
            or not self._standings.is_untouched(offset)
        ):
            return None
        records = [committed_as_sent(half), self.operation(half.queue_offset, half.queue_id)]
        self._standings.busy[offset] = []
        standing = HalfState(PREPARED, offset, half.queue_offset)
        stored = EndStored(end, standing, half.real_name, half.stored_ms, COMMITTING)
        return InternalAppend(records, None, stored, waits=half.waits, is_chain=True)

    def _refused(self, end: End, half: HalfMessage, topic: str) -> AccessRefused | None:
        """Return why the account may not end the transaction; None if it may.

        An account with permission to send to a topic can end its own transactions there, and those
        that its connection was asked about.
        """
        grant, request = end.request.grant, end.request
        if grant is None:
            return None
        code, group = request.command.code, end.header.producer_group
        name, owner, offset = grant.account.access_key, half.owner, half.record.physical_offset
        try:
            grant.require_topic(code, topic, PUB, group)
            is_own = owner is None or grant.passes_all or owner == owner_of(name)
            if not is_own and self._asked.get(offset) != request.peer.peer_id:
                grant.refuse(code, f"The transaction is not of accessKey={name}", group)
        except AccessRefused as refused:
            return refused
        return None

    def note_asked(self, offset: int, peer_id: int) -> None:
        if len(self._asked) >= ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[offset] = peer_id

    def _contradicts(self, end: End, standing: HalfState) -> None:
        self._warn("transaction outcome contradicted", state=standing.state, **_names(end))
        end.answer(ResponseCode.SYSTEM_ERROR, NOT_FOUND)

    def operation(self, queue_offset: int, queue_id: int) -> InternalRecord:
        return operation(queue_id, queue_offset, self._now_ms(), self._log.store_host)

    def stored(self, message: EndStored) -> list[End]:
        """Answer the request of an append; return the requests that waited for it."""
        end, offset = message.end, message.standing.physical_offset
        waiting = self._standings.busy.pop(offset, [])
        results = message.results
        last = [result for result in results if result.is_stored]
        if last:
            is_committed = end.is_commit or message.before_last == COMMITTING
            settled = COMMITTED if is_committed else ROLLED_BACK
            state = settled if len(last) == len(results) else message.before_last
            self._standings.note(offset, state, last[-1].physical_offset + 1)
            if state == settled:
                self._count(message, is_commit=is_committed)
        if results[0].is_stored:
            end.answer(ResponseCode.SUCCESS, None if end.is_commit else NOT_SET)
        else:
            end.answer(*self._refusal(results[0], message.remark))
        return waiting

    def _count(self, message: EndStored, *, is_commit: bool) -> None:
        after_ms = max(0, self._now_ms() - message.stored_ms)
        self._stats.ended(message.topic, is_commit=is_commit, after_ms=after_ms)

    def _refusal(self, result: InternalRecord, remark: str | None) -> tuple[int, str | None]:
        """Return code and text for a message that is not stored."""
        if result.code == ResponseCode.MESSAGE_ILLEGAL:
            return result.code, _ILLEGAL % self._config.max_message_bytes
        if result.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return result.code, "Service not available now."
        if remark == CREATE_FAILED:
            return ResponseCode.SYSTEM_ERROR, "Create mapped file failed."
        return ResponseCode.SYSTEM_ERROR, remark or "UNKNOWN_ERROR"


def _fault(header: EndTransactionHeader, half: HalfMessage | None) -> str | None:
    """Return what 4.9.7 rejects in a request, in its order of checks."""
    if half is None:
        return NOT_FOUND
    if half.group != header.producer_group:
        return "The producer group wrong"
    if half.record.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    return None


def _names(end: End) -> dict[str, object]:
    """Return the fields of a request for a log line."""
    header = end.header
    return {
        "group": header.producer_group,
        "offset": header.commit_log_offset,
        "outcome": header.commit_or_rollback,
        "key": header.msg_id,
    }
