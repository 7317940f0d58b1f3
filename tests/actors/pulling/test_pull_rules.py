"""Every check of a pull: its code, its words, and which comes first; through a whole broker."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.codes import ResponseCode
from tests.support import golden
from tests.support.brokers import SimulatedBroker
from tests.support.pulls import (
    as_recorded,
    as_slave,
    broker,
    committed,
    fill,
    refused,
    tagged,
)

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


def test_a_broker_without_read_permission_refuses_every_pull() -> None:
    made = broker(1, broker_permission=2)
    remark = "the broker[127.0.0.1] pulling message is forbidden"
    refused(made.pull(), ResponseCode.NO_PERMISSION, remark)
    refused(made.pull(topic="Nobody"), ResponseCode.NO_PERMISSION, remark)


def test_without_auto_creation_an_unknown_group_is_refused() -> None:
    made = broker(1, auto_create_group_enable=False)
    remark = f"subscription group [consumers] does not exist, {FAQ}"
    refused(made.pull(), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    assert made.pull(consumer_group="CID_RMQ_SYS_TRANS").code == ResponseCode.SUCCESS
    made.make_group()
    assert made.pull().code == ResponseCode.SUCCESS


def test_with_auto_creation_an_unknown_group_is_created() -> None:
    made = broker(1)
    assert made.pull(consumer_group="fresh").code == ResponseCode.SUCCESS
    made.system.drain()
    assert "fresh" in made.broker.tables.groups.value


def test_a_group_that_may_not_consume_is_refused() -> None:
    made = broker(1)
    made.make_group(consume_enable=False)
    remark = "subscription group no permission, consumers"
    refused(made.pull(), ResponseCode.NO_PERMISSION, remark)


def test_a_pull_does_not_create_an_unknown_topic() -> None:
    made = broker()
    remark = f"topic[Nobody] not exist, apply first please! {FAQ}"
    refused(made.pull(topic="Nobody"), ResponseCode.TOPIC_NOT_EXIST, remark)
    assert "Nobody" not in made.broker.tables.topics.value


def test_a_topic_that_may_not_be_read_is_refused() -> None:
    made = broker(1)
    made.make_topic(perm=2)
    remark = "the topic[Topic] pulling message is forbidden"
    refused(made.pull(), ResponseCode.NO_PERMISSION, remark)


@pytest.mark.parametrize("queue_id", [-1, 2, 1 << 20])
def test_a_missing_queue_is_refused(queue_id: int) -> None:
    made = broker()
    made.make_topic(queues=4, read_queues=2)
    remark = (
        f"queueId[{queue_id}] is illegal, topic:[Topic]"
        " topicConfig.readQueueNums:[2] consumer:[/127.0.0.1:1]"
    )
    refused(made.pull(queue_id=queue_id), ResponseCode.SYSTEM_ERROR, remark)


def test_a_pull_without_its_subscription_needs_a_heartbeat() -> None:
    made = broker(1)
    remark = f"the consumer's group info not exist{FAQ}"
    refused(made.pull(expression=None), ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    made.subscribe()
    assert made.pull(expression=None).code == ResponseCode.SUCCESS
    made.client.close()
    made.system.drain()
    refused(made.pull(expression=None), ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)


def test_a_topic_that_the_group_has_not_subscribed_to_is_refused() -> None:
    made = broker(1)
    made.subscribe(topic="Other")
    remark = f"the consumer's subscription not exist{FAQ}"
    refused(made.pull(expression=None), ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)


def test_a_subscription_newer_than_the_last_heartbeat_is_refused_until_that_comes() -> None:
    made = broker(1)
    made.subscribe(version=7)
    assert made.pull(expression=None, sub_version=7).code == ResponseCode.SUCCESS
    remark = "the consumer's subscription not latest"
    newer = made.pull(expression=None, sub_version=8)
    refused(newer, ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    made.subscribe(version=8)
    assert made.pull(expression=None, sub_version=8).code == ResponseCode.SUCCESS


def test_broadcast_is_refused_to_a_group_that_may_not() -> None:
    made = broker(1)
    made.subscribe(model="BROADCASTING")
    assert made.pull(expression=None).code == ResponseCode.SUCCESS
    made.make_group(consume_broadcast_enable=False)
    remark = "the consumer group[consumers] can not consume by broadcast way"
    refused(made.pull(expression=None), ResponseCode.NO_PERMISSION, remark)
    made.subscribe(model="CLUSTERING")
    assert made.pull(expression=None).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("expression", "kind"), [("||", "TAG"), ("||||", None), ("", "SQL92"), (None, "SQL92")]
)
def test_an_empty_expression_is_refused(expression: str | None, kind: str | None) -> None:
    made = broker(1)
    answer = made.pull(expression="", subscription=expression, expression_type=kind)
    remark = "parse the consumer's subscription failed"
    refused(answer, ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


def test_sql_is_refused_in_a_pull_and_in_a_subscription() -> None:
    made = broker(1)
    remark = "The broker does not support consumer to filter message by SQL92"
    with_it = made.pull(expression="a > 1", expression_type="SQL92")
    refused(with_it, ResponseCode.SYSTEM_ERROR, remark)
    made.subscribe("a > 1", kind="SQL92")
    refused(made.pull(expression=None), ResponseCode.SYSTEM_ERROR, remark)


def test_the_checks_come_in_the_order_of_4_9_7() -> None:
    """A pull in which everything is wrong, put right one step at a time."""
    made = broker(auto_create_group_enable=False)
    wrong: dict[str, Any] = {"queue_id": 9, "topic": "New", "expression": "||"}

    def code() -> int:
        return made.pull(**wrong).code

    codes = [code()]
    made.make_group(consume_enable=False)
    codes.append(code())
    made.make_group()
    codes.append(code())
    made.make_topic("New", perm=2)
    codes.append(code())
    made.make_topic("New")
    codes.append(code())
    wrong["queue_id"] = 0
    codes.append(code())
    wrong["expression"] = "*"
    codes.append(code())
    assert codes == [26, 16, 17, 16, 1, 23, 19]


def test_a_refused_pull_commits_nothing() -> None:
    made = broker(1)
    made.make_group(consume_enable=False)
    made.pull(sys_flag=1, commit_offset=5)
    assert committed(made) == 0


# --- recorded from the original


def of_negative(**settings: Any) -> SimulatedBroker:
    """Return a broker set up like the one of the recorded pulls."""
    made = broker(**settings)
    made.make_topic("GN_T")
    made.make_topic("GN_W", perm=2)
    for group in ("CG_neg", "CG_off"):
        made.make_group(group, consume_enable=group == "CG_neg")
    fill(made, 6, topic="GN_T")
    return made


FAST_PORT_PAIR = 66
NEGATIVE: dict[str, tuple[Callable[[], SimulatedBroker], tuple[int, ...]]] = {
    "a master": (of_negative, (32, 34, 54, 55, 56, 57, 58, 62, 66, 114)),
    "no new groups": (lambda: of_negative(auto_create_group_enable=False), (37,)),
    "not readable": (lambda: of_negative(broker_permission=2), (41,)),
    "an empty slave": (lambda: as_slave(broker()), (69, 70)),
    "a slave": (lambda: as_slave(of_negative()), (100, 101)),
}


@pytest.mark.parametrize(("make", "pairs"), NEGATIVE.values(), ids=NEGATIVE.keys())
def test_refusals_and_odd_pulls_are_answered_as_the_original_did(
    make: Callable[[], SimulatedBroker], pairs: tuple[int, ...]
) -> None:
    golden.golden_root()
    made = make()
    for pair in pairs:
        as_recorded(made, "negative", pair, fast=pair == FAST_PORT_PAIR)


def test_the_pulls_of_the_java_client_are_answered_as_the_original_did() -> None:
    golden.golden_root()
    made = broker()
    made.make_topic("GT_Basic")
    fill(made, 4, topic="GT_Basic")
    fill(made, 1, topic="GT_Basic", properties=tagged("TagA"))
    for pair in (111, 112, 113, 114, 115, 116):
        as_recorded(made, "java-4.9.7", pair)


def test_a_java_client_ahead_of_its_heartbeat_is_answered_as_by_the_original() -> None:
    golden.golden_root()
    made = broker()
    made.make_topic("GT_Basic")
    for group, pairs in (("CG_Push", (69, 70)), ("CG_Sql", (76, 77))):
        made.subscribe(topic="GT_Basic", group=group, version=1)
        for pair in pairs:
            as_recorded(made, "java-4.9.7", pair)
