"""Attempts by a detour: what a message, a name or a handle of another account leads to, A53 to A57.

Each request here is one that its sender may make; what it names besides is somebody else's.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from protocol.batch import BatchMessage, encode_batch
from protocol.codes import RequestCode as Code
from protocol.command import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.message_id import offset_message_id
from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, parse
from tests.support.brokers import send_command
from tests.support.guarded import ACCOUNTS, GuardedBroker, with_accounts

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
DENIED = f"{PREFIX}No default permission for topic:"
MORE = """
- {accessKey: sender-account, secretKey: secret-sender, defaultTopicPerm: PUB,
   topicPerms: [Secret=DENY]}
"""


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
