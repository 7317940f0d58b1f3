"""HTTP pages /health/live and /health/ready: 200 or 503, with JSON.

    GET /health/live     200 {"ok": true, "checks": [{"check": "loop", "ok": true, "why": ""}]}
    GET /health/ready    503 with a "why" for each failed check

They need no login, because they contain no names of topics or clients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from http import HTTPStatus
from json import dumps

from actors.metrics.http_text import HttpRequest
from actors.metrics.page_server import Page, PageAnswer, PageServer
from actors.network.connections import open_listener
from actors.network.known_hosts import KnownHosts
from troupemq.health.checks import Health, HealthCheck, is_well

JSON = "application/json"


def health_pages(health: Health) -> Mapping[str, Page]:
    return {"/health/live": _page(health.live), "/health/ready": _page(health.ready)}


def health_server(
    host: str, port: int, health: Health, hosts: KnownHosts | None = None
) -> PageServer:
    """Start a server for these pages only. Raises PortTaken."""
    server = PageServer(open_listener(host, port, "healthPort"), hosts=hosts)
    server.add(health_pages(health))
    return server


def checks_answer(checks: Sequence[HealthCheck]) -> PageAnswer:
    """Return 200 if all checks pass, else 503, with the checks as JSON."""
    well = is_well(checks)
    body = dumps({"ok": well, "checks": [asdict(each) for each in checks]}).encode() + b"\n"
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return PageAnswer(status, body, content_type=JSON)


def _page(look: Callable[[], Sequence[HealthCheck]]) -> Page:
    def page(_: HttpRequest) -> PageAnswer:
        return checks_answer(look())

    return page
