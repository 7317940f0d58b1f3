"""Tests of remoting/tls_socket.py: what is offered arrives once and in order, whatever blocks."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from select import select
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET, socket, socketpair
from ssl import MemoryBIO, SSLError, SSLSocket, SSLWantReadError
from threading import Thread

import pytest

from remoting.tls import server_context
from remoting.tls_socket import (
    EMPTY_RECORDS_MAX,
    FED_BYTES,
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_RECORDS_MAX,
    PART_RECORDS,
    PIECE_BYTES,
    READ_BYTES_MAX,
    RECORD_BYTES,
    SHORT_READS,
    TlsSocket,
)
from tests.support.actors import new_seed
from tests.support.certificates import Certificates
from tests.support.tls_records import CIPHER, OldRecords, Records, shaken_old, writes_keys

WAIT_S = 20.0
BUFFERED_BYTES = 4 << 20
"""More than the buffers between two sockets hold."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[TlsSocket, SSLSocket]]:
    """The server's end, which does not block, and a client's, which does."""
    made = Certificates(tmp_path)
    near, far = socketpair()
    for sock in (near, far):
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 64 << 10)
        sock.setsockopt(SOL_SOCKET, SO_RCVBUF, 64 << 10)
        sock.settimeout(WAIT_S)
    client: list[SSLSocket] = []
    shaking = Thread(
        target=lambda: client.append(made.calls().wrap_socket(far, server_hostname="127.0.0.1"))
    )
    shaking.start()
    server = TlsSocket(near, server_context(made.files()))
    server.do_handshake()
    shaking.join(WAIT_S)
    server.setblocking(False)
    yield server, client[0]
    server.close()
    client[0].close()


def take(client: SSLSocket, wanted: int) -> bytes:
    found = bytearray()
    while len(found) < wanted:
        data = client.recv(1 << 20)
        assert data, "closed too early"
        found += data
    return bytes(found)


def test_no_data_is_not_the_end_of_the_stream(pair: tuple[TlsSocket, SSLSocket]) -> None:
    server, client = pair
    with pytest.raises(BlockingIOError):
        server.recv(1 << 18)
    client.sendall(b"asked")
    assert server.recv(1 << 18) == b"asked"
    client.close()
    assert server.recv(1 << 18) == b""
    assert server.recv(1 << 18) == b"", "said as often as it is asked"


def test_one_read_returns_several_records(pair: tuple[TlsSocket, SSLSocket]) -> None:
    server, client = pair
    for number in range(10):
        client.sendall(bytes([number]) * 10)
    assert server.recv(1 << 18) == b"".join(bytes([number]) * 10 for number in range(10))


def test_one_read_leaves_no_bytes_hidden_in_openssl(
    pair: tuple[TlsSocket, SSLSocket],
) -> None:
    server, client = pair
    sent = Random(1).randbytes(READ_BYTES_MAX * 3)
    sending = Thread(target=client.sendall, args=(sent,))
    sending.start()
    found = b""
    while len(found) < len(sent):
        assert select([server], [], [], WAIT_S)[0], "readable as long as something is left"
        try:
            data = server.recv(100)
        except BlockingIOError:  # a record has come in part
            continue
        assert len(data) <= 100 + RECORD_BYTES, "little more than asked for"
        found += data
    sending.join(WAIT_S)
    assert found == sent


