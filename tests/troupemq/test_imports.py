"""Modules that a program loads with the client, and a test run with the plug-in."""

import subprocess
import sys

import pytest

CLIENT = "from troupemq import Producer, PushConsumer"
OWN = ("protocol", "remoting", "storage", "troupemq")
OWN_MODULES_MAX = 95
HEAVY = {
    *("asyncio", "email", "http", "multiprocessing", "pathlib", "subprocess", "tempfile"),
    *("_hashlib", "_ssl", "ssl"),  # OpenSSL, for programs with an account or TLS
    *("click", "crcmod", "lark", "opentelemetry", "pykka", "structlog", "yaml"),
    *("protocol.bodies_admin", "protocol.bodies_own", "protocol.send_wire"),
    *("troupemq.client.admin", "troupemq.client.receiving", "troupemq.testing"),
}


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
    own = sorted(name for name in modules if name.split(".")[0] in OWN)
    assert "troupemq.client.consuming.consumer" in own
    assert len(own) <= OWN_MODULES_MAX, own


@pytest.mark.slow
def test_a_broker_for_tests_loads_no_commands_and_no_admin() -> None:
    modules = loaded_by("from troupemq.testing import running_broker")
    assert "actors.broker" in modules
    commands = {"click", "numpy", "prometheus_client", "starlette", "troupemq.cli", "uvicorn"}
    assert modules & {*commands, "spark.session", "troupemq.client.admin"} == set()


@pytest.mark.slow
def test_the_plug_in_of_pytest_loads_nothing_but_itself() -> None:
    modules = loaded_by("import troupemq.pytest_plugin")
    assert {name for name in modules if name.split(".")[0] in OWN} == {
        "troupemq",
        "troupemq.pytest_plugin",
    }
