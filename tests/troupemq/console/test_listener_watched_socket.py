"""The console's sockets: which records of TLS they let through, however these are cut."""

from collections.abc import Iterator
from socket import SO_SNDBUF, SOL_SOCKET, socket, socketpair

import pytest

from remoting.tls_socket import HANDSHAKE_BYTES_MAX
from troupemq.console.listener import FED_BYTES, SHORT_RECORDS_MAX, WatchedSocket

ROOM = bytearray(2 * FED_BYTES)
DATA, HANDSHAKE, NEW_CIPHER, ALERT = 23, 22, 20, 21


def record(kind: int, size: int) -> bytes:
    return bytes([kind]) + b"\3\3" + size.to_bytes(2) + bytes(size)


SHAKEN = record(HANDSHAKE, 500) + record(NEW_CIPHER, 1) + record(HANDSHAKE, 40)


@pytest.fixture
def ends() -> Iterator[tuple[WatchedSocket, socket]]:
    near, far = socketpair()
    far.setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 20)
    with WatchedSocket(near) as watched, far:
        watched.setblocking(False)
        yield watched, far


def read(watched: WatchedSocket) -> bytes:
    """Return all available bytes."""
    found = b""
    while True:
        try:
            size = watched.recv_into(ROOM)
        except BlockingIOError:
            return found
        assert size <= FED_BYTES
        found += ROOM[:size]


@pytest.mark.parametrize("cut_bytes", [1, 3, 7, 1000, 100_000])
def test_records_of_browsers_are_accepted(
    ends: tuple[WatchedSocket, socket], cut_bytes: int
) -> None:
    watched, far = ends
    request = record(DATA, 700) + record(DATA, 30)
    stream = SHAKEN + request * 200 + record(DATA, 16_000) * 10 + record(ALERT, 19)
    found = bytearray()
    for at in range(0, len(stream), cut_bytes):
        far.sendall(stream[at : at + cut_bytes])
        found += read(watched)
    assert found == stream


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 200])
@pytest.mark.parametrize("before", [record(DATA, 1), record(DATA, 16_000) * 3])
def test_a_second_handshake_is_refused(
    ends: tuple[WatchedSocket, socket], before: bytes, cut: int
) -> None:
    watched, far = ends
    stream = SHAKEN + before + record(HANDSHAKE, 16_000)
    at = len(stream) - 16_005 + cut
    with pytest.raises(OSError, match="second TLS handshake"):
        for part in (stream[:at], stream[at:]):
            far.sendall(part)
            read(watched)


def test_a_handshake_has_a_size_limit(ends: tuple[WatchedSocket, socket]) -> None:
    watched, far = ends
    far.sendall(SHAKEN + record(HANDSHAKE, HANDSHAKE_BYTES_MAX - len(SHAKEN) - 5))
    read(watched)
    far.sendall(record(HANDSHAKE, 1))
    with pytest.raises(OSError, match="TLS handshake exceeds"):
        read(watched)


def test_endless_key_updates_end_the_connection(ends: tuple[WatchedSocket, socket]) -> None:
    watched, far = ends
    far.sendall(SHAKEN + record(DATA, 22) * SHORT_RECORDS_MAX)
    read(watched)
    far.sendall(record(DATA, 22))
    with pytest.raises(OSError, match="short TLS records"):
        read(watched)
