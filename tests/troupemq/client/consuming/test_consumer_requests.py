"""Requests of a broker to a push consumer: offset resets, its state, direct consumption."""

import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from logging import WARNING
from queue import SimpleQueue
from threading import Event, current_thread
from time import monotonic
from typing import Any, ClassVar

import pytest

from protocol.bodies import MessageQueue as QueueKey
from protocol.bodies_client import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    QueueOffset,
    ResetOffsetBody,
    ResetOffsetList,
)
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.message import MessageRecord, encode_record
from protocol.properties import format
from tests.troupemq.client.consuming.test_consumer import QUICK, Seen, fill
from tests.troupemq.client.consuming.test_nothing_comes import logged
from tests.troupemq.client.consuming.test_orderly_consumer import LockingBroker
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer
from troupemq.client.connection import client
from troupemq.client.connection.calls import Blocking, Flow
from troupemq.client.consuming import consumer_requests, group_work
from troupemq.client.consuming import running_info as running_info_module
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.listener import ConsumeResult, Listener, Result
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.settings import ConsumerSettings

OPAQUE = 4711
ONE_THREAD = replace(QUICK, consume_threads=1)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield LockingBroker(namesrv, server)  # or an orderly consumer would wait for its answers


def consumer(
    broker: FakeBroker,
    listener: Listener,
    *,
    orderly: bool = False,
    settings: ConsumerSettings = QUICK,
) -> PushConsumer:
    made = PushConsumer("g", listener, broker.namesrv.address, settings=settings, orderly=orderly)
    made.subscribe(TOPIC)
    return made


def ask(broker: FakeBroker, code: RequestCode, fields: dict[str, str], body: bytes = b"") -> None:
    broker.server.push(RemotingCommand(code, fields, body or None, opaque=OPAQUE))


def answered(broker: FakeBroker) -> RemotingCommand:
    deadline_s = monotonic() + WAIT_S
    while monotonic() < deadline_s:
        command = broker.server.received.get(timeout=WAIT_S)
        if command.is_response and command.opaque == OPAQUE:
            return command
    raise AssertionError("no answer came")


def reset(broker: FakeBroker, body: bytes, group: str = "g", topic: str = TOPIC) -> None:
    fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
    command = RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
    command.flag |= ONEWAY_FLAG
    broker.server.push(command)


def as_table(offset: int) -> bytes:
    return ResetOffsetBody({QueueKey(TOPIC, "b", 0): offset}).encode()


def as_list(offset: int) -> bytes:
    return ResetOffsetList([QueueOffset(TOPIC, "b", 0, offset)]).encode()


@pytest.mark.parametrize("form", [as_table, as_list])
def test_a_reset_moves_the_consumer_and_is_committed(broker: FakeBroker, form: object) -> None:
    assert callable(form)
    bodies, seen = fill(broker, 20), Seen()
    with consumer(broker, seen) as member:
        assert seen.take(20) == bodies
        broker.wait_committed("g", 0, 10)
        reset(broker, form(7))
        assert seen.take(3) == [bodies[14], bodies[16], bodies[18]]
        broker.wait_committed("g", 0, 10)
        assert member.queues()[MessageQueue(TOPIC, "b", 1)] == 10
    assert seen.bodies.empty()


