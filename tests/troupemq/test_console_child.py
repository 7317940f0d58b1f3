"""The console beside a server: started again when it dies, ended with its parent; not needed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from errno import EMFILE
from pathlib import Path
from ssl import create_default_context
from unittest.mock import Mock
from urllib.request import urlopen

import pytest
from structlog.testing import capture_logs

from actors.config import parse_broker_config, parse_namesrv_config
from actors.settings.tls_settings import TlsSettings
from remoting.tls_options import AUTH_SERVER, ENABLE, TRUST
from storage.access.account import BROKER_SECRET_KEY
from storage.errors import StoreError
from tests.compat.patience import wait_until
from tests.support.certificates import Certificates
from troupemq import console_child as module
from troupemq.cli.servers import SMALL_FILES
from troupemq.console_child import KEY_PASSWORD, ConsoleChild

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "storage", "remoting", "actors", "spark", "troupemq")
GONE = "127.0.0.1:1"
WAIT_S = 60.0


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
def test_a_killed_console_restarts_and_ends_on_request(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child = ConsoleChild(GONE, 0, tmp_path / "console")
    child.start()
    try:
        assert child.wait_until_ready(WAIT_S) is not None
        first = child.pid
        assert os.getpgid(first) == first, "a terminal's Ctrl-C would be a second signal to it"
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: child.pid not in (0, first), "another one to be started", WAIT_S)
        wait_until(lambda: _ready_pid(tmp_path) == child.pid, "it to answer", WAIT_S)
    finally:
        assert child.stop(WAIT_S)
    assert not is_there(child.pid)
    out, err = capfd.readouterr()
    assert "Fatal Python error" not in err
    assert out.count("Log in as admin with the password") == 1
    assert out.count("Console on http://127.0.0.1:") == 2


def test_console_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor the thread ended, and no console came until the next start."""
    child, tries = ConsoleChild(GONE, 0, tmp_path / "console"), Mock()
    tries.side_effect = [OSError(EMFILE, "Too many open files"), KeyboardInterrupt]
    monkeypatch.setattr(subprocess, "Popen", tries)
    monkeypatch.setattr(module, "pause_s", lambda _: 0)
    with capture_logs() as lines, pytest.raises(KeyboardInterrupt):
        child._run()
    assert tries.call_count == 2
    assert lines[0]["reason"] == "Too many open files; raise `ulimit -n`"


def _ready_pid(folder: Path) -> int:
    try:
        return int(json.loads((folder / "console" / "ready.json").read_text())["pid"])
    except (OSError, ValueError):
        return 0


@pytest.mark.slow
def test_a_console_ends_whenever_its_parent_ends(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from troupemq.console_child import ConsoleChild\n"
        f"child = ConsoleChild({GONE!r}, 0, Path(sys.argv[1]))\n"
        "child.start()\n"
        f"assert child.wait_until_ready({WAIT_S})\n"
        "print(child.pid, file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * WAIT_S,
    )
    pid = int(done.stderr.split()[0])
    wait_until(lambda: not is_there(pid), "the console to end", WAIT_S)


@pytest.mark.slow
def test_without_the_console_extra_a_broker_runs_and_the_command_names_it(
    tmp_path: Path,
) -> None:
    leave_out = shutil.ignore_patterns("__pycache__", "console", "cluster_demo")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=leave_out)
    ready = tmp_path / "ready"
    settings = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        **SMALL_FILES,
    }
    words = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    command = [sys.executable, "-m", "troupemq"]
    broker = subprocess.Popen(
        [*command, "broker", "--ready-file", str(ready), *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: ready.exists() or broker.poll() is not None, "the broker", WAIT_S)
        assert broker.poll() is None
        broker.terminate()
        assert broker.wait(WAIT_S) == 0
    finally:
        broker.kill()
    done = subprocess.run(
        [*command, "console"], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert done.stderr.startswith("troupemq: the console is not installed: ")
    assert " -m pip install " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_console_of_a_tls_server_serves_https(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    certificates = Certificates(tmp_path / "tls")
    files = certificates.files()
    tls = TlsSettings(tls_server_certificate=files.cert_path, tls_server_key=files.key_path)
    child = ConsoleChild(GONE, 0, tmp_path / "console", tls=tls)
    child.start()
    try:
        port = child.wait_until_ready(WAIT_S)
        context = create_default_context(cafile=certificates.trust)
        with urlopen(f"https://127.0.0.1:{port}/login", timeout=WAIT_S, context=context) as page:
            assert page.status == 200
    finally:
        assert child.stop(WAIT_S)
    assert f"Console on https://127.0.0.1:{port}/" in capfd.readouterr().out


def test_a_console_that_cannot_start_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "console_is_installed", lambda: False)
    with pytest.raises(StoreError, match=r"console is not installed: .* -m pip install "):
        ConsoleChild(GONE, 8088, tmp_path)


def options_of(tmp_path: Path, **settings: str) -> tuple[list[str], dict[str, str]]:
    """Return the TLS options and variables of a broker's console."""
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    broker, _, _ = parse_broker_config(text)
    child = ConsoleChild(GONE, 0, tmp_path, tls=broker)
    words = child._command
    shown = words[words.index(str(tmp_path / "ready.json")) + 1 :]
    return shown, {key: child._environment[key] for key in child._environment if "TLS" in key}


def test_a_console_uses_its_servers_certificate_and_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (ENABLE, TRUST, AUTH_SERVER):
        monkeypatch.delenv(name, raising=False)
    own = {"tls.server.certPath": "/c.pem", "tls.server.keyPath": "/k.pem"}
    assert options_of(tmp_path) == ([], {})
    shows = ["--https-cert", "/c.pem", "--https-key", "/k.pem"]
    assert options_of(tmp_path, **own) == (shows, {})
    assert options_of(tmp_path, **own, **{"tls.server.mode": "disabled"}) == ([], {})
    called = {**own, "tls.server.mode": "enforcing", "tls.client.trustCertPath": "/ca.pem"}
    assert options_of(tmp_path, **called) == (shows, {ENABLE: "true", TRUST: "/ca.pem"})
    called["tls.client.authServer"] = "false"
    assert options_of(tmp_path, **called)[1][AUTH_SERVER] == "false"
    monkeypatch.setenv(TRUST, "/others.pem")
    assert options_of(tmp_path, **called)[1][TRUST] == "/others.pem"
    namesrv, _ = parse_namesrv_config(
        "tls.server.mode=enforcing\ntls.server.keyPassword=p\n"
        + "".join(f"{name}={value}\n" for name, value in own.items())
    )
    monkeypatch.setenv(BROKER_SECRET_KEY, "of the broker alone")
    found = ConsoleChild(GONE, 0, tmp_path, tls=namesrv)._environment
    assert (found[ENABLE], found[KEY_PASSWORD]) == ("true", "p")
    assert BROKER_SECRET_KEY not in found
