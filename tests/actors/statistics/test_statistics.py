"""Tests of actors/statistics/statistics.py: what went through topics and groups, as in 4.9.7."""

import gc
from dataclasses import replace
from typing import Any

import pytest

from actors.statistics import counts, statistics
from actors.statistics.counts import PutStats, TopicCounts
from actors.statistics.statistics import Statistics
from protocol.bodies_admin import BrokerStatsData, StatsItem
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import TopicHeader, ViewBrokerStatsHeader
from protocol.headers.client import ConsumerSendMsgBackHeader
from storage.config import StoreConfig
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.runtimes import of_cpython

TEN_SECONDS_MS = 10_000


def broker(store: StoreConfig = STORE) -> SimulatedBroker:
    made = SimulatedBroker(1, store_config=store)
    return made


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


def test_topic_puts_are_counted_by_message_and_by_byte() -> None:
    made = broker()
    sizes = [made.stored(made.send(b"x" * 100)).record_bytes for _ in range(5)]
    assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == (0, 0.0, 0.0)
    made.system.advance(TEN_SECONDS_MS)
    data = view(made, "TOPIC_PUT_NUMS", "Topic")
    assert figures(data.stats_minute) == item(5, 0.5, 1.0)
    assert figures(data.stats_hour) == figures(data.stats_day) == (0, 0.0, 0.0)
    assert view(made, "TOPIC_PUT_SIZE", "Topic").stats_minute.sum == sum(sizes)
    broker_puts = view(made, "BROKER_PUT_NUMS", "DefaultCluster").stats_minute
    assert figures(broker_puts) == item(5, 0.5, 0.0), "4.9.7 counts no requests there"


@pytest.mark.parametrize("step_ms", [300_000, -300_000])
def test_rates_are_right_after_the_clock_was_set(step_ms: int) -> None:
    made = broker()
    made.send()
    made.system.advance(TEN_SECONDS_MS)
    made.clock.set_wall(made.clock.now_ms() + step_ms)
    made.send()
    made.system.advance(TEN_SECONDS_MS)
    assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == item(2, 0.1, 1.0)


@of_cpython
def test_topics_created_during_a_sample_cause_no_failure() -> None:
    """The loop adds them, for a collection of garbage lets it run: a broker gave up of it."""
    made = broker()
    (counting,) = [each for each in made.system.live if isinstance(each, Statistics)]
    by_topic = counting._puts.by_topic
    made.send()

    def add(*_: object) -> None:
        by_topic[f"T{len(by_topic)}"] = TopicCounts()

    before = gc.get_threshold()
    gc.callbacks.append(add)
    gc.set_threshold(1)
    try:
        made.system.advance(TEN_SECONDS_MS)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(add)
    assert len(by_topic) > 2
    assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == item(1, 0.1, 1.0)


def test_a_minute_keeps_seven_samples() -> None:
    made = broker()
    made.send()
    made.system.advance(TEN_SECONDS_MS)
    for _ in range(6):
        made.send()
        made.system.advance(TEN_SECONDS_MS)
    # seven samples are six steps of ten seconds
    assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == item(6, 0.1, 1.0)
    made.system.advance(7 * TEN_SECONDS_MS)
    assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute) == item(0, 0.0, 0.0)


@pytest.mark.heavy
def test_hours_and_days_are_sampled_less_often() -> None:
    made = broker(replace(STORE, message_delay_level="1s"))
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


def test_samples_of_a_quiet_topic_go_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted topics kept them for good in apache/rocketmq #8432."""
    monkeypatch.setattr(statistics, "_SPANS", ((TEN_SECONDS_MS, 7),) * 2 + ((TEN_SECONDS_MS, 25),))
    made = broker()
    (counting,) = [each for each in made.system.live if isinstance(each, Statistics)]
    made.send()
    made.system.advance(24 * TEN_SECONDS_MS)
    assert view(made, "TOPIC_PUT_NUMS", "Topic").stats_day.sum == 1
    made.system.advance(2 * TEN_SECONDS_MS)
    assert not counting._history
    assert figures(view(made, "TOPIC_PUT_NUMS", "Topic").stats_day) == (0, 0.0, 0.0)
    made.send()
    made.send()
    made.system.advance(TEN_SECONDS_MS)
    again = view(made, "TOPIC_PUT_NUMS", "Topic")
    assert figures(again.stats_minute) == figures(again.stats_day) == item(2, 0.2, 1.0)


def test_group_gets_are_counted_by_pull() -> None:
    made = broker()
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
    assert made.broker.tables.rates.value.got("Topic@consumers")[0] == 0.6


def test_send_backs_of_a_group_count_for_the_original_topic() -> None:
    made = broker()
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
        ("QUEUE_PUT_NUMS", "Topic@3"),
        ("QUEUE_PUT_NUMS", "Topic"),
        ("QUEUE_PUT_NUMS", "Topic@-1"),
        ("QUEUE_PUT_NUMS", "Topic@" + "9" * 5000),
        ("QUEUE_GET_NUMS", "Topic@0@consumers"),
        ("GROUP_GET_LATENCY", "0@Topic@nobody"),
    ],
)
def test_statistics_never_counted_are_missing(name: str, key: str) -> None:
    made = broker()
    made.send()
    answer = asked(made, name, key)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"The stats <{name}> <{key}> not exist"


