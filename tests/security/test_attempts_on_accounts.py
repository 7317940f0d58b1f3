"""Attempts with a valid account that lacks the right: A21 to A26, A29, A30.

All of them go over connections, as frames of both forms. What the codes have in common is in the
tests of the holes (docs/security.md has both tables).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import HeartbeatData, ProducerData
from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, SerializeType
from protocol.codes import RequestCode as Code
from protocol.frame import ONEWAY_FLAG, RemotingCommand, encode
from protocol.headers.client import ConsumerSendMsgBackHeader, ViewMessageHeader
from protocol.headers.own import ReadRecordsHeader
from protocol.headers.send import SendMessageHeader
from protocol.headers.transaction import EndTransactionHeader
from protocol.message import HEAD_V4
from protocol.message_id import offset_message_id
from tests.support.brokers import send_command
from tests.support.forging import forged_record, next_body_at
from tests.support.guarded import ACCOUNTS, ACL_PATH, GuardedBroker, signed, with_accounts
from tests.support.sockets import PairedLine, paired_lines
from tests.support.told import Lines, floods, refused, times

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
DENIED, NEED_ADMIN = f"{PREFIX}No default permission for ", f"{PREFIX}Need admin permission for "
READER, NOTHING = "reader-account", "nothing-account"
BEAT = b'{"clientID":"c","consumerDataSet":[{"groupName":"shop","subscriptionDataSet":[]}]}'
QUESTION = {"consumerGroup": "shop", "clientId": "c", "jstackEnable": "false"}


class Attacked:
    """A broker with accounts, and lines into it from anywhere."""

    def __init__(self, stack: ExitStack) -> None:
        self.made = GuardedBroker(1)
        self.logs: Lines = []
        self._lines = stack.enter_context(paired_lines(self.made, 0))
        self._line = self.line("198.51.100.1")

    def line(self, host: str) -> PairedLine:
        self._lines.append(PairedLine(self.made, host))
        return self._lines[-1]

    def ask(self, account: str, command: RemotingCommand) -> RemotingCommand:
        """The answer to a JSON header; a binary one has the same."""
        answers = []
        for form in (SerializeType.JSON, SerializeType.ROCKETMQ):
            asked = replace(command, fields=dict(command.fields or {}), serialize_type=form)
            self._line.send(signed(asked, account))
            self.made.system.advance(10)
            answers += self._line.receive_now()
        first, second = answers
        assert (first.code, first.remark) == (second.code, second.remark)
        return first

    def refuses(self, account: str, command: RemotingCommand, why: str) -> None:
        """Assert a refusal with this text, and that no message is stored, even for a one-way
        request.
        """
        log = self.made.broker.store.commit_log
        before = log.end_offset
        answer = self.ask(account, command)
        assert (answer.code, answer.remark) == (1, why)
        one_way = replace(command, flag=ONEWAY_FLAG, fields=dict(command.fields or {}))
        self._line.send(signed(one_way, account))
        self.made.system.advance(1000)
        assert self._line.receive_now() == []
        assert log.end_offset == before

    def forge(
        self, topic: str, properties: bytes = b"", *, queue_offset: int = 0, beyond_bytes: int = 0
    ) -> int:
        """A record made up by an account that may use Orders, in the body of a message of its own;
        where in the log it lies."""
        made, at = self.made, next_body_at(self.made)
        body = forged_record(
            at, topic, properties, queue_offset=queue_offset, beyond_bytes=beyond_bytes
        )
        sent = made.ask_as("shop-account", send_command(body, topic="Orders"))
        assert made.stored(sent).physical_offset == at - HEAD_V4.size
        return at

    def refused(self) -> Counter[tuple[str, int]]:
        """Return the refusals in the log after a minute: account, code and count."""
        before = len(self.logs)
        self.made.system.advance(60_000)
        found = refused(self.logs)
        del self.logs[before:]  # type: ignore[attr-defined]
        return found

    def stored_offset(self, **options: str) -> int:
        """Return the offset of a message of the administrator."""
        answer = self.made.send(**options)  # type: ignore[arg-type]
        return self.made.stored(answer).physical_offset


@pytest.fixture
def attacked() -> Iterator[Attacked]:
    """Whatever is tried, it is one line a kind."""
    with ExitStack() as stack:
        made = Attacked(stack)
        with capture_logs() as made.logs:
            yield made
            assert floods(made.logs) == []


PATHS = (
    "/conf/../../other/file",
    "/other/file.yml",
    "/conf/other.yml",
    "/conf",
    "/conf/acl",
    "/conf/acl/link.yml",
    "plain_acl.yml",
    "/conf/plain_acl.yml\0.yml",
)


def test_a21_request_53_writes_no_other_file(attacked: Attacked) -> None:
    """The administrator himself is refused; a link counts as any file that is not read."""
    disk = attacked.made.disk
    disk.make_dirs("/other")
    others = ("/other/file", "/other/file.yml", "/conf/other.yml")
    for other in others:
        disk.open(other, create=True)
    before = disk.read_bytes(ACL_PATH)
    for path in PATHS:
        fields = {"globalWhiteAddrs": "*", "aclFileFullPath": path}
        asked = RemotingCommand(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields)
        answer = attacked.ask("administrator", asked)
        text = "The globalWhiteAddresses[*] has been updated failed."
        assert (answer.code, answer.remark) == (211, text), path
    assert [disk.read_bytes(each) for each in (*others, ACL_PATH)] == [b"", b"", b"", before]
    assert times(attacked.logs, "access control not changed") == [1]
    attacked.made.system.advance(60_000)
    assert times(attacked.logs, "access control not changed") == [1, 2 * len(PATHS) - 1]
    attacked.logs = []


@pytest.mark.parametrize("account", [READER, "broker-account"])
def test_a22_administration_needs_an_administrator(account: str, attacked: Attacked) -> None:
    before = attacked.made.disk.read_bytes(ACL_PATH)
    fields = {"accessKey": account, "secretKey": "secret-of-mine", "admin": "true"}
    fields |= {"globalWhiteAddrs": "*", "aclFileFullPath": "", "timestamp": "0", "isForce": "true"}
    fields |= {"topic": "Orders", "group": "readers", "consumerGroup": "readers", "clientId": "c"}
    for code in (50, 51, 53, 54, 222, 309):
        need = f"{NEED_ADMIN}request code={code}, but accessKey={account} is not"
        attacked.refuses(account, RemotingCommand(code, dict(fields)), need)
    attacked.made.system.advance(10_000)
    assert attacked.made.disk.read_bytes(ACL_PATH) == before
    assert attacked.refused() == dict.fromkeys(
        [(account, n) for n in (50, 51, 53, 54, 222, 309)], 3
    )


def as_code_10(command: RemotingCommand) -> RemotingCommand:
    """Return the request in its long form with code 10."""
    header = SendMessageHeader.of_command(command)
    return replace(command, code=Code.SEND_MESSAGE, fields=header.encode())


SENDS = {
    "320": (send_command(encode_batch([BatchMessage(b"a")]), topic="Orders", batch=True), "topic"),
    "310 m=true": (
        replace(
            send_command(encode_batch([BatchMessage(b"a")]), topic="Orders", batch=True),
            code=Code.SEND_MESSAGE_V2,
        ),
        "topic",
    ),
    "10 to a retry topic": (as_code_10(send_command(topic="%RETRY%shop")), "group"),
    "310 to a retry topic": (send_command(topic="%RETRY%shop", producer_group="own"), "group"),
}


def test_a23_no_code_bypasses_a_topics_permission(attacked: Attacked) -> None:
    for command, kind in SENDS.values():
        what = "topic:Orders" if kind == "topic" else "group:shop"
        for account in (NOTHING, READER):
            attacked.refuses(account, command, DENIED + what)
    counts = {320: 3, 310: 6, 10: 3}
    assert attacked.refused() == {
        (account, code): count for account in (NOTHING, READER) for code, count in counts.items()
    }


def test_a24_a_client_cannot_send_back_another_accounts_message_to_itself(
    attacked: Attacked,
) -> None:
    """Nor one that waits for its time, or for its transaction."""
    attacked.made.make_group("readers")
    for properties in ("", "DELAY\x013", "TRAN_MSG\x01true\x02PGROUP\x01p"):
        offset = attacked.stored_offset(topic="Topic", properties=properties)
        header = ConsumerSendMsgBackHeader(offset, "readers", 0)
        command = RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())
        attacked.refuses(READER, command, DENIED + "topic:Topic")
    topics = {record.topic for record in attacked.made.records()}
    assert not any("readers" in topic for topic in topics)
    assert attacked.refused() == {(READER, 36): 9}


FORGED = {
    "one's own topic": ("Orders", b""),
    "a delayed one": ("SCHEDULE_TOPIC_XXXX", b"REAL_TOPIC\x01Orders\x02REAL_QID\x010"),
    "a half one": ("RMQ_SYS_TRANS_HALF_TOPIC", b"REAL_TOPIC\x01Orders\x02REAL_QID\x010"),
}
forged_topics = pytest.mark.parametrize(("topic", "properties"), FORGED.values(), ids=FORGED)


@forged_topics
def test_a24_a_forged_record_gives_no_access_to_bytes_after_it_by_send_back(
    topic: str, properties: bytes, attacked: Attacked
) -> None:
    attacked.made.make_group("shop")
    attacked.stored_offset(topic="Orders")  # there is a unit with the number that it names
    at = attacked.forge(topic, properties, beyond_bytes=600)
    for _ in range(8):
        attacked.made.send(b"secret", topic="Payroll")
    command = RemotingCommand(
        Code.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackHeader(at, "shop", 0).encode()
    )
    attacked.refuses("shop-account", command, f"look message by offset failed, {at}")


@forged_topics
def test_a25_a_forged_record_gives_no_access_to_bytes_after_it_by_view(
    topic: str, properties: bytes, attacked: Attacked
) -> None:
    attacked.stored_offset(topic="Orders")
    at = attacked.forge(topic, properties, beyond_bytes=600)
    for _ in range(8):
        attacked.made.send(b"secret", topic="Payroll")
    command = RemotingCommand(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(at).encode())
    attacked.refuses("shop-account", command, f"can not find message by the offset, {at}")


def test_a25_a_forged_record_is_not_delivered_to_consumers(attacked: Attacked) -> None:
    """Not even an administrator's request delivers it."""
    consumer, asker, _ = consumer_and_question(attacked)
    at = attacked.forge("Orders", beyond_bytes=600)
    for _ in range(8):
        attacked.made.send(b"secret", topic="Payroll")
    fields = QUESTION | {"msgId": offset_message_id(bytes(8), at)}
    asked = RemotingCommand(Code.CONSUME_MESSAGE_DIRECTLY, fields)
    asker.send(signed(asked, "administrator"))
    attacked.made.system.advance(10)
    (answer,) = asker.receive_now()
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {at}")
    assert consumer.receive_now() == []


