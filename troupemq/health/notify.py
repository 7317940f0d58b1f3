"""Service manager's protocol (sd_notify): datagrams to the socket named by NOTIFY_SOCKET.

    READY=1, STATUS=…         the server is serving
    EXTEND_TIMEOUT_USEC=…     the start takes longer, for example to recover a large store
    WATCHDOG=1                the event loop has answered; sent at most every WATCHDOG_USEC / 2
    STOPPING=1                the stop has begun

A leading `@` in the name means an abstract socket. Without NOTIFY_SOCKET nothing is sent.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import AF_UNIX, SOCK_CLOEXEC, SOCK_DGRAM, socket
from threading import Event, Thread
from time import monotonic

EXTEND_EVERY_S = 10.0
EXTEND_BY_S = 30.0
START_S_MAX = 3600.0
"""Maximum time of a start; a longer one counts as stuck."""


class Notifier:
    """Sender of notifications; does nothing without a service manager."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment) if name else 0.0
        """Maximum interval of watchdog notifications; 0: no watchdog."""
        self._over = Event()
        self._started = Event()
        self._threads: list[Thread] = []

    def starting(self) -> None:
        """Extend the start's timeout repeatedly until `ready`, `stopping` or `close`."""
        if self._address:
            self._begin(self._extend)

    def ready(self, status: str, is_alive: Callable[[float], bool]) -> None:
        """Report the end of the start. With a watchdog, notify it whenever `is_alive` is true."""
        self._started.set()
        self._send(f"READY=1\nSTATUS={status}")
        if self.watchdog_s:
            self._begin(lambda: self._feed(is_alive))

    def stopping(self) -> None:
        self._started.set()
        self._send("STOPPING=1\nSTATUS=Stopping.")

    def close(self) -> None:
        """End all notifications and their threads."""
        self._started.set()
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = Thread(target=work, name="notify", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _extend(self) -> None:
        until_s = monotonic() + START_S_MAX
        while monotonic() < until_s:
            self._send(f"EXTEND_TIMEOUT_USEC={EXTEND_BY_S * 1e6:.0f}")
            if self._started.wait(EXTEND_EVERY_S):
                return

    def _feed(self, is_alive: Callable[[float], bool]) -> None:
        pause_s = self.watchdog_s / 2
        while True:
            began_s = monotonic()
            if is_alive(pause_s):
                self._send("WATCHDOG=1")
            if self._over.wait(max(0.0, began_s + pause_s - monotonic())):
                return

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC) as sock:
            sock.settimeout(1.0)  # a service manager that hangs must not block the server
            sock.sendto(text.encode(), self._address)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return max(0.0, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
    except ValueError:
        return 0.0
