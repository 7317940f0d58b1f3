"""Reads the log for the followers that are behind it (index, tables), while all serve.

Owns: the followers whose names are in `Lagging.behind` (actors/dispatching/hand_over.py).
Told by: itself (`_Slice`), Reput (`FollowerBehind`, `RebuildIndex`), FlushRealTime
(`IndexTimeLowered`).
Tells: Reput (`FollowersCaughtUp`), FlushRealTime (`LowerIndexTime`, `IndexSynced`).

A slice takes about 2 ms, and then it rests: as long as messages are being appended for three times
as long, less if it does not come nearer (measured: 400,000 records take 7 s on an idle broker; one
with 20,000 sends a second takes a fifth fewer meanwhile, their median unchanged). Where the index
alone is far behind a slice is a stretch of the log whose keys other processes have read. Stopped or
killed in between it loses nothing: what is not covered is covered next time.
"""

from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.dispatching.hand_over import (
    FollowerBehind,
    FollowersCaughtUp,
    IndexSynced,
    IndexTimeLowered,
    LowerIndexTime,
    RebuildIndex,
    RebuildTable,
)
from actors.dispatching.key_feed import KeyFeed, OpenKeyParts
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from storage.dispatching.dispatch import Follower
from storage.dispatching.followers import SLICE_RECORDS, feed
from storage.errors import StoreError
from storage.index.index import Index
from storage.message_store import MessageStore
from storage.queues.unsynced import sync_files

log = get_logger(__name__)

NEAR_BYTES = 256 << 10
"""What is left for Reput to read: about a thousand records, four steps of it."""
REST_BUSY = 3.0
REST_IDLE = 0.25
"""Rest after a slice, in parts of what it took."""
REST_MS_MIN = 1.0
PACE_MS = 5000
"""How often it looks whether it has come nearer."""
TABLE_SYNC_BYTES = 256 << 20
"""Of the log: what a killed broker has to read again for the transaction table."""
RETRY_MS = 1000
"""After the disk has refused something."""


@dataclass(slots=True)
class _Slice:
    """Read and feed some records; `run` tells a forgotten chain of slices from the present one."""

    run: int


@dataclass(slots=True)
class _AskAgain:
    """Ask for a checkpoint that does not vouch for what will be written."""

    run: int


class Pace:
    """How long to rest between slices, so that others are served and the end is reached."""

    def __init__(self) -> None:
        self._busy = REST_BUSY
        self._seen_end = -1
        self._gap_bytes = 0
        self._looked_ms: float | None = None

    def rest_ms(self, took_ms: float, position: int, end_offset: int, now_ms: float) -> float:
        """The rest after a slice that took so long and ended at `position` of the log."""
        is_busy = end_offset != self._seen_end and self._seen_end >= 0
        self._seen_end = end_offset
        gap_bytes = end_offset - position
        if self._looked_ms is None:
            self._gap_bytes, self._looked_ms = gap_bytes, now_ms
        elif now_ms - self._looked_ms >= PACE_MS:
            if gap_bytes >= self._gap_bytes:
                self._busy = max(self._busy / 2, REST_IDLE)
            self._gap_bytes, self._looked_ms = gap_bytes, now_ms
        return max(REST_MS_MIN, took_ms * (self._busy if is_busy else REST_IDLE))


