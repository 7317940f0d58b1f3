"""Holes of 4.9.7's access control that requests go through: each test has the hole's number.

The numbers and what 4.9.7 does: docs/security.md.
"""

from dataclasses import replace
from typing import Any

import pytest

from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import (
    CheckClientRequest,
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    SubscriptionData,
)
from protocol.codes import TRANSACTION_COMMIT
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    ViewMessageHeader,
)
from protocol.headers.send import SendMessageHeader
from protocol.headers.transaction import EndTransactionHeader
from tests.support.brokers import pull_command, send_command
from tests.support.forging import forged_record, next_body_at
from tests.support.guarded import ACCOUNTS, ACL_PATH, GuardedBroker, signed, with_accounts

DENIED = "org.apache.rocketmq.acl.common.AclException: No default permission for "
NEED_ADMIN = "org.apache.rocketmq.acl.common.AclException: Need admin permission for request code="
READER, NOTHING = "reader-account", "nothing-account"


def refused(made: GuardedBroker, account: str | None, command: RemotingCommand) -> str:
    """The remark with which it is refused, without what it begins with."""
    answer = made.ask_as(account, command)
    assert answer.code == 1, answer
    return (answer.remark or "").removeprefix(DENIED)


def stored_offset(made: GuardedBroker, **options: Any) -> int:
    """Return the physical offset of the administrator's message."""
    return made.stored(made.send(**options)).physical_offset


def heartbeat(group: str, topic: str) -> RemotingCommand:
    subscription = SubscriptionData(topic)
    data = ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", None, [subscription])
    body = HeartbeatData("c", consumer_data_set=[data]).encode()
    return RemotingCommand(Code.HEART_BEAT, body=body, version=407)


# --- H1: codes without a check


def test_h1_a_batch_needs_the_topic() -> None:
    made = GuardedBroker(1)
    before = made.broker.store.commit_log.end_offset
    batch = send_command(encode_batch([BatchMessage(b"one")]), topic="Orders", batch=True)
    for code in (Code.SEND_BATCH_MESSAGE, Code.SEND_MESSAGE_V2):
        assert refused(made, READER, replace(batch, code=code)) == "topic:Orders"
    assert made.broker.store.commit_log.end_offset == before


@pytest.mark.parametrize("code", [Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2])
def test_h1_a_retry_topic_needs_permission_for_its_own_group(code: Code) -> None:
    made = GuardedBroker(1)
    command = send_command(topic="%RETRY%shop", producer_group="readers")
    if code == Code.SEND_MESSAGE:
        names = {
            "a": "producerGroup",
            "b": "topic",
            "c": "defaultTopic",
            "d": "defaultTopicQueueNums",
        }
        names |= {"e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag"}
        fields = {names.get(name, name): text for name, text in (command.fields or {}).items()}
        command = replace(command, code=code, fields=fields)
    assert refused(made, READER, command) == "group:shop"
    assert made.records() == []


def test_h1_viewing_a_message_by_offset_needs_its_topic() -> None:
    made = GuardedBroker(1)
    secret = stored_offset(made, topic="Topic")
    orders = stored_offset(made, topic="Orders")
    delayed = stored_offset(made, topic="Topic", properties="DELAY\x013")
    half = stored_offset(made, topic="Topic", properties="TRAN_MSG\x01true\x02PGROUP\x01p")

    def view(offset: int) -> RemotingCommand:
        return RemotingCommand(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).encode())

    for offset in (secret, delayed, half):
        assert refused(made, READER, view(offset)) == "topic:Topic"
        assert made.ask_as("shop-account", view(offset)).code == 0
    assert made.ask_as(READER, view(orders)).code == 0


def test_h1_sending_back_a_message_needs_permission_to_read_it() -> None:
    made = GuardedBroker(1)
    made.make_group("readers")
    secret, orders = stored_offset(made, topic="Topic"), stored_offset(made, topic="Orders")
    count = len(made.records())

    def back(offset: int, group: str = "readers") -> RemotingCommand:
        header = ConsumerSendMsgBackHeader(offset, group, 0)
        return RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())

    assert refused(made, READER, back(secret)) == "topic:Topic"
    assert refused(made, READER, back(orders, "shop")) == "group:shop"
    assert len(made.records()) == count
    assert made.ask_as(READER, back(orders)).code == 0
    assert len(made.records()) == count + 1


