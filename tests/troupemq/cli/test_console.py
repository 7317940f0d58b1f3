"""`troupemq console`: its options and what it says of those that cannot be."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from actors.config import ConfigError, parse_broker_config, parse_namesrv_config
from protocol.signature import Credentials
from storage.access.account import (
    ACCESS_KEY,
    ACL_FILE,
    SECRET_KEY,
    SECURITY_TOKEN,
    account_of_environment,
)
from storage.config import StoreConfig
from troupemq.cli import cli
from troupemq.cli.console import ACCOUNT_FILE, take_account
from troupemq.masters.plan import derived


def console(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["console", *words])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("prefix", ["mq", "/m q", "/../x", "//evil"])
def test_a_prefix_must_be_a_path(prefix: str, tmp_path: Path) -> None:
    code, said = console("--prefix", prefix, "--data", str(tmp_path), "--port", "0")
    assert code == 2 and "invalid prefix" in said


@pytest.mark.parametrize("option", ["--bind", "--host"])
@pytest.mark.parametrize("value", ["", " "])
def test_a_blank_address_is_refused(option: str, value: str, tmp_path: Path) -> None:
    """An unset variable as --bind made the console listen on all addresses."""
    code, said = console(option, value, "--data", str(tmp_path), "--port", "0")
    assert code == 2 and f"Invalid value for '{option}': it is blank" in said


@pytest.mark.parametrize(
    ("words", "sentence", "expected"),
    [
        (["--alerts", "nowhere.json"], "nowhere.json cannot be read", 10),
        (["-n", "no address"], "no address", 1),
        (["--https-cert", "a.pem"], "--https-cert needs --https-key", 10),
        (["--https-cert", "a.pem", "--https-key", "a.key"], "a.key cannot be read", 10),
    ],
)
def test_invalid_options_are_a_one_sentence_error(
    words: list[str], sentence: str, expected: int, tmp_path: Path
) -> None:
    code, said = console(*words, "--data", str(tmp_path), "--port", "0")
    assert code == expected and sentence in said and "Traceback" not in said


def test_damaged_accounts_are_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "accounts.json").write_text("{")
    code, said = console("--data", str(tmp_path), "--port", "0")
    assert code == 1 and "is not a valid accounts file" in said


def test_settings_of_servers_place_the_console() -> None:
    text = "consolePort=8088\nconsoleHosts=a,b\n"
    assert parse_namesrv_config(text)[0].console_port == 8088
    with pytest.raises(ConfigError, match="namesrvAddr"):
        parse_broker_config(text)
    broker, _, findings = parse_broker_config(text + "namesrvAddr=127.0.0.1:9876\n")
    assert (broker.console_port, broker.console_bind_address) == (8088, "127.0.0.1")
    assert not findings
    for wrong in ("consolePort=70000", "consolePort=-1", "consoleBindAddress=a b"):
        with pytest.raises(ConfigError, match=wrong.partition("=")[0]):
            parse_namesrv_config(wrong)


def test_the_first_of_several_masters_has_the_console() -> None:
    broker, _, _ = parse_broker_config(
        "consolePort=8088\nbrokerName=a\nmasters=2\nnamesrvAddr=127.0.0.1:9876\n"
    )
    store = StoreConfig(root="/store")
    assert "consolePort" not in derived(broker, store, 0)
    assert derived(broker, store, 1)["consolePort"] == "0"


def test_the_account_in_the_consoles_folder_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ACL_FILE, ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN):
        monkeypatch.setenv(name, "")
    take_account(tmp_path / ACCOUNT_FILE)
    assert account_of_environment(os.environ) is None
    (tmp_path / ACCOUNT_FILE).write_text("accessKey: console\nsecretKey: a-long-one\n")
    take_account(tmp_path / ACCOUNT_FILE)
    assert account_of_environment(os.environ) == Credentials("console", "a-long-one")
    (tmp_path / ACCOUNT_FILE).write_text("accessKey: other\nsecretKey: a-long-one\n")
    take_account(tmp_path / ACCOUNT_FILE)
    found = account_of_environment(os.environ)
    assert found is not None and found.access_key == "console"
