"""A master's connection to one slave: socket, position, next transfer.

A plain class, owned by HaMaster. Bytes that the socket does not accept are copied. Therefore a slow
slave does not hold a deleted file.

Source: store/ha/HAConnection.java.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from select import EPOLLIN, EPOLLOUT
from socket import socket
from typing import Protocol

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.messages import Message
from actors.pulling.messages import ReadCold
from protocol.ha import ReportBuffer, encode_transfer_head
from protocol.host import host_port
from remoting.tls import reason_of_tls
from remoting.tls_socket import TlsSocket
from storage.errors import OffsetError
from storage.reading.page_probe import ColdPart

RECEIVE_BYTES = 64 << 10


@dataclass(slots=True)
class GoOn:
    """Continue with this slave; HaMaster sends it to itself."""

    link: "SlaveLink"


@dataclass(slots=True)
class ColdReadForSlave(Message):
    """The slave's next bytes are in the page cache now; ColdRead returns it to HaMaster."""

    link: "SlaveLink"
    master: ActorAddress

    def on_undelivered(self, remark: str) -> None:
        """Report that the disk cannot be read."""
        self.master.tell(Unreadable(self.link, remark))


@dataclass(slots=True)
class Unreadable:
    """The slave's next bytes cannot be read; to HaMaster."""

    link: "SlaveLink"
    reason: str


class Master(Protocol):
    """The part of HaMaster that a SlaveLink uses."""

    system: System
    address: ActorAddress
    cold_read: ActorAddress
    batch_bytes: int
    file_bytes: int

    @property
    def push_bytes(self) -> int:
        """Bytes sent to one slave in a turn, before other actors run."""

    @property
    def log_begin(self) -> int:
        """Min offset of the commit log."""

    @property
    def log_end(self) -> int:
        """Max offset of the commit log."""

    @property
    def transfer_end(self) -> int:
        """End of the bytes that slaves may have."""

    @property
    def last_file_offset(self) -> int:
        """Start of the last file, where an empty slave starts."""

    def view(self, offset: int, size: int) -> memoryview:
        """Return bytes of the commit log without a copy. Raises OffsetError."""

    def cold(self, start: int, end: int) -> Sequence[ColdPart]:
        """Return the parts of these bytes that are cold."""

    def accepted(self, link: "SlaveLink", asked: int, begins: int) -> None:
        """Note that a slave follows from `begins` on."""

    def refused(self, link: "SlaveLink", reason: str) -> None:
        """Log a refusal and close the link."""

    def ended(self, link: "SlaveLink", reason: str) -> None:
        """Note that a slave has disconnected."""

    def acked(self, offset: int) -> None:
        """Note that a slave has all bytes below `offset`."""


class SlaveLink:
    """Connection to one slave; the loop calls it for its socket, HaMaster for new bytes."""

    def __init__(self, master: Master, sock: socket | TlsSocket, remote: tuple[str, int]) -> None:
        self.host = remote[0]
        self.remote = host_port(remote[0], remote[1])
        self.acked_offset = -1
        """Last reported offset; -1 before the first report."""
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
        """Monotonic time of the slave's last report."""
        return self._read_ms

    @property
    def has_all(self) -> bool:
        """Whether the slave has reported all transferable bytes."""
        return self.acked_offset >= self._master.transfer_end

    # --- reports of the slave

    def on_readable(self) -> None:
        """Process the slave's newest report."""
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
            self.end(f"reported offset {offset} exceeds the log's end {self._master.log_end}")
        elif offset > self._next:
            self.end(f"reported offset {offset} exceeds the end of transfers {self._next}")
        else:
            self._acked(offset)

    def _begin(self, offset: int) -> None:
        """Start at the offset of the first report; an empty slave reports 0."""
        begin, end = self._master.log_begin, self._master.log_end
        if offset < 0 or offset > end:
            self._refuse(
                end,
                f"requested offset {offset} exceeds the log's end {end}: the slave's log is longer,"
                " nothing is transferred; see docs/operations.md (A slave is ahead)",
            )
        elif 0 < offset < begin:
            self._refuse(
                begin,
                f"requested offset {offset} is deleted, the log begins at {begin}: empty the"
                " slave's store, and it starts at the master's last file",
            )
        else:
            self._next = offset or self._master.last_file_offset
            self._master.accepted(self, offset, self._next)
            self._acked(offset)
            self.push()

    def _refuse(self, told: int, reason: str) -> None:
        """Send an empty transfer at offset `told`, the only possible answer, and disconnect."""
        self._left = encode_transfer_head(told, 0)
        self._send_left()
        self._master.refused(self, reason)

    def _acked(self, offset: int) -> None:
        if offset > self.acked_offset:
            self.acked_offset = offset
            self._master.acked(offset)

    # --- transfers to the slave

    def push(self) -> None:
        """Send new bytes, as many as the socket and one turn of the loop allow."""
        sent_bytes = 0
        while self.is_open and self._next >= 0 and not self._warming:
            if self._left and not self._send_left():
                break
            size = self._next_size()
            if not size:
                break
            if sent_bytes >= self._master.push_bytes:
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
        """Return the size of the next transfer, which does not cross a file's end."""
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
            f"next offset {self._next} is deleted, the log begins at {begin}: empty the slave's"
            " store, and it starts at the master's last file",
        )

    def _asked_for_cold(self, size: int) -> bool:
        """Request cold bytes from ColdRead; return whether there are any."""
        cold = self._master.cold(self._next, self._next + size)
        if cold:
            self._warming = True
            address = self._master.address
            self._master.cold_read.tell(ReadCold(cold, ColdReadForSlave(self, address), address))
        return bool(cold)

    def warm(self) -> None:
        """Continue after ColdRead, without another check."""
        self._warming, self._is_warm = False, True
        self.push()

    def went_on(self) -> None:
        """Continue in the turn that `GoOn` requested."""
        self._asked_to_go_on = False
        self.push()

    def _go_on_later(self) -> None:
        if not self._asked_to_go_on:
            self._asked_to_go_on = True
            self._master.address.tell(GoOn(self))

    def on_writable(self) -> None:
        """Continue once the socket accepts bytes."""
        if self._left and not self._send_left():
            return
        self.push()

    def _send_left(self) -> bool:
        """Send the copied rest; return whether all of it is sent."""
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
        """Send a heartbeat if nothing was sent, disconnect a silent slave."""
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
        """Close the link; the slave reconnects."""
        if not self.is_open:
            return
        self.close()
        self._master.ended(self, reason)

    def close(self) -> None:
        """Close the socket."""
        if self.is_open:
            self.is_open = False
            self._master.system.loop.unwatch(self._socket)
            self._socket.close()
