"""Offsets of the delay levels: how far each has been delivered.

Owns: the table of delay offsets and delayOffset.json.
Told by: Schedule (`GetDelayOffset`, `Delivered`), the flusher (`Synced`), connections (`Request`),
SlaveSync (`TakeDelayOffsets`), its own tick.
Tells: Schedule (`DelayOffsetReply`), the flusher (`Sync`, before each text), config_writer.

The file follows every few seconds and at the stop.  It never says more than is on the disk: a
message counts as delivered once its copy is flushed, so that no crash loses it; what was delivered
after the last text comes again after a crash.

Source: store/schedule/ScheduleMessageService.java.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.request import Request, serves
from actors.sending.flusher import Sync, Synced
from actors.tables.persisted import TickedTable
from protocol.bodies import DelayOffsetTable
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.topic_names import SCHEDULE_TOPIC
from storage.log.commit_log import CommitLog
from storage.tables.delay_offsets import format_delay_offsets, parse_delay_offsets


@dataclass(slots=True)
class Delivered:
    """Everything of this level below `next_offset` is delivered, the last of it below `end` of the
    log."""

    level: int
    next_offset: int
    end: int


@dataclass(slots=True)
class DelayOffsetReply:
    """The answer to GetDelayOffset; None: nobody could say, ask again."""

    offset: int | None
    is_known: bool = True
    """The table has an offset for the level."""


@dataclass(slots=True)
class GetDelayOffset:
    """Tell `reply_to` where to go on with this level."""

    level: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """The table died with it."""
        self.reply_to.tell(DelayOffsetReply(None))


@dataclass(frozen=True, slots=True)
class TakeDelayOffsets:
    """The master's table, and its text, which becomes a slave's file."""

    table: DelayOffsetTable
    text: str


class DelayOffsets(TickedTable):
    """Lives on the loop."""

    def __init__(
        self,
        path: str,
        commit_log: CommitLog,
        *,
        interval_ms: int,
        config_writer: ActorAddress,
        flusher: ActorAddress,
        offsets: SnapshotRef[Mapping[int, int]],
        begin_at: Callable[[str, int, int], None] | None = None,
    ) -> None:
        """`begin_at` lets a queue that has no message, of a topic and an id, begin with a number;
        None on a slave, whose master numbers them.
        """
        super().__init__(path, config_writer)
        self._log = commit_log
        self._interval_ms = interval_ms
        self._flusher = flusher
        self._published, self._begin_at = offsets, begin_at
        self._offsets: dict[int, int] = {}
        self._safe: dict[int, int] = {}
        self._unflushed: deque[Delivered] = deque()
        self._changed = False
        self._syncing = False
        self._sync_failed = False
        """Then nothing more gets onto the disk; what is delivered from now on comes again."""
        self._taken = ""

    def on_start(self) -> None:
        loaded = self.load(parse_delay_offsets)
        if loaded.value is not None:
            self._safe = loaded.value.offset_table
        self._offsets = dict(self._safe)
        self._published.value = dict(self._offsets)
        if self._begin_at is not None and self.incarnation == 1:
            for level, offset in self._offsets.items():  # else what comes next counts as delivered
                self._begin_at(SCHEDULE_TOPIC, level - 1, offset)
        self._changed = loaded.is_to_be_saved
        self.save_every(self._interval_ms)

    @handles(GetDelayOffset)
    def on_where_was_i(self, message: GetDelayOffset) -> None:
        """A level begins, perhaps again."""
        known = self._offsets.get(message.level)
        message.reply_to.tell(DelayOffsetReply(known or 0, known is not None))

    @handles(Delivered)
    def on_delivered(self, message: Delivered) -> None:
        """A level has come further, or was moved to the edge of its queue."""
        self._offsets[message.level] = message.next_offset
        self._published.value = dict(self._offsets)
        self._unflushed.append(message)

    @handles(TakeDelayOffsets)
    def on_take(self, message: TakeDelayOffsets) -> None:
        """How far the master has delivered; a slave that becomes one goes on there."""
        text = message.text
        if self._taken != text:
            self._taken = text
            self._safe = dict(message.table.offset_table)
            self._offsets = dict(self._safe)
            self._published.value = dict(self._offsets)
            self.save(lambda: text)

    def save_changes(self) -> None:
        """Behind the log: what is not flushed yet is saved when it is."""
        self._sync()
        self._save_flushed()

    def can_stop(self) -> bool:
        """Once the file says all."""
        return super().can_stop() and not self._syncing

    def _sync(self) -> None:
        """Has the copies flushed that are not yet."""
        end = max((each.end for each in self._unflushed), default=0)
        if end > self._log.flushed_offset and not (self._syncing or self._sync_failed):
            self._syncing = True
            self._flusher.tell(Sync(end, self.address))

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Now the file may say so."""
        self._syncing = False
        self._sync_failed = message.failure is not None
        self._save_flushed()

    @serves(RequestCode.GET_ALL_DELAY_OFFSET)
    def all_offsets(self, request: Request) -> RemotingCommand:
        """The table, for a slave."""
        return request.command.answer(body=DelayOffsetTable(dict(self._offsets)).encode())

    def _save_flushed(self) -> None:
        """Levels may be told in any order of the log; the first that is not flushed holds back."""
        flushed = self._log.flushed_offset
        while self._unflushed and self._unflushed[0].end <= flushed:
            message = self._unflushed.popleft()
            self._safe[message.level] = message.next_offset
            self._changed = True
        if self._changed:
            self._changed = False
            table = DelayOffsetTable(dict(sorted(self._safe.items())))
            self.save(lambda: format_delay_offsets(table))
