"""Progress of a master's slaves: written by HaMaster, read by whoever waits for them.

Source: HAService.java (push2SlaveMaxOffset, connectionCount, isSlaveOK).
"""

from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress


@dataclass(slots=True)
class ReplicationProgress:
    """What HaMaster publishes."""

    link_count: int = 0
    """Slaves that are connected."""
    acked_offset: int = 0
    """How far any slave has the log, or had. Never falls."""
    skipped_below: int = 0
    """An empty slave has begun here: that it is further says nothing of what lies before. 4.9.7
    takes its word for that, too, and tells producers OK for what no slave has."""

    def can_follow(self, offset: int, fall_behind_max_bytes: int) -> bool:
        """Whether it is worth while to wait until a slave has the log up to `offset`."""
        return self.link_count > 0 and offset - self.acked_offset < fall_behind_max_bytes


@dataclass(slots=True)
class LogGrew:
    """Told to HaMaster: there is more to transfer."""


@dataclass(frozen=True, slots=True)
class SlaveNotifier:
    """For those who write and who flush the log: tells HaMaster when slaves may have more of it."""

    replicas: ReplicationProgress
    ha_master: ActorAddress
    only_flushed: bool
    """Under SYNC_FLUSH: the flush lets them have it, else the write."""

    def log_grew(self) -> None:
        """There is more in the log than before. Asked only where there are slaves."""
        if not self.only_flushed:
            self.ha_master.tell(LogGrew())

    def log_flushed(self) -> None:
        """More of the log may be on the disk than before."""
        if self.only_flushed and self.replicas.link_count:
            self.ha_master.tell(LogGrew())


@dataclass(slots=True)
class Acked:
    """Told to GroupCommit: `ReplicationProgress.acked_offset` has grown."""


@dataclass(frozen=True, slots=True)
class ReplicaWait:
    """How a SYNC_MASTER waits for its slaves."""

    timeout_ms: int
    fall_behind_max_bytes: int
