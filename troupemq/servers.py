"""Starts a name server, a broker, or both in one process, and the Spark jobs beside a broker."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from structlog import get_logger

from actors.broker import Broker
from actors.broker_server import RunningBroker, start_broker
from actors.children.metrics import page_server
from actors.config import BrokerConfig, NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.jobs.jobs_conf import ScheduledJob, load_jobs
from actors.jobs.messages import JobOrder
from actors.jobs.scheduled_runs import JobSchedule, KeptRuns
from actors.jobs.spark_job import JobCommand, MakeCommand
from actors.jobs.spark_jobs import SparkJobs
from actors.metrics.page_server import PageServer
from actors.namesrv_server import RunningNamesrv, start_namesrv
from spark.jobs import job_names
from spark.runner import command, environment
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.retention.reserve import Reserve
from troupemq.console_child import ConsoleChild
from troupemq.daemon import Serving
from troupemq.health.checks import Health, broker_checks, is_well, namesrv_checks
from troupemq.health.http import health_pages, health_server
from troupemq.java import find_java
from troupemq.masters.stores import check_none_is_left_out
from troupemq.start_checks import raise_file_limit, require_clock

log = get_logger(__name__)

SPARK_JOBS = "spark_jobs"
CONSOLE_DIRECTORY = "console"
STOP_AFTER_FAILURE_S = 10.0
LAST_TIMEOUT_S = 1.0
"""For what is left to stop when the time is over already."""

LOCAL_SPARK_CONF = Path("conf", "spark.conf")
LOCAL_JOBS_CONF = Path("conf", "jobs.conf")

OnGiveUp = Callable[[str], None]


@dataclass(frozen=True)
class JobsPlace:
    """Where a broker's jobs keep their logs, and the file of those that run by themselves."""

    directory: Path
    schedule: Path | None = None
    """conf/jobs.conf by default, if it is there."""


