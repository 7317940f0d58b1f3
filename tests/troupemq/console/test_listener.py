"""The listening socket limits the number and the time of pending handshakes."""

from collections.abc import Iterator
from socket import AF_INET, create_connection, socket

import pytest

from troupemq.console import listener as module
from troupemq.console.listener import PatientListener


@pytest.fixture
def listener() -> Iterator[PatientListener]:
    with PatientListener.listening("127.0.0.1", 0) as made:
        made.settimeout(10)
        yield made


def dial(listener: PatientListener) -> socket:
    return create_connection(listener.getsockname(), 10)


def test_a_connection_past_the_handshake_timeout_is_closed(listener: PatientListener) -> None:
    now_s = [0.0]
    listener.clock = lambda: now_s[0]
    with dial(listener) as slow, dial(listener) as quick:
        first, _ = listener.accept()
        second, _ = listener.accept()
        with first, second:
            assert first.family == AF_INET
            of_quick = first if first.getpeername() == quick.getsockname() else second
            listener.begun(of_quick.fileno())
            listener.end_late()
            now_s[0] = module.HANDSHAKE_S + 1
            listener.end_late()
            assert slow.recv(1) == b""
            of_quick.sendall(b"x")
            assert quick.recv(1) == b"x"


def test_connections_over_the_limit_are_closed_until_slots_are_free(
    listener: PatientListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    with dial(listener), dial(listener), dial(listener) as third:
        held = [listener.accept()[0] for _ in range(2)]
        with pytest.raises(BlockingIOError):
            listener.accept()
        assert third.recv(1) == b""
        held[0].close()
        with dial(listener):
            listener.accept()[0].close()
        held[1].close()
