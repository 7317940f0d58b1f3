"""Start and stop of a name server, a broker, or both in one process, with the broker's Spark jobs.

The broker's modules are imported only when a broker starts; a name server needs few of them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from structlog import get_logger

from actors.config import BrokerConfig, NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics.metrics_server import hosts_of, page_server
from actors.metrics.page_server import PageServer
from actors.network.bind_address import reached_at
from protocol.host import host_port
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.recovery.checkpoint import require_log
from storage.retention.reserve import Reserve
from troupemq.console_child import ConsoleChild
from troupemq.daemon import Serving
from troupemq.health.checks import (
    Health,
    broker_checks,
    health_pages,
    health_server,
    is_well,
    namesrv_checks,
)
from troupemq.masters.plan import check_none_is_left_out
from troupemq.runtime import this_runtime
from troupemq.start_checks import raise_file_limit, require_clock, require_extras

if TYPE_CHECKING:
    from actors.broker_server import RunningBroker
    from actors.namesrv_server import RunningNamesrv
    from troupemq.jobs_beside import JobsPlace

log = get_logger(__name__)

CONSOLE_DIRECTORY = "console"
STOP_AFTER_FAILURE_S = 10.0
LAST_TIMEOUT_S = 1.0
"""Minimum timeout of each stop, even past the deadline."""

OnGiveUp = Callable[[str], None]


def import_broker() -> None:
    """Import the broker's modules ahead of time, in a spare process."""
    from actors import broker_server  # noqa: F401
    from storage.access import acl_yaml  # noqa: F401
    from troupemq import jobs_beside  # noqa: F401


class Servers:
    """Name server, broker, or both, each with its own actor system.

    The name server must stop after the broker, which unregisters there. In one actor system both
    would stop at the same time.
    """

    def __init__(self, on_give_up: OnGiveUp) -> None:
        self.ports: dict[str, int] = {}
        self.health = Health()
        self.broker: RunningBroker | None = None
        self._namesrv: RunningNamesrv | None = None
        self._pages: PageServer | None = None
        self._on_give_up = on_give_up
        self._systems: list[ActorSystem] = []
        self._console: ConsoleChild | None = None

    @property
    def system(self) -> ActorSystem:
        """The actor system that was started last: the broker's, if there is one."""
        return self._systems[-1]

    @property
    def reserve(self) -> Reserve:
        assert self.broker is not None
        return self.broker.broker.reserve

    def start_health(self, config: BrokerConfig | NamesrvConfig) -> PageServer | None:
        """Serve /health/live and /health/ready. Raises PortTaken, StoreError.

        Return the page server if metrics share its port.
        """
        port = config.health_port
        if not port:
            return None
        self.ports["health"] = port
        if not config.serves_metrics or config.metrics_port != port:
            self._pages = health_server(config.bind_address, port, self.health, hosts_of(config))
            return None
        self._pages = page_server(config)
        self._pages.add(health_pages(self.health))
        return self._pages

    def is_alive(self, timeout_s: float) -> bool:
        return is_well(self.health.live(timeout_s))

    def start_namesrv(self, config: NamesrvConfig) -> None:
        """Start a name server.

        Raises PortTaken, StoreError, StartFailed, after stopping everything.
        """
        from actors.namesrv_server import start_namesrv

        with self.stopped_on_failure():
            require_extras(config)
            pages = self.start_health(config)
            raise_file_limit()
            running = start_namesrv(config, system=self._new_system(), pages=pages)
            self._namesrv = running
            self.ports["namesrv"] = running.port
            self.health.joins(namesrv_checks())
            own = host_port(reached_at(config.bind_address), running.port)
            folder = Path(config.kv_config_path).parent / CONSOLE_DIRECTORY
            self._start_console_of(config, own, folder)
        if running.metrics_port:
            self.ports["namesrv_metrics"] = running.metrics_port
        log.info("name server started", port=running.port, metrics=running.metrics_port or None)

    def start_broker(
        self, config: BrokerConfig, store: StoreConfig, jobs: "JobsPlace | None" = None
    ) -> None:
        """Start a broker and the Spark jobs beside it.

        Raises PortTaken, StoreError, StartFailed, after stopping everything.
        """
        from actors.broker_server import start_broker
        from actors.jobs.spark_jobs import SparkJobs
        from troupemq.jobs_beside import SPARK_JOBS, jobs_child, scheduled_jobs

        with self.stopped_on_failure():
            require_extras(config)
            check_none_is_left_out(store, config.masters)
            pages = self.start_health(config)
            raise_file_limit()
            require_log(store, RealDisk())
            require_clock(store, RealDisk(), SystemClock())
            entries = [] if jobs is None else scheduled_jobs(jobs.schedule)
            self.broker = start_broker(
                config,
                store,
                system=self._new_system(),
                make_more=lambda broker: (
                    [] if jobs is None else [jobs_child(jobs, broker, entries)]
                ),
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
        log.info("broker started", name=config.broker_name, **where, root=store.root)

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
        """Start a console for these servers; return its port, or None if it does not answer."""
        self._console = ConsoleChild(f"127.0.0.1:{self.ports['namesrv']}", port, data)
        self._console.start()
        return self._console.wait_until_ready()

    def start_spark_jobs(
        self,
        directory: Path,
        spark_conf: Path | None = None,
        settings: Mapping[str, str] | None = None,
        python: str = "",
    ) -> None:
        """Start Spark jobs without a broker, with logs in `directory`."""
        from actors.jobs.spark_jobs import SparkJobs
        from troupemq.jobs_beside import SPARK_JOBS, job_commands

        make = job_commands(spark_conf, settings, python)
        jobs = ChildSpec(SPARK_JOBS, lambda _: SparkJobs(make, str(directory)))
        with self.stopped_on_failure():
            self._new_system().start(jobs)

    def _new_system(self) -> ActorSystem:
        self._systems.append(ActorSystem.real(disk=RealDisk(), on_give_up=self._on_give_up))
        self.health.watch(self.system)
        return self.system

    def stop(self, timeout_s: float) -> bool:
        """Stop everything in reverse order; return False after an unclean stop.

        Raises StoreError.
        """
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
        """Stop everything if the block fails."""
        try:
            yield
        except BaseException:
            self.stop(STOP_AFTER_FAILURE_S)
            raise

    def serving(self) -> Serving:
        """Return the started servers for daemon.py, and log the Python version."""
        log.info("runtime detected", python=str(this_runtime()))
        return Serving(self.ports, self.stop, self.is_alive)
