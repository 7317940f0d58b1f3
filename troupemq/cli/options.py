"""Options that several commands have, and how commands end."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from storage.access.account import ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN, account_of_file
from storage.errors import StoreError
from troupemq.daemon import say
from troupemq.exit_codes import FAILED

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}
"""For every command that may be the first of a line."""

Command = TypeVar("Command", bound=Callable[..., Any])


def namesrv_option(function: Command) -> Command:
    """-n: where clients find the name servers."""
    return click.option(
        "-n",
        "--namesrv",
        "--namesrvAddr",
        "namesrv",
        metavar="HOST:PORT",
        help="Name servers, several with ; between. "
        "[default: the environment's NAMESRV_ADDR, else 127.0.0.1:9876]",
    )(function)


def acl_option(function: Command) -> Command:
    """--acl-file: the account of servers with access control; it goes into the environment."""
    return click.option(
        "--acl-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TROUPEMQ_ACL_FILE",
        expose_value=False,
        callback=_take_account,
        metavar="FILE",
        help="accessKey and secretKey, as in mqadmin's conf/tools.yml. "
        "[default: the environment's TROUPEMQ_ACL_FILE, or TROUPEMQ_ACCESS_KEY and"
        " TROUPEMQ_SECRET_KEY]",
    )(function)


def _take_account(_: click.Context, __: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        found = account_of_file(str(path))
    except StoreError as error:
        raise click.UsageError(str(error)) from None
    if found is not None:
        os.environ[ACCESS_KEY] = found.access_key
        os.environ[SECRET_KEY] = found.secret_key
        os.environ[SECURITY_TOKEN] = found.security_token or ""


def json_option(function: Command) -> Command:
    """--json: one object a line on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(function)


def daemon_options(function: Command) -> Command:
    """What every long-running process has."""
    ready = click.option(
        "--ready-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the process id and the real ports there, as JSON, once they answer.",
    )
    log_json = click.option("--log-json", is_flag=True, help="Log lines as JSON objects.")
    return ready(log_json(function))


def leave(sentence: str, code: int = FAILED) -> NoReturn:
    """Ends the command with one sentence on stderr, and this exit code."""
    say(sentence)
    sys.exit(code)
