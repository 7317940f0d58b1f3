"""Tests of actors/network/tls_contexts.py: certificates that change while a server runs."""

import os
from errno import EACCES, EMFILE
from pathlib import Path
from shutil import copyfile, which
from ssl import MemoryBIO, SSLContext, SSLWantReadError

import pytest
from structlog.testing import capture_logs

from actors.config import BrokerConfig
from actors.network.tls_contexts import TlsContexts, tls_contexts, to_call_with
from actors.settings.tls_settings import TlsSettings
from remoting import tls as tls_module
from storage.errors import StoreError
from tests.support.certificates import Certificates


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def contexts(made: Certificates) -> TlsContexts:
    files = made.files()
    return TlsContexts(
        TlsSettings(tls_server_certificate=files.cert_path, tls_server_key=files.key_path)
    )


def shown_by(server: SSLContext, made: Certificates) -> str:
    """The host that its certificate names."""
    to_server, to_client = MemoryBIO(), MemoryBIO()
    calls = made.calls()
    calls.check_hostname = False
    near = calls.wrap_bio(to_client, to_server)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    while True:
        try:
            near.do_handshake()
            break
        except SSLWantReadError:
            pass
        try:
            far.do_handshake()
        except SSLWantReadError:
            continue
    shown = near.getpeercert()
    assert shown is not None
    names = shown["subjectAltName"]
    assert isinstance(names, tuple) and isinstance(names[0], tuple)
    return str(names[0][1])


def replace_files(made: Certificates, host: str, *, key: bool = True) -> None:
    """Replace the files as an operator does; in a test their times may be the same."""
    other = made.files("other", host)
    for source, target in (
        (other.cert_path, made.folder / "server.pem"),
        *([(other.key_path, made.folder / "server.key")] if key else []),
    ):
        copyfile(source, target)
        status = os.stat(target)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def test_a_new_certificate_applies_to_new_connections(made: Certificates) -> None:
    found = contexts(made)
    before = found.server
    assert before is not None and shown_by(before, made) == "127.0.0.1"
    found.look()
    assert found.server is before, "nothing has changed"
    replace_files(made, "192.0.2.7")
    with capture_logs() as logs:
        found.look()
    assert found.server is not None and shown_by(found.server, made) == "192.0.2.7"
    assert [line["event"] for line in logs] == ["TLS certificates reloaded"]


def test_invalid_tls_files_are_logged_once_and_change_nothing(made: Certificates) -> None:
    found = contexts(made)
    replace_files(made, "192.0.2.7", key=False)
    with capture_logs() as logs:
        found.look()
        found.look()
    assert [line["event"] for line in logs] == ["TLS reload failed, old certificate kept"]
    assert "do not belong together" in logs[0]["reason"]
    assert found.server is not None and shown_by(found.server, made) == "127.0.0.1"
    replace_files(made, "192.0.2.7")
    found.look()
    assert shown_by(found.server, made) == "192.0.2.7", "the key came a moment later"
    (made.folder / "server.key").unlink()
    with capture_logs() as logs:
        found.look()
    assert "cannot be read: No such file or directory" in logs[0]["reason"]


