"""Scrubber: verifies the store in the background, and single units on request.

Owns: the damaged ranges of the log (`store.damage`), the round, and pending verifications.
Receives: VerifyUnit (PullMessage); RepairsRefused (Reput).
Sends: RepairUnits (Reput), with corrections, verified ranges and pending answers; RebuildIndex,
RebuildTable (Reput).
Publishes: its progress, for BrokerInfo and metrics.

A few seconds after the start, one round verifies all that the start found, newest messages first.
It uses only a share of the time (scrubDutyPercent). It reads through its own file descriptors and
holds the interpreter for short moments, so that sends are not delayed.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from actors.dispatching.messages import (
    RebuildIndex,
    RebuildTable,
    RepairsRefused,
    RepairUnits,
    UnitVerified,
    VerifyUnit,
)
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from protocol.topic_names import HALF_TOPIC
from storage.checking.index_check import IndexCheck, checks_of
from storage.dispatching.dispatch import delay_levels_ms
from storage.dispatching.followers import DispatchReader
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.scrub.round import Scrub
from storage.scrub.units import Findings, QueueKey
from storage.transactions.check import TableScrub

log = get_logger(__name__)
START_DELAY_MS = 5000
"""Delay after which returning consumers no longer need the disk most."""
SLICE_MS = 1.0
"""Work per slice: two turns of the interpreter's lock (troupemq/daemon.py)."""
PATIENCE_MS = 60_000.0
"""Time in which a disk that refuses reads may recover; then unreadable records are damage."""
_SLICE_STEPS_MAX = 16
"""Steps per slice; the limit where the clock stands still."""
_VERIFY_DUTY_PERCENT = 50
"""Share of the time while a reader waits for an answer."""
_LINES_MAX = 20
"""Log lines per event; the rest is counted."""


@dataclass(frozen=True, slots=True)
class ScrubFigures:
    """Progress of the scrubber, published after each slice."""

    progress: float = 1.0
    """Share of the log verified in this round, 0 to 1; 1 without a round."""
    last_end_ms: int = 0
    """End of the last complete round, wall clock, ms; 0: none."""


@dataclass(slots=True)
class _Begin:
    """Timer tick: begin a round."""


@dataclass(slots=True)
class _Slice:
    """Timer tick: do a slice of work."""


@dataclass(slots=True)
class _Job:
    """Work done in steps: the round, or the verification of one unit."""

    scrub: Scrub
    queues: Mapping[QueueKey, ConsumeQueue]
    steps: Iterator[None]
    answers: list[tuple[ActorAddress, UnitVerified]] = field(default_factory=list)
    started_ms: float = 0.0