def test_a_refused_buffer_is_offered_again_and_arrives_once(
    pair: tuple[TlsSocket, SSLSocket],
) -> None:
    """`Transport` offers the rest of a buffer again, as a copy and perhaps with more data."""
    server, client = pair
    random = Random(seed := new_seed())
    print(f"TROUPEMQ_SEED={seed}")
    sizes = [random.choice((1, 300, 17_000, PIECE_BYTES, 200_000)) for _ in range(40)]
    buffers = [random.randbytes(size) for size in [*sizes, BUFFERED_BYTES]]
    wanted = b"".join(buffers)
    found: list[bytes] = []
    taking = Thread(target=lambda: found.append(take(client, len(wanted))))
    left: list[bytes | memoryview] = [memoryview(each) for each in buffers]
    while left:
        offered = left[: random.randint(1, len(left))] if taking.ident is None else left
        try:
            sent = server.sendmsg(offered)
        except BlockingIOError:
            sent = 0
            if taking.ident is None:  # the reader starts when the buffers are full
                taking.start()
            assert select([], [server], [], WAIT_S)[1]
        while sent:
            gone = min(sent, len(left[0]))
            left[0] = bytes(left[0][gone:])
            sent -= gone
            if not left[0]:
                del left[0]
    taking.join(WAIT_S)
    assert found == [wanted]


def test_an_unsent_report_is_sent_before_the_next_one(
    pair: tuple[TlsSocket, SSLSocket],
) -> None:
    server, client = pair
    sent = 0
    with pytest.raises(BlockingIOError):
        while True:
            server.send(sent.to_bytes(8, "big"))
            sent += 1
    found = b""
    while True:
        found += client.recv(8) + client.recv(8)  # room for the one that is kept, and the next
        sent += 1
        try:
            server.send(sent.to_bytes(8, "big"))
            break
        except BlockingIOError:  # kept: it goes before the next one
            continue
    found += take(client, 8 * (sent + 1) - len(found))
    numbers = [int.from_bytes(found[at : at + 8], "big") for at in range(0, len(found), 8)]
    assert numbers == [*range(sent + 1)]


def test_bytes_after_the_handshake_are_returned_by_the_first_read(tmp_path: Path) -> None:
    """A client may send with the last bytes of its handshake: no event would tell of it later."""
    made = Certificates(tmp_path)
    near, far = socketpair()
    near.setblocking(False)
    server = TlsSocket(near, server_context(made.files()))
    incoming, outgoing = MemoryBIO(), MemoryBIO()
    client = made.calls().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    for _ in range(3):  # it begins with a key on another curve
        with suppress(SSLWantReadError):
            client.do_handshake()
            client.write(b"asked")
        far.sendall(outgoing.read())
        with suppress(SSLWantReadError):
            server.do_handshake()
        with suppress(BlockingIOError):
            far.setblocking(False)
            incoming.write(far.recv(1 << 16))
    assert select([server], [], [], 0)[0]
    assert server.recv(1 << 18) == b"asked"
    far.close()
    server.close()


def test_a_close_notify_makes_the_socket_readable(
    pair: tuple[TlsSocket, SSLSocket],
) -> None:
    server, client = pair
    with suppress(SSLError, OSError):
        client.settimeout(0.05)
        client.unwrap()
    assert select([server], [], [], WAIT_S)[0]
    assert server.recv(1 << 18) == b""
    assert select([server], [], [], 0)[0], "said as often as it is asked"
    assert server.recv(1 << 18) == b""


# --- records that bring little


class Fed:
    """Sees what OpenSSL gets."""

    def __init__(self, incoming: MemoryBIO) -> None:
        self.bytes = 0
        self._incoming = incoming

    def write(self, data: memoryview) -> int:
        self.bytes += len(data)
        return self._incoming.write(data)

    @property
    def pending(self) -> int:
        return self._incoming.pending


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[tuple[TlsSocket, Fed, socket, Records]]:
    """A server's end, what it gives OpenSSL, the other end, and what seals records for that."""
    made, keys = Certificates(tmp_path), tmp_path / "keys"
    near, far = socketpair()
    for sock in (near, far):
        sock.setblocking(False)
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
    server = TlsSocket(near, server_context(made.files()))
    incoming, outgoing = MemoryBIO(), MemoryBIO()
    context = writes_keys(made.calls(), keys)
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    for _ in range(3):
        with suppress(SSLWantReadError):
            client.do_handshake()
        far.sendall(outgoing.read())
        with suppress(SSLWantReadError):
            server.do_handshake()
        with suppress(BlockingIOError):
            incoming.write(far.recv(1 << 16))
    found = client.cipher()
    assert found is not None and found[0] == CIPHER
    fed = Fed(server._incoming)
    server._incoming = fed  # type: ignore[assignment]
    yield server, fed, far, Records(keys)
    server.close()
    far.close()


