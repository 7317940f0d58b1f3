"""Attempts by a detour: what a message, a name or a handle of another account leads to, A53 to A57.

Each request here is one that its sender may make; what it names besides is somebody else's.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from actors.access.rights import BROKER_RIGHTS, Level
from actors.retention.lease_table import LEASES_OF_OWNER_MAX
from actors.sending.sink import BATCHES_LEFT_OUT_MAX
from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from protocol.bodies_admin import ConsumeStatsBody
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.admin import GetConsumeStatsHeader
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.headers.lease import RELEASE, RENEW, TAKE, LeaseHeader
from protocol.headers.offset import UpdateConsumerOffsetHeader
from protocol.message_id import offset_message_id
from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, parse
from protocol.property_shapes import find_pairs
from tests.support.brokers import SimulatedBroker, send_command
from tests.support.guarded import (
    ACCOUNTS,
    WHITE_HOST,
    GuardedBroker,
    with_accounts,
    write_accounts,
)
from tests.support.headers_by_code import REQUEST_HEADERS
from tests.support.sinking import batch_command, chained, progress_command, progress_in

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
DENIED = f"{PREFIX}No default permission for topic:"
MORE = """
- {accessKey: sender-account, secretKey: secret-sender, defaultTopicPerm: PUB,
   topicPerms: [Secret=DENY]}
- {accessKey: second-monitor, secretKey: secret-second, monitor: true}
- {accessKey: partner-account, secretKey: secret-partner, groupPerms: [shop=SUB]}
"""
SEND_CODES = (10, 310, 320, 324, 325)


@pytest.fixture
def made() -> Iterator[GuardedBroker]:
    broker = with_accounts(1, ACCOUNTS + MORE)
    for topic in ("Orders", "Secret", "%DLQ%shop"):
        broker.make_topic(topic)
    broker.make_group("shop")
    yield broker
    broker.stop()


def refused(made: GuardedBroker, account: str, command: RemotingCommand) -> str:
    """Why it is; nothing is stored."""
    before = made.broker.store.commit_log.end_offset
    answer = made.ask_as(account, command)
    assert answer.code == 1, answer
    assert made.broker.store.commit_log.end_offset == before
    return (answer.remark or "").removeprefix(DENIED)


def back(offset: int, group: str = "shop", level: int = 0) -> RemotingCommand:
    header = ConsumerSendMsgBackHeader(offset, group, level)
    return RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())


# --- A53: a message that says where it came from


@pytest.mark.parametrize("level", [1, -1], ids=["retry", "dead letter"])
def test_a53_a_message_given_back_comes_from_the_topic_where_it_lies(
    made: GuardedBroker, level: int
) -> None:
    """Its producer wrote another one, which the group consumed it as, and redrive sent it to."""
    forged = "RETRY_TOPIC\x01Secret\x02ORIGIN_MESSAGE_ID\x01of another"
    sent = made.stored(made.send(topic="Orders", properties=forged))
    assert made.ask_as("shop-account", back(sent.physical_offset, level=level)).code == 0
    made.system.advance(2000)
    (copy,) = made.messages("%RETRY%shop" if level > 0 else "%DLQ%shop")
    found = parse(copy.properties)
    assert found[RETRY_TOPIC] == "Orders"
    own_id = offset_message_id(sent.store_host, sent.physical_offset)
    assert found[ORIGIN_MESSAGE_ID] == own_id


def test_a53_a_retry_keeps_where_it_came_from_when_it_is_given_back_again(
    made: GuardedBroker,
) -> None:
    sent = made.stored(made.send(topic="Orders"))
    assert made.ask_as("shop-account", back(sent.physical_offset, level=1)).code == 0
    made.system.advance(2000)
    (first,) = made.messages("%RETRY%shop")
    assert made.ask_as("shop-account", back(first.physical_offset, level=-1)).code == 0
    (dead,) = made.messages("%DLQ%shop")
    own_id = offset_message_id(sent.store_host, sent.physical_offset)
    found = parse(dead.properties)
    assert (found[RETRY_TOPIC], found[ORIGIN_MESSAGE_ID]) == ("Orders", own_id)


@pytest.mark.parametrize(
    ("account", "topic"), [("shop-account", "%RETRY%shop"), ("sender-account", "%DLQ%shop")]
)
def test_a53_who_puts_a_message_back_names_only_topics_of_his_own(
    made: GuardedBroker, account: str, topic: str
) -> None:
    for properties in (
        "RETRY_TOPIC\x01Secret",
        "RETRY_TOPIC\x01Orders\x02RETRY_TOPIC\x01Secret",
        "TAGS\x01a\x02RETRY_TOPIC\x01Secret\x02KEYS\x01k\x02",
    ):
        command = send_command(topic=topic, properties=properties)
        for _ in range(3):  # the form is known then
            assert refused(made, account, command) == "Secret"
            fine = properties.replace("Secret", "Orders")
            sent = send_command(topic=topic, properties=fine)
            assert made.ask_as(account, sent).code == 0, "as clients do"
        batch = encode_batch([BatchMessage(b"x", properties.encode())])
        whole = send_command(batch, topic=topic, batch=True)
        for code in (Code.SEND_BATCH_MESSAGE, Code.SEND_MESSAGE_V2):
            assert refused(made, account, replace(whole, code=code)), code


# --- A54: a sink's lane


MESSAGES = chained([b"body %d" % number for number in range(4)])


def sink(batch: int, first: int = 0, end: int | None = None) -> RemotingCommand:
    return batch_command(MESSAGES, first, end, batch=batch, topic="Topic")


def test_a54_a_query_of_the_same_name_moves_no_lane_of_another_account() -> None:
    """A batch far ahead made a query's own ones old: they were answered as stored, and lost."""
    broker = with_accounts(1, ACCOUNTS + MORE)
    broker.make_topic()
    broker.system.drain()

    def ask(account: str, command: RemotingCommand) -> tuple[int, int]:
        return progress_in(broker.ask_as(account, command))

    assert ask("shop-account", sink(7, 0, 2)) == (7, 2)
    assert ask("sender-account", progress_command(topic="Topic")) == (-1, 0)
    assert ask("sender-account", sink(9)) == (9, 4)
    assert ask("shop-account", progress_command(topic="Topic")) == (7, 2)
    assert ask("shop-account", sink(7)) == (7, 4)
    assert ask("shop-account", sink(8)) == (8, 4)
    own = [dict(find_pairs(each.properties)) for each in broker.messages("Topic", queue_id=0)]
    assert len({each[b"UNIQ_KEY"] for each in own}) == len(own) == 3
    shown = b"".join(each[b"TROUPE_SINK"] for each in own)
    assert b"sender" not in shown and b"shop" not in shown
    broker.stop()


