"""Command line: `troupemq COMMAND`, with one file per group of commands.

servers.py     run, namesrv, broker
console.py     console
admin/         admin COMMAND
top.py         top
messages.py    send, consume
jobs.py        job run, job list
copying.py     job redrive, job restore
broker_jobs.py job schedule, status, logs, cancel
health.py      health
doctor.py      doctor
../store_commands.py    store dump
../store_mending.py     store check, store rebuild
../store_backup.py      store backup, store restore

A command's file is imported only when that command is named. Half of the files import the broker,
which costs more than half of a command's start-up time.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOSPC
from typing import Any

import click

from troupemq.cli.options import HELP_OPTIONS, CommandGroup, leave
from troupemq.interrupts import INTERRUPTED


def version() -> str:
    """Return the installed version; `source` in a clone that was never installed."""
    # Imported here because no command needs this slow import to start.
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed_version

    try:
        return installed_version("troupemq")
    except PackageNotFoundError:
        return "source"


NAMES = [
    "admin",
    "broker",
    "completion",
    "console",
    "consume",
    "doctor",
    "health",
    "job",
    "namesrv",
    "run",
    "send",
    "store",
    "top",
    "trace",
]


GROUPS = ("store", "job", "admin")
"""Commands with subcommands. If two have a subcommand of one name, the later group wins."""


class Commands(CommandGroup):
    """Top-level group that imports a command when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return NAMES

    def names(self, ctx: click.Context) -> Mapping[str, str]:
        """Return the commands and all subcommands: `topicList` leads to `admin topicList`."""
        found: dict[str, str] = {}
        for name in GROUPS:
            group = self.get_command(ctx, name)
            assert isinstance(group, CommandGroup)
            found |= {sub: f"{name} {command}" for sub, command in group.names(ctx).items()}
        return {**found, **super().names(ctx)}

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C ends it with one line and the shells' exit code."""
        try:
            with _output_told():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            leave("interrupted by Ctrl-C.", INTERRUPTED)

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        """Parse the command line; --help and --version print while it is parsed."""
        with _output_told():
            return super().make_context(*given, **named)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not hasattr(gc, "freeze"):  # PyPy: the imports' garbage would stay in its heap
            return self._imported(cmd_name)
        gc.disable()  # imported objects live on; saves 5 % of the start's processor time
        try:
            return self._imported(cmd_name)
        finally:
            gc.enable()

    def _imported(self, cmd_name: str) -> click.Command | None:
        match cmd_name:
            case "run" | "namesrv" | "broker":
                from troupemq.cli.servers import broker, namesrv, run

                return {"run": run, "namesrv": namesrv, "broker": broker}[cmd_name]
            case "console":
                from troupemq.cli.console import console

                return console
            case "send" | "consume":
                from troupemq.cli.messages import consume, send

                return {"send": send, "consume": consume}[cmd_name]
            case "admin":
                from troupemq.cli.admin import admin

                return admin
            case "trace":
                from troupemq.cli.admin import admin

                return admin.get_command(click.Context(admin), "trace")
            case "top":
                from troupemq.cli.top import top

                return top
            case "job":
                from troupemq.cli.jobs import job

                return job
            case "store":
                return _store()
            case "health":
                from troupemq.cli.health import health

                return health
            case "doctor":
                from troupemq.cli.doctor import doctor

                return doctor
            case "completion":
                return completion
        return None


@contextmanager
def _output_told() -> Iterator[None]:
    """End the command with one sentence if its output finds no room."""
    try:
        yield
    except OSError as error:
        if error.errno != ENOSPC or error.filename is not None:
            raise
        leave(f"cannot write the output: {error.strerror}.")


def _store() -> click.Group:
    from troupemq.store_backup import backup, restore
    from troupemq.store_commands import store
    from troupemq.store_mending import check, rebuild

    for command in (check, rebuild, backup, restore):
        store.add_command(command)
    return store


SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands and options.

    \b
    For bash, store it once and open a new shell:
    troupemq completion bash > ~/.local/share/bash-completion/completions/troupemq
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, shell
    root = ctx.find_root()
    click.echo(made(root.command, {}, "troupemq", "_TROUPEMQ_COMPLETE").source())


def _tell_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from troupemq.runtime import this_runtime

        click.echo(f"troupemq, version {version()} on {this_runtime()}")
        ctx.exit()


@click.group(cls=Commands, context_settings={**HELP_OPTIONS, "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_tell_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Run and manage a message broker for Apache RocketMQ 4.9 clients.

    Start with `troupemq run`: it starts a name server and a broker on this machine and shows them
    in a short tour. `troupemq COMMAND --help` explains each command.
    """
