"""Our consumer and our broker: a failed message comes again, and is dead in the end."""

from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue

import pytest

from protocol.codes import RequestCode
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.message import decode_records, encode_record
from tests.troupemq.fake_broker import TOPIC, FakeBroker
from tests.troupemq.fake_server import FakeServer
from troupemq import Message, Producer
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import ConsumeResult, RetryLater
from troupemq.client.message import MessageView
from troupemq.client.settings import ConsumerSettings

WAIT_S = 40.0
QUICK = ConsumerSettings(
    consume_threads=1,
    commit_interval_ms=50,
    rebalance_interval_ms=200,
    max_reconsume_times=2,
)


def test_a_failed_message_is_retried_until_it_is_a_dead_letter(namesrv: str) -> None:
    tries: SimpleQueue[MessageView] = SimpleQueue()

    def fails(views: Sequence[MessageView]) -> ConsumeResult:
        for view in views:
            tries.put(view)
            if view.reconsume_times:
                raise OSError(f"try {view.reconsume_times}: no route")
        return ConsumeResult.RETRY_LATER

    with Producer("producers", namesrv=namesrv) as producer:
        producer.send(Message("Topic", b"body"))
    consumer = PushConsumer(
        "g", fails, namesrv=namesrv, settings=QUICK, begin=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe("Topic")
    consumer.start()
    dead: SimpleQueue[MessageView] = SimpleQueue()

    def buries(views: Sequence[MessageView]) -> None:
        for view in views:
            dead.put(view)

    undertaker = PushConsumer(
        "undertakers",
        buries,
        namesrv=namesrv,
        settings=QUICK,
        begin=ConsumeFrom.FIRST_OFFSET,
    )
    undertaker.subscribe("%DLQ%g")
    undertaker.start()
    try:
        views = [tries.get(timeout=WAIT_S) for _ in range(3)]
        last = dead.get(timeout=WAIT_S)
    finally:
        consumer.stop()
        undertaker.stop()
    assert [view.reconsume_times for view in (*views, last)] == [0, 1, 2, 3]
    assert [view.failure for view in (*views, last)] == [
        None,
        "the listener asked for a retry",
        "OSError: try 1: no route",
        "OSError: try 2: no route",
    ]
    assert {view.topic for view in views} == {"Topic"}
    assert {view.body for view in (*views, last)} == {b"body"}


def test_a_delay_in_seconds_goes_with_the_next_longer_level() -> None:
    with FakeServer() as namesrv, FakeServer() as server:
        broker = FakeBroker(namesrv, server)
        broker.add(0, b"a")

        def later(views: Sequence[MessageView]) -> RetryLater:
            return RetryLater(seconds=90)

        consumer = PushConsumer("g", later, namesrv.address, begin=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe(TOPIC)
        with consumer:
            sent = server.next(RequestCode.CONSUMER_SEND_MSG_BACK)
    header = ConsumerSendMsgBackHeader.decode(sent.fields)
    assert (header.delay_ms, header.delay_level) == (90_000, 6)


@pytest.mark.parametrize("retries", [-1, -3, -100, -(1 << 31)])
def test_a_message_with_fewer_than_no_retries_is_given_back(retries: int) -> None:
    """A producer sends any number; the log line of the failure ended the message's task."""
    with FakeServer() as namesrv, FakeServer() as server:
        broker = FakeBroker(namesrv, server)
        broker.add(0, b"a")
        (record,) = decode_records(broker.queues[0][0])
        broker.queues[0][0] = encode_record(replace(record, reconsume_times=retries))
        begin = ConsumeFrom.FIRST_OFFSET
        with PushConsumer("g", lambda views: RetryLater(), namesrv.address, begin=begin) as member:
            member.subscribe(TOPIC)
            server.next(RequestCode.CONSUMER_SEND_MSG_BACK)
