"""Web console in its own process: `console`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from re import ASCII
from re import compile as compile_pattern
from signal import SIGTERM
from threading import Thread
from typing import TypeVar

import click

from actors.network.bind_address import reached_at
from actors.settings.tls_settings import TlsSettings
from protocol.host import host_port, without_brackets
from storage.access.account import account_of_environment
from storage.errors import WrongSetting
from troupemq.cli.options import (
    FilePath,
    acl_option,
    daemon_options,
    leave,
    namesrv_option,
    take_account_file,
    tls_options,
)
from troupemq.console_child import KEY_PASSWORD, console_is_installed, console_missing
from troupemq.daemon import CTRL_C_ENDS_IT, Serving, serve
from troupemq.logs import set_up_logs
from troupemq.text import tell

PORT = 8088
DATA = "~/.troupemq-console"
ALERTS_FILE = "alerts.json"
ACCOUNT_FILE = "account.yml"
"""File in the data folder; a console started by a server has no --acl-file."""
Texts = TypeVar("Texts", str, tuple[str, ...])
_PREFIX = compile_pattern(r"(/[\w-]+)+", ASCII)


def _prefix(_: click.Context, __: click.Parameter, value: str) -> str:
    value = value.rstrip("/")
    if value and not _PREFIX.fullmatch(value):
        raise click.BadParameter(
            f"invalid prefix {value!r}: use a slash, then letters or digits, as in /mq"
        )
    return value


def _not_blank(_: click.Context, __: click.Parameter, given: Texts) -> Texts:
    """Refuse blank values, such as unset variables; "" would listen on all addresses."""
    if not all(each.strip() for each in ((given,) if isinstance(given, str) else given)):
        raise click.BadParameter("it is blank: give a value, or leave out the option")
    return given


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None


def take_account(path: Path) -> None:
    """Use the account in the file, if the file exists and the environment names no account.

    Raises StoreError.
    """
    if path.exists() and account_of_environment(os.environ) is None:
        take_account_file(str(path))


def _own_tls(certificate: str, key: str, *, is_test: bool) -> TlsSettings | None:
    """Return the settings of HTTPS; None without HTTPS. Raises WrongSetting."""
    if not certificate and not key and not is_test:
        return None
    if not is_test and not (certificate and key):
        raise WrongSetting("--https-cert needs --https-key, and vice versa: name both.")
    return TlsSettings(
        tls_test_mode=is_test,
        tls_server_certificate=certificate,
        tls_server_key=key,
        tls_server_key_password=os.environ.get(KEY_PASSWORD, ""),
    )


def _how_to_log_in(first_password: str | None, folder: Path) -> str:
    if first_password is not None:
        return f"Log in as admin with the password {first_password} (shown only this once)."
    path = folder / "accounts.json"
    return f"Log in with an existing account. A start without {path} creates a new admin."


def _end_with_stdin() -> None:
    """Send SIGTERM to this process when its parent ends.

    The parent holds the other end of stdin and never writes. The read bypasses sys.stdin: its
    lock, held by this thread, would abort the interpreter at exit.
    """
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), SIGTERM)


@click.command()
@namesrv_option
@acl_option
@tls_options
@click.option(
    "-p",
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    metavar="PORT",
    help="Listen on PORT; 0 takes a free one.",
)
@click.option(
    "--bind",
    default="127.0.0.1",
    callback=_not_blank,
    show_default=True,
    metavar="ADDRESS",
    help="Listen on this address.",
)
@click.option(
    "--data",
    type=FilePath(file_okay=False, path_type=Path),
    default=Path(DATA),
    show_default=True,
    help="Folder for accounts, audit log and alert thresholds.",
)
@click.option(
    "--prefix", default="", callback=_prefix, metavar="/PATH", help="URL prefix of all pages."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    callback=_not_blank,
    metavar="NAME",
    help="Accept this host name in URLs, besides IP addresses and localhost; repeatable.",
)
@click.option(
    "--proxy",
    default="",
    metavar="ADDRESS",
    help="Trust X-Forwarded-For from the reverse proxy at ADDRESS.",
)
@click.option(
    "--behind-tls", is_flag=True, help="Expect a proxy with HTTPS: send cookies over HTTPS only."
)
@click.option(
    "--https-cert",
    default="",
    metavar="FILE",
    help="Serve HTTPS with this certificate, PEM; needs --https-key.",
)
@click.option(
    "--https-key",
    default="",
    metavar="FILE",
    help="Private key of --https-cert; password in TROUPEMQ_CONSOLE_KEY_PASSWORD.",
)
@click.option("--https-test", is_flag=True, hidden=True, help="Use a new test certificate.")
@click.option("--hide-bodies", is_flag=True, help="Hide message bodies from viewers.")
@click.option(
    "--alerts",
    type=FilePath(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Send alerts to the webhook and mail addresses in this file (docs/console.md)."
    "  [default: alerts.json in --data, if present]",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="Stop when stdin ends.")
@daemon_options
def console(
    namesrv: str | None,
    port: int,
    bind: str,
    data: Path,
    prefix: str,
    hosts: tuple[str, ...],
    proxy: str,
    behind_tls: bool,
    https_cert: str,
    https_key: str,
    https_test: bool,
    hide_bodies: bool,
    alerts: Path | None,
    until_stdin_ends: bool,
    ready_file: Path | None,
    log_json: bool,
) -> None:
    """Serve a web console: cluster health, topics, groups, messages.

    It works with these brokers and name servers and with those of RocketMQ 4.9.7. The first start
    creates the user admin and prints its password once.
    """
    if not console_is_installed():
        leave(console_missing())
    set_up_logs(as_json=log_json)
    from troupemq.console.alerts import load_alert_settings
    from troupemq.console.asking import ConsoleSettings
    from troupemq.console.server import ConsoleServer

    folder = data.expanduser()

    def start(_: Callable[[str], None]) -> Serving:
        take_account(folder / ACCOUNT_FILE)
        settings = ConsoleSettings(
            data=folder,
            namesrv=namesrv,
            bind_address=bind,
            port=port,
            prefix=prefix,
            hosts=hosts,
            hide_bodies=hide_bodies,
            behind_tls=behind_tls,
            tls=_own_tls(https_cert, https_key, is_test=https_test),
            alerts=load_alert_settings(alerts or _if_there(folder / ALERTS_FILE)),
        )
        server = ConsoleServer(settings, proxy)
        server.start()
        address = host_port(reached_at(without_brackets(bind)), server.port)
        tell(f"Console on {server.scheme}://{address}{prefix}/")
        tell(_how_to_log_in(server.console.accounts.first_password, folder))
        if until_stdin_ends:
            Thread(target=_end_with_stdin, name="parent", daemon=True).start()
        else:
            tell(CTRL_C_ENDS_IT)
        return Serving({"console": server.port}, server.stop)

    sys.exit(serve(start, ready_file=ready_file, says_end=not until_stdin_ends))
