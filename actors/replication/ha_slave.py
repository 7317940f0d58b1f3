"""Slave's end of replication: receives the master's commit log and reports its own end.

Owns: the connection to the master's HA port.
Receives: MasterHaAddress from Registration; Dialed from the dialler; Replicated from PutReplica;
Synced from the flusher; AskFigures from MetricsPort; its own tick.
Sends: Dial to the dialler; AppendReplica to PutReplica; under SYNC_FLUSH Sync to the flusher, as
then only synced bytes are reported.

It requests its last record again, at least, and compares it with its own. Only a log that agrees
with the master's is continued. Otherwise nothing is written or deleted, one line is logged, and it
retries every few seconds (docs/decisions/0008). An empty log starts where the master says. Whether
the logs agree is published, as SlaveSync takes no tables from another master.

Source: store/ha/HAService.java (HAClient).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from select import EPOLLIN
from socket import socket

from actors.config import BrokerConfig
from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.naming.messages import MasterHaAddress
from actors.network.messages import Dial, Dialed
from actors.replication.messages import AppendReplica, Replicated
from actors.sending.messages import Sync, Synced
from actors.sending.replication_progress import FollowFigures
from protocol.errors import FrameError
from protocol.ha import Transfer, TransferBuffer, encode_report
from remoting.tls import reason_of_tls
from remoting.tls_socket import TlsSocket
from storage.log.commit_log import CommitLog
from storage.replica.replica_log import ReplicaLog

log = get_logger(__name__)

RECEIVE_BYTES = 128 << 10
IN_HAND_MAX = 64
"""Unwritten reads; beyond it the socket is not read."""

AGAIN_MS = 5000
"""Delay before another attempt to reach or follow the master."""
TICK_MS = 1000

_AHEAD = "the slave's is longer and waits; see docs/operations.md (A slave is ahead)"
_KEEPS = "nothing is written or deleted; see docs/operations.md (A slave is ahead)"


@dataclass(slots=True)
class _Tick:
    """Check heartbeats and timeouts."""


class HaSlave(Actor):
    """Actor on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        commit_log: CommitLog,
        replica: ReplicaLog,
        *,
        agrees: SnapshotRef[bool],
        addresses: Mapping[str, ActorAddress],
        why_behind: SnapshotRef[str] | None = None,
    ) -> None:
        """Create the actor.

        `agrees` publishes whether this log agrees with the master's, as far as known. `why_behind`
        publishes, for health, why it does not follow; empty while it does.
        """
        super().__init__()
        self._why_behind = why_behind or SnapshotRef("")
        self._config = config
        self._agrees = agrees
        self._log = commit_log
        self._replica = replica
        self._to = addresses
        self._master = config.ha_master_address
        self._socket: socket | TlsSocket | None = None
        self._transfers = TransferBuffer()
        self._dialled = ""
        """Address of the attempt under way."""
        self._again_at_ms = 0.0
        self._said = ""
        self._in_hand = 0
        self._watched = 0
        self._expected = self._overlap_end = 0
        self._begins_anywhere = self._follows = False
        self._reported = -1
        self._reported_ms = self._read_ms = 0.0
        self._is_sync_flush = commit_log.config.is_sync_flush
        self._syncing = False

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        message.reply(FollowFigures(self._socket is not None and self._follows))

    def on_start(self) -> None:
        config = self._config
        shortest_ms = min(config.ha_heartbeat_interval_ms, config.ha_housekeeping_interval_ms)
        self.every(min(TICK_MS, shortest_ms), _Tick())
        self._agrees.value = self._replica.is_empty  # an empty log has nothing to lose
        self._dial()

    # --- connection

    @handles(MasterHaAddress)
    def on_master_at(self, message: MasterHaAddress) -> None:
        """Connect to a master that the name server reports as new."""
        if self._config.ha_master_address or message.address == self._master:
            return
        log.info("master changed", address=message.address, before=self._master)
        self._master = message.address
        if self._socket is not None:
            self._end("the master has changed")
        self._again_at_ms = 0.0
        self._dial()

    def _dial(self) -> None:
        """Connect, but not before all bytes of the last connection are written."""
        now_ms = self.system.clock.monotonic_ms()
        busy = self._dialled or self._in_hand or self._socket is not None or self.stopping
        if self._master and not busy and now_ms >= self._again_at_ms:
            self._dialled = self._master
            self._to["ha_dial"].tell(Dial(self._master, self.address))

    @handles(Dialed)
    def on_dialed(self, message: Dialed) -> None:
        """Send the first report on the new connection, unless the master has changed meanwhile."""
        dialled, self._dialled = self._dialled, ""
        if dialled != self._master:
            if message.sock is not None:
                message.sock.close()
            self._dial()
            return
        if message.sock is None:
            self._say(f"cannot connect to the master at {self._master}: {message.failure}")
            self._again_later()
            return
        self._socket = message.sock
        self._transfers = TransferBuffer()
        self._read_ms = self.system.clock.monotonic_ms()
        self._watched = 0
        self._watch()
        self._begin()

    def _begin(self) -> None:
        """Request the log from an offset a little below its own end."""
        replica = self._replica
        self._overlap_end = replica.received_offset
        self._begins_anywhere = replica.is_empty
        start = replica.overlap_start(min(self._safe_end, self._overlap_end))
        # 0 would mean an empty log
        self._expected = 0 if replica.is_empty else max(start, 1)
        self._reported = -1
        self._follows = False
        self._report()

    def _again_later(self) -> None:
        self._again_at_ms = self.system.clock.monotonic_ms() + AGAIN_MS

    # --- transfers

    def on_readable(self) -> None:
        """Have the received bytes written."""
        assert self._socket is not None
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(f"read failed: {reason_of_tls(error)}")
            return
        if not data:
            self._end("closed by the master")
            return
        self._read_ms = self.system.clock.monotonic_ms()
        try:
            transfers = self._transfers.receive(data)
        except FrameError as error:
            self._refuse(f"invalid transfer from the master: {error.remark}")
            return
        self._take(transfers)

    def on_writable(self) -> None:
        """Do nothing: the loop never watches for it."""

    def _take(self, transfers: list[Transfer]) -> None:
        pieces: list[bytes] = []
        start = -1
        for offset, body in transfers:
            if self._begins_anywhere and (offset or body):
                self._begins_anywhere = False
                self._expected = self._overlap_end = start = offset
            if offset != self._expected:
                self._refuse(self._misfit(offset))
                return
            fresh = self._compared(offset, body)
            if fresh is None:
                return
            self._expected += len(body)
            if fresh:
                start = self._expected - len(fresh) if start < 0 else start
                pieces.append(fresh)
        if start >= 0:
            data = b"".join(pieces)
            for at in range(0, len(data), RECEIVE_BYTES):  # a transfer may have 4 MiB
                self._in_hand += 1
                part = data[at : at + RECEIVE_BYTES]
                self._to["put_message"].tell(AppendReplica(start + at, part, self.address))
            self._watch()
        if self._expected >= self._overlap_end:
            self._fits()
        self._report_if_grown()

    def _misfit(self, offset: int) -> str:
        """Return why a transfer does not continue this log."""
        mine = self._overlap_end if self._expected < self._overlap_end else self._expected
        if offset < self._expected:
            return f"log ends at {mine}, the master's at {offset}: the slave's is longer; {_KEEPS}"
        return (
            f"log ends at {mine}, the master's begins at {offset}: bytes between are deleted;"
            " empty this store, and the slave starts at the master's last file"
        )

    def _compared(self, offset: int, body: bytes) -> bytes | None:
        """Return the new bytes of a transfer; None if its known ones differ from this log."""
        if offset >= self._overlap_end:
            return body
        if not body:
            self._say(f"log ends at {self._overlap_end}, the master's at {offset}: {_AHEAD}")
            return body
        known = body[: self._overlap_end - offset]
        own = self._replica.read(offset, len(known))
        if known != own:
            apart = offset + same_bytes(known, own)
            self._refuse(
                f"log with end {self._overlap_end} differs from the master's at {apart}:"
                f" they have diverged, as after a power failure of the master; {_KEEPS}"
            )
            return None
        return body[len(known) :]

    def _fits(self) -> None:
        """Note that the logs agree."""
        if not self._follows:
            self._follows = self._agrees.value = True
            self._why_behind.value = ""
            self._said = ""
            log.info("replication started", master=self._master, at=self._expected)

    def _refuse(self, reason: str) -> None:
        """Disconnect from a master that cannot be followed; a later attempt may succeed."""
        self._say(reason)
        self._end("")

    def _say(self, reason: str) -> None:
        """Log and publish a reason once, not for each attempt."""
        self._why_behind.value = reason
        if reason != self._said:
            self._said = reason
            log.error("replication failed", master=self._master, reason=reason)

    def _end(self, reason: str) -> None:
        sock, self._socket = self._socket, None
        if sock is None:
            return
        if reason and not self._said:
            log.info("master connection closed", master=self._master, reason=reason)
        self._agrees.value = self._replica.is_empty
        self._why_behind.value = self._said or f"master connection closed: {reason}"
        self.system.loop.unwatch(sock)
        sock.close()
        self._again_later()

    def _watch(self) -> None:
        events = 0 if self._in_hand > IN_HAND_MAX else EPOLLIN
        if self._socket is not None and (events != self._watched or not events):
            self.system.loop.watch(self._socket, events, self)
            self._watched = events

    # --- reports

    @handles(Replicated)
    def on_replicated(self, message: Replicated) -> None:
        """Report bytes that are in the log now."""
        self._in_hand = max(
            0, self._in_hand - message.count
        )  # may include messages from before a restart,
        if message.failure is not None:
            self._refuse(message.failure)
            return
        self._watch()
        self._sync()
        self._report_if_grown()

    def _sync(self) -> None:
        if self._is_sync_flush and not self._syncing:
            end = self._log.end_offset
            if end > self._log.flushed_offset:
                self._syncing = True
                self._to["flusher"].tell(Sync(end, self.address))

    @handles(Synced)
    def on_synced(self, message: Synced) -> None:
        """Report synced bytes; after a failed sync none are reported again."""
        self._syncing = False
        if message.failure is None:
            self._report_if_grown()
            self._sync()

    @property
    def _safe_end(self) -> int:
        """End of the bytes as durable as this slave promises."""
        return self._log.flushed_offset if self._is_sync_flush else self._replica.received_offset

    def _report_if_grown(self) -> None:
        if self._socket is not None and self._ack > self._reported:
            self._report()

    @property
    def _ack(self) -> int:
        """Offset to report: no bytes that were not compared with the master's."""
        if self._begins_anywhere:
            return 0
        return min(max(self._safe_end, self._reported), self._expected)

    def _report(self) -> None:
        """Report the own end; the first report requests the log from an offset."""
        assert self._socket is not None
        offset = self._expected if self._reported < 0 else self._ack
        try:
            sent = self._socket.send(encode_report(offset))
        except BlockingIOError:
            return  # retry at the next tick: the master has not read earlier ones
        except OSError as error:
            self._end(f"write failed: {reason_of_tls(error)}")
            return
        if sent != len(encode_report(offset)):
            self._end("the master does not read")
            return
        self._reported = offset
        self._reported_ms = self.system.clock.monotonic_ms()

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Send a heartbeat, disconnect a silent master, or reconnect."""
        now_ms = self.system.clock.monotonic_ms()
        if self._socket is None:
            self._dial()
        elif now_ms - self._read_ms > self._config.ha_housekeeping_interval_ms and self._watched:
            self._end(f"silent for {round(now_ms - self._read_ms)} ms")
        elif now_ms - self._reported_ms > self._config.ha_heartbeat_interval_ms:
            self._report()

    def on_stop(self) -> None:
        self._end("this slave is stopping")

    def on_failure(self, *_: object) -> None:
        """Disconnect; the restarted actor begins again."""
        self._end("the slave failed")


def same_bytes(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    low, high = 0, len(one)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
