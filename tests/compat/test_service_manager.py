"""A broker under a service manager, which this test plays, with what the units say: Type=notify.

Ready only when it serves; aborted and started again when its loop is stuck, as WatchdogSec and
Restart=on-failure do; stopped in order.
"""

import os
import signal
import subprocess
from socket import AF_UNIX, SOCK_DGRAM, socket

HOST = "127.0.0.1"
WAIT_S = 60.0
WATCHDOG_S = 1.0
MESSAGES = 20
PROGRAM = """
from functools import partial
from time import sleep
from troupemq import servers
from troupemq.__main__ import main

class Sticks:
    def before_send(self, context):
        if context.topic == "Sticks":
            sleep(600)

servers.start_broker = partial(servers.start_broker, hooks=[Sticks()])
main()
"""
"""A broker whose loop one message holds."""


class Manager:
    """Starts the service, hears what it tells, and does what systemd would."""

    def __init__(self, command: list[str]) -> None:
        name = f"troupemq-manager-{os.getpid()}"
        self._command = command
        self._own = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}"}
        self._socket = socket(AF_UNIX, SOCK_DGRAM)
        self._socket.bind(f"\0{name}")
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env={**os.environ, **self._own})

    def hears(self, text: str) -> list[str]:
        """What is told up to this."""
        self._socket.settimeout(WAIT_S)
        found: list[str] = []
        while not found or found[-1] != text:
            found.append(self._socket.recv(4096).decode().partition("\n")[0])
        return found

    def restarts_it_when_the_watchdog_is_hungry(self) -> None:
        self._socket.settimeout(WATCHDOG_S)
        try:
            while self._socket.recv(4096) == b"WATCHDOG=1":
                pass
        except TimeoutError:
            self.process.send_signal(signal.SIGABRT)
        assert self.process.wait(WAIT_S) == -signal.SIGABRT
        self.process = self._started()

    def close(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()
