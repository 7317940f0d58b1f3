"""Server processes: `run`, `namesrv` and `broker`."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import click
from structlog import get_logger

from actors.config import (
    NAMESRV_FILE,
    BrokerConfig,
    ConfigFindings,
    load_broker_config,
    load_namesrv_config,
    parse_broker_config,
    parse_namesrv_config,
)
from protocol.host import host_port
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.retention.reserve import require_room
from storage.tables.settings_file import save_settings
from troupemq.cli.console import PORT as CONSOLE_PORT
from troupemq.cli.options import FilePath, daemon_options, leave, settings_option
from troupemq.console_child import console_is_installed, console_missing
from troupemq.daemon import CTRL_C_ENDS_IT, Serving, keep_files_private, sentence_of, serve
from troupemq.exit_codes import exit_code_of
from troupemq.interpreter_environment import obey_setting
from troupemq.logs import set_up_logs
from troupemq.masters.plan import (
    SPARE_OPTION,
    BrokerCommandLine,
    arguments_for_spare,
    make_plan,
    supervise,
)
from troupemq.servers import Servers, import_broker
from troupemq.start_checks import require_extras
from troupemq.text import tell

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
DATA = Path("data")
NAMESRV_PORT, BROKER_PORT = 9876, 10911
"""Default ports of `run`."""
STARTING = "Starting a name server and a broker on this machine."
TOUR = "A tour follows: it takes a few seconds, with Spark about a minute."
JOBS_DIRECTORY = "jobs"
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(6000 * 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
"""File sizes for the store of `run`: 20 MB on disk instead of 1.5 GB."""


def broker_settings(data: Path, port: int, namesrv_port: int) -> dict[str, str]:
    """Return the settings of the broker of `run`; `data` is absolute."""
    return {
        "brokerName": "broker-a",
        "brokerIP1": LOOPBACK,
        "brokerIP2": LOOPBACK,
        "bindAddress": LOOPBACK,
        "listenPort": str(port),
        "namesrvAddr": f"{LOOPBACK}:{namesrv_port}",
        "storePathRootDir": str(data / "store"),
        **SMALL_FILES,
    }


def next_steps(namesrv_port: int) -> str:
    at = "" if namesrv_port == NAMESRV_PORT else f" -n {LOOPBACK}:{namesrv_port}"
    return f"""