Sealed = tuple[TlsSocket, Fed, socket, Records]


@pytest.mark.parametrize("first", [b"", b"x", b"x" * 5000])
def test_a_flood_of_key_updates_ends_the_connection_after_a_millisecond(
    sealed: Sealed, first: bytes
) -> None:
    server, fed, far, records = sealed
    begins = records.data(first) if first else b""
    far.sendall(begins + b"".join(records.new_keys() for _ in range(2000)))
    with pytest.raises(OSError, match="records without data"):
        server.recv(1 << 18)
    new_keys = (fed.bytes - len(begins)) // 27
    assert new_keys <= max(EMPTY_RECORDS_MAX, PART_RECORDS)


def test_single_key_updates_end_the_connection(sealed: Sealed) -> None:
    server, _, far, records = sealed
    for _ in range(EMPTY_RECORDS_MAX):
        far.sendall(records.new_keys())
        with pytest.raises(BlockingIOError):
            server.recv(1 << 18)
    far.sendall(records.new_keys())
    with pytest.raises(OSError, match="records without data"):
        server.recv(1 << 18)


def test_key_updates_alternating_with_bytes_end_the_connection(sealed: Sealed) -> None:
    server, _, far, records = sealed
    far.sendall(b"".join(records.new_keys() + records.data(b"x") for _ in range(1000)))
    with pytest.raises(OSError, match="records without data"):
        server.recv(1 << 18)


def test_few_key_updates_at_a_time_are_counted(sealed: Sealed) -> None:
    server, _, far, records = sealed
    for _ in range(2):
        far.sendall(b"".join(records.new_keys() + records.data(b"x") for _ in range(16)))
        assert server.recv(1 << 18) == b"x" * 16
        assert server.short_reads == SHORT_READS
    far.sendall(b"".join(records.new_keys() + records.data(b"x") for _ in range(16)))
    with pytest.raises(OSError, match="records without data"):
        server.recv(1 << 18)


def test_a_few_short_records_are_accepted(sealed: Sealed) -> None:
    server, _, far, records = sealed
    for _ in range(100):
        far.sendall(b"".join(records.data(b"12345678") for _ in range(10)))
        assert server.recv(1 << 18) == b"12345678" * 10
    assert not server.short_reads


def test_occasional_key_updates_are_accepted(sealed: Sealed) -> None:
    server, _, far, records = sealed
    for _ in range(300):
        far.sendall(records.new_keys() + records.data(b"x" * 2048))
        assert server.recv(1 << 18) == b"x" * 2048
    for _ in range(20):
        far.sendall(b"".join(records.new_keys() + records.data(b"x" * 2048) for _ in range(10)))
        assert server.recv(1 << 18) == b"x" * 20_480


def test_one_read_takes_few_one_byte_records(
    sealed: Sealed,
) -> None:
    server, fed, far, records = sealed
    sent = Random(1).randbytes(9000)
    far.sendall(b"".join(records.data(sent[at : at + 1]) for at in range(len(sent))))
    found = b""
    while len(found) < len(sent):
        before = fed.bytes
        assert select([server], [], [], 0)[0]
        found += server.recv(1 << 18)
        assert fed.bytes - before <= FED_BYTES
        assert server.short_reads == SHORT_READS
    assert found == sent
    with pytest.raises(BlockingIOError):
        server.recv(1 << 18)
    for _ in range(SHORT_READS - 1):  # that one counts
        far.sendall(records.data(bytes(10_000)))
        assert server.short_reads and server.recv(1 << 18)
    assert not server.short_reads


