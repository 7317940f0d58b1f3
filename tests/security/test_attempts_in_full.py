"""Attempts at full counts against a broker's process: who else is served, and what memory it takes.

Only in `make trials`. The attackers are a process of their own that gives way to others; a
neighbour is measured while their attempt comes, and then while it lasts. In turns with a quiet
time, three times: the best of the three ratios of what a neighbour waits counts, for whatever else
runs on this machine is in each of them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from select import select
from time import perf_counter

import pytest

from protocol.codes import RequestCode as Code
from protocol.command import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.offset import QueueHeader
from tests.bench.process_figures import scheduled_us
from tests.compat.patience import wait_until
from tests.security.attackers import AGAIN, ATTEMPTS
from tests.support.brokers import send_command
from tests.support.sockets import Line

ASKED = 400
P99_RATIO = 1.4
MORE_BYTES = 50 << 20
QUIET_US = 200
"""Of processor, for each request; it is some 80."""

START_S = 60.0


@dataclass
class Attacked:
    """A broker's process, and a neighbour of the attackers."""

    port: int
    process: "subprocess.Popen[bytes]"
    neighbour: Line

    def memory_bytes(self) -> int:
        """What is its own: maps of files do not count."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("RssAnon:")]
        return int(line.split()[1]) << 10

    def is_quiet(self) -> bool:
        """It does nothing but answer: 100 requests cost what they cost without an attempt."""
        began_us = scheduled_us(self.process.pid)
        for _ in range(100):
            self.ask()
        return scheduled_us(self.process.pid) - began_us < 100 * QUIET_US

    def p99_ms(self) -> float:
        """What the neighbour waits for an answer."""
        return p99([self.waits_ms() for _ in range(ASKED)])

    def waits_ms(self) -> float:
        began_s = perf_counter()
        self.ask()
        return (perf_counter() - began_s) * 1000

    def ask(self) -> None:
        header = QueueHeader("Topic", 0).encode()
        assert self.neighbour.ask(RemotingCommand(Code.GET_MAX_OFFSET, header)).code == 0


def p99(waits_ms: list[float]) -> float:
    return sorted(waits_ms)[len(waits_ms) * 99 // 100]


@contextmanager
def broker_process(root: Path) -> Iterator[Attacked]:
    ready = root / "ready.json"
    settings = {
        "storePathRootDir": str(root / "store"),
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": "0",
        "mappedFileSizeCommitLog": str(16 << 20),
        "mappedFileSizeConsumeQueue": "60000",
        "maxHashSlotNum": "2000",
        "maxIndexNum": "8000",
    }
    options = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    command = [sys.executable, "-m", "troupemq", "broker", *options, "--ready-file", str(ready)]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(
                lambda: process.poll() is not None or (ready.exists() and bool(ready.read_text())),
                "ready",
                START_S,
            )
            assert process.poll() is None, (root / "log").read_text()
            port = json.loads(ready.read_text())["broker"]
            with Line.to(port) as neighbour:
                header = CreateTopicHeader("Topic", "TBW102", 4, 4, 6, "SINGLE_TAG")
                made = RemotingCommand(Code.UPDATE_AND_CREATE_TOPIC, header.encode())
                assert neighbour.ask(made).code == 0
                for _ in range(64):  # what A39 asks for
                    send = send_command(bytes(60_000), topic="Topic", queue_id=0)
                    assert neighbour.ask(send).code == 0
                yield Attacked(port, process, neighbour)
        finally:
            process.terminate()
            process.wait(60)


MEMORY = {"A40": 100_000 * 1500}
"""What more than 50 MiB an attempt may take: what ten connections may have wait."""

ROUNDS = {"A40": 1}
"""If not three: a round of it is 20 s of processor."""


class Attackers:
    """Their process, and what the neighbour waits while they are at it."""

    def __init__(self, name: str, broker: Attacked) -> None:
        command = [sys.executable, "-m", "tests.security.attackers", name, str(broker.port)]
        self._broker = broker
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin and self._process.stdout
        self._told, self._says = self._process.stdin, self._process.stdout
        self.said = ""
        self.waits_ms: list[float] = []
        self._until_all_has_come()

    def _until_all_has_come(self) -> None:
        while not select([self._says], [], [], 0)[0]:
            self.waits_ms.append(self._broker.waits_ms())
        self.said = self._says.readline().decode().strip()
        assert self.said, "they failed"

    def again(self) -> None:
        self._told.write(f"{AGAIN}\n".encode())
        self._told.flush()
        self._until_all_has_come()

    def close(self) -> None:
        self._process.communicate(timeout=START_S)


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = getrlimit(RLIMIT_NOFILE)
    if soft < 8192 <= hard:
        setrlimit(RLIMIT_NOFILE, (8192, hard))
    yield
    setrlimit(RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow(seconds=60)
@pytest.mark.trial(short=0, long=1, every=4)
@pytest.mark.parametrize("name", ATTEMPTS)
def test_nobody_else_notices(
    name: str, seed: int, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    coming, held, quiet_ms, more = [], [], [], 0
    with broker_process(tmp_path) as broker:
        broker.p99_ms()
        for _ in range(ROUNDS.get(name, 3)):
            before = broker.memory_bytes()
            quiet_ms.append(broker.p99_ms())
            with closing(Attackers(name, broker)) as attackers:
                while len(attackers.waits_ms) < ASKED:
                    attackers.again()
                coming.append(p99(attackers.waits_ms))
                wait_until(broker.is_quiet, "what has come is dealt with", START_S)
                held.append(broker.p99_ms())
                more = max(more, broker.memory_bytes() - before)
            broker.p99_ms()  # until what was opened is closed
        assert broker.process.poll() is None
    ratios = [
        min(each / quiet for each, quiet in zip(found, quiet_ms, strict=True))
        for found in (coming, held)
    ]
    middle = sorted(attackers.waits_ms)[len(attackers.waits_ms) // 2]
    tell(
        f"{name}: {attackers.said}; p99 of another {min(quiet_ms):.2f} ms before,"
        f" {min(coming):.2f} while they come (half of it below {middle:.2f}),"
        f" {min(held):.2f} under it"
        f" (best ratios {ratios[0]:.2f}, {ratios[1]:.2f}), memory + {more >> 20} MiB"
    )
    assert more <= MORE_BYTES + MEMORY.get(name, 0)
    assert ratios[1] <= P99_RATIO  # while they come, attackers and the rest of a machine count, too
