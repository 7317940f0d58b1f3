"""One round of check-backs: chooses the half messages to check, in order, a few at a time.

The candidates are the pending entries of the transaction table when the round begins; the half
queue is not read. A half message that is not due is read once, and its due time is remembered.

Source: broker/transaction/queue/TransactionalMessageServiceImpl.check.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.config import BrokerConfig
from actors.engine.server_log import get_logger
from actors.sending.appender import InternalRecord
from actors.transactions.half_messages import HalfMessage
from actors.transactions.half_state import Standings
from actors.transactions.messages import End
from protocol.message import RecordError
from storage.errors import OffsetError
from storage.log.reader import message_of
from storage.message_store import MessageStore
from storage.reading.page_probe import ColdPart, PageProbe
from storage.transactions.ledger import PendingTransaction
from storage.transactions.table import TransactionTable
from storage.transactions.units import COMMITTING

log = get_logger(__name__)

ROUND_COUNT = 10_000
"""Maximum checks in a round, oldest first; the next round begins with the rest."""
CANDIDATES_MAX = 100_000
"""Maximum half messages examined in a round, including those that are not due."""
ROUND_MS = 60_000.0
"""Maximum duration of a round, as in 4.9.7; the next round checks the rest."""
BATCH_COUNT = 64
"""Half messages examined in one step and appended with one message: 3 ms of the event loop."""
BATCH_BYTES = 128 << 10
"""Maximum bytes of a step. Properties of 28 KiB with 4,600 names take 4 ms; 1 MiB took 150 ms."""
_MS_PER_HOUR = 3_600_000


@dataclass(slots=True)
class Check:
    """One half message to append again, or to discard."""

    pending: PendingTransaction
    half: HalfMessage
    own: InternalRecord
    is_given_up: bool
    is_passed: bool
    """Whether the stored progress passes it; else a RocketMQ broker would find it pending."""


@dataclass(slots=True)
class Finish:
    """One half message to settle."""

    pending: PendingTransaction
    is_committed: bool
    """Whether its commit is stored; if not, its newer copy is."""


@dataclass(slots=True)
class Batch:
    """Work of one step of a round: the checks, then the finishes."""

    checks: list[Check] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)

    def all(self) -> list[Check | Finish]:
        return [*self.checks, *self.finishes]


@dataclass(slots=True)
class Round:
    """Progress of one round of checks over the open transactions."""

    candidates: Sequence[PendingTransaction]
    deadline_ms: float
    next: int = 0
    holds: bool = False
    """Whether an earlier half message of the round stays pending."""
    checked_count: int = 0
    given_up_count: int = 0
    no_producer: dict[str, int] = field(default_factory=dict)


class CheckBackPlanner:
    """Planner of check-backs: reads open half messages and decides which producers to ask."""

    def __init__(
        self, store: MessageStore, config: BrokerConfig, probe: PageProbe, standings: Standings[End]
    ) -> None:
        self._log = store.commit_log
        self._config, self._store_config = config, store.config
        self._probe = probe
        self._standings = standings
        self._not_before_ms: dict[int, int] = {}
        self.unreadable: set[int] = set()
        """Half messages that cannot be read and therefore not be checked."""
        self._reckoned_with = self._times

    @property
    def _times(self) -> tuple[int, int]:
        """Return the settings that determine due times; they can change."""
        return self._config.transaction_timeout_ms, self._reserved_ms

    @property
    def _reserved_ms(self) -> int:
        return self._store_config.file_reserved_hours * _MS_PER_HOUR

    def begin(self, table: TransactionTable, monotonic_ms: float) -> Round:
        """Start a round over the pending half messages."""
        candidates = table.pending(CANDIDATES_MAX)
        offsets = {pending.physical_offset for pending in candidates}
        if self._times != self._reckoned_with:
            self._reckoned_with, self._not_before_ms = self._times, {}
        self._not_before_ms = {
            offset: due_ms for offset, due_ms in self._not_before_ms.items() if offset in offsets
        }
        self.unreadable &= offsets
        self._probe.forget()
        return Round(candidates, monotonic_ms + ROUND_MS)

    def is_over(self, checks: Round, monotonic_ms: float) -> bool:
        """Return whether a round is complete or has reached one of its limits."""
        is_through = checks.next >= len(checks.candidates)
        is_full = checks.checked_count + checks.given_up_count >= ROUND_COUNT
        return is_through or is_full or monotonic_ms > checks.deadline_ms

    def cold(self, checks: Round, now_ms: int) -> Sequence[ColdPart]:
        """Return the parts that the next step reads and that are cold."""
        not_before_ms = self._not_before_ms
        return self._probe.cold_records(
            [
                (each.physical_offset, each.physical_offset + each.record_bytes)
                for each in self._next(checks)
                if now_ms >= not_before_ms.get(each.physical_offset, 0)
            ]
        )

    def step(self, checks: Round, table: TransactionTable, now_ms: int) -> Batch:
        """Return the work of the next step; half messages that are not due are skipped."""
        batch = Batch()
        chosen = self._next(checks)
        for pending in chosen:
            self._look_at(pending, checks, table, now_ms, batch)
        checks.next += len(chosen)
        return batch

    def _next(self, checks: Round) -> Sequence[PendingTransaction]:
        total = 0
        chosen = checks.candidates[checks.next : checks.next + BATCH_COUNT]
        for count, pending in enumerate(chosen):
            total += pending.record_bytes
            if count and total > BATCH_BYTES:
                return chosen[:count]
        return chosen

    def _look_at(
        self,
        pending: PendingTransaction,
        checks: Round,
        table: TransactionTable,
        now_ms: int,
        batch: Batch,
    ) -> None:
        offset = pending.physical_offset
        if not pending.is_half or table.get_pending(offset) is not pending:
            return
        if not self._standings.is_open(offset) or now_ms < self._not_before_ms.get(offset, 0):
            checks.holds = True
            return
        if pending.state == COMMITTING:
            batch.finishes.append(Finish(pending, is_committed=True))
            return
        half = self._read(pending)
        if half is None:
            return
        is_given_up = self._is_too_old(half, now_ms)
        if not is_given_up and not self._is_due(half, now_ms):
            checks.holds = True
            return
        own = half.given_up() if is_given_up else half.checked()
        batch.checks.append(Check(pending, half, own, is_given_up, not checks.holds))

    def _read(self, pending: PendingTransaction) -> HalfMessage | None:
        offset, size = pending.physical_offset, pending.record_bytes
        if offset in self.unreadable:
            return None
        try:
            return HalfMessage(message_of(self._log.view(offset, size), offset))
        except (OffsetError, RecordError) as error:
            if offset >= self._log.min_offset():
                log.error("half message read failed", offset=offset, reason=str(error))
                self.unreadable.add(offset)
            return None

    def _is_too_old(self, half: HalfMessage, now_ms: int) -> bool:
        times = half.check_times
        if times is not None and times >= self._config.transaction_check_max:
            return True
        return now_ms - half.record.born_timestamp > self._reserved_ms

    def _is_due(self, half: HalfMessage, now_ms: int) -> bool:
        """Return whether its immunity time is over.

        A half message born in the future is due at once, unless it has its own immunity time.
        """
        born_ms = half.record.born_timestamp
        immunity_ms, is_own = half.immunity_ms(self._config.transaction_timeout_ms)
        due_ms = born_ms + immunity_ms
        if now_ms >= due_ms or (now_ms < born_ms and not is_own):
            return True
        self._not_before_ms[half.record.physical_offset] = min(due_ms, born_ms + self._reserved_ms)
        return False
