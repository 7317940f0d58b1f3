"""Examination of this machine and a broker's settings: `doctor`."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from actors.config import load_broker_config, parse_broker_config
from protocol.standard_json import dumps
from storage.errors import StoreError
from troupemq.cli.options import FilePath, json_option, settings_option
from troupemq.cli.servers import BROKER_PORT, DATA, LOOPBACK, NAMESRV_PORT, broker_settings
from troupemq.doctor import (
    OK,
    REFUSED,
    Diagnosis,
    examine_broker,
    examine_jobs,
    examine_machine,
    examine_namesrv,
    exit_code_of_all,
    verdict_of,
)
from troupemq.exit_codes import REFUSALS, exit_code_of
from troupemq.logs import set_up_logs
from troupemq.text import escaped, escaped_json


@click.command()
@click.option(
    "-c",
    "--config",
    type=FilePath(dir_okay=False, readable=False),
    help="Examine the broker with this settings file. [default: built-in settings]",
)
@settings_option
@click.option(
    "--data",
    type=FilePath(file_okay=False, path_type=Path),
    help="Examine `troupemq run` with this data folder instead of a broker. [default: both a broker"
    " and `run` with folder data; with -c or -s the broker only]",
)
@json_option
def doctor(config: str | None, settings: dict[str, str], data: Path | None, as_json: bool) -> None:
    """Examine this machine before a start: limits, kernel, clock, disk, ports, Java, settings.

    Each line says what was found and, after an arrow, what to change. Nothing is changed. The last
    line says whether a start would succeed. The exit code is 0 if so, else that of the first
    problem; advice never changes it. While the broker runs, its ports and store count as in use.
    """
    set_up_logs(as_json=False)  # log lines go to stderr; stdout holds only the findings
    is_named = config is not None or bool(settings)
    found = list(examine_machine(os.environ))
    if data is None or is_named:
        found += _of_broker(config, settings)
    if data is not None or not is_named:
        found.append(examine_namesrv(NAMESRV_PORT, LOOPBACK))
        settings = broker_settings((data or DATA).absolute(), BROKER_PORT, NAMESRV_PORT)
        found += _of_broker(None, settings, with_jobs=data is not None and not is_named)
    found = list(dict.fromkeys(found))  # both brokers use the same ports
    verdict = verdict_of(found)
    if as_json:
        for each in (*found, verdict):
            click.echo(escaped_json(dumps(asdict(each)).decode()))
    else:
        for each in found:
            click.echo(escaped(f"{each.verdict:8} {each.name}: {each.found}"))
            if each.verdict != OK:
                click.echo(escaped(f"{'':8} → {each.cure}"))
        click.echo(verdict.found)
    raise SystemExit(exit_code_of_all(found))


def _of_broker(
    config: str | None, settings: Mapping[str, str], *, with_jobs: bool = True
) -> list[Diagnosis]:
    try:
        if config is None:
            broker, store, findings = parse_broker_config("", settings)
        else:
            broker, store, findings = load_broker_config(config, settings)
    except StoreError as error:
        code = exit_code_of(error)
        name = next((each.name for each in REFUSALS if each.code == code), REFUSALS[0].name)
        return [Diagnosis(name, REFUSED, config or "the command line", str(error))]
    jobs = examine_jobs(broker.jobs_python, os.environ) if with_jobs else ()
    return [*examine_broker(broker, store, findings), *jobs]
