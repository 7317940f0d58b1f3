"""The files in conf/: every setting that has an effect, with its true default, and nothing else."""

import ast
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from actors.config import (
    BrokerConfig,
    NamesrvConfig,
    load_broker_config,
    load_namesrv_config,
)
from protocol.properties_file import parse_properties
from storage.config import StoreConfig, keys_of

ROOT = Path(__file__).resolve().parents[1]
FILES: dict[str, tuple[type[Any], ...]] = {
    "broker.conf": (BrokerConfig, StoreConfig),
    "namesrv.conf": (NamesrvConfig,),
}
SET_IN_WORDS = {
    "brokerName",
    "brokerIP1",
    "brokerIP2",
    "storePathRootDir",
    "storePathCommitLog",
    "kvConfigPath",
    "configStorePath",
}
"""Their default depends on the machine: the comment says it, and the value is an example."""


def text(name: str) -> str:
    return (ROOT / "conf" / name).read_text(encoding="utf-8")


def shown(name: str) -> dict[str, str]:
    """Every key of the file with its value, commented out or not."""
    lines = text(name).splitlines()
    settings = [line.removeprefix("#") for line in lines if re.match(r"#?[\w.]+ = ?", line)]
    found = [next(iter(parse_properties(line).items())) for line in settings]
    assert len(dict(found)) == len(found), "a key stands there twice"
    return dict(found)


def defaults(configs: tuple[type[Any], ...]) -> dict[str, str]:
    """The default of every external key, as one writes it in a file."""
    found = {}
    for config in configs:
        by_field = {name: external for external, name in keys_of(config).items()}
        for field in fields(config):
            if field.name in by_field and field.default is not MISSING:
                value = field.default
                text = str(value).lower() if isinstance(value, bool) else str(value)
                found[by_field[field.name]] = text
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_sample_file_shows_every_setting_with_its_default(name: str) -> None:
    wanted = defaults(FILES[name])
    found = shown(name)
    assert found.keys() == wanted.keys()
    assert {key: value for key, value in found.items() if key not in SET_IN_WORDS} == {
        key: value for key, value in wanted.items() if key not in SET_IN_WORDS
    }


@pytest.mark.parametrize("name", FILES)
def test_machine_dependent_defaults_are_described(name: str) -> None:
    for key in SET_IN_WORDS & shown(name).keys():
        comment = re.search(rf"((?:^# .*\n)+)(?:#\w.*\n)*#?{key} =", text(name), re.MULTILINE)
        assert comment is not None, key
        assert "Default:" in comment[1], key


def test_the_sample_files_are_parsed_without_a_warning() -> None:
    broker, store, findings = load_broker_config(str(ROOT / "conf" / "broker.conf"))
    assert findings.sentence() == ""
    assert (broker.broker_name, broker.listen_port) == ("broker-a", 10_911)
    assert store.flush_disk_type == "ASYNC_FLUSH"
    _, findings = load_namesrv_config(str(ROOT / "conf" / "namesrv.conf"))
    assert findings.sentence() == ""


@pytest.mark.heavy
@pytest.mark.parametrize("config", [BrokerConfig, StoreConfig, NamesrvConfig])
def test_every_setting_is_read_by_some_module(config: type[Any]) -> None:
    """A setting without a reader must not be a field: the start then reports it as ignored."""
    keys = keys_of(config)
    read = read_by_a_module(set(keys.values()))
    assert [key for key, name in keys.items() if name not in read] == []


def read_by_a_module(names: set[str]) -> set[str]:
    """Return those of the attributes that are read anywhere but where settings are checked."""
    missing = set(names)
    for layer in ("storage", "actors", "troupemq"):
        for path in (ROOT / layer).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if missing.intersection(re.findall(r"\.(\w+)", source)):  # else it need not be parsed
                missing -= attributes(ast.parse(source))
    return names - missing


def attributes(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            continue
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        left += ast.iter_child_nodes(node)
    return found
