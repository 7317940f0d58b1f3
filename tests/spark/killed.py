"""Spark processes to kill: a driver with its streams, and a cluster of two workers.

    Driver       tests/spark/streaming.py in its own process, with its JVM and Python workers
    Standalone   a master and two worker daemons on loopback, for drivers and executors

An environment variable marks the processes of each. All descendants inherit it, including those
that have lost their parent.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from signal import SIGKILL
from threading import Event, Thread
from time import monotonic
from typing import Any

from spark.runner import environment
from spark.session import prepare_environment
from tests.compat.patience import wait_until
from tests.spark import streaming
from tests.spark.probe import QUICK
from tests.support.golden import REPOSITORY
from troupemq.java import find_java

EVENT_TIMEOUT_S = 180.0
"""Seconds, enough for a start of the JVM and two executors on a busy machine."""

GONE_TIMEOUT_S = 30.0
_MARK = "TROUPEMQ_KILLED_BY_TEST"
_GLANCE_S = 0.002

DRIVER_JVM = "org.apache.spark.deploy.SparkSubmit"
EXECUTOR = "CoarseGrainedExecutorBackend"
PLANNER = "python_streaming_source_runner"
"""Process that asks the source for the offsets of a stream; each query has its own."""

PATIENT = {"spark.python.authenticate.socketTimeout": "120s"}
"""Spark's default of 15 s for the start of its Python processes is too short beside ten others."""

_PYTHON_WORKER = "pyspark.daemon pyspark.worker"