def test_h1_an_offset_is_a_message_only_if_its_queue_unit_agrees() -> None:
    """A user of a topic sees all of its messages, and none that lies in a body."""
    made = GuardedBroker(1)
    made.make_group("shop")
    waiting = ("", "DELAY\x013", "TRAN_MSG\x01true\x02PGROUP\x01p")
    real = [stored_offset(made, topic="Orders", properties=text) for text in waiting]
    real.append(stored_offset(made, topic="%RETRY%shop"))
    at = next_body_at(made)
    stored_offset(made, body=forged_record(at, "Orders", beyond_bytes=200), topic="Topic")
    made.send(b"secret", topic="Payroll")
    for offset, code in (*((offset, 0) for offset in real), (at, 1)):
        header = ConsumerSendMsgBackHeader(offset, "shop", 0)
        back = RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())
        view = RemotingCommand(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).encode())
        assert made.ask_as("shop-account", view).code == code
        assert made.ask_as("shop-account", back).code == code
    assert not any(b"secret" in each.properties for each in made.records())


def test_h1_settling_a_half_message_needs_permission_to_send_to_its_topic() -> None:
    made = GuardedBroker(1)
    properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u"
    half = made.stored(made.send_as("shop-account", topic="Topic", properties=properties))
    count = len(made.records())
    header = EndTransactionHeader("p", half.queue_offset, half.physical_offset, TRANSACTION_COMMIT)
    command = RemotingCommand(Code.END_TRANSACTION, header.encode())
    assert refused(made, READER, replace(command)) == "topic:Topic"
    assert len(made.records()) == count, "it is still open"
    assert made.ask_as("shop-account", replace(command)).code == 0
    assert len(made.records()) > count


def test_h1_a_query_finds_no_hash_collisions_of_other_topics() -> None:
    """Java's hash of `topic#key` is easily met: "Aa" and "BB" have the same one."""
    text = ACCOUNTS.replace("topicPerms: [Orders=SUB]", "topicPerms: [TopicBB=SUB]")
    made = with_accounts(1, text)
    made.send(b"secret", topic="TopicAa", properties="KEYS\x01k")
    made.system.drain()
    for topic, code in (("TopicAa", 0), ("TopicBB", 22)):
        header = QueryMessageHeader(topic, "k", 32, 0, 1 << 62)
        command = RemotingCommand(Code.QUERY_MESSAGE, header.encode())
        assert made.ask(replace(command)).code == code
    assert made.ask_as(READER, replace(command)).code == 22


def test_h1_offset_queries_need_group_and_topic() -> None:
    made = GuardedBroker(1)

    def ask(group: str, topic: str) -> RemotingCommand:
        header = QueryConsumerOffsetHeader(group, topic, 0)
        return RemotingCommand(Code.QUERY_CONSUMER_OFFSET, header.encode())

    assert refused(made, READER, ask("shop", "Orders")) == "group:shop"
    assert refused(made, READER, ask("readers", "Topic")) == "topic:Topic"


@pytest.mark.parametrize("code", [Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ])
def test_h1_locking_queues_needs_the_group(code: Code) -> None:
    made = GuardedBroker(1)
    body = LockBatchRequest("client", "shop", []).encode()
    assert refused(made, READER, RemotingCommand(code, body=body)) == "group:shop"
    body = LockBatchRequest("client", "readers", []).encode()
    assert made.ask_as(READER, RemotingCommand(code, body=body)).code == 0


def test_h1_compiling_an_expression_needs_the_group() -> None:
    made = GuardedBroker(1)
    data = SubscriptionData("Orders", "(" * 100, expression_type="SQL92")
    body = CheckClientRequest("client", "shop", data).encode()
    command = RemotingCommand(Code.CHECK_CLIENT_CONFIG, body=body)
    assert refused(made, READER, command) == "group:shop"


def test_h1_a_reply_needs_pub_of_the_reply_topic() -> None:
    listed = "topicPerms: [Orders=SUB, DefaultCluster_REPLY_TOPIC=DENY]"
    made = with_accounts(1, ACCOUNTS.replace("topicPerms: [Orders=SUB]", listed))
    reply = replace(send_command(topic="Orders"), code=Code.SEND_REPLY_MESSAGE_V2)
    assert refused(made, READER, reply) == "topic:DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize("code", [Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2])
