"""A TLS connection that does not block, with the calls of a plain socket.

OpenSSL sees two buffers, and this class carries their bytes from and to the socket: one system call
takes as many records as have come, where OpenSSL itself would make two for each.  Where a plain
socket would block, BlockingIOError is raised.  All that was read is decrypted at once, so nothing
stays behind that the selector does not know of; what was encrypted and did not go is kept, and
counts as taken once it has gone.

A record costs 1 µs without a byte in it, and a change of keys 14: of records with little in them
less is read in one call, and who sends many with nothing in them is given up.

For one thread at a time.
"""

from collections.abc import Sequence
from contextlib import suppress
from socket import SHUT_RD, socket
from ssl import MemoryBIO, SSLContext, SSLWantReadError, SSLWantWriteError
from typing import Any

Buffer = bytes | memoryview

RECORD_BYTES = 16 << 10
"""The most that a record holds."""

READ_BYTES_MAX = 256 << 10
"""Taken from the socket in one call; then others have a turn."""

FED_BYTES = 32 << 10
"""Taken and given to OpenSSL at a time; more in the same call if nearly all of it was data."""

RECORDS_MAX = 512
"""Read in one call, but for the last FED_BYTES: half a millisecond."""

FEW_BYTES = 3 << 10
SHORT_BYTES = 64
"""Records that are shorter on average cost more than what is in them."""
LEAST_BYTES = 512
"""Less is no work."""
SHORT_READS = 16
"""So many reads behind one of such records are looked at as if they were of them."""

PART_RECORDS = 64
"""Records of more bytes are counted before OpenSSL has them, and it has so many at a time."""

EMPTY_RECORDS_MAX = 32
"""Without a byte of data, and one more for each KiB of data: tickets, new keys after many GiB."""

HANDSHAKE_BYTES_MAX = 16 << 10
"""What a client may send before its handshake is over: a certificate has some 1 to 4 KiB."""
SERVER_HANDSHAKE_BYTES_MAX = 128 << 10
"""The same of a server; OpenSSL takes 100 KiB of certificates."""
HANDSHAKE_RECORDS_MAX = 128
"""Of either. They may be of one byte each."""
FINISHED_BYTES_MAX = 64
"""The last record of a handshake by TLS 1.2; it takes 40. What else is in it the first read would
have to work through, on a thread that serves others."""

PIECE_BYTES = 64 << 10
"""Encrypted before the socket is asked whether it takes any of it."""

_HEAD_BYTES = 5
_HANDSHAKE = 22
"""The type that a record's head begins with. It may hold 4,096 messages, each of which costs
OpenSSL 4 µs and an answer. Behind the handshake nobody needs it: TLS 1.3 shows another type from
then on, and in TLS 1.2 nobody handshakes again."""
_KEPT_ANSWERS_MAX = 64 << 10
"""Of what OpenSSL has to say by itself (new keys) to a peer that does not read."""


class _Scratch:
    """Room for what one read takes and gives, lent for that long: bytes of that size would be
    mapped and unmapped every time, which is 10 µs."""

    def __init__(self) -> None:
        self.bytes = bytearray(FED_BYTES)
        self.taken = memoryview(self.bytes)
        self.given = memoryview(bytearray(READ_BYTES_MAX + 2 * RECORD_BYTES))


_spare: list[_Scratch] = []
"""As many as there were reads at the same time, which is one for each thread that reads."""


