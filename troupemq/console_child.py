"""A console beside a server: a child process that is started again when it dies, and ends with us.

The child reads what it never gets: when this process ends, however it does, the pipe does, too.
Nothing of the console is imported here.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from structlog import get_logger

from storage.errors import StoreError
from troupemq.masters.supervisor import STEADY_S, pause_s

log = get_logger(__name__)

STOP_S = 5.0
READY_S = 20.0
LOOK_S = 0.05
NEEDED = ("starlette", "uvicorn", "jinja2")


def console_is_installed() -> bool:
    """Whether what the extra `console` brings is there, and the console itself."""
    folder = Path(__file__).with_name("console")
    return folder.is_dir() and all(find_spec(each) is not None for each in NEEDED)


class ConsoleChild:
    """One console, for as long as the server runs. Raises StoreError if none is installed."""

    def __init__(
        self,
        namesrv: str,
        port: int,
        data: Path,
        *,
        bind_address: str = "127.0.0.1",
        hosts: Sequence[str] = (),
    ) -> None:
        """`namesrv`: host:port, several with `;` between. `data`: its accounts and audit log."""
        if not console_is_installed():
            raise StoreError(
                "The console is not installed: pip install 'troupemq[console]', or set no"
                " consolePort."
            )
        self._ready_file = data / "ready.json"
        self._command = [
            *(sys.executable, "-m", "troupemq", "console", "--until-stdin-ends"),
            *("-n", namesrv, "-p", str(port), "--bind", bind_address, "--data", str(data)),
            *("--ready-file", str(self._ready_file)),
            *(word for host in hosts for word in ("--host", host)),
        ]
        self._data = data
        self._over = Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = Thread(target=self._run, name="console-child", daemon=True)

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Returns at once."""
        self._data.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        self._thread.start()

    def wait_until_ready(self, timeout_s: float = READY_S) -> int | None:
        """The port once it answers; None if it does not, and says itself why."""
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
        """False if it had to be killed."""
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
            with subprocess.Popen(self._command, stdin=subprocess.PIPE) as process:
                self._process = process
                if self._over.is_set():  # told to stop as it was started
                    process.terminate()
                code = process.wait()
            if self._over.is_set():
                return
            deaths = 1 if monotonic() - began_s > STEADY_S else deaths + 1
            again_in_s = pause_s(deaths + 1)
            log.warning("console ended", code=code, again_in_s=again_in_s)
            self._over.wait(again_in_s)
