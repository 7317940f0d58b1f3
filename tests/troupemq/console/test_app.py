"""Application: logins, sessions, foreign forms, roles, tokens and paths."""

import json

import pytest

from tests.troupemq.console.conftest import MakeVisit, Visit
from troupemq.console.app import own_path
from troupemq.console.asking import PLACES
from troupemq.console.changes import CHANGES
from troupemq.console.sessions import FREE_TRIES

ALL_PATHS = [*PLACES, "/message/body", *(f"/change/{name}" for name in CHANGES)]


@pytest.mark.heavy
def test_every_page_needs_a_login(visit_to: MakeVisit) -> None:
    visit = visit_to(None)
    for path in ALL_PATHS:
        page = visit.client.get(path, follow_redirects=False)
        assert page.status_code == 303 and page.headers["location"].startswith("/login?next=")
        program = visit.client.get(f"/api{path}", follow_redirects=False)
        assert program.status_code in (401, 404, 405), path
        assert set(program.json()) == {"error"}


def test_the_session_cookie_is_hidden_from_scripts_and_foreign_pages(
    visit_to: MakeVisit,
) -> None:
    visit = visit_to(None)
    password = visit.console.accounts.first_password
    assert password is not None
    visit.client.cookies.set("troupemq_console", "chosen-by-somebody")
    answer = visit.log_in("admin", password, "/topics?filter=a")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics?filter=a")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "chosen" not in cookie
    assert "Secure" not in cookie
    assert visit.get("/topics").status_code == 200


def test_cookies_are_secure_behind_tls(visit_to: MakeVisit) -> None:
    visit = visit_to(None, behind_tls=True)
    password = visit.console.accounts.first_password or ""
    assert "Secure" in visit.log_in("admin", password).headers["set-cookie"]


def test_a_logout_invalidates_a_stolen_cookie(visit: Visit) -> None:
    stolen = visit.client.cookies["troupemq_console"]
    assert visit.client.post("/logout", data={"csrf": visit.csrf}).status_code == 200
    visit.client.cookies.set("troupemq_console", stolen)
    assert visit.client.get("/", follow_redirects=False).status_code == 303


def test_a_wrong_password_and_a_wrong_name_get_equal_answers(visit_to: MakeVisit) -> None:
    visit = visit_to(None)
    wrong = visit.log_in("admin", "wrong")
    nobody = visit.log_in("nobody", "wrong")
    assert (wrong.status_code, wrong.text) == (nobody.status_code, nobody.text)
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers


@pytest.mark.heavy
def test_password_guessing_is_limited(visit_to: MakeVisit) -> None:
    """Each check costs 32 MiB and 80 ms, so the others are refused unchecked."""
    visit = visit_to(None)
    visit.console.throttle._clock = lambda: 1000.0  # however long the passwords before have taken
    looked_at = []
    check = visit.console.accounts.check
    visit.console.accounts.check = lambda *given: looked_at.append(given) or check(*given)  # type: ignore[method-assign, func-returns-value]
    answers = [visit.log_in("admin", f"guess {number}") for number in range(200)]
    assert len(looked_at) < 12
    assert answers[-1].status_code == 429 and int(answers[-1].headers["retry-after"]) >= 1
    password = visit.console.accounts.first_password or ""
    assert visit.log_in("admin", password).status_code == 429
    assert sum(each["result"] == "refused" for each in visit.console.audit.newest(50)) < 12


@pytest.mark.parametrize(
    "following",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "\\\\evil",
        "/a\r\nX: y",
        "evil",
    ],
)
def test_a_login_does_not_redirect_elsewhere(visit_to: MakeVisit, following: str) -> None:
    assert own_path(following) == "/"
    visit = visit_to(None)
    answer = visit.log_in("admin", visit.console.accounts.first_password or "", following)
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_foreign_page_changes_nothing(visit: Visit, headers: dict[str, str]) -> None:
    form = {"name": "thief", "role": "admin", "step": "do", "csrf": visit.csrf}
    assert visit.client.post("/change/user", data=form, headers=headers).status_code == 403
    assert visit.client.post("/login", data={"name": "a"}, headers=headers).status_code == 403
    assert "thief" not in visit.console.accounts.users()


def test_a_form_without_the_sessions_token_changes_nothing(visit: Visit) -> None:
    form = {"name": "thief", "role": "admin", "step": "do"}
    for token in ({}, {"csrf": ""}, {"csrf": "x" * 43}):
        assert visit.client.post("/change/user", data={**form, **token}).status_code == 403
    body = json.dumps({"given": form, "do": True})
    assert visit.client.post("/api/change/user", content=body).status_code == 403
    assert visit.client.post("/logout", data={}).status_code == 403
    assert "thief" not in visit.console.accounts.users()


def test_no_get_changes_anything(visit: Visit) -> None:
    before = (visit.console.accounts.users(), len(visit.console.audit.newest(100)))
    for name in CHANGES:
        answer = visit.get(f"/change/{name}", name="thief", role="admin", step="do", topic="T")
        assert answer.status_code == 200
    assert (visit.console.accounts.users(), len(visit.console.audit.newest(100))) == before


