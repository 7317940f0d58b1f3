"""Attempts on the console and on the port of metrics: A42 to A48.

At reduced counts, mostly without a socket; at full counts against processes:
test_console_in_full.py. The table of them all: docs/security.md. More about each is beside what it
is about, in tests/troupemq/console/ and tests/actors/metrics/; a real browser is shown hostile text
in test_browser.py there.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from socket import create_connection, socket
from time import process_time
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from protocol.bodies_admin import TopicOffset
from tests.compat.patience import wait_until
from tests.support.brokers import BROKER, SimulatedBroker
from tests.support.metrics import Scraper
from tests.troupemq.console.conftest import GONE, MakeVisit, Visit
from troupemq.client.admin import BrokerPlace
from troupemq.client.message import MessageQueue, MessageView
from troupemq.console import search as search_module
from troupemq.console import server as server_module
from troupemq.console import tail as tail_module
from troupemq.console.accounts import Accounts
from troupemq.console.asking import ConsoleSettings
from troupemq.console.changes import CHANGES
from troupemq.console.pages import message as message_module
from troupemq.console.server import ConsoleServer
from troupemq.console.sessions import FREE_TRIES, IDLE_S, LIFE_S, WAIT_S_MAX
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, GroupSummary, TopicSummary

WAIT_S = 30.0
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}${7*7}",
    "=cmd|' /C calc'!A0",
    "' onmouseover='alert(1)\x1b[2J\u202e",
)
COOKIE = "troupemq_console"


class TagsOf(HTMLParser):
    """The tags of a page, and what in it could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.dangers: list[str] = []
        self.shown = ""
        """Visible text; a field keeps its typed value."""
        self.feed(text)

    def handle_data(self, data: str) -> None:
        self.shown += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            where = (value or "").strip().lower()
            if name.startswith("on") or name == "style" or where.startswith("javascript:"):
                self.dangers.append(f"<{tag} {name}={value}>")
        if tag == "script" and not (dict(attrs).get("src") or "").startswith("/static/"):
            self.dangers.append(f"a script of a foreign place or inline: {attrs}")


# --- A42


def view(text: str) -> MessageView:
    """A message that has the text everywhere."""
    return MessageView(
        topic=text,
        stored_body=text.encode(),
        properties={"KEYS": text, "TAGS": text, text: text},
        message_id=text,
        offset_message_id=text,
        queue=MessageQueue(text, text, 0),
        queue_offset=0,
        flag=0,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        born_host=text,
        store_host=text,
        reconsume_times=0,
        physical_offset=0,
        stored_bytes=1,
        sys_flag=0,
    )


