"""Searches in bounded steps, live pages that end, and how long both are kept."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from protocol.bodies_admin import TopicOffset
from protocol.compression import compress
from tests.troupemq.console.conftest import MakeVisit, Visit
from troupemq.client.errors import RequestTimeout
from troupemq.client.message import MessageQueue, MessageView
from troupemq.console import search as search_module
from troupemq.console import tail as tail_module
from troupemq.console.cluster import DeadlineSession
from troupemq.console.pages.message import body_of
from troupemq.console.pages.messages import _preview
from troupemq.console.reading import ReadableQueue
from troupemq.console.search import BODY_BYTES_MAX, STEP_READ_MAX, Filters, MessageSearch
from troupemq.console.tail import (
    KEPT_S,
    SCANS_MAX,
    SCANS_OF_VIEWER_MAX,
    TAIL_MAX_S,
    TAIL_SHOWN,
    LiveTail,
    Scans,
    owner_of,
)
from troupemq.servers import Servers


def view(queue: MessageQueue, offset: int, time_ms: int, **properties: str) -> MessageView:
    found = {"KEYS": f"key-{offset}", **properties}
    body = b"body %d" % time_ms
    name = f"{queue.queue_id}-{offset}"
    times = (0, time_ms)
    return MessageView(
        "T", body, found, name, name, queue, offset, 0, *times, "here", "there", 0, 0, 100, 0
    )


@dataclass
class FakeReader:
    """Queue in memory; it counts the messages that were read."""

    queue: MessageQueue
    stored: list[MessageView]
    expression: str = "*"
    address: str = "a:1"
    admin: object = None
    group: str = ""
    read: list[int] = field(default_factory=list)
    fails: bool = False

    def messages(self, first: int, last: int) -> Iterator[MessageView]:
        if self.fails:
            raise RequestTimeout(f"{self.address} did not answer")
        for each in self.stored[first:last]:
            if self.expression in ("*", each.tags):
                self.read.append(each.queue_offset)
                yield each

    def at(self, offset: int) -> MessageView | None:
        return self.stored[offset] if offset < len(self.stored) else None

    def offset_at(self, time_ms: int) -> int:
        stored = (each.queue_offset for each in self.stored if each.store_timestamp_ms >= time_ms)
        return next(stored, len(self.stored))


@pytest.fixture
def session() -> DeadlineSession:
    return DeadlineSession("127.0.0.1:1")


def queues(monkeypatch: pytest.MonkeyPatch, *stored: list[MessageView]) -> list[FakeReader]:
    readers = [FakeReader(MessageQueue("T", "b", n), each) for n, each in enumerate(stored)]

    def queues_of(
        _: object, topic: str, failures: list[str], expression: str = "*"
    ) -> Iterator[ReadableQueue]:
        for each in readers:
            each.expression = expression
            yield ReadableQueue(each, TopicOffset(0, len(each.stored), 0))  # type: ignore[arg-type]

    for module in (search_module, tail_module):
        monkeypatch.setattr(module, "queues_of", queues_of)
    return readers


def random_queues(random: Random, count: int) -> list[list[MessageView]]:
    found = []
    for number in range(count):
        queue, time_ms, stored = MessageQueue("T", "b", number), 1_000, list[MessageView]()
        for offset in range(random.randrange(0, 300)):
            time_ms += random.choice((0, 1, 7, 500))
            tag = {"TAGS": random.choice(("new", "old"))}
            stored.append(view(queue, offset, time_ms, **tag))
        found.append(stored)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_search_finds_the_same_as_reading_everything(
    seed: int, session: DeadlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    stored = random_queues(random, random.randrange(1, 6))
    every = [each for some in stored for each in some]
    monkeypatch.setattr(search_module, "STEP_READ_MAX", 50)
    for given in (
        {},
        {"tag": "old"},
        {"text": "1"},
        {"having": "TAGS=new"},
        {"begin_ms": 9_000},
        {"end_ms": 9_000},
        {"begin_ms": 5_000, "end_ms": 9_000, "tag": "new"},
    ):
        for each in queues(monkeypatch, *stored):
            assert each.read == []
        filters = Filters(**given)
        search = MessageSearch("T", filters, 20, lambda view: view)
        while search.is_running:
            search.step(session)
        wanted = [each for each in every if filters.fits_in_place(each)]
        sign = 1 if filters.is_forward else -1
        times = sorted((each.store_timestamp_ms for each in wanted), key=lambda ms: sign * ms)
        assert [each.store_timestamp_ms for each in search.found] == times[:20], (seed, given)
        assert len({each.message_id for each in search.found}) == len(search.found)


def test_a_body_is_unfolded_as_far_as_its_text_is_searched_and_is_not_kept() -> None:
    """A message of some KiB may unfold to 64 MiB; a page or a chunk has hundreds."""
    body, flag = compress(b"first" + bytes(BODY_BYTES_MAX) + b"last")
    found = replace(view(MessageQueue("T", "b", 0), 0, 1), stored_body=body, sys_flag=flag)
    assert Filters(text="first").fits(found) and not Filters(text="last").fits(found)
    assert _preview(found).startswith("first")
    assert body_of(found, 1000) == body and body_of(found).endswith(b"last")
    assert found._body is None


def test_a_step_reads_a_limited_number_and_the_next_one_goes_on(
    session: DeadlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MessageQueue("T", "b", 0)
    (reader,) = queues(monkeypatch, [view(queue, n, 1_000 + n) for n in range(12_000)])
    search = MessageSearch("T", Filters(text="body 1000"), 50, lambda view: view.queue_offset)
    reads = []
    while search.is_running:
        before = len(reader.read)
        search.step(session)
        reads.append(len(reader.read) - before)
        assert search.read == len(reader.read) and search.total == 12_000
    assert max(reads) < STEP_READ_MAX + 100 and len(reads) >= 3
    assert search.found == [*range(9_009, 8_999, -1), 0]


def test_a_search_without_filters_reads_little_more_than_it_shows(
    session: DeadlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [[view(MessageQueue("T", "b", q), n, n * 8 + q) for n in range(500)] for q in range(8)]
    readers = queues(monkeypatch, *stored)
    search = MessageSearch("T", Filters(), 50, lambda view: view.store_timestamp_ms)
    search.step(session)
    assert search.is_over and search.found == list(range(3999, 3949, -1))
    assert sum(len(each.read) for each in readers) <= 150


def test_a_search_stops_at_its_limit_and_says_where(
    session: DeadlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "READ_MAX", 100)
    queue = MessageQueue("T", "b", 0)
    queues(monkeypatch, [view(queue, n, 1_000 + n) for n in range(1_000)])
    search = MessageSearch("T", Filters(text="nowhere"), 5, lambda view: view)
    search.step(session)
    assert search.is_cut and not search.is_running and search.reached_ms == 2_000 - search.read


def test_a_broker_that_fails_is_left_out_and_named_once(
    session: DeadlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = [[view(MessageQueue("T", "b", q), n, n) for n in range(9)] for q in range(3)]
    readers = queues(monkeypatch, *stored)
    readers[1].fails, readers[1].address = True, "b:1"
    search = MessageSearch("T", Filters(), 50, lambda view: view)
    search.step(session)
    assert search.is_over and len(search.found) == 18
    assert search.failures == ["b:1 did not answer"]


def test_a_property_that_quotes_the_body_does_not_exist_without_the_right_to_see_bodies() -> None:
    dead = view(MessageQueue("T", "b", 0), 0, 1, TROUPE_FAILURE="secret", region="eu")
    assert Filters(having="TROUPE_FAILURE").fits(dead)
    assert not Filters(having="TROUPE_FAILURE", hidden=frozenset({"TROUPE_FAILURE"})).fits(dead)
    assert Filters(having="region = eu").fits(dead) and not Filters(having="region=us").fits(dead)


def test_a_live_page_shows_what_comes_and_ends_by_itself(
    session: DeadlineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    queue = MessageQueue("T", "b", 0)
    (reader,) = queues(monkeypatch, [view(queue, n, n) for n in range(30)])
    tail = LiveTail("T", Filters(), lambda view: view.queue_offset, lambda: now_s[0])
    tail.step(session)
    assert tail.found == list(range(29, 9, -1)) and tail.seen == 0
    reader.stored += [view(queue, n, n) for n in range(30, 33)]
    tail.step(session)
    assert tail.found[:4] == [32, 31, 30, 29] and (tail.seen, tail.skipped) == (3, 0)
    reader.stored += [view(queue, n, n) for n in range(33, 1_033)]
    tail.step(session)
    assert tail.found == list(range(1_032, 1_032 - TAIL_SHOWN, -1))
    assert (tail.seen, tail.skipped) == (1_003, 1_000 - TAIL_SHOWN)
    tail.is_paused = True
    assert not tail.is_running and not tail.is_over
    tail.is_paused = False
    now_s[0] = TAIL_MAX_S
    assert tail.is_over and not tail.is_running


def test_scans_are_kept_for_a_while_and_few_of_each_viewer() -> None:
    now_s = [0.0]
    scans = Scans(lambda: now_s[0])

    def owner(name: str, number: int) -> Any:
        return owner_of(name, "/messages", {"n": str(number), "go": "next"}, sees_bodies=True)

    def new() -> Any:
        return MessageSearch("T", Filters(), 1, lambda view: {})

    first = [scans.keep(owner("a", n), new()) for n in range(SCANS_OF_VIEWER_MAX + 1)]
    assert scans.find(owner("a", 0)) is None and scans.find(owner("a", 1)) is first[1]
    assert scans.find(owner("b", 1)) is None, "of another viewer"
    for n in range(SCANS_MAX * 2):
        scans.keep(owner(f"b-{n}", 0), new())
    assert len(scans) == SCANS_MAX
    now_s[0] = KEPT_S + 1
    assert scans.find(owner(f"b-{SCANS_MAX * 2 - 1}", 0)) is None and len(scans) == 0


def test_rows_with_bodies_are_kept_apart_from_rows_without() -> None:
    query: Mapping[str, str] = {"topic": "T"}
    with_bodies = owner_of("a", "/tail", query, sees_bodies=True)
    assert with_bodies != owner_of("a", "/tail", query, sees_bodies=False)


@pytest.fixture
def long_search(live: Visit, monkeypatch: pytest.MonkeyPatch) -> tuple[Visit, dict[str, object]]:
    queue = MessageQueue("Orders", "broker-a", 0)
    queues(monkeypatch, [view(queue, n, 1_000 + n) for n in range(400)])
    monkeypatch.setattr(search_module, "STEP_READ_MAX", 64)
    return live, {"topic": "Orders", "text": "body 1000"}


def test_a_page_goes_on_with_its_search_until_it_is_stopped(
    long_search: tuple[Visit, dict[str, object]],
) -> None:
    visit, query = long_search
    page = visit.get("/messages", **query).text
    assert 'hx-trigger="every 1s"' in page and "go=next" in page and ">Stop</a>" in page
    assert visit.json("/messages", **query, go="pause")["progress"]["state"] == "paused"
    paused = visit.json("/messages", **query, go="next")["progress"]
    assert paused["state"] == "paused" and paused["read"] == 64 and paused["of"] == 400
    assert visit.json("/messages", **query, go="on")["progress"]["read"] == 128
    stopped = visit.get("/messages", **query, go="stop").text
    assert "Stopped. Read 128 of 400 messages" in stopped and 'hx-trigger="every' not in stopped
    assert visit.json("/messages", **query, go="next")["progress"]["read"] == 128


def test_a_program_reads_on_and_is_told_how(long_search: tuple[Visit, dict[str, object]]) -> None:
    visit, query = long_search
    found = visit.json("/messages", **query)
    assert "add go=next" in found["notes"][0]["text"] and found["messages"] == []
    while found["progress"]["state"] == "running":
        found = visit.json("/messages", **query, go="next")
    assert [row["queue_offset"] for row in found["messages"]] == [0] and found["notes"] == []


def test_a_search_that_is_not_kept_says_so_and_reads_nothing(
    long_search: tuple[Visit, dict[str, object]],
) -> None:
    visit, query = long_search
    gone = visit.get("/messages", **query, go="next").text
    assert "no longer kept" in gone and 'hx-trigger="every' not in gone
    assert "no longer kept" in visit.get("/tail", topic="Orders", go="next").text


def test_names_are_offered_while_one_types(live: Visit, visit_to: MakeVisit) -> None:
    assert '<option value="Orders">' in live.get("/offer/topics", topic="ord").text
    assert live.get("/offer/topics", topic="nowhere").text == ""
    assert "%" not in live.get("/offer/topics", topic="").text
    assert live.get("/offer/groups").status_code == 200
    assert live.get("/offer/secrets", topic="ord").status_code == 404
    nobody = visit_to(role=None).client
    assert nobody.get("/offer/topics", follow_redirects=False).status_code == 303


def test_the_page_of_messages_lists_topics_by_one_click(live: Visit, servers: Servers) -> None:
    rows = live.json("/messages")["topics"]
    assert "Orders" in {row["topic"] for row in rows}
    assert 'href="/messages?topic=Orders"' in live.get("/messages").text
    assert 'href="/messages?topic=Orders"' in live.get("/topics").text