@pytest.mark.parametrize("is_read_again", [False, True], ids=["by the file", "by the log"])
def test_a54_a_lane_is_its_accounts_after_a_start(is_read_again: bool) -> None:
    broker = with_accounts(1, ACCOUNTS + MORE)
    broker.make_topic()
    broker.system.drain()
    for account, batch in (("shop-account", 7), ("sender-account", 9)):
        assert broker.ask_as(account, sink(batch)).code == 0
    broker.stop()
    if is_read_again:
        broker.disk.unlink("/store/troupemq/sinks.json")
    again = GuardedBroker(2, disk=broker.disk)
    again.system.advance(2000)
    for account, batch in (("shop-account", 7), ("sender-account", 9)):
        found = again.ask_as(account, progress_command(topic="Topic"))
        assert progress_in(found) == (batch, 4)
    again.stop()


def test_a54_a_query_goes_on_whose_lanes_are_from_before_there_were_accounts() -> None:
    before = SimulatedBroker(1)
    before.make_topic()
    before.system.drain()
    assert progress_in(before.ask(sink(7, 0, 2))) == (7, 2)
    before.stop()
    write_accounts(before.disk, ACCOUNTS)
    made = GuardedBroker(2, disk=before.disk)
    made.system.advance(2000)
    assert progress_in(made.ask_as("shop-account", sink(7))) == (7, 4)
    assert len([each for queue in range(4) for each in made.messages("Topic", queue)]) == 4
    made.stop()


def test_a54_no_lane_leaps(made: GuardedBroker) -> None:
    made.make_topic()
    made.system.drain()
    assert progress_in(made.ask_as("shop-account", sink(7))) == (7, 4)
    for batch in (7 + BATCHES_LEFT_OUT_MAX + 1, (1 << 63) - 1):
        answer = made.ask_as("shop-account", sink(batch))
        assert answer.code == ResponseCode.SINK_BATCH_DIFFERS
        assert "no query counts so fast" in (answer.remark or "")
    assert progress_in(made.ask_as("shop-account", sink(7 + BATCHES_LEFT_OUT_MAX)))[1] == 4


# --- A55: handles of another account


def lease(action: str, name: str = "job-1", offset: int = 0) -> RemotingCommand:
    header = LeaseHeader(action, name, "job", offset=offset)
    return RemotingCommand(Code.LEASE_LOG, header.encode())


def test_a55_no_monitor_ends_or_moves_the_lease_of_another(made: GuardedBroker) -> None:
    """The log would be deleted under its reader."""

    def leases() -> list[int]:
        return [each.offset for each in made.broker.kept.value.leases]

    assert made.ask_as("monitor-account", lease(TAKE, offset=5)).code == 0
    assert made.ask_as("second-monitor", lease(RENEW)).code == ResponseCode.QUERY_NOT_FOUND
    assert made.ask_as("second-monitor", lease(RELEASE)).code == 0
    assert leases() == [5]
    assert made.ask_as("second-monitor", lease(TAKE, offset=9)).code == 0
    assert leases() == [5, 9], "one of its own"
    assert made.ask_as("monitor-account", lease(RENEW)).code == 0
    assert made.ask_as("second-monitor", lease(RELEASE)).code == 0
    assert leases() == [5]


