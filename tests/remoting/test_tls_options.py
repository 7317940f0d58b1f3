"""Tests of remoting/tls_options.py: what a program says of TLS, and what its environment does."""

from pathlib import Path

import pytest

from remoting.tls import TlsUnusable
from remoting.tls_options import (
    AUTH_SERVER,
    CERTIFICATE,
    ENABLE,
    KEY,
    KEY_PASSWORD,
    TRUST,
    Tls,
    tls_of_environment,
)
from tests.support.certificates import Certificates


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ENABLE, TRUST, CERTIFICATE, KEY, KEY_PASSWORD, AUTH_SERVER):
        monkeypatch.delenv(name, raising=False)


def test_without_options_there_is_no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls_of_environment() is None
    monkeypatch.setenv(ENABLE, "false")
    monkeypatch.setenv(AUTH_SERVER, "false")
    assert tls_of_environment() is None


def test_all_tls_options_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENABLE, "true")
    assert tls_of_environment() == Tls()
    for name, value in ((TRUST, "t"), (CERTIFICATE, "c"), (KEY, "k"), (KEY_PASSWORD, "p")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(AUTH_SERVER, "false")
    assert tls_of_environment() == Tls("t", "c", "k", "p", checks_server=False)


def test_naming_a_file_enables_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUST, "ca.pem")
    assert tls_of_environment() == Tls("ca.pem")


@pytest.mark.parametrize("word", ["false", "FALSE"])
def test_an_explicit_no_disables_tls_despite_named_files(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(ENABLE, word)
    for name in (TRUST, CERTIFICATE, KEY):
        monkeypatch.setenv(name, "file.pem")
    assert tls_of_environment() is None


@pytest.mark.parametrize("name", [ENABLE, AUTH_SERVER])
@pytest.mark.parametrize("word", ["1", "yes", "on", "ture", "no"])
def test_a_misspelled_wish_for_tls_did_not_go_without_a_word(
    monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    monkeypatch.setenv(name, word)
    found = tls_of_environment()
    assert found is not None
    with pytest.raises(TlsUnusable, match=f"^{name} is '{word}': use true or false"):
        found.context()


def test_invalid_options_are_reported_when_the_context_is_created(tmp_path: Path) -> None:
    with pytest.raises(TlsUnusable, match=r"missing\.pem cannot be read"):
        Tls(str(tmp_path / "missing.pem")).context()
    files = Certificates(tmp_path).files()
    assert Tls(files.trust_path, files.cert_path, files.key_path).context().check_hostname
    assert not Tls(checks_server=False).context().check_hostname
    assert "secret" not in repr(Tls(key_password="secret"))
