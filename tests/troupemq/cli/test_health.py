"""Tests of troupemq/cli/health.py: exit codes and lines, over HTTP and over a server's own port."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from socket import create_server, socket
from threading import Event

import pytest
from click.testing import CliRunner, Result

from actors.metrics.page_server import PageServer
from protocol.codes import RequestCode, ResponseCode
from tests.troupemq.fake_server import FakeServer
from troupemq.cli import cli
from troupemq.health.checks import Health, HealthCheck, health_server

HOST = "127.0.0.1"


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[PageServer]:
    server = health_server(HOST, 0, health)
    yield server
    server.close()


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["health", *arguments], catch_exceptions=False)


def test_a_starting_server_is_alive_and_not_ready(server: PageServer, health: Health) -> None:
    port = str(server.port)
    assert (ask("live", "-p", port).exit_code, ask("live", "-p", port).output) == (0, "")
    unready = ask("-p", port)
    assert unready.exit_code == 1 and unready.output.startswith("serving: it is starting")
    health.joins(lambda: [HealthCheck("disk", True)])
    assert (ask("-p", port).exit_code, ask("-p", port).output) == (0, "")
    assert ask("ready", "-v", "-p", port).output == "serving: ok\nloop: ok\ndisk: ok\n"


def test_an_unreachable_server_fails_with_one_sentence(server: PageServer) -> None:
    server.close()
    gone = ask("-p", str(server.port))
    assert gone.exit_code == 1 and f"{HOST}:{server.port} does not answer" in gone.stderr
    away = ask("-a", f"{HOST}:{server.port}")
    assert away.exit_code == 1 and away.stderr.count("\n") == 1


def test_an_unknown_host_name_is_reported_with_the_setting(server: PageServer) -> None:
    refused = ask("-p", str(server.port), "--host", "127.1")
    assert refused.exit_code == 1 and "add it to monitoringHosts" in refused.stderr


def test_health_without_a_port_is_a_usage_error() -> None:
    assert ask().exit_code == 2
    assert ask("-a", "nowhere").exit_code == 2


@pytest.mark.parametrize(
    ("code", "server"),
    [
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "a broker,"),
        (ResponseCode.QUERY_NOT_FOUND, "a name server or broker,"),
    ],
)
def test_a_servers_main_port_is_not_a_health_port(code: ResponseCode, server: str) -> None:
    """The command used to say that a healthy broker "does not answer"."""
    with FakeServer() as own:
        own.handlers[RequestCode.GET_KV_CONFIG] = lambda asked: asked.answer(code, remark="no")
        result = ask("-p", own.address.rpartition(":")[2])
    assert result.exit_code == 2
    assert f"{own.address} is the main port of {server} not its healthPort" in result.stderr
    assert f"use -a {own.address}" in result.stderr and result.stderr.count("\n") == 1


def test_a_non_http_answer_is_reported_without_its_bytes() -> None:
    """The replication port of a broker: its first bytes were the sentence."""
    with create_server((HOST, 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(bytes(12) + b"\n")

        with ThreadPoolExecutor() as pool:
            served = pool.submit(serve)
            result = ask("-p", str(listening.getsockname()[1]))
            served.result()
    assert result.exit_code == 1 and "does not speak HTTP" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("body", [b'{"ok":true,"checks":[1]}', b'{"ok":true,"checks":[{"ok":0}]}'])
def test_unusual_answers_of_a_foreign_port_are_a_one_sentence_error(body: bytes) -> None:
    """Such answers used to end in a traceback."""
    with create_server((HOST, 0)) as listening, ThreadPoolExecutor() as pool:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                connection.sendall(body)

        served = pool.submit(serve)
        result = ask("-p", str(listening.getsockname()[1]))
        served.result()
    assert result.exit_code == 1 and "is not a healthPort" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_that_never_ends_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte began the timeout again: a probe waited as long as the server wished."""
    monkeypatch.setattr(sys.modules["troupemq.cli.health"], "TIMEOUT_S", 0.2)
    over = Event()

    def drip(listener: socket) -> None:
        while not over.is_set():
            with suppress(OSError), listener.accept()[0] as line:
                line.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while not over.wait(0.02):
                    line.sendall(b" ")

    with create_server((HOST, 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(0.05)
        pool.submit(drip, listener)
        port = listener.getsockname()[1]
        done = ask("-p", str(port))
        over.set()
    assert done.exit_code == 1
    assert done.stderr == f"troupemq: {HOST}:{port} does not answer: timed out.\n"


def test_a_port_above_65535_was_asked_at_another_port() -> None:
    result = ask("-p", "99999")
    assert result.exit_code == 2 and "99999 is not in the range 0<=x<=65535" in result.output


def test_a_host_with_a_blank_was_a_traceback() -> None:
    result = ask("--host", "a b", "-p", "1")
    assert result.exit_code == 2
    assert "'a b' is not a host name" in result.stderr and result.stderr.count("\n") == 1


def test_any_answer_at_the_main_port_proves_liveness() -> None:
    with FakeServer() as server:
        server.handlers[RequestCode.GET_KV_CONFIG] = lambda asked: asked.answer(
            ResponseCode.QUERY_NOT_FOUND, remark="no such key"
        )
        result = ask("-a", server.address)
    assert (result.exit_code, result.output) == (0, "")