@dataclass(frozen=True, slots=True)
class Process:
    """A process of this machine."""

    pid: int
    parent: int
    command: str

    def kill(self) -> bool:
        """Send SIGKILL; return False if the process has already ended."""
        try:
            os.kill(self.pid, SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def cpu_ns(self) -> int:
        """Return the CPU time of the main thread in ns; 0 after its end."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            return 0


class Marked:
    """All processes that have inherited a mark."""

    def __init__(self, directory: Path) -> None:
        """Take a new `directory` as the mark, and for all scratch files."""
        self.directory = directory
        directory.mkdir(parents=True)

    def environment(self) -> dict[str, str]:
        found = environment(os.environ, find_java(os.environ))
        prepare_environment(QUICK, found)
        return {**found, _MARK: str(self.directory)}

    def processes(self, wanted: str = "") -> list[Process]:
        """Return the processes with `wanted` in their command lines."""
        found = []
        mark = f"{_MARK}={self.directory}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (path / "environ").read_bytes().split(b"\0"):
                    continue
                command = (path / "cmdline").read_text().replace("\0", " ")
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if command and wanted in command:  # a zombie has no command line
                found.append(Process(int(path.name), parent, command))
        return found

    def python_workers(self) -> list[Process]:
        """Return the processes that run tasks, without the daemons that fork them."""
        found = self.processes(_PYTHON_WORKER)
        daemons = {process.pid for process in found}
        return [process for process in found if process.parent in daemons]

    def wait_gone(self, wanted: str = "") -> None:
        wait_until(lambda: not self.processes(wanted), f"{wanted or 'all'} gone", GONE_TIMEOUT_S)

    def remove(self) -> None:
        """Kill the remaining processes, then remove the scratch files."""
        for process in self.processes():
            process.kill()
        self.wait_gone()
        shutil.rmtree(self.directory)


def first_at_work(processes: Callable[[], list[Process]], timeout_s: float) -> Process | None:
    """Return the first process that uses CPU time from now on.

    After the timeout any process, or None without one.
    """
    deadline_s = monotonic() + timeout_s
    known = {process: process.cpu_ns() for process in processes()}
    while monotonic() < deadline_s:
        Event().wait(_GLANCE_S)
        for process, before in known.items():
            if process.cpu_ns() > before:
                return process
        if not known:
            known = {process: process.cpu_ns() for process in processes()}
    return next(iter(processes()), None)


class Driver(Marked):
    """A process with a Spark session that runs streams (tests/spark/streaming.py)."""

    def __init__(
        self,
        directory: Path,
        streams: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory)
        self.events: list[dict[str, Any]] = []
        """Events read so far."""

        self._arrived: SimpleQueue[dict[str, Any]] = SimpleQueue()
        plan = {"settings": {**QUICK, **PATIENT, **(settings or {})}, "streams": streams}
        (directory / "plan.json").write_text(json.dumps(plan))
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", streaming.__name__, str(directory)],
                cwd=REPOSITORY,
                env=self.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._arrived.put(json.loads(line))
        self._arrived.put({"event": "ended"})

    def say(self, command: str) -> None:
        """Send one of the commands of tests/spark/streaming.py."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def wait_for(self, event: str, timeout_s: float = EVENT_TIMEOUT_S) -> dict[str, Any]:
        """Wait for the next event of this name; fail if the process ends before it."""
        deadline_s = monotonic() + timeout_s
        while True:
            try:
                found = self._arrived.get(timeout=max(0.0, deadline_s - monotonic()))
            except Empty:
                raise AssertionError(f"no event {event}: {self.last_words()}") from None
            self.events.append(found)
            if found["event"] == event:
                return found
            assert found["event"] != "ended", self.last_words()

    def count(self, event: str) -> int:
        """Return the number of such events since the last call."""
        self._take_arrived()
        count: int = sum(found["event"] == event for found in self.events)
        self.events.clear()
        return count

    def _take_arrived(self) -> None:
        while not self._arrived.empty():
            self.events.append(self._arrived.get())

    def last_words(self) -> str:
        """Return the last events, and the end of the log without the frames of Java's stacks."""
        self._take_arrived()
        lines = (self.directory / "log").read_text(errors="replace").splitlines()
        told = [line[:400] for line in lines if not line.startswith("\tat ")]
        return "\n".join([f"{self.events[-3:]}", *told[-20:]])

    def jvm(self) -> Process:
        """Return the JVM, not a forked child that has not started its own program yet."""
        found = self.processes(DRIVER_JVM)
        pids = {process.pid for process in found}
        (jvm,) = (process for process in found if process.parent not in pids)
        return jvm

    def kill(self) -> None:
        """Kill the Python process; the JVM must end by itself, and all workers with it."""
        self._process.kill()
        self._process.wait()
        self.wait_gone()

    def kill_jvm(self) -> int:
        """Kill the JVM; return the exit code of the Python process, which must end by itself."""
        self.jvm().kill()
        code = self._process.wait(GONE_TIMEOUT_S)
        self.wait_gone()
        return code

    def close(self) -> None:
        """End the process in any state, and remove its scratch files."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.remove()
        self._reader.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


class Standalone(Marked):
    """A standalone master and two workers of one core each, from the pip package."""

    WORKERS = 2
    SETTINGS: Mapping[str, str] = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"],
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    """Settings of a driver, besides its master."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._launch("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self._wait_for_log("I have been elected leader")
        found = re.search(r"Starting Spark master at (\S+)", self._log())
        assert found is not None, self._log()
        self.master = found[1]
        for _ in range(self.WORKERS):
            self.add_worker()

    def add_worker(self) -> None:
        """Start a worker; return when the master has registered it."""
        known = self._log().count("Registering worker")
        line = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
        line += ["--cores", "1", "--memory", "600m", "--work-dir", str(self.directory / "work")]
        self._launch(*line, self.master)
        self._wait_for_log("Registering worker", known + 1)

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors, as if its machine were lost; start another worker."""
        worker = self._daemons.pop(1 + number)
        executors = [one for one in self.processes(EXECUTOR) if one.parent == worker.pid]
        worker.kill()
        worker.wait()
        for one in executors:
            one.kill()
        self.add_worker()

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        self.remove()

    def _launch(self, name: str, *arguments: str) -> None:
        import pyspark

        more = {
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK["spark.driver.extraJavaOptions"],
        }
        with (self.directory / "log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [
                        str(Path(pyspark.__file__).parent / "bin" / "spark-class"),
                        f"org.apache.spark.deploy.{name}",
                        *arguments,
                    ],
                    env={**self.environment(), **more},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def _wait_for_log(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self._log().count(text) >= times, text, EVENT_TIMEOUT_S)
