"""Pulls from a broker that fails: what is an error, what is a loss, what is tried again."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from protocol.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from protocol.frame import RemotingCommand, encode
from protocol.message import MessageRecord, encode_record
from spark.source.plan import QueueRange
from spark.source.row_filter import RowFilter
from spark.source.tasks import GROUP, NetworkReader
from storage.errors import StoreError
from tests.spark.store_writer import HOST_V4
from tests.troupemq.fake_server import FakeServer

PULL = RequestCode.PULL_MESSAGE
END = 100
PART = QueueRange("t", 0, 0, END, broker="b")


def record(queue_offset: int) -> bytes:
    made = MessageRecord(
        topic="t",
        body=b"%d" % queue_offset,
        properties=b"",
        queue_id=0,
        queue_offset=queue_offset,
        physical_offset=queue_offset * 1000,
        born_host=HOST_V4,
        store_host=HOST_V4,
    )
    return encode_record(made)


def answered(command: RemotingCommand, code: int, next_offset: int, body: bytes = b"") -> Any:
    fields = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(END),
    }
    return command.answer(code, fields, remark="as it is", body=body)


def found(command: RemotingCommand) -> Any:
    """A broker without faults."""
    assert command.fields is not None
    at, count = int(command.fields["queueOffset"]), int(command.fields["maxMsgNums"])
    end = min(END, at + count)
    return answered(command, 0, end, b"".join(map(record, range(at, end))))


@pytest.fixture
def broker() -> Iterator[FakeServer]:
    with FakeServer() as broker:
        broker.on(PULL, found)
        yield broker


def read(broker: FakeServer, *, loses: bool = False, part: QueueRange = PART) -> list[int]:
    reader = NetworkReader({"b": broker.address}, (), ("queueOffset",), RowFilter(), not loses)
    return [row["queueOffset"] for batch in reader.read([part]) for row in batch.to_pylist()]


def test_a_pull_neither_waits_nor_commits_and_obeys_the_brokers_limit(
    broker: FakeServer,
) -> None:
    assert read(broker) == list(range(END))
    asked = [broker.next(PULL).fields or {} for _ in range(4)]
    assert [each["queueOffset"] for each in asked] == ["0", "32", "64", "96"]
    assert [each["maxMsgNums"] for each in asked] == ["32", "32", "32", "4"]
    assert {each["sysFlag"] for each in asked} == {str(PULL_SUBSCRIPTION)}
    assert {(each["consumerGroup"], each["subscription"]) for each in asked} == {(GROUP, "*")}


def test_messages_outside_the_range_are_omitted(broker: FakeServer) -> None:
    def more(command: RemotingCommand) -> Any:
        return answered(command, 0, 12, b"".join(map(record, [8, 9, 9, 10, 11])))

    broker.on(PULL, more)
    assert read(broker, part=replace(PART, first=9, end=11)) == [9, 10]


@pytest.mark.parametrize(
    "code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY]
)
def test_messages_expired_since_planning_are_a_loss(broker: FakeServer, code: int) -> None:
    def moved(command: RemotingCommand) -> Any:
        at = int((command.fields or {})["queueOffset"])
        return answered(command, code, 40) if at < 40 else found(command)

    broker.on(PULL, moved)
    with pytest.raises(StoreError, match="message 0 in queue 0 of t at b is damaged or gone"):
        read(broker)
    assert read(broker, loses=True) == list(range(40, END))


@pytest.mark.parametrize("code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND])
def test_a_queue_that_became_shorter_is_a_loss(broker: FakeServer, code: int) -> None:
    def shorter(command: RemotingCommand) -> Any:
        at = int((command.fields or {})["queueOffset"])
        return answered(command, code, 32) if at >= 32 else found(command)

    broker.on(PULL, shorter)
    with pytest.raises(StoreError, match="message 32 in queue 0 of t at b is damaged or gone"):
        read(broker)
    assert read(broker, loses=True) == list(range(32))


def test_a_damaged_record_loses_the_rest_of_its_answer(broker: FakeServer) -> None:
    def damaged(command: RemotingCommand) -> Any:
        answer = found(command)
        if (command.fields or {})["queueOffset"] == "32":
            at = len(record(32)) * 10
            answer.body = answer.body[:at] + bytes(8) + answer.body[at + 8 :]
        return answer

    broker.on(PULL, damaged)
    with pytest.raises(StoreError, match="message 42 in queue 0 of t at b is damaged or gone"):
        read(broker)
    assert read(broker, loses=True) == [*range(42), *range(64, END)]


def test_a_refusal_is_reported_with_address_code_and_remark(broker: FakeServer) -> None:
    broker.on(PULL, lambda command: command.answer(16, remark="not for you"))
    with pytest.raises(StoreError, match=f"^{broker.address}: answered NO_PERMISSION: not for you"):
        read(broker, loses=True)
    broker.on(PULL, lambda command: command.answer(0, {}))
    with pytest.raises(StoreError, match=f"^{broker.address}: a pull's answer is wrong"):
        read(broker)


def test_a_connection_that_breaks_once_loses_nothing(broker: FakeServer) -> None:
    broken: list[str] = []

    def breaks_once(command: RemotingCommand) -> Any:
        at = (command.fields or {})["queueOffset"]
        if at == "64" and not broken:
            broken.append(at)
            broker.push(encode(found(command))[:-7])
            broker.cut()
            return None
        return found(command)

    broker.on(PULL, breaks_once)
    assert read(broker) == list(range(END))
    assert broken == ["64"]


def test_an_unreachable_broker_is_reported_with_its_address() -> None:
    with FakeServer() as gone:
        pass
    with pytest.raises(StoreError, match=f"^{gone.address}: .*refused"):
        read(gone, loses=True)
