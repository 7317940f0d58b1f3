"""One slave, as its master sees it: its socket, where it is, and what goes to it next.

A plain class; HaMaster owns one for each slave.  What the socket does not take at once is copied,
so that nothing of a deleted file is held by a slow slave.

Source: store/ha/HAConnection.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from select import EPOLLIN, EPOLLOUT
from socket import socket
from typing import Protocol

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.pulling.messages import ReadCold
from protocol.ha import ReportBuffer, encode_transfer_head
from protocol.host import host_port
from remoting.tls import reason_of_tls
from remoting.tls_socket import TlsSocket
from storage.errors import OffsetError
from storage.reading.page_probe import ColdPart

RECEIVE_BYTES = 64 << 10
PUSH_BYTES = 1 << 20
"""Given to one slave at a time, before anybody else on the loop has a turn."""


@dataclass(slots=True)
class GoOn:
    """Told to HaMaster by itself: this slave may have more."""

    link: "SlaveLink"


@dataclass(slots=True)
class ColdReadForSlave:
    """What this slave gets next is in memory now."""

    link: "SlaveLink"
    master: ActorAddress

    def refuse(self, remark: str) -> None:
        """It cannot be read from the disk."""
        self.master.tell(Unreadable(self.link, remark))


@dataclass(slots=True)
class Unreadable:
    """What this slave needs next cannot be read."""

    link: "SlaveLink"
    reason: str


class Master(Protocol):
    """HaMaster, as a link to a slave uses it."""

    system: System
    address: ActorAddress
    cold_read: ActorAddress
    batch_bytes: int
    file_bytes: int

    @property
    def log_begin(self) -> int:
        """The first byte that is still there."""

    @property
    def log_end(self) -> int:
        """No slave can have more."""

    @property
    def transfer_end(self) -> int:
        """How far slaves may have the log."""

    @property
    def last_file_offset(self) -> int:
        """Where a slave that has nothing begins."""

    def view(self, offset: int, size: int) -> memoryview:
        """Bytes of the log, uncopied. Raises OffsetError."""

    def cold(self, start: int, end: int) -> Sequence[ColdPart]:
        """What of these bytes is not in memory."""

    def accepted(self, link: "SlaveLink", asked: int, begins: int) -> None:
        """A slave has said from where on."""

    def refused(self, link: "SlaveLink", reason: str) -> None:
        """A slave cannot follow this log."""

    def ended(self, link: "SlaveLink", reason: str) -> None:
        """A slave is gone."""

    def acked(self, offset: int) -> None:
        """A slave has the log up to here."""


class SlaveLink:
    """Called by the loop when the socket is ready, and by HaMaster when there is more."""

    def __init__(self, master: Master, sock: socket | TlsSocket, remote: tuple[str, int]) -> None:
        self.host = remote[0]
        self.remote = host_port(remote[0], remote[1])
        self.acked_offset = -1
        """What the slave has reported; -1: nothing yet."""
        self._master = master
        self._socket = sock
        self._reports = ReportBuffer()
        self._next = -1
        self._left = b""
        self._warming = False
        self._is_warm = False
        self._asked_to_go_on = False
        self._watched = 0
        self.is_open = True
        now_ms = master.system.clock.monotonic_ms()
        self._read_ms = self._written_ms = now_ms
        self._watch()

    @property
    def heard_ms(self) -> float:
        """When the slave last said something; monotonic."""
        return self._read_ms

    @property
    def has_all(self) -> bool:
        """Whether the slave has reported everything there is for it."""
        return self.acked_offset >= self._master.transfer_end

    # --- what the slave says

    def on_readable(self) -> None:
        """Takes the slave's newest report."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(f"read failed: {reason_of_tls(error)}")
            return
        if not data:
            self.end("closed by the slave")
            return
        self._read_ms = self._master.system.clock.monotonic_ms()
        offset = self._reports.receive(data)
        if offset is None:
            return
        if self._next < 0:
            self._begin(offset)
        elif offset > self._master.log_end:
            self.end(f"it says it has {offset}, but the log ends at {self._master.log_end}")
        elif offset > self._next:
            self.end(f"it says it has {offset}, but was given the log up to {self._next}")
        else:
            self._acked(offset)

    def _begin(self, offset: int) -> None:
        """The first report says from where on; 0 from a slave that has nothing."""
        begin, end = self._master.log_begin, self._master.log_end
        if offset < 0 or offset > end:
            self._refuse(
                end,
                f"it asks for {offset}, but the log ends at {end}: its log is longer than ours, and"
                " nothing is transferred; see docs/operations.md (A slave is ahead)",
            )
        elif 0 < offset < begin:
            self._refuse(
                begin,
                f"it asks for {offset}, but the log begins at {begin}: what it lacks is deleted,"
                " and nothing is transferred; empty its store, and it starts at our last file",
            )
        else:
            self._next = offset or self._master.last_file_offset
            self._master.accepted(self, offset, self._next)
            self._acked(offset)
            self.push()

    def _refuse(self, told: int, reason: str) -> None:
        """Says with the only frame there is where the log really is, and hangs up."""
        self._left = encode_transfer_head(told, 0)
        self._send_left()
        self._master.refused(self, reason)

    def _acked(self, offset: int) -> None:
        if offset > self.acked_offset:
            self.acked_offset = offset
            self._master.acked(offset)

    # --- what goes to the slave

    def push(self) -> None:
        """Sends what there is, up to what the socket takes or one turn of the loop allows."""
        sent_bytes = 0
        while self.is_open and self._next >= 0 and not self._warming:
            if self._left and not self._send_left():
                break
            size = self._next_size()
            if not size:
                break
            if sent_bytes >= PUSH_BYTES:
                self._go_on_later()
                break
            if not self._is_warm and self._asked_for_cold(size):
                break
            self._is_warm = False
            try:
                view = self._master.view(self._next, size)
            except OffsetError:
                self._fell_behind()
                return
            self._send((encode_transfer_head(self._next, size), view))
            self._next += size
            sent_bytes += size
            if self._next == self._master.transfer_end:
                break
        if self.is_open:
            self._watch()

    def _next_size(self) -> int:
        """How much of the log the next transfer has; it stays in one file."""
        master = self._master
        if self._next < master.log_begin:
            self._fell_behind()
            return 0
        in_file = master.file_bytes - self._next % master.file_bytes
        return max(0, min(master.batch_bytes, in_file, master.transfer_end - self._next))

    def _fell_behind(self) -> None:
        begin = self._master.log_begin
        self._refuse(
            begin,
            f"it is at {self._next}, but the log begins at {begin} by now: what it lacks is"
            " deleted; empty its store, and it starts at our last file",
        )

    def _asked_for_cold(self, size: int) -> bool:
        """Has what is not in memory read first, by a thread."""
        cold = self._master.cold(self._next, self._next + size)
        if cold:
            self._warming = True
            address = self._master.address
            self._master.cold_read.tell(ReadCold(cold, ColdReadForSlave(self, address), address))
        return bool(cold)

    def warm(self) -> None:
        """What comes next was in memory a moment ago; it is taken as it is."""
        self._warming, self._is_warm = False, True
        self.push()

    def went_on(self) -> None:
        """The turn that `GoOn` asked for."""
        self._asked_to_go_on = False
        self.push()

    def _go_on_later(self) -> None:
        if not self._asked_to_go_on:
            self._asked_to_go_on = True
            self._master.address.tell(GoOn(self))

    def on_writable(self) -> None:
        """The slave takes more."""
        if self._left and not self._send_left():
            return
        self.push()

    def _send_left(self) -> bool:
        """Sends what the socket did not take before; whether all of it is gone."""
        left, self._left = self._left, b""
        self._send((left,))
        return not self._left and self.is_open

    def _send(self, buffers: Sequence[bytes | memoryview]) -> None:
        try:
            sent = self._socket.sendmsg(buffers)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.end(f"write failed: {reason_of_tls(error)}")
            return
        if sent:
            self._written_ms = self._master.system.clock.monotonic_ms()
        if sent < sum(map(len, buffers)):
            self._left = b"".join(buffers)[sent:]

    # --- time

    def look_at_clock(self, now_ms: float, heartbeat_ms: float, housekeeping_ms: float) -> None:
        """Sends a sign of life to a slave that gets nothing, gives up one that says nothing."""
        if now_ms - self._read_ms > housekeeping_ms:
            self.end(f"silent for {round(now_ms - self._read_ms)} ms")
            return
        self.push()
        silent_ms = now_ms - self._written_ms
        if self._next >= 0 and silent_ms > heartbeat_ms and not self._left and self.is_open:
            self._send((encode_transfer_head(self._next, 0),))
            self._watch()

    def _watch(self) -> None:
        events = EPOLLIN | (EPOLLOUT if self._left else 0)
        if self.is_open and events != self._watched:
            self._master.system.loop.watch(self._socket, events, self, owner=self._master)
            self._watched = events

    def end(self, reason: str) -> None:
        """Closes the socket; the slave comes again."""
        if not self.is_open:
            return
        self.close()
        self._master.ended(self, reason)

    def close(self) -> None:
        """Gives the socket back."""
        if self.is_open:
            self.is_open = False
            self._master.system.loop.unwatch(self._socket)
            self._socket.close()