class Servers:
    """A name server, a broker, or both; each has an actor system of its own.

    In one system the name server would be told to stop at the same time as the broker, and would
    not hear any more that the broker leaves.
    """

    def __init__(self, on_give_up: OnGiveUp) -> None:
        self.ports: dict[str, int] = {}
        self.health = Health()
        self.broker: RunningBroker | None = None
        self._namesrv: RunningNamesrv | None = None
        self._pages: PageServer | None = None
        """Of health."""
        self._on_give_up = on_give_up
        self._systems: list[ActorSystem] = []
        self._console: ConsoleChild | None = None

    @property
    def system(self) -> ActorSystem:
        """The system that was started last: the broker's, where there is one."""
        return self._systems[-1]

    @property
    def reserve(self) -> Reserve:
        """How much of the disk the broker's store takes."""
        assert self.broker is not None
        return self.broker.broker.reserve

    def start_health(self, config: BrokerConfig | NamesrvConfig) -> PageServer | None:
        """/health/live and /health/ready from now on. Raises PortTaken, StoreError.

        Gives their server where metrics have the same port.
        """
        port = config.health_port
        if not port:
            return None
        self.ports["health"] = port
        if not config.serves_metrics or config.metrics_port != port:
            self._pages = health_server(config.bind_address, port, self.health)
            return None
        self._pages = page_server(config)
        self._pages.add(health_pages(self.health))
        return self._pages

    def is_alive(self, timeout_s: float) -> bool:
        """Whether all loops answer."""
        return is_well(self.health.live(timeout_s))

    def start_namesrv(self, config: NamesrvConfig) -> None:
        """Raises PortTaken, StoreError, StartFailed; then everything is stopped."""
        with self.stopped_on_failure():
            pages = self.start_health(config)
            raise_file_limit()
            running = start_namesrv(config, system=self._new_system(), pages=pages)
            self._namesrv = running
            self.ports["namesrv"] = running.port
            self.health.joins(namesrv_checks())
            own = f"127.0.0.1:{running.port}"
            folder = Path(config.kv_config_path).parent / CONSOLE_DIRECTORY
            self._start_console_of(config, own, folder)
        if running.metrics_port:
            self.ports["namesrv_metrics"] = running.metrics_port
        log.info("name server serves", port=running.port, metrics=running.metrics_port or None)

    def start_broker(
        self, config: BrokerConfig, store: StoreConfig, jobs: JobsPlace | None = None
    ) -> None:
        """A broker, and beside it the Spark jobs that know its store.

        Raises PortTaken, StoreError, StartFailed; then everything is stopped.
        """
        with self.stopped_on_failure():
            check_none_is_left_out(store, config.masters)
            pages = self.start_health(config)
            raise_file_limit()
            require_clock(store, RealDisk(), SystemClock())
            entries = [] if jobs is None else scheduled_jobs(jobs.schedule)
            self.broker = start_broker(
                config,
                store,
                system=self._new_system(),
                make_more=lambda broker: [] if jobs is None else [_child(jobs, broker, entries)],
                more_responders=[] if jobs is None else [(SPARK_JOBS, SparkJobs)],
                pages=pages,
            )
            self.health.joins(partial(broker_checks, self.broker.broker))
            folder = Path(store.root) / "troupemq" / CONSOLE_DIRECTORY
            self._start_console_of(config, ";".join(config.namesrv_addresses), folder)
        ports = self.broker.ports
        self.ports.update(broker=ports.main, fast=ports.fast, ha=ports.ha)
        if self.broker.metrics_port:
            self.ports["metrics"] = self.broker.metrics_port
        where = {"port": ports.main, "metrics": self.broker.metrics_port or None}
        log.info("broker serves", name=config.broker_name, **where, root=store.root)

    def _start_console_of(
        self, place: BrokerConfig | NamesrvConfig, namesrv: str, data: Path
    ) -> None:
        if place.console_port:
            hosts = [each.strip() for each in place.console_hosts.split(",") if each.strip()]
            self._console = ConsoleChild(
                namesrv,
                place.console_port,
                data,
                bind_address=place.console_bind_address,
                hosts=hosts,
                tls=place,
            )
            self._console.start()

    def start_console(self, port: int, data: Path) -> int | None:
        """One of what runs here; the port once it answers, None if it does not."""
        self._console = ConsoleChild(f"127.0.0.1:{self.ports['namesrv']}", port, data)
        self._console.start()
        return self._console.wait_until_ready()

    def start_spark_jobs(
        self,
        directory: Path,
        spark_conf: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Jobs without a broker; they keep their logs in `directory`."""
        make = job_commands(spark_conf, settings)
        jobs = ChildSpec(SPARK_JOBS, lambda _: SparkJobs(make, str(directory)))
        with self.stopped_on_failure():
            self._new_system().start(jobs)

    def _new_system(self) -> ActorSystem:
        self._systems.append(ActorSystem.real(disk=RealDisk(), on_give_up=self._on_give_up))
        self.health.watch(self.system)
        return self.system

    def stop(self, timeout_s: float) -> bool:
        """In reverse order of the start. False if something was stuck. Raises StoreError."""
        deadline_s = monotonic() + timeout_s
        self.health.leaves()
        in_order = True
        try:
            if self._console is not None:
                self._console.stop()
            if self.broker is not None:
                in_order = self.broker.stop(timeout_s)
        finally:
            if self._namesrv is not None:
                in_order &= self._namesrv.stop(max(LAST_TIMEOUT_S, deadline_s - monotonic()))
            for system in reversed(self._systems):
                in_order &= system.stop(max(LAST_TIMEOUT_S, deadline_s - monotonic()))
            if self._pages is not None:
                self._pages.close()
                self._pages = None
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
        return Serving(self.ports, self.stop, self.is_alive)


def scheduled_jobs(path: Path | None) -> list[ScheduledJob]:
    """The entries of the file that is named, else of conf/jobs.conf. Raises StoreError."""
    if path is None and not LOCAL_JOBS_CONF.is_file():
        return []
    return load_jobs(path or LOCAL_JOBS_CONF, job_names())


def _child(jobs: JobsPlace, broker: Broker, entries: Sequence[ScheduledJob]) -> ChildSpec:
    """Jobs beside a broker: they begin with what it knows."""
    kept, store, address = KeptRuns(), broker.store, broker.system.address
    schedule = JobSchedule(
        entries, f"{store.config.root}/troupemq/jobs.json", address("config_writer")
    )

    def known(name: str) -> Mapping[str, Any]:
        return {
            "store": store.config.root,
            "commit_log": store.config.commit_log_dir,
            "published_offset": store.commit_log.end_offset,
            "output": str(Path(store.config.root).absolute().parent / name),
        }

    return ChildSpec(
        SPARK_JOBS,
        lambda _: SparkJobs(
            job_commands(None),
            str(jobs.directory),
            job_names=job_names(),
            schedule=schedule,
            known_arguments=known,
            long_answers=address("long_answers"),
            kept=kept,
        ),
    )


def job_commands(spark_conf: Path | None, settings: Mapping[str, str] | None = None) -> MakeCommand:
    """How a Spark job's child process is started here; looks for Java when one is.

    `settings` are Spark's, over those of the file. What is returned raises StoreError if Spark is
    not installed, NoJava if there is no Java for it.
    """
    conf = spark_conf
    if conf is None and LOCAL_SPARK_CONF.is_file():
        conf = LOCAL_SPARK_CONF

    def make(order: JobOrder, work_directory: str) -> JobCommand:
        if find_spec("pyspark") is None:
            raise StoreError("Spark is not installed: pip install 'troupemq[spark]'.")
        return JobCommand(
            command(
                order.name,
                order.arguments,
                work_directory=work_directory,
                settings={**(settings or {}), **order.settings},
                conf=None if conf is None else str(conf.absolute()),
            ),
            environment(os.environ, find_java(os.environ)),
        )

    return make
