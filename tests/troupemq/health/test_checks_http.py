"""Tests of troupemq/health/checks.py: what is answered at the port of health."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from actors.metrics.page_server import PageServer
from actors.network.connections import PortTaken
from troupemq.health.checks import Health, HealthCheck, health_server

HOST = "127.0.0.1"
WAIT_S = 20.0


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[PageServer]:
    server = health_server(HOST, 0, health)
    yield server
    server.close()


def get(server: PageServer, target: str, method: str = "GET") -> tuple[int, Any]:
    connection = HTTPConnection(HOST, server.port, timeout=WAIT_S)
    try:
        connection.request(method, target)
        answer = connection.getresponse()
        body = answer.read()
        is_json = answer.getheader("Content-Type") == "application/json"
        return answer.status, json.loads(body) if body and is_json else None
    finally:
        connection.close()


def test_healthy_is_200_and_unhealthy_503_with_the_reason(
    server: PageServer, health: Health
) -> None:
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


def test_other_paths_are_not_served(server: PageServer) -> None:
    assert get(server, "/")[0] == get(server, "/health/live/x")[0] == 404
    assert get(server, "/metrics")[0] == 404
    assert get(server, "/health/live", "POST")[0] == 405


def test_a_port_in_use_is_reported_with_its_setting(server: PageServer) -> None:
    with pytest.raises(PortTaken, match="healthPort"):
        health_server(HOST, server.port, Health())
