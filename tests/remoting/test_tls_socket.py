"""Tests of remoting/tls_socket.py: what is offered arrives once and in order, whatever blocks."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from select import select
from socket import SO_RCVBUF, SO_SNDBUF, SOL_SOCKET, socketpair
from ssl import MemoryBIO, SSLError, SSLSocket, SSLWantReadError
from threading import Thread

import pytest

from remoting.tls import server_context
from remoting.tls_socket import PIECE_BYTES, READ_BYTES_MAX, RECORD_BYTES, TlsSocket
from tests.support.actors import new_seed
from tests.support.certificates import Certificates

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


def test_nothing_there_is_no_end(pair: tuple[TlsSocket, SSLSocket]) -> None:
    server, client = pair
    with pytest.raises(BlockingIOError):
        server.recv(1 << 18)
    client.sendall(b"asked")
    assert server.recv(1 << 18) == b"asked"
    client.close()
    assert server.recv(1 << 18) == b""
    assert server.recv(1 << 18) == b"", "said as often as it is asked"


def test_several_records_come_with_one_read(pair: tuple[TlsSocket, SSLSocket]) -> None:
    server, client = pair
    for number in range(10):
        client.sendall(bytes([number]) * 10)
    assert server.recv(1 << 18) == b"".join(bytes([number]) * 10 for number in range(10))


def test_one_read_leaves_nothing_in_openssl_that_the_selector_does_not_know_of(
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


def test_a_buffer_that_does_not_go_is_offered_again_and_arrives_once(
    pair: tuple[TlsSocket, SSLSocket],
) -> None:
    """As `Transport` does: what was not taken comes again, as a copy, perhaps with more behind."""
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
            if taking.ident is None:  # nobody reads before the buffers between them are full
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


def test_a_report_that_does_not_go_goes_before_the_next_one(
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


def test_what_comes_right_behind_the_handshake_waits_for_the_first_read(tmp_path: Path) -> None:
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


def test_an_end_that_the_peer_announces_is_told_by_the_selector_too(
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
