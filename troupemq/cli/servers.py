"""`run`, `namesrv` and `broker`: the processes that serve."""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import click
from structlog import get_logger

from actors.config import (
    NAMESRV_FILE,
    Findings,
    load_broker_config,
    load_namesrv_config,
    parse_broker_config,
    parse_namesrv_config,
)
from storage.errors import StoreError
from troupemq.cli.options import daemon_options, leave
from troupemq.daemon import Serving, keep_files_private, serve, tell
from troupemq.logs import set_up_logs
from troupemq.servers import JobsPlace, Servers
from troupemq.tour import JOBS, JOBS_FILE, Tour

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
JOBS_DIRECTORY = "jobs"
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(6000 * 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
"""Of a tour's store: some 20 MB on disk in place of 1.5 GB."""


@click.command()
@click.option("--once", is_flag=True, help="End after the tour, with exit code 0 if it went well.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where store, logs and archive are kept; a later start finds what is there.",
)
@click.option("--namesrv-port", type=int, default=9876, show_default=True, help="0: a free one.")
@click.option(
    "--broker-port",
    type=int,
    default=10911,
    show_default=True,
    help="Two below it is the fast port; one above, HA's. 0: free ones.",
)
@click.option("--no-tour", is_flag=True, help="Only serve.")
@daemon_options
def run(
    once: bool,
    data: Path,
    namesrv_port: int,
    broker_port: int,
    no_tour: bool,
    ready_file: Path | None,
    log_json: bool,
) -> None:
    """Name server and broker in one process on this machine, with a short tour.

    The tour creates a topic, sends 1,000 messages over TCP, consumes them in a group and archives
    them with Spark; then both keep serving until Ctrl-C. Only this machine can connect.
    """
    data = data.absolute()
    log_path = data / "logs" / "troupemq.log"
    started: list[Servers] = []

    def start(on_give_up: Callable[[str], None]) -> Serving:
        servers = _start_both(data, namesrv_port, broker_port, on_give_up)
        started.append(servers)
        ports = servers.ports
        tell(
            f"Name server on {LOOPBACK}:{ports['namesrv']}, broker on {LOOPBACK}:{ports['broker']}"
            f" (fast port {ports['fast']}); store in {data / 'store'}, {servers.reserve}; "
            f"log in {log_path}."
        )
        return servers.serving()

    def tour(over: Event) -> None:
        Tour(started[0], data, sys.stdout, over).run()
        if not once:
            tell("\nServing; Ctrl-C ends it.")

    keep_files_private()  # the log comes before everything else
    try:
        set_up_logs(as_json=log_json, path=log_path)
    except StoreError as error:
        leave(str(error))
    code = serve(
        start, ready_file=ready_file, work=None if no_tour else tour, once=once and not no_tour
    )
    sys.exit(code)


def _start_both(
    data: Path, namesrv_port: int, broker_port: int, on_give_up: Callable[[str], None]
) -> Servers:
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
    broker_settings = {
        "brokerName": "broker-a",
        "brokerIP1": LOOPBACK,
        "brokerIP2": LOOPBACK,
        "bindAddress": LOOPBACK,
        "listenPort": str(broker_port),
        "namesrvAddr": f"{LOOPBACK}:{servers.ports['namesrv']}",
        "storePathRootDir": str(data / "store"),
        **SMALL_FILES,
    }
    with servers.stopped_on_failure():
        broker_config, store_config, _ = parse_broker_config("", broker_settings)
    schedule = data / JOBS_FILE
    if not schedule.exists():
        schedule.write_text(JOBS, encoding="utf-8")
    servers.start_broker(broker_config, store_config, JobsPlace(data / JOBS_DIRECTORY, schedule))
    return servers


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False),
    help="Settings in java properties; every key of RocketMQ 4.9.7 is accepted.",
)
@click.option("-p", "--port", type=int, help="Over listenPort of the settings. [default: 9876]")
@daemon_options
def namesrv(config: str | None, port: int | None, ready_file: Path | None, log_json: bool) -> None:
    """A name server: tells clients where topics are."""
    set_up_logs(as_json=log_json)
    overrides = {} if port is None else {"listenPort": str(port)}

    def start(on_give_up: Callable[[str], None]) -> Serving:
        path = config or (NAMESRV_FILE if Path(NAMESRV_FILE).is_file() else None)
        if path is None:
            settings, findings = parse_namesrv_config("", overrides)
        else:
            settings, findings = load_namesrv_config(path, overrides)
        _log_findings(findings)
        servers = Servers(on_give_up)
        servers.start_namesrv(settings)
        return servers.serving()

    sys.exit(serve(start, ready_file=ready_file))


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False),
    help="Settings in java properties; every key of RocketMQ 4.9.7 is accepted.",
)
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT",
    help="Name servers, several with ; between; over namesrvAddr of the settings.",
)
@click.option(
    "-s",
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="One setting, over the file's; repeatable.",
)
@click.option(
    "--jobs",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Spark jobs that run by themselves. [default: conf/jobs.conf, if it is there]",
)
@daemon_options
def broker(
    config: str | None,
    namesrv: str | None,
    settings: tuple[str, ...],
    jobs: Path | None,
    ready_file: Path | None,
    log_json: bool,
) -> None:
    """A broker: stores messages and hands them out.

    Without storePathRootDir it uses ~/store; without brokerIP1 it advertises the address that
    RocketMQ would. Both are said at the start.
    """
    set_up_logs(as_json=log_json)
    overrides: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        overrides[key.strip()] = value.strip()
    if namesrv is not None:
        overrides["namesrvAddr"] = namesrv

    def start(on_give_up: Callable[[str], None]) -> Serving:
        if config is None:
            broker_config, store_config, findings = parse_broker_config("", overrides)
        else:
            broker_config, store_config, findings = load_broker_config(config, overrides)
        _log_findings(findings)
        servers = Servers(on_give_up)
        place = JobsPlace(Path(store_config.root) / JOBS_DIRECTORY, jobs)
        servers.start_broker(broker_config, store_config, place)
        tell(
            f"Broker {broker_config.broker_name} on port {servers.ports['broker']}: clients are "
            f"sent to {broker_config.broker_ip1}:{servers.ports['broker']} (brokerIP1), "
            f"messages are stored in {store_config.root} (storePathRootDir), {servers.reserve}."
        )
        return servers.serving()

    sys.exit(serve(start, ready_file=ready_file))


def _log_findings(findings: Findings) -> None:
    if findings:
        log.warning("settings", findings=findings.sentence())
