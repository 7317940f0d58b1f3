"""Outcomes of pulls through a whole broker: messages found, skipped, offsets committed."""

from dataclasses import replace

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from tests.support.brokers import STORE, SimulatedBroker, pull_command
from tests.support.pulls import (
    as_slave,
    broker,
    code_and_bodies,
    committed,
    fill,
    outcome,
    recorded,
    tagged,
)

NOT_TAKEN = 1 << 40
"""A position that no log reaches."""


def test_messages_are_returned_as_they_were_sent() -> None:
    made = broker(3)
    made.send(b"last", properties=tagged("A"), flag=9)
    made.system.drain()
    records = outcome(made.pull(1), 0, "FOUND", 4, 0, 4)
    assert [record.queue_offset for record in records] == [1, 2, 3]
    assert records[-1].body == b"last"
    assert (records[-1].topic, records[-1].queue_id, records[-1].flag) == ("Topic", 0, 9)
    assert b"TAGS\x01A" in records[-1].properties


def test_an_empty_queue_corrects_every_offset_to_0() -> None:
    made = broker()
    outcome(made.pull(0), 19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    outcome(made.pull(5), 21, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    outcome(made.pull(5, hold_ms=60_000), 21, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)


def test_a_pull_above_the_max_offset_is_corrected_to_it() -> None:
    made = broker(3)
    outcome(made.pull(3), 19, "OFFSET_OVERFLOW_ONE", 3, 0, 3)
    outcome(made.pull(4), 21, "OFFSET_OVERFLOW_BADLY", 3, 0, 3)
    outcome(made.pull(1 << 60), 21, "OFFSET_OVERFLOW_BADLY", 3, 0, 3)


def test_a_pull_below_the_min_offset_is_corrected_to_it() -> None:
    made = without_first_file()
    outcome(made.pull(2), 21, "OFFSET_TOO_SMALL", 5, 5, 12)
    outcome(made.pull(-1), 21, "OFFSET_TOO_SMALL", 5, 5, 12)
    assert len(outcome(made.pull(5), 0, "FOUND", 10, 5, 12)) == 5


def test_an_offset_in_a_missing_file_is_corrected_to_the_next_one() -> None:
    made = without_first_file()
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    queue.min_offset = 0
    outcome(made.pull(2), 19, "OFFSET_FOUND_NULL", 5, 0, 12)
    outcome(made.pull(2, hold_ms=60_000), 19, "OFFSET_FOUND_NULL", 5, 0, 12)


def without_first_file() -> SimulatedBroker:
    """Twelve messages, five units in each file of the queue, the first of which is gone."""
    made = broker(12, store=replace(STORE, consume_queue_file_bytes=100))
    made.stop()
    made.start()
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    unit = queue.unit(5)
    assert unit is not None
    queue.trim_before(unit[0])
    return made


def test_a_slave_corrects_offsets_only_if_set_to_check_them() -> None:
    for checks, code, following in ((False, 20, "9"), (True, 21, "3")):
        made = broker(3, store=replace(STORE, offset_check_in_slave=checks))
        made.make_group(broker_id=4)
        made = as_slave(made)
        answer = made.pull(9)
        assert (answer.code, answer.remark) == (code, "OFFSET_OVERFLOW_BADLY")
        fields = answer.fields or {}
        assert fields["nextBeginOffset"] == following
        assert fields["suggestWhichBrokerId"] == ("0" if checks else "4")
        assert code_and_bodies(made.pull(0)) == (0, [b"body"] * 3)
        made.stop()


def test_a_pull_of_deleted_messages_is_answered_with_retry() -> None:
    made = broker(2)
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    queue.append(2, NOT_TAKEN, 100, 0)
    outcome(made.pull(2), 20, "MESSAGE_WAS_REMOVING", 3, 0, 3)
    made.crash()


def test_a_tag_expression_finds_its_tags_only() -> None:
    made = broker()
    for tag in ("TagA", "TagB", "", "TagC", "TagA"):
        made.send(tag.encode(), properties=tagged(tag))
    made.system.drain()
    everything = [b"TagA", b"TagB", b"", b"TagC", b"TagA"]
    for expression in ("*", "", None):
        answer = made.pull(expression="", subscription=expression)
        assert code_and_bodies(answer) == (0, everything)
    for expression in ("TagA", " TagA ", "TagA||None"):
        assert code_and_bodies(made.pull(expression=expression)) == (0, [b"TagA", b"TagA"])
    either = made.pull(1, expression="TagB || TagC")
    assert [record.body for record in outcome(either, 0, "FOUND", 5, 0, 5)] == [b"TagB", b"TagC"]
    outcome(made.pull(1, expression="TagD"), 20, "NO_MATCHED_MESSAGE", 5, 0, 5)


def test_a_subscription_of_a_heartbeat_filters_like_one_in_the_pull() -> None:
    made = broker()
    for tag in ("TagA", "TagB", "TagA"):
        made.send(tag.encode(), properties=tagged(tag))
    made.system.drain()
    made.subscribe("TagB")
    assert code_and_bodies(made.pull(expression=None)) == (0, [b"TagB"])
    made.subscribe("*", version=2)
    assert len(code_and_bodies(made.pull(expression=None))[1]) == 3


def test_all_tags_with_the_same_hash_are_delivered() -> None:
    """The queue knows hashes only; the client looks again."""
    made = broker()
    for tag in ("AaAa", "BBBB", "AaBB", "other"):
        made.send(tag.encode(), properties=tagged(tag))
    made.system.drain()
    for expression in ("AaAa", "BBBB"):
        found = code_and_bodies(made.pull(expression=expression))
        assert found == (0, [b"AaAa", b"BBBB", b"AaBB"])


# --- limits


def test_a_pull_returns_at_most_the_requested_count_and_32() -> None:
    made = broker(40)
    for asked, given in ((1, 1), (31, 31), (32, 32), (33, 32), (1000, 32)):
        assert len(outcome(made.pull(3, count=asked), 0, "FOUND", 3 + given, 0, 40)) == given


def test_a_pull_returns_at_most_256_kib_unless_one_message_is_longer() -> None:
    made = broker(store=replace(STORE, commit_log_file_bytes=4 << 20, max_message_bytes=1 << 20))
    fill(made, 2, bytes(300 << 10))
    fill(made, 5, bytes(80 << 10))
    assert len(outcome(made.pull(0), 0, "FOUND", 1, 0, 7)) == 1
    assert len(outcome(made.pull(2), 0, "FOUND", 5, 0, 7)) == 3


def test_messages_on_disk_come_8_and_64_kib_at_a_time() -> None:
    on_disk = replace(STORE, commit_log_file_bytes=1 << 20, access_in_memory_max_ratio=0)
    made = broker(10, store=on_disk)
    fill(made, 5, bytes(20 << 10))
    assert len(outcome(made.pull(0), 0, "FOUND", 8, 0, 15)) == 8
    assert len(outcome(made.pull(10), 0, "FOUND", 13, 0, 15)) == 3


def test_a_pull_ends_with_the_file_of_its_queue() -> None:
    made = broker(12, store=replace(STORE, consume_queue_file_bytes=100))
    assert len(outcome(made.pull(3), 0, "FOUND", 5, 0, 12)) == 2
    assert len(outcome(made.pull(5), 0, "FOUND", 10, 0, 12)) == 5


def test_a_filter_looks_at_800_messages_at_a_time_or_20_for_each_asked_for() -> None:
    big = replace(STORE, commit_log_file_bytes=1 << 20, consume_queue_file_bytes=60_000)
    made = broker(900, store=big)
    outcome(made.pull(expression="None", count=1), 20, "NO_MATCHED_MESSAGE", 800, 0, 900)
    outcome(made.pull(800, expression="None"), 20, "NO_MATCHED_MESSAGE", 900, 0, 900)


# --- what else a pull does


def test_a_pull_may_commit_an_offset_with_any_outcome() -> None:
    made = broker(3)
    made.pull(0, commit_offset=1)
    assert committed(made) == 0
    for offset, commit in ((0, 1), (3, 2), (99, 3)):
        made.pull(offset, sys_flag=1, commit_offset=commit)
        assert committed(made) == commit


def test_a_reader_is_sent_to_another_broker_only_where_slaves_may_be_read() -> None:
    far = replace(STORE, access_in_memory_max_ratio=0)
    for store, read_slaves, suggested in (
        (STORE, False, "0"),
        (STORE, True, "5"),
        (far, False, "0"),
        (far, True, "7"),
    ):
        made = broker(2, store=store, slave_read_enable=read_slaves)
        made.make_group(broker_id=5, which_broker_when_consume_slowly=7)
        assert (made.pull(0, count=1).fields or {})["suggestWhichBrokerId"] == suggested
        made.stop()


def test_a_one_way_pull_is_not_answered() -> None:
    made = broker(1)
    answers: list[RemotingCommand] = []
    command = pull_command()
    command.flag = ONEWAY_FLAG
    made.client.start(command, answers.append)
    assert made.pull().code == ResponseCode.SUCCESS
    assert answers == []


def test_the_fast_port_does_not_serve_pulls() -> None:
    made = broker(1)
    for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        command = pull_command()
        command.code = code
        answer = made.new_client(2, fast=True).request(command)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")
        assert answer.fields is None


def test_a_lite_pull_of_5_x_is_served_like_a_pull() -> None:
    """Requests as recorded from its client; 4.9.7 refuses them."""
    made = broker()
    for pair in (130, 131):
        asked, refused_then = recorded("java-5.3.3", pair)
        assert (asked.code, refused_then.code) == (361, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        assert asked.fields is not None
        topic, queue_id = asked.fields["topic"], int(asked.fields["queueId"])
        made.make_topic(topic)
        for tag in ("TagA", "TagC", "TagB"):
            made.send(tag.encode(), topic=topic, queue_id=queue_id, properties=tagged(tag))
        made.system.drain()
        answer = made.ask(asked)
        assert code_and_bodies(answer) == (0, [b"TagA", b"TagB"])
        assert (answer.fields or {})["nextBeginOffset"] == "3"
        asked.fields.update(queueOffset="3", suspendTimeoutMillis="1000")
        answers: list[RemotingCommand] = []
        made.client.start(asked, answers.append)
        made.system.drain()
        assert answers == [], "it waits for a message"
        made.send(b"late", topic=topic, queue_id=queue_id, properties=tagged("TagB"))
        made.system.drain()
        assert [code_and_bodies(each) for each in answers] == [(0, [b"late"])]


def test_pulls_and_their_messages_are_counted() -> None:
    made = broker(3)
    size = len(made.pull().body or b"")
    made.pull(3)
    stats = made.broker.pull_stats
    assert (stats.pull_count, stats.get_count, stats.get_bytes) == (2, 3, size)
