"""Pulls that filter by an expression over properties, through a whole broker."""

from dataclasses import replace
from typing import Any

import pytest

from actors.pulling import held_pulls, pull_message
from actors.pulling.held_pulls import TICK_MS
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.message import decode_records
from protocol.properties import format as properties_text
from tests.support.brokers import STORE, SimulatedBroker, pull_command
from tests.support.pulls import broker, code_and_bodies, outcome, refused

HOLD_MS = 15_000
SQL = "SQL92"
WITH_BITS = {
    "store": replace(STORE, enable_consume_queue_ext=True),
    "calc_filter_bit_map_enable": True,
}


def filtering(**settings: Any) -> SimulatedBroker:
    """A broker that serves property filters."""
    return broker(property_filter_enable=True, **settings)


def send(made: SimulatedBroker, *numbers: int, **more: str) -> None:
    """One message for each number: its body, and its property `a`."""
    for number in numbers:
        text = properties_text({"a": str(number), **more}).decode()
        made.start_send(b"%d" % number, properties=text)
    made.system.drain()


def pull(made: SimulatedBroker, expression: str | None, offset: int = 0, **options: Any) -> Any:
    """Brings its expression along; None: the one of the group's heartbeat."""
    kind = "TAG" if expression is None else SQL
    return made.pull(offset, expression=expression, expression_type=kind, **options)


def found(made: SimulatedBroker, expression: str | None) -> list[int]:
    """Return the numbers that an expression finds in the queue, over as many pulls as needed."""
    numbers, offset = list[int](), 0
    while True:
        answer = pull(made, expression, offset)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
            assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
            return numbers
        numbers += [int(record.body) for record in decode_records(bytes(answer.body or b""))]
        assert int(answer.fields["nextBeginOffset"]) > offset
        offset = int(answer.fields["nextBeginOffset"])


# --- what is refused, and in which order


WRONG = "parse the consumer's subscription failed"
NOT_SUPPORTED = "The broker does not support consumer to filter message by SQL92"
NOT_EXIST = "The broker's consumer filter data is not exist!Your expression may be wrong!"
NOT_LATEST = "the consumer's consumer filter data not latest"


@pytest.mark.parametrize("expression", ["a >> 1", "a >", "a = 'x", ")", "a" * 8193])
def test_a_wrong_expression_in_a_pull_is_refused(expression: str) -> None:
    made = filtering()
    refused(pull(made, expression), ResponseCode.SUBSCRIPTION_PARSE_FAILED, WRONG)


def test_another_kind_of_expression_is_refused() -> None:
    made = filtering()
    answer = made.pull(expression="a > 1", expression_type="SQL93")
    refused(answer, ResponseCode.SUBSCRIPTION_PARSE_FAILED, WRONG)
    made.subscribe("a > 1", kind="SQL93")
    refused(made.pull(expression=None), ResponseCode.FILTER_DATA_NOT_EXIST, NOT_EXIST)


def test_without_the_setting_even_a_wrong_expression_is_not_supported() -> None:
    made = broker(1)
    refused(pull(made, "a >> 1"), ResponseCode.SYSTEM_ERROR, NOT_SUPPORTED)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_wrong_expression_of_a_heartbeat_has_no_filter_data(enabled: bool) -> None:
    made = broker(1, property_filter_enable=enabled)
    made.subscribe("a >> 1", kind=SQL)
    refused(made.pull(expression=None), ResponseCode.FILTER_DATA_NOT_EXIST, NOT_EXIST)


def test_filter_data_that_lag_behind_the_subscription_are_refused() -> None:
    made = filtering()
    made.subscribe("a > 1", kind=SQL, version=5)
    filters = made.broker.tables.filters.value.copy()
    made.subscribe("a > 2", kind=SQL, version=6)
    made.broker.tables.filters.value = filters
    refused(pull(made, None, sub_version=6), ResponseCode.FILTER_DATA_NOT_LATEST, NOT_LATEST)
    assert pull(made, None, sub_version=5).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.heavy
