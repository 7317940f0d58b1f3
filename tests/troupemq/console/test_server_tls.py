"""The console over TLS: its own certificate, the newest without a restart, cookies for TLS only."""

import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socket import create_connection, socket

import pytest

from actors.settings.tls_settings import TlsSettings
from storage.errors import StoreError
from tests.support.certificates import Certificates
from tests.support.tls_records import Records, shaken_old, writes_keys
from tests.troupemq.console.conftest import GONE
from troupemq.console import listener
from troupemq.console.asking import ConsoleSettings
from troupemq.console.server import ConsoleServer, FollowedCertificate

WAIT_S = 30.0


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


def settings_of(certificates: Certificates, host: str = "127.0.0.1") -> TlsSettings:
    files = certificates.files(host=host)
    return TlsSettings(tls_server_certificate=files.cert_path, tls_server_key=files.key_path)


@pytest.fixture
def server(certificates: Certificates, tmp_path: Path) -> Iterator[ConsoleServer]:
    made = ConsoleServer(
        ConsoleSettings(tmp_path / "data", GONE, port=0, tls=settings_of(certificates))
    )
    made.start()
    yield made
    assert made.stop(WAIT_S)


def trusting(certificates: Certificates) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=certificates.trust)


def exchange(server: ConsoleServer, context: ssl.SSLContext, request: bytes) -> bytes:
    found = b""
    with create_connection(("127.0.0.1", server.port), WAIT_S) as plain:
        peer = context.wrap_socket(plain, server_hostname="127.0.0.1")
        with peer:
            peer.sendall(request)
            while data := peer.recv(65_536):
                found += data
    return found


def test_over_tls_the_session_cookie_is_secure(
    server: ConsoleServer, certificates: Certificates
) -> None:
    context = trusting(certificates)
    page = b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b" 200 OK" in exchange(server, context, page)
    form = f"name=admin&password={server.console.accounts.first_password}".encode()
    head = (
        "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Origin: https://localhost\r\nContent-Length: {len(form)}\r\n\r\n"
    )
    answer = exchange(server, context, head.encode() + form)
    assert b" 303 " in answer and b"; Secure" in answer and b"HttpOnly" in answer
    assert server.scheme == "https"


def test_a_new_valid_certificate_is_used_without_a_restart(
    server: ConsoleServer, certificates: Certificates
) -> None:
    def shown() -> bytes:
        with create_connection(("127.0.0.1", server.port), WAIT_S) as plain:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(plain) as peer:
                return peer.getpeercert(binary_form=True) or b""

    first = shown()
    certificate = server._certificate
    assert certificate is not None
    files = certificates.files(host="localhost")
    certificate.look()
    second = shown()
    assert second != first
    Path(files.cert_path).write_text("no certificate")
    certificate.look()
    assert shown() == second


def test_plain_peers_and_endless_handshakes_affect_no_others(
    server: ConsoleServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.1)
    with create_connection(("127.0.0.1", server.port), WAIT_S) as plain:
        plain.sendall(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" not in plain.recv(100)
    with create_connection(("127.0.0.1", server.port), WAIT_S) as begun:
        begun.sendall(b"\x16\x03\x01")
        assert begun.recv(1) == b""  # cut by the thread that looks each second
    page = b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b" 200 OK" in exchange(server, trusting(certificates), page)


def test_a_missing_certificate_is_a_one_sentence_error(tmp_path: Path) -> None:
    missing = TlsSettings(
        tls_server_certificate=str(tmp_path / "a.pem"), tls_server_key=str(tmp_path / "a.key")
    )
    with pytest.raises(StoreError, match=r"a\.key cannot be read"):
        FollowedCertificate(missing, lambda: None)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_empty_records_end_only_their_connection(
    server: ConsoleServer, certificates: Certificates, tmp_path: Path, version: str
) -> None:
    """Regression: second handshakes of one client delayed others by 4.6 s."""
    keys = tmp_path / "keys"
    context = writes_keys(certificates.calls(), keys)
    plain = create_connection(("127.0.0.1", server.port), WAIT_S)
    if version == "1.2":
        old = shaken_old(context, plain, keys)
        stream = old.data(b"GET") + b"".join(
            old.of_handshake(b"\x01\0\0\0" * 4096) for _ in range(16)
        )
    else:
        shaken = context.wrap_socket(plain, server_hostname="127.0.0.1")
        plain = socket(fileno=shaken.detach())
        plain.settimeout(WAIT_S)
        records = Records(keys)
        stream = b"".join(records.new_keys() for _ in range(10_000))
    came = 0
    with plain, suppress(ConnectionError):
        plain.sendall(stream)
        while data := plain.recv(1 << 16):
            came += len(data)
    assert came < 1000
    page = b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b" 200 OK" in exchange(server, trusting(certificates), page)