class Scrubber(Actor):
    """Verification of the store. Runs on a thread, because it waits for the disk."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self, store: MessageStore, reput: ActorAddress, published: SnapshotRef[ScrubFigures]
    ) -> None:
        super().__init__()
        self._published = published
        self._store = store
        self._reput = reput
        self._round: _Job | None = None
        self._verifying: dict[tuple[str, int, int], _Job] = {}
        self._sleeping = True
        self._line_counts: dict[str, int] = {}
        self._last_end_ms = 0
        self._refused_ms: float | None = None
        """Monotonic time of the first refused read."""

    def on_start(self) -> None:
        self._publish()
        found_anything = self._store.found_end_offset > self._store.commit_log.min_offset()
        if self._store.config.scrub_enable and found_anything:
            self.after(START_DELAY_MS, _Begin())

    def _publish(self) -> None:
        job, progress = self._round, 1.0
        whole = self._store.found_end_offset - self._store.commit_log.min_offset()
        if job is not None and whole > 0:
            progress = min(1.0, job.scrub.counts.log_bytes / whole)
        self._published.value = ScrubFigures(progress, self._last_end_ms)

    def on_stop(self) -> None:
        self._close_files()

    def on_failure(self, *_: object) -> None:
        """Close the files; waiting pulls are answered at their timeout."""
        self._close_files()

    def _close_files(self) -> None:
        for job in (*self._verifying.values(), self._round):
            if job is not None:
                job.scrub.close()

    @handles(_Begin)
    def on_begin(self, _: _Begin) -> None:
        """Begin the round; an unfinished one is dropped."""
        if self._round is not None:
            self._round.scrub.close()
        self._line_counts.clear()
        job = self._round = self._new_job(whole_round=True)
        job.steps = self._round_steps(job.scrub)
        self._publish()
        self._wake()

    def _round_steps(self, scrub: Scrub) -> Iterator[None]:
        """Yield the steps for log and queues, then for table and index, with the damage known."""
        yield from scrub.steps()
        store = self._store
        levels = delay_levels_ms(store.config.message_delay_level)
        reader = DispatchReader(store.commit_log, levels)
        disk, found_end = self.system.disk, store.found_end_offset
        has_halves = store.consume_queues.get(HALF_TOPIC, 0) or store.transaction_table.unit_count
        if has_halves and store.transaction_table.name not in store.lagging.behind:
            table = TableScrub(store.config, disk, store.commit_log, reader, store.damage)
            reason = yield from self._reason_of(table)
            if reason:
                self._reput.tell(RebuildTable(reason))
        if store.index is None:
            return
        files = tuple(f for f in store.index.files if f.begin_physical_offset < found_end)
        for check in checks_of(store.config, disk, store.commit_log, store.damage, reader, files):
            reason = yield from self._reason_of(check)
            if reason:
                self._reput.tell(RebuildIndex(check.path, reason))
                return

    @staticmethod
    def _reason_of(check: IndexCheck | TableScrub) -> Generator[None, None, str]:
        """Yield per step; return why an index file or the table is wrong, empty if it is not."""
        try:
            while not check.step():
                yield
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"
        finally:
            check.close()
        return check.reason

    @handles(VerifyUnit)
    def on_verify_unit(self, message: VerifyUnit) -> None:
        """Verify a unit before the round continues; equal requests share one verification."""
        key = message.topic, message.queue_id, message.queue_offset
        job = self._verifying.get(key)
        if job is None:
            job = self._verifying[key] = self._new_job()
            topic = message.topic.encode("utf-8", "surrogateescape")
            job.steps = job.scrub.verify_unit(topic, message.queue_id, message.queue_offset)
        job.answers.append((message.reply_to, UnitVerified(*key)))
        self._wake()

    @handles(RepairsRefused)
    def on_refused(self, message: RepairsRefused) -> None:
        """Begin the round again, as its repairs were not written."""
        log.warning("units not repaired", reason=message.reason)
        self.after(START_DELAY_MS, _Begin())

    @handles(_Slice)
    def on_slice(self, _: _Slice) -> None:
        """Work for a slice, send the findings, and sleep in proportion."""
        self._sleeping = True
        key = next(iter(self._verifying), None)
        job = self._round if key is None else self._verifying[key]
        if job is None:
            return
        clock = self.system.clock
        start_ms = clock.monotonic_ms()
        try:
            is_done = self._work(job, start_ms)
        except OSError as error:  # such as too many open files
            self._give_up(key, job, error)
            return
        self._store.damage.forget_below(self._store.commit_log.min_offset())
        answers = job.answers if is_done else []
        self._tell(job, job.scrub.pop_findings(), answers)
        if is_done:
            job.scrub.close()
            if key is not None:
                del self._verifying[key]
            else:
                self._round = self._refused_ms = None
                self._last_end_ms = clock.now_ms()
                self._log_round(job)
        self._publish()
        duty = self._store.config.scrub_duty_percent if key is None else _VERIFY_DUTY_PERCENT
        worked_ms = max(clock.monotonic_ms() - start_ms, SLICE_MS)
        self._wake(worked_ms * (100 - duty) / duty)

    def _give_up(self, key: tuple[str, int, int] | None, job: _Job, error: OSError) -> None:
        """Drop a job that the disk has refused, and begin the round again; actors time out."""
        self.note_unread(error)
        if self._refused_ms is None:
            self._refused_ms = self.system.clock.monotonic_ms()
        job.scrub.close()
        if key is not None:
            del self._verifying[key]
        else:
            self._round = None
            if self._is_patient:
                self.after(START_DELAY_MS, _Begin())
        self._publish()
        self._wake(SLICE_MS)

    @property
    def _is_patient(self) -> bool:
        """Whether the disk may still recover."""
        now_ms = self.system.clock.monotonic_ms()
        return self._refused_ms is None or now_ms - self._refused_ms < PATIENCE_MS

    def _work(self, job: _Job, start_ms: float) -> bool:
        """Do one slice of a job; return True at its end."""
        clock = self.system.clock
        for _ in range(_SLICE_STEPS_MAX):
            try:
                next(job.steps)
            except StopIteration:
                return True
            if clock.monotonic_ms() - start_ms >= SLICE_MS:
                break
        return False

    def _new_job(self, *, whole_round: bool = False) -> _Job:
        """Create a job up to the present ends: queues first, as units follow their records.

        A round omits what this process wrote and what is verified already.
        """
        queues = {
            (queue.topic.encode("utf-8", "surrogateescape"), queue.queue_id): queue
            for queue in self._store.consume_queues
        }
        ends = {key: queue.written_offset for key, queue in queues.items()}
        log_end = self._store.commit_log.end_offset
        if whole_round:
            ends = {key: min(end, queues[key].verified_from) for key, end in ends.items()}
            log_end = self._store.found_end_offset
        scrub = Scrub(
            self.system.disk,
            self._store.config,
            self._store.damage,
            log_end=log_end,
            queue_ends=ends,
            is_patient=self._is_patient,
        )
        return _Job(scrub, queues, iter(()), started_ms=self.system.clock.monotonic_ms())

    def _wake(self, delay_ms: float = 0.0) -> None:
        if self._sleeping and (self._verifying or self._round is not None):
            self._sleeping = False
            self.after(delay_ms, _Slice())

    # --- findings

    def _tell(
        self, job: _Job, found: Findings, answers: Sequence[tuple[ActorAddress, UnitVerified]]
    ) -> None:
        for start, end, reason in found.damaged:
            self._log_some("commit log damaged", start=start, end=end, reason=reason)
        for reason in found.reasons:
            self._log_some("queue unit repaired", reason=reason)
        queues = job.queues
        repairs = [(queues[repair[:2]], repair) for repair in found.repairs]
        verified = [(queues[key], start) for key, start in found.verified.items()]
        if repairs or verified or answers:
            self._reput.tell(RepairUnits(repairs, verified, self.address, answers))

    def _log_some(self, event: str, **values: object) -> None:
        count = self._line_counts[event] = self._line_counts.get(event, 0) + 1
        if count <= _LINES_MAX:
            log.warning(event, **values)

    def _log_round(self, job: _Job) -> None:
        counts = job.scrub.counts
        elapsed_ms = self.system.clock.monotonic_ms() - job.started_ms
        is_well = not (self._store.damage or counts.repaired_count or counts.unconfirmed_count)
        (log.info if is_well else log.warning)(
            "store verified",
            seconds=round(elapsed_ms / 1000, 1),
            log_bytes=counts.log_bytes,
            records=counts.record_count,
            units=counts.unit_count,
            damaged_ranges=len(self._store.damage.ranges),
            damaged_units=counts.damaged_count,
            repaired_units=counts.repaired_count,
            stray_records=counts.stray_count,
            records_of_deleted_queues=counts.unknown_queues.total(),
            unconfirmed_units=counts.unconfirmed_count,
        )
