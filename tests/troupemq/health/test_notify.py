"""Tests of troupemq/health/notify.py: the service manager is the other end of a socket."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from threading import Event

import pytest

from troupemq.daemon import Serving, serve
from troupemq.health.notify import Notifier

WAIT_S = 20.0
OnGiveUp = Callable[[str], None]


class Manager:
    """Hears what a service tells."""

    def __init__(self, address: str) -> None:
        self._socket = socket(AF_UNIX, SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(WAIT_S)

    def heard(self) -> str:
        return self._socket.recv(4096).decode().partition("\n")[0]

    def silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            pass
        self._socket.settimeout(WAIT_S)
        return True

    def is_empty(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(WAIT_S)
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    monkeypatch.chdir(tmp_path)  # a long path would not fit into the address
    name = "notify" if request.param == "path" else f"@troupemq-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    manager = Manager(name.replace("@", "\0"))
    yield manager
    manager.close()


def test_systemd_is_notified_of_ready_and_stopping_in_order(manager: Manager) -> None:
    told: list[str] = []

    def start(_: OnGiveUp) -> Serving:
        told.append(manager.heard())
        assert manager.is_empty()
        return Serving({"broker": 10911}, stop)

    def stop(_: float) -> bool:
        told.append(manager.heard())
        return True

    def work(_: Event) -> None:
        told.append(manager.heard())

    assert serve(start, work=work, once=True) == 0
    assert told == ["EXTEND_TIMEOUT_USEC=30000000", "READY=1", "STOPPING=1"]
    assert manager.is_empty()


def test_a_start_that_fails_is_never_ready(manager: Manager) -> None:
    def start(_: OnGiveUp) -> Serving:
        raise OSError(13, "Permission denied", "/store")

    assert serve(start) == 14
    assert manager.heard().startswith("EXTEND_TIMEOUT_USEC=")
    assert manager.is_empty()


def test_a_stuck_loop_does_not_feed_the_watchdog(manager: Manager) -> None:
    """And does so again when it goes round again."""
    asked, answer, twice = Event(), [True], []

    def is_alive(timeout_s: float) -> bool:
        assert timeout_s == 0.05
        if not answer[0]:
            twice.append(1)
            if len(twice) == 3:
                asked.set()
        return answer[0]

    notifier = Notifier({"NOTIFY_SOCKET": os.environ["NOTIFY_SOCKET"], "WATCHDOG_USEC": "100000"})
    try:
        notifier.ready("Serves.", is_alive)
        assert [manager.heard() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
        answer[0] = False
        assert asked.wait(WAIT_S)  # a thread with a pending notification has sent it by now
        manager.silent()
        asked.clear()
        twice.clear()
        assert asked.wait(WAIT_S)
        assert manager.is_empty()
        answer[0] = True
        assert manager.heard() == "WATCHDOG=1"
    finally:
        notifier.close()


@pytest.mark.parametrize(
    "more",
    [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}],
)
def test_a_watchdog_for_another_process_is_ignored(more: dict[str, str]) -> None:
    assert Notifier({"NOTIFY_SOCKET": "@nobody", **more}).watchdog_s == 0


def test_without_a_manager_nothing_is_sent() -> None:
    for environment in ({}, {"NOTIFY_SOCKET": "/no/such/socket", "WATCHDOG_USEC": "1000000"}):
        notifier = Notifier(environment)
        notifier.starting()
        notifier.ready("Serves.", lambda _: True)
        notifier.stopping()
        notifier.close()