class CatchUp(Actor):
    """Runs on a thread: it reads cold files and syncs full ones."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        open_keys: OpenKeyParts,
        *,
        reput: ActorAddress,
        flush_real_time: ActorAddress,
    ) -> None:
        super().__init__()
        self._store = store
        self._keys = KeyFeed(store.commit_log, open_keys)
        self._reput, self._flush_real_time = reput, flush_real_time
        self._late: tuple[Follower, ...] = ()
        self._position = 0
        self._table_synced = 0
        self._run = 0
        self._pace = Pace()
        self._record_count = 0
        self._refused: str | None = None

    def on_start(self) -> None:
        self._begin()

    def on_stop(self) -> None:
        self._keys.close()

    def _begin(self) -> None:
        """Takes what is its own, and goes on where the one that knows least has ended."""
        self._keys.close()
        self._run += 1
        self._late = self._store.lagging.late()
        self._record_count = 0
        self._pace = Pace()
        if not self._late:
            return
        self._position = min(follower.covered_offset for follower in self._late)
        self._table_synced = self._position
        log.info(
            "catching up",
            followers=[follower.name for follower in self._late],
            position=self._position,
            end=self._store.commit_log.end_offset,
        )
        index = self._index()
        if index is None:
            self.address.tell(_Slice(self._run))
        else:
            self.on_ask_again(_AskAgain(self._run))

    def _index(self) -> Index | None:
        index = self._store.index
        return index if index is not None and index in self._late else None

    @handles(_AskAgain)
    def on_ask_again(self, message: _AskAgain) -> None:
        """Files are about to be filled that an older checkpoint would vouch for, synced or not."""
        index = self._index()
        if message.run == self._run and index is not None:
            self._flush_real_time.tell(LowerIndexTime(index.full_until_ms, self.address))

    @handles(IndexTimeLowered)
    def on_index_time_lowered(self, message: IndexTimeLowered) -> None:
        """Nothing is written to the index before."""
        if message.done:
            self.address.tell(_Slice(self._run))
        else:
            self.after(RETRY_MS, _AskAgain(self._run))

    @handles(_Slice)
    def on_slice(self, message: _Slice) -> None:
        """Some records; the next ones after a rest."""
        if message.run != self._run or not self._late:
            return
        started_ms = self.system.clock.monotonic_ms()
        try:
            self._read_on()
        except (StoreError, OSError) as error:
            self._disk_refused(error)
            self.after(RETRY_MS, message)
            return
        self._refused = None
        end_offset = self._store.commit_log.end_offset
        if end_offset - self._position <= NEAR_BYTES:
            self._hand_over()
            return
        now_ms = self.system.clock.monotonic_ms()
        rest_ms = self._pace.rest_ms(now_ms - started_ms, self._position, end_offset, now_ms)
        self.after(rest_ms, message)

    def _read_on(self) -> None:
        index = self._index()
        keys = None
        if index is not None:
            others = [each for each in self._late if each is not index]
            keys = self._keys.at(self._position, index, others)
        if index is not None and keys is not None:
            index.dispatch_part(keys)
            self._position = keys.end
            self._record_count += keys.record_count
        else:
            part = self._store.lagging.reader.read(self._position, SLICE_RECORDS)
            feed(self._late, part)
            self._position = part.next_offset
            self._record_count += len(part.entries)
        self._sync_full(index)

    def _sync_full(self, index: Index | None) -> None:
        """Brings to disk what has grown enough."""
        full = index.unsynced() if index is not None else None
        if index is not None and full is not None:
            sync_files(self.system.disk, full.files)
            index.mark_synced(full)
            self._flush_real_time.tell(IndexSynced(full.end_timestamp))
        table = self._store.transaction_table
        if table in self._late and self._position - self._table_synced >= TABLE_SYNC_BYTES:
            table.sync()
            self._table_synced = self._position
        sinks = self._store.sink_table
        if sinks in self._late and (copy := sinks.unsynced()) is not None:
            sinks.save(copy)
            sinks.mark_synced(copy)

    def _hand_over(self) -> None:
        self._keys.close()
        late, self._late = self._late, ()
        log.info(
            "caught up",
            followers=[follower.name for follower in late],
            position=self._position,
            record_count=self._record_count,
        )
        for follower in late:
            self._store.lagging.behind.discard(follower.name)
        self._reput.tell(FollowersCaughtUp(late, self._position))

    def _disk_refused(self, error: Exception) -> None:
        if self._refused is None:
            self._refused = str(error)
            log.error("not caught up", reason=self._refused)

    # --- the index again

    @handles(FollowerBehind)
    def on_behind(self, message: FollowerBehind) -> None:
        """Reput has dropped index files; they go from the disk before new ones are made."""
        self._remove(message)
        self._begin()

    @handles(RebuildIndex)
    def on_rebuild_index(self, message: RebuildIndex) -> None:
        """A file that was kept is wrong, and so is what was built behind it."""
        index = self._index()
        if index is None:
            self._reput.tell(message)  # handed over meanwhile
            return
        if paths := index.drop_from(message.path):
            log.warning("index made anew", path=message.path, reason=message.reason)
            self.on_behind(FollowerBehind(paths))

    @handles(RebuildTable)
    def on_rebuild_table(self, message: RebuildTable) -> None:
        """The scrubber found the transaction table wrong; Reput has given it away."""
        table = self._store.transaction_table
        if table.name not in self._store.lagging.behind:
            self._reput.tell(message)  # handed over meanwhile
            return
        log.warning("transaction table made anew", reason=message.reason)
        try:
            table.start_anew(self._store.commit_log.min_offset())
        except StoreError as error:
            self._disk_refused(error)
            self.after(RETRY_MS, message)
            return
        self._begin()

    def _remove(self, message: FollowerBehind) -> None:
        index = self._store.index
        if index is None:
            return
        try:
            index.unlink(message.paths)
        except OSError as error:  # they are found, and judged, at the next start
            log.error("index files not removed", reason=str(error))
