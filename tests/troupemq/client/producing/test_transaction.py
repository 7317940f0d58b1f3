"""Half messages, what becomes of them, and what brokers ask about them."""

from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageHeader
from protocol.headers.transaction import CheckTransactionStateHeader, EndTransactionHeader
from protocol.host import pack_host
from protocol.message import MessageRecord, encode_record
from protocol.properties import format, parse
from tests.troupemq.client.cluster import MESSAGE, SEND, Cluster, refuse, stored
from tests.troupemq.fake_server import WAIT_S
from troupemq.client.errors import BadAnswer, BrokerError, MessageIllegal
from troupemq.client.message import Message, MessageQueue, MessageView, SendStatus
from troupemq.client.producing import transaction
from troupemq.client.producing.transaction import Check, TransactionProducer, TransactionState

END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
UNKNOWN = TransactionState.UNKNOWN
QUEUE = MessageQueue("T", "a", 0)
HALF_ID = "7F00000100002A9F0000000000001267"
HALF_AT = 4711


def half_stored(command: RemotingCommand) -> RemotingCommand:
    answer = stored(command)
    assert answer.fields is not None
    return replace(answer, fields={**answer.fields, "msgId": HALF_ID})


def never(_: MessageView) -> TransactionState:
    raise AssertionError("there was no check-back")


def member(cluster: Cluster, check: Check = never) -> TransactionProducer:
    cluster.a.on(SEND, half_stored)
    cluster.a.succeed(END)
    return TransactionProducer("pg", check, cluster.namesrv.address)


def end_of(cluster: Cluster) -> tuple[RemotingCommand, EndTransactionHeader]:
    command = cluster.a.next(END)
    return command, EndTransactionHeader.decode(command.fields)


@pytest.mark.parametrize("state, verdict", [(COMMIT, 8), (ROLLBACK, 12), (UNKNOWN, 0), (None, 0)])
def test_the_state_of_the_local_transaction_is_sent_to_the_broker(
    cluster: Cluster, state: TransactionState | None, verdict: int
) -> None:
    seen: list[tuple[Message, str]] = []

    def execute(message: Message, transaction_id: str) -> TransactionState | None:
        seen.append((message, transaction_id))
        return state

    with member(cluster) as producer:
        result = producer.send_in_transaction(MESSAGE, execute, queue=QUEUE)
        half = SendMessageHeader.of_command(cluster.a.next(SEND))
        command, header = end_of(cluster)
    assert seen == [(MESSAGE, result.transaction_id)]
    properties = parse((half.properties or "").encode())
    assert half.sys_flag == 4
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "pg")
    assert properties["UNIQ_KEY"] == result.transaction_id
    assert (header.producer_group, header.broker_name) == ("pg", "a")
    assert (header.tran_state_table_offset, header.commit_log_offset) == (42, HALF_AT)
    assert (header.commit_or_rollback, header.msg_id) == (verdict, result.transaction_id)
    assert header.from_transaction_check is False
    assert (result.state, result.told) == (state or UNKNOWN, bool(verdict))
    assert command.is_oneway is not bool(verdict)  # 4.9.7 does not answer an unknown


def test_an_exception_leaves_the_state_unknown(cluster: Cluster) -> None:
    def execute(message: Message, transaction_id: str) -> TransactionState:
        raise KeyError("half way")

    with member(cluster) as producer:
        result = producer.send_in_transaction(MESSAGE, execute, queue=QUEUE)
        command, header = end_of(cluster)
    assert (result.state, result.told, type(result.error)) == (UNKNOWN, False, KeyError)
    assert header.commit_or_rollback == 0
    assert command.remark == "executeLocalTransactionBranch exception: KeyError('half way')"


def no_part(message: Message, transaction_id: str) -> TransactionState:
    raise AssertionError("the application must not do its part")


def test_a_half_message_of_weaker_durability_is_rolled_back(cluster: Cluster) -> None:
    with member(cluster) as producer:
        code = ResponseCode.FLUSH_DISK_TIMEOUT
        cluster.a.on(SEND, lambda command: replace(half_stored(command), code=code))
        result = producer.send_in_transaction(MESSAGE, no_part, queue=QUEUE)
        _, header = end_of(cluster)
    assert (result.state, result.half.status) == (ROLLBACK, SendStatus.FLUSH_DISK_TIMEOUT)
    assert (header.commit_or_rollback, result.error) == (12, None)


def test_without_a_half_message_the_local_transaction_does_not_run(cluster: Cluster) -> None:
    with member(cluster) as producer:
        cluster.a.on(SEND, refuse(ResponseCode.NO_PERMISSION))
        with pytest.raises(BrokerError):
            producer.send_in_transaction(MESSAGE, no_part, queue=QUEUE)
        with pytest.raises(MessageIllegal, match="delayed"):
            producer.send_in_transaction(Message("T", b"x", delay_level=1), no_part)