def test_the_first_pull_after_a_heartbeat_uses_its_expression() -> None:
    for seed in range(20):
        made = filtering(seed=seed)
        send(made, 1, 2)
        made.subscribe("a > 1", kind=SQL, version=5)
        assert code_and_bodies(pull(made, None, sub_version=5)) == (0, [b"2"])
        made.stop()


# --- what is found


def test_only_records_with_matching_properties_are_delivered() -> None:
    made = filtering()
    send(made, *range(10))
    (record,) = outcome(pull(made, "a > 3 AND a < 5"), 0, "FOUND", 10, 0, 10)
    assert record.body == b"4"
    outcome(pull(made, "a > 30"), 20, "NO_MATCHED_MESSAGE", 10, 0, 10)
    assert found(made, "a IN ('2', '7') OR a = 9") == [2, 7, 9]
    made.subscribe("a BETWEEN 2 AND 4", kind=SQL)
    assert found(made, None) == [2, 3, 4]


def test_unknown_properties_and_failed_evaluations_do_not_match() -> None:
    made = filtering()
    send(made, 1, colour="red")
    send(made, 2, TAGS="TagA")
    made.send(b"3", properties=properties_text({"a": "word"}).decode())
    made.send(b"4")
    assert found(made, "colour = 'red'") == [1]
    assert found(made, "NOT (colour = 'red')") == []
    assert found(made, "colour IS NULL") == [2, 3, 4]
    assert found(made, "TAGS = 'TagA'") == [2]
    assert found(made, "a > 0") == [1, 2]


@pytest.mark.heavy
def test_many_mismatches_take_many_pulls_and_skip_no_match() -> None:
    made = filtering()
    for start in range(0, 2500, 500):
        send(made, *range(start, start + 500))
    answer = pull(made, "a >= 2490")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 0 < int(answer.fields["nextBeginOffset"]) < 2490
    assert found(made, "a >= 2490") == list(range(2490, 2500))
    assert found(made, "a >= 0") == list(range(2500))


def test_a_group_filters_by_its_new_expression_from_its_heartbeat_on() -> None:
    made = filtering()
    send(made, *range(6))
    made.subscribe("a < 2", kind=SQL, version=1)
    assert found(made, None) == [0, 1]
    made.subscribe("a > 3", kind=SQL, version=2)
    assert found(made, None) == [4, 5]
    made.subscribe("a < 2", kind=SQL, version=1)
    assert found(made, None) == [4, 5], "an older one changes nothing"
    made.subscribe("*", version=3)
    assert found(made, None) == list(range(6))


def test_after_a_restart_filtering_continues_with_the_next_heartbeat() -> None:
    made = filtering()
    send(made, *range(6))
    made.subscribe("a > 3", kind=SQL)
    made.stop()
    made.start()
    assert made.broker.tables.filters.value.get("Topic", "consumers") is not None
    made.subscribe("a > 3", kind=SQL)
    assert found(made, None) == [4, 5]


@pytest.mark.parametrize("how", ["closed", "unregistered", "silent", "by tag"])
def test_a_group_that_stops_filtering_leaves_a_dead_expression(how: str) -> None:
    made = filtering()
    made.subscribe("a > 3", kind=SQL)
    if how == "closed":
        made.client.close()
    elif how == "unregistered":
        fields = {"clientID": "client", "consumerGroup": "consumers"}
        assert made.ask(RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields)).code == 0
    elif how == "silent":
        made.system.advance(140_000)
    else:
        made.subscribe("*", topic="Other")
    made.system.drain()
    known = made.broker.tables.filters.value.get("Topic", "consumers")
    assert known is not None and known.is_dead
    made.client = made.new_client(2)
    made.subscribe("a > 3", kind=SQL)
    known = made.broker.tables.filters.value.get("Topic", "consumers")
    assert known is not None and not known.is_dead