def hostile_cluster(text: str) -> ClusterSnapshot:
    """Return answers of brokers that accept any name and report wrong figures about themselves."""
    place = BrokerPlace(text, text, 0, text)
    return ClusterSnapshot(
        brokers=[BrokerSummary(place, {"brokerVersionDesc": text, "runtime": text, text: text})],
        topics={text: TopicSummary(text, 1, 1, 1, 6, {text: 1})},
        groups={text: GroupSummary(text, 1, 1, 0.0, {text: 1})},
        missing=[text],
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_a42_names_and_messages_are_escaped(
    visit: Visit, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit.console.watch, "newest", lambda: hostile_cluster(text))
    monkeypatch.setattr(message_module, "find_one", lambda asked: view(text))
    reader = SimpleNamespace(queue=MessageQueue(text, text, 0), messages=lambda *_: [view(text)])
    queues = [SimpleNamespace(reader=reader, queue=reader.queue, ends=TopicOffset(0, 1, 0))]
    for module in (search_module, tail_module):
        monkeypatch.setattr(module, "queues_of", lambda *_: queues)
    tags: dict[str, set[str]] = {}
    queries: dict[str, dict[str, object]] = {
        "/message": {"topic": text},
        "/messages": {"topic": text, "tag": text},
        "/tail": {"topic": text},
        "/topics": {"filter": text[:1]},
        "/groups": {"filter": text[:1]},
        "/": {},
        "/brokers": {},
        "/change/topic": {"topic": text, "cluster": text},
        "/nowhere/" + quote(text): {},
    }
    for path, query in queries.items():
        page = visit.get(path, **query)
        found = TagsOf(page.text)
        assert found.dangers == [], path
        tags[path] = set(found.tags) & {"img", "svg", "iframe", "object", "style", "base"}
        assert not set(found.shown) & {"\x1b", "\u202e"} and "49" not in found.shown, path
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["x-content-type-options"] == "nosniff"
    assert set().union(*tags.values()) == set()
    for path in ("/messages", "/tail") if text.isprintable() else ():
        (row,) = visit.get(f"/api{path}", topic=text).json()["messages"]
        assert row["message"] == text
    program = visit.get("/api/message", topic=text)
    assert program.headers["content-type"] == "application/json"
    file = visit.get("/message/body", topic=text)
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"].startswith("attachment")
    assert file.content == text.encode()


# --- A43


@pytest.mark.heavy
def test_a43_requests_without_a_form_token_change_nothing(visit: Visit) -> None:
    """Each change there is, in each of these ways."""
    users = visit.console.accounts.users()
    noted = len(visit.console.audit.newest(500))
    given = {"name": "thief", "role": "admin", "topic": "T", "step": "do"}
    foreign = {"Origin": "https://evil.example"}
    other_sites = {"Sec-Fetch-Site": "cross-site"}
    strangers = visit.console.sessions.find(visit.console.sessions.begin("somebody"))
    assert strangers is not None
    for name in CHANGES:
        path = f"/change/{name}"
        refused = [
            visit.client.post(path, data={**given, "csrf": visit.csrf}, headers=foreign),
            visit.client.post(path, data={**given, "csrf": visit.csrf}, headers=other_sites),
            visit.client.post(path, data=given),
            visit.client.post(path, data={**given, "csrf": strangers.csrf}),
            visit.client.post(f"/api{path}", json={"given": given, "do": True}),
            visit.client.get(f"/api{path}", params=given),
        ]
        assert [each.status_code for each in refused] == [403] * 5 + [405], name
        assert visit.get(path, **given).status_code == 200, "the form, and nothing done"
    assert visit.client.post("/logout", data={}).status_code == 403
    assert visit.get("/logout").status_code == 405
    assert visit.console.accounts.users() == users
    assert len(visit.console.audit.newest(500)) == noted
    assert visit.get("/").status_code == 200, "still logged in"


# --- A44


def is_in(visit: Visit) -> bool:
    return visit.client.get("/alerts", follow_redirects=False).status_code == 200


def test_a44_sessions_start_at_the_login_and_end_on_the_server(visit_to: MakeVisit) -> None:
    visit = visit_to(None, behind_tls=True)
    visit.client.base_url = "https://localhost"
    clock = [1000.0]
    visit.console.sessions._clock = lambda: clock[0]
    password = visit.console.accounts.first_password or ""
    planted = "x" * 43
    visit.client.cookies.set(COOKIE, planted, domain="localhost.local")
    answer = visit.log_in("admin", password)
    header = answer.headers["set-cookie"]
    assert planted not in header
    assert {"HttpOnly", "Secure", "SameSite=strict"} <= {each.strip() for each in header.split(";")}
    own = header.partition("=")[2].partition(";")[0]
    assert len(own) >= 40

    def comes_with(cookie: str) -> bool:
        visit.client.cookies.clear()
        visit.client.cookies.set(COOKIE, cookie)
        return is_in(visit)

    assert not comes_with(planted) and comes_with(own)
    begun_s = clock[0]
    while clock[0] - begun_s <= LIFE_S - IDLE_S:
        clock[0] += IDLE_S - 1
        assert comes_with(own)
    clock[0] = begun_s + LIFE_S + 1
    assert not comes_with(own), "12 hours at most, however busy"
    visit.client.cookies.clear()
    idle = visit.log_in("admin", password).headers["set-cookie"].partition("=")[2].partition(";")[0]
    assert comes_with(idle)
    clock[0] += 24 * 3600
    assert not comes_with(idle), "a day idle"
    visit.client.cookies.clear()
    visit.log_in("admin", password)
    stolen = visit.client.cookies[COOKIE]
    assert visit.client.post("/logout", data={"csrf": visit.csrf}).status_code == 200
    assert not comes_with(stolen)


# --- A45


@pytest.mark.heavy
def test_a45_password_guesses_are_rejected_without_a_check(visit_to: MakeVisit) -> None:
    """200 of the 10,000: of one address, for one name and for ever other ones."""
    visit = visit_to(None)
    clock, looked_at = [1000.0], []
    visit.console.throttle._clock = lambda: clock[0]
    check = visit.console.accounts.check

    def looking(name: str, password: str) -> object:
        looked_at.append(name)
        return check(name, password)

    visit.console.accounts.check = looking  # type: ignore[method-assign, assignment]
    texts = set()
    for number in range(100):
        for name in ("admin", f"nobody-{number}"):
            answer = visit.log_in(name, f"guess {number}")
            assert answer.status_code in (401, 429) and "set-cookie" not in answer.headers
            texts.add(answer.text)
        clock[0] += 5.0
    tries_in_500_s = FREE_TRIES + 9  # waits of 1, 2, 4 … 256 s
    assert len(looked_at) <= tries_in_500_s
    assert {"admin", "nobody-0"} <= set(looked_at)
    assert len({text for text in texts if "Too many" not in text}) == 1, "one answer for both"
    right = visit.console.accounts.first_password or ""
    assert visit.log_in("admin", right).status_code == 429, "a right one waits, too"
    clock[0] += WAIT_S_MAX
    assert visit.log_in("admin", right).status_code == 303


def test_a45_the_first_password_is_random_and_stored_as_scrypt(tmp_path: Path) -> None:
    made = [Accounts(tmp_path / f"{number}" / "accounts.json") for number in range(3)]
    passwords = {each.first_password for each in made}
    assert len(passwords) == 3 and all(each is not None and len(each) >= 20 for each in passwords)
    path = tmp_path / "0" / "accounts.json"
    assert not any(str(each) in path.read_text() for each in passwords)
    assert path.stat().st_mode & 0o077 == 0
    assert Accounts(path).first_password is None, "it is said once"


# --- A46


HOSTS_OF_OTHERS = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8088"),
    *("localhost@evil.example", "2130706433", "0x7f.1", ""),
)


