"""The plan of several masters: the settings of each, out of one file, and what refuses them.

    setting                the first      number i, from 1
    brokerName             broker-a       broker-a-i
    listenPort             10911          10911 + 10·i; fast port and HA's beside it, as always
    metricsPromExporterPort 5557          5557 + 10·i, where metrics are on
    healthPort             10915          10915 + 10·i, where it is set
    haMasterAddress        host:10912     host:10912 + 10·i: a slave's master is its number's
    storePathRootDir       store          store-masters/i; the other folders likewise (stores.py)
    jobs by themselves     conf/jobs.conf none
    monitoringPort         one process beside them (monitoring.py); their metrics are at 127.0.0.1

All else is the same for all. What is derived is given to each broker over its settings file, and
stays so until the supervisor starts again, whatever is written to the file meanwhile.
"""

import fcntl
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from actors.config import BrokerConfig, ConfigError
from storage.child_python import child_command, child_environment
from storage.config import StoreConfig
from storage.errors import StoreLocked
from storage.files.disk import RealDisk
from storage.files.lock_file import StoreLock
from troupemq.masters import supervisor
from troupemq.masters.stores import PLAN_FILE, beside, check_none_is_left_out, folder_of

PORT_STEP = 10
MONITORING = "monitoring"
"""The name of the process that shows all of them."""
BROKER = tuple(child_command("troupemq", "broker"))
SPARE_OPTION = "--spare"
_PORT_MAX = 65_535
_PORTS_OF_ONE = (-2, 0, 1)
"""From its listenPort: fast port, that of clients, HA's."""

Load = Callable[[Mapping[str, str]], tuple[BrokerConfig, StoreConfig]]
"""Reads the settings anew, these over them."""


@dataclass(frozen=True)
class BrokerCommandLine:
    """What the command was given beside the settings: some of it is for each broker."""

    config: str | None
    overrides: Mapping[str, str]
    jobs: Path | None
    log_json: bool
    ready_file: Path | None


def derived(config: BrokerConfig, store: StoreConfig, number: int) -> dict[str, str]:
    """What the master with this number has of its own, by the keys of the settings.

    Raises ConfigError for a port that there is not.
    """
    ports, name = PORT_STEP * number, config.broker_name
    found = {
        "brokerName": f"{name}-{number}" if number else name,
        "listenPort": str(config.listen_port and config.listen_port + ports),
        "storePathRootDir": folder_of(store.root, number),
    }
    if config.serves_metrics and config.metrics_port:
        found["metricsPromExporterPort"] = str(config.metrics_port + ports)
    if config.serves_metrics and config.monitoring_port:  # which is at the host, with TLS
        found |= {"metricsPromExporterHost": "127.0.0.1", "tls.metrics.mode": "disabled"}
    if config.health_port:
        found["healthPort"] = str(config.health_port + ports)
    if store.commit_log_dir != f"{store.root}/commitlog":
        found["storePathCommitLog"] = folder_of(store.commit_log_dir, number)
    if store.retention_archive_dir:
        found["retentionArchivePath"] = folder_of(store.retention_archive_dir, number)
    if number and config.console_port:
        found["consolePort"] = "0"  # the first one's shows all of them
    if config.ha_master_address:
        host, _, port = config.ha_master_address.rpartition(":")
        found["haMasterAddress"] = f"{host}:{int(port) + ports}"
    return found


def make_plan(
    line: BrokerCommandLine, config: BrokerConfig, store: StoreConfig, load: Load
) -> supervisor.MastersPlan:
    """The brokers that `config.masters` asks for. Raises StoreError if they cannot be.

    Nothing is made on the disk, and no store of theirs is in use.
    """
    check_none_is_left_out(store, config.masters)
    _check_ports(config)
    instances = []
    for number in range(config.masters):
        own = derived(config, store, number)
        each, its_store = load(own)
        if os.path.exists(its_store.lock_path):
            lock = StoreLock(its_store, RealDisk())
            lock.acquire()
            lock.release()
        ready = f"{its_store.root}/troupemq/ready.json"
        command = _command(line, own, config, ready, is_first=number == 0)
        instances.append(supervisor.PlannedBroker(each.broker_name, command, ready))
    all_ready = None if line.ready_file is None else str(line.ready_file)
    monitoring = None
    if config.monitoring_port:
        folder = beside(store.root)
        ready = f"{folder}/{MONITORING}.json"
        options = ("--monitors", f"{folder}/{PLAN_FILE}", "--ready-file", ready)
        command = [*_command_line(line), *options, *_settings(line.overrides)]
        monitoring = supervisor.PlannedBroker(MONITORING, command, ready)
    spare = (*BROKER, SPARE_OPTION)
    return supervisor.MastersPlan(instances, all_ready, line.log_json, monitoring, spare)