def test_a25_a_message_of_another_account_cannot_be_viewed_by_id(attacked: Attacked) -> None:
    for properties in ("", "DELAY\x013", "TRAN_MSG\x01true\x02PGROUP\x01p"):
        offset = attacked.stored_offset(topic="Topic", properties=properties)
        command = RemotingCommand(Code.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).encode())
        attacked.refuses(READER, command, DENIED + "topic:Topic")
        assert attacked.ask("shop-account", command).code == 0
    assert attacked.refused() == {(READER, 33): 9}


def test_a25_a_pull_contains_no_bytes_between_own_messages(attacked: Attacked) -> None:
    """Short foreign records lie between, singly or on average."""
    made = attacked.made
    secrets = ("", "DELAY\x013", "TRAN_MSG\x01true\x02PGROUP\x01p")
    for number in range(30):
        made.send(b"own", topic="Orders")
        if number < len(secrets):
            made.send(b"secret", topic="Topic", properties=secrets[number])
    made.send(b"secret" * 700, topic="Topic")
    made.send(b"own", topic="Orders")
    made.system.drain()
    header = ReadRecordsHeader("Orders", 0, 0, 100)
    bodies = {}
    for account in (READER, "shop-account", "administrator"):
        asked = RemotingCommand(Code.READ_RECORDS, header.encode())
        bodies[account] = bytes(attacked.ask(account, asked).body or b"")
    assert b"secret" not in bodies[READER] and bodies[READER].count(b"own") == 31
    assert bodies["shop-account"] == bodies[READER], "each topic by itself"
    assert b"secret" in bodies["administrator"], "who may see it is answered as fast as can be"