@pytest.mark.parametrize("form", [as_table, as_list])
def test_a_long_reset_is_not_read_where_answers_arrive(
    broker: FakeBroker, form: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 10 MiB held the answers of all brokers up for 4 s."""
    threads, usual = SimpleQueue[str](), consumer_requests.requested_offsets

    def read(command: RemotingCommand, group: str) -> list[tuple[MessageQueue, int]]:
        threads.put(current_thread().name)
        return usual(command, group)

    monkeypatch.setattr(consumer_requests, "requested_offsets", read)
    assert callable(form)
    bodies, seen = fill(broker, 20), Seen()
    with consumer(broker, seen):
        assert seen.take(20) == bodies
        reset(broker, form(9))
        assert seen.take(1) == [bodies[18]]
        assert threads.get(timeout=WAIT_S) == "troupemq-io"
        reset(broker, form(7) + b" " * group_work.RESET_BYTES_HERE_MAX)
        assert seen.take(3) == [bodies[14], bodies[16], bodies[18]]
        assert threads.get(timeout=WAIT_S) != "troupemq-io"


def test_long_resets_are_limited(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_work, "LONG_RESETS_BYTES_MAX", 0)
    bodies, seen = fill(broker, 4), Seen()
    with caplog.at_level(WARNING), consumer(broker, seen):
        assert seen.take(4) == bodies
        reset(broker, as_table(0) + b" " * group_work.RESET_BYTES_HERE_MAX)
        broker.add(0, b"next")
        assert seen.take(1) == [b"next"]
    assert any("offset reset rejected" in each.getMessage() for each in caplog.records)


def test_resets_of_a_queue_that_wait_are_one(broker: FakeBroker) -> None:
    """Each request and each of its entries led to a commit of its own."""
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen) as made:
        assert seen.take(4) == bodies
        turn, over = Event(), Event()

        def hold() -> Flow[None]:
            yield Blocking(turn.wait)

        made._core.flows.post(hold)
        for offset in (2, 2, 1, 0):
            reset(broker, as_list(offset))
        broker.add(0, b"behind")
        assert seen.take(1) == [b"behind"]
        assert [*made._resets.values()] == [0]
        made._core.flows.post(lambda: done(over))
        turn.set()
        assert over.wait(WAIT_S)
        assert not made._resets


def done(over: Event) -> Flow[None]:
    yield Blocking(over.set)


def test_the_last_of_two_resets_wins_where_both_wait_for_a_listener(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tried again by itself, and the first one could come last."""
    monkeypatch.setattr(group_work, "RESET_AGAIN_MS", 5)
    fill(broker, 20)
    begun, may_end, after = Event(), Event(), SimpleQueue[int]()

    def listen(views: Sequence[MessageView]) -> None:
        if views[0].queue.queue_id == 0 and not begun.is_set():
            begun.set()
            assert may_end.wait(WAIT_S)
        elif views[0].queue.queue_id == 0:
            after.put(views[0].queue_offset)

    made = consumer(broker, listen, orderly=True, settings=replace(QUICK, drop_wait_ms=5))
    with made, logged() as lines:
        assert begun.wait(WAIT_S)
        reset(broker, as_table(2))
        assert "offset=2" in lines.wait_for("WARNING offset reset postponed")
        reset(broker, as_table(7))
        while "offset=2" in lines.wait_for("WARNING offset reset postponed"):
            pass
        assert list(made._resets.values()) == [7]
        may_end.set()
        assert [after.get(timeout=WAIT_S) for _ in range(3)] == [7, 8, 9]
    assert after.empty()


def test_a_reset_that_a_listener_outlasts_is_reported(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line said that it was postponed."""
    monkeypatch.setattr(group_work, "RESET_AGAIN_MS", 1)
    fill(broker, 2)
    begun, may_end = Event(), Event()

    def listen(views: Sequence[MessageView]) -> None:
        begun.set()
        assert may_end.wait(WAIT_S)

    made = consumer(broker, listen, orderly=True, settings=replace(QUICK, drop_wait_ms=1))
    with made, logged() as lines:
        assert begun.wait(WAIT_S)
        reset(broker, as_table(0))
        assert "repeat the reset" in lines.wait_for("WARNING offset reset failed")
        may_end.set()


def test_a_reset_is_committed_at_once(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 4), Seen()
    settings = replace(QUICK, commit_interval_ms=3_600_000)
    made = PushConsumer("g", seen, broker.namesrv.address, settings=settings)
    made.subscribe(TOPIC)
    broker.committed["g", 0] = 1
    with made:
        assert seen.take(3) == bodies[1:]
        reset(broker, as_table(0))
        broker.wait_committed("g", 0, 0)
        assert seen.take(2) == bodies[0::2]


def test_a_reset_forward_skips_buffered_messages(broker: FakeBroker) -> None:
    fill(broker, 20)
    begun, may_end, after = Event(), Event(), SimpleQueue[int]()

    def listen(views: Sequence[MessageView]) -> None:
        if not begun.is_set():
            begun.set()
            assert may_end.wait(WAIT_S)
            return
        for view in views:
            if view.queue.queue_id == 0:
                after.put(view.queue_offset)

    made = PushConsumer("g", listen, broker.namesrv.address, settings=ONE_THREAD)
    made.subscribe(TOPIC)
    with made:
        assert begun.wait(WAIT_S)
        reset(broker, as_table(9))
        may_end.set()
        broker.wait_committed("g", 0, 10)
        broker.wait_committed("g", 1, 10)
    offsets = []
    while not after.empty():
        offsets.append(after.get())
    assert offsets[-1] == 9


@pytest.mark.parametrize("group, topic", [("other", TOPIC), ("g", "Other")])
def test_a_reset_of_another_group_changes_nothing(
    broker: FakeBroker, group: str, topic: str
) -> None:
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        reset(broker, as_table(0), group, topic)
        reset(broker, b"{")  # nor one that makes no sense
        broker.add(0, b"next")
        assert seen.take(1) == [b"next"]
    assert seen.bodies.empty()


def test_a_consumer_reports_its_offsets(broker: FakeBroker) -> None:
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        broker.wait_committed("g", 1, 2)
        broker.wait_committed("g", 0, 2)
        fields = {"topic": TOPIC, "group": "g"}
        ask(broker, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
        found = ConsumerStatusBody.decode(answered(broker).body)
    assert found.message_queue_table == {QueueKey(TOPIC, "b", 0): 2, QueueKey(TOPIC, "b", 1): 2}


@pytest.mark.parametrize("stacks", [False, True])
def test_a_consumer_reports_its_running_info(broker: FakeBroker, stacks: bool) -> None:
    bodies, seen = fill(broker, 4), Seen()
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        broker.wait_committed("g", 0, 2)
        fields = {"consumerGroup": "g", "clientId": "c", "jstackEnable": str(stacks).lower()}
        ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        info = ConsumerRunningInfo.decode(answered(broker).body)
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
    assert {each.topic for each in info.subscription_set} == {TOPIC, "%RETRY%g"}
    queue = info.mq_table[QueueKey(TOPIC, "b", 0)]
    assert (queue.commit_offset, queue.cached_msg_count, queue.droped) == (2, 0, False)
    assert info.status_table.keys() == {TOPIC, "%RETRY%g"}
    assert (info.jstack is not None and "troupemq-pull" in info.jstack) is stacks


def running_info(broker: FakeBroker) -> RemotingCommand:
    fields = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "true"}
    ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    return answered(broker)


def test_a_request_that_fails_is_answered_and_ends_no_connection(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of all connections ended with it, and the consumer with the thread."""

    def broken() -> str:
        raise SystemError("unexpected internal exception")

    bodies, seen = fill(broker, 1), Seen()
    with consumer(broker, seen):
        assert seen.take(1) == bodies
        with monkeypatch.context() as patched:
            patched.setattr(running_info_module, "stacks_text", broken)
            answer = running_info(broker)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "SystemError: unexpected internal exception"
        assert running_info(broker).code == ResponseCode.SUCCESS


def test_stack_that_cannot_be_read_whole_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyPy raises SystemError for a frame that another thread is changing."""

    class Frame:
        f_lineno, f_code = 7, broken_frame.__code__
        f_globals: ClassVar[dict[str, Any]] = {}
        f_back = property(broken_frame)

    frames = {thread.ident: Frame() for thread in threading.enumerate()}
    monkeypatch.setattr(sys, "_current_frames", lambda: frames)
    assert "broken_frame(" in running_info_module.stacks_text()


class TextlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def broken_frame(_: object) -> None:
    raise SystemError("unexpected internal exception")


@pytest.mark.parametrize(
    "result, code, remark",
    [
        (None, "CR_SUCCESS", None),
        (ConsumeResult.RETRY_LATER, "CR_LATER", None),
        (ValueError("not today"), "CR_THROW_EXCEPTION", "ValueError: not today"),
        (TextlessError(), "CR_THROW_EXCEPTION", "TextlessError"),
    ],
)
@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_consumes_one_message_on_request(
    broker: FakeBroker,
    result: Result | Exception,
    code: str,
    remark: str | None,
    orderly: bool,
) -> None:
    fill(broker, 0)
    got: SimpleQueue[MessageView] = SimpleQueue()

    def listen(views: Sequence[MessageView]) -> Result:
        got.put(views[0])
        if isinstance(result, Exception):
            raise result
        return result

    with consumer(broker, listen, orderly=orderly):
        broker.server.next(RequestCode.HEART_BEAT)
        record = MessageRecord("%RETRY%g", b"body", format({"RETRY_TOPIC": TOPIC}), queue_id=3)
        fields = {"consumerGroup": "g", "clientId": "c", "brokerName": "b", "msgId": "m"}
        ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, encode_record(record))
        found = ConsumeMessageDirectlyResult.decode(answered(broker).body)
    assert (found.consume_result, found.remark, found.order) == (code, remark, orderly)
    view = got.get(timeout=WAIT_S)
    assert (view.topic, view.body, view.queue.broker_name) == (TOPIC, b"body", "b")


@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
)
def test_a_request_for_another_group_is_refused(broker: FakeBroker, code: RequestCode) -> None:
    with consumer(broker, Seen()):
        broker.server.next(RequestCode.HEART_BEAT)
        fields = {"consumerGroup": "x", "clientId": "c"}
        ask(broker, code, fields, encode_record(MessageRecord("T", b"")))
        answer = answered(broker)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "The Consumer Group <x> not exist in this consumer"


@pytest.mark.parametrize(
    "code", [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
)
def test_an_invalid_request_is_answered_with_an_error(
    broker: FakeBroker, code: RequestCode
) -> None:
    with consumer(broker, Seen()):
        broker.server.next(RequestCode.HEART_BEAT)
        ask(broker, code, {})
        assert answered(broker).code == ResponseCode.SYSTEM_ERROR


def test_messages_consumed_directly_are_limited(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_requests, "DIRECT_MAX", 0)
    with consumer(broker, Seen()):
        broker.server.next(RequestCode.HEART_BEAT)
        fields = {"consumerGroup": "g", "clientId": "c"}
        record = encode_record(MessageRecord(TOPIC, b""))
        ask(broker, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record)
        assert answered(broker).code == ResponseCode.SYSTEM_BUSY


def test_reports_of_a_second_are_limited(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests for the running info, 20,000 in a row, held other answers up for 20 s."""
    monkeypatch.setattr(client, "monotonic", lambda: 7.5)
    bodies, seen = fill(broker, 4), Seen()
    fields = {"consumerGroup": "g", "clientId": "x"}
    with consumer(broker, seen):
        assert seen.take(4) == bodies
        for _ in range(client.REPORTS_OF_SECOND_MAX + 3):
            ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        codes = [answered(broker).code for _ in range(client.REPORTS_OF_SECOND_MAX + 3)]
        assert codes == [0] * client.REPORTS_OF_SECOND_MAX + [ResponseCode.SYSTEM_BUSY] * 3
        monkeypatch.setattr(client, "monotonic", lambda: 8.0)
        ask(broker, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert answered(broker).code == 0
