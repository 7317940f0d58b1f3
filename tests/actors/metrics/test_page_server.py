"""Tests of actors/metrics/page_server.py: silent clients, floods, TLS, regular clients."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EMFILE
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from shutil import copyfile
from socket import MSG_PEEK, create_connection, socket
from ssl import SSLContext, SSLSocket
from threading import Event, Thread

import pytest

from actors.metrics import page_server
from actors.metrics.page_server import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    HttpRequest,
    Page,
    PageAnswer,
    PageServer,
    PageTls,
)
from actors.network.connections import open_listener
from actors.network.tls_contexts import TlsContexts
from actors.settings.tls_settings import TlsSettings
from tests.compat.patience import wait_until
from tests.support.certificates import Certificates
from tests.support.tls_records import Records, writes_keys

HOST = "127.0.0.1"
WAIT_S = 30


def text_page(*parts: bytes) -> Page:
    return lambda _: PageAnswer(HTTPStatus.OK, b"".join(parts))


@contextmanager
def serving(page: Page, tls: PageTls | None = None) -> Iterator[PageServer]:
    server = PageServer(open_listener(HOST, 0, "test"), tls)
    server.add({"/page": page})
    try:
        yield server
    finally:
        server.close()


def got(connection: HTTPConnection) -> tuple[int, bytes]:
    try:
        connection.request("GET", "/page")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def get(port: int) -> tuple[int, bytes]:
    return got(HTTPConnection(HOST, port, timeout=WAIT_S))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:5557", "127.0.0.1.evil.example"])
def test_a_request_for_a_foreign_host_name_is_refused(host: str) -> None:
    """A page of a stranger read the metrics by a name of its own (DNS rebinding)."""
    with serving(text_page(b"own")) as server:
        connection = HTTPConnection(HOST, server.port, timeout=WAIT_S)
        connection.request("GET", "/page", headers={"Host": host})
        answer = connection.getresponse()
        assert answer.status == HTTPStatus.MISDIRECTED_REQUEST
        assert b"monitoringHosts" in answer.read()
        connection.close()
        assert get(server.port) == (HTTPStatus.OK, b"own")


def test_a_probe_that_names_no_host_is_answered() -> None:
    """Some load balancers send no Host header; a browser always does."""
    with serving(text_page(b"own")) as server, create_connection((HOST, server.port)) as sock:
        sock.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")


def is_closed(sock: socket) -> bool:
    """Wait until the other side closes; return whether no byte came."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:  # unread bytes
        return True


def test_pages_can_be_added_and_removed() -> None:
    with serving(text_page(b"a", b"b")) as server:
        assert get(server.port) == (200, b"ab")
        server.add({"/more": text_page(b"")})
        server.remove(["/page"])
        assert get(server.port) == (404, b"page not found; available: /more\n")


def test_a_silent_connection_is_closed_and_does_not_block_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_server, "HEAD_S", 0.3)
    with serving(text_page(b"x")) as server:
        hanging = [create_connection((HOST, server.port), WAIT_S) for _ in range(CONNECTIONS_MAX)]
        for each in hanging[::2]:
            with suppress(ConnectionError):  # its time may be over already
                each.sendall(b"GET /metrics HT")
        too_many = create_connection((HOST, server.port), WAIT_S)
        for each in (too_many, *hanging):
            assert is_closed(each), "at once or when its time is over"
            each.close()
        monkeypatch.setattr(page_server, "HEAD_S", 60.0)
        wait_until(lambda: _served(server.port), "there is room again")
        assert server.late_count > 0


def _served(port: int) -> bool:
    try:
        return get(port) == (200, b"x")
    except ConnectionError:
        return False


def test_concurrent_answers_are_limited_by_the_threads() -> None:
    let_go, asked = Event(), []

    def slow(_: HttpRequest) -> PageAnswer:
        asked.append(1)
        let_go.wait(WAIT_S)
        return PageAnswer(HTTPStatus.OK, b"x")

    with serving(slow) as server:
        waiting = [create_connection((HOST, server.port), WAIT_S) for _ in range(CONNECTIONS_MAX)]
        for sock in waiting:
            sock.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        with create_connection((HOST, server.port), WAIT_S) as one_more:
            assert is_closed(one_more)
        let_go.set()
        for sock in waiting:
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
            sock.close()
    assert len(asked) == CONNECTIONS_MAX


def test_a_peer_that_reads_nothing_is_closed_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = [b"x" * (1 << 20)] * 32
    size = 32 << 20
    with serving(text_page(*parts)) as server:
        lazy = create_connection((HOST, server.port), WAIT_S)
        lazy.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        assert lazy.recv(1, MSG_PEEK)  # from now on its time is the longer one
        status, body = get(server.port)
        assert status == 200 and len(body) == size
        monkeypatch.setattr(page_server, "SEND_S", 0.3)
        impatient = create_connection((HOST, server.port), WAIT_S)
        impatient.sendall(b"GET /page HTTP/1.1\r\n\r\n")
        wait_until(lambda: server.late_count == 1, "its time is over")
        assert received(impatient) < size, "what it did not take in time it does not get"
        assert received(lazy) > size, "its deadline had not passed"


def received(sock: socket) -> int:
    """Return the number of bytes until the other side closes."""
    count = 0
    with sock, suppress(ConnectionError):
        while data := sock.recv(1 << 20):
            count += len(data)
    return count


