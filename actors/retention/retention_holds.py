"""Reasons to retain old log files: leases of readers, and messages missing in the archive.

A part of CleanFiles, on its thread.

Leases of readers over the network are in memory, so a restarted broker has none. After a refused
renewal a reader takes its lease again, before the first round of deletions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from protocol.bodies_own import LeasedQueues
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.own import RELEASE, RENEW, TAKE, LeaseHeader, LeaseResponseHeader
from storage.clock import Clock
from storage.errors import os_sentence
from storage.files.disk import Disk
from storage.message_store import MessageStore
from storage.retention.archive_policy import ArchivePolicy
from storage.retention.cleaning import Decision, Expired, RetentionHold
from storage.retention.leases import JOB_CHARS_MAX, LEASES_MAX, Lease, LeaseFiles, lowest_offset

LEASE_TTL_MS_MIN, LEASE_TTL_MS_MAX = 1_000, 600_000
"""Shorter leases could expire during a slow request; longer ones retain files after a crash."""
LEASES_OF_OWNER_MAX = 200
"""Leases of one account, or of one address without an account: a fifth of all."""
_ID_CHARS_MAX = 64


@dataclass(slots=True)
class _Entry:
    lease: Lease
    ttl_ms: int
    ends_at_ms: float
    """End in monotonic time, ms."""


class LeaseTable:
    """Leases by owner and id. Owned by one actor; raises RemoteError for refused leases."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        """Entries by owner and id, so that no owner can change another one's lease."""

    def grant(
        self,
        lease_id: str,
        job: str,
        offset: int,
        ttl_ms: int,
        now_ms: int,
        monotonic_ms: float,
        owner: str = "",
    ) -> int:
        """Add or move a lease; return its duration, ms.

        `owner` is the account or the address of the requester; empty without access
        control.
        """
        if not 0 < len(lease_id) <= _ID_CHARS_MAX or not lease_id.isprintable():
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"a lease id has 1 to {_ID_CHARS_MAX} printable characters",
            )
        self.end_those_due(monotonic_ms)
        key = owner, lease_id
        is_new = key not in self._entries
        if is_new and owner and self._count(owner) >= LEASES_OF_OWNER_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                f"lease limit of {LEASES_OF_OWNER_MAX} for {owner} reached: retry when one expires",
            )
        if is_new and len(self._entries) >= LEASES_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_BUSY,
                f"lease limit of {LEASES_MAX} reached: retry when one expires",
            )
        ttl_ms = min(max(ttl_ms, LEASE_TTL_MS_MIN), LEASE_TTL_MS_MAX)
        lease = Lease(lease_id, job[:JOB_CHARS_MAX], offset, now_ms + ttl_ms)
        self._entries[key] = _Entry(lease, ttl_ms, monotonic_ms + ttl_ms)
        return ttl_ms

    def _count(self, owner: str) -> int:
        return sum(owner == each for each, _ in self._entries)

    def renew(
        self, lease_id: str, ttl_ms: int, now_ms: int, monotonic_ms: float, owner: str = ""
    ) -> Lease:
        """Extend a lease; raises RemoteError if it has expired."""
        self.end_those_due(monotonic_ms)
        entry = self._entries.get((owner, lease_id))
        if entry is None:
            raise RemoteError(
                ResponseCode.QUERY_NOT_FOUND, "lease not found, it may have expired: take it again"
            )
        lease = entry.lease
        self.grant(lease_id, lease.job, lease.offset, ttl_ms, now_ms, monotonic_ms, owner)
        return self._entries[owner, lease_id].lease

    def release(self, lease_id: str, owner: str = "") -> None:
        self._entries.pop((owner, lease_id), None)

    def end_those_due(self, monotonic_ms: float) -> list[Lease]:
        due = [key for key, each in self._entries.items() if monotonic_ms >= each.ends_at_ms]
        return [self._entries.pop(key).lease for key in due]

    def leases(self, monotonic_ms: float) -> list[Lease]:
        return [each.lease for each in self._entries.values() if monotonic_ms < each.ends_at_ms]


log = get_logger(__name__)

LEASED_QUEUES_MAX = 65_536
"""Queues in one lease, the maximum of a topic; each costs some system calls when it is taken."""
_LOST_QUEUES_MAX = 10
"""Queues named in the log line of one file; all are counted."""
_DAY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class KeepingReport:
    """Leases and the reason for retained files, as shown to operators."""

    leases: Sequence[Lease] = ()
    files_stay_for: str = ""
    """Reason why the oldest file is retained past its age; empty without one."""


