"""Tests of actors/tables/offset_limits.py: queues that have lost messages, or all of them."""

import pytest
from structlog.testing import capture_logs

from protocol.bodies_admin import ConsumeStatsBody
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import GetConsumeStatsHeader
from storage.checking.store_check import StoreCheck
from storage.tables.delay_offsets import format_delay_offsets, parse_delay_offsets
from storage.tables.json_config import save
from tests.support.brokers import SimulatedBroker
from tests.support.cleaned import BODY, Cleaned
from tests.support.numbering import (
    CONFIG,
    begin,
    broker,
    commit,
    committed,
    disk_with,
    pulled,
    send_many,
)


def test_empty_queue_begins_at_the_highest_offset_of_any_group() -> None:
    offsets = {"Topic@consumers": {0: 100, 1: 7}, "Topic@others": {0: 80}}
    made = broker(disk_with(offsets, "Topic"))
    made.subscribe()
    assert made.offset(RequestCode.GET_MAX_OFFSET) == 100
    assert made.offset(RequestCode.GET_MIN_OFFSET) == 100
    assert send_many(made, 30) == [*range(100, 130)]
    assert send_many(made, 2, 1) == [7, 8]
    assert send_many(made, 2, 2) == [0, 1]
    assert begin(made) == 100
    assert pulled(made, 100)[1] == [*range(100, 130)]
    assert pulled(made, begin(made, "others"))[2] == 100, "of 80 to 99 nothing is left"


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize(("highest", "first"), [(100, 100), (301, 301), (900, 901)])
def test_a_queue_started_at_a_consumer_offset_survives_a_restart(
    highest: int, first: int, count: int, kills: bool
) -> None:
    """A file holds 300 units; a queue that begins with one has a filler before."""
    made = SimulatedBroker(1, disk_with({"Topic@consumers": {0: highest}}, "Topic"))
    send_many(made, count)
    made.system.advance(10_000)
    for _ in range(2):
        if kills:
            made.crash()
            made.disk = made.disk.killed()  # type: ignore[attr-defined]
        else:
            made.stop()
        made.start()
        assert made.broker.recovery.queues_made == set()
        assert [each.queue_offset for each in made.messages()] == [*range(first, first + count)]
    if not kills:
        made.stop()
        assert StoreCheck(made.disk, made.store_config).run().findings == []
        made.disk.remove_tree("/store/consumequeue/Topic")
        made.start()
        assert [each.queue_offset for each in made.messages()] == [*range(first, first + count)]


def test_offsets_above_a_truncated_queue_are_lowered_and_logged() -> None:
    made = SimulatedBroker(1)
    made.make_topic()
    send_many(made, 5)
    commit(made, 9, oneway=False)
    made.stop()
    with capture_logs() as lines:
        made.start()
    (line,) = [each for each in lines if each["event"] == "consumer offset moved"]
    assert (line["key"], line["offset"], line["moved_to"]) == ("Topic@consumers", 9, 5)
    assert line["log_level"] == "warning"
    assert committed(made) == {0: 5}


def test_delayed_messages_are_delivered_after_their_queue_restarts() -> None:
    disk = disk_with({}, "Topic")
    save(
        disk,
        f"{CONFIG}/delayOffset.json",
        format_delay_offsets(parse_delay_offsets('{"offsetTable":{1:50}}')),
    )
    made = broker(disk)
    for number in range(3):
        made.send(b"%d" % number, properties="DELAY\x011\x02")
    made.system.advance(5000)
    assert [each.body for each in made.messages()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("offset", [None, 25])
def test_a_queue_cleaned_of_old_messages_continues_its_numbers(offset: int | None) -> None:
    """Members of a broadcasting group and slaves know numbers up to its end."""
    cleaned = Cleaned(60)
    made = cleaned.made
    made.make_topic("Other", queues=1)
    made.subscribe()
    if offset is not None:
        commit(made, offset)
    for number in range(40):
        made.send(b"%d:" % number + BODY, topic="Other", queue_id=0)
    made.system.advance(20_000)
    cleaned.delete()
    assert cleaned.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
    made.system.advance(1000)
    made.stop()
    made.start()
    assert (cleaned.min_offset(), cleaned.max_offset()) == (30, 30)
    assert send_many(made, 40) == [*range(30, 70)]
    assert len(cleaned.bodies()) == 40
    made.crash()
    made.start()
    assert (cleaned.min_offset(), cleaned.max_offset()) == (30, 70)


def test_consumer_lag_is_never_negative() -> None:
    made = broker()
    made.make_topic()
    send_many(made, 5)
    commit(made, 75, oneway=False)
    header = GetConsumeStatsHeader("consumers", None)
    answer = made.ask(RemotingCommand(RequestCode.GET_CONSUME_STATS, header.encode()))
    table = ConsumeStatsBody.decode(answer.body).offset_table
    assert {each.broker_offset - each.consumer_offset for each in table.values()} == {0}


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/Topic/0", "config"])
def test_an_expired_queue_without_units_continues_at_its_clean_stop_offset(
    lost: str,
) -> None:
    """The queue began at the highest consumer offset, or at 0; a broadcasting consumer is ahead."""
    cleaned = Cleaned()
    made = cleaned.made
    made.make_topic("Other", queues=1)
    for _ in range(40):
        made.send(BODY, topic="Other", queue_id=0)
    made.system.advance(20_000)
    cleaned.delete()
    assert (cleaned.min_offset(), cleaned.max_offset()) == (50, 50)
    made.stop()
    for path in list(cleaned.disk.paths()):
        if path.startswith((f"/store/{lost}", "/store/config")):
            cleaned.disk.unlink(path)
    made.start()
    assert (cleaned.min_offset(), cleaned.max_offset()) == (50, 50)
    made.make_topic(queues=2)
    assert (made.send().fields or {})["queueOffset"] == "50"