def test_h1_storing_a_reply_needs_permission_for_its_topic(code: Code) -> None:
    made = GuardedBroker(1)

    def reply(topic: str) -> RemotingCommand:
        command = send_command(b"reply", topic=topic)
        header = SendMessageHeader.of_command(command)
        fields = header.encode() if code == Code.SEND_REPLY_MESSAGE else command.fields
        return replace(command, code=code, fields=fields)

    for topic in ("Topic", "BrandNew", "RMQ_SYS_TRACE_TOPIC"):
        assert refused(made, READER, reply(topic)) == f"topic:{topic}"
    assert refused(made, READER, reply("%RETRY%shop")) == "group:shop"
    made.system.drain()
    assert made.records() == [] and "BrandNew" not in made.broker.tables.topics.value
    made.ask_as(NOTHING, reply("DefaultCluster_REPLY_TOPIC"))  # as clients send it
    made.ask_as("shop-account", reply("Orders"))
    made.ask_as("shop-account", reply("%RETRY%shop"))
    made.system.drain()
    topics = ["DefaultCluster_REPLY_TOPIC", "Orders", "%RETRY%shop"]
    assert [record.topic for record in made.records()] == topics


def test_h1_the_reply_topic_accepts_replies_unless_denied() -> None:
    listed = "topicPerms: [Orders=SUB, DefaultCluster_REPLY_TOPIC=SUB]"
    made = with_accounts(1, ACCOUNTS.replace("topicPerms: [Orders=SUB]", listed))
    command = send_command(b"reply", topic="DefaultCluster_REPLY_TOPIC")
    made.ask_as(READER, replace(command, code=Code.SEND_REPLY_MESSAGE_V2))
    made.system.drain()
    assert [record.body for record in made.records()] == [b"reply"]
    assert refused(made, READER, command) == "topic:DefaultCluster_REPLY_TOPIC", "as a send"


def test_h1_a_heartbeat_needs_every_group_and_every_topic() -> None:
    made = GuardedBroker(1)

    assert made.ask_as(READER, heartbeat("readers", "Orders")).code == 0
    assert refused(made, READER, heartbeat("shop", "Orders")) == "group:shop"
    assert refused(made, READER, heartbeat("readers", "Topic")) == "topic:Topic"
    assert made.ask_as(READER, pull_command(topic="Orders", consumer_group="shop")).code == 1


# --- H2 to H6: administrators


@pytest.mark.parametrize("code", [50, 51, 52, 53, 54, 222, 309, 17, 25, 200, 207, 215])
def test_h2_administration_needs_an_administrator(code: int) -> None:
    made = GuardedBroker(1)
    before = made.disk.read_bytes(ACL_PATH)
    fields = {"accessKey": READER, "admin": "true", "globalWhiteAddrs": "*", "topic": "Orders"}
    answer = made.ask_as(READER, RemotingCommand(code, fields | {"group": "readers"}))
    assert answer.remark == f"{NEED_ADMIN}{code}, but accessKey={READER} is not"
    assert made.disk.read_bytes(ACL_PATH) == before


def test_h2_the_last_administrator_cannot_be_removed() -> None:
    made = GuardedBroker(1)
    fields = {"accessKey": "administrator", "admin": "false"}
    for code in (Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.DELETE_ACL_CONFIG):
        assert "The last admin account" in refused_with(made, code, dict(fields))
    second = {"accessKey": "second-admin", "secretKey": "secret-second", "admin": "true"}
    assert made.ask(RemotingCommand(50, second)).code == 0
    assert made.ask(RemotingCommand(51, {"accessKey": "administrator"})).code == 0


def refused_with(made: GuardedBroker, code: Code, fields: dict[str, str]) -> str:
    answer = made.ask(RemotingCommand(code, fields))
    assert answer.code in (209, 210, 211)
    return answer.remark or ""


@pytest.mark.parametrize(
    "path",
    [
        "/conf/../etc/other.yml",
        "/etc/other",
        "/conf/other.yml",
        "/conf",
        "/conf/acl/../plain_acl.yml",
    ],
)
def test_h3_only_files_that_were_read_are_written(path: str) -> None:
    made = GuardedBroker(1)
    made.disk.make_dirs("/etc")
    for other in ("/etc/other.yml", "/etc/other", "/conf/other.yml"):
        made.disk.open(other, create=True)
    fields = {"globalWhiteAddrs": "10.0.0.1", "aclFileFullPath": path}
    text = refused_with(made, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields)
    assert text == "The globalWhiteAddresses[10.0.0.1] has been updated failed."
    for other in ("/etc/other.yml", "/etc/other", "/conf/other.yml"):
        assert made.disk.read_bytes(other) == b""


