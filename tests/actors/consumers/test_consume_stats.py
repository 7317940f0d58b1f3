"""Progress of groups: min and max offsets, times and rates; many queues and cold ones."""

from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors.broker import Broker
from actors.consumers import queue_work
from actors.consumers.consume_stats import ConsumeStats
from actors.engine.actor_address import ActorAddress
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.statistics.statistics import MINUTE_SAMPLE_MS
from protocol.bodies import MessageQueue
from protocol.bodies_admin import (
    ConsumeStatsBody,
    ConsumeStatsList,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    OffsetWrapper,
    TopicStatsTable,
)
from protocol.bodies_own import OffsetProgress, ProgressList, ProgressStats
from protocol.codes import RequestCode, ResponseCode
from tests.support.brokers import STORE, FramesPeer, SimulatedBroker
from tests.support.groups import Client, ask, update
from tests.support.peers import RecordingPeer, request
from tests.support.pulls import broker
from tests.support.receiving import receive_command

LONG_MAX = (1 << 63) - 1


def queue(number: int, topic: str = "Topic") -> MessageQueue:
    return MessageQueue(topic, "broker-a", number)


def filled(count: int = 4, queues: int = 2) -> SimulatedBroker:
    """`count` messages in queue 0, a second apart, the last of them a second ago."""
    made = broker()
    made.make_topic(queues=queues)
    for _ in range(count):
        made.send()
        made.system.advance(1000)
    return made


def times(made: SimulatedBroker) -> list[int]:
    return [record.store_timestamp for record in made.messages()]


def test_the_offsets_of_a_topics_queues_are_returned() -> None:
    made = filled()
    answer = ask(made, RequestCode.GET_TOPIC_STATS_INFO, topic="Topic")
    table = TopicStatsTable.decode(answer.body).offset_table
    assert {each.queue_id: (ends.min_offset, ends.max_offset) for each, ends in table.items()} == {
        0: (0, 4),
        1: (0, 0),
    }
    assert table[queue(0)].last_update_timestamp == times(made)[-1]
    assert table[queue(1)].last_update_timestamp == 0
    answer = ask(made, RequestCode.GET_TOPIC_STATS_INFO, topic="Nobody")
    assert (answer.code, answer.remark) == (17, "topic[Nobody] not exist")


def stats(made: SimulatedBroker, **fields: Any) -> ConsumeStatsBody:
    answer = ask(made, RequestCode.GET_CONSUME_STATS, **fields)
    assert (answer.code, answer.fields, answer.remark) == (0, None, None)
    return ConsumeStatsBody.decode(answer.body)


@pytest.mark.parametrize("fields", [{}, {"topic": ""}, {"topic": "Topic"}])
def test_the_consumer_lag_of_a_group_is_returned(fields: dict[str, str]) -> None:
    made = filled()
    made.ask(update("consumers", 3))
    found = stats(made, consumerGroup="consumers", **fields)
    assert found.offset_table == {
        queue(0): OffsetWrapper(4, 3, times(made)[2]),
        queue(1): OffsetWrapper(0, 0, 0),
    }


def test_tools_of_5_x_see_what_is_in_flight() -> None:
    """Without a pull offset these tools show a negative number."""
    made = filled()
    made.ask(update("consumers", 1))
    peer = FramesPeer()
    made.system.address("receipts").tell(Request(receive_command(count=2), peer))
    made.system.advance(6_000)
    command = request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "consumers"}, version=412)
    found = ConsumeStatsBody.decode(made.ask(command).body).offset_table
    assert (found[queue(0)].consumer_offset, found[queue(0)].pull_offset) == (1, 3)
    assert (found[queue(1)].consumer_offset, found[queue(1)].pull_offset) == (0, 0)
    fields = {"consumerGroup": "consumers", "withProgress": "true"}
    progress = ProgressStats.decode(ask(made, RequestCode.GET_CONSUME_STATS, **fields).body)
    assert [each.pull_offset for each in progress.offset_table.values()] == [3, None]
    assert 5_000 <= made.system.clock.now_ms() - progress.held_since <= 7_000
    older = replace(command, version=411)
    assert b"pullOffset" not in bytes(made.ask(older).body or b"")


