"""A broker under a service manager, which this test plays, with what the units say: Type=notify.

Ready only when it serves; aborted and started again when its loop is stuck, as WatchdogSec and
Restart=on-failure do; stopped in order.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket

import pytest

from actors.config import parse_namesrv_config
from tests.compat.patience import wait_until
from tests.compat.remoting import has_route
from tests.compat.servers import HOST, SMALL_FILES, accepts, free_port
from troupemq import ClientError, ConsumeFrom, Message, MessageView, Producer, PushConsumer
from troupemq.servers import Servers

WAIT_S = 60.0
WATCHDOG_S = 2.0
BODIES = [b"%d" % number for number in range(20)]
PROGRAM = """
from functools import partial
from time import sleep
from actors import broker_server
from troupemq.__main__ import main

class Sticks:
    def before_send(self, context):
        if context.topic == "Sticks":
            sleep(600)

broker_server.start_broker = partial(broker_server.start_broker, hooks=[Sticks()])
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
        """Return the notifications up to this one."""
        self._socket.settimeout(WAIT_S)
        found: list[str] = []
        while not found or found[-1] != text:
            found.append(self._socket.recv(4096).decode().partition("\n")[0])
        return found

    def starts_it_again_when_it_is_silent(self) -> None:
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


@pytest.fixture
def namesrv() -> Iterator[str]:
    servers = Servers(lambda reason: None)
    config, _ = parse_namesrv_config("", {"listenPort": "0", "bindAddress": HOST})
    servers.start_namesrv(config)
    yield f"{HOST}:{servers.ports['namesrv']}"
    servers.stop(20)


@pytest.mark.slow(seconds=10)
def test_systemd_starts_a_unit_restarts_it_when_stuck_and_stops_it_in_order(
    namesrv: str, tmp_path: Path
) -> None:
    port = free_port()
    own = {"listenPort": str(port), "bindAddress": HOST, "brokerIP1": HOST, **SMALL_FILES}
    own["storePathRootDir"] = str(tmp_path / "store")
    settings = [word for each in own.items() for word in ("-s", "=".join(each))]
    manager = Manager([sys.executable, "-c", PROGRAM, "broker", "-n", namesrv, *settings])
    try:
        assert set(manager.hears("READY=1")[:-1]) == {"EXTEND_TIMEOUT_USEC=30000000"}
        assert accepts(f"{HOST}:{port}")
        wait_until(lambda: has_route(namesrv, "TBW102"), "it is registered")
        with Producer("of-a-service", namesrv) as producer:
            for body in BODIES:
                producer.send(Message("Kept", body))
            manager.hears("WATCHDOG=1")
            with pytest.raises(ClientError):
                producer.send(Message("Sticks", b"x"), timeout_ms=100)
        manager.starts_it_again_when_it_is_silent()
        assert "STOPPING=1" not in manager.hears("READY=1")
        assert sorted(consumed(namesrv)) == sorted(BODIES)
        manager.process.terminate()
        assert "READY=1" not in manager.hears("STOPPING=1")
        assert manager.process.wait(WAIT_S) == 0
    finally:
        manager.close()
    assert not (tmp_path / "store" / "abort").exists()


def consumed(namesrv: str) -> list[bytes]:
    got: list[bytes] = []

    def take(messages: Sequence[MessageView]) -> None:
        got.extend(each.body for each in messages)

    with PushConsumer("readers", take, namesrv, begin=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe("Kept", "*")
        wait_until(lambda: len(got) >= len(BODIES), "all messages")
    return got