class RetentionHolds:
    """Holds on the log files of one store, and their log lines."""

    def __init__(
        self, store: MessageStore, disk: Disk, clock: Clock, published: SnapshotRef[KeepingReport]
    ) -> None:
        self._store, self._disk, self._clock = store, disk, clock
        self._published = published
        self._table = LeaseTable()
        self._files = LeaseFiles(disk, store.config.root)
        self._policy = ArchivePolicy(store.config, disk)
        self._told: tuple[str, int] = ("", 0)
        self._trouble: str | None = None
        try:
            self._files.make()
        except OSError as error:
            log.warning("lease folder not created, file leases disabled", reason=os_sentence(error))

    # --- holds

    def needed_from(self) -> int:
        """Return the offset below which all queue units are on disk."""
        return min(self._store.checkpoint.durable_offset, self._store.commit_log.flushed_offset)

    def holds(self) -> list[RetentionHold]:
        """Return the holds of all readers and of the archive."""
        files = self._store.commit_log.queue.files
        found = self.leased()
        archive = self._policy.hold(files[0], files[-1], self.needed_from()) if files else None
        return found if archive is None else [*found, archive]

    def leased(self) -> list[RetentionHold]:
        """Return the holds of leases, over the network or by a file; drop expired ones."""
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        for lease in self._table.end_those_due(monotonic_ms):
            log.info("log lease expired", lease=lease.id, job=lease.job)
        leases = self._table.leases(monotonic_ms)
        try:
            leases += self._files.read(now_ms)
            trouble = self._files.trouble
        except OSError as error:
            trouble = os_sentence(error)
        if trouble is not None and trouble != self._trouble:
            log.warning("lease file unreadable, retains nothing", reason=trouble)
        self._trouble = trouble
        self._published.value = KeepingReport(leases, self._published.value.files_stay_for)
        return [RetentionHold(each.offset, f"lease {each.id} of {each.job}") for each in leases]

    # --- log lines

    def tell(self, decision: Decision) -> None:
        """Log which old file is retained and why: when that changes, and once a day."""
        why = "; ".join(hold.who for hold in decision.kept_for)
        if why != self._published.value.files_stay_for:
            self._published.value = KeepingReport(self._published.value.leases, why)
        before, told_ms = self._told
        now_ms = self._clock.now_ms()
        if decision.kept_file is not None and (why != before or now_ms >= told_ms + _DAY_MS):
            log.warning("old log files retained", first=decision.kept_file.path, needed_by=why)
            self._told = (why, now_ms)

    def tell_losses(self, expired: Expired) -> None:
        """Log the holders of a deleted file: one line for each lease, one for the archive."""
        file = expired.file
        for hold in expired.losers:
            if hold.is_lease:
                log.warning(
                    "log file deleted under a lease",
                    file=file.path,
                    reason=expired.reason,
                    loser=hold.who,
                )
                continue
            try:
                lost = list(self._policy.lost_with(file))
            except OSError as error:
                lost = []
                log.warning("lost messages not counted", reason=os_sentence(error))
            log.warning(
                "unarchived log file deleted",
                file=file.path,
                reason=expired.reason,
                why=hold.who,
                messages=sum(count for _, count in lost),
                queues=[
                    f"{each.topic} {each.queue_id}: {count}"
                    for each, count in lost[:_LOST_QUEUES_MAX]
                ],
            )

    # --- requests

    def answer(self, command: RemotingCommand, owner: str = "") -> RemotingCommand:
        """Take, renew or release a lease of `owner`. Raises RemoteError."""
        header = LeaseHeader.decode(command.fields)
        if header.action == RELEASE:
            self._table.release(header.lease, owner)
            self.leased()
            return command.answer()
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        if header.action == RENEW:
            lease = self._table.renew(header.lease, header.ttl_ms, now_ms, monotonic_ms, owner)
            offset, ttl_ms = lease.offset, lease.until_ms - now_ms
        elif header.action == TAKE:
            offset = self._place(header, command.body)
            ttl_ms = self._table.grant(
                header.lease, header.job, offset, header.ttl_ms, now_ms, monotonic_ms, owner
            )
        else:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"action is {header.action}: it may be {TAKE}, {RENEW} or {RELEASE}",
            )
        self.leased()
        begin = self._store.commit_log.min_offset()
        return command.answer(fields=LeaseResponseHeader(offset, begin, ttl_ms).encode())

    def _place(self, header: LeaseHeader, body: bytes | memoryview | None) -> int:
        """Return the first log offset that a lease needs."""
        if header.offset >= 0:
            return header.offset
        queues = LeasedQueues.decode(body).queues
        if len(queues) > LEASED_QUEUES_MAX:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"too many queues in one lease: {len(queues)}, at most {LEASED_QUEUES_MAX}",
            )
        known = self._store.consume_queues
        wanted = {
            (each.topic, each.queue_id): each.queue_offset
            for each in queues
            if known.get(each.topic, each.queue_id) is not None
        }
        end = self.needed_from()
        try:
            return lowest_offset(self._disk, self._store.config.consume_queue_dir, wanted, end)
        except OSError as error:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, os_sentence(error)) from None
