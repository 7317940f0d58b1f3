"""Health of a server, for machines without curl: `health`."""

from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from json import loads
from socket import SHUT_RDWR
from threading import Timer
from time import monotonic

import click

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from remoting.sync_connection import RemotingFailed, SyncConnection
from storage.errors import reason_of
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
    "-p",
    "--port",
    type=click.IntRange(0, 65535),
    envvar="TROUPEMQ_HEALTH_PORT",
    metavar="PORT",
    help="The server's healthPort. [default: the environment's TROUPEMQ_HEALTH_PORT]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The server's host.")
@click.option(
    "-a",
    "--address",
    metavar="HOST:PORT",
    help="Only test whether a broker or name server answers on its main port; works with RocketMQ.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print all checks, also the passed ones.")
def health(what: str, port: int | None, host: str, address: str | None, verbose: bool) -> None:
    """Check whether a server is `ready` for clients (the default) or at least `live`.

    Exit code 0 if it is, 1 if not. Prints one line for each failed check.
    """
    if address is not None:
        _ask_over_remoting(address)
        return
    if not port:
        leave("no server named: give its healthPort with -p, or -a HOST:PORT.", WRONG_OPTIONS)
    is_well, lines = _ask_over_http(host, port, what)
    for is_fine, line in lines:
        if verbose or not is_fine:
            click.echo(escaped(line))
    raise SystemExit(0 if is_well else UNWELL)


def _ask_over_http(host: str, port: int, what: str) -> tuple[bool, list[tuple[bool, str]]]:
    """Return whether all checks pass, and for each check whether it passes and a line of text."""
    try:
        connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
    except HTTPException:
        leave(f"{host!r} is not a host name: give --host a name or an address.", WRONG_OPTIONS)
    try:
        status, text = _fetched(connection, f"/health/{what}")
        if status == HTTPStatus.MISDIRECTED_REQUEST:
            leave(f"{host}:{port}: {one_line(text.decode(errors='replace'))}.", UNWELL)
        found = loads(text)
        lines = [
            (bool(each["ok"]), f"{each['check']}: {each['why'] or 'ok'}")
            for each in found["checks"]
        ]
        return bool(found["ok"]), lines
    except ConnectionRefusedError as error:
        leave(
            f"{host}:{port} does not answer: {reason_of(error)}. Check that healthPort is set.",
            UNWELL,
        )
    except (OSError, HTTPException) as error:
        server = _server_at(f"{host}:{port}")
        if server is None:
            why = (
                reason_of(error)
                if isinstance(error, OSError)
                else "it does not speak HTTP, so it is not a healthPort"
            )
            leave(f"{host}:{port} does not answer: {why}.", UNWELL)
        leave(
            f"{host}:{port} is the main port of a {server}, not its healthPort: use"
            f" -a {host}:{port}, or set healthPort in its settings and give that port with -p.",
            WRONG_OPTIONS,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        leave(f"{host}:{port} is not a healthPort: its answer is not understood.", UNWELL)
    finally:
        connection.close()


def _fetched(connection: HTTPConnection, path: str) -> tuple[int, bytes]:
    """Return status and body. Raises OSError, HTTPException; TimeoutError after TIMEOUT_S in all.

    The timeout of a socket begins again with each byte.
    """
    connection.connect()
    began_s, sock = monotonic(), connection.sock

    def give_up() -> None:
        with suppress(OSError):
            sock.shutdown(SHUT_RDWR)

    timer = Timer(TIMEOUT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", path)
        with connection.getresponse() as answer:
            return answer.status, answer.read(ANSWER_BYTES_MAX)
    finally:
        timer.cancel()
        if monotonic() - began_s >= TIMEOUT_S:
            raise TimeoutError("timed out")


def _server_at(address: str) -> str | None:
    """Return the kind of server that speaks RocketMQ's protocol at this port; None if none."""
    try:
        with SyncConnection(address, timeout_ms=int(TIMEOUT_S * 1000)) as line:
            code = line.call(ASK).code
    except (ValueError, RemotingFailed):
        return None
    is_broker = code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return "broker" if is_broker else "name server or broker"


def _ask_over_remoting(address: str) -> None:
    """End the command unless the server answers. Any answer counts, even an error."""
    try:
        with SyncConnection(address, timeout_ms=int(TIMEOUT_S * 1000)) as line:
            line.call(ASK)
    except ValueError as error:
        leave(str(error), WRONG_OPTIONS)
    except RemotingFailed as error:
        leave(f"{error}.", UNWELL)
