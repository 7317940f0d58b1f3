"""The HTTP answers to /health/live and /health/ready: 200 or 503, with JSON.

    GET /health/live     200 {"ok": true, "checks": [{"check": "loop", "ok": true, "why": ""}]}
    GET /health/ready    503 with "why" for each that is not well

No login: there are no names in it, of topics or of clients.
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
    """Both, by path."""
    return {"/health/live": _page(health.live), "/health/ready": _page(health.ready)}


def health_server(
    host: str, port: int, health: Health, hosts: KnownHosts | None = None
) -> PageServer:
    """Answers from now on, with these alone. Raises PortTaken."""
    server = PageServer(open_listener(host, port, "healthPort"), hosts=hosts)
    server.add(health_pages(health))
    return server


def checks_answer(checks: Sequence[HealthCheck]) -> PageAnswer:
    """200 if all is well, else 503."""
    well = is_well(checks)
    body = dumps({"ok": well, "checks": [asdict(each) for each in checks]}).encode() + b"\n"
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return PageAnswer(status, body, content_type=JSON)


def _page(look: Callable[[], Sequence[HealthCheck]]) -> Page:
    def page(_: HttpRequest) -> PageAnswer:
        return checks_answer(look())

    return page