def test_invalid_requests_and_floods_are_refused() -> None:
    with serving(text_page(b"x")) as server:
        for data in (b"\x00\xff" * 100 + b"\r\n\r\n", b"A" * 100_000, b"GET / FTP\r\n\r\n"):
            with create_connection((HOST, server.port), WAIT_S) as sock:
                answer = b""
                try:
                    sock.sendall(data)
                    answer = sock.recv(100)
                except ConnectionError:
                    answer = b"HTTP/1.1 431 reset while it was flooding"
                refused = answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
                assert refused or (not answer and len(data) > HEAD_BYTES_MAX)
        assert get(server.port)[0] == 200


# --- TLS


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def tls_of(made: Certificates, *, takes_plain: bool) -> PageTls:
    files = made.files()
    settings = TlsSettings(tls_server_certificate=files.cert_path, tls_server_key=files.key_path)
    return PageTls(TlsContexts(settings), takes_plain=takes_plain)


def get_with_tls(port: int, context: SSLContext) -> tuple[int, bytes]:
    return got(HTTPSConnection(HOST, port, timeout=WAIT_S, context=context))


def shown(port: int, context: SSLContext) -> str:
    """The host that its certificate names."""
    with (
        create_connection((HOST, port), WAIT_S) as sock,
        context.wrap_socket(sock, server_hostname=HOST) as talking,
    ):
        found = talking.getpeercert()
        assert isinstance(talking, SSLSocket) and found is not None
        return str(found["subjectAltName"][0][1])


@pytest.mark.parametrize("takes_plain", [True, False])
def test_the_tls_mode_decides_about_encrypted_and_plain_pages(
    made: Certificates, takes_plain: bool
) -> None:
    with serving(text_page(b"x" * 300_000), tls_of(made, takes_plain=takes_plain)) as server:
        assert get_with_tls(server.port, made.calls()) == (200, b"x" * 300_000)
        if takes_plain:
            assert get(server.port)[0] == 200
        else:
            with pytest.raises(ConnectionError):
                get(server.port)
        with create_connection((HOST, server.port), WAIT_S) as sock:
            sock.sendall(b"\x16nonsense" * 10)
            sock.settimeout(WAIT_S)
            with suppress(ConnectionError):
                wait_until(lambda: not sock.recv(4096), "a failed handshake ends the connection")
        assert get_with_tls(server.port, made.calls())[0] == 200


def test_a_changed_certificate_is_used_without_a_restart(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "LOOK_S", 0.0)
    calls = made.calls()
    calls.check_hostname = False
    with serving(text_page(b"x"), tls_of(made, takes_plain=False)) as server:
        assert shown(server.port, calls) == HOST
        other = made.files("other", "192.0.2.7")
        copyfile(other.key_path, made.folder / "server.key")
        copyfile(other.cert_path, made.folder / "server.pem")
        os.utime(made.folder / "server.pem", (1, 1))  # it may have come within one tick
        assert shown(server.port, calls) == "192.0.2.7"


def test_an_unfinished_handshake_times_out(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "HEAD_S", 0.2)
    with (
        serving(text_page(b"x"), tls_of(made, takes_plain=False)) as server,
        create_connection((HOST, server.port), WAIT_S) as sock,
    ):
        sock.sendall(b"\x16\x03\x01\x02\x00\x01")
        assert is_closed(sock)
        wait_until(lambda: server.late_count == 1, "its time is over")


@pytest.mark.parametrize("data_bytes", [0, 10])
def test_empty_records_do_not_hold_a_slot(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_bytes: int
) -> None:
    """OpenSSL on a socket went on reading while new keys came, past any time that was set."""
    monkeypatch.setattr(page_server, "HEAD_S", 0.5)
    keys = tmp_path / "keys"
    context = writes_keys(made.calls(), keys)
    with serving(text_page(b"x"), tls_of(made, takes_plain=False)) as server:
        shaken = context.wrap_socket(create_connection((HOST, server.port)), server_hostname=HOST)
        with socket(fileno=shaken.detach()) as flood:
            flood.settimeout(WAIT_S)
            records, sent = Records(keys), 0
            with pytest.raises(ConnectionError):
                while sent < 1_000_000:
                    flood.sendall(records.new_keys() + records.data(b"G" * data_bytes))
                    sent += 1
            assert sent < 1_000_000
        wait_until(lambda: server._free._value == CONNECTIONS_MAX, "its place is free")


def test_an_unread_long_page_over_tls_times_out(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server, "SEND_S", 0.3)
    with serving(text_page(b"x" * (32 << 20)), tls_of(made, takes_plain=False)) as server:
        sock = create_connection((HOST, server.port), WAIT_S)
        with made.calls().wrap_socket(sock, server_hostname=HOST) as lazy:
            lazy.sendall(b"GET /page HTTP/1.1\r\n\r\n")
            wait_until(lambda: server.late_count == 1, "its time is over")
        monkeypatch.setattr(page_server, "SEND_S", 30.0)
        assert get_with_tls(server.port, made.calls())[1] == b"x" * (32 << 20)


def test_a_server_out_of_descriptors_or_threads_serves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that accepts ended at the first failure: no page, and no health, was left."""
    monkeypatch.setattr(page_server, "ACCEPT_AGAIN_S", 0.0)
    accept, failed = socket.accept, Event()
    start = Thread.start

    def without_descriptors(sock: socket) -> object:
        if not failed.is_set():
            failed.set()
            raise OSError(EMFILE, "too many open files")
        return accept(sock)

    def without_threads(thread: Thread) -> None:
        if thread.name == "page":
            monkeypatch.setattr(Thread, "start", start)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(socket, "accept", without_descriptors)
    with serving(text_page(b"fine")) as server:
        assert get(server.port) == (200, b"fine") and failed.is_set()
        monkeypatch.setattr(Thread, "start", without_threads)
        with pytest.raises(OSError):
            get(server.port)
        for _ in range(CONNECTIONS_MAX + 1):
            assert get(server.port) == (200, b"fine")