@pytest.mark.parametrize("end", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_a26_a_transaction_of_another_account_cannot_be_settled(
    end: int, attacked: Attacked
) -> None:
    made = attacked.made
    properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u"
    half = made.stored(made.send_as("shop-account", topic="Topic", properties=properties))

    def ended(group: str) -> RemotingCommand:
        header = EndTransactionHeader(group, half.queue_offset, half.physical_offset, end)
        return RemotingCommand(Code.END_TRANSACTION, header.encode())

    attacked.refuses(READER, ended("p"), DENIED + "topic:Topic")
    attacked.refuses(READER, ended("readers"), "The producer group wrong")
    asked = ended("p")
    count = len(made.records())
    assert made.ask_as("shop-account", asked).code == 0, "it was still open"
    assert len(made.records()) > count
    assert attacked.refused() == {(READER, 37): 3}


@pytest.mark.parametrize("end", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
def test_a26_a_forged_record_settles_no_other_transaction(end: int, attacked: Attacked) -> None:
    """One that names the other's number among the half messages."""
    made = attacked.made
    properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u"
    half = made.stored(made.send(b"transfer", topic="Payroll", properties=properties))
    own = b"TRAN_MSG\x01true\x02PGROUP\x01me\x02REAL_TOPIC\x01Orders\x02REAL_QID\x010"
    at = attacked.forge("RMQ_SYS_TRANS_HALF_TOPIC", own, queue_offset=half.queue_offset)
    header = EndTransactionHeader("me", half.queue_offset, at, end)
    forged = RemotingCommand(Code.END_TRANSACTION, header.encode())
    attacked.refuses("shop-account", forged, "Find prepared transaction message failed")
    offsets = half.queue_offset, half.physical_offset
    header = EndTransactionHeader("p", *offsets, TRANSACTION_COMMIT)
    assert made.ask(RemotingCommand(Code.END_TRANSACTION, header.encode())).code == 0
    assert [message.body for message in made.messages("Payroll")] == [b"transfer"]


def consumer_and_question(attacked: Attacked) -> tuple[PairedLine, PairedLine, RemotingCommand]:
    """The line of a consumer, that of who asks about it, and what it is asked."""
    consumer, asker = attacked.line("192.0.2.20"), attacked.line("192.0.2.22")
    beat = RemotingCommand(Code.HEART_BEAT, body=BEAT, version=407)
    consumer.send(signed(beat, "shop-account"))
    assert [each.code for each in consumer.receive_now() if each.is_response] == [0]
    question = RemotingCommand(Code.GET_CONSUMER_RUNNING_INFO, dict(QUESTION))
    asker.send(signed(question, "administrator"))
    (passed_on,) = [each for each in consumer.receive_now() if not each.is_response]
    return consumer, asker, passed_on


def test_a29_an_answer_counts_only_from_the_called_client(attacked: Attacked) -> None:
    """Others send one with the same number, and with all numbers about it."""
    consumer, asker, passed_on = consumer_and_question(attacked)
    forger = attacked.line("192.0.2.21")
    for opaque in range(passed_on.opaque - 50, passed_on.opaque + 50):
        forger.send_bytes(_answer(passed_on, opaque, b"forged"))
    attacked.made.system.advance(10)
    assert asker.receive_now() == [] and not forger.is_closed()
    consumer.send_bytes(_answer(passed_on, passed_on.opaque, b"its own"))
    assert [each.body for each in asker.receive_now()] == [b"its own"]


def _answer(asked: RemotingCommand, opaque: int, body: bytes) -> bytes:
    return encode(replace(asked.answer(body=body), opaque=opaque))


@pytest.mark.parametrize("code", [Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY])
def test_a30_a_consumer_does_not_see_the_requesting_account(code: Code, attacked: Attacked) -> None:
    made = attacked.made
    consumer, asker, _ = consumer_and_question(attacked)
    message_id = (made.send(topic="Orders").fields or {})["msgId"]
    fields = QUESTION | {"msgId": message_id, "topic": "Orders", "brokerName": "broker-a"}
    asked = signed(RemotingCommand(code, dict(fields)), "administrator")
    asker.send(asked)
    made.system.advance(10)
    (passed_on,) = [each for each in consumer.receive_now() if each.code == code]
    shown = " ".join([*(passed_on.fields or {}), *(passed_on.fields or {}).values()])
    for secret in ("AccessKey", "Signature", "SecurityToken", "Timestamp", "Seal", "administrator"):
        assert secret not in shown
    assert (asked.fields or {})["Signature"] not in shown


# --- A28: replies to others' questions


def test_a28_an_account_without_permission_cannot_reply() -> None:
    listed = "topicPerms: [Orders=SUB, DefaultCluster_REPLY_TOPIC=DENY]"
    made = with_accounts(1, ACCOUNTS.replace("topicPerms: [Orders=SUB]", listed))
    properties = "CORRELATION_ID\x01guessed\x02REPLY_TO_CLIENT\x01victim\x02"
    command = send_command(b"r", topic="DefaultCluster_REPLY_TOPIC", properties=properties)
    reply = replace(command, code=Code.SEND_REPLY_MESSAGE_V2)
    asks = HeartbeatData("victim", producer_data_set=[ProducerData("askers")]).encode()
    with paired_lines(made, 0) as lines:
        lines += (victim := PairedLine(made, "198.51.100.7")), PairedLine(made, "198.51.100.8")
        victim.send(signed(RemotingCommand(Code.HEART_BEAT, body=asks), "shop-account"))
        assert [each.code for each in victim.receive_now()] == [0]
        lines[1].send(signed(reply, READER))
        assert [each.code for each in lines[1].receive_now()] == [1]
        assert victim.receive_now() == []
        lines[1].send(signed(reply, "shop-account"))
        assert [each.body for each in victim.receive_now()] == [b"r"], "it gets other replies"
