"""Tests of actors/network/dial.py: one timeout for a whole handshake."""

from pathlib import Path
from socket import create_server, socket
from types import SimpleNamespace

from actors.network.dial import Dialler
from actors.network.messages import Dial
from tests.support.certificates import Certificates
from tests.support.peers import Told

HOST = "127.0.0.1"


class Dribbling:
    """A clock that advances by a second at each look, while the server sends one byte more."""

    def __init__(self, listener: socket) -> None:
        self._listener = listener
        self._accepted: list[socket] = []
        self.sent_bytes = 0
        self._now_ms = 0.0

    def monotonic_ms(self) -> float:
        if not self._accepted:
            self._accepted.append(self._listener.accept()[0])
        self._accepted[0].send(b"\x16\3\3\x40\0\2"[self.sent_bytes : self.sent_bytes + 1])
        self.sent_bytes += 1
        self._now_ms += 1000
        return self._now_ms

    def close(self) -> None:
        for each in self._accepted:
            each.close()


def test_a_peer_that_sends_single_bytes_is_abandoned_after_the_timeout(tmp_path: Path) -> None:
    told, calls = Told("slave"), Certificates(tmp_path).calls()
    with create_server((HOST, 0)) as listener:
        clock = Dribbling(listener)
        dialler = Dialler(lambda: calls)
        dialler.system = SimpleNamespace(clock=clock)
        dialler.on_dial(Dial(f"{HOST}:{listener.getsockname()[1]}", told.address))
        clock.close()
    (dialed,) = told.take()
    assert dialed.sock is None and dialed.failure == "no TLS handshake in 3 s"
    assert clock.sent_bytes == 4, "one when it began, and one a second"
