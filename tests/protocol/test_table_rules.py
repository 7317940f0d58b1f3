"""The rules of a table's entries, at both edges of what each takes."""

from dataclasses import replace

import pytest

from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.table_rules import (
    INT_MAX,
    INT_MIN,
    LONG_MAX,
    LONG_MIN,
    QUEUE_NUMS_MAX,
    asked_group_fault,
    asked_topic_fault,
    delay_offset_fault,
    group_fault,
    key_fault,
    offset_fault,
    queue_id_fault,
    topic_fault,
)

TOPIC = TopicConfig("T", 4, 4, 6)
GROUP = SubscriptionGroupConfig("G")


def test_the_limits_of_int_and_long_are_accepted() -> None:
    for number in (0, INT_MAX):
        topic = TopicConfig("T", number, number, number, topic_sys_flag=INT_MIN + number)
        assert topic_fault(topic) == queue_id_fault(number) == delay_offset_fault(number, 0) == ""
    for number in (INT_MIN, INT_MAX):
        assert group_fault(replace(GROUP, retry_queue_nums=number, retry_max_times=number)) == ""
    for number in (LONG_MIN, LONG_MAX):
        group = replace(GROUP, broker_id=number, which_broker_when_consume_slowly=number)
        assert group_fault(group) == offset_fault(number) == ""
    assert delay_offset_fault(1, LONG_MAX) == ""


@pytest.mark.parametrize("number", [-1, INT_MAX + 1])
def test_values_beyond_the_limits_are_named(number: int) -> None:
    assert topic_fault(replace(TOPIC, read_queue_nums=number)).startswith(
        f"readQueueNums is {number}"
    )
    assert topic_fault(replace(TOPIC, write_queue_nums=number)).startswith("writeQueueNums is")
    assert topic_fault(replace(TOPIC, perm=number)).startswith("perm is")
    assert queue_id_fault(number).startswith(f"queueId is {number}")
    assert delay_offset_fault(number, 0).startswith("the delay level is")


@pytest.mark.parametrize("past", [-1, 1])
def test_negative_values_without_a_meaning_are_named(past: int) -> None:
    an_int, a_long = (INT_MIN - 1, LONG_MIN - 1) if past < 0 else (INT_MAX + 1, LONG_MAX + 1)
    assert topic_fault(replace(TOPIC, topic_sys_flag=an_int)).startswith("topicSysFlag is")
    assert group_fault(replace(GROUP, retry_queue_nums=an_int)).startswith("retryQueueNums is")
    assert group_fault(replace(GROUP, retry_max_times=an_int)).startswith("retryMaxTimes is")
    assert group_fault(replace(GROUP, broker_id=a_long)).startswith("brokerId is")
    slow = replace(GROUP, which_broker_when_consume_slowly=a_long)
    assert group_fault(slow).startswith("whichBrokerWhenConsumeSlowly is")
    assert offset_fault(a_long).startswith("the offset is")
    assert delay_offset_fault(1, a_long).startswith("the offset is")


def test_a_filter_type_is_one_of_two() -> None:
    assert topic_fault(replace(TOPIC, topic_filter_type="MULTI_TAG")) == ""
    assert topic_fault(replace(TOPIC, topic_filter_type="x")).startswith("topicFilterType is 'x'")


def test_a_key_reserved_by_fastjson_is_refused() -> None:
    assert key_fault("$ref") and key_fault("@type")
    assert key_fault("$refs") == ""


def test_requests_have_stricter_limits_than_files() -> None:
    assert asked_topic_fault(TOPIC) == asked_group_fault(GROUP) == ""
    most = replace(TOPIC, read_queue_nums=QUEUE_NUMS_MAX, write_queue_nums=QUEUE_NUMS_MAX)
    assert asked_topic_fault(most) == ""
    for many in (
        replace(TOPIC, read_queue_nums=QUEUE_NUMS_MAX + 1),
        replace(TOPIC, write_queue_nums=QUEUE_NUMS_MAX + 1),
        replace(TOPIC, topic_name="a b"),
    ):
        assert asked_topic_fault(many) and topic_fault(many) == ""
    for group in (
        replace(GROUP, retry_queue_nums=QUEUE_NUMS_MAX + 1),
        replace(GROUP, group_name="a b"),
    ):
        assert asked_group_fault(group) and group_fault(group) == ""
    assert asked_topic_fault(replace(TOPIC, perm=-1)) == topic_fault(replace(TOPIC, perm=-1))