def test_unknown_group_is_not_found() -> None:
    made = filled()
    assert stats(made, consumerGroup="nobody") == ConsumeStatsBody({}, 0.0)
    found = stats(made, consumerGroup="nobody", topic="Topic").offset_table
    assert found[queue(0)] == OffsetWrapper(4, 0, 0), "a named topic is counted from its beginning"
    assert stats(made, consumerGroup="nobody", topic="Nobody").offset_table == {}


def test_topics_a_group_no_longer_subscribes_are_not_counted() -> None:
    made = filled()
    made.make_topic("Other", queues=1)
    for topic in ("Topic", "Other", "Gone"):
        made.ask(update("consumers", 0, topic=topic))
    assert {each.topic for each in stats(made, consumerGroup="consumers").offset_table} == {
        "Topic",
        "Other",
    }
    Client(made, "c1", 1001, expressions={"Other": "*"})
    assert {each.topic for each in stats(made, consumerGroup="consumers").offset_table} == {"Other"}


def test_the_consume_rate_is_that_of_the_last_minute() -> None:
    made = filled(30)
    made.ask(update("consumers", 0))
    made.system.advance(10 * MINUTE_SAMPLE_MS)
    assert stats(made, consumerGroup="consumers").consume_tps == 0.0
    made.pull(0)
    made.system.advance(MINUTE_SAMPLE_MS)
    assert stats(made, consumerGroup="consumers").consume_tps == 30 / 10
    assert stats(made, consumerGroup="others", topic="Topic").consume_tps == 0.0
    made.system.advance(10 * MINUTE_SAMPLE_MS)
    assert stats(made, consumerGroup="consumers").consume_tps == 0.0


def test_progress_tells_when_the_offset_moved_what_is_pulled_and_when_the_next_message_came() -> (
    None
):
    made = filled()
    made.make_group()
    started_ms = made.broker.tables.offset_moves.value.since_ms
    made.ask(update("consumers", 1))
    moved_ms = made.system.clock.now_ms()
    made.system.advance(60_000)
    made.ask(update("consumers", 1))
    made.pull(1)
    now_ms = made.system.clock.now_ms()
    expected = {
        queue(0): OffsetProgress(4, 1, times(made)[0], 4, moved_ms, times(made)[1]),
        queue(1): OffsetProgress(0, 0, 0, None, 0, 0),
    }
    fields = {"consumerGroup": "consumers", "withProgress": "true"}
    answer = ask(made, RequestCode.GET_CONSUME_STATS, **fields)
    found = ProgressStats.decode(answer.body)
    assert found.offset_table == expected
    assert (found.observed_since, found.answered_timestamp) == (started_ms, now_ms)
    assert (found.stuck_after, found.members) == (30_000, 0)
    answer = ask(made, RequestCode.GET_BROKER_CONSUME_STATS, withProgress="true")
    made.system.drain()
    by_group = ProgressList.decode(answer.body).consume_stats_list
    (stats_of_group,) = next(each["consumers"] for each in by_group if "consumers" in each)
    assert stats_of_group.offset_table == expected


def test_progress_is_not_in_the_answer_to_a_client_that_does_not_ask_for_it() -> None:
    made = filled()
    made.ask(update("consumers", 1))
    answer = ask(made, RequestCode.GET_CONSUME_STATS, consumerGroup="consumers")
    assert b"moved" not in bytes(answer.body or b"")
    assert b"observed" not in bytes(answer.body or b"")


def test_progress_after_a_reset_begins_at_the_reset_and_ends_with_the_group() -> None:
    made = filled()
    made.make_group()
    made.ask(update("consumers", 3))
    made.system.advance(60_000)
    made.ask(update("consumers", 0))
    moves = made.broker.tables.offset_moves.value
    assert moves.at_ms("Topic@consumers", 0) == made.system.clock.now_ms()
    ask(made, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="consumers", removeOffset="true")
    made.system.drain()
    assert moves.by_key == {}


