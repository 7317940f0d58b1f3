"""`console`: pages for operators, in a process of its own."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from re import ASCII
from re import compile as compile_pattern
from signal import SIGTERM
from threading import Thread

import click

from actors.network.bind_address import reached_at
from actors.settings.tls_settings import TlsSettings
from protocol.host import host_port, without_brackets
from storage.access.account import account_of_environment
from storage.errors import WrongSetting
from troupemq.cli.options import (
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
from troupemq.saying import tell

PORT = 8088
DATA = "~/.troupemq-console"
ALERTS_FILE = "alerts.json"
ACCOUNT_FILE = "account.yml"
"""Among its data, for a console that a server starts: what the options name for others."""
_PREFIX = compile_pattern(r"(/[\w-]+)+", ASCII)


def _prefix(_: click.Context, __: click.Parameter, value: str) -> str:
    value = value.rstrip("/")
    if value and not _PREFIX.fullmatch(value):
        raise click.BadParameter("write /mq: a slash and letters or digits")
    return value


def _if_there(path: Path) -> Path | None:
    return path if path.exists() else None


def take_account(path: Path) -> None:
    """The account in that file, if it is there and nothing else names one. Raises StoreError."""
    if path.exists() and account_of_environment(os.environ) is None:
        take_account_file(str(path))


def _own_tls(certificate: str, key: str, *, is_test: bool) -> TlsSettings | None:
    """Return the settings of https. Raises WrongSetting."""
    if not certificate and not key and not is_test:
        return None
    if not is_test and not (certificate and key):
        raise WrongSetting("--https-cert and --https-key belong together.")
    return TlsSettings(
        tls_test_mode=is_test,
        tls_server_certificate=certificate,
        tls_server_key=key,
        tls_server_key_password=os.environ.get(KEY_PASSWORD, ""),
    )


def _how_to_log_in(first_password: str | None, folder: Path) -> str:
    if first_password is not None:
        return f"Log in as admin with the password {first_password} (it is shown this once)."
    path = folder / "accounts.json"
    return f"Log in with an account of before; without {path} a start makes a new one."


def _end_with_stdin() -> None:
    """Whoever started this one has the other end, and never writes.

    Not by sys.stdin: an end of the process would abort on the lock that its reader holds.
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
    help="0: a free one.",
)
@click.option(
    "--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(DATA),
    show_default=True,
    help="Accounts, audit log and thresholds of alerts.",
)
@click.option("--prefix", default="", callback=_prefix, metavar="/PATH", help="Of all its paths.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers call it, besides addresses and localhost; repeatable.",
)
@click.option(
    "--proxy", default="", metavar="ADDRESS", help="A reverse proxy whose X-Forwarded-For counts."
)
@click.option("--behind-tls", is_flag=True, help="Browsers reach it by https only.")
@click.option(
    "--https-cert",
    default="",
    metavar="FILE",
    help="Its own certificate, PEM: browsers reach it by https, without a proxy.",
)
@click.option(
    "--https-key",
    default="",
    metavar="FILE",
    help="The key of that; its password: TROUPEMQ_CONSOLE_KEY_PASSWORD.",
)
@click.option("--https-test", is_flag=True, hidden=True, help="With a certificate made now.")
@click.option("--hide-bodies", is_flag=True, help="Viewers see no bodies of messages.")
@click.option(
    "--alerts",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Whom to tell what is wrong: a webhook, mail (docs/console.md).  [default: alerts.json"
    " among its data, if it is there]",
)
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="With its parent.")
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
    """Pages for operators in a browser: what is wrong, topics, groups, messages.

    It asks brokers and name servers as `troupemq admin` does, official ones of 4.9.7, too. The
    first start makes the user admin, and prints its password once.
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
