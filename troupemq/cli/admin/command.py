"""The making of a command of `troupemq admin`: its name, its section of the help, its options.

Every command has -n and --json, ends with one sentence on stderr and exit code 1 when it cannot
do what it was told, and finds its options under mqadmin's long names too.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from errno import EPIPE
from math import inf
from typing import Any

import click
from click.shell_completion import CompletionItem

from protocol.compression import CompressionError
from protocol.errors import ProtocolError
from troupemq.cli.admin.output import Output
from troupemq.cli.groups import CommandGroup
from troupemq.cli.options import acl_option, json_option, leave, namesrv_option, tls_options
from troupemq.client.admin import Admin, Answers, Change, Result
from troupemq.client.admin.base import SILENT_S
from troupemq.client.errors import ClientError
from troupemq.interrupts import INTERRUPTED
from troupemq.text import one_line

Action = Callable[..., None]
"""Called with an Admin, the output, and the options by name."""

SECTIONS = (
    "Clusters and brokers",
    "Topics",
    "Consumer groups",
    "Offsets",
    "Producers",
    "Messages",
    "Trial sends",
    "Transactions",
    "Name servers",
    "Access control",
    "Export and import",
)
"""In the order of the help."""

COMMANDS: dict[str, click.Command] = {}
ALIASES: dict[str, str] = {}
SECTION_OF: dict[str, str] = {}


def option(short: str, name: str, help: str, *, to: str = "", **more: Any) -> click.Option:
    """Make `-b` with `--broker-addr`, and `--brokerAddr` as mqadmin spells it.

    The action gets it as `broker_addr`, or as `to`.
    """
    kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    spellings = dict.fromkeys((f"-{short}", f"--{kebab}", f"--{name}"))
    return click.Option([*spellings, to or kebab.replace("-", "_")], help=help, **more)


def flag(short: str, name: str, help: str, *, to: str = "") -> click.Option:
    """Make an option without a value."""
    return option(short, name, help, to=to, is_flag=True)


def command(
    name: str,
    section: str,
    *options: click.Parameter,
    aliases: Sequence[str] = (),
    until_interrupted: bool = False,
    needs_target: bool = False,
    help: str = "",
) -> Callable[[Action], Action]:
    """Register a function as the command `name`; its docstring is the help, else `help`.

    Ctrl-C is an end in order for one that goes on until then, else exit code 130. With
    `needs_target`, a broker or a cluster must be named.
    """
    assert section in SECTIONS, section

    def register(action: Action) -> Action:
        def run(namesrv: str | None, as_json: bool, **given: Any) -> None:
            out = Output(as_json=as_json)
            try:
                _check_text(given)
                if needs_target and given["broker"] is None and given["cluster"] is None:
                    raise click.UsageError("Name a broker with -b or a cluster with -c.")
                with Admin(namesrv, silent_s=SILENT_S if until_interrupted else inf) as admin:
                    action(admin, out, **given)
            except ClientError as error:
                leave(one_line(str(error)))
            except (ProtocolError, CompressionError) as error:
                leave(one_line(f"an answer that cannot be understood: {error}"))
            except OSError as error:
                if error.errno == EPIPE:
                    raise  # `| head`: click ends without a word
                leave(f"the output cannot be written: {error.strerror}")
            except KeyboardInterrupt:
                if not until_interrupted:
                    sys.exit(INTERRUPTED)
            if out.failed:
                sys.exit(1)

        made = click.Command(name, params=[*options], callback=run, help=help or action.__doc__)
        tls_options(acl_option(namesrv_option(json_option(made))))
        COMMANDS[name] = made
        SECTION_OF[name] = section
        ALIASES.update({alias.lower(): name for alias in (name, *aliases)})
        return action

    return register


def listing(
    name: str,
    section: str,
    method: Callable[..., Iterable[Result]],
    help: str,
    nothing: str,
    *options: click.Parameter,
    is_quiet: bool = False,
    **more: Any,
) -> None:
    """Register a command that shows what a method of Admin returns, as a table.

    `nothing` is said of an empty one, with the options in it; `is_quiet`: unless it failed.
    """

    def show(admin: Admin, out: Output, /, **given: Any) -> None:
        found = method(admin, **given)
        if is_quiet and isinstance(found, Answers) and not found and found.failures:
            found.tell(out.fail)
        else:
            out.table(found, nothing.format(**given))

    command(name, section, *options, help=help, **more)(show)


def changing(
    name: str,
    section: str,
    method: Callable[..., Iterable[Change]],
    help: str,
    *options: click.Parameter,
    **more: Any,
) -> None:
    """Register a command that carries out a method of Admin and says what was done."""

    def change(admin: Admin, out: Output, /, **given: Any) -> None:
        out.changes(method(admin, **given))

    command(name, section, *options, help=help, **more)(change)


def _check_text(given: dict[str, Any]) -> None:
    """Raise click.UsageError for bytes in the command line that are not UTF-8."""
    for value in given.values():
        if isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value):
            raise click.UsageError(f"{one_line(value)} is not UTF-8.")


class AdminGroup(CommandGroup):
    """Finds commands whatever their capitals, and lists them by section."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.commands.get(ALIASES.get(cmd_name.lower(), cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names and options, whatever their capitals."""
        begun = incomplete.lower()
        found = super().shell_complete(ctx, incomplete[:1] if begun.startswith("-") else "")
        return [each for each in found if str(each.value).lower().startswith(begun)]

    def names(self, ctx: click.Context) -> Mapping[str, str]:
        """Return mqadmin's names, ours, and the command of each."""
        return {**ALIASES, **super().names(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, each with its commands in order."""
        for section in SECTIONS:
            names = sorted(name for name, where in SECTION_OF.items() if where == section)
            if names:
                with formatter.section(section):
                    self.write_commands(ctx, formatter, names)


def yes_no(
    short: str, name: str, help: str, default: str = "false", *, to: str = "", **more: Any
) -> click.Option:
    """Make an option that takes true or false, as mqadmin's do: anything but true is false."""
    return option(
        short,
        name,
        help,
        to=to,
        metavar="true|false",
        callback=lambda _, __, value: (value or "").strip().lower() == "true",
        **({"default": default, "show_default": True} | more),
    )


def whole_number(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the number of a choice among numbers."""
    return None if value is None else int(value)


PERMISSION: dict[str, Any] = {
    "help": "4 read, 2 write, 6 both.",
    "type": click.Choice(["2", "4", "6"]),
    "callback": whole_number,
}
BROKER = option("b", "brokerAddr", "This broker only.", to="broker", metavar="HOST:PORT")
THE_BROKER = option(
    "b", "brokerAddr", "The broker.", to="broker", required=True, metavar="HOST:PORT"
)
CLUSTER = option("c", "clusterName", "The brokers of this cluster.", to="cluster", metavar="NAME")
TOPIC = option("t", "topic", "The topic.", required=True)
GROUP = option("g", "groupName", "The consumer group.", to="group", required=True)
