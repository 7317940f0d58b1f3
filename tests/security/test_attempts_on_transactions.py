"""Attempts on transactions of another account that may send to the same topic: A26."""

import pytest

from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand
from protocol.message import MessageRecord
from protocol.properties import TROUPE_OWNER
from tests.security.test_attempts_on_detours import MORE, PREFIX
from tests.support.guarded import ACCOUNTS, WHITE_HOST, GuardedBroker, signed, with_accounts
from tests.support.transacting import (
    COMMIT,
    GROUP,
    HALF,
    ROLLBACK,
    end_command,
    of_topic,
    questions,
    round_of_checks,
    sending,
)
from troupemq.testing.virtual_broker import LocalClient

OWNER, OTHER = "shop-account", "sender-account"
REFUSED = f"{PREFIX}The transaction is not of accessKey={OTHER}"


@pytest.fixture
def made() -> GuardedBroker:
    broker = with_accounts(1, ACCOUNTS + MORE)
    broker.make_topic("Orders")
    return broker


def half_of(
    made: GuardedBroker, account: str, key: str = "K", *, topic: str = "Orders", **more: object
) -> MessageRecord:
    born_ms = made.clock.now_ms()
    options = sending(key, properties=more, topic=topic, born_timestamp=born_ms)
    return made.stored(made.send_as(account, **options))


def producing_as(made: GuardedBroker, account: str, port: int) -> LocalClient:
    """A producer of that account in the group, whose questions are kept."""
    client = made.new_client(port)
    beat = HeartbeatData(f"{account}@{port}", [ProducerData(GROUP)], []).encode()
    command = signed(RemotingCommand(Code.HEART_BEAT, body=beat), account)
    assert client.request(command).code == 0
    return client


def ended(made: GuardedBroker, account: str, of: object, outcome: int) -> str | None:
    answer = made.ask_as(account, end_command(of, outcome))  # type: ignore[arg-type]
    made.system.drain()
    return answer.remark if answer.code else None


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_a26_an_account_cannot_settle_a_transaction_of_another(
    made: GuardedBroker, outcome: int
) -> None:
    """The offset can be guessed from an own half message, the group is in committed ones."""
    sent = half_of(made, OWNER)
    assert ended(made, OTHER, sent, outcome) == REFUSED
    assert made.messages("Orders") == []
    assert ended(made, OWNER, sent, COMMIT) is None
    (message,) = made.messages("Orders")
    assert TROUPE_OWNER.encode() not in message.properties


@pytest.mark.parametrize("topic", ["Orders", "Elsewhere"])
def test_a26_a_half_message_replaces_none_of_another_account(
    made: GuardedBroker, topic: str
) -> None:
    """Formerly it settled the one with its id: the owner's commit was refused, the message lost."""
    made.make_topic("Elsewhere")
    owner = producing_as(made, OWNER, 7)
    sent = half_of(made, OWNER)
    forged = half_of(made, OTHER, topic=topic, TRANSACTION_CHECK_TIMES=1)
    assert ended(made, OTHER, forged, ROLLBACK) is None
    round_of_checks(made)
    (asked,) = questions(owner)
    assert (asked.properties[b"REAL_TOPIC"], asked.properties[b"UNIQ_KEY"]) == (b"Orders", b"K")
    half_of(made, OTHER, topic=topic)
    assert ended(made, OWNER, sent, COMMIT) is None
    (message,) = made.messages("Orders")
    assert message.prepared_transaction_offset == asked.header.commit_log_offset


def test_a26_a_half_message_takes_no_number_of_another(made: GuardedBroker) -> None:
    """Formerly the end of the other settled this one, and the other stayed open for ever."""
    made.make_topic("Elsewhere")
    sent = half_of(made, OWNER)
    number = sent.queue_offset
    forged = half_of(made, OTHER, "E", topic="Elsewhere", TRAN_PREPARED_QUEUE_OFFSET=number)
    assert ended(made, OWNER, sent, COMMIT) is None
    table = made.broker.store.transaction_table
    assert [each.physical_offset for each in table.pending(10)] == [forged.physical_offset]
    assert ended(made, OTHER, forged, ROLLBACK) is None and table.pending_count == 0


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("sys_flag", [8, 12], ids=["commit", "rollback"])
def test_a26_a_message_that_calls_itself_an_end_settles_nothing(
    made: GuardedBroker, sys_flag: int, delay: int
) -> None:
    """Formerly the commit of the half message at offset 0, which it names, sent no message."""
    made.make_topic("Elsewhere")
    sent = half_of(made, OWNER)
    assert sent.physical_offset == 0
    forged = f"KEYS\x01K\x02REAL_TOPIC\x01Orders\x02DELAY\x01{delay}"
    assert made.send_as(OTHER, topic="Elsewhere", sys_flag=sys_flag, properties=forged).code == 0
    made.system.drain()
    assert ended(made, OWNER, sent, COMMIT) is None
    assert len(made.messages("Orders")) == 1


@pytest.mark.parametrize("delay", [0, 1])
def test_a_committed_message_does_not_show_its_owner(made: GuardedBroker, delay: int) -> None:
    sent = half_of(made, OWNER, TROUPE_OWNER="mine", DELAY=delay)
    assert sent.properties.count(TROUPE_OWNER.encode()) == 1, "and no sender writes it"
    assert ended(made, OWNER, sent, COMMIT) is None
    made.system.advance(2000)
    (message,) = made.messages("Orders")
    assert TROUPE_OWNER.encode() not in message.properties


def test_a26_a_check_back_goes_to_the_owning_account_first(made: GuardedBroker) -> None:
    own, other = producing_as(made, OWNER, 7), producing_as(made, OTHER, 8)
    for number in range(4):
        half_of(made, OWNER, key=f"{number}")
    round_of_checks(made)
    asked = questions(own)
    assert len(asked) == 4 and questions(other) == []
    assert all(TROUPE_OWNER.encode() not in each.properties for each in asked)
    assert ended(made, OTHER, asked[0], ROLLBACK) == REFUSED


def test_another_account_of_the_group_may_settle_a_transaction_it_was_asked_about(
    made: GuardedBroker,
) -> None:
    """A producer reconnected with a new account; no producer of the old one is connected."""
    other = producing_as(made, OTHER, 8)
    half_of(made, OWNER)
    round_of_checks(made)
    (asked,) = questions(other)
    assert ended(made, OTHER, asked, COMMIT) == REFUSED, "over another connection"
    answer = other.request(signed(end_command(asked, COMMIT), OTHER, now_ms=made.clock.now_ms()))
    made.system.drain()
    assert answer.code == 0 and len(made.messages("Orders")) == 1


def test_administrators_and_allowlisted_addresses_may_settle_any_transaction(
    made: GuardedBroker,
) -> None:
    one, two = half_of(made, OWNER, key="1"), half_of(made, OWNER, key="2")
    assert ended(made, "administrator", one, COMMIT) is None
    answer = made.ask_as(None, end_command(two, COMMIT), host=WHITE_HOST)
    made.system.drain()
    assert answer.code == 0 and len(made.messages("Orders")) == 2
    assert TROUPE_OWNER.encode() in of_topic(made, HALF)[0].properties
