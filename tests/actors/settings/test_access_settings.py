"""Location of a server's accounts, and a broker's own account."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.access.acl_store import AclStore
from actors.config import NamesrvConfig, parse_broker_config, settings_of
from protocol.signature import Credentials
from storage.errors import StoreError
from storage.files.disk import RealDisk


def test_accounts_default_to_the_directory_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    config = NamesrvConfig()
    assert config.acl_path("/etc/mq/namesrv.conf") == "/etc/mq/plain_acl.yml"
    assert NamesrvConfig(acl_file="/a/b.yml").acl_path("/etc/mq/namesrv.conf") == "/a/b.yml"
    with pytest.raises(StoreError, match=r"rocketmq\.acl\.plain\.file"):
        config.acl_path("")
    monkeypatch.setenv("ROCKETMQ_HOME", "/opt/mq")
    assert config.acl_path("") == "/opt/mq/conf/plain_acl.yml"


def test_without_accounts_beside_the_settings_the_home_folder_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A start was refused, for a settings file has a folder, and that had none."""
    home, settings = tmp_path / "home", tmp_path / "etc" / "broker.conf"
    beside, at_home = settings.with_name("plain_acl.yml"), home / "conf" / "plain_acl.yml"
    settings.parent.mkdir()
    at_home.parent.mkdir(parents=True)
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))
    config = NamesrvConfig()
    assert config.acl_path(str(settings)) == str(beside), "neither: the first one is told"
    at_home.touch()
    assert config.acl_path(str(settings)) == str(at_home)
    beside.symlink_to("gone")
    assert config.acl_path(str(settings)) == str(beside), "what cannot be read is no reason"


def test_the_start_line_names_the_accounts_file(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- accessKey: admin-key\n  secretKey: admin-secret\n  admin: true\n")
    with capture_logs() as logs:
        AclStore(RealDisk(), str(path), lambda: 0, takes_samples=False).load()
    (line,) = [each for each in logs if each["event"] == "access control loaded"]
    assert line["file"] == str(path)


def test_a_brokers_own_account_comes_from_its_file_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "brokerAccessKey=from-the-file\nbrokerSecretKey=secret-file\n"
    broker, _, findings = parse_broker_config(text)
    assert broker.credentials == Credentials("from-the-file", "secret-file")
    assert not findings
    assert parse_broker_config("")[0].credentials is None
    monkeypatch.setenv("TROUPEMQ_BROKER_ACCESS_KEY", "from-outside")
    monkeypatch.setenv("TROUPEMQ_BROKER_SECRET_KEY", "secret-outside")
    assert parse_broker_config("")[0].credentials == Credentials("from-outside", "secret-outside")
    assert parse_broker_config(text)[0].credentials == broker.credentials


@pytest.mark.parametrize("name", ["brokerSecretKey", "brokerAccessKey"])
def test_an_account_on_the_command_line_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match=f"{name} is set on the command line"):
        parse_broker_config("brokerSecretKey=secret-file\n", {name: "secret-line"})


@pytest.mark.parametrize("key", ["brokerAccessKey", "brokerSecretKey"])
def test_half_an_account_is_refused(key: str) -> None:
    with pytest.raises(StoreError, match="belong together"):
        parse_broker_config(f"{key}=something\n")


def test_secrets_appear_in_no_output() -> None:
    broker, *_ = parse_broker_config("brokerAccessKey=account1\nbrokerSecretKey=secret-file\n")
    assert "secret-file" not in repr(broker)
    assert "secret-file" not in str(settings_of(broker))
    assert settings_of(broker)["brokerAccessKey"] == "account1"


def test_addresses_of_slaves_are_checked_at_the_start() -> None:
    assert parse_broker_config("haAllowedAddresses=10.0.0.*\n")
    with pytest.raises(StoreError, match="netaddress is 10"):
        parse_broker_config("haAllowedAddresses=10.*.0.1\n")
