"""Tests of imports: names of `troupemq` at first use, and few modules at a start."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.compat.servers import SMALL_FILES
from troupemq import aio

troupemq = import_module("troupemq")
OURS = ("actors", "protocol", "remoting", "spark", "storage", "troupemq")
NO_SERVER = ("actors.engine", "pykka", "spark", "yaml")
NO_BROKER = (
    *("actors.broker", "actors.metrics.broker_metrics", "actors.parts", "actors.sending"),
    *("spark.jobs", "storage.message_store", "troupemq.client.connection", "troupemq.tour"),
)


PUBLIC = [troupemq, aio]


@pytest.mark.parametrize("public", PUBLIC)
def test_every_exported_name_equals_the_type_checkers_one(public: ModuleType) -> None:
    text = Path(str(public.__file__)).read_text(encoding="utf-8")
    seen = {}
    for block in ast.parse(text).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom) and node.module
                seen.update({each.name: import_module(node.module) for each in node.names})
    assert sorted(seen) == sorted(public.__all__)
    for name, home in seen.items():
        assert getattr(public, name) is getattr(home, name)
    assert set(public.__all__) <= set(dir(public))


@pytest.mark.parametrize("public", PUBLIC)
def test_an_unknown_name_is_an_attribute_error(public: ModuleType) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Consumers'"):
        _ = public.Consumers


def imported_by(program: str, *arguments: str) -> list[str]:
    """The modules that a new process has imported in the end, or what it prints as JSON itself."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nprint(json.dumps(found))", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import troupemq", (*NO_SERVER, "protocol", "storage", "troupemq.client")),
        ("from troupemq import Producer", (*NO_SERVER, "troupemq.client.consuming.consumer")),
        ("from troupemq.__main__ import main", (*NO_SERVER, "troupemq.client")),
        ("from troupemq.cli.admin import admin", NO_SERVER),
        (
            "from troupemq.cli.servers import namesrv; "
            "from actors.namesrv_server import start_namesrv",
            NO_BROKER,
        ),
    ],
)
def test_a_start_imports_only_needed_modules(statement: str, unwanted: tuple[str, ...]) -> None:
    found = imported_by(f"{statement}\nimport json, sys\nfound = sorted(sys.modules)")
    assert [
        each for each in found for name in unwanted if each == name or each.startswith(f"{name}.")
    ] == []


@pytest.mark.slow
def test_a_spare_process_has_imported_all_modules_of_a_broker(tmp_path: Path) -> None:
    """Modules missing in the spare would delay the restart of a master."""
    program = f"""
import json, sys
from pathlib import Path
from types import ModuleType
from troupemq.cli.servers import Servers, import_broker, parse_broker_config
import_broker()
before = set(sys.modules)
from troupemq.jobs_beside import JobsPlace
servers = Servers(print)
config, store, _ = parse_broker_config("", json.loads(sys.argv[1]))
servers.start_broker(config, store, JobsPlace(Path(sys.argv[2])))
found = [each for each in sorted(set(sys.modules) - before) if each.partition(".")[0] in {OURS}]
assert servers.stop(10)
"""
    settings = {**SMALL_FILES, "storePathRootDir": str(tmp_path / "store"), "listenPort": "0"}
    settings |= {"brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1"}
    assert imported_by(program, json.dumps(settings), str(tmp_path / "jobs")) == []