# --- held pulls


def start_pull(made: SimulatedBroker, expression: str | None, offset: int) -> list[RemotingCommand]:
    """Pulls; the list gets the answer, once there is one."""
    answers: list[RemotingCommand] = []
    kind = "TAG" if expression is None else SQL
    command = pull_command(offset, expression=expression, expression_type=kind, hold_ms=HOLD_MS)
    made.client.start(command, answers.append)
    made.system.drain()
    return answers


@pytest.mark.parametrize("of_group", [True, False])
@pytest.mark.parametrize("with_bits", [True, False])
def test_a_held_pull_is_woken_only_by_a_matching_record(of_group: bool, with_bits: bool) -> None:
    made = filtering(**WITH_BITS if with_bits else {})
    made.subscribe("a > 5", kind=SQL)
    send(made, 9)
    answers = start_pull(made, None if of_group else "a > 5", 1)
    send(made, 1, 2, 3)
    made.send(b"no properties")
    made.system.drain()
    assert answers == []
    send(made, 6)
    (record,) = outcome(answers[0], 0, "FOUND", 6, 0, 6)
    assert record.body == b"6"


def test_a_held_pull_without_a_match_gets_its_next_offset_at_the_deadline() -> None:
    made = filtering()
    answers = start_pull(made, "a > 5", 0)
    send(made, 1, 2, 3)
    made.system.advance(HOLD_MS - 1)
    assert answers == []
    made.system.advance(TICK_MS + 1)
    outcome(answers[0], 20, "NO_MATCHED_MESSAGE", 3, 0, 3)


def test_pulls_with_different_expressions_are_held_together() -> None:
    made = filtering()
    low, high = start_pull(made, "a < 5", 0), start_pull(made, "a > 5", 0)
    bad, tags = start_pull(made, "colour > 3", 0), list[RemotingCommand]()
    made.client.start(pull_command(0, hold_ms=HOLD_MS), tags.append)
    made.system.drain()
    send(made, 5, colour="red")
    assert (low, high, bad, len(tags)) == ([], [], [], 1)
    send(made, 3, colour="red")
    assert (code_and_bodies(low[0]), high) == ((0, [b"3"]), [])
    send(made, 8, colour="4")
    assert code_and_bodies(high[0]) == code_and_bodies(bad[0]) == (0, [b"8"])


# --- retry topics


def retried(made: SimulatedBroker, number: int, topic: str = "Topic") -> None:
    """A message that the group has sent back."""
    text = properties_text({"a": str(number), "RETRY_TOPIC": topic}).decode()
    made.send(b"%d" % number, topic="%RETRY%consumers", properties=text)


@pytest.mark.parametrize("supported", [True, False])
def test_retries_are_filtered_by_the_expression_for_their_topic_if_that_is_set(
    supported: bool,
) -> None:
    made = filtering(filter_support_retry=supported)
    made.subscribe("a > 5", kind=SQL)
    made.make_topic("%RETRY%consumers", queues=1)
    for number in (4, 7):
        retried(made, number)
    retried(made, 3, "Other")
    made.send(b"2", topic="%RETRY%consumers")
    made.system.drain()
    answer = made.pull(topic="%RETRY%consumers")
    wanted = [b"7", b"3", b"2"] if supported else [b"4", b"7", b"3", b"2"]
    assert code_and_bodies(answer) == (0, wanted)


def test_retries_of_a_group_without_expressions_are_all_wanted() -> None:
    made = filtering(filter_support_retry=True)
    made.make_topic("%RETRY%consumers", queues=1)
    retried(made, 4)
    made.system.drain()
    assert code_and_bodies(made.pull(topic="%RETRY%consumers")) == (0, [b"4"])


# --- bit maps


