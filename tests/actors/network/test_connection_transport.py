"""Tests of Transport in actors/network/connection.py: sent buffers, unsent buffers, copies."""

from collections.abc import Sequence
from socket import socketpair
from typing import Any

import pytest

from actors.network import connection as module
from actors.network.connection import (
    BUFFERS_PER_SEND,
    JOINED_BYTES_MAX,
    KEPT_BYTES_MAX,
    SEND_BYTES,
    TlsTransport,
    Transport,
)
from actors.network.messages import Buffer
from protocol.frame import RESPONSE_FLAG, RemotingCommand
from tests.support.brokers import SimulatedBroker, pull_command
from tests.support.runtimes import end_views
from tests.support.sockets import connection_of, paired_lines

ALL = 1 << 40


class Peer:
    """A socket that takes so many bytes in a call, and in the next, and then no more."""

    def __init__(self, *takes: int) -> None:
        self.takes = [*takes]
        self.offered: list[list[Buffer]] = []

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        if not self.takes:
            raise BlockingIOError
        self.offered.append([*buffers])
        return min(self.takes.pop(0), sum(map(len, buffers)))


def transport_to(peer: Peer, *buffers: Buffer, kind: type[Transport] = Transport) -> Transport:
    sock: Any = peer
    transport = kind(sock)
    transport.queue(buffers)
    return transport


def offered(*buffers: Buffer) -> list[Buffer]:
    """Return the buffers of the first call."""
    peer = Peer(ALL, ALL)
    transport_to(peer, *buffers).flush()
    return peer.offered[0]


# --- out


def test_small_buffers_are_joined_and_large_ones_sent_unchanged() -> None:
    small, large = b"ab", memoryview(bytes(JOINED_BYTES_MAX))
    assert offered(small, memoryview(b"cd"), small) == [b"abcdab"]
    assert [each is large for each in offered(large, large)] == [True, True]
    assert [len(each) for each in offered(small, large, large)] == [2 + 2 * JOINED_BYTES_MAX]


def test_one_buffer_is_not_copied() -> None:
    view = memoryview(b"abc")
    assert offered(view)[0] is view


