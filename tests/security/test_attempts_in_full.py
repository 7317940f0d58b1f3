"""Attempts at full counts against a broker's process: who else is served, and what memory it takes.

Only in `make trials`. The neighbour is measured while an attempt lasts, once all of it has come:
not while it comes, for then the attackers take the processors of the same machine. In turns with a
quiet time, three times: the best of the three ratios of what a neighbour waits counts, for whatever
else runs on this machine is in each of them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from socket import create_connection, socket
from struct import pack
from time import perf_counter

import pytest

from protocol.codes import RequestCode as Code
from protocol.command import RemotingCommand
from protocol.frame import FRAME_BYTES_MAX, encode
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.offset import QueueHeader
from tests.compat.patience import wait_until
from tests.support.brokers import pull_command, send_command
from tests.support.sockets import Line

ASKED = 400
ROUNDS = 3
P99_RATIO = 1.4
MORE_BYTES = 50 << 20
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

    def p99_ms(self) -> float:
        """What the neighbour waits for an answer."""
        waits = []
        for _ in range(ASKED):
            began_s = perf_counter()
            self.ask()
            waits.append((perf_counter() - began_s) * 1000)
        return sorted(waits)[ASKED * 99 // 100]

    def ask(self) -> None:
        header = QueueHeader("Topic", 0).encode()
        assert self.neighbour.ask(RemotingCommand(Code.GET_MAX_OFFSET, header)).code == 0

    def connect(self, stack: ExitStack, receive_bytes: int | None = None) -> socket:
        line = stack.enter_context(create_connection(("127.0.0.1", self.port), START_S))
        if receive_bytes is not None:
            line.setsockopt(1, 8, receive_bytes)  # SOL_SOCKET, SO_RCVBUF
        return line


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
                yield Attacked(port, process, neighbour)
        finally:
            process.terminate()
            process.wait(60)


# --- the attempts: each sets something up that lasts until its stack is closed


def a1_slow_bytes(broker: Attacked, stack: ExitStack) -> str:
    for _ in range(500):
        broker.connect(stack).sendall(b"\0")
    return "500 connections, a byte each"


def a2_half_frames(broker: Attacked, stack: ExitStack) -> str:
    head = pack(">iI", FRAME_BYTES_MAX - 4, 100)
    closed = 0
    for _ in range(1000):
        line = broker.connect(stack)
        try:
            line.sendall(head + bytes(1 << 20))
        except OSError:
            closed += 1
    return "1,000 half frames of 16 MiB, 1 MiB of each sent"


def a4_impossible_lengths(broker: Attacked, stack: ExitStack) -> str:
    for number in range(1000):
        line = broker.connect(stack)
        line.sendall(pack(">iI", (0, 3, -1, (1 << 31) - 1)[number % 4], 10))
    return "1,000 lengths that cannot be"


def a38_connections(broker: Attacked, stack: ExitStack) -> str:
    for _ in range(5000):
        broker.connect(stack)
    return "5,000 connections from one address"


def a39_greedy_pullers(broker: Attacked, stack: ExitStack) -> str:
    for _ in range(64):
        assert (
            broker.neighbour.ask(send_command(bytes(60_000), topic="Topic", queue_id=0)).code == 0
        )
    pull = encode(pull_command())
    for _ in range(100):
        line = broker.connect(stack, 4096)
        line.settimeout(1)
        try:
            line.sendall(pull * 128)  # a quarter of a megabyte each
        except OSError:
            continue
    return "100 pullers that ask 32 MiB and read nothing"


ATTEMPTS: dict[str, Callable[[Attacked, ExitStack], str]] = {
    "A1": a1_slow_bytes,
    "A2": a2_half_frames,
    "A4": a4_impossible_lengths,
    "A38": a38_connections,
    "A39": a39_greedy_pullers,
}
MEMORY = {
    "A2": 64 << 20,  # of one address
    "A38": 5000 * (10 << 10),
    "A39": 200 << 20,  # what was not taken of one call is copied, and the frames' heads
}
"""What more than 50 MiB an attempt may take: limits of docs/security.md, as far as they go."""


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
    ratios, quiet_ms, attacked_ms, more = [], [], [], 0
    with broker_process(tmp_path) as broker:
        broker.p99_ms()
        for _ in range(ROUNDS):
            before = broker.memory_bytes()
            quiet_ms.append(broker.p99_ms())
            with ExitStack() as stack:
                said = ATTEMPTS[name](broker, stack)
                broker.p99_ms()  # until all of it has come
                attacked_ms.append(broker.p99_ms())
                more = max(more, broker.memory_bytes() - before)
            ratios.append(attacked_ms[-1] / quiet_ms[-1])
            broker.p99_ms()  # until what was opened is closed
        assert broker.process.poll() is None
    best = min(ratios)
    quiet, attacked = min(quiet_ms), min(attacked_ms)
    tell(
        f"{name}: {said}; p99 of another {quiet:.2f} ms before, {attacked:.2f} ms under it"
        f" (best ratio {best:.2f}), memory + {more >> 20} MiB"
    )
    assert more <= MORE_BYTES + MEMORY.get(name, 0)
    assert best <= P99_RATIO
