"""Holes of 4.9.7 around what waits in a broker: delayed and half messages, replies, held pulls.

Each test has the hole's number (docs/security.md).
"""

from dataclasses import replace

from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.headers.own import ReadRecordsHeader
from tests.security.test_holes_of_requests import READER, refused
from tests.support.brokers import pull_command, send_command
from tests.support.guarded import ACCOUNTS, GuardedBroker, signed, with_accounts, write_accounts
from troupemq.testing.virtual_broker import LocalClient

NOTHING, SHOP = "nothing-account", "shop-account"
VICTIM, ATTACKER = "192.0.2.100", "198.51.100.66"
ROUND_MS = 61_000

INNER = (
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    *("TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster_REPLY_TOPIC"),
)


def test_h1_a_default_permission_does_not_read_internal_topics_with_denied_messages() -> None:
    """Each has to be listed by its name; an administrator's default right is for all."""
    topics = "defaultTopicPerm: SUB, defaultGroupPerm: SUB, topicPerms: [Topic=DENY]"
    text = ACCOUNTS.replace("topicPerms: [Orders=SUB],", f"{topics},")
    text += f"- {{accessKey: watcher-account, secretKey: nobody-knows, {topics}}}\n".replace(
        "Topic=DENY", "Topic=DENY, SCHEDULE_TOPIC_XXXX=SUB"
    )
    text += f"- {{accessKey: listed-admin, secretKey: nobody-knows, admin: true, {topics}}}\n"
    made = with_accounts(1, text)
    made.make_group("readers")
    for properties in ("DELAY\x0118", "TRAN_MSG\x01true\x02PGROUP\x01p"):
        made.send(b"secret", topic="Topic", properties=properties)
    made.system.drain()

    def read(code: Code, topic: str) -> RemotingCommand:
        if code == Code.READ_RECORDS:
            return RemotingCommand(code, ReadRecordsHeader(topic, 0, 0, 100).encode())
        queue_id = 17 if topic.startswith("SCHEDULE") else 0
        asked = pull_command(topic=topic, consumer_group="readers", queue_id=queue_id)
        return replace(asked, code=code)

    for topic in INNER:
        for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.READ_RECORDS):
            assert refused(made, READER, read(code, topic)) == f"topic:{topic}"
            if topic != INNER[0]:
                assert refused(made, "watcher-account", read(code, topic)) == f"topic:{topic}"
    assert refused(made, READER, read(Code.PULL_MESSAGE, "Topic")) == "topic:Topic"
    for account in ("watcher-account", "listed-admin", "administrator"):
        answer = made.ask_as(account, read(Code.PULL_MESSAGE, INNER[0]))
        assert b"secret" in bytes(answer.body or b""), account
    answer = made.ask_as("listed-admin", read(Code.PULL_MESSAGE, INNER[1]))
    assert answer.code == 17, "no round of checks has made it yet: its right is not the reason"


def produces(made: GuardedBroker, account: str, host: str, *groups: str) -> LocalClient:
    """Says there, as this account, that it is in these groups, by the clientId `client`."""
    data = [ProducerData(group) for group in groups]
    body = HeartbeatData("client", producer_data_set=data).encode()
    beat = RemotingCommand(Code.HEART_BEAT, body=body, version=407)
    assert made.ask_as(account, beat, host=host).code == 0
    return made.client_at(host)


def questions(client: LocalClient) -> int:
    """Return the number of check-backs received, and clear them."""
    codes = [each.code for each in client.received]
    client.received.clear()
    return codes.count(Code.CHECK_TRANSACTION_STATE)


def half(made: GuardedBroker) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01bookers\x02UNIQ_KEY\x01u"
    assert (
        made.ask_as(SHOP, send_command(b"secret", topic="Orders", properties=properties)).code == 0
    )


