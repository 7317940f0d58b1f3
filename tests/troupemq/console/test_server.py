"""The server against peers that hang, dribble, do not read, or are many."""

from collections.abc import Callable, Iterator
from pathlib import Path
from socket import create_connection, socket

import pytest

from actors.network.connections import PortTaken
from tests.troupemq.console.conftest import GONE
from troupemq.console import server as module
from troupemq.console.asking import ConsoleSettings
from troupemq.console.server import ConsoleServer

WAIT_S = 30.0
Serve = Callable[[], ConsoleServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[ConsoleServer] = []

    def start() -> ConsoleServer:
        server = ConsoleServer(ConsoleSettings(tmp_path, GONE, port=0))
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        assert server.stop(WAIT_S)


def connect(server: ConsoleServer) -> socket:
    return create_connection(("127.0.0.1", server.port), WAIT_S)


def answer_of(peer: socket) -> bytes:
    """Everything up to the end of the connection; a reset is an end."""
    found = b""
    try:
        while data := peer.recv(65_536):
            found += data
    except ConnectionError:
        pass
    return found


def ask(server: ConsoleServer, path: str = "/login", head: str = "") -> bytes:
    with connect(server) as peer:
        text = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}\r\n"
        peer.sendall(text.encode())
        return answer_of(peer)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /login HTTP/1.1\r\nHost: local",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nname=",
    ],
)
def test_a_stalled_peer_is_closed_while_others_are_served(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.3)
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    server = serve()
    with connect(server) as peer:
        peer.sendall(begun)
        assert answer_of(peer) == b""
    monkeypatch.setattr(module, "HEAD_S", WAIT_S)
    monkeypatch.setattr(module, "ANSWER_S", WAIT_S)
    assert b" 200 OK" in ask(server)


def test_a_hanging_reader_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer requests more than both buffers hold, and reads nothing."""
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    monkeypatch.setattr(module, "HEAD_S", 0.5)
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    server = serve()
    with connect(server) as peer:
        request = b"GET /static/htmx.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with pytest.raises(OSError):
            while True:
                peer.sendall(request * 100)


def test_a_long_head_is_refused(serve: Serve) -> None:
    server = serve()
    assert b" 400 " in ask(server, head="X-Long: " + "x" * (1 << 20) + "\r\n")
    assert b" 400 " in ask(server, "/" + "x" * (1 << 20))
    assert b" 200 OK" in ask(server)


def test_connections_over_the_limit_get_an_explanation(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 5)
    server = serve()
    held = [connect(server) for _ in range(10)]
    assert b" 503 " in ask(server)
    for each in held:
        each.close()
    for _ in range(100):
        if b" 200 OK" in ask(server):
            break
    else:
        pytest.fail("no request was served afterwards")


@pytest.mark.parametrize(
    "rubbish",
    [b"\x16\x03\x01\x02\x00\x01", b"\x00" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 5000],
)
def test_invalid_http_ends_only_its_connection(serve: Serve, rubbish: bytes) -> None:
    server = serve()
    with connect(server) as peer:
        peer.sendall(rubbish)
        peer.shutdown(1)
        assert b" 200 " not in answer_of(peer)
    assert b" 200 OK" in ask(server)


def test_a_port_in_use_is_a_one_sentence_error(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    with pytest.raises(PortTaken, match=f"127.0.0.1:{server.port}"):
        ConsoleServer(ConsoleSettings(tmp_path, GONE, port=server.port))