Next steps, in another terminal:
  troupemq send -t Hello -b hello{at}
  troupemq consume -t Hello --count 1{at}
  troupemq top{at}
  troupemq admin --help"""


_NO_NAMESRV = "No name server is set, so clients do not find it: name one with -n."


@click.command()
@click.option("--once", is_flag=True, help="Stop after the tour, with exit code 0 if it succeeded.")
@click.option(
    "--data",
    type=FilePath(file_okay=False, path_type=Path),
    default=DATA,
    show_default=True,
    help="Keep store, logs and archive in this folder; the next start continues with them.",
)
@click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    default=NAMESRV_PORT,
    show_default=True,
    metavar="PORT",
    help="Port of the name server; 0 takes a free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    default=BROKER_PORT,
    show_default=True,
    metavar="PORT",
    help="Port of the broker, which also uses PORT-2 (fast port) and PORT+1 (replication); 0 takes"
    " free ones.",
)
@click.option("--no-tour", is_flag=True, help="Serve without the tour.")
@click.option(
    "--console-port",
    type=click.IntRange(0, 65_535),
    default=CONSOLE_PORT,
    show_default=True,
    metavar="PORT",
    help="Port of the web console, if that is installed; 0 disables it, as --once does.",
)
@daemon_options
def run(
    once: bool,
    data: Path,
    namesrv_port: int,
    broker_port: int,
    no_tour: bool,
    console_port: int,
    ready_file: Path | None,
    log_json: bool,
) -> None:
    """Start a name server and a broker on this machine and show them in a short tour.

    The tour creates a topic, sends 1,000 messages over TCP and consumes them. If Spark is
    installed, it then runs a scheduled job and archives the messages as Parquet. Each step prints
    what it does and how long it took; with Spark the tour takes about a minute, else seconds.

    Both servers then keep serving until Ctrl-C, for clients on this machine only. Next, try
    `troupemq send`, `troupemq consume` and `troupemq top`.
    """
    from troupemq.tour import Tour  # here: it imports the client

    if once and no_tour:
        raise click.UsageError("--once ends after the tour, which --no-tour leaves out: use one.")
    data = data.absolute()
    log_path = data / "logs" / "troupemq.log"
    started: list[Servers] = []

    def start(on_give_up: Callable[[str], None]) -> Serving:
        tell(STARTING if no_tour else f"{STARTING} {TOUR}")
        servers = _start_both(data, namesrv_port, broker_port, on_give_up)
        started.append(servers)
        ports = servers.ports
        tell(
            f"Name server on {LOOPBACK}:{ports['namesrv']}, broker on {LOOPBACK}:{ports['broker']}"
            f" (fast port {ports['fast']}); store in {data / 'store'}, {servers.reserve}; "
            f"log in {log_path}."
        )
        if console_port and not once and not console_is_installed():
            tell(f"Console not started: {console_missing()}")
        elif console_port and not once:
            with servers.stopped_on_failure():
                servers.start_console(console_port, data / "console")
        if no_tour:
            tell(f"Serving. {CTRL_C_ENDS_IT}")
        return servers.serving()

    def tour(over: Event) -> None:
        Tour(started[0], data, sys.stdout, over).run()
        if not once:
            tell(f"{next_steps(started[0].ports['namesrv'])}\n\nServing. {CTRL_C_ENDS_IT}")

    keep_files_private()  # before the log file, the first one
    try:
        _, store, _ = parse_broker_config("", broker_settings(data, 0, NAMESRV_PORT))
        require_room(store, RealDisk())  # before the first file
        set_up_logs(as_json=log_json, path=log_path)
    except StoreError as error:
        leave(str(error), exit_code_of(error.__cause__ or error))
    sys.exit(serve(start, ready_file=ready_file, work=None if no_tour else tour, once=once))


def _start_both(
    data: Path, namesrv_port: int, broker_port: int, on_give_up: Callable[[str], None]
) -> Servers:
    from troupemq.jobs_beside import JobsPlace
    from troupemq.tour import JOBS, JOBS_FILE

    namesrv_config, _ = parse_namesrv_config(
        "",
        {
            "listenPort": str(namesrv_port),
            "bindAddress": LOOPBACK,
            "kvConfigPath": str(data / "namesrv" / "kvConfig.json"),
            "configStorePath": str(data / "namesrv" / "namesrv.properties"),
        },
    )
    servers = Servers(on_give_up)
    servers.start_namesrv(namesrv_config)
    settings = broker_settings(data, broker_port, servers.ports["namesrv"])
    with servers.stopped_on_failure():
        broker_config, store_config, _ = parse_broker_config("", settings)
    schedule = data / JOBS_FILE
    if not schedule.exists():
        with servers.stopped_on_failure():
            save_settings(RealDisk(), str(schedule), JOBS)
    servers.start_broker(broker_config, store_config, JobsPlace(data / JOBS_DIRECTORY, schedule))
    return servers


@click.command()
@click.option(
    "-c",
    "--config",
    type=FilePath(dir_okay=False, readable=False),
    help="Read settings from this file, Java properties with the keys of RocketMQ 4.9.7."
    " [default: ~/namesrv/namesrv.properties, if present]",
)
@click.option(
    "-p",
    "--port",
    type=int,
    metavar="PORT",
    help="Listen on PORT; overrides listenPort. [default: 9876]",
)
@settings_option
@daemon_options
def namesrv(
    config: str | None,
    port: int | None,
    settings: dict[str, str],
    ready_file: Path | None,
    log_json: bool,
) -> None:
    """Run a name server, which tells clients where topics are."""
    set_up_logs(as_json=log_json)
    overrides = settings if port is None else {**settings, "listenPort": str(port)}
    path = config or (NAMESRV_FILE if Path(NAMESRV_FILE).is_file() else None)
    try:
        if path is None:
            read, findings = parse_namesrv_config("", overrides)
        else:
            read, findings = load_namesrv_config(path, overrides)
        obey_setting(read.python_jit, path)
    except (StoreError, OSError) as error:
        leave(sentence_of(error), exit_code_of(error))

    def start(on_give_up: Callable[[str], None]) -> Serving:
        _log_findings(findings)
        servers = Servers(on_give_up)
        servers.start_namesrv(read)
        tell(f"Name server on port {servers.ports['namesrv']}. {CTRL_C_ENDS_IT}")
        return servers.serving()

    sys.exit(serve(start, ready_file=ready_file))


@click.command()
@click.option(
    "-c",
    "--config",
    type=FilePath(dir_okay=False, readable=False),
    help="Read settings from this file, Java properties with the keys of RocketMQ 4.9.7.",
)
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT",
    help="Register at these name servers, separated by ;. Overrides namesrvAddr.",
)
@settings_option
@click.option(
    "--jobs",
    type=FilePath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Schedule the Spark jobs in this file. [default: conf/jobs.conf, if present]",
)
@click.option(
    "--masters",
    type=int,
    metavar="N",
    help="Run N broker processes, named broker-a, broker-a-1 and so on, ports 10 apart, one store"
    " each. Overrides the setting masters. [default: 1]",
)
@click.option("--one-of", metavar="NAME", hidden=True, help="Name of the first of the masters.")
@click.option(
    SPARE_OPTION, is_flag=True, hidden=True, help="Wait for a broker's command on stdin; run it."
)
@click.option("--monitors", metavar="PLAN", hidden=True, help="Monitor the masters of this plan.")
@daemon_options
def broker(
    config: str | None,
    namesrv: str | None,
    settings: dict[str, str],
    jobs: Path | None,
    masters: int | None,
    one_of: str | None,
    spare: bool,
    monitors: str | None,
    ready_file: Path | None,
    log_json: bool,
) -> None:
    """Run a broker, which stores messages and delivers them to consumers.

    The store is in ~/store unless storePathRootDir is set. Clients are sent to this machine's
    address, chosen as RocketMQ does, unless brokerIP1 is set. The start prints both.
    """
    if spare:
        import_broker()
        broker(arguments_for_spare(), prog_name="troupemq broker")
    set_up_logs(as_json=log_json)
    given = {"namesrvAddr": namesrv, "masters": masters}
    overrides = settings | {key: str(each) for key, each in given.items() if each is not None}
    load = partial(_load_broker, config, overrides)
    try:
        broker_config, store_config, findings = load({})
        if one_of is None:  # else the supervisor has done so
            obey_setting(broker_config.python_jit, config)
        if monitors is not None:
            show = partial(_show_masters, monitors, broker_config)
            sys.exit(serve(show, ready_file=ready_file, says_end=False, keeps_file=True))
        if broker_config.masters > 1 and one_of is None:
            line = BrokerCommandLine(config, overrides, jobs, log_json, ready_file)
            plan = make_plan(line, broker_config, store_config, lambda own: load(own)[:2])
            require_extras(broker_config)
            keep_files_private()
            supervise(plan, store_config)
    except (StoreError, OSError) as error:
        leave(sentence_of(error), exit_code_of(error))

    is_first = one_of in (None, broker_config.broker_name)

    def start(on_give_up: Callable[[str], None]) -> Serving:
        if is_first:
            _log_findings(findings)
        from troupemq.jobs_beside import JobsPlace

        servers = Servers(on_give_up)
        place = JobsPlace(Path(store_config.root) / JOBS_DIRECTORY, jobs)
        servers.start_broker(replace(broker_config, one_of=one_of or ""), store_config, place)
        tell(
            f"Broker {broker_config.broker_name} on port {servers.ports['broker']}: clients are "
            f"sent to {host_port(broker_config.broker_ip1, servers.ports['broker'])} (brokerIP1), "
            f"messages are stored in {store_config.root} (storePathRootDir), {servers.reserve}."
            + ("" if broker_config.namesrv_addresses else f" {_NO_NAMESRV}")
            + (f" {CTRL_C_ENDS_IT}" if is_first else "")
        )
        return servers.serving()

    sys.exit(serve(start, ready_file=ready_file, says_end=not one_of, keeps_file=bool(one_of)))


def _show_masters(plan: str, config: BrokerConfig, _: Callable[[str], None]) -> Serving:
    from troupemq.masters.monitoring import start_monitoring

    return start_monitoring(plan, config)


def _load_broker(
    config: str | None, overrides: Mapping[str, str], more: Mapping[str, str]
) -> tuple[BrokerConfig, StoreConfig, ConfigFindings]:
    """Load a broker's settings: the file's, overridden by the command line's and by `more`."""
    if config is None:
        return parse_broker_config("", {**overrides, **more})
    return load_broker_config(config, {**overrides, **more})


def _log_findings(findings: ConfigFindings) -> None:
    if findings:
        log.warning("settings ignored", findings=findings.sentence())