def test_a55_no_monitor_uses_up_the_leases_of_all(made: GuardedBroker) -> None:
    for number in range(LEASES_OF_OWNER_MAX):
        assert made.ask_as("monitor-account", lease(TAKE, f"{number}")).code == 0
    answer = made.ask_as("monitor-account", lease(TAKE, "one more"))
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "monitor-account has 200 leases already" in (answer.remark or "")
    assert made.ask_as("monitor-account", lease(TAKE, "7", 3)).code == 0, "one of its own moves"
    assert made.ask_as("second-monitor", lease(TAKE)).code == 0
    for number in range(LEASES_OF_OWNER_MAX):
        assert made.ask_as(None, lease(TAKE, f"{number}"), host=WHITE_HOST).code == 0
    assert made.ask_as(None, lease(TAKE, "more"), host=WHITE_HOST).code == ResponseCode.SYSTEM_BUSY


def locks(code: Code, client_id: str = "10.0.0.1@1") -> RemotingCommand:
    body = LockBatchRequest(client_id, "shop", [MessageQueue("Orders", "broker-a", 0)]).encode()
    return RemotingCommand(code, body=body)


def test_a55_no_account_unlocks_what_a_client_of_another_has_locked(made: GuardedBroker) -> None:
    """An id is no secret: 38 tells those of all members."""

    def locked(account: str) -> bool:
        answer = made.ask_as(account, locks(Code.LOCK_BATCH_MQ))
        return bool(LockBatchResponse.decode(answer.body).lock_ok_mq_set)

    assert locked("shop-account")
    assert not locked("partner-account"), "the same id"
    assert made.ask_as("partner-account", locks(Code.UNLOCK_BATCH_MQ)).code == 0
    assert not locked("partner-account")
    assert made.ask_as("shop-account", locks(Code.UNLOCK_BATCH_MQ)).code == 0
    assert locked("partner-account")


# --- A56: a request that names two things


TWO = {
    Code.GET_CONSUME_STATS: ("consumerGroup", {}),
    Code.QUERY_CONSUME_TIME_SPAN: ("group", {}),
    Code.QUERY_CORRECTION_OFFSET: ("compareGroup", {}),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: ("group", {}),
}


@pytest.mark.parametrize("code", TWO, ids=lambda code: code.name)
def test_a56_who_may_use_a_group_is_told_nothing_of_a_topic(
    made: GuardedBroker, code: Code
) -> None:
    field, more = TWO[code]
    command = RemotingCommand(code, {"topic": "Secret", field: "shop", **more})
    why = refused(made, "shop-account", command)
    assert why == "Secret" or "Need admin permission" in why
    own = RemotingCommand(code, {"topic": "Orders", field: "shop", **more})
    remark = made.ask_as("shop-account", own).remark or ""
    assert not remark.startswith(PREFIX)
    assert not (made.ask(command).remark or "").startswith(PREFIX), "an administrator may"


def test_a56_of_all_topics_of_a_group_only_ones_own_are_told(made: GuardedBroker) -> None:
    for topic in ("Orders", "Secret"):
        header = UpdateConsumerOffsetHeader("shop", topic, 0, 0)
        made.ask(RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, header.encode()))

    def told(account: str, topic: str | None) -> set[str]:
        header = GetConsumeStatsHeader("shop", topic)
        answer = made.ask_as(account, RemotingCommand(Code.GET_CONSUME_STATS, header.encode()))
        assert answer.code == 0
        return {queue.topic for queue in ConsumeStatsBody.decode(answer.body).offset_table}

    for topic in (None, "", " "):
        assert told("shop-account", topic) == {"Orders"}
        assert told("administrator", topic) == {"Orders", "Secret"}


NAMES = ("topic", "consumerGroup", "group", "producerGroup", "srcGroup", "destGroup")
NAMES += ("groupName", "compareGroup", "originTopic")
JUDGED_ELSEWHERE = {
    Code.CONSUMER_SEND_MSG_BACK: "the topic is that of the message; originTopic is for hooks",
    Code.UNREGISTER_CLIENT: "only what its own connection has registered goes",
    Code.QUERY_CONSUME_QUEUE: "the handler shows nothing of a group that is not one's own",
    Code.GET_CONSUME_STATS: "the handler looks at the topics, for it may tell of several",
    Code.END_TRANSACTION: "the topic is that of the half message, the group its own",
}


@pytest.mark.parametrize("code", sorted(BROKER_RIGHTS), ids=lambda code: Code(code).name)
def test_a56_each_name_in_a_header_is_judged(code: Code) -> None:
    """Or it is said where; administrators' codes and sends are judged as a whole."""
    header, right = REQUEST_HEADERS.get(code), BROKER_RIGHTS[code]
    is_send = code in SEND_CODES or right.is_administration
    if header is None or is_send or code in JUDGED_ELSEWHERE or right.level is Level.MONITOR:
        return
    named = {each.metadata["name"] for each in fields(header)} & set(NAMES)
    judged = {name for name, _ in (*right.topics, *right.groups)}
    assert named <= judged
