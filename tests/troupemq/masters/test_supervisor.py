"""Several processes under one: started, restarted each alone, stopped together; one log of all.

The supervisor is the real one; in place of brokers it has programs of some lines.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from socket import AF_UNIX, SOCK_DGRAM, socket
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from tests.compat.patience import wait_until
from troupemq.masters import supervisor
from troupemq.masters.supervisor import (
    BrokerProcess,
    MastersPlan,
    PlannedBroker,
    labelled,
    pause_s,
)

WAIT_S = 30.0
BROKER = """
import json, os, signal, sys
name, ready, how = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(HOW_IT_STOPS))
print(f"{name} begins", file=sys.stderr, flush=True)
if how == "fails":
    sys.exit(f"troupemq: {name} has no disk.")
if how == "fails later" and os.path.exists(ready + ".before"):
    sys.exit("troupemq: the port is taken.")
for path in (ready + ".before", ready + ".new"):
    with open(path, "w") as file:
        json.dump({"pid": os.getpid(), "broker": 10911, "ha": 10912}, file)
os.rename(ready + ".new", ready)
while True:
    signal.pause()
"""
STOPS_IN_ORDER, STOPS_BADLY, NEVER_STOPS = (
    BROKER.replace("sys.exit(HOW_IT_STOPS)", how) for how in ("sys.exit(0)", "sys.exit(1)", "None")
)

SPARE = """
import json, os, sys
print("waits", os.getpid(), file=sys.stderr, flush=True)
command = json.loads(sys.stdin.readline())
os.execv(command[0], command)
"""
"""The fake spare executes its command as a program, to show it; a real spare runs it itself."""

BROKER_WITH_JSON = STOPS_IN_ORDER.replace('f"{name} begins"', 'json.dumps({"event": "begins"})')


class Supervised:
    """A supervisor that runs."""

    def __init__(
        self,
        folder: Path,
        brokers: dict[str, str],
        program: str,
        as_json: bool,
        environment: Mapping[str, str],
        spare: str | None,
    ) -> None:
        self.log = folder / "log"
        self.ready = folder / "ready"
        instances = []
        for name, how in brokers.items():
            executable = "missing" if how == "missing" else sys.executable
            ready = str(folder / f"{name}.ready")
            command = [executable, "-I", "-S", "-c", program, name, ready, how]
            instances.append(PlannedBroker(name, command, ready))
        waits = None if spare is None else [sys.executable, "-I", "-S", "-c", spare]
        plan = folder / "plan.json"
        found = MastersPlan(instances, str(self.ready), as_json, spare=waits)
        plan.write_text(json.dumps(asdict(found)))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(plan), "0"],
                stderr=log,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def says(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.log.read_text().count(text) >= times, text, WAIT_S)

    def serves(self) -> dict[str, Any]:
        """The ready file, once all serve."""
        wait_until(lambda: self.ready.exists() or self.process.poll() is not None, "ready", WAIT_S)
        found: dict[str, Any] = json.loads(self.ready.read_text())
        return found

    def pids(self) -> list[int]:
        return [each["pid"] for each in self.serves()["masters"]]

    def ends(self) -> int:
        return self.process.wait(WAIT_S)


Start = Callable[..., Supervised]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def start(
        program: str = STOPS_IN_ORDER,
        *,
        as_json: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        spare: str | None = None,
        **how: str,
    ) -> Supervised:
        brokers = {"broker-a": "serves", "broker-b": "serves"} | {
            name.replace("_", "-"): each for name, each in how.items()
        }
        started.append(Supervised(tmp_path, brokers, program, as_json, environment, spare))
        return started[-1]

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where nohup runs the tests
    yield start
    signal.signal(signal.SIGHUP, before)
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_each_log_line_names_its_master_and_json_stays_json() -> None:
    assert labelled(b"12:00 info    stopping", "b-1") == b"12:00 info    stopping broker=b-1"
    assert json.loads(labelled(b'{"event": "x"}', "b-1")) == {"event": "x", "broker": "b-1"}


def test_repeated_deaths_lengthen_the_pause() -> None:
    assert [pause_s(deaths) for deaths in range(1, 9)] == [0, 1, 2, 4, 8, 16, 30, 30]


@pytest.mark.slow
def test_the_ready_file_lists_all_masters_and_is_removed_at_the_end(start: Start) -> None:
    running = start()
    found = running.serves()
    assert (found["pid"], found["broker"]) == (running.process.pid, 10911)
    assert [each["name"] for each in found["masters"]] == ["broker-a", "broker-b"]
    running.process.terminate()
    assert running.ends() == 0
    assert not running.ready.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_stops_all_masters_in_order(start: Start, number: signal.Signals) -> None:
    running = start()
    pids = running.pids()
    running.process.send_signal(number)
    assert running.ends() == 0
    assert all(map(is_gone, pids))
    assert f"stop requested signal={number.name}" in running.lines()[-1]


@pytest.mark.slow
def test_ctrl_c_reaches_the_supervisor_alone(start: Start) -> None:
    """A terminal signals the group: each broker would be told twice, and end at once."""
    running = start()
    assert all(os.getpgid(pid) != os.getpgid(running.process.pid) for pid in running.pids())
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.ends() == 0


@pytest.mark.slow
def test_an_unclean_stop_of_a_master_is_exit_code_1(start: Start) -> None:
    running = start(STOPS_BADLY)
    running.serves()
    running.process.terminate()
    assert running.ends() == 1


@pytest.mark.slow
def test_a_second_signal_kills_all_brokers(start: Start) -> None:
    running = start(NEVER_STOPS)
    pids = running.pids()
    running.process.send_signal(signal.SIGTERM)
    running.says("stop requested")
    running.process.send_signal(signal.SIGTERM)  # the same one
    running.process.send_signal(signal.SIGHUP)  # a closed terminal adds nothing
    running.process.send_signal(signal.SIGINT)
    assert running.ends() == 1
    assert all(map(is_gone, pids))
    assert "Received a second signal." in running.lines()[-1]


@pytest.mark.slow
def test_a_dead_broker_is_restarted_alone(start: Start) -> None:
    running = start()
    first, second = running.pids()
    os.kill(second, signal.SIGKILL)
    running.says("broker restarted after_ms=")
    wait_until(lambda: running.pids()[1] != second, "the new pid", WAIT_S)
    assert running.pids()[0] == first and not is_gone(first)
    died = next(line for line in running.lines() if "broker ended" in line)
    assert died.endswith("broker ended how=SIGKILL again_in_s=0 broker=broker-b")
    running.process.terminate()
    assert running.ends() == 0


def spares(running: Supervised) -> list[int]:
    """The process of each that there has been."""
    words = [line.split() for line in running.lines()]
    return [int(each[1]) for each in words if each[0] == "waits" and each[2] == "broker=spare"]


@pytest.mark.slow
def test_a_dead_broker_restarts_in_the_spare_and_a_new_spare_starts(
    start: Start,
) -> None:
    running = start(spare=SPARE)
    first, second = running.pids()
    running.says("waits")
    [waiting] = spares(running)
    os.kill(second, signal.SIGKILL)
    running.says("broker restarted")
    running.says("waits", times=2)
    assert running.pids() == [first, waiting]
    assert running.log.read_text().count("broker-b begins broker=broker-b") == 2
    next_one = spares(running)[1]
    running.process.terminate()
    assert running.ends() == 0
    wait_until(lambda: is_gone(next_one), "the spare is gone", WAIT_S)
    assert "spare process ended" not in running.log.read_text()


@pytest.mark.slow
def test_without_a_spare_a_dead_broker_gets_a_new_process(start: Start) -> None:
    running = start(spare=SPARE)
    second = running.pids()[1]
    running.says("waits")
    [waiting] = spares(running)
    os.kill(waiting, signal.SIGKILL)
    running.says("spare process ended")
    os.kill(second, signal.SIGKILL)
    running.says("broker restarted")
    wait_until(lambda: running.pids()[1] not in (second, waiting), "the new pid", WAIT_S)
    running.says("waits", times=2)
    running.process.kill()
    running.ends()
    wait_until(lambda: is_gone(spares(running)[1]), "the spare is gone", WAIT_S)


@pytest.mark.slow
def test_an_impossible_start_stops_all_with_one_sentence(start: Start) -> None:
    running = start(broker_b="fails")
    assert running.ends() == 1
    assert "troupemq: broker-b has no disk. broker=broker-b" in running.lines()
    assert not running.ready.exists()


@pytest.mark.slow
def test_a_missing_program_stops_all(start: Start) -> None:
    running = start(broker_b="missing")
    assert running.ends() == 1
    assert "troupemq: Cannot start broker-b: No such file or directory." in running.lines()


@pytest.mark.slow
def test_a_failed_restart_is_retried_while_the_others_serve(start: Start) -> None:
    running = start(broker_b="fails later")
    first, second = running.pids()
    os.kill(second, signal.SIGKILL)
    running.says("broker ended how='exit code 1' again_in_s=1 broker=broker-b")
    running.says("troupemq: the port is taken. broker=broker-b", times=2)
    assert not is_gone(first)
    running.process.terminate()
    assert running.ends() == 0


@pytest.mark.slow
def test_a_ready_file_that_cannot_be_written_again_stops_no_broker(start: Start) -> None:
    """A full disk, or a folder that was gone, stopped all masters when one had restarted."""
    running = start()
    first, second = running.pids()
    Path(f"{running.ready}.tmp").mkdir()
    os.kill(second, signal.SIGKILL)
    running.says("It names the process before the restart.")
    running.says("broker-b begins", times=2)
    assert running.process.poll() is None
    assert not is_gone(first)
    running.process.terminate()
    assert running.ends() == 0


def test_a_ready_file_from_before_keeps_its_space_and_is_not_believed(tmp_path: Path) -> None:
    """In a container the next process often has the same process id."""
    ready, process = tmp_path / "ready", Mock(pid=7)
    ready.write_text('{"pid": 7, "broker": 10911}\n')
    broker = BrokerProcess(PlannedBroker("broker-a", (), str(ready)))
    broker.start(lambda: process)
    assert not broker.look_whether_it_serves()
    assert ready.stat().st_size == 28


@pytest.mark.slow
def test_the_brokers_end_when_their_supervisor_is_killed(start: Start) -> None:
    running = start()
    pids = running.pids()
    running.process.kill()
    assert running.ends() == -signal.SIGKILL
    wait_until(lambda: all(map(is_gone, pids)), "the brokers are gone", WAIT_S)


@pytest.mark.slow
def test_every_line_of_the_log_is_json_and_names_its_broker(start: Start) -> None:
    running = start(BROKER_WITH_JSON, as_json=True)
    _, second = running.pids()
    os.kill(second, signal.SIGKILL)
    running.says("broker restarted")
    running.process.terminate()
    assert running.ends() == 0
    lines = [json.loads(line) for line in running.lines()]
    assert {line["broker"] for line in lines if line["event"] == "begins"} == {
        "broker-a",
        "broker-b",
    }
    ended = next(line for line in lines if line["event"] == "broker ended")
    assert (ended["how"], ended["broker"], ended["level"]) == ("SIGKILL", "broker-b", "warning")


@pytest.mark.slow
def test_unfinished_lines_and_open_log_pipes_block_nothing(
    start: Start,
) -> None:
    """A job of a broker may live on for a while, with the pipe of its log."""
    program = STOPS_IN_ORDER.replace(
        "while True:",
        """if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(20)