@pytest.mark.parametrize("host", HOSTS_OF_OTHERS)
def test_a46_requests_for_foreign_host_names_are_refused(visit: Visit, host: str) -> None:
    for more in ({}, {"X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"}):
        for path in ("/login", "/api/topics", "/static/htmx.min.js"):
            answer = visit.client.get(path, headers={"Host": host, **more})
            assert answer.status_code == 421 and "TroupeMQ" not in answer.text
    form = {"name": "somebody", "password": "x"}
    assert visit.client.post("/login", data=form, headers={"Host": host}).status_code == 421


LEADING_ELSEWHERE = ["//evil.example", "/\\evil.example", "https:evil", "/%0d%0a"]


@pytest.mark.parametrize("following", LEADING_ELSEWHERE)
def test_a46_a_login_does_not_redirect_elsewhere(visit_to: MakeVisit, following: str) -> None:
    visit = visit_to(None)
    password = visit.console.accounts.first_password or ""
    answer = visit.log_in("admin", password, following)
    where = answer.headers["location"]
    assert where == "/" or (where == following and where.startswith("/%"))
    forwarded = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    page = visit.client.get("/topics", headers=forwarded)
    assert "evil.example" not in page.text and "evil" not in str(page.headers)


# --- A47


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConsoleServer]:
    made = ConsoleServer(ConsoleSettings(tmp_path, GONE, port=0))
    made.start()
    yield made
    assert made.stop(WAIT_S)


def everything(peer: socket) -> bytes:
    with suppress(ConnectionError):
        return b"".join(iter(lambda: peer.recv(65_536), b""))
    return b""


def asked(server: ConsoleServer, request: bytes) -> bytes:
    """Return the start of the answer; nothing after a reset, which a client sees that keeps
    sending.
    """
    with create_connection(("127.0.0.1", server.port), WAIT_S) as peer, suppress(ConnectionError):
        peer.sendall(request)
        return peer.recv(4096)
    return b""