def test_a_batch_counts_as_one_request_and_a_delayed_send_for_its_schedule_queue() -> None:
    made = broker()
    made.send(properties="DELAY\x011")
    made.system.advance(1)
    assert asked(made, "TOPIC_PUT_NUMS", "Topic").code == ResponseCode.SYSTEM_ERROR
    made.system.advance(2 * TEN_SECONDS_MS)
    assert view(made, "TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX").stats_minute.sum == 1
    assert view(made, "TOPIC_PUT_NUMS", "Topic").stats_minute.sum == 1


def test_a_single_queue_is_counted_from_its_first_query() -> None:
    made = broker()
    made.send()
    made.system.advance(TEN_SECONDS_MS)
    assert view(made, "QUEUE_PUT_NUMS", "Topic@0").stats_minute.sum == 0
    for queue_id in (0, 0, 1):
        made.send(queue_id=queue_id)
    made.system.advance(TEN_SECONDS_MS)
    found = view(made, "QUEUE_PUT_NUMS", "Topic@0").stats_minute
    assert figures(found) == item(2, 0.2, 1.0)


def test_delivered_delayed_messages_are_counted_by_level() -> None:
    made = broker()
    made.send(properties="DELAY\x011")
    made.system.advance(2 * TEN_SECONDS_MS)
    key = "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER"
    assert view(made, "QUEUE_GET_NUMS", key).stats_minute.sum == 0
    for _ in range(2):
        made.send(properties="DELAY\x011")
    made.system.advance(2 * TEN_SECONDS_MS)
    assert view(made, "QUEUE_GET_NUMS", key).stats_minute.sum == 2


def test_read_durations_are_measured_for_watched_queues_only() -> None:
    made = broker()
    made.send()
    made.system.drain()
    made.pull(0)
    assert made.broker.pull_stats.latencies == {}
    key = "0@Topic@consumers"
    assert view(made, "GROUP_GET_LATENCY", key).stats_minute.sum == 0
    made.pull(0)
    made.pull(0)
    assert made.broker.pull_stats.latencies[key].times == 2
    made.broker.pull_stats.latencies[key].count += 6
    made.system.advance(TEN_SECONDS_MS)
    assert figures(view(made, "GROUP_GET_LATENCY", key).stats_minute) == item(6, 0.6, 3.0)


def test_the_number_of_watched_queues_is_limited() -> None:
    made = broker()
    for queue_id in range(4):
        made.send(queue_id=queue_id)
    made.system.drain()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "WATCHED_MAX", 2)
        for queue_id in (0, 1, 0, 2):  # the one in the middle was asked for last before
            view(made, "QUEUE_PUT_NUMS", f"Topic@{queue_id}")
    for queue_id in range(3):
        made.send(queue_id=queue_id)
    made.system.advance(TEN_SECONDS_MS)
    sums = [view(made, "QUEUE_PUT_NUMS", f"Topic@{n}").stats_minute.sum for n in range(3)]
    assert sums == [1, 0, 1]


def test_deleted_queue_is_sampled_again() -> None:
    made = broker()
    made.send()
    made.send()
    made.system.drain()
    assert view(made, "QUEUE_PUT_NUMS", "Topic@0").stats_minute.sum == 0
    delete = RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader("Topic").encode())
    assert made.ask(delete).code == 0
    made.system.advance(TEN_SECONDS_MS)
    assert asked(made, "QUEUE_PUT_NUMS", "Topic@0").code == ResponseCode.SYSTEM_ERROR


def test_counters_of_topics_with_a_group_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that made groups and pulled with each had 5 KiB kept for every one of them."""
    for module in (counts, statistics):
        monkeypatch.setattr(module, "PAIRS_MAX", 3)
    monkeypatch.setattr(statistics, "_SPANS", ((TEN_SECONDS_MS, 7),) * 2 + ((TEN_SECONDS_MS, 25),))
    made = broker()
    made.send()
    made.system.drain()

    def pull(group: str) -> None:
        made.make_group(group)
        assert made.pull(0, consumer_group=group).code == 0

    for number in range(5):
        pull(f"g{number}")
    by_group = made.broker.pull_stats.by_group
    assert [group for _, group in by_group] == ["g0", "g1", "g2"]
    assert made.broker.pull_stats.get_count == 5
    for _ in range(28):
        made.system.advance(TEN_SECONDS_MS)
        pull("g1")
    assert [group for _, group in by_group] == ["g1"], "the others were quiet for a day"
    pull("g4")
    made.system.advance(TEN_SECONDS_MS)
    again = view(made, "GROUP_GET_NUMS", "Topic@g4").stats_minute
    assert figures(again) == item(1, 0.1, 1.0)


def test_counters_of_returned_messages_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "PAIRS_MAX", 1)
    stats = PutStats()
    for group in ("one", "two", "one"):
        stats.sent_back_one(("T", group), is_dead=True)
    assert {pair: each.count for pair, each in stats.sent_back.items()} == {("T", "one"): 2}
    assert stats.dead_letters == {("T", "one"): 2}