def test_a_half_message_without_a_valid_id_is_a_bad_answer(cluster: Cluster) -> None:
    """`execute` had been called by then, though the error says that the send has failed."""
    executed: list[str] = []
    with member(cluster) as producer:
        cluster.a.on(SEND, stored)
        with pytest.raises(BadAnswer, match="without a valid id"):
            producer.send_in_transaction(MESSAGE, lambda _, it: executed.append(it), queue=QUEUE)
    assert not executed


def test_an_unconfirmed_end_is_left_to_the_check_back(cluster: Cluster) -> None:
    with member(cluster) as producer:
        cluster.a.on(END, refuse(ResponseCode.SYSTEM_ERROR))
        result = producer.send_in_transaction(MESSAGE, lambda m, i: COMMIT, queue=QUEUE)
    assert (result.state, result.told) == (COMMIT, False)


def test_the_first_check_back_can_be_delayed(cluster: Cluster) -> None:
    with member(cluster) as producer:
        producer.send_in_transaction(MESSAGE, lambda m, i: COMMIT, queue=QUEUE, check_after_s=60)
        half = SendMessageHeader.of_command(cluster.a.next(SEND))
    assert parse((half.properties or "").encode())["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "60"


def question(group: str = "pg") -> RemotingCommand:
    host = pack_host("127.0.0.1", 10911)
    text = format({"UNIQ_KEY": "ID", "PGROUP": group, "TRAN_MSG": "true", "KEYS": "k"})
    record = MessageRecord("T", b"half", text, 1, 7, 99, born_host=host, store_host=host)
    header = CheckTransactionStateHeader(5, HALF_AT, "ID", "ID", HALF_ID)
    return RemotingCommand(
        RequestCode.CHECK_TRANSACTION_STATE, header.encode(), encode_record(record), flag=2
    )


def raising(_: MessageView) -> TransactionState:
    raise KeyError("lost")


@pytest.mark.parametrize(
    "check, verdict, remark",
    [
        (lambda view: COMMIT, 8, None),
        (lambda view: ROLLBACK, 12, None),
        (lambda view: None, 0, None),
        (raising, 0, "checkLocalTransactionState Exception: KeyError('lost')"),
    ],
)
def test_a_check_back_is_answered(
    cluster: Cluster, check: Callable[[MessageView], Any], verdict: int, remark: str | None
) -> None:
    seen: SimpleQueue[MessageView] = SimpleQueue()

    def remember(view: MessageView) -> Any:
        seen.put(view)
        return check(view)

    with member(cluster, remember) as producer:
        producer.send(MESSAGE, queue=QUEUE)
        cluster.a.push(question())
        command, header = end_of(cluster)
        view = seen.get(timeout=WAIT_S)
    assert (view.topic, view.body, view.message_id, view.keys) == ("T", b"half", "ID", ("k",))
    assert view.queue == MessageQueue("T", "a", 1)
    assert (header.commit_or_rollback, header.from_transaction_check) == (verdict, True)
    assert (header.tran_state_table_offset, header.commit_log_offset) == (5, HALF_AT)
    assert (header.msg_id, header.transaction_id) == ("ID", "ID")
    assert (command.is_oneway, command.remark) == (True, remark)


def test_invalid_check_backs_are_ignored(cluster: Cluster) -> None:
    seen: list[str | None] = []

    def check(view: MessageView) -> TransactionState:
        seen.append(view.properties.get("PGROUP"))
        return COMMIT

    with member(cluster, check) as producer:
        producer.send(MESSAGE, queue=QUEUE)
        for broken in (
            question("others"),
            replace(question(), body=b"no record"),
            replace(question(), body=None),
            replace(question(), fields={}),
        ):
            cluster.a.push(broken)
        cluster.a.push(question())
        _, header = end_of(cluster)
    assert (header.commit_or_rollback, seen) == (8, ["pg"])


def test_check_backs_over_their_limit_of_bytes_are_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 of 16 MiB each were held in memory."""
    monkeypatch.setattr(transaction, "CHECKS_BYTES_MAX", 1000)
    seen: list[bytes] = []

    def check(view: MessageView) -> TransactionState:
        seen.append(view.body)
        return COMMIT

    with member(cluster, check) as producer:
        producer.send(MESSAGE, queue=QUEUE)
        record = MessageRecord("T", bytes(1000), format({"PGROUP": "pg"}))
        large = replace(question(), body=encode_record(record))
        for asked in (large, question(), question()):
            cluster.a.push(asked)
        end_of(cluster)
        end_of(cluster)
    assert seen == [b"half"] * 2
    assert producer._open_bytes == 0
