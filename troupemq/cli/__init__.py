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
"""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import click

from troupemq.cli.admin import admin
from troupemq.cli.completion import completion
from troupemq.cli.console import console
from troupemq.cli.doctor import doctor
from troupemq.cli.health import health
from troupemq.cli.jobs import job
from troupemq.cli.messages import consume, send
from troupemq.cli.options import HELP_OPTIONS
from troupemq.cli.servers import broker, namesrv, run
from troupemq.cli.top import top
from troupemq.store_backup import backup, restore
from troupemq.store_commands import store
from troupemq.store_mending import check, rebuild


def version() -> str:
    """The installed version; `source` in a clone that was never installed."""
    try:
        return installed_version("troupemq")
    except PackageNotFoundError:
        return "source"


@click.group(context_settings={**HELP_OPTIONS, "max_content_width": 100})
@click.version_option(version(), prog_name="troupemq")
def cli() -> None:
    """A message broker that RocketMQ 4.9 clients talk to, and its tools.

    `troupemq run` shows all of it in one process. `troupemq COMMAND --help` says more.
    """


COMMANDS = (run, namesrv, broker, console, send, consume, admin, top, job, store)
for command in (*COMMANDS, health, doctor, completion):
    cli.add_command(command)
for command in (check, rebuild, backup, restore):
    store.add_command(command)