def test_h1_viewing_a_half_message_needs_permission_to_send_to_its_topic() -> None:
    made = GuardedBroker(1)
    half(made)
    attackers = [
        produces(made, each, f"198.51.100.{number}", "bookers")
        for number, each in enumerate((NOTHING, READER, NOTHING), 1)
    ]
    made.system.advance(ROUND_MS)
    owner = produces(made, SHOP, VICTIM, "bookers")
    for number, each in enumerate((NOTHING, READER, NOTHING), 1):
        produces(made, each, f"198.51.100.{number}", "bookers")
    for _ in range(3):
        made.system.advance(ROUND_MS - 1000)
        produces(made, SHOP, VICTIM, "bookers")
    assert questions(owner) == 3, "each round asks the owner first"
    assert [questions(each) for each in attackers] == [0, 0, 0]


def test_h1_a_half_message_is_hidden_after_the_permission_is_revoked() -> None:
    made = GuardedBroker(1)
    half(made)
    owner = produces(made, SHOP, VICTIM, "bookers")
    white = produces(made, NOTHING, "192.0.2.7", "bookers")
    write_accounts(made.disk, ACCOUNTS.replace("Orders=PUB|SUB", "Orders=SUB"))
    for _ in range(2):  # else it may be the other one's turn
        made.system.advance(ROUND_MS)
        produces(made, NOTHING, "192.0.2.7", "bookers")
    assert questions(owner) == 0
    assert questions(white) == 2, "a white address as before"


def reply_to(client_id: str) -> RemotingCommand:
    properties = f"CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01{client_id}\x02MSG_TYPE\x01reply"
    reply = send_command(b"secret", topic="DefaultCluster_REPLY_TOPIC", properties=properties)
    return replace(reply, code=Code.SEND_REPLY_MESSAGE_V2)


def takes_reply(made: GuardedBroker, *clients: LocalClient) -> list[int]:
    """Return the number of replies that each client gets to one request."""
    for each in clients:
        each.received.clear()
    made.client_at("192.0.2.101").start(signed(reply_to("client"), SHOP))
    made.system.drain()
    return [[got.code for got in each.received].count(326) for each in clients]


def test_h1_replies_go_to_the_first_owner_of_a_client_id() -> None:
    made = GuardedBroker(1)
    asker = produces(made, SHOP, VICTIM, "askers")
    thief = produces(made, NOTHING, ATTACKER, "askers", "evil")
    assert takes_reply(made, asker, thief) == [1, 0]
    for _ in range(4):  # the table is rebuilt every ten seconds
        made.system.advance(6000)
        produces(made, NOTHING, ATTACKER, "askers", "evil")
        assert takes_reply(made, asker, thief) == [1, 0]
    again = produces(made, SHOP, "192.0.2.102", "askers")
    assert takes_reply(made, asker, thief, again) == [0, 0, 1], "the account reconnects"
    for each in (asker, again):
        each.close()
    made.system.drain()
    produces(made, NOTHING, ATTACKER, "evil")
    assert takes_reply(made, thief) == [1], "the client id is free"


def test_h1_a_held_pull_gets_no_message_after_its_permission_is_revoked() -> None:
    made = GuardedBroker(1)
    made.send(b"before", topic="Orders", queue_id=0)
    made.system.drain()
    pulled: dict[str, list[RemotingCommand]] = {READER: [], SHOP: []}
    for account, group, host in ((READER, "readers", ATTACKER), (SHOP, "shop", VICTIM)):
        made.make_group(group)
        pull = pull_command(1, topic="Orders", consumer_group=group, hold_ms=20_000)
        made.client_at(host).start(signed(pull, account), pulled[account].append)
    made.system.drain()
    assert pulled == {READER: [], SHOP: []}
    write_accounts(made.disk, ACCOUNTS.replace("- {accessKey: reader", "- {accessKey: other"))
    made.system.advance(6000)
    made.send(b"secret", topic="Orders", queue_id=0)
    made.system.drain()
    (given,), (denied,) = pulled[SHOP], pulled[READER]
    assert b"secret" in bytes(given.body or b"")
    assert denied.code == 1 and not denied.body
    assert "No default permission" in (denied.remark or "")
