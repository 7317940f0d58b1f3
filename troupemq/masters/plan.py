"""Plan of several masters: settings of each, derived from one file, and reasons to refuse it.

    setting                 master 0        master i, from 1
    brokerName              broker-a        broker-a-i
    listenPort              10911           10911 + 10·i; fast and replication ports follow it
    metricsPromExporterPort 5557            5557 + 10·i, if metrics are on
    healthPort              10915           10915 + 10·i, if set
    haMasterAddress         host:10912      host:10912 + 10·i: slave i replicates master i
    storePathRootDir        store           store-masters/i; other folders likewise (stores.py)
    scheduled jobs          conf/jobs.conf  none
    monitoringPort          a separate process (monitoring.py); the masters' metrics listen at
                            127.0.0.1

All other settings are equal. Each broker gets the derived settings on its command line, where they
override its file until the supervisor restarts.

Folders of their stores:

    store              master 0, as for a single broker
    store-masters/
    ├── plan.json      the plan; locked by the running supervisor
    ├── 1/             master 1
    └── 2/             master 2
    commitlog          storePathCommitLog of master 0, if set
    commitlog-masters/
    ├── 1/             master 1
    └── 2/             master 2

The number ties a folder to its master, even when more masters are added.
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
from storage.errors import StoreError, StoreLocked, store_error
from storage.files.disk import RealDisk
from storage.files.lock_file import StoreLock
from troupemq.masters import supervisor

PLAN_FILE = "plan.json"


def beside(path: str) -> str:
    """Return the folder with the counterparts of `path` of the other masters."""
    return f"{path.rstrip('/')}-masters"


def folder_of(path: str, number: int) -> str:
    """Return the counterpart of `path` of the master with this number, from 0."""
    return path if number == 0 else f"{beside(path)}/{number}"


def masters_with_stores(store: StoreConfig) -> int:
    """Return the number of masters needed to serve all stores on disk; `store` is master 0's."""
    numbers = [0]
    for path in (store.root, store.commit_log_dir):
        try:
            names = os.listdir(beside(path))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # the start of the broker reports this
        numbers += [int(name) for name in names if _is_used(f"{beside(path)}/{name}", name)]
    return max(numbers) + 1


def _is_used(path: str, name: str) -> bool:
    return name.isdecimal() and os.path.isdir(path) and bool(os.listdir(path))


def check_none_is_left_out(store: StoreConfig, masters: int) -> None:
    """Raise StoreError if the messages of a store would not be served."""
    count = masters_with_stores(store)
    if count > masters:
        raise StoreError(
            f"stores of {count} masters exist ({store.root} and those in"
            f" {beside(store.root)}), but masters is {masters}, so messages would be missing:"
            f" start with --masters {count}; to reduce masters, first drain the last ones"
            " (wipeWritePerm, until their groups have no lag), stop, and move their folders away."
        )


PORT_STEP = 10
MONITORING = "monitoring"
"""Name of the monitoring process."""
BROKER = tuple(child_command("troupemq", "broker"))
SPARE_OPTION = "--spare"
_PORT_MAX = 65_535
_PORTS_OF_ONE = (-2, 0, 1)
"""Offsets from listenPort of the fast port, the main port and the replication port."""

Load = Callable[[Mapping[str, str]], tuple[BrokerConfig, StoreConfig]]
"""Loads the settings, overridden by its argument."""


@dataclass(frozen=True)
class BrokerCommandLine:
    """Options of `troupemq broker` that each master needs."""

    config: str | None
    overrides: Mapping[str, str]
    jobs: Path | None
    log_json: bool
    ready_file: Path | None


def derived(config: BrokerConfig, store: StoreConfig, number: int) -> dict[str, str]:
    """Return the derived settings of the master with this number."""
    ports, name = PORT_STEP * number, config.broker_name
    found = {
        "brokerName": f"{name}-{number}" if number else name,
        "listenPort": str(config.listen_port and config.listen_port + ports),
        "storePathRootDir": folder_of(store.root, number),
    }
    if config.serves_metrics and config.metrics_port:
        found["metricsPromExporterPort"] = str(config.metrics_port + ports)
    if config.serves_metrics and config.monitoring_port:  # the monitoring port serves host and TLS
        found |= {"metricsPromExporterHost": "127.0.0.1", "tls.metrics.mode": "disabled"}
    if config.health_port:
        found["healthPort"] = str(config.health_port + ports)
    if store.commit_log_dir != f"{store.root}/commitlog":
        found["storePathCommitLog"] = folder_of(store.commit_log_dir, number)
    if store.retention_archive_dir:
        found["retentionArchivePath"] = folder_of(store.retention_archive_dir, number)
    if number and config.console_port:
        found["consolePort"] = "0"  # master 0's console shows all masters
    if config.ha_master_address:
        host, _, port = config.ha_master_address.rpartition(":")
        found["haMasterAddress"] = f"{host}:{int(port) + ports}"
    return found


def make_plan(
    line: BrokerCommandLine, config: BrokerConfig, store: StoreConfig, load: Load
) -> supervisor.MastersPlan:
    """Return the plan for `config.masters` brokers; write nothing.

    Raises StoreError if the settings do not allow it or a store is in use.
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
            f"listenPort {config.listen_port} is too high: {config.masters} masters need ports up"
            f" to {last}, above {_PORT_MAX}; choose a lower one."
        )
    metrics = [config.metrics_port + PORT_STEP * number for number in range(config.masters)]
    taken = {base + step for base in bases for step in _PORTS_OF_ONE}
    if config.serves_metrics and config.metrics_port:
        wrong = [port for port in metrics if port > _PORT_MAX or port in taken]
        if wrong:
            raise ConfigError(
                f"metricsPromExporterPort {config.metrics_port} conflicts: {config.masters} masters"
                f" also need port {wrong[0]}, which is in use or invalid; choose another."
            )
        taken.update(metrics)
    health = {config.health_port + PORT_STEP * number for number in range(config.masters)}
    if config.health_port and health & taken:
        raise ConfigError(
            f"healthPort {config.health_port} conflicts: in steps of {PORT_STEP} for"
            f" {config.masters} masters it meets their other ports; choose another."
        )
    if config.monitoring_port and config.monitoring_port in taken | health:
        raise ConfigError(
            f"monitoringPort {config.monitoring_port} conflicts: one of the {config.masters}"
            " masters uses it; choose another."
        )


def _command(
    line: BrokerCommandLine,
    own: Mapping[str, str],
    config: BrokerConfig,
    ready: str,
    *,
    is_first: bool,
) -> Sequence[str]:
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
    """Wait for the supervisor to write a broker's command to stdin; return its arguments.

    End the process at the end of stdin. After the command, stdin is redirected to /dev/null.
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
    """Become the supervisor by exec; the process id stays the same.

    Raises StoreLocked if another supervisor uses these stores, StoreError or OSError if the plan
    cannot be written.
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
    rest = json.dumps(asdict(plan), indent=1).encode() + b"\n"
    try:
        os.ftruncate(file, 0)
        while rest:  # a disk that becomes full takes a part first
            rest = rest[os.write(file, rest) :]
    except OSError as error:
        os.close(file)
        raise store_error(f"cannot write {path}", error) from error
    os.set_inheritable(file, True)
    program = [sys.executable, "-I", "-S", supervisor.__file__, path, str(file)]
    sys.stdout.flush()
    os.environ.update(child_environment(os.environ))  # for the brokers
    os.execv(sys.executable, program)