@pytest.mark.heavy
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_a_role_gets_only_its_pages_and_changes(visit_to: MakeVisit, role: str) -> None:
    visit = visit_to(role)
    viewer = visit.console.accounts.viewer_of("visitor")
    assert viewer is not None
    bearer = {"Authorization": f"Bearer {visit.console.accounts.new_token('ci', role)}"}
    for path, place in PLACES.items():
        status = visit.get(path).status_code
        assert (status == 403) == (not viewer.may(place.role)), path
        assert visit.get(f"/api{path}").status_code == status, path
        assert visit.client.get(f"/api{path}", headers=bearer).status_code == status, path
    for name, change in CHANGES.items():
        answer = visit.get(f"/change/{name}")
        assert (answer.status_code == 403) == (not viewer.may(change.role)), name
        posted = visit.change(name, name="x")
        assert (posted.status_code == 403) == (not viewer.may(change.role)), name


def test_a_revoked_role_is_effective_at_once(visit: Visit) -> None:
    assert visit.get("/users").status_code == 200
    visit.console.accounts.new_password("visitor", "viewer")
    assert visit.get("/users").status_code == 403
    visit.console.accounts.remove_user("visitor")
    assert visit.client.get("/", follow_redirects=False).status_code == 303


def test_a_token_is_accepted_only_from_programs(visit_to: MakeVisit) -> None:
    visit = visit_to(None)
    token = visit.console.accounts.new_token("ci", "viewer")
    headers = {"Authorization": f"Bearer {token}"}
    assert visit.client.get("/api/alerts", headers=headers).status_code == 200
    assert visit.client.get("/api/users", headers=headers).status_code == 403
    assert visit.client.get("/alerts", headers=headers, follow_redirects=False).status_code == 303
    wrong = {"Authorization": "Bearer tmq_wrong"}
    assert visit.client.get("/api/alerts", headers=wrong).status_code == 401
    admin = {"Authorization": f"Bearer {visit.console.accounts.new_token('a', 'admin')}"}
    body = json.dumps({"given": {"name": "eve", "role": "viewer"}, "do": True})
    answer = visit.client.post("/api/change/user", content=body, headers=admin)
    assert answer.status_code == 200 and answer.json()["rows"][0]["user"] == "eve"
    assert visit.console.audit.newest(1)[0]["who"] == "token a"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"given": 1}', b"[" * 5000, b"\xff"])
def test_an_invalid_request_of_a_program_is_a_one_sentence_error(visit: Visit, body: bytes) -> None:
    headers = {"X-CSRF-Token": visit.csrf}
    answer = visit.client.post("/api/change/topic", content=body, headers=headers)
    assert answer.status_code == 400 and "JSON" in answer.json()["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../accounts.json",
        "/static/%2e%2e/%2e%2e/accounts.json",
        "/static/..%2faccounts.json",
        "/static/LICENSE-htmx",
        "/static/",
        "/static",
        "/nowhere",
        "/change/nothing",
    ],
)
def test_an_unknown_path_or_object_is_404(visit: Visit, path: str) -> None:
    assert visit.get(path).status_code == 404


def test_a_prefix_stands_before_every_path(visit_to: MakeVisit) -> None:
    visit = visit_to(None, prefix="/mq")
    first = visit.client.get("/mq/topics", follow_redirects=False)
    assert first.headers["location"] == "/mq/login?next=%2Ftopics"
    password = visit.console.accounts.first_password or ""
    form = {"name": "admin", "password": password, "next": "/topics"}
    answer = visit.client.post("/mq/login", data=form, follow_redirects=False)
    assert answer.headers["location"] == "/mq/topics"
    assert "Path=/mq;" in answer.headers["set-cookie"]
    text = visit.client.get("/mq/").text
    assert 'href="/mq/topics"' in text and 'src="/mq/static/htmx.min.js"' in text
    assert visit.client.get("/mq/api/topics").json()["topics"] == []
    assert visit.client.get("/topics").status_code == 404


def test_a_new_password_ends_all_sessions_of_its_user(visit: Visit) -> None:
    password = visit.console.accounts.new_password("visitor", "admin")
    given = {"old": password, "new": "a better password", "again": "a better password"}
    assert "differ" in visit.change("password", **{**given, "again": "another one!"}).text
    assert "current password is wrong" in visit.change("password", **{**given, "old": "wrong"}).text
    assert "log in with it" in visit.change("password", **given).text
    assert visit.client.get("/", follow_redirects=False).status_code == 303
    assert visit.log_in("visitor", "a better password").status_code == 303
    text = (visit.console.settings.data / "audit.log").read_text()
    assert "better password" not in text and password not in text


def test_guesses_of_the_current_password_are_slowed_like_logins(visit: Visit) -> None:
    """Formerly a stolen session tried any number of them."""
    visit.console.throttle._clock = lambda: 1000.0
    password = visit.console.accounts.new_password("visitor", "admin")
    given = {"new": "a better password", "again": "a better password"}
    for number in range(FREE_TRIES):
        text = visit.change("password", old=f"guess {number}", **given).text
        assert "current password is wrong" in text
    refused = visit.change("password", old=password, **given).text
    assert "Too many wrong passwords: try again in 1 s" in refused
    assert visit.console.throttle.wait_s("reader", "testclient") == 0
