"""The command line: `troupemq COMMAND`, each group of commands in a file of its own.

servers.py     run, namesrv, broker
console.py     console
admin/         admin COMMAND
top.py         top
messages.py    send, consume
jobs.py        job run, job list
redrive.py     job redrive
broker_jobs.py job schedule, status, logs, cancel
health.py      health
doctor.py      doctor
completion.py  completion SHELL
../store_commands.py    store dump
../store_mending.py     store check, store rebuild
../store_backup.py      store backup, store restore

A command's file is imported when the command is named: the broker, which half of them bring along,
is more than half of what a command takes to start.
"""

from collections import UserDict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

import click

from troupemq.cli.options import HELP_OPTIONS


def version() -> str:
    """The installed version; `source` in a clone that was never installed."""
    try:
        return installed_version("troupemq")
    except PackageNotFoundError:
        return "source"


def _run() -> click.Command:
    from troupemq.cli.servers import run

    return run


def _namesrv() -> click.Command:
    from troupemq.cli.servers import namesrv

    return namesrv


def _broker() -> click.Command:
    from troupemq.cli.servers import broker

    return broker


def _console() -> click.Command:
    from troupemq.cli.console import console

    return console


def _send() -> click.Command:
    from troupemq.cli.messages import send

    return send


def _consume() -> click.Command:
    from troupemq.cli.messages import consume

    return consume


def _admin() -> click.Command:
    from troupemq.cli.admin import admin

    return admin


def _top() -> click.Command:
    from troupemq.cli.top import top

    return top


def _job() -> click.Command:
    from troupemq.cli.jobs import job

    return job


def _store() -> click.Command:
    from troupemq.store_backup import backup, restore
    from troupemq.store_commands import store
    from troupemq.store_mending import check, rebuild

    for command in (check, rebuild, backup, restore):
        store.add_command(command)
    return store


def _health() -> click.Command:
    from troupemq.cli.health import health

    return health


def _doctor() -> click.Command:
    from troupemq.cli.doctor import doctor

    return doctor


def _completion() -> click.Command:
    from troupemq.cli.completion import completion

    return completion


class _Commands(UserDict[str, Any]):
    """By name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        made: click.Command = self.data[name]()
        return made


_OF_SERVERS = {"run": _run, "namesrv": _namesrv, "broker": _broker, "console": _console}
_OF_CLIENTS = {"send": _send, "consume": _consume, "admin": _admin, "top": _top}
_OTHERS = {
    "job": _job,
    "store": _store,
    "health": _health,
    "doctor": _doctor,
    "completion": _completion,
}


@click.group(
    commands=_Commands(_OF_SERVERS | _OF_CLIENTS | _OTHERS),
    context_settings={**HELP_OPTIONS, "max_content_width": 100},
)
@click.version_option(version(), prog_name="troupemq")
def cli() -> None:
    """A message broker that RocketMQ 4.9 clients talk to, and its tools.

    `troupemq run` shows all of it in one process. `troupemq COMMAND --help` says more.
    """