def bits_of(made: SimulatedBroker, offset: int) -> bytes | None:
    """The bit map of a message of queue 0."""
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    unit = queue.unit(offset)
    assert unit is not None
    ext = queue.ext(unit[2])
    assert ext is not None
    return ext.bitmap


def test_a_messages_bit_map_names_the_groups_whose_filters_match() -> None:
    made = filtering(**WITH_BITS)
    send(made, 1)
    made.subscribe("a > 5", kind=SQL, group="high")
    made.subscribe("a < 5", kind=SQL, group="low")
    made.system.advance(1000)
    send(made, 4, 5, 6)
    bloom = made.config.bloom
    high, low = (bloom.positions(group, "Topic") for group in ("high", "low"))
    assert [bits_of(made, offset) for offset in range(4)] == [
        None,
        bloom.bit_map(low),
        bloom.bit_map(()),
        bloom.bit_map(high),
    ]


def test_bit_maps_are_used_only_for_messages_newer_than_the_expression() -> None:
    made = filtering(**WITH_BITS)
    made.subscribe("a > 100", kind=SQL, group="other")
    send(made, 6)
    made.system.advance(1000)
    made.subscribe("a > 5", kind=SQL)
    made.system.advance(1000)
    made.broker.store.consume_queues.bit_maps = lambda entry: bytes(14)  # no bit set
    send(made, 7)
    assert found(made, None) == [6]
    assert found(made, "a > 5") == [6, 7], "one that the pull brings has no bits"


def test_bit_maps_of_an_expression_lost_in_a_crash_hide_no_message() -> None:
    """The file knows the first expression; the messages' bits are those of the second."""
    store = replace(STORE, enable_consume_queue_ext=True, flush_queue_thorough_interval_ms=500)
    made = filtering(store=store, calc_filter_bit_map_enable=True)
    made.subscribe("a > 5", kind=SQL, version=1)
    made.system.advance(12_000)
    made.subscribe("a <= 5", kind=SQL, version=2)
    made.system.advance(1_000)
    send(made, 7, 3)
    made.system.advance(4_000)  # the checkpoint covers them, the file is not saved yet
    made.restart_killed()
    made.system.advance(1_000)
    assert bits_of(made, 0) == bytes(14)
    known = made.broker.tables.filters.value.get("Topic", "consumers")
    assert known is not None and known.expression == "a > 5"
    made.subscribe("a > 5", kind=SQL, version=3)
    assert found(made, None) == [7]


def test_without_the_setting_no_bit_maps_are_written() -> None:
    made = filtering(store=WITH_BITS["store"])
    made.subscribe("a > 5", kind=SQL)
    made.system.advance(1000)
    send(made, 6)
    assert bits_of(made, 0) is None
    assert found(made, None) == [6]


def test_pulls_of_one_batch_share_the_work_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen pulls of one read looked at 800 messages each: 0.1 s."""
    made = filtering()
    send(made, *range(12))
    assert int(pull(made, "a = 99").fields["nextBeginOffset"]) == 12
    monkeypatch.setattr(pull_message, "FILTER_BYTES_OF_BATCH", 1)
    monkeypatch.setattr(pull_message, "FILTER_BYTES_MIN", 1)
    made.system.drain()
    pull(made, "a = 99")  # its batch began before
    answer = pull(made, "a = 99")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert int(answer.fields["nextBeginOffset"]) == 1
    assert found(made, "a > 9") == [10, 11]


def test_waiting_pulls_count_the_characters_of_their_expressions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_pulls, "TAGS_MAX", 10)
    made = filtering()
    send(made, 1)
    answers: list[RemotingCommand] = []
    for number in (1, 2):
        expression = f"a > {number}1"
        waiting = pull_command(1, expression=expression, expression_type=SQL, hold_ms=HOLD_MS)
        made.client.start(waiting, answers.append)
    made.system.drain()
    assert [each.code for each in answers] == [ResponseCode.PULL_NOT_FOUND], "one has room"
    assert made.broker.pull_stats.held_count == 1