def login_page(server: ConsoleServer) -> bytes:
    return asked(server, b"GET /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


HEAD = b"GET /login HTTP/1.1\r\nHost: localhost\r\n"


def test_a47_too_large_heads_and_bodies_are_refused(server: ConsoleServer) -> None:
    form = HEAD.replace(b"GET", b"POST")
    for request, statuses in (
        (HEAD + b"X: " + b"x" * (1 << 20) + b"\r\n\r\n", (b"400",)),
        (HEAD + b"".join(b"X%d: y\r\n" % n for n in range(50_000)) + b"\r\n", (b"400",)),
        (b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n", (b"400",)),
        (form + b"Content-Length: 999999999\r\n\r\n", (b"413",)),
        (form + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", (b"400",)),
        (form + b"Transfer-Encoding: chunked\r\n\r\n", (b"411",)),
        (HEAD + b"Content-Length: -1\r\n\r\n", (b"400", b"411")),
    ):
        answer = asked(server, request)
        assert answer == b"" or answer.split(b" ")[1] in statuses, (request[:80], answer[:80])
    assert b" 200 OK" in login_page(server)


def test_a47_a_long_head_in_one_read_is_refused(server: ConsoleServer) -> None:
    """9,000 short headers that came as a whole were taken."""
    for head in (b"X: y\r\n" * 4000, b"X: " + b"y" * (20 << 10) + b"\r\n"):
        assert asked(server, HEAD + head + b"\r\n").split(b" ")[1] == b"400"
    form = HEAD.replace(b"GET", b"POST") + b"Content-Length: 40000\r\n\r\n" + b"a" * 40_000
    assert asked(server, form).split(b" ")[1] == b"401", "the body is none of the head"
    assert b" 200 OK" in login_page(server)


def test_a47_cookies_of_others_cost_no_time(visit: Visit) -> None:
    """One of 60 KB with escapes held the console up for 3 s, without a login."""
    began_s = process_time()
    answer = visit.client.post("/logout", headers={"Cookie": 'a="%s"' % ('\\"' * 30_000)})
    assert answer.status_code == 401 and process_time() - began_s < 0.5
    assert visit.client.get("/login").status_code == 200


def test_a47_paths_outside_the_assets_are_not_found(server: ConsoleServer) -> None:
    for path in (
        b"/static/../../etc/passwd",
        b"/static/%2e%2e/%2e%2e/accounts.json",
        b"/static/..%2f..%2faccounts.json",
        b"/static/....//accounts.json",
        b"//etc/passwd",
        b"/static/%00",
        b"/static/style.css%00.html",
    ):
        request = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path
        assert b" 404 " in asked(server, request), path


def test_a47_hanging_requests_are_closed_and_further_ones_refused(
    server: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred for the thousand, 20 at once for the 200."""
    monkeypatch.setattr(server_module, "HEAD_S", 0.5)
    server._server.config.limit_concurrency = 20
    held = [create_connection(("127.0.0.1", server.port), WAIT_S) for _ in range(100)]
    known = server._server.server_state.connections
    wait_until(lambda: len(known) > 20, "more than are served")
    begun = (b"", b"GET /tail?topic=T HTTP/1.1\r\nHost: lo", HEAD + b"Content-Length: 9\r\n\r\nab")
    for number, peer in enumerate(held):
        peer.sendall(begun[number % len(begun)])
    assert b" 503 " in login_page(server)
    for peer in held:
        assert b" 200 " not in everything(peer), "cut when its time is over"
        peer.close()
    assert b" 200 OK" in login_page(server)


# --- A48


def test_a48_hundreds_of_invented_names_do_not_lengthen_the_page() -> None:
    most = 40
    made = SimulatedBroker(9, config=replace(BROKER, metrics_series_max=most))
    made.make_topic()
    scraper = Scraper(made)
    scraper.found()
    for number in range(80):
        made.make_topic(f"made-up-{number}", queues=1)
        made.send(topic=f"made-up-{number}")
        made.make_group(f"group-{number}")
    for found in (scraper.found(), scraper.for_exporter()):
        long = {
            name: len(rows)
            for name, rows in found.items()
            if len(rows) > most
            and not name.endswith("_bucket")
            and {"topic", "group", "consumer_group"} & rows[0][0].keys()
        }
        assert long == {}
    sent = scraper.found()["rocketmq_messages_in_total"]
    assert sum(count for _, count in sent) == 80, "none is left out of the sum"
    assert sum(own["topic"] == "other" for own, _ in sent) == 1
