"""The gate: refused requests, and the headers of every answer."""

import pytest

from tests.troupemq.console.conftest import MakeVisit, Visit
from troupemq.console.app import BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8088", 200),
        ("127.0.0.1:8088", 200),
        ("[::1]:8088", 200),
        ("Console.Example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_only_requests_for_known_hosts_are_answered(
    visit_to: MakeVisit, host: str, status: int
) -> None:
    visit = visit_to(None, hosts=("console.example",))
    headers = {"Host": host, "X-Forwarded-Host": "localhost"}
    assert visit.client.get("/login", headers=headers).status_code == status


def test_every_answer_forbids_inline_and_foreign_content(visit: Visit) -> None:
    for path in ("/", "/login", "/static/style.css", "/nowhere", "/api/topics"):
        headers = visit.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
    assert visit.get("/").headers["cache-control"] == "no-store"


def test_no_page_has_inline_scripts_or_styles(visit: Visit) -> None:
    for path in ("/", "/messages", "/users", "/change/topic"):
        text = visit.get(path).text
        assert "<script>" not in text and " style=" not in text and "<style" not in text
        assert not any(f" on{event}=" in text for event in ("click", "load", "submit", "error"))
        assert "http://" not in text and "https://" not in text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(visit: Visit, method: str) -> None:
    assert visit.client.request(method, "/").status_code == 405


def test_bodies_too_long_or_of_unknown_length_are_refused_unread(visit: Visit) -> None:
    body = b"x" * (BODY_BYTES_MAX + 1)
    assert visit.client.post("/login", content=body).status_code == 413
    parts = iter([b"name=a"])
    assert visit.client.post("/login", content=parts).status_code == 411
    many = "&".join(f"f{number}=1" for number in range(2000))
    assert visit.client.post("/login", content=many.encode()).status_code == 400
