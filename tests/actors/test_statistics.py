"""Tests of actors/statistics.py: what went through topics and groups, as 4.9.7 reports it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from protocol.bodies_admin import BrokerStatsData, StatsItem
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.admin import ViewBrokerStatsHeader
from protocol.headers.client import ConsumerSendMsgBackHeader
from tests.support.brokers import SimulatedBroker

TEN_SECONDS_MS = 10_000


@contextmanager
def broker() -> Iterator[SimulatedBroker]:
    made = SimulatedBroker(1)
    yield made
    made.stop()


def view(made: SimulatedBroker, name: str, key: str) -> BrokerStatsData:
    answer = asked(made, name, key)
    assert (answer.code, answer.remark, answer.fields) == (0, None, None)
    return BrokerStatsData.decode(answer.body)


def asked(made: SimulatedBroker, name: str, key: str) -> RemotingCommand:
    fields = ViewBrokerStatsHeader(name, key).encode()
    return made.ask(RemotingCommand(RequestCode.VIEW_BROKER_STATS_DATA, fields))


def item(total: int, per_second: float, each: float) -> Any:
    return pytest.approx((total, per_second, each))


def figures(found: StatsItem) -> tuple[int, float, float]:
    return found.sum, found.tps, found.avgpt


def test_what_is_put_into_a_topic_is_counted_by_message_and_by_byte() -> None:
    with broker() as made:
        sizes = [made.stored(made.send(b"x" * 100)).record_bytes for _ in range(5)]
        assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == (0, 0.0, 0.0)
        made.system.advance(TEN_SECONDS_MS)
        data = view(made, "TOPIC_PUT_NUMS", "Topic")
        assert figures(data.stats_minute) == item(5, 0.5, 1.0)
        assert figures(data.stats_hour) == figures(data.stats_day) == (0, 0.0, 0.0)
        assert view(made, "TOPIC_PUT_SIZE", "Topic").stats_minute.sum == sum(sizes)
        broker_puts = view(made, "BROKER_PUT_NUMS", "DefaultCluster").stats_minute
        assert figures(broker_puts) == item(5, 0.5, 0.0), "4.9.7 counts no requests there"


def test_a_minute_has_seven_samples_and_what_came_before_is_forgotten() -> None:
    with broker() as made:
        made.send()
        made.system.advance(TEN_SECONDS_MS)
        for _ in range(6):
            made.send()
            made.system.advance(TEN_SECONDS_MS)
        # seven samples are six steps of ten seconds
        assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == item(6, 0.1, 1.0)
        made.system.advance(7 * TEN_SECONDS_MS)
        assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == item(0, 0.0, 0.0)


def test_hours_and_days_are_sampled_more_rarely() -> None:
    with broker() as made:
        made.send()
        made.system.advance(600_000)
        data = view(made, "TOPIC_PUT_NUMS", "Topic")
        assert figures(data.stats_hour) == item(1, 1 / 600, 1.0)
        assert data.stats_day.sum == 0
        made.system.advance(3_000_000)
        data = view(made, "TOPIC_PUT_NUMS", "Topic")
        assert figures(data.stats_day) == item(1, 1 / 3600, 1.0)
        made.system.advance(4 * 600_000)
        assert view(made, "TOPIC_PUT_NUMS", "Topic").stats_hour.sum == 0


def test_what_a_group_gets_is_counted_by_pull() -> None:
    with broker() as made:
        for _ in range(6):
            made.send()
        made.system.drain()
        assert made.pull(0, count=4).code == 0
        assert made.pull(4).code == 0
        made.system.advance(TEN_SECONDS_MS)
        gets = view(made, "GROUP_GET_NUMS", "Topic@consumers").stats_minute
        assert figures(gets) == item(6, 0.6, 3.0)
        assert view(made, "GROUP_GET_SIZE", "Topic@consumers").stats_minute.sum > 600
        assert view(made, "BROKER_GET_NUMS", "DefaultCluster").stats_minute.sum == 6
        assert made.broker.tables.group_tps.value == {"Topic@consumers": 0.6}


def test_what_a_group_gives_back_is_counted_for_the_topic_it_came_from() -> None:
    with broker() as made:
        made.make_group()
        offset = int((made.send().fields or {})["msgId"][-16:], 16)
        header = ConsumerSendMsgBackHeader(offset, "consumers", 3)
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        assert made.ask(command).code == 0
        made.system.advance(TEN_SECONDS_MS)
        back = view(made, "SNDBCK_PUT_NUMS", "Topic@consumers").stats_minute
        assert figures(back) == item(1, 0.1, 1.0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nope"),
        ("GROUP_GET_NUMS", "Topic@nobody"),
        ("GROUP_GET_FALL_SIZE", "0@Topic@consumers"),
        ("made up", "Topic"),
    ],
)
def test_what_was_never_counted_does_not_exist(name: str, key: str) -> None:
    with broker() as made:
        made.send()
        answer = asked(made, name, key)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The stats <{name}> <{key}> not exist"


def test_a_batch_is_one_request_of_many_messages_and_a_delayed_one_counts_where_it_waits() -> None:
    with broker() as made:
        made.send(properties="DELAY\x011")
        made.system.advance(1)
        assert asked(made, "TOPIC_PUT_NUMS", "Topic").code == ResponseCode.SYSTEM_ERROR
        made.system.advance(2 * TEN_SECONDS_MS)
        assert view(made, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX").stats_minute.sum == 1
        assert view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute.sum == 1
