"""Master's end of replication: sends the commit log to the slaves.

Owns: one SlaveLink for each slave, and the published ReplicationProgress.
Receives: Accepted from the HA port's acceptor; LogGrew from PutMessage, or under SYNC_FLUSH from
GroupCommit; ColdReadForSlave and Unreadable from ColdRead; AskFigures from MetricsPort; its own
tick.
Sends: Acked to GroupCommit (SYNC_MASTER only); ReadCold to ColdRead for a slave far behind.

Slaves get published bytes, under SYNC_FLUSH only flushed ones. Therefore a power failure of the
master leaves no slave ahead of it (docs/decisions/0008).

Source: store/ha/HAService.java, HAConnection.java.

Followers has the addresses of permitted slaves, because a slave gets the commit log and its reports
count. HaMaster uses it, and TlsNegotiator before a TLS handshake. Therefore a stranger costs no
handshake.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from actors.access.access_state import AccessState
from actors.config import BrokerConfig
from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import RateLimitedLog, get_logger
from actors.network.connections import Accepted
from actors.replication.ha_link import ColdReadForSlave, GoOn, SlaveLink, Unreadable
from actors.sending.messages import Acked, LogGrew
from actors.sending.replication_progress import ReplicationProgress, SlaveFigures
from actors.settings.access_settings import addresses_of
from storage.log.commit_log import CommitLog
from storage.reading.page_probe import ColdPart, PageProbe


class Followers:
    """Addresses in `haAllowedAddresses`, or otherwise those that access control permits."""

    def __init__(
        self, config: BrokerConfig, guard: AccessState | None, rarely: RateLimitedLog
    ) -> None:
        self._allowed = addresses_of(config.ha_allowed_addresses)
        self._guard = guard
        self._rarely = rarely

    def may_follow(self, host: str) -> bool:
        """Return whether a slave at this host may connect; log if not (docs/security.md, H16)."""
        if self._is_known(host):
            return True
        self._rarely.warn("slave address rejected", names=[host])
        return False

    def may_stay(self, host: str) -> bool:
        """Return whether a connected slave may stay: its account or address may have gone."""
        return self._is_known(host, follows=True)

    def _is_known(self, host: str, *, follows: bool = False) -> bool:
        if self._allowed:
            try:
                return ip_address(host) in self._allowed
            except ValueError:
                return False
        return self._guard is None or self._guard.may_replicate(host, follows=follows)


log = get_logger(__name__)

TICK_MS = 1000
BELIEVED_MS = 5000
"""Time for which pages found in the page cache count as there."""
PUSH_BYTES, PUSH_ALL_BYTES = 1 << 20, 4 << 20
"""Bytes sent to one slave and to all of them in a turn; encryption of all takes some 5 ms."""
LINKS_MAX = 64
"""Maximum slaves of one master."""
REFUSED_MAX = 1000
"""Hosts with a remembered refusal, which is logged once."""
STOP_MS = 1000
"""Time for the slaves to read the rest at a stop."""


@dataclass(slots=True)
class _Tick:
    """Check heartbeats and timeouts."""


class HaMaster(Actor):
    """Actor on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        commit_log: CommitLog,
        replicas: ReplicationProgress,
        probe: PageProbe,
        *,
        addresses: Mapping[str, ActorAddress],
        guard: AccessState | None = None,
    ) -> None:
        super().__init__()
        self._config = config
        self._guard = guard
        self._log = commit_log
        self._replicas = replicas
        self._probe = probe
        self._believed_ms = 0.0
        self._group_commit = addresses["group_commit"]
        self.cold_read = addresses["ha_cold_read"]
        self._links: list[SlaveLink] = []
        self._refused: dict[str, str] = {}
        self._only_flushed = commit_log.config.is_sync_flush
        self._stop_ms: float | None = None
        self.batch_bytes = config.ha_transfer_batch_bytes
        self.file_bytes = commit_log.config.commit_log_file_bytes

    def on_start(self) -> None:
        config = self._config
        self._followers = Followers(config, self._guard, self.system.rarely)
        shortest_ms = min(config.ha_heartbeat_interval_ms, config.ha_housekeeping_interval_ms)
        self.every(min(TICK_MS, shortest_ms), _Tick())

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        now_ms = self.system.clock.monotonic_ms()
        slaves = [(each.host, each.acked_offset, now_ms - each.heard_ms) for each in self._links]
        message.reply(SlaveFigures(slaves))

    # --- queries of the links

    @property
    def log_begin(self) -> int:
        """Min offset of the commit log."""
        return self._log.min_offset()

    @property
    def log_end(self) -> int:
        """Max offset of the commit log."""
        return self._log.end_offset

    @property
    def transfer_end(self) -> int:
        """End of the bytes that slaves may have."""
        return self._log.flushed_offset if self._only_flushed else self._log.end_offset

    @property
    def last_file_offset(self) -> int:
        """Start of the last file, where an empty slave starts."""
        return self.log_end - self.log_end % self.file_bytes

    @property
    def push_bytes(self) -> int:
        """Bytes sent to one slave in a turn, before other actors run."""
        return min(PUSH_BYTES, PUSH_ALL_BYTES // max(1, len(self._links)))

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of the commit log without a copy. Raises OffsetError."""
        return self._log.view(offset, size)

    def cold(self, start: int, end: int) -> Sequence[ColdPart]:
        """Return the parts of these bytes that are cold."""
        return self._probe.cold_records([(start, end)])

    # --- calls of the links

    def accepted(self, link: SlaveLink, asked: int, begins: int) -> None:
        """Note that a slave follows from `begins` on."""
        self._refused.pop(link.host, None)
        if not asked:
            self._replicas.skipped_below = max(self._replicas.skipped_below, begins)
        if self._may_tell(link):
            log.info("slave connected", slave=link.remote, asked_for=asked, begins_at=begins)

    def refused(self, link: SlaveLink, reason: str) -> None:
        """Log a refusal once, as the slave retries every few seconds; close the link."""
        if self._refused.get(link.host) != reason and self._may_tell(link):
            if link.host not in self._refused and len(self._refused) >= REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[link.host] = reason
            log.error("slave refused", slave=link.remote, reason=reason)
        link.close()
        self._forget(link)

    def ended(self, link: SlaveLink, reason: str) -> None:
        """Log and forget a slave that has disconnected."""
        if link.host not in self._refused and self._may_tell(link):
            log.info(
                "slave disconnected",
                slave=link.remote,
                acked=link.acked_offset,
                reason=reason,
            )
        self._forget(link)

    def acked(self, offset: int) -> None:
        """Publish that a slave has all bytes below `offset`."""
        if offset > self._replicas.acked_offset:
            self._replicas.acked_offset = offset
            if self._config.is_sync_master:
                self._group_commit.tell(Acked())

    def _may_tell(self, link: SlaveLink) -> bool:
        return self.system.rarely.may_tell("slave changes suppressed", address=link.host)

    def _forget(self, link: SlaveLink) -> None:
        if link in self._links:
            self._links.remove(link)
        self._replicas.link_count = len(self._links)

    # --- messages

    @handles(Accepted)
    def on_accepted(self, message: Accepted) -> None:
        """Create a link for a permitted slave, which sends the first bytes."""
        host = message.remote[0]
        if not self._followers.may_follow(host):
            message.sock.close()
            return
        if len(self._links) >= LINKS_MAX:
            message.sock.close()
            self.system.rarely.warn("slave limit reached", address=host, most=LINKS_MAX)
            return
        link = SlaveLink(self, message.sock, message.remote)
        self._links.append(link)
        self._replicas.link_count = len(self._links)

    @handles(LogGrew)
    def on_log_grew(self, _: LogGrew) -> None:
        """Send the new bytes to every slave."""
        self._push_all()

    @handles(GoOn)
    def on_go_on(self, message: GoOn) -> None:
        message.link.went_on()

    @handles(ColdReadForSlave)
    def on_warm(self, message: ColdReadForSlave) -> None:
        """Continue after a cold read."""
        message.link.warm()

    @handles(Unreadable)
    def on_unreadable(self, message: Unreadable) -> None:
        """Disconnect a slave after a failed cold read."""
        message.link.end(f"its next bytes cannot be read: {message.reason}")

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Send heartbeats and disconnect silent or no longer permitted slaves."""
        now_ms = self.system.clock.monotonic_ms()
        if now_ms - self._believed_ms >= BELIEVED_MS:
            self._believed_ms = now_ms
            self._probe.forget()
        config = self._config
        for link in list(self._links):
            if not self._followers.may_stay(link.host):
                link.end("its account or address is no longer permitted")
                continue
            link.look_at_clock(
                now_ms, config.ha_heartbeat_interval_ms, config.ha_housekeeping_interval_ms
            )

    def _push_all(self) -> None:
        for link in list(self._links):
            link.push()

    # --- stop

    def can_stop(self) -> bool:
        """Return whether all slaves have everything, or STOP_MS have passed."""
        now_ms = self.system.clock.monotonic_ms()
        if self._stop_ms is None:
            self._stop_ms = now_ms + STOP_MS
            self._push_all()
        return now_ms >= self._stop_ms or all(link.has_all for link in self._links)

    def on_stop(self) -> None:
        self._close_all()

    def on_failure(self, *_: object) -> None:
        """Disconnect the slaves, which reconnect."""
        self._close_all()

    def _close_all(self) -> None:
        links, self._links = self._links, []
        for link in links:
            link.close()
        self._replicas.link_count = 0