def test_h4_no_answer_contains_a_secret() -> None:
    made = GuardedBroker(1)
    answer = made.ask(RemotingCommand(Code.GET_BROKER_CLUSTER_ACL_CONFIG))
    text = bytes(answer.body or b"")
    assert text.count(b'"secretKey":"******"') == 6
    assert b"secret-" not in text


def test_h4_no_answer_contains_the_value_of_an_unknown_key() -> None:
    """Formerly a secret under a misspelled or invented key was shown."""
    wrong = "secretkey: secret-one, oldSecret: {of: secret-two}, password: secret-three"
    entry = f"- {{accessKey: odd-account, secretKey: secret-odd, admin: true, {wrong}}}\n"
    answer = with_accounts(1, ACCOUNTS + entry).ask(
        RemotingCommand(Code.GET_BROKER_CLUSTER_ACL_CONFIG)
    )
    text = bytes(answer.body or b"")
    assert b"secret-" not in text and b'"secretkey":"******"' in text
    assert b'"accessKey":"odd-account","admin":true' in text


def test_h5_an_allowlisted_address_is_not_an_administrator() -> None:
    made = GuardedBroker(1)
    white = "192.0.2.7"
    assert made.ask_as(None, send_command(), host=white).code == 0
    assert made.ask_as(None, RemotingCommand(Code.GET_ALL_CONSUMER_OFFSET), host=white).code == 0
    for code in (17, 25, 50, 215, 222):
        answer = made.ask_as(None, RemotingCommand(code, {}), host=white)
        assert (answer.remark or "").startswith(NEED_ADMIN)


def test_h5_a_setting_makes_an_allowlisted_address_an_administrator() -> None:
    made = with_accounts(1, ACCOUNTS, {"is_white_admin": True})
    answer = made.ask_as(
        None, RemotingCommand(Code.GET_BROKER_CLUSTER_ACL_CONFIG), host="192.0.2.7"
    )
    assert answer.code == 0


def test_h6_an_administrators_address_is_not_an_administrator() -> None:
    text = ACCOUNTS.replace("admin: true", "admin: true, whiteRemoteAddress: 192.0.2.10")
    made = with_accounts(1, text)
    fields = {"AccessKey": "administrator"}
    unsigned = RemotingCommand(Code.GET_BROKER_CLUSTER_ACL_CONFIG, dict(fields))
    answer = made.ask_as(None, unsigned, host="192.0.2.10")
    assert (answer.remark or "").startswith(NEED_ADMIN)


# --- H7 to H12


def test_h7_an_old_request_cannot_be_replayed_with_fresh_signatures() -> None:
    text = ACCOUNTS.replace(
        "secretKey: secret-shop,", "secretKey: secret-shop, aclMaxAgeSeconds: 30,"
    )
    made = with_accounts(1, text)
    now_ms = made.clock.now_ms()
    command = signed(send_command(topic="Orders"), "shop-account", now_ms=now_ms)
    assert made.client.request(replace(command)).code == 0
    made.system.advance(31_000)
    answer = made.client.request(replace(command))
    assert answer.code == 1 and "too old" in (answer.remark or "")


@pytest.mark.parametrize("signed_by", [None, "nobody-known", READER])
def test_h9_a_body_is_read_only_with_a_valid_signature(signed_by: str | None) -> None:
    """A heartbeat with an invalid JSON body would get another answer if it were parsed."""
    made = GuardedBroker(1)
    command = RemotingCommand(Code.HEART_BEAT, body=b"[" * 100_000)
    if signed_by is not None:
        signed(command, signed_by, "another-secret")
    answer = made.client.request(command)
    assert (answer.remark or "").startswith("org.apache.rocketmq.acl.common.AclException: ")


def test_h10_a_consumer_does_not_see_the_requesting_account() -> None:
    made = GuardedBroker(1)
    beat = heartbeat("shop", "Orders")
    consumer = made.client_at("192.0.2.20")
    assert consumer.request(signed(beat, "shop-account")).code == 0
    fields = {"consumerGroup": "shop", "clientId": "c", "jstackEnable": "false"}
    asked = RemotingCommand(Code.GET_CONSUMER_RUNNING_INFO, fields)
    made.client.start(signed(asked, "administrator"))
    made.system.drain()
    (passed_on,) = [each for each in consumer.received if each.code == 307]
    assert passed_on.fields == {"consumerGroup": "shop", "clientId": "c", "jstackEnable": "false"}
