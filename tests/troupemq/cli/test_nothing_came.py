"""Tests of troupemq/cli/nothing_came.py: what `consume` says where it prints nothing."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ConsumeStatsBody, OffsetWrapper
from protocol.codes import RequestCode
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import FakeServer
from troupemq.cli import cli
from troupemq.cli.nothing_came import tags_hint, why_nothing_came
from troupemq.client.admin import Admin


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        made = FakeBroker(namesrv, server)
        server.on(
            RequestCode.GET_CONSUME_STATS, lambda asked: asked.answer(body=stats(made).encode())
        )
        yield made


def stats(broker: FakeBroker) -> ConsumeStatsBody:
    """Return the consumer offsets of the group g."""
    return ConsumeStatsBody(
        {
            MessageQueue(TOPIC, "b", number): OffsetWrapper(
                len(queue), broker.committed.get(("g", number), 0), 0
            )
            for number, queue in enumerate(broker.queues)
        }
    )


def said(broker: FakeBroker, *options: str, topic: str = TOPIC) -> str:
    """Return the stderr of a `consume` without messages."""
    line = ["consume", "-t", topic, "-n", broker.namesrv.address, "-g", "g", *options]
    result = CliRunner().invoke(cli, [*line, "--wait-s", "0.1"])
    assert result.exit_code == 0 and result.stdout == ""
    return result.stderr


def test_a_missing_topic_is_reported_at_once(broker: FakeBroker) -> None:
    """This and the cases below used to be silent."""
    assert said(broker, topic="Nowhere") == (
        "troupemq: topic Nowhere not found, waiting for it: create it with"
        " troupemq admin updateTopic -c CLUSTER -t Nowhere\n"
    )


@pytest.mark.parametrize("tags", ["new | paid", "new|paid", "new, paid", "new paid"])
def test_tags_without_two_bars_get_a_suggestion(broker: FakeBroker, tags: str) -> None:
    first, _ = said(broker, "--tags", tags).splitlines()
    assert first == f"troupemq: the tag is {tags!r}: did you mean 'new || paid'?"


def test_an_unused_tag_is_reported_with_the_tags_in_use(broker: FakeBroker) -> None:
    broker.add(0, b"one", TAGS="new")
    broker.add(1, b"two")
    broker.committed.update({("g", 0): 1, ("g", 1): 1})
    assert said(broker, "--tags", "nwe || old") == (
        "troupemq: none of the newest 2 messages of T has the tag nwe or old:"
        " their tags are new, none\n"
    )


def test_a_group_without_lag_is_reported_as_such(broker: FakeBroker) -> None:
    broker.add(0, b"one", TAGS="new")
    broker.committed.update({("g", 0): 1, ("g", 1): 0})
    all_read = (
        "consumed all 1 messages of T; use another group (-g) to read them from the first one"
    )
    assert said(broker) == f"troupemq: no new messages: group g has {all_read}\n"
    assert "consumed or filtered out all 1 messages" in said(broker, "--tags", "new")


def test_tags_that_are_a_condition_get_the_option_for_it() -> None:
    """The hint was 'amount || > || 100', beside the client's."""
    said = "the tag is 'amount > 100': did you mean --sql 'amount > 100'?"
    assert tags_hint("amount > 100") == said


@pytest.mark.parametrize("tags", ["*", "*|new", "new", "new || paid", "new||paid", " new "])
def test_ordinary_tags_get_no_suggestion(tags: str) -> None:
    assert tags_hint(tags) is None


def test_messages_in_flight_at_another_member_are_reported(broker: FakeBroker) -> None:
    broker.add(0, b"one")
    broker.add(0, b"two")
    with Admin(broker.namesrv.address) as session:
        found = why_nothing_came(session, TOPIC, "g", "*", is_sql=False)
    assert found.startswith(
        "group g has a consumer lag of 2 messages in T: another member may have the"
    )
