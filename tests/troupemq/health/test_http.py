"""Tests of troupemq/health/http.py: what is answered, and to whom nothing is."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from socket import create_connection
from threading import Event
from typing import Any

import pytest

from actors.network.connections import PortTaken
from troupemq.health import http
from troupemq.health.checks import Health, HealthCheck
from troupemq.health.http import ANSWERERS_MAX, REQUEST_BYTES_MAX, HealthServer

HOST = "127.0.0.1"
WAIT_S = 20.0


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    server = HealthServer(HOST, 0, health)
    yield server
    server.close()


def get(server: HealthServer, target: str, method: str = "GET") -> tuple[int, Any]:
    connection = HTTPConnection(HOST, server.port, timeout=WAIT_S)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body else None
    finally:
        connection.close()


def sent(server: HealthServer, data: bytes) -> bytes:
    with create_connection((HOST, server.port), WAIT_S) as sock:
        sock.sendall(data)
        found = b""
        try:
            while piece := sock.recv(4096):
                found += piece
        except ConnectionResetError:
            pass  # it did not read all
        return found


def test_well_is_200_and_unwell_503_with_the_reason(server: HealthServer, health: Health) -> None:
    assert get(server, "/health/live")[0] == 200
    status, body = get(server, "/health/ready?verbose")
    assert status == 503 and body["checks"][0]["check"] == "serving"
    health.joins(lambda: [HealthCheck("disk", True)])
    assert get(server, "/health/ready") == (
        200,
        {
            "ok": True,
            "checks": [
                {"check": "serving", "ok": True, "why": ""},
                {"check": "loop", "ok": True, "why": ""},
                {"check": "disk", "ok": True, "why": ""},
            ],
        },
    )
    assert get(server, "/health/live", "HEAD") == (200, None)


def test_nothing_else_is_served(server: HealthServer) -> None:
    assert get(server, "/")[0] == get(server, "/health/live/x")[0] == 404
    assert get(server, "/health/live", "POST")[0] == 405
    assert sent(server, b"\x00\x00\x00\x10nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_who_says_too_much_or_too_little_gets_nothing(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent(server, b"GET /" + b"x" * (REQUEST_BYTES_MAX * 2)) == b""
    monkeypatch.setattr(http, "DEADLINE_S", 0.05)
    assert sent(server, b"GET /health/live HTT") == b""


def test_no_more_are_answered_at_a_time_than_there_are_threads(
    server: HealthServer, health: Health
) -> None:
    let_go, asked = Event(), []

    def slow() -> list[HealthCheck]:
        asked.append(1)
        let_go.wait(WAIT_S)
        return []

    health.joins(slow)
    request = b"GET /health/ready HTTP/1.1\r\n\r\n"
    waiting = [create_connection((HOST, server.port), WAIT_S) for _ in range(ANSWERERS_MAX)]
    for sock in waiting:
        sock.sendall(request)
    assert sent(server, request) == b""
    let_go.set()
    for sock in waiting:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        sock.close()
    assert len(asked) == ANSWERERS_MAX


def test_a_port_that_is_taken_is_named_by_its_setting(server: HealthServer) -> None:
    with pytest.raises(PortTaken, match="healthPort"):
        HealthServer(HOST, server.port, Health())