def test_no_call_offers_too_many_buffers_or_too_many_bytes() -> None:
    large = memoryview(bytes(JOINED_BYTES_MAX))
    many = Peer(ALL, ALL)
    transport_to(many, *[large] * (BUFFERS_PER_SEND + 3)).flush()
    assert [len(call) for call in many.offered] == [BUFFERS_PER_SEND, 3]
    half = bytes(SEND_BYTES // 2 + 1)
    long = Peer(ALL, ALL)
    transport_to(long, half, half, half).flush()
    assert [len(call) for call in long.offered] == [2, 1]


def test_unsent_bytes_are_copied_and_sent_first() -> None:
    first, second = memoryview(b"ab" * JOINED_BYTES_MAX), memoryview(b"cd" * JOINED_BYTES_MAX)
    peer = Peer(len(first) + 1)
    transport = transport_to(peer, first, second)
    assert transport.flush() == len(first) + 1
    assert transport.unsent_bytes == len(second) - 1
    transport.queue([b"later"])
    peer.takes = [ALL]
    assert transport.flush() == len(second) + 4
    assert peer.offered[1] == [second[1:], b"later"]
    assert type(peer.offered[1][0]) is bytes
    assert transport.unsent_bytes == 0


def test_buffers_not_yet_offered_to_the_socket_are_not_copied() -> None:
    views = [memoryview(bytes(JOINED_BYTES_MAX)) for _ in range(BUFFERS_PER_SEND + 1)]
    peer = Peer(1)
    transport = transport_to(peer, *views)
    transport.flush()
    peer.takes = [ALL, ALL]
    transport.flush()
    assert peer.offered[2][0] is views[-1]
    assert peer.offered[1][1] is not views[1]


def test_bytes_waiting_for_the_peer_are_not_copied_again() -> None:
    """The bytes may be in a file, and only the kernel may meet an error of the disk."""
    peer = Peer(0)
    transport = transport_to(peer, b"a")
    transport.flush()
    views = [memoryview(b"ab"), memoryview(b"cd")]
    transport.queue(views)
    peer.takes = [ALL]
    transport.flush()
    assert peer.offered[1][1] is views[0]
    assert peer.offered[1][2] is views[1]
    transport.queue(views)
    peer.takes = [ALL]
    transport.flush()
    assert peer.offered[2] == [b"abcd"]


def test_only_views_of_a_deleted_file_are_copied() -> None:
    file, other = bytearray(b"0123456789"), bytearray(b"abc")
    transport = transport_to(peer := Peer(), memoryview(file)[:4], b"x", memoryview(other))
    transport.queue([memoryview(file)[4:]])
    assert transport.copy_out(file, 9) == 10
    with pytest.raises(BufferError):
        file.append(0)  # nothing was copied: that would have been too much
    assert transport.copy_out(file, 10) == 10
    end_views()
    file.clear()
    with pytest.raises(BufferError):
        other.clear()
    assert transport.copy_out(file, 10) == 0
    peer.takes = [ALL]
    assert transport.flush() == 14
    assert peer.offered == [[b"0123xabc456789"]]


# --- through TLS


class Like(type):
    def __instancecheck__(cls, found: object) -> bool:
        return isinstance(found, bytes)


class Copied(bytes, metaclass=Like):
    """Stands for bytes, and counts what is made bytes of."""

    pieces = total_bytes = 0

    def __new__(cls, buffer: Buffer) -> bytes:  # type: ignore[misc]
        Copied.pieces += 1
        Copied.total_bytes += len(buffer)
        return bytes.__new__(bytes, buffer)

    @classmethod
    def since(cls) -> tuple[int, int]:
        found = cls.pieces, cls.total_bytes
        cls.pieces = cls.total_bytes = 0
        return found


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> type[Copied]:
    monkeypatch.setattr(module, "bytes", Copied, raising=False)
    Copied.since()
    return Copied


def test_bytes_waiting_for_a_tls_peer_are_copied_once(
    copied: type[Copied],
) -> None:
    answer, count = memoryview(b"a" * 100), 40_000
    peer = Peer(1000)
    transport = transport_to(peer, *[answer] * count, kind=TlsTransport)
    transport.flush()
    pieces, total_bytes = copied.since()
    assert pieces >= count - BUFFERS_PER_SEND and total_bytes <= 100 * count + KEPT_BYTES_MAX
    for _ in range(20):
        peer.takes = [1050]
        assert transport.flush() == 1050
        assert copied.since()[0] <= BUFFERS_PER_SEND, "what was offered, not what waits"
    assert transport.unsent_bytes == 100 * count - 1000 - 20 * 1050


def test_bytes_waiting_for_a_tls_peer_are_not_file_views() -> None:
    """The disk may fail before the bytes are sent, which would end this process."""
    file = bytearray(b"0123456789" * KEPT_BYTES_MAX)
    views = [memoryview(file)[at : at + (1 << 20)] for at in range(0, len(file), 1 << 20)]
    transport = transport_to(peer := Peer(5), *views, kind=TlsTransport)
    transport.flush()
    transport.queue([memoryview(file)[:3], b"x"])
    del views, peer.offered[:]
    wanted = bytes(file[5:] + file[:3]) + b"x"
    end_views()
    file.clear()  # a later read of it would raise BufferError
    peer.takes = [ALL] * 10
    transport.flush()
    assert b"".join(bytes(buffer) for call in peer.offered for buffer in call) == wanted


@pytest.mark.parametrize("kind", [Transport, TlsTransport])
def test_the_rest_of_a_long_answer_is_copied_only_when_it_halves(
    kind: type[Transport], copied: type[Copied]
) -> None:
    size = 8 << 20
    long = bytes(size)
    transport = transport_to(peer := Peer(1), long, kind=kind)
    transport.flush()
    copied.since()
    copied_bytes, kept = 0, []
    while transport.unsent_bytes > KEPT_BYTES_MAX:
        peer.takes = [64 << 10]
        transport.flush()
        copied_bytes += copied.since()[1]
        whole = memoryview(peer.offered[-1][0]).obj
        assert isinstance(whole, bytes)
        kept.append(len(whole) / (transport.unsent_bytes + (64 << 10)))
    assert copied_bytes <= 2 * size
    assert max(kept) <= 2.1, "what has gone is let go of"


# --- in, and the end


def test_no_data_yet_is_distinguished_from_the_end_of_the_stream() -> None:
    near, far = socketpair()
    with near, far:
        far.setblocking(False)
        transport = Transport(far)
        assert transport.receive() is None
        near.sendall(b"abc")
        assert transport.receive() == b"abc"
        near.close()
        assert transport.receive() == b""


def test_a_closed_transport_releases_its_buffers() -> None:
    near, far = socketpair()
    with near:
        far.setblocking(False)
        transport = Transport(far)
        file = bytearray(10)
        transport.queue([memoryview(file)])
        transport.close()
        assert (transport.unsent_bytes, far.fileno()) == (0, -1)
        end_views()
        file.clear()


def test_a_blocked_socket_is_not_written_until_it_is_writable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SimulatedBroker(4)
    made.make_topic()
    for _ in range(8):
        made.send(bytes(6_000))
    with paired_lines(made, lines=1) as (line,):
        connection = connection_of(made.system, line)
        while not connection.unsent_bytes:
            line.send(pull_command())
        offered: list[int] = []
        flush = Transport.flush

        def counting(transport: Transport) -> int:
            offered.append(transport.unsent_bytes)
            return flush(transport)

        monkeypatch.setattr(Transport, "flush", counting)
        for opaque in range(70, 78):
            connection.send(RemotingCommand(0, opaque=opaque, flag=RESPONSE_FLAG))
            made.system.drain()
        assert offered == []
        assert [answer.opaque for answer in line.receive_now()][-8:] == [*range(70, 78)]
        assert offered
        assert connection.unsent_bytes == 0
