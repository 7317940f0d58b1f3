"""Attempts by a detour, A52 to A54: through a message, a name or a handle of another account.

Each request is permitted for its sender, and names something of another account besides.
"""

from dataclasses import replace

import pytest

from actors.sending.sink import BATCHES_LEFT_OUT_MAX
from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import (
    BrokerData,
    ClusterInfo,
)
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.headers.own import JobRunHeader
from protocol.host import pack_host
from protocol.message_id import offset_message_id
from protocol.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, find_pairs, parse
from tests.support.brokers import SimulatedBroker, send_command
from tests.support.guarded import (
    ACCOUNTS,
    GuardedBroker,
    signed,
    with_accounts,
    write_accounts,
)
from tests.support.sinking import batch_command, chained, progress_command, progress_in
from tests.troupemq.fake_server import FakeServer
from troupemq.client.errors import RouteNotFound
from troupemq.console.cluster import WatchedCluster

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
DENIED = f"{PREFIX}No default permission for topic:"
MORE = """
- {accessKey: sender-account, secretKey: secret-sender, defaultTopicPerm: PUB,
   topicPerms: [Secret=DENY]}
- {accessKey: second-monitor, secretKey: secret-second, monitor: true}
- {accessKey: partner-account, secretKey: secret-partner, groupPerms: [shop=SUB]}
"""


@pytest.fixture
def made() -> GuardedBroker:
    broker = with_accounts(1, ACCOUNTS + MORE)
    for topic in ("Orders", "Secret", "%DLQ%shop"):
        broker.make_topic(topic)
    broker.make_group("shop")
    return broker


def refused(made: GuardedBroker, account: str, command: RemotingCommand) -> str:
    """Return the refusal, and assert that nothing is stored."""
    before = made.broker.store.commit_log.end_offset
    answer = made.ask_as(account, command)
    assert answer.code == 1, answer
    assert made.broker.store.commit_log.end_offset == before
    return (answer.remark or "").removeprefix(DENIED)


def back(offset: int, group: str = "shop", level: int = 0) -> RemotingCommand:
    header = ConsumerSendMsgBackHeader(offset, group, level)
    return RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())


# --- A52: a request that an administrator's console has signed


def test_a52_the_console_signs_for_no_server_that_is_not_listed() -> None:
    """A viewer named its address, or an operator a message id in which it stands."""
    credentials = {"TROUPEMQ_ACCESS_KEY": "administrator", "TROUPEMQ_SECRET_KEY": "secret-admin"}
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeServer() as namesrv,
        FakeServer() as listed,
        FakeServer() as stranger,
    ):
        for name, value in credentials.items():
            patch.setenv(name, value)
        brokers = {"a": BrokerData("C", "a", {0: listed.address})}
        body = ClusterInfo(brokers, {"C": ["a"]}).encode()
        namesrv.on(Code.GET_BROKER_CLUSTER_INFO, lambda asked: asked.answer(body=body))
        listed.succeed(Code.CANCEL_JOB)
        cluster = WatchedCluster(namesrv.address)
        header = JobRunHeader("evil-accounttrueevil-secret")
        with pytest.raises(RouteNotFound, match="no name server lists it"):
            cluster.session.ask(stranger.address, Code.CANCEL_JOB, header)
        host, _, port = stranger.address.partition(":")
        found_at = offset_message_id(pack_host(host, int(port)), 0)
        found = cluster.ask(lambda admin: [admin.find_message(found_at)])
        assert found.failures and stranger.received.empty() and stranger.connected.empty()
        cluster.session.ask(listed.address, Code.CANCEL_JOB, header)
        assert "Signature" in (listed.next(Code.CANCEL_JOB).fields or {})
        cluster.close()


def test_a52_the_consoles_signatures_give_no_administration_rights(made: GuardedBroker) -> None:
    """Not even if an attacker reads them on the way to a listed broker."""
    run = "evil-account" + "true" + "evil-secret"
    heard = RemotingCommand(Code.CANCEL_JOB, {"run": run})
    signed(heard, "administrator", now_ms=made.clock.now_ms())
    own = heard.fields or {}
    values = {"accessKey": "evil-account", "admin": "true", "secretKey": "evil-secret"}
    for rest in (
        {"B": own["Seal"] + own["Timestamp"]},
        {"Seal": own["Seal"], "T": own["Timestamp"]},
    ):
        shown = {name: own[name] for name in ("AccessKey", "Signature")}
        stolen = RemotingCommand(Code.UPDATE_AND_CREATE_ACL_CONFIG, {**shown, **rest, **values})
        answer = made.client.request(stolen)
        assert answer.code == 1 and "Check signature failed" in (answer.remark or "")
    assert made.ask_as("evil-account", RemotingCommand(Code.GET_BROKER_CONFIG)).code == 1


# --- A53: a message that says where it came from


@pytest.mark.parametrize("level", [1, -1], ids=["retry", "dead letter"])
def test_a53_a_sent_back_message_keeps_its_stored_topic(made: GuardedBroker, level: int) -> None:
    """The producer wrote another topic, under which the group consumed it and redrive sent it."""
    forged = "RETRY_TOPIC\x01Secret\x02ORIGIN_MESSAGE_ID\x01of another"
    sent = made.stored(made.send(topic="Orders", properties=forged))
    assert made.ask_as("shop-account", back(sent.physical_offset, level=level)).code == 0
    made.system.advance(2000)
    (copy,) = made.messages("%RETRY%shop" if level > 0 else "%DLQ%shop")
    found = parse(copy.properties)
    assert found[RETRY_TOPIC] == "Orders"
    own_id = offset_message_id(sent.store_host, sent.physical_offset)
    assert found[ORIGIN_MESSAGE_ID] == own_id


def test_a53_a_retry_sent_back_again_keeps_its_original_topic(
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
def test_a53_a_send_back_can_name_only_permitted_topics(
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


def test_a54_a_query_of_equal_name_moves_no_lane_of_another_account() -> None:
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


@pytest.mark.parametrize("is_read_again", [False, True], ids=["by the file", "by the log"])
def test_a54_a_lane_belongs_to_its_account_after_a_start(is_read_again: bool) -> None:
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


def test_a54_lanes_from_before_access_control_continue() -> None:
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


def test_a54_a_lane_cannot_jump_ahead(made: GuardedBroker) -> None:
    made.make_topic()
    made.system.drain()
    assert progress_in(made.ask_as("shop-account", sink(7))) == (7, 4)
    for batch in (7 + BATCHES_LEFT_OUT_MAX + 1, (1 << 63) - 1):
        answer = made.ask_as("shop-account", sink(batch))
        assert answer.code == ResponseCode.SINK_BATCH_DIFFERS
        assert "the gap is too large" in (answer.remark or "")
    assert progress_in(made.ask_as("shop-account", sink(7 + BATCHES_LEFT_OUT_MAX)))[1] == 4