else:
    print("the last words", end="", file=sys.stderr, flush=True)
while True:""",
    )
    running = start(program)
    running.serves()
    running.process.terminate()
    assert running.process.wait(10) == 0
    assert running.log.read_text().count("the last words broker=broker-") == 2


WATCHED = STOPS_IN_ORDER.replace(
    "signal.pause()",
    """import socket, time
    address = os.environ["NOTIFY_SOCKET"].replace("@", chr(0))
    while not os.path.exists(ready + ".stuck"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"WATCHDOG=1", address)
        time.sleep(int(os.environ["WATCHDOG_USEC"]) / 4e6)
    signal.pause()""",
)


@pytest.mark.slow
def test_systemd_is_notified_and_only_a_stuck_broker_is_restarted(
    start: Start, tmp_path: Path
) -> None:
    name = f"troupemq-supervisor-test-{os.getpid()}"
    with socket(AF_UNIX, SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(WAIT_S)

        def heard(text: str) -> list[str]:
            """Return the notifications up to this one."""
            found: list[str] = []
            while not found or found[-1] != text:
                found.append(manager.recv(4096).decode().partition("\n")[0])
            return found

        watchdog = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "4000000"}
        running = start(WATCHED, environment=watchdog, broker_b="sticks")
        assert set(heard("READY=1")[:-1]) <= {"EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1"}
        heard("WATCHDOG=1")
        first, second = running.pids()
        stuck = tmp_path / "broker-b.ready.stuck"
        stuck.touch()
        running.says("broker aborted why='event loop hangs' broker=broker-b")
        stuck.unlink()
        running.says("broker ended how=SIGABRT")
        running.says("broker restarted")
        assert is_gone(second) and not is_gone(first)
        running.process.terminate()
        heard("STOPPING=1")
        assert running.ends() == 0
