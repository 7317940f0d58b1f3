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
CLIENT = "from troupemq import Producer, PushConsumer"
OWN_MODULES_MAX = 78
HEAVY = {
    *("asyncio", "email", "http", "ipaddress", "multiprocessing", "pathlib", "subprocess"),
    *("tempfile", "base64", "fcntl", "importlib.util", "storage"),
    *("protocol.bodies_client", "protocol.batch", "protocol.fastjson_reader"),
    *("troupemq.client.consuming.running_info", "troupemq.client.consuming.queue_locks"),
    "troupemq.client.producing.batches",
    *("troupemq.client.producing.trace", "troupemq.client.producing.recalling"),
    *("_hashlib", "_ssl", "ssl"),  # OpenSSL, for programs with an account or TLS
    *("click", "crcmod", "lark", "opentelemetry", "pykka", "structlog", "yaml"),
    *("protocol.bodies_admin", "protocol.bodies_own", "protocol.send_wire"),
    *("troupemq.client.admin", "troupemq.client.receiving", "troupemq.testing"),
}

FIRST_SEND = """
import sys
sys.modules["opentelemetry"] = None  # spans load what a broker does not
from troupemq import Message, Producer
from troupemq.testing import running_broker
with running_broker() as broker, Producer("shop", broker.namesrv) as producer:
    producer.send(Message("Orders", b"new"))
"""
NOT_FOR_A_SEND = {
    *("click", "cronsim", "lark", "numpy", "prometheus_client", "rich", "starlette", "structlog"),
    *("uvicorn", "yaml", "asyncio", "email", "http"),
    *("actors.jobs", "actors.metrics.page_server", "actors.network.dial"),
    *("actors.network.tls_negotiator", "actors.replication.ha_slave", "actors.spans.span_export"),
    *("spark", "storage.access.acl_yaml", "storage.dump"),
    *("troupemq.cli", "troupemq.client.admin", "troupemq.client.consuming.consumer"),
}


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


def loaded_by(program: str) -> set[str]:
    """Return the modules that a program loads which an empty one does not."""
    found = []
    for each in ("pass", program):
        command = [sys.executable, "-c", f"{each}\nimport sys; print(*sys.modules)"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found.append(set(done.stdout.split()))
    return found[1] - found[0]


@pytest.mark.slow
def test_producer_and_consumer_load_nothing_heavy() -> None:
    modules = loaded_by(CLIENT)
    assert modules & HEAVY == set()
    own = sorted(name for name in modules if name.split(".")[0] in OURS)
    assert "troupemq.client.consuming.consumer" in own
    assert len(own) <= OWN_MODULES_MAX, own


@pytest.mark.slow
def test_clients_of_asyncio_load_their_spans_before_a_loop_runs() -> None:
    """The first start imported OpenTelemetry on the event loop: 14 ms."""
    modules = loaded_by("from troupemq.aio import Producer")
    assert {"opentelemetry.trace", "troupemq.client.span_making"} <= modules


@pytest.mark.slow
def test_a_broker_for_tests_loads_only_what_its_first_send_needs() -> None:
    modules = loaded_by(FIRST_SEND)
    assert "actors.broker" in modules and "troupemq.client.producing.producer" in modules
    assert modules & NOT_FOR_A_SEND == set()


@pytest.mark.slow
def test_the_plug_in_of_pytest_loads_nothing_but_itself() -> None:
    modules = loaded_by("import troupemq.pytest_plugin")
    assert {name for name in modules if name.split(".")[0] in OURS} == {
        "troupemq",
        "troupemq.pytest_plugin",
    }
