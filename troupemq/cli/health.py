"""`troupemq health`: whether a server lives or is ready, for machines without curl."""

from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from json import loads

import click

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from remoting.sync_connection import RemotingFailed, SyncConnection
from troupemq.cli.options import leave
from troupemq.exit_codes import WRONG_OPTIONS
from troupemq.text import escaped, one_line

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 1 << 20
UNWELL = 1
ASK = RemotingCommand(RequestCode.GET_KV_CONFIG, {"namespace": "TroupeMQ", "key": "health"})


@click.command()
@click.argument("what", type=click.Choice(["live", "ready"]), default="ready")
@click.option(
    "-p", "--port", type=int, envvar="TROUPEMQ_HEALTH_PORT", metavar="PORT", help="healthPort."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where healthPort is.")
@click.option(
    "-a",
    "--address",
    metavar="HOST:PORT",
    help="Ask a broker or name server over its own port instead, RocketMQ's too: does it answer?",
)
@click.option("-v", "--verbose", is_flag=True, help="Each check, also those that are well.")
def health(what: str, port: int | None, host: str, address: str | None, verbose: bool) -> None:
    """Whether a server is `ready` (the default), or at least `live`.

    Exit code 0 if it is, 1 if not: then a line for each check that is not well.
    """
    if address is not None:
        _ask_over_remoting(address)
        return
    if not port:
        leave("Name the healthPort with -p, or a server with -a HOST:PORT.", WRONG_OPTIONS)
    is_well, lines = _ask_over_http(host, port, what)
    for is_fine, line in lines:
        if verbose or not is_fine:
            click.echo(escaped(line))
    raise SystemExit(0 if is_well else UNWELL)


def _ask_over_http(host: str, port: int, what: str) -> tuple[bool, list[tuple[bool, str]]]:
    """Return whether all is well; and of each check whether it is, and a line."""
    connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"/health/{what}")
        answer = connection.getresponse()
        text = answer.read(ANSWER_BYTES_MAX)
        if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
            leave(f"{host}:{port}: {one_line(text.decode(errors='replace'))}.", UNWELL)
        found = loads(text)
        lines = [
            (bool(each["ok"]), f"{each['check']}: {each['why'] or 'ok'}")
            for each in found["checks"]
        ]
        return bool(found["ok"]), lines
    except ConnectionRefusedError as error:
        leave(f"{host}:{port} does not answer: {error}. Is healthPort set there?", UNWELL)
    except (OSError, HTTPException) as error:
        server = _server_at(f"{host}:{port}")
        if server is None:
            is_text = isinstance(error, OSError)
            why = str(error) if is_text else "it does not speak HTTP, so it is no healthPort"
            leave(f"{host}:{port} does not answer: {why}.", UNWELL)
        leave(
            f"{host}:{port} is the own port of a {server}, and not its healthPort: ask it with"
            f" -a {host}:{port}, or set healthPort in its settings and name that with -p.",
            WRONG_OPTIONS,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        leave(f"{host}:{port} is no healthPort: what it answered is not known.", UNWELL)
    finally:
        connection.close()


def _server_at(address: str) -> str | None:
    """Return what serves RocketMQ's protocol at this port; None: nothing does."""
    try:
        with SyncConnection(address, timeout_ms=int(TIMEOUT_S * 1000)) as line:
            code = line.call(ASK).code
    except (ValueError, RemotingFailed):
        return None
    is_broker = code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return "broker" if is_broker else "name server or broker"


def _ask_over_remoting(address: str) -> None:
    """Any answer will do, a refusal, too: it lives, and serves that port."""
    try:
        with SyncConnection(address, timeout_ms=int(TIMEOUT_S * 1000)) as line:
            line.call(ASK)
    except ValueError as error:
        leave(str(error), WRONG_OPTIONS)
    except RemotingFailed as error:
        leave(f"{error}.", UNWELL)
