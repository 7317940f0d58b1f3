"""Starts a name server, a broker, or both in one process, and the Spark jobs beside a broker."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from structlog import get_logger

from actors.broker_server import RunningBroker, start_broker
from actors.config import BrokerConfig, NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.jobs.spark_job import JobCommand, MakeCommand
from actors.jobs.spark_jobs import SparkJobs
from actors.naming.namesrv_server import start_namesrv
from spark.runner import command, environment
from storage.config import StoreConfig
from storage.disk import RealDisk
from storage.errors import StoreError
from storage.reserve import Reserve
from troupemq.daemon import Serving
from troupemq.java import find_java

log = get_logger(__name__)

SPARK_JOBS = "spark_jobs"
STOP_AFTER_FAILURE_S = 10.0
LAST_TIMEOUT_S = 1.0
"""For what is left to stop when the time is over already."""

LOCAL_SPARK_CONF = Path("conf", "spark.conf")

OnGiveUp = Callable[[str], None]


class Servers:
    """A name server, a broker, or both; each has an actor system of its own.

    In one system the name server would be told to stop at the same time as the broker, and would
    not hear any more that the broker leaves.
    """

    def __init__(self, on_give_up: OnGiveUp) -> None:
        self.ports: dict[str, int] = {}
        self.broker: RunningBroker | None = None
        self._on_give_up = on_give_up
        self._systems: list[ActorSystem] = []

    @property
    def system(self) -> ActorSystem:
        """The system that was started last: the broker's, where there is one."""
        return self._systems[-1]

    @property
    def reserve(self) -> Reserve:
        """How much of the disk the broker's store takes."""
        assert self.broker is not None
        return self.broker.broker.reserve

    def start_namesrv(self, config: NamesrvConfig) -> None:
        """Raises PortTaken, StoreError, StartFailed; then everything is stopped."""
        with self.stopped_on_failure():
            self.ports["namesrv"] = start_namesrv(config, system=self._new_system()).port
        log.info("name server serves", port=self.ports["namesrv"])

    def start_broker(self, config: BrokerConfig, store: StoreConfig) -> None:
        """Raises PortTaken, StoreError, StartFailed; then everything is stopped."""
        with self.stopped_on_failure():
            self.broker = start_broker(config, store, system=self._new_system())
        ports = self.broker.ports
        self.ports.update(broker=ports.main, fast=ports.fast, ha=ports.ha)
        log.info("broker serves", name=config.broker_name, port=ports.main, root=store.root)

    def start_spark_jobs(self, directory: Path, spark_conf: Path | None = None) -> None:
        """Jobs keep their logs in `directory`; they begin with what the broker here knows."""
        jobs = ChildSpec(
            SPARK_JOBS,
            lambda _: SparkJobs(
                job_commands(spark_conf), str(directory), known_arguments=self._known_arguments
            ),
        )
        with self.stopped_on_failure():
            system = self._new_system() if self.broker is None else self.system
            system.start(jobs)

    def _new_system(self) -> ActorSystem:
        self._systems.append(ActorSystem.real(disk=RealDisk(), on_give_up=self._on_give_up))
        return self.system

    def _known_arguments(self, name: str) -> Mapping[str, Any]:
        """What every job wants to know of a live broker; called on its loop."""
        if self.broker is None:
            return {}
        store = self.broker.broker.store
        return {
            "store": store.config.root,
            "commit_log": store.config.commit_log_dir,
            "published_offset": store.commit_log.end_offset,
        }

    def stop(self, timeout_s: float) -> bool:
        """In reverse order of the start. False if something was stuck. Raises StoreError."""
        deadline_s = monotonic() + timeout_s
        in_order = True
        try:
            if self.broker is not None:
                in_order = self.broker.stop(timeout_s)
        finally:
            for system in reversed(self._systems):
                in_order &= system.stop(max(LAST_TIMEOUT_S, deadline_s - monotonic()))
        return in_order

    @contextmanager
    def stopped_on_failure(self) -> Iterator[None]:
        """Leaves nothing behind that nobody can stop."""
        try:
            yield
        except BaseException:
            self.stop(STOP_AFTER_FAILURE_S)
            raise

    def serving(self) -> Serving:
        """For the daemon."""
        return Serving(self.ports, self.stop)


def job_commands(spark_conf: Path | None) -> MakeCommand:
    """How a Spark job's child process is started here; looks for Java when one is."""
    conf = spark_conf
    if conf is None and LOCAL_SPARK_CONF.is_file():
        conf = LOCAL_SPARK_CONF

    def make(name: str, arguments: Mapping[str, Any], work_directory: str) -> JobCommand:
        if find_spec("pyspark") is None:
            raise StoreError("Spark is not installed: pip install 'troupemq[spark]'.")
        return JobCommand(
            command(
                name,
                arguments,
                work_directory=work_directory,
                conf=None if conf is None else str(conf.absolute()),
            ),
            environment(os.environ, find_java(os.environ)),
        )

    return make