def test_the_statistics_of_all_groups_are_returned_at_once() -> None:
    made = filled()
    made.make_group()
    made.make_group("idle")
    made.make_topic("Other", queues=1)
    for topic, group, offset in (
        ("Topic", "consumers", 3),
        ("Other", "consumers", 0),
        ("Topic", "no longer there", 1),
    ):
        made.ask(update(group, offset, topic=topic))
    answer = ask(made, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    made.system.drain()
    body = ConsumeStatsList.decode(answer.body)
    assert (body.broker_addr, body.total_diff) == ("127.0.0.1:10911", 1)
    by_group = {name: found for each in body.consume_stats_list for name, found in each.items()}
    assert by_group["idle"] == []
    assert "no longer there" not in by_group
    assert [sorted(each.offset_table, key=str) for each in by_group["consumers"]] == [
        [queue(0), queue(1)],
        [queue(0, "Other")],
    ]
    answer = ask(made, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
    ordered = ConsumeStatsList.decode(answer.body)
    assert ordered.total_diff == 0
    assert all(found == [] for each in ordered.consume_stats_list for found in each.values())


def text(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms // 1000):%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"


def test_the_time_lag_is_correct_after_one_send_with_a_fast_clock() -> None:
    """Regression: the age was negative until the clock had caught up."""
    made = filled(1)
    made.clock.set_wall(made.clock.now_ms() + 300_000)
    made.send()
    made.clock.set_wall(made.clock.now_ms() - 300_000)
    for _ in range(3):
        made.system.advance(2_000)
        made.send()
    ages = []
    for offset in (1, 2, 3, 4):
        made.ask(update("consumers", offset))
        answer = ask(made, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Topic", group="consumers")
        ages.append(ConsumeTimeSpans.decode(answer.body).consume_time_span_set[0].delay_time)
    assert ages[0] == 0
    assert [round(age / 1000) for age in ages[1:]] == [4, 2, 0]


def test_a_new_groups_time_lag_is_that_of_the_first_message() -> None:
    """Regression: the age was the time since 1970."""
    made = filled()
    answer = ask(made, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Topic", group="new")
    first, _ = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    assert first.delay_time == made.system.clock.now_ms() - times(made)[0]


def test_the_time_lag_of_a_group_is_returned_per_queue() -> None:
    made = filled()
    made.ask(update("consumers", 2))
    now_ms = made.system.clock.now_ms()
    answer = ask(made, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Topic", group="consumers")
    first, empty = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    stored = times(made)
    assert (first.message_queue, empty.message_queue) == (queue(0), queue(1))
    assert (first.min_time_stamp, first.max_time_stamp) == (stored[0], stored[3])
    assert (first.consume_time_stamp, first.delay_time) == (stored[1], now_ms - stored[2])
    assert first.min_time_stamp_str == text(stored[0])
    assert first.max_time_stamp_str == text(stored[3])
    assert first.consume_time_stamp_str == text(stored[1])
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.consume_time_stamp) == (-1, -1, -1)
    assert (empty.delay_time, empty.min_time_stamp_str) == (0, text(-1))
    made.ask(update("consumers", 4))
    answer = ask(made, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Topic", group="consumers")
    first, _ = ConsumeTimeSpans.decode(answer.body).consume_time_span_set
    assert (first.consume_time_stamp, first.delay_time) == (stored[3], 0)
    answer = ask(made, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Nobody", group="consumers")
    assert (answer.code, answer.remark) == (17, "topic[Nobody] not exist")


def test_the_groups_that_consume_a_topic_are_returned() -> None:
    made = filled()
    made.ask(update("with-offsets", 1))
    made.ask(update("both", 1))
    made.ask(update("of another", 1, topic="Other"))
    Client(made, "c1", 1001, group="both")
    Client(made, "c2", 1002, group="online")
    Client(made, "c3", 1003, group="elsewhere", expressions={"Other": "*"})
    answer = ask(made, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="Topic")
    assert sorted(GroupList.decode(answer.body).group_list) == ["both", "online", "with-offsets"]
    answer = ask(made, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="Nobody")
    assert GroupList.decode(answer.body).group_list == []


def test_the_lowest_offsets_of_other_groups_are_returned() -> None:
    made = filled()
    for group, offset in (("a", 4), ("b", 2), ("c", 3)):
        made.ask(update(group, offset))
    made.ask(update("a", 0, 1))

    def correction(**fields: str) -> dict[int, int]:
        answer = ask(made, RequestCode.QUERY_CORRECTION_OFFSET, topic="Topic", **fields)
        return CorrectionOffsets.decode(answer.body).correction_offsets

    assert correction(compareGroup="c") == {0: 2, 1: 0}
    assert correction(compareGroup="b", filterGroups="b,x") == {0: LONG_MAX, 1: 0}
    assert correction(compareGroup="nobody", filterGroups="a,b,c") == {}
    assert correction(compareGroup="c") == {0: 2, 1: 0}, "what was left out is still there"


# --- much, and cold


def test_many_queues_are_processed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = filled(4, queues=7)
    made.ask(update("consumers", 3))
    whole = stats(made, consumerGroup="consumers")
    monkeypatch.setattr(queue_work, "JOBS_PER_TURN", 2)
    assert stats(made, consumerGroup="consumers") == whole
    assert len(whole.offset_table) == 7


class ColdProbe:
    """Everything is cold, once."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.asked: list[Any] = []

    def forget(self) -> None:
        self._real.forget()

    def cold_units(self, *where: Any) -> Any:
        return self._real.cold_units(*where)

    def cold_records(self, runs: Any) -> Any:
        if runs in self.asked:
            return ()
        self.asked.append(runs)
        start, end = runs[0]
        return [("/store/commitlog/00000000000000000000", start, end - start)]


def test_cold_data_is_read_on_a_thread_first() -> None:
    probes: list[ColdProbe] = []

    def cold(made: Broker) -> Any:
        (spec,) = [each for each in made.children() if each.name == "consume_stats"]
        actor: Any = spec.factory(None)  # type: ignore[arg-type]
        probe = ColdProbe(actor._times._probe)
        probes.append(probe)
        actor._times._probe = probe
        return actor

    made = SimulatedBroker(1, store_config=replace(STORE), instead={"consume_stats": cold})
    made.make_topic(queues=1)
    for _ in range(3):
        made.send()
        made.system.advance(1000)
    made.ask(update("consumers", 2))
    found = stats(made, consumerGroup="consumers").offset_table[queue(0)]
    assert found == OffsetWrapper(3, 2, times(made)[1])
    assert len(probes[0].asked) == 1


def test_a_request_without_its_required_field_is_an_error() -> None:
    made = filled()
    for code in (
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        RequestCode.QUERY_CORRECTION_OFFSET,
    ):
        assert ask(made, code).code == ResponseCode.SYSTEM_ERROR


def test_messages_in_unread_queues_count_as_lag() -> None:
    made = broker()
    made.make_topic(queues=4)
    for queue_id in range(4):
        for _ in range(3):
            made.send(queue_id=queue_id)
    made.ask(update("consumers", 3, queue_id=0))
    made.ask(update("consumers", 3, queue_id=2))
    made.make_topic(queues=2)
    made.system.advance(100)
    found = stats(made, consumerGroup="consumers").offset_table
    assert {each.queue_id: where.lag for each, where in found.items()} == {0: 0, 1: 3, 3: 3}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Topic"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "consumers"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Topic", "group": "consumers"}),
    ],
)
def test_long_answers_are_encoded_on_a_thread_and_collected_in_steps(
    code: RequestCode, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of 65,536 queues held the loop up for a second; it takes one request to make it."""
    made = filled(1, queues=2 * ENCODED_HERE_MAX)
    made.ask(update("consumers", 1))
    later: list[object] = []
    tell = made.system.loop.tell_in_next_round

    def note(address: ActorAddress, message: object) -> None:
        later.append(message)
        tell(address, message)

    monkeypatch.setattr(made.system.loop, "tell_in_next_round", note)
    answer = ask(made, code, **fields)
    assert answer.code == 0
    assert bytes(answer.body or b"").count(b'"queueId"') == 2 * ENCODED_HERE_MAX
    assert len(later) == 2 * ENCODED_HERE_MAX // queue_work.JOBS_PER_TURN
    handled = {each.name: each.handled_count for each in made.system.figures()}
    assert handled["long_answers"] == 1


def test_large_answers_are_processed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took 75 MiB until it was written, and a client may ask for thousands at once."""
    made = filled(1, queues=2 * ENCODED_HERE_MAX)
    begun: list[queue_work.QueueWork] = []
    work_on = ConsumeStats._work_on

    def note(worker: ConsumeStats, work: queue_work.QueueWork) -> bool:
        begun.append(work)
        return work_on(worker, work)

    monkeypatch.setattr(ConsumeStats, "_work_on", note)
    peer = RecordingPeer()
    for _ in range(3):
        command = request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Topic"})
        made.system.address("consume_stats").tell(Request(command, peer))
    made.system.drain()
    made.system.run_until(lambda: len(peer.received) == 3)
    assert {each.code for each in peer.received} == {0}
    later = [work for number, work in enumerate(begun) if work in begun[:number]]
    assert len([*groupby(later)]) == 3, "behind their first turns"


def test_a_request_about_too_many_queues_is_refused_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_work, "QUEUES_MAX", 150)
    made = filled(1, queues=200)
    for _ in range(2):
        answer = ask(made, RequestCode.GET_TOPIC_STATS_INFO, topic="Topic")
        assert (answer.code, "150 queues" in (answer.remark or "")) == (1, True)


def rounds_of(made: SimulatedBroker, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that gets what the worker sends to itself for its next rounds."""
    later: list[object] = []
    tell = made.system.loop.tell_in_next_round

    def note(address: ActorAddress, message: object) -> None:
        later.append(message)
        tell(address, message)

    monkeypatch.setattr(made.system.loop, "tell_in_next_round", note)
    return later


@pytest.mark.parametrize(
    ("code", "fields", "places"),
    [
        (
            RequestCode.GET_BROKER_CONSUME_STATS,
            {"isOrder": "true"},
            [(f"gone-{number}", 0) for number in range(3000)],
        ),
        (
            RequestCode.GET_CONSUME_STATS,
            {"consumerGroup": "consumers"},
            [(f"gone-{number}", 0) for number in range(3000)],
        ),
        (
            RequestCode.QUERY_CORRECTION_OFFSET,
            {"topic": "Topic", "compareGroup": "consumers"},
            [("Topic", number) for number in range(3000)],
        ),
    ],
)
def test_others_have_their_turn_while_offsets_without_an_answer_are_passed_over(
    code: RequestCode,
    fields: dict[str, str],
    places: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offsets of 500,000 deleted topics kept the loop from all clients for 15 s."""
    made = filled(1, queues=1)
    for topic, queue_id in places:
        made.client.start(update("consumers", 0, queue_id, topic=topic), lambda _: None)
    made.system.drain()
    later = rounds_of(made, monkeypatch)
    with capture_logs() as lines:
        assert ask(made, code, **fields).code == 0
    assert not lines, "one for each took 28 µs"
    turn = queue_work.JOBS_PER_TURN * queue_work.PASSED_PER_JOB
    assert len(places) // turn <= len(later) <= 2 * len(places) // turn + 1


def test_others_have_their_turn_while_a_shrunk_topic_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that had 65,536 queues cost 30 ms for each of its groups, 100 in a turn."""
    made = filled(1, queues=1500)
    made.send(queue_id=1499)
    made.make_topic(queues=1)
    groups = [f"group-{number}" for number in range(3)]
    for group in groups:
        made.make_group(group)
        made.ask(update(group, 1, 1499))
    later = rounds_of(made, monkeypatch)
    assert ask(made, RequestCode.GET_BROKER_CONSUME_STATS).code == 0
    assert len(later) >= 4
