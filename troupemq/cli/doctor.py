"""`troupemq doctor`: what of this machine and of a broker's settings is to be changed, and why."""

import os
from dataclasses import asdict

import click

from actors.config import load_broker_config, parse_broker_config
from protocol.standard_json import dumps
from storage.errors import StoreError
from troupemq.cli.options import json_option
from troupemq.doctor import (
    OK,
    REFUSED,
    Diagnosis,
    examine_broker,
    examine_machine,
    exit_code_of_all,
)
from troupemq.exit_codes import REFUSALS, exit_code_of


@click.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(dir_okay=False, readable=False),
    help="The settings of the broker that is to start. [default: those without a file]",
)
@click.option(
    "-s", "--set", "settings", metavar="KEY=VALUE", multiple=True, help="One setting; repeatable."
)
@json_option
def doctor(config: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Says what to change before a broker starts here: limits, kernel, clock, disk, ports, Java.

    Nothing is changed or kept. Exit code 0 if a start would not be refused, else that of the first
    refusal; advice alone is no reason. Beside the broker itself its ports and its store are taken.
    """
    overrides = dict(each.partition("=")[::2] for each in settings)
    found = list(examine_machine(os.environ))
    try:
        if config is None:
            broker, store, _ = parse_broker_config("", overrides)
        else:
            broker, store, _ = load_broker_config(config, overrides)
    except StoreError as error:
        name = next(each.name for each in REFUSALS if each.code == exit_code_of(error))
        found.append(Diagnosis(name, REFUSED, config or "the command line", str(error)))
    else:
        found += examine_broker(broker, store)
    for each in found:
        if as_json:
            click.echo(dumps(asdict(each)).decode())
        else:
            click.echo(f"{each.verdict:8} {each.name}: {each.found}")
            if each.verdict != OK:
                click.echo(f"{'':8} → {each.cure}")
    raise SystemExit(exit_code_of_all(found))
