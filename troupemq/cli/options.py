"""Options and groups of commands, and the end of a command with an error.

A group suggests names and lists whole first sentences.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from remoting.tls_options import AUTH_SERVER, CERTIFICATE, ENABLE, KEY, KEY_PASSWORD, TRUST
from storage.access.account import ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN, account_of_file
from storage.errors import StoreError
from storage.spelling import HINT_RATIO, closest
from troupemq.text import FAILED, one_line, say

_TLS_FILE = {
    "tls.client.trustCertPath": TRUST,
    "tls.client.certPath": CERTIFICATE,
    "tls.client.keyPath": KEY,
    "tls.client.keyPassword": KEY_PASSWORD,
    "tls.client.authServer": AUTH_SERVER,
}

HELP_OPTIONS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""Context settings of top-level commands."""

Command = TypeVar("Command", bound=Callable[..., Any])


YEAR_S = 365 * 86_400
"""Maximum of waiting times, in seconds."""


class FiniteRange(click.FloatRange):
    """Number within a range; refuses nan and infinity."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return found


class FilePath(click.Path):
    """Path of a file or folder; refuses an empty one, which would mean the current folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if not str(value).strip():
            self.fail("the path is empty: name a file or folder.", param, ctx)
        return super().convert(value, param, ctx)


def namesrv_option(function: Command) -> Command:
    return click.option(
        "-n",
        "--namesrv",
        "--namesrvAddr",
        "namesrv",
        metavar="HOST:PORT",
        help="Name servers, separated by ;. "
        "[default: the environment's NAMESRV_ADDR, else 127.0.0.1:9876]",
    )(function)


def acl_option(function: Command) -> Command:
    """Add --acl-file: an account for servers with access control, put into the environment."""
    return click.option(
        "--acl-file",
        type=FilePath(dir_okay=False, path_type=Path),
        envvar="TROUPEMQ_ACL_FILE",
        expose_value=False,
        callback=_take_account,
        metavar="FILE",
        help="Sign requests with the accessKey and secretKey in this file, as in mqadmin's"
        " conf/tools.yml. [default: the environment's TROUPEMQ_ACL_FILE, or TROUPEMQ_ACCESS_KEY and"
        " TROUPEMQ_SECRET_KEY]",
    )(function)


def tls_options(function: Command) -> Command:
    """Add --tls, --tls-ca, --tls-cert, --tls-key and --tls-config, put into the environment."""
    made = click.option(
        "--tls",
        is_flag=True,
        expose_value=False,
        callback=_take_tls,
        help="Connect to servers with TLS. [default: the environment's TROUPEMQ_TLS, else off]",
    )(function)
    for name, variable, text in (
        ("--tls-ca", TRUST, "Trusted CA certificates, PEM. [default: the system's]"),
        ("--tls-cert", CERTIFICATE, "Client certificate, PEM, for servers that require one."),
        ("--tls-key", KEY, "Private key of --tls-cert; password in TROUPEMQ_TLS_KEY_PASSWORD."),
    ):
        made = click.option(
            name,
            type=FilePath(dir_okay=False),
            metavar="FILE",
            expose_value=False,
            callback=partial(_take_file, variable),
            help=text,
        )(made)
    return click.option(
        "--tls-config",
        type=FilePath(dir_okay=False),
        metavar="FILE",
        expose_value=False,
        is_eager=True,  # the other options override the file, whatever their order
        callback=_take_tls_file,
        help="Read the tls.client.* settings of RocketMQ's tls.properties from this file."
        " tls.client.authServer=false accepts any server certificate.",
    )(made)


def _take_tls(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    if wanted:
        os.environ[ENABLE] = "true"


def _take_file(variable: str, _: click.Context, __: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    os.environ[variable] = path
    if os.environ.get(ENABLE, "").lower() == "false":  # the command line overrides it
        del os.environ[ENABLE]


def _take_tls_file(_: click.Context, __: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    from actors.settings.tls_settings import read_tls_file  # here: a slow import, seldom needed

    try:
        found = read_tls_file(path)
    except StoreError as error:
        raise click.UsageError(one_line(str(error))) from None
    os.environ[ENABLE] = found.get("tls.enable", "true")
    for name, variable in _TLS_FILE.items():
        if name in found:
            os.environ[variable] = found[name]


def _take_account(_: click.Context, __: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        take_account_file(str(path))
    except StoreError as error:
        raise click.UsageError(one_line(str(error))) from None


def take_account_file(path: str) -> None:
    """Put the file's account into this process's environment. Raises StoreError."""
    found = account_of_file(path)
    if found is not None:
        os.environ[ACCESS_KEY] = found.access_key
        os.environ[SECRET_KEY] = found.secret_key
        os.environ[SECURITY_TOKEN] = found.security_token or ""


def settings_option(function: Command) -> Command:
    """Add -s: settings that override the file's, passed as a dictionary."""
    return click.option(
        "-s",
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_keys_and_values,
        help="Set one setting, overriding the file; repeatable.",
    )(function)


def _keys_and_values(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def json_option(function: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(
        function
    )


def daemon_options(function: Command) -> Command:
    ready = click.option(
        "--ready-file",
        type=FilePath(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write process id and port numbers to this file, as JSON, once the ports answer.",
    )
    log_json = click.option("--log-json", is_flag=True, help="Write log lines as JSON objects.")
    return ready(log_json(function))


def leave(sentence: str, code: int = FAILED) -> NoReturn:
    """End the command with one sentence on stderr and this exit code."""
    say(sentence)
    sys.exit(code)


SENTENCE_CHARS = 1000
"""Maximum characters of a command's first sentence in a list; click's default cuts it at 45."""


class CommandGroup(click.Group):
    """Group that suggests the nearest name for a misspelled command."""

    def names(self, ctx: click.Context) -> Mapping[str, str]:
        """Return the accepted names, each with its command."""
        return {name: name for name in self.list_commands(ctx)}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; add a suggestion to the error."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.names(ctx)
            near = closest(args[0], names, HINT_RATIO)
            hint = "" if near is None else f" Did you mean {names[near]}?"
            raise click.UsageError(error.message + hint, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            self.write_commands(ctx, formatter, self.list_commands(ctx))

    def write_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter, names: list[str]
    ) -> None:
        """Write these commands with their first sentences, except hidden ones."""
        found = ((name, self.get_command(ctx, name)) for name in names)
        formatter.write_dl(
            [
                (name, each.get_short_help_str(SENTENCE_CHARS))
                for name, each in found
                if each is not None and not each.hidden
            ]
        )