def _check_ports(config: BrokerConfig) -> None:
    if not config.listen_port:
        return
    bases = [config.listen_port + PORT_STEP * number for number in range(config.masters)]
    last = bases[-1] + max(_PORTS_OF_ONE)
    if last > _PORT_MAX:
        raise ConfigError(
            f"listenPort is {config.listen_port}: {config.masters} masters have ports up to {last},"
            f" and there is none above {_PORT_MAX}."
        )
    metrics = [config.metrics_port + PORT_STEP * number for number in range(config.masters)]
    taken = {base + step for base in bases for step in _PORTS_OF_ONE}
    if config.serves_metrics and config.metrics_port:
        wrong = [port for port in metrics if port > _PORT_MAX or port in taken]
        if wrong:
            raise ConfigError(
                f"metricsPromExporterPort is {config.metrics_port}: {config.masters} masters have"
                f" theirs at {wrong[0]}, too, which is none that is free; choose another."
            )
        taken.update(metrics)
    health = {config.health_port + PORT_STEP * number for number in range(config.masters)}
    if config.health_port and health & taken:
        raise ConfigError(
            f"healthPort is {config.health_port}: with ten more for each of the"
            f" {config.masters} masters it meets their ports; choose another."
        )
    if config.monitoring_port and config.monitoring_port in taken | health:
        raise ConfigError(
            f"monitoringPort is {config.monitoring_port}, which is a port of one of the"
            f" {config.masters} masters: choose another."
        )


def _command(
    line: BrokerCommandLine,
    own: Mapping[str, str],
    config: BrokerConfig,
    ready: str,
    *,
    is_first: bool,
) -> Sequence[str]:
    """An ordinary broker's."""
    settings = {**line.overrides, "masters": str(config.masters), **own}
    jobs = line.jobs if is_first else Path(os.devnull)
    return [
        *_command_line(line),
        *("--one-of", config.broker_name, "--ready-file", ready),
        *(() if jobs is None else ("--jobs", str(jobs))),
        *_settings(settings),
    ]


def _command_line(line: BrokerCommandLine) -> Sequence[str]:
    return [
        *BROKER,
        *(() if line.config is None else ("-c", line.config)),
        *(("--log-json",) if line.log_json else ()),
    ]


def _settings(settings: Mapping[str, str]) -> Sequence[str]:
    return [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]


def arguments_for_spare() -> list[str]:
    """The arguments of the broker that this process is to be; ends it if there will be none.

    The supervisor writes the broker's command to stdin, which is empty from then on.
    """
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, sys.stdin.fileno())
    os.close(nowhere)
    command: list[str] = json.loads(line)
    return command[len(BROKER) :]


def supervise(plan: supervisor.MastersPlan, store: StoreConfig) -> NoReturn:
    """Becomes the supervisor: this process keeps its number, and nothing of ours in memory.

    Raises StoreLocked if another one has these stores, OSError if the plan cannot be written.
    """
    folder = beside(store.root)
    os.makedirs(folder, exist_ok=True)
    path = f"{folder}/{PLAN_FILE}"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise StoreLocked(
            f"the stores {store.root} and {folder} are in use by another process:"
            " stop those brokers, or choose another storePathRootDir."
        ) from None
    os.ftruncate(file, 0)
    os.write(file, json.dumps(asdict(plan), indent=1).encode() + b"\n")
    os.set_inheritable(file, True)
    program = [sys.executable, "-I", "-S", supervisor.__file__, path, str(file)]
    sys.stdout.flush()
    os.environ.update(child_environment(os.environ))  # of the brokers
    os.execv(sys.executable, program)
