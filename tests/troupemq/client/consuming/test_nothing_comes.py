"""Log lines that say why no message arrives: missing topic, no match, end of the queue."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import pytest

from tests.troupemq.client.consuming.test_consumer import (
    QUICK,
    Seen,
    broker,
    consumer,
    fill,
    known_group,
)
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.connection.route import NAMESRV_VARIABLE
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import ConnectionFailed

__all__ = ["broker"]


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: SimpleQueue[str] = SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(f"{record.levelname} {record.getMessage()}")

    def wait_for(self, begin: str) -> str:
        try:
            while not (line := self.lines.get(timeout=WAIT_S)).startswith(begin):
                pass
        except Empty:
            raise AssertionError(f"no line begins with {begin}") from None
        return line

    def count(self, begin: str) -> int:
        found = 0
        while not self.lines.empty():
            found += self.lines.get().startswith(begin)
        return found


@contextmanager
def logged() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("troupemq.client")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def test_a_missing_topic_is_a_warning_when_the_consumer_starts(broker: FakeBroker) -> None:
    seen = Seen()
    made = PushConsumer("g", seen, broker.namesrv.address, settings=QUICK)
    made.subscribe("Ordres")
    with logged() as log, made:
        warned = log.lines.get(timeout=0)
        made.subscribe("Bills")
        log.wait_for("WARNING topic not found group=g topic=Bills")
        serve_routes(broker.namesrv, {"b": broker.server}, {TOPIC: 2, "Ordres": 1})
        log.wait_for("INFO topic found group=g topic=Ordres")
    assert warned.startswith("WARNING topic not found group=g topic=Ordres")
    assert "troupemq admin updateTopic -t Ordres" in warned
    assert log.count("WARNING topic not found") == 0, "one line is enough"


def test_a_topic_without_readable_queues_is_reported(broker: FakeBroker) -> None:
    serve_routes(broker.namesrv, {"b": broker.server}, {TOPIC: 2}, perm=2)
    with logged() as log, consumer(broker, Seen()):
        line = log.wait_for("WARNING topic not found")
    assert "no broker has readable queues of T" in line


@pytest.mark.parametrize(
    "expression, hint",
    [
        ("new | paid", "did you mean \\'new || paid\\'?"),
        ("new|paid", "did you mean \\'new || paid\\'?"),
        ("new, paid, old", "did you mean \\'new || paid || old\\'?"),
        ("new or paid", "did you mean \\'new || paid\\'?"),
        ("a || new & paid", "did you mean \\'new || paid\\'?"),
        ("new*", "tags have no wildcards"),
        ("amount > 100", "did you mean sql="),
    ],
)
@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
def test_a_tag_that_looks_like_several_is_a_warning(expression: str, hint: str, kind: type) -> None:
    made = kind("g", Seen()) if kind is PushConsumer else kind("g")
    with logged() as log:
        made.subscribe("T", expression)
        line = log.lines.get(timeout=0)
    assert line.startswith("WARNING suspicious tag subscribed group=g topic=T tag=")
    assert hint.replace("\\", "") in line.replace("\\", "")


@pytest.mark.parametrize("expression", ["*", "", "new", "new || paid", "in-transit", "a.b || A_1"])
def test_an_ordinary_tag_gives_no_warning(expression: str) -> None:
    with logged() as log:
        PullConsumer("g").subscribe("T", expression)
    assert log.lines.empty()


def test_a_tag_without_matches_is_a_warning_with_the_passed_count(
    broker: FakeBroker,
) -> None:
    known_group(broker)
    for number in range(3):
        broker.add(0, b"%d" % number, TAGS="paid")
    with logged() as log, consumer(broker, Seen(), expression="piad"):
        line = log.wait_for("WARNING no message matches the subscription")
        broker.add(0, b"more", TAGS="paid")
        broker.wait_committed("g", 0, 4)
    assert "topic=T kind=TAG expression=piad passed_over=3" in line
    assert log.count("WARNING no message matches") == 0, "one line is enough"


def test_a_tag_with_matches_gives_no_warning(broker: FakeBroker) -> None:
    known_group(broker)
    for number in range(4):
        broker.add(0, b"%d" % number, TAGS="paid" if number else "new")
    seen = Seen()
    with logged() as log, consumer(broker, seen, expression="new"):
        assert seen.take(1) == [b"0"]
        broker.wait_committed("g", 0, 4)
    assert log.count("WARNING") == 0


def test_a_queue_without_new_messages_is_reported_as_such(broker: FakeBroker) -> None:
    fill(broker, 2)
    broker.committed.clear()
    with logged() as log, consumer(broker, Seen(), begin=ConsumeFrom.LAST_OFFSET):
        line = log.wait_for("INFO queue end reached")
    assert "group=g topic=T queue=T@b:" in line and "offset=1" in line


SOURCES = [
    ("argument", "named by the argument namesrv or -n"),
    ("environment", "named by the environment's NAMESRV_ADDR"),
    ("default", "the default, for neither namesrv, -n nor NAMESRV_ADDR is given"),
]


@pytest.mark.parametrize("source, said", SOURCES)
def test_a_name_server_error_lists_addresses_their_source_and_a_start_command(
    source: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer() as first, FakeServer() as second:
        pass  # their ports are closed now
    given = f"{first.address};{second.address}"
    monkeypatch.delenv(NAMESRV_VARIABLE, raising=False)
    monkeypatch.setattr("troupemq.client.connection.route.DEFAULT_NAMESRV", given)
    if source == "environment":
        monkeypatch.setenv(NAMESRV_VARIABLE, given)
    made = PushConsumer("g", Seen(), given if source == "argument" else None)
    made.subscribe("T")
    with pytest.raises(ConnectionFailed) as caught:
        made.start()
    made.stop()
    assert str(caught.value) == (
        f"no name server answers: {first.address}: connection refused;"
        f" {second.address}: connection refused ({said}; start one: troupemq namesrv)"
    )


def test_a_consumer_that_never_subscribes_is_warned_of(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly it ran silently and consumed nothing."""
    monkeypatch.setattr("troupemq.client.consuming.push_work.UNSUBSCRIBED_AFTER_MS", 1)
    with logged() as lines, PushConsumer("g", Seen(), broker.namesrv.address):
        said = lines.wait_for("WARNING subscription missing ")
        assert "group=g" in said and "call subscribe(topic)" in said


def test_members_of_one_process_that_subscribe_differently_are_warned_of(
    broker: FakeBroker,
) -> None:
    """Half of each topic's queues went to the member that did not want them; brokers alone told."""

    def member(group: str, topic: str, tags: str = "*") -> PushConsumer:
        made = PushConsumer(group, lambda messages: None, broker.namesrv.address)
        made.subscribe(topic, tags)
        return made

    with logged() as lines, member("g", TOPIC) as first, member("g", TOPIC) as same:
        with member("other", "T2"), member("g", TOPIC) as last:
            last._warn_of_differences()
            assert lines.count("WARNING members") == 0
            last.subscribe("T2", "a")
            first._warn_of_differences()
            line = " ".join(lines.wait_for("WARNING members").split())
            assert f"group=g one='{TOPIC} *' other='{TOPIC} *, T2 a'" in line
        same._warn_of_differences()
        assert lines.count("WARNING members") == 0
