"""Offsets of the delay levels: the next message of each level to deliver.

Owns: the table of delay offsets and delayOffset.json.
Receives: GetDelayOffset and Delivered from Schedule; Synced from the flusher; Request from
connections; TakeDelayOffsets from SlaveSync; TimersBegin from Schedule; its own tick.
Sends: DelayOffsetReply to Schedule; Sync to the flusher before each save; the text of the file to
config_writer; EncodeAnswer to TableEncoder.

The file is saved every few seconds and at the stop. It never passes what is synced: a message
counts as delivered once its copy is flushed, so that no crash loses it. Messages of a level that
were delivered after the last save are delivered again after a crash.

With the offset of a level go the messages behind it that are done, which are timers. After these
the file is saved within a second. A start finds timers that were delivered or moved after the last
save by their copies in the log. So none is delivered twice, not even by a promoted slave.

Source: store/schedule/ScheduleMessageService.java.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from actors.delays.messages import (
    DelayOffsetReply,
    Delivered,
    GetDelayOffset,
    TakeDelayOffsets,
    TimersBegin,
)
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.messages import Request
from actors.network.request import serves
from actors.sending.messages import Sync, Synced
from actors.tables.messages import EncodeAnswer, encode_later
from actors.tables.persisted import Then, TickedTable
from protocol.bodies_tables import DelayOffsetTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.timers import copied_from
from protocol.topic_names import SCHEDULE_TOPIC
from storage.log.commit_log import CommitLog
from storage.queues.consume_queues import ConsumeQueues
from storage.tables.ahead_set import AheadSet
from storage.tables.delay_offsets import ahead_sets, format_delay_offsets, parse_delay_offsets

URGENT_MS = 1000.0
"""Time from the delivery of a timer to the save of its level's offset."""
ENCODED_BYTES_MAX = 64 << 10
"""Bits of delivered timers that are encoded on the loop: 2 ms."""
SAVE_BYTES = 16 << 20
"""Growth of the log after which the file is saved: what a start reads for it, a quarter second."""


