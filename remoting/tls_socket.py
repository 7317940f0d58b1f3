"""A TLS connection that does not block, with the calls of a plain socket.

OpenSSL sees two buffers, whose bytes this class moves from and to the socket. One system call reads
all received records, where OpenSSL itself would make two calls for each.  Where a plain socket
would block, BlockingIOError is raised.  All that was read is decrypted at once, so that the
selector knows of all received data. Encrypted bytes that the socket did not accept are kept, and
count as sent once they are written.

A record costs 1 µs without a byte in it, and a change of keys 14: So less is read in one call if
records are short, and many empty ones end the connection. Not thread-safe.
"""

from collections.abc import Sequence
from contextlib import suppress
from socket import SHUT_RD, socket
from ssl import MemoryBIO, SSLContext, SSLWantReadError, SSLWantWriteError
from typing import Any

Buffer = bytes | memoryview

RECORD_BYTES = 16 << 10
"""Maximum content of a record."""

READ_BYTES_MAX = 256 << 10
"""Maximum bytes of one read from the socket; then others have a turn."""

FED_BYTES = 32 << 10
"""Bytes given to OpenSSL at a time; more if nearly all of them were data."""

RECORDS_MAX = 512
"""Maximum records of one read, but for the last FED_BYTES: half a millisecond."""

FEW_BYTES = 3 << 10
SHORT_BYTES = 64
"""Average length below which records cost more than their content."""
LEAST_BYTES = 512
"""Bytes below which the work of a read is negligible."""
SHORT_READS = 16
"""Reads behind one of short records that are treated alike."""

PART_RECORDS = 64
"""Records given to OpenSSL at a time if their bytes exceed FED_BYTES."""

EMPTY_RECORDS_MAX = 32
"""Maximum empty records, and one more per KiB of data: tickets, and new keys after many GiB."""

HANDSHAKE_BYTES_MAX = 16 << 10
"""Maximum bytes of a client before the end of its handshake; a certificate has 1 to 4 KiB."""
SERVER_HANDSHAKE_BYTES_MAX = 128 << 10
"""Maximum bytes of a server's handshake; OpenSSL accepts 100 KiB of certificates."""
HANDSHAKE_RECORDS_MAX = 128
"""Maximum records of a handshake on either side; they may have one byte each."""
FINISHED_BYTES_MAX = 64
"""Maximum last record of a TLS 1.2 handshake, which has 40 bytes.

Any more of it would be processed by the first read, on the loop.
"""

PIECE_BYTES = 64 << 10
"""Bytes encrypted before the socket is tried."""

_HEAD_BYTES = 5
_HANDSHAKE = 22
"""Record type of handshakes, refused after the handshake.

Such a record may hold 4,096 messages, each of which costs OpenSSL 4 µs and an answer. TLS 1.3 shows
another type by then, and in TLS 1.2 no client renegotiates.
"""
_KEPT_ANSWERS_MAX = 64 << 10
"""Maximum kept bytes of OpenSSL's own answers (new keys) to a peer that does not read."""


class _Scratch:
    """Reusable buffers of one read; mapping and unmapping them each time takes 10 µs."""

    def __init__(self) -> None:
        self.bytes = bytearray(FED_BYTES)
        self.taken = memoryview(self.bytes)
        self.given = memoryview(bytearray(READ_BYTES_MAX + 2 * RECORD_BYTES))


_spare: list[_Scratch] = []
"""Spare buffers, at most one per reading thread."""


