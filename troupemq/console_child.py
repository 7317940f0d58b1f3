"""Console as a child process of a server, restarted when it dies.

The child reads from a pipe that this process never writes to. The pipe closes when this process
ends in any way, and the child then stops. This module imports nothing of the console.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from structlog import get_logger

from actors.settings.extras import install_command, is_installed
from actors.settings.tls_settings import DISABLED, ENFORCING, BrokerTlsSettings, TlsSettings
from remoting.tls_options import AUTH_SERVER, CERTIFICATE, ENABLE, KEY, TRUST
from remoting.tls_options import KEY_PASSWORD as CLIENT_KEY_PASSWORD
from storage.access.account import BROKER_ACCESS_KEY, BROKER_SECRET_KEY
from storage.child_python import child_command, child_environment
from storage.errors import WrongSetting, reason_of
from troupemq.masters.supervisor import STEADY_S, pause_s

log = get_logger(__name__)

KEY_PASSWORD = "TROUPEMQ_CONSOLE_KEY_PASSWORD"
"""Environment variable with the password of the console's private key."""

_NOT_PASSED_ON = (BROKER_ACCESS_KEY, BROKER_SECRET_KEY)
"""Variables with the broker's own account, which a console must not use."""

STOP_S = 5.0
READY_S = 20.0
LOOK_S = 0.05


def console_is_installed() -> bool:
    """Return whether the console and the libraries of its extra are installed."""
    folder = Path(__file__).with_name("console")
    return folder.is_dir() and is_installed("console")


def console_missing() -> str:
    return f"the console is not installed: {install_command('console')}"


class ConsoleChild:
    """Console process that runs as long as the server.

    Raises WrongSetting if the console is not installed.
    """

    def __init__(
        self,
        namesrv: str,
        port: int,
        data: Path,
        *,
        bind_address: str = "127.0.0.1",
        hosts: Sequence[str] = (),
        tls: TlsSettings | None = None,
    ) -> None:
        """Prepare the command; `start` runs it.

        `namesrv`: addresses, separated by `;`. `data`: folder of accounts and audit log. `tls`: the
        server's settings. The console serves HTTPS with the same certificate, and connects with TLS
        if the server does or requires it.
        """
        if not console_is_installed():
            raise WrongSetting(console_missing())
        self._ready_file = data / "ready.json"
        self._command = [
            *child_command("troupemq", "console", "--until-stdin-ends"),
            *("-n", namesrv, "-p", str(port), "--bind", bind_address, "--data", str(data)),
            *("--ready-file", str(self._ready_file)),
            *(word for host in hosts for word in ("--host", host)),
            *([] if tls is None else _shown(tls)),
        ]
        own = {name: os.environ[name] for name in os.environ if name not in _NOT_PASSED_ON}
        self._environment = child_environment({**({} if tls is None else _called(tls)), **own})
        self._data = data
        self._over = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="console-child", daemon=True)

    @property
    def pid(self) -> int:
        """Process id; 0 before the first start."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        self._thread.start()

    def wait_until_ready(self, timeout_s: float = READY_S) -> int | None:
        """Wait until the console answers and return its port.

        Return None if it does not answer; it prints the reason itself.
        """
        until_s = monotonic() + timeout_s
        while monotonic() < until_s and not self._over.wait(LOOK_S):
            try:
                return int(json.loads(self._ready_file.read_text())["console"])
            except (OSError, ValueError, KeyError):
                process = self._process
                if process is not None and process.poll() is not None:
                    return None
        return None

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """Stop the console; return False if it had to be killed."""
        self._over.set()
        process = self._process
        in_order = True
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                in_order = False
                process.kill()
        self._thread.join(timeout_s)
        return in_order

    def _run(self) -> None:
        deaths = 0
        while not self._over.is_set():
            began_s = monotonic()
            why: dict[str, object] = {}
            try:
                why["code"] = self._run_once()
            except OSError as error:  # such as too many open files
                why["reason"] = reason_of(error)
            if self._over.is_set():
                return
            deaths = 1 if monotonic() - began_s > STEADY_S else deaths + 1
            again_in_s = pause_s(deaths + 1)
            log.warning("console ended", **why, again_in_s=again_in_s)
            self._over.wait(again_in_s)

    def _run_once(self) -> int:
        """Run the console to its end; return its exit code. Raises OSError."""
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            env=self._environment,
            process_group=0,  # Ctrl-C is for the server
        ) as process:
            self._process = process
            if self._over.is_set():  # stopped while it was being started
                process.terminate()
            return process.wait()


def _shown(tls: TlsSettings) -> Sequence[str]:
    """Return the options for serving HTTPS with the server's certificate."""
    if tls.port_mode == DISABLED:
        return ()
    if tls.tls_test_mode:
        return ("--https-test",)
    return "--https-cert", tls.tls_server_certificate, "--https-key", tls.tls_server_key


def _called(tls: TlsSettings) -> Mapping[str, str]:
    """Return environment variables for calling servers; this process's variables override them."""
    found = {}
    if tls.tls_server_key_password:
        found[KEY_PASSWORD] = tls.tls_server_key_password
    if isinstance(tls, BrokerTlsSettings) and tls.calls_with_tls:
        files = tls.client_files
        named = {TRUST: files.trust_path, CERTIFICATE: files.cert_path, KEY: files.key_path}
        named[CLIENT_KEY_PASSWORD] = files.key_password
        found |= {ENABLE: "true", **{name: value for name, value in named.items() if value}}
        if tls.tls_test_mode or not tls.tls_checks_server:
            found[AUTH_SERVER] = "false"
    elif tls.port_mode == ENFORCING:
        found[ENABLE] = "true"
        if tls.tls_test_mode:
            found[AUTH_SERVER] = "false"
    return found
