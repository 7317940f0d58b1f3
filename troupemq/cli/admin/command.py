"""Registration of the `admin` commands: name, section of the help, options.

Every command has -n and --json and accepts mqadmin's long option names. It ends with one sentence
on stderr and exit code 1 if it fails.
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
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.spelling import closest
from troupemq.cli.admin.output import Output
from troupemq.cli.options import (
    CommandGroup,
    acl_option,
    json_option,
    leave,
    namesrv_option,
    tls_options,
)
from troupemq.client.admin import Admin, Answers, Change, Result
from troupemq.client.admin.base import SILENT_S
from troupemq.client.errors import BrokerError, ClientError, RouteNotFound
from troupemq.interrupts import INTERRUPTED
from troupemq.text import one_line

Action = Callable[..., None]
"""Function of a command, called with an Admin, the output, and the options by name."""

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
"""Sections in the order of the help."""

COMMANDS: dict[str, click.Command] = {}
ALIASES: dict[str, str] = {}
SECTION_OF: dict[str, str] = {}


def option(short: str, name: str, help: str, *, to: str = "", **more: Any) -> click.Option:
    """Make an option with three spellings: `-b`, `--broker-addr`, and mqadmin's `--brokerAddr`.

    The action gets it as `broker_addr`, or as `to`.
    """
    kebab = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
    spellings = dict.fromkeys((f"-{short}", f"--{kebab}", f"--{name}"))
    parameter = to or kebab.replace("-", "_")
    return click.Option([*spellings, parameter], help=help, **{"show_default": True, **more})


def flag(short: str, name: str, help: str, *, to: str = "") -> click.Option:
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
    """Register a function as the command `name`, with `help` or its docstring as help.

    Ctrl-C gives exit code 0 if `until_interrupted`, else 130. With `needs_target` the command
    needs a broker or a cluster.
    """
    assert section in SECTIONS, section

    def register(action: Action) -> Action:
        def run(namesrv: str | None, as_json: bool, **given: Any) -> None:
            out = Output(as_json=as_json)
            try:
                _check_text(given)
                if needs_target and given["broker"] is None and given["cluster"] is None:
                    raise click.UsageError(
                        "no target named: give a broker with -b or a cluster with -c."
                    )
                with Admin(namesrv, silent_s=SILENT_S if until_interrupted else inf) as admin:
                    try:
                        action(admin, out, **given)
                    except (RouteNotFound, BrokerError) as error:
                        leave(one_line(str(error)) + _meant(admin, given))
            except ClientError as error:
                leave(one_line(str(error)))
            except (ProtocolError, CompressionError) as error:
                leave(one_line(f"answer not understood: {error}"))
            except OSError as error:
                if error.errno == EPIPE:
                    raise  # `| head`: click ends the command silently
                leave(f"cannot write the output: {error.strerror}")
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
    """Register a command that shows the result of a method of Admin as a table.

    `nothing` is the text for an empty table, formatted with the options. With `is_quiet` it is left
    out after failures.
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
    """Register a command that calls a method of Admin and prints the changes it made."""

    def change(admin: Admin, out: Output, /, **given: Any) -> None:
        out.changes(method(admin, **given))

    command(name, section, *options, help=help, **more)(change)


def _meant(admin: Admin, given: dict[str, Any]) -> str:
    """Return a question with the topic, group or cluster that an option misspells, or nothing."""
    kinds = [kind for kind in ("topic", "group", "cluster") if isinstance(given.get(kind), str)]
    try:
        topics = set(admin.topics()) if kinds != ["cluster"] else set()
        known = {
            "topic": topics,
            "group": {
                each.removeprefix(RETRY_TOPIC_PREFIX)
                for each in topics
                if each.startswith(RETRY_TOPIC_PREFIX)
            },
            "cluster": {each.cluster for each in admin.brokers()} if "cluster" in kinds else set(),
        }
    except ClientError:
        return ""
    for kind in kinds:
        found = None if given[kind] in known[kind] else closest(given[kind], known[kind])
        if found is not None:
            return f"; did you mean the {kind} {found}?"
    return ""


def _check_text(given: dict[str, Any]) -> None:
    """Raise click.UsageError for an option that is not UTF-8."""
    for value in given.values():
        if isinstance(value, str) and any("\ud800" <= each <= "\udfff" for each in value):
            raise click.UsageError(f"{one_line(value)} is not UTF-8.")


class AdminGroup(CommandGroup):
    """Group that finds commands in any case and lists them by section."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.commands.get(ALIASES.get(cmd_name.lower(), cmd_name))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names and options in any case."""
        begun = incomplete.lower()
        found = super().shell_complete(ctx, incomplete[:1] if begun.startswith("-") else "")
        return [each for each in found if str(each.value).lower().startswith(begun)]

    def names(self, ctx: click.Context) -> Mapping[str, str]:
        """Return all names and aliases in lower case, each with its command."""
        return {**ALIASES, **super().names(ctx)}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, each with its commands in alphabetical order."""
        for section in SECTIONS:
            names = sorted(name for name, where in SECTION_OF.items() if where == section)
            if names:
                with formatter.section(section):
                    self.write_commands(ctx, formatter, names)


def yes_no(
    short: str, name: str, help: str, default: str = "false", *, to: str = "", **more: Any
) -> click.Option:
    """Make an option for true or false; another word, false for mqadmin, is refused."""
    return option(
        short,
        name,
        help,
        to=to,
        metavar="true|false",
        callback=_is_true,
        **({"default": default, "show_default": True} | more),
    )


def _is_true(ctx: click.Context, param: click.Parameter, value: str | None) -> bool:
    word = (value or "").strip().lower()
    if word not in ("", "true", "false"):
        raise click.BadParameter(f"{value!r} is neither true nor false.", ctx, param)
    return word == "true"


def whole_number(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    return None if value is None else int(value)


PERMISSION: dict[str, Any] = {
    "help": "Permission: 4 is read, 2 is write, 6 is both.",
    "type": click.Choice(["2", "4", "6"]),
    "callback": whole_number,
}
BROKER = option("b", "brokerAddr", "Only this broker.", to="broker", metavar="HOST:PORT")
THE_BROKER = option(
    "b", "brokerAddr", "The broker.", to="broker", required=True, metavar="HOST:PORT"
)
CLUSTER = option("c", "clusterName", "All brokers of this cluster.", to="cluster", metavar="NAME")
TOPIC = option("t", "topic", "The topic.", required=True)
GROUP = option("g", "groupName", "The consumer group.", to="group", required=True)