class TlsSocket:
    """What a connection reads from and writes to in place of a socket."""

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
        """`server_hostname`: the server that is called; None: this side is the server.

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
        """Encrypted, and not gone yet."""
        self._kept_bytes = 0
        """What of it is offered again, before it was encrypted."""
        self._is_over = False
        self._head = b""
        """Of a record of which less has come."""
        self._record_left = 0
        """Of one that has begun."""
        self._record_bytes = 0
        """Of the last one of the handshake."""
        self._empty_records = 0
        self._shaken_records = 0
        self._shaken_bytes_max = (
            HANDSHAKE_BYTES_MAX if server_hostname is None else SERVER_HANDSHAKE_BYTES_MAX
        )
        self.short_reads = 0
        """More than 0: what it brings may take a millisecond, however little that is."""
        self.shaken_bytes = 0
        """What has come for the handshake."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._socket.setblocking(is_blocking)

    # --- the handshake

    def do_handshake(self) -> None:
        """Goes on with it, as far as it goes without waiting.

        Raises SSLWantReadError, SSLWantWriteError where it has to wait; OSError.
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
                    self._push()  # why not
                raise
            else:
                if not self._outgoing.pending:
                    break
        if self._record_bytes > FINISHED_BYTES_MAX and self._tls.version() == "TLSv1.2":
            raise OSError("more behind the end of a handshake")

    def _take_of_record(self) -> None:
        """Never more than a record: what is behind the last one is not the handshake's."""
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
        """Of a record that begins."""
        self._shaken_records += 1
        if self.shaken_bytes + self._record_left > self._shaken_bytes_max:
            raise OSError(f"more than {self._shaken_bytes_max} bytes, and not over")
        if self._shaken_records > HANDSHAKE_RECORDS_MAX:
            raise OSError(f"more than {HANDSHAKE_RECORDS_MAX} records, and not over")

    # --- in

    def recv(self, size_bytes: int) -> bytes:
        """What has come, `size_bytes` and a record at most; nothing: the end.

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
        """More than FED_BYTES only of what is nearly all data."""
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
                break  # nothing more has come, or the next read says what it is
        else:
            self._is_over = True
        return bytes(scratch.given[:found])

    def _few(self, scratch: _Scratch, size: int) -> bytes:
        """What is found with these bytes, which begin with a record: nearly always the whole."""
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
        """How much is found with these bytes, and how many records had any of it."""
        at = records = 0
        while at < size and not self._is_over:
            at, begun = self._part(scratch.bytes, begin := at, size)
            self._incoming.write(scratch.taken[begin:at])
            found, with_data = self._drained(scratch.given, found)
            self._note(at - begin, begun, with_data)
            records += with_data
        return found, records

    def _drained(self, given: memoryview, found: int) -> tuple[int, int]:
        """How much is found once OpenSSL has told all it can, and in how many records."""
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
            pass  # the rest of a record has not come, or the last was empty
        return found, with_data

    def _part(self, taken: bytearray, at: int, size: int) -> tuple[int, int]:
        """The end of the next PART_RECORDS at most, and how many of them begin in it.

        Raises OSError where one of them is a handshake's.
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
        """So many records began in these bytes, one of which may not be whole yet."""
        if size > LEAST_BYTES and size < SHORT_BYTES * begun:
            self.short_reads = SHORT_READS
        if begun != with_data:
            self._empty_records = max(0, self._empty_records + begun - with_data)
            if self._empty_records > EMPTY_RECORDS_MAX:
                raise OSError("it sends records without data")

    def _end(self) -> None:
        """The peer has said that nothing more comes."""
        self._is_over = True
        with suppress(OSError):
            self._socket.shutdown(SHUT_RD)  # so that the selector says so, too

    def _answer(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # it is gone: the next read says so
            self._push()
        if len(self._cipher) - self._kept_bytes > _KEPT_ANSWERS_MAX:
            raise OSError("it asks for new keys and does not read")

    # --- out

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """How many of these bytes were taken; the rest is offered again, first.

        Raises BlockingIOError if none were, OSError.
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
        """Sends a small piece that is not offered again: all of it, or BlockingIOError.

        One that did not go is sent before the next one.
        """
        self._push()
        self._tls.write(data)
        self._push()
        return len(data)

    def _push(self) -> None:
        """Sends what is encrypted. Raises BlockingIOError if something is left of it."""
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._cipher = b"".join((self._cipher, more)) if self._cipher else more
        while self._cipher:
            sent = self._socket.send(self._cipher)
            self._cipher = memoryview(self._cipher)[sent:]
        self._cipher = b""

    def close(self) -> None:
        """Without a word to the peer, who may not read."""
        self._socket.close()


def _pieces(buffers: Sequence[Buffer], skipped: int) -> list[Buffer]:
    """These bytes but for the first ones, cut; small ones joined."""
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