class TlsSocket:
    """Non-blocking TLS connection with a socket's calls."""

    __slots__ = (
        "_cipher",
        "_empty_records",
        "_head",
        "_incoming",
        "_is_over",
        "_kept_bytes",
        "_outgoing",
        "_record_bytes",
        "_record_left",
        "_shaken_bytes_max",
        "_shaken_records",
        "_socket",
        "_tls",
        "shaken_bytes",
        "short_reads",
    )

    def __init__(
        self, sock: socket, context: SSLContext, *, server_hostname: str | None = None
    ) -> None:
        """Wrap `sock`. `server_hostname` is the server's name; None: this side is the server.

        Raises ValueError for a name that no certificate can have.
        """
        self._socket = sock
        self._incoming, self._outgoing = MemoryBIO(), MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._cipher: Buffer = b""
        """Encrypted bytes that are not yet written."""
        self._kept_bytes = 0
        """Plain bytes of `_cipher`, which the caller offers again."""
        self._is_over = False
        self._head = b""
        """Incomplete head of a record."""
        self._record_left = 0
        """Missing bytes of an incomplete record."""
        self._record_bytes = 0
        """Bytes of the handshake's last record."""
        self._empty_records = 0
        self._shaken_records = 0
        self._shaken_bytes_max = (
            HANDSHAKE_BYTES_MAX if server_hostname is None else SERVER_HANDSHAKE_BYTES_MAX
        )
        self.short_reads = 0
        """Above 0 if reads may take a millisecond however little they return."""
        self.shaken_bytes = 0
        """Bytes received for the handshake."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._socket.setblocking(is_blocking)

    # --- the handshake

    def do_handshake(self) -> None:
        """Continue the handshake without blocking.

        Raises SSLWantReadError or SSLWantWriteError where it must wait, and OSError.
        """
        while True:
            try:
                self._push()
            except BlockingIOError:
                raise SSLWantWriteError from None
            try:
                self._tls.do_handshake()
            except SSLWantReadError:
                if not self._outgoing.pending:
                    self._take_of_record()
            except OSError:
                with suppress(OSError):
                    self._push()  # raises the reason
                raise
            else:
                if not self._outgoing.pending:
                    break
        if self._record_bytes > FINISHED_BYTES_MAX and self._tls.version() == "TLSv1.2":
            raise OSError("more behind the end of a handshake")

    def _take_of_record(self) -> None:
        """Read at most one record, since data behind the last one is not the handshake's."""
        wanted = self._record_left or _HEAD_BYTES - len(self._head)
        try:
            data = self._socket.recv(wanted)
        except BlockingIOError:
            raise SSLWantReadError from None
        if not data:
            self._incoming.write_eof()
            return
        self.shaken_bytes += len(data)
        self._incoming.write(data)
        if self._record_left:
            self._record_left -= len(data)
            return
        self._head += data
        if len(self._head) == _HEAD_BYTES:
            self._record_left = self._record_bytes = int.from_bytes(self._head[3:])
            self._head = b""
            self._note_shaken()

    def _note_shaken(self) -> None:
        """Count the start of a handshake record."""
        self._shaken_records += 1
        if self.shaken_bytes + self._record_left > self._shaken_bytes_max:
            raise OSError(f"more than {self._shaken_bytes_max} bytes, and not over")
        if self._shaken_records > HANDSHAKE_RECORDS_MAX:
            raise OSError(f"more than {HANDSHAKE_RECORDS_MAX} records, and not over")

    # --- in

    def recv(self, size_bytes: int) -> bytes:
        """Return received data, at most `size_bytes` and a record; empty at the end.

        Raises BlockingIOError, OSError.
        """
        if self._is_over:
            return b""
        if self.short_reads:
            self.short_reads -= 1
        try:
            scratch = _spare.pop()
        except IndexError:
            scratch = _Scratch()
        try:
            data = self._read(scratch, min(size_bytes, READ_BYTES_MAX))
        finally:
            _spare.append(scratch)
        if self._outgoing.pending:
            self._answer()
        if self._empty_records:
            self._empty_records = max(0, self._empty_records - (len(data) >> 10))
        if not data and not self._is_over:
            raise BlockingIOError
        return data

    def _read(self, scratch: _Scratch, size_bytes: int) -> bytes:
        """Read; go beyond FED_BYTES only if nearly all of it is data."""
        wanted = min(size_bytes, FED_BYTES)
        size = self._socket.recv_into(scratch.taken, wanted)
        if 0 < size <= FEW_BYTES and not self._record_left and not self._head:
            return self._few(scratch, size)
        found = records = 0
        while size:
            before = found
            found, more = self._decrypted(scratch, size, found)
            records += more
            size_bytes -= size
            is_poor = records >= RECORDS_MAX or 2 * (found - before) < size
            if size < wanted or not size_bytes or is_poor or self._is_over:
                break
            wanted = min(size_bytes, FED_BYTES)
            try:
                size = self._socket.recv_into(scratch.taken, wanted)
            except OSError:
                break  # no more data, or an error that the next read raises
        else:
            self._is_over = True
        return bytes(scratch.given[:found])

    def _few(self, scratch: _Scratch, size: int) -> bytes:
        """Decrypt bytes that begin with a record, usually all of them; return the plain bytes."""
        taken = scratch.bytes
        at = begun = 0
        while at < size and taken[at] != _HANDSHAKE:
            at += _HEAD_BYTES + (taken[at + 3] << 8) + taken[at + 4]
            begun += 1
        if at != size:
            at = begun = 0
            while at < size:
                at, more = self._part(taken, at, size)
                begun += more
        self._incoming.write(scratch.taken[:size])
        found, with_data = self._drained(scratch.given, 0)
        if begun != with_data or size < SHORT_BYTES * begun:
            self._note(size, begun, with_data)
        return bytes(scratch.given[:found])

    def _decrypted(self, scratch: _Scratch, size: int, found: int) -> tuple[int, int]:
        """Decrypt these bytes; return the plain bytes and the number of records with data."""
        at = records = 0
        while at < size and not self._is_over:
            at, begun = self._part(scratch.bytes, begin := at, size)
            self._incoming.write(scratch.taken[begin:at])
            found, with_data = self._drained(scratch.given, found)
            self._note(at - begin, begun, with_data)
            records += with_data
        return found, records

    def _drained(self, given: memoryview, found: int) -> tuple[int, int]:
        """Read all that OpenSSL has decrypted; return the plain bytes and the number of records."""
        incoming = self._incoming
        read: Any = self._tls.read  # its buffer need not be a bytearray
        with_data = 0
        try:
            while incoming.pending:
                count = read(RECORD_BYTES, given[found:])
                if not count:
                    self._end()
                    break
                found += count
                with_data += 1
        except SSLWantReadError:
            pass  # a record is incomplete, or the last one was empty
        return found, with_data

    def _part(self, taken: bytearray, at: int, size: int) -> tuple[int, int]:
        """Return the end of at most PART_RECORDS records, and how many begin there.

        Raises OSError for a handshake record.
        """
        begun = 0
        if self._head:
            head = self._head + taken[at : min(at + _HEAD_BYTES - len(self._head), size)]
            if len(head) < _HEAD_BYTES:
                self._head = head
                return size, 0
            at += _HEAD_BYTES - len(self._head) + int.from_bytes(head[3:])
            self._head, begun = b"", 1
        at += self._record_left
        last = size - _HEAD_BYTES
        while at <= last and begun < PART_RECORDS and taken[at] != _HANDSHAKE:
            at += _HEAD_BYTES + (taken[at + 3] << 8) + taken[at + 4]
            begun += 1
        if at >= size:
            self._record_left = at - size
            return size, begun
        self._record_left = 0
        if taken[at] == _HANDSHAKE:
            raise OSError("it begins a handshake in TLS")
        if begun == PART_RECORDS:
            return at, begun
        self._head = bytes(taken[at:size])
        return size, begun

    def _note(self, size: int, begun: int, with_data: int) -> None:
        """Count the records that began in these bytes, one of which may be incomplete."""
        if size > LEAST_BYTES and size < SHORT_BYTES * begun:
            self.short_reads = SHORT_READS
        if begun != with_data:
            self._empty_records = max(0, self._empty_records + begun - with_data)
            if self._empty_records > EMPTY_RECORDS_MAX:
                raise OSError("it sends records without data")

    def _end(self) -> None:
        """Handle the peer's end of data."""
        self._is_over = True
        with suppress(OSError):
            self._socket.shutdown(SHUT_RD)  # so that the selector reports it, too

    def _answer(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # the next read reports the end
            self._push()
        if len(self._cipher) - self._kept_bytes > _KEPT_ANSWERS_MAX:
            raise OSError("it asks for new keys and does not read")

    # --- out

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Send; return the number of accepted bytes. The caller offers the rest again, first.

        Raises BlockingIOError if none were accepted, OSError.
        """
        taken = skipped = self._kept_bytes
        if self._cipher:
            self._push()
        self._kept_bytes = 0
        outgoing, write = self._outgoing, self._tls.write
        for piece in _pieces(buffers, skipped):
            size = len(piece)
            if size <= RECORD_BYTES:
                write(piece)
                records = [outgoing.read()]
            else:
                records = []
                view = memoryview(piece)  # a part of bytes would be a copy
                for at in range(0, size, RECORD_BYTES):
                    write(view[at : at + RECORD_BYTES])
                    records.append(outgoing.read())
            try:
                sent = self._socket.sendmsg(records)
            except BlockingIOError:
                sent = 0
            if sent < sum(map(len, records)):
                self._cipher, self._kept_bytes = b"".join(records)[sent:], size
                if not taken:
                    raise BlockingIOError
                break
            taken += size
        return taken

    def send(self, data: bytes) -> int:
        """Send a small piece whole, or raise BlockingIOError.

        An unsent piece is written before the next one.
        """
        self._push()
        self._tls.write(data)
        self._push()
        return len(data)

    def _push(self) -> None:
        """Write the encrypted bytes. Raises BlockingIOError if some are left."""
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._cipher = b"".join((self._cipher, more)) if self._cipher else more
        while self._cipher:
            sent = self._socket.send(self._cipher)
            self._cipher = memoryview(self._cipher)[sent:]
        self._cipher = b""

    def close(self) -> None:
        """Close without notifying the peer, which may not be reading."""
        self._socket.close()


def _pieces(buffers: Sequence[Buffer], skipped: int) -> list[Buffer]:
    """Return these bytes without the first ones, in pieces; small ones are joined."""
    pieces: list[Buffer] = []
    small: list[Buffer] = []
    small_bytes = 0
    for buffer in buffers:
        size = len(buffer)
        if skipped >= size:
            skipped -= size
            continue
        rest = memoryview(buffer)[skipped:] if skipped else buffer
        skipped = 0
        if small and small_bytes + len(rest) > PIECE_BYTES:
            pieces.append(small[0] if len(small) == 1 else b"".join(small))
            small, small_bytes = [], 0
        if len(rest) >= PIECE_BYTES:
            view = memoryview(rest)
            pieces += [view[at : at + PIECE_BYTES] for at in range(0, len(rest), PIECE_BYTES)]
        elif rest:
            small.append(rest)
            small_bytes += len(rest)
    if small:
        pieces.append(small[0] if len(small) == 1 else b"".join(small))
    return pieces
