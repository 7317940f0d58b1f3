"""Progress of a master's slaves: HaMaster writes it, GroupCommit and PutMessage read it.

Source: HAService.java (push2SlaveMaxOffset, connectionCount, isSlaveOK).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.sending.messages import LogGrew


@dataclass(slots=True)
class ReplicationProgress:
    """Replication progress published by HaMaster."""

    link_count: int = 0
    """Number of connected slaves."""
    acked_offset: int = 0
    """Highest offset that any slave has acknowledged. Never decreases."""
    skipped_below: int = 0
    """Offset at which an empty slave has begun.

    Its acknowledgements do not cover records before it. 4.9.7 counts such acknowledgements, and
    tells producers OK for messages that no slave has.
    """

    def can_follow(self, offset: int, fall_behind_max_bytes: int) -> bool:
        """Return whether a slave is near enough to wait until it has the log up to `offset`."""
        return self.link_count > 0 and offset - self.acked_offset < fall_behind_max_bytes


@dataclass(frozen=True, slots=True)
class SlaveFigures:
    """Figures of HaMaster."""

    slaves: Sequence[tuple[str, int, float]] = ()
    """Host, acknowledged offset and ms since the last report, of each slave."""


@dataclass(frozen=True, slots=True)
class FollowFigures:
    """Figures of HaSlave."""

    follows: bool | None = None
    """Whether the slave receives a master's log now; None on a master."""


@dataclass(frozen=True, slots=True)
class SlaveNotifier:
    """Notifier for the writer and the flusher: tells HaMaster when more can be transferred."""

    replicas: ReplicationProgress
    ha_master: ActorAddress
    only_flushed: bool
    """Whether only flushed bytes may be transferred, as under SYNC_FLUSH."""

    def log_grew(self) -> None:
        """Notify HaMaster after an append. Call it only while slaves are connected."""
        if not self.only_flushed:
            self.ha_master.tell(LogGrew())

    def log_flushed(self) -> None:
        """Notify HaMaster after a flush, if slaves are connected."""
        if self.only_flushed and self.replicas.link_count:
            self.ha_master.tell(LogGrew())


@dataclass(frozen=True, slots=True)
class ReplicaWait:
    """Limits of a SYNC_MASTER's wait for its slaves."""

    timeout_ms: int
    fall_behind_max_bytes: int
