"""Standalone Spark cluster on this machine, started from the pip package of pyspark.

The package has no start scripts, but `bin/spark-class` runs the classes of a master and of workers.
All processes listen on loopback only. They require a secret, which is in a file and on no command
line. Signals end them by process group.
"""

import json
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen, TimeoutExpired
from threading import Lock
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from actors.settings.extras import install_command
from storage.errors import StoreError

LOOPBACK = "127.0.0.1"
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
DAEMON_MEMORY = "256m"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for processes that live for a minute only."""

HTTP_TIMEOUT_S = 5.0
END_TIMEOUT_S = 5.0


class ClusterFailed(StoreError):
    """Failure of a process of the cluster."""


@dataclass(frozen=True)
class Worker:
    """Worker process and the directory of its executors."""

    process: Popen[bytes]
    directory: Path

    def has_executor(self, number: str) -> bool:
        """Return whether this worker runs the executor `number`."""
        return any(self.directory.glob(f"app-*/{number}"))

    def kill(self) -> None:
        """Kill the worker and its executors at once, like a power failure."""
        os.killpg(self.process.pid, signal.SIGKILL)


class SparkCluster:
    """Spark master and its workers; `stop` may run on any thread at any time."""

    def __init__(
        self, directory: Path, java_home: str, secret: str, environment: Mapping[str, str]
    ) -> None:
        """Write the settings into `directory`, which exists and also gets logs and executors."""
        self._directory = directory
        self._port, self._web_port = free_ports(2)
        self._processes: list[Popen[bytes]] = []
        self._lock = Lock()
        self._is_over = False
        self._settings = directory / "cluster.conf"
        write_secretly(
            self._settings, f"spark.authenticate=true\nspark.authenticate.secret={secret}\n"
        )
        kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
        self._environment = {
            **kept,
            "JAVA_HOME": java_home,
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_IP": LOOPBACK,  # otherwise its web pages listen on all interfaces
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        }

    @property
    def url(self) -> str:
        """Value of spark.master."""
        return f"spark://{LOOPBACK}:{self._port}"

    def start_master(self) -> None:
        ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
        self._start("master", MASTER_CLASS, "--host", LOOPBACK, *ports)

    def start_worker(self, cores: int, memory: str) -> Worker:
        name = f"worker-{len(self._processes)}"
        directory = self._directory / name
        options = ["--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(directory)]
        options += ["--cores", str(cores), "--memory", memory]
        return Worker(self._start(name, WORKER_CLASS, *options, self.url), directory)

    def workers_alive(self) -> int:
        """Return the number of workers that the master lists; 0 before it answers.

        Raises ClusterFailed if it has ended.
        """
        state = answer(f"http://{LOOPBACK}:{self._web_port}/json/")
        if state is None and any(each.poll() is not None for each in self._processes):
            raise ClusterFailed(f"the Spark cluster has ended: see its logs in {self._directory}")
        return 0 if state is None else int(state["aliveworkers"])

    def stop(self) -> None:
        """Terminate all processes; later starts fail."""
        with self._lock:
            self._is_over = True
            for process in self._processes:
                if process.poll() is None:
                    end_group(process, signal.SIGTERM)
        for process in reversed(self._processes):
            wait_or_kill(process)

    def kill(self) -> None:
        """Kill all processes without waiting."""
        for process in self._processes:
            end_group(process, signal.SIGKILL)

    def _start(self, name: str, *command: str) -> Popen[bytes]:
        runner = str(spark_home() / "bin" / "spark-class")
        first, *others = command
        line = [runner, first, "--properties-file", str(self._settings), *others]
        with self._lock, (self._directory / f"{name}.log").open("wb") as log:
            if self._is_over:
                raise ClusterFailed("the Spark cluster was stopped during its start")
            process = Popen(
                line,
                env=self._environment,
                cwd=self._directory,
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                start_new_session=True,
            )
            self._processes.append(process)
        return process


def spark_home() -> Path:
    """Return the installation directory of pyspark. Raises ClusterFailed without one."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ClusterFailed(f"Spark is not installed: {install_command('spark')}")
    return Path(spec.origin).parent


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def answer(url: str) -> Any:
    """Return the JSON of a Spark page; None if it does not answer."""
    try:
        with urlopen(url, timeout=HTTP_TIMEOUT_S) as page:
            return json.load(page)
    except (URLError, OSError, ValueError):
        return None


def write_secretly(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)


def end_group(process: Popen[Any], number: int) -> None:
    """Send a signal to the process group of `process`."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def wait_or_kill(process: Popen[Any], timeout_s: float = END_TIMEOUT_S) -> None:
    """Wait for a terminated process, then kill its group."""
    with suppress(TimeoutExpired):  # the kill below ends it
        process.wait(timeout_s)
    end_group(process, signal.SIGKILL)
    process.wait()