def test_a_few_large_records_hide_no_flood(sealed: Sealed) -> None:
    server, fed, far, records = sealed
    large = b"".join(records.data(bytes(16_000)) for _ in range(5))
    far.sendall(large + b"".join(records.data(b"x") for _ in range(9000)))
    server.recv(1 << 18)
    assert fed.bytes <= len(large) + FED_BYTES


def test_a_split_record_does_not_count_as_empty(sealed: Sealed) -> None:
    server, _, far, records = sealed
    random = Random(seed := new_seed())
    print(f"TROUPEMQ_SEED={seed}")
    sizes = [random.choice((1, 30, 300, 4000, RECORD_BYTES)) for _ in range(300)]
    sent = [random.randbytes(size) for size in sizes]
    stream = b"".join(map(records.data, sent))
    found, at = b"", 0
    while at < len(stream):
        size = random.choice((1, 3, 5, 22, 700, 4000, 20_000, 100_000))
        far.sendall(stream[at : at + size])
        at += size
        while select([server], [], [], 0)[0]:
            with suppress(BlockingIOError):
                found += server.recv(1 << 18)
        assert server._empty_records <= 1, "one that is not whole yet"
    assert found == b"".join(sent)
    assert server._empty_records == 0


def test_key_updates_in_small_reads_are_counted_as_in_large_ones(sealed: Sealed) -> None:
    """18 of them and a byte are no more than 512 bytes; each time they took half a millisecond."""
    server, _, far, records = sealed
    far.sendall(b"".join(records.new_keys() for _ in range(18)) + records.data(b"x"))
    assert server.recv(1 << 18) == b"x"
    far.sendall(b"".join(records.new_keys() for _ in range(18)) + records.data(b"x"))
    with pytest.raises(OSError, match="records without data"):
        server.recv(1 << 18)


def test_small_reads_of_data_are_never_refused(sealed: Sealed) -> None:
    """Heartbeats and questions: one at a time, some at once, some cut."""
    server, _, far, records = sealed
    for number in range(1000):
        sent = [bytes([number % 256]) * size for size in (1, 20, 90)[: 1 + number % 3]]
        stream = b"".join(map(records.data, sent))
        cut = number % len(stream) if number % 5 == 0 else len(stream)
        found = b""
        for part in (stream[:cut], stream[cut:]):
            far.sendall(part)
            with suppress(BlockingIOError):
                found += server.recv(1 << 18)
        assert found == b"".join(sent)
        assert server._empty_records == 0


# --- a handshake behind the handshake

AGAIN = b"\x01\0\0\0"
"""A ClientHello with nothing in it."""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[tuple[TlsSocket, Fed, socket, OldRecords]]:
    """Return a TLS 1.2 record, like `sealed`."""
    made, keys = Certificates(tmp_path), tmp_path / "keys"
    near, far = socketpair()
    for sock in (near, far):
        sock.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
        sock.settimeout(WAIT_S)
    server = TlsSocket(near, server_context(made.files()))
    shaking = Thread(target=server.do_handshake)
    shaking.start()
    records = shaken_old(writes_keys(made.calls(), keys), far, keys)
    shaking.join(WAIT_S)
    near.setblocking(False)
    fed = Fed(server._incoming)
    server._incoming = fed  # type: ignore[assignment]
    yield server, fed, far, records
    server.close()
    far.close()


@pytest.mark.parametrize(
    "before", [(), (1,), (300,) * 5, (2000, 2000), (1,) * 500, (RECORD_BYTES,)]
)
@pytest.mark.parametrize("again", [1, 10, 4096])
def test_a_renegotiation_is_refused_before_openssl_sees_it(
    old: tuple[TlsSocket, Fed, socket, OldRecords], before: tuple[int, ...], again: int
) -> None:
    """A record holds 4,096 times the four bytes; each was answered, 20 ms in one read."""
    server, fed, far, records = old
    first = b"".join(records.data(bytes(size)) for size in before)
    far.sendall(first + records.of_handshake(AGAIN * again) + records.data(b"x"))
    with pytest.raises(OSError, match="begins a handshake"):
        while True:
            server.recv(1 << 18)
    assert fed.bytes <= len(first)
    far.setblocking(False)
    with pytest.raises(BlockingIOError):
        far.recv(1)


