"""A standalone Spark cluster on this machine, made of nothing but the pip package of pyspark.

That has no scripts to start one, but `bin/spark-class` runs the classes: a master, and workers that
each run executors for the jobs. All listens on loopback only, and asks for a secret, which lies in
a file and is on no command line. Everything is ended by its process group.
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
"""For processes that live for a minute: compiling well would not pay."""

HTTP_TIMEOUT_S = 5.0
END_TIMEOUT_S = 5.0


class ClusterFailed(StoreError):
    """A process of the cluster did not do what it is for; the text says which."""


@dataclass(frozen=True)
class Worker:
    """One worker, and where it keeps the executors of its jobs."""

    process: Popen[bytes]
    directory: Path

    def has_executor(self, number: str) -> bool:
        """Whether it was started here."""
        return any(self.directory.glob(f"app-*/{number}"))

    def kill(self) -> None:
        """As the power does it: the worker and its executors at once."""
        os.killpg(self.process.pid, signal.SIGKILL)


class SparkCluster:
    """A master and its workers. `stop` may be called from another thread, at any time."""

    def __init__(
        self, directory: Path, java_home: str, secret: str, environment: Mapping[str, str]
    ) -> None:
        """`directory` is there and its own; logs and executors are kept in it."""
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
            "SPARK_LOCAL_IP": LOOPBACK,  # or its web pages would listen everywhere
            "SPARK_DAEMON_MEMORY": DAEMON_MEMORY,
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        }

    @property
    def url(self) -> str:
        """For spark.master."""
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
        """As the master sees it; 0 before it answers. Raises ClusterFailed if it has ended."""
        state = answer(f"http://{LOOPBACK}:{self._web_port}/json/")
        if state is None and any(each.poll() is not None for each in self._processes):
            raise ClusterFailed(f"the cluster has ended: its logs in {self._directory} say why")
        return 0 if state is None else int(state["aliveworkers"])

    def stop(self) -> None:
        """Ends everything; nothing starts any more."""
        with self._lock:
            self._is_over = True
            for process in self._processes:
                if process.poll() is None:
                    end_group(process, signal.SIGTERM)
        for process in reversed(self._processes):
            wait_or_kill(process)

    def kill(self) -> None:
        """At once, without waiting."""
        for process in self._processes:
            end_group(process, signal.SIGKILL)

    def _start(self, name: str, *command: str) -> Popen[bytes]:
        runner = str(spark_home() / "bin" / "spark-class")
        first, *others = command
        line = [runner, first, "--properties-file", str(self._settings), *others]
        with self._lock, (self._directory / f"{name}.log").open("wb") as log:
            if self._is_over:
                raise ClusterFailed("the cluster was stopped before it had started")
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
    """Where pip has put Spark. Raises ClusterFailed if it has not."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ClusterFailed(f"Spark is not installed: {install_command('spark')}")
    return Path(spec.origin).parent


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def answer(url: str) -> Any:
    """What a page of Spark's says as JSON; None if nobody answers (yet, or any more)."""
    try:
        with urlopen(url, timeout=HTTP_TIMEOUT_S) as page:
            return json.load(page)
    except (URLError, OSError, ValueError):
        return None


def write_secretly(path: Path, text: str) -> None:
    """A file that nobody else can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)


def end_group(process: Popen[Any], number: int) -> None:
    """Sends a signal to a process and all that it started, but for what left its group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def wait_or_kill(process: Popen[Any], timeout_s: float = END_TIMEOUT_S) -> None:
    """Waits for the end of a process that was told to end; ends its group if it does not."""
    with suppress(TimeoutExpired):  # then it is killed, with what is left of its group
        process.wait(timeout_s)
    end_group(process, signal.SIGKILL)
    process.wait()
