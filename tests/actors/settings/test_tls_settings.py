"""Tests of actors/settings/tls_settings.py: what a file may say of TLS, and what cannot work."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from actors.config import (
    BrokerConfig,
    NamesrvConfig,
    parse_broker_config,
    parse_namesrv_config,
    settings_of,
)
from storage.errors import StoreError

CERTIFICATE = {"tls.server.certPath": "c.pem", "tls.server.keyPath": "k.pem"}


@pytest.fixture(autouse=True)
def no_file_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("actors.settings.tls_settings._default_file", str(tmp_path / "none"))


def broker(values: Mapping[str, str], **overrides: str) -> BrokerConfig:
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    return parse_broker_config(text, {key: value for key, value in overrides.items()})[0]


def said(values: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> str:
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    with pytest.raises(StoreError) as error:
        parse_broker_config(text, overrides)
    return str(error.value)


def test_tls_is_off_everywhere_by_default() -> None:
    config = broker({})
    assert (config.tls_mode, config.port_mode, config.ha_port_mode) == (
        "permissive",
        "disabled",
        "disabled",
    )
    assert not config.calls_with_tls and not config.tls_test_mode


def test_with_a_certificate_clients_may_use_tls() -> None:
    assert broker(CERTIFICATE).port_mode == "permissive"
    assert broker(CERTIFICATE | {"tls.server.mode": "disabled"}).port_mode == "disabled"
    assert broker(CERTIFICATE | {"tls.ha.mode": "permissive"}).ha_port_mode == "permissive"
    assert broker({"tls.test.mode.enable": "true"}).port_mode == "permissive"


def test_with_enforcing_mode_outbound_connections_use_tls_as_in_4_9_7() -> None:
    enforcing = CERTIFICATE | {"tls.server.mode": "enforcing"}
    assert broker(enforcing).calls_with_tls
    assert not broker(enforcing | {"tls.enable": "false"}).calls_with_tls
    assert broker({"tls.enable": "true"}).calls_with_tls
    assert broker({"useTLS": "true"}).calls_with_tls
    assert not broker(
        {"tls.ha.mode": "enforcing", "brokerRole": "SLAVE", "brokerId": "1"}
    ).calls_with_tls


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tls.server.mode": "enforced"}, "tls.server.mode is enforced: it may be disabled, permi"),
        ({"tls.ha.mode": "on"}, "tls.ha.mode is on: it may be disabled, permissive, enforcing."),
        ({"tls.metrics.mode": "on"}, "tls.metrics.mode is on: it may be disabled, permissive, enf"),
        ({"tls.metrics.mode": "enforcing"}, "tls.metrics.mode is enforcing, but there is no"),
        ({"tls.enable": "yes"}, "tls.enable is yes: it may be true, false."),
        ({"tls.server.need.client.auth": "must"}, "it may be none, optional, require."),
        ({"tls.server.mode": "enforcing"}, "enforcing, but there is no certificate: name one as"),
        ({"tls.ha.mode": "enforcing"}, "tls.ha.mode is enforcing, and there is no certificate"),
        ({"tls.server.certPath": "c.pem"}, "certPath and tls.server.keyPath belong together."),
        ({"tls.client.keyPath": "k.pem"}, "certPath and tls.client.keyPath belong together."),
        (
            CERTIFICATE | {"tls.server.need.client.auth": "require"},
            "name a file of trusted CA certificates as tls.server.trustCertPath.",
        ),
        (
            CERTIFICATE
            | {"tls.server.need.client.auth": "optional", "tls.server.authClient": "false"},
            "an unverified certificate proves nothing",
        ),
        (
            {"tls.config.file": "/nowhere/tls.properties"},
            "(tls.config.file) cannot be read: No such",
        ),
    ],
)
def test_impossible_tls_settings_are_a_one_sentence_error(
    values: dict[str, str], words: str
) -> None:
    assert words in said(values)


def test_a_slave_needs_no_certificate_to_call_its_master() -> None:
    config = broker({"tls.ha.mode": "enforcing", "brokerRole": "SLAVE", "brokerId": "1"})
    assert config.calls_any_with_tls and config.ha_port_mode == "disabled"


def test_the_command_line_overrides_the_tls_file_which_overrides_settings(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text(
        "tls.server.certPath=file.pem\ntls.server.keyPath=file.key\nlistenPort=1\n"
        "tls.server.keyPassword=secret\n"
    )
    values = CERTIFICATE | {"tls.config.file": str(path)}
    config = broker(values)
    assert (config.tls_server_certificate, config.tls_server_key) == ("file.pem", "file.key")
    assert config.listen_port == 10_911, "that file is about TLS only"
    config = broker(values, **{"tls.server.certPath": "line.pem"})
    assert (config.tls_server_certificate, config.tls_server_key) == ("line.pem", "file.key")
    assert "secret" not in str(settings_of(config)) and "secret" not in repr(config)


def test_an_existing_default_tls_file_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.test.mode.enable=true\n")
    monkeypatch.setattr("actors.settings.tls_settings._default_file", str(path))
    assert broker({}).tls_test_mode
    assert parse_namesrv_config("")[0].tls_test_mode


def test_a_password_on_the_command_line_is_refused() -> None:
    for name in ("tls.server.keyPassword", "tls.client.keyPassword"):
        assert f"{name} is set on the command line" in said({}, {name: "secret"})


def test_name_server_has_only_the_settings_of_its_ports() -> None:
    config, findings = parse_namesrv_config("tls.server.mode=disabled\ntls.client.keyPath=k\n")
    assert isinstance(config, NamesrvConfig) and config.tls_mode == "disabled"
    assert findings.without_effect == ("tls.client.keyPath",)