def test_unreadable_tls_files_are_retried_at_each_check(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files may be as they shall be, and only the moment was wrong: the old certificate stayed
    until they changed once more."""
    found = contexts(made)
    replace_files(made, "192.0.2.7")

    def refuse_with(number: int) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(tls_module, "open", refuse, raising=False)

    with capture_logs() as logs:
        for number in (EMFILE, EMFILE, EACCES, EACCES):
            refuse_with(number)
            found.look()
    assert [line["event"] for line in logs] == ["TLS reload failed, old certificate kept"] * 2, (
        "once for each reason"
    )
    assert "Too many open files" in logs[0]["reason"]
    assert "Permission denied" in logs[1]["reason"]
    monkeypatch.undo()
    found.look()
    assert found.server is not None and shown_by(found.server, made) == "192.0.2.7"


def test_tls_files_missing_a_second_time_are_logged_again(made: Certificates) -> None:
    found = contexts(made)
    key, aside = made.folder / "server.key", made.folder / "aside"
    with capture_logs() as logs:
        for _ in range(2):
            key.rename(aside)
            found.look()
            aside.rename(key)
            found.look()
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "TLS reload failed, old certificate kept"
    ] * 2


def test_a_replaced_file_of_equal_size_and_time_is_detected(made: Certificates) -> None:
    """`cp -p` keeps the time."""
    found = contexts(made)
    before = found.server
    path = made.folder / "server.pem"
    status, text = os.stat(path), path.read_bytes()
    path.write_bytes(text)
    while os.stat(path).st_ctime_ns == status.st_ctime_ns:  # a tick of the file system's clock
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found.look()
    assert found.server is not before


def test_a_file_that_vanishes_while_it_is_read_changes_nothing(
    made: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = contexts(made)
    before, path = serving.server, Path(made.files("server", "127.0.0.2").cert_path)
    text = path.read_text()
    read = tls_module._read

    def vanishes(name: str) -> str:
        found = read(name)
        if name == str(path):
            path.unlink()
        return found

    monkeypatch.setattr(tls_module, "_read", vanishes)
    with capture_logs() as logs:
        serving.look()
    assert serving.server is before
    (line,) = [each for each in logs if each["event"] == "TLS reload failed, old certificate kept"]
    assert "cannot be read" in line["reason"]
    monkeypatch.undo()
    path.write_text(text)
    serving.look()
    assert serving.server is not before


def test_a_server_with_one_context_serves_the_newest_certificate(made: Certificates) -> None:
    found = contexts(made)
    followed = found.followed()
    assert shown_by(followed, made) == "127.0.0.1"
    replace_files(made, "192.0.2.7")
    found.look()
    assert shown_by(followed, made) == "192.0.2.7"


def test_a_key_that_all_local_users_can_read_is_logged(made: Certificates) -> None:
    made.files()
    os.chmod(made.folder / "server.key", 0o644)
    files = made.folder / "server.pem", made.folder / "server.key"
    with capture_logs() as logs:
        TlsContexts(TlsSettings(tls_server_certificate=str(files[0]), tls_server_key=str(files[1])))
    assert [(line["event"], line["file"]) for line in logs] == [
        ("TLS key readable by all local users", str(files[1]))
    ]


def test_a_start_with_invalid_tls_files_is_a_one_sentence_error(made: Certificates) -> None:
    files = made.files()
    wrong = TlsSettings(tls_server_certificate=files.cert_path, tls_server_key=made.old_key())
    with pytest.raises(StoreError, match=r"^TLS: .* convert it: openssl pkcs8 -topk8"):
        TlsContexts(wrong)


def test_outbound_connections_have_their_own_tls_context(made: Certificates) -> None:
    assert tls_contexts(BrokerConfig()) is None
    assert to_call_with(None, wanted=True)() is None
    found = tls_contexts(BrokerConfig(tls_enable="true", tls_client_trust=made.trust))
    assert found is not None and found.server is None
    assert to_call_with(found, wanted=False)() is None
    called_with = to_call_with(found, wanted=True)()
    assert called_with is not None and called_with.check_hostname
    believing = tls_contexts(BrokerConfig(tls_enable="true", tls_checks_server=False))
    assert believing is not None and believing.client is not None
    assert not believing.client.check_hostname


@pytest.mark.slow
def test_test_mode_makes_a_certificate_and_logs_a_warning() -> None:
    if which("openssl") is None:
        pytest.skip("the openssl command, which test mode of TLS wants, is not here")
    with capture_logs() as logs:
        found = TlsContexts(TlsSettings(tls_test_mode=True))
    assert [line["event"] for line in logs] == ["TLS test mode enabled"]
    assert found.server is not None
    assert found.server.cert_store_stats()["x509"] == 0, "no client certificate is required"


def test_test_mode_without_openssl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreError, match=r"needs the openssl command, which is missing"):
        TlsContexts(TlsSettings(tls_test_mode=True))