class DelayOffsets(TickedTable):
    """Actor on the event loop."""

    def __init__(
        self,
        path: str,
        commit_log: CommitLog,
        *,
        interval_ms: int,
        config_writer: ActorAddress,
        flusher: ActorAddress,
        encoder: ActorAddress,
        offsets: SnapshotRef[Mapping[int, int]],
        queues: ConsumeQueues | None = None,
    ) -> None:
        """`queues` is None on a slave, where the master gives the queue offsets."""
        super().__init__(path, config_writer)
        self._log = commit_log
        self._interval_ms = interval_ms
        self._flusher, self._encoder = flusher, encoder
        self._published, self._queues = offsets, queues
        self._offsets: dict[int, int] = {}
        self._safe: dict[int, int] = {}
        self._ahead: dict[int, AheadSet] = {}
        self._safe_ahead: dict[int, AheadSet] = {}
        self._thens: list[Then] = []
        self._saved_from = 0
        self._timers_from: int | None = None
        """Offset of the log below which all copies of timers are saved; None without timers."""
        self._ends = commit_log.end_offset, commit_log.end_offset
        """End of the log two saves ago and at the last one: reports of copies have come since."""
        self._is_hurrying = False
        self._unflushed: deque[Delivered] = deque()
        self._changed = False
        self._syncing = False
        self._sync_failed = False
        """After a failed sync the saved offsets stay; later messages are delivered again."""
        self._taken = ""

    def on_start(self) -> None:
        loaded = self.load(parse_delay_offsets)
        if loaded.value is not None:
            self._safe = loaded.value.offset_table
            self._safe_ahead = ahead_sets(loaded.value)
            self._timers_from = loaded.value.timers_from
            self._note_copies()
        self._fit_to_queues()
        self._offsets = dict(self._safe)
        self._ahead = {level: each.copy() for level, each in self._safe_ahead.items()}
        self._published.value = dict(self._offsets)
        self._changed = loaded.is_to_be_saved
        self.save_every(self._interval_ms)

    @handles(GetDelayOffset)
    def on_get_delay_offset(self, message: GetDelayOffset) -> None:
        """Answer a level that starts or restarts."""
        known, ahead = self._offsets.get(message.level), self._ahead.get(message.level)
        copy = AheadSet() if ahead is None else ahead.copy()
        message.reply_to.tell(DelayOffsetReply(known or 0, known is not None, copy))

    @handles(Delivered)
    def on_delivered(self, message: Delivered) -> None:
        """Record that a level has advanced, or was moved to the edge of its queue."""
        self._offsets[message.level] = message.next_offset
        _note_ahead(self._ahead, message)
        self._published.value = dict(self._offsets)
        self._unflushed.append(message)
        if message.is_urgent and not self._is_hurrying:
            self._is_hurrying = True
            self.save_in(0 if message.then is not None else URGENT_MS)

    @handles(TimersBegin)
    def on_timers_begin(self, _: TimersBegin) -> None:
        """Save from where a start looks for copies, before the store's first timer is delivered."""
        if self._timers_from is None:
            self._timers_from = self._ends[0]
            self._changed = True
            self._save_flushed()

    @handles(TakeDelayOffsets)
    def on_take(self, message: TakeDelayOffsets) -> None:
        """Replace the table with the master's; a slave that becomes master continues there."""
        text = message.text
        if self._taken != text:
            self._taken = text
            self._safe = dict(message.table.offset_table)
            self._offsets = dict(self._safe)
            self._safe_ahead = message.ahead
            self._ahead = {level: each.copy() for level, each in message.ahead.items()}
            self._timers_from = message.table.timers_from
            self._published.value = dict(self._offsets)
            self.save(lambda: text)

    def save_changes(self) -> None:
        """Save what is flushed, and request a sync of the rest."""
        self._is_hurrying = False
        self._sync()
        self._save_flushed()

    def can_stop(self) -> bool:
        return super().can_stop() and not self._syncing

    def _sync(self) -> None:
        end = max((each.end for each in self._unflushed), default=0)
        if end > self._log.flushed_offset and not (self._syncing or self._sync_failed):
            self._syncing = True
            self._flusher.tell(Sync(end, self.address))

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Save the offsets of the copies that are flushed now."""
        self._syncing = False
        self._sync_failed = message.failure is not None
        for each in self._unflushed if message.failure is not None else ():
            then, each.then = each.then, None
            if then is not None:
                then(message.failure or "")
        self._save_flushed()

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_offsets(self, request: Request) -> RemotingCommand | None:
        """Answer with the table; TableEncoder sends one with many delivered timers."""
        table = _Table(self._offsets, self._ahead, self._timers_from)
        ahead_bytes = sum(each.size_bytes for each in self._ahead.values())
        if ahead_bytes <= ENCODED_BYTES_MAX:
            return request.command.answer(body=table.encode())
        encode_later(self._encoder, EncodeAnswer(request, table.copy()), ahead_bytes // 100)
        return None

    def _save_flushed(self) -> None:
        """Save the offsets of flushed copies.

        Levels can report in another order than that of the log; the first unflushed one holds later
        ones.
        """
        flushed, (end, last_end) = self._log.flushed_offset, self._ends
        self._ends = last_end, self._log.end_offset
        while self._unflushed and self._unflushed[0].end <= flushed:
            message = self._unflushed.popleft()
            self._safe[message.level] = message.next_offset
            _note_ahead(self._safe_ahead, message)
            if message.then is not None:
                self._thens.append(message.then)
            self._changed = True
        if self._timers_from is not None:
            begins = (each.begin for each in self._unflushed if each.end)
            self._timers_from = max(self._timers_from, min((flushed, end, *begins)))
            if self._timers_from - self._saved_from >= SAVE_BYTES:
                self._changed = True
        if self._changed:
            self._changed = False
            table = _Table(
                dict(sorted(self._safe.items())), self._safe_ahead, self._timers_from
            ).copy()
            thens, self._thens = self._thens, []
            self._saved_from = self._timers_from or 0
            self.save(lambda: format_delay_offsets(table.value()), *thens)

    def _note_copies(self) -> None:
        """Note timers that have copies in the log which the file does not know of."""
        begin = self._timers_from
        if begin is None or self._queues is None or not begin <= self._log.end_offset:
            return
        for head in self._log.walk(begin):
            found = copied_from(head.prepared_transaction_offset)
            if found is None:
                continue
            level, offset = found
            if offset >= self._safe.get(level, 0):
                self._safe_ahead.setdefault(level, AheadSet()).add(offset)

    def _fit_to_queues(self) -> None:
        """Let no new message of a level have a queue offset that counts as delivered.

        An empty queue begins behind such offsets. Those that a queue has lost are forgotten.
        """
        if self._queues is None or self.incarnation > 1:
            return
        for level, offset in self._safe.items():
            ahead = self._safe_ahead.get(level, AheadSet())
            self._queues.begin_at(SCHEDULE_TOPIC, level - 1, max(offset, ahead.last + 1))
            ahead.forget_from(self._queues.end_of(SCHEDULE_TOPIC, level - 1))


def _note_ahead(sets: dict[int, AheadSet], message: Delivered) -> None:
    found = sets.get(message.level)
    if found is None:
        if not message.ahead:
            return
        found = sets[message.level] = AheadSet()
    for offset in message.ahead:
        found.add(offset)
    found.forget_below(message.next_offset)
    if not found:
        del sets[message.level]


class _Table(NamedTuple):
    """Table of offsets whose delivered messages are not encoded yet."""

    offsets: Mapping[int, int]
    ahead: Mapping[int, AheadSet]
    timers_from: int | None

    def copy(self) -> "_Table":
        ahead = {level: each.copy() for level, each in self.ahead.items()}
        return _Table(dict(self.offsets), ahead, self.timers_from)

    def value(self) -> DelayOffsetTable:
        texts = {
            level: text for level, each in sorted(self.ahead.items()) if (text := each.encode())
        }
        return DelayOffsetTable(dict(self.offsets), texts or None, self.timers_from)

    def encode(self) -> bytes:
        return self.value().encode()