@pytest.mark.parametrize("cut", [*range(1, 7), -9, -1])
@pytest.mark.parametrize("before", [0, 300, 5000])
def test_a_renegotiation_is_detected_at_any_read_boundary(
    old: tuple[TlsSocket, Fed, socket, OldRecords], before: int, cut: int
) -> None:
    """`cut`: in its head, or in the data before it."""
    server, fed, far, records = old
    first = records.data(bytes(before)) if before else b""
    stream = first + records.of_handshake(AGAIN * 4096)
    at = max(0, len(first) + cut)
    with pytest.raises(OSError, match="begins a handshake"):
        for part in (stream[:at], stream[at:]):
            far.sendall(part)
            with suppress(BlockingIOError):
                server.recv(1 << 18)
    assert fed.bytes <= len(first)


def test_a_server_cannot_request_a_renegotiation(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    near, far = socketpair()
    near.settimeout(WAIT_S)
    far.settimeout(WAIT_S)
    client = TlsSocket(near, made.calls(), server_hostname="127.0.0.1")
    shaking = Thread(target=client.do_handshake)
    shaking.start()
    server = server_context(made.files()).wrap_socket(far, server_side=True)
    shaking.join(WAIT_S)
    near.setblocking(False)
    with socket(fileno=server.detach()) as plain:
        plain.sendall(b"\x16\3\3\x40\0" + bytes(RECORD_BYTES))
        with pytest.raises(OSError, match="begins a handshake"):
            client.recv(1 << 18)
    client.close()


@pytest.mark.parametrize("again", [100, 3800])
def test_the_last_handshake_record_contains_no_other(tmp_path: Path, again: int) -> None:
    """The first read worked through the records behind it, which took 29 ms."""
    made, keys = Certificates(tmp_path), tmp_path / "keys"
    near, far = socketpair()
    with near, far:
        near.settimeout(WAIT_S)
        far.settimeout(WAIT_S)
        server = TlsSocket(near, server_context(made.files()))
        said: list[str] = []

        def shake() -> None:
            with pytest.raises(OSError, match="behind the end") as error:
                server.do_handshake()
            said.append(str(error.value))

        shaking = Thread(target=shake)
        shaking.start()
        shaken_old(writes_keys(made.calls(), keys), far, keys, AGAIN * again)
        shaking.join(WAIT_S)
        assert said


# --- handshakes


def hello(part_bytes: int) -> bytes:
    """The beginning of a first message, in records of so many bytes."""
    text = b"\x01\x01\x80\x00" + bytes(120_000 if part_bytes > 1 else 30_000)
    parts = [text[at : at + part_bytes] for at in range(0, len(text), part_bytes)]
    return b"".join(b"\x16\3\1" + len(part).to_bytes(2) + part for part in parts)


@pytest.mark.parametrize("part_bytes", [1, 100, 16_000])
def test_a_handshake_step_reads_at_most_a_handshakes_bytes(tmp_path: Path, part_bytes: int) -> None:
    near, far = socketpair()
    with near, far:
        near.setblocking(False)
        far.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
        server = TlsSocket(near, server_context(Certificates(tmp_path).files()))
        far.settimeout(WAIT_S)
        far.sendall(sent := hello(part_bytes))
        with pytest.raises(OSError, match="and not over"):
            server.do_handshake()
        left = 0
        with suppress(BlockingIOError):
            while True:
                left += len(near.recv(1 << 18))
        taken = len(sent) - left
        assert taken == server.shaken_bytes <= HANDSHAKE_BYTES_MAX
        assert taken <= (HANDSHAKE_RECORDS_MAX + 1) * (part_bytes + 5)
