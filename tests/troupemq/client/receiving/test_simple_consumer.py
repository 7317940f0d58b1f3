"""Tests of SimpleConsumer against a broker in memory."""

import gc
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread
from typing import Any

import pytest

from protocol.bodies import HeartbeatData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from tests.troupemq.client.receiving.pop_broker import PopBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import DEAD_LETTER, RetryLater
from troupemq.client.errors import (
    ArgumentIllegal,
    BrokerError,
    ClientClosed,
    ClientError,
    DeliveryExpired,
    DeliverySettled,
    NotSupported,
)
from troupemq.client.receiving.delivery import Delivery
from troupemq.client.receiving.simple_consumer import SimpleConsumer

POP = RequestCode.POP_MESSAGE


@dataclass
class Bench:
    namesrv: FakeServer
    server: FakeServer
    broker: PopBroker

    def consumer(self, *topics: str, **options: Any) -> SimpleConsumer:
        consumer = SimpleConsumer("g", self.namesrv.address, **options)
        for topic in topics or ("T",):
            consumer.subscribe(topic)
        return consumer


@pytest.fixture
def bench() -> Iterator[Bench]:
    with FakeServer() as namesrv, FakeServer() as server:
        yield Bench(namesrv, server, PopBroker(namesrv, server, {"T": 2, "U": 1}))


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.body for delivery in deliveries]


def test_messages_are_received_and_acknowledged_one_by_one_or_together(bench: Bench) -> None:
    bench.broker.add(b"a", b"b", b"c")
    bench.broker.add(b"d", queue_id=1)
    with bench.consumer() as consumer:
        received = consumer.receive()
        assert bodies(received) == [b"a", b"b", b"c", b"d"]
        assert consumer.held() == received
        received[1].ack()
        consumer.ack([received[0], *received[2:]])
        assert bench.broker.acked == [b"b", b"a", b"c", b"d"]
        assert consumer.held() == []
        (batch,) = bench.broker.batches
        assert [(each.queue_id, each.offsets()) for each in batch.acks] == [(0, [0, 2]), (1, [0])]


def test_gathered_acknowledgements_take_requests_of_a_bounded_size(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers refuse larger ones, for all threads whose messages are among them."""
    monkeypatch.setattr("troupemq.client.receiving.flows.ACKS_MAX", 2)
    bench.broker.add(*(b"%d" % number for number in range(7)))
    may_end, acknowledge = Event(), bench.server.handlers[RequestCode.ACK_MESSAGE]

    def slowly(command: RemotingCommand) -> Any:
        assert may_end.wait(WAIT_S)
        return acknowledge(command)

    bench.server.on(RequestCode.ACK_MESSAGE, slowly)
    with bench.consumer() as consumer, ThreadPoolExecutor(4) as threads:
        found = consumer.receive()
        running = [threads.submit(found[0].ack)]
        bench.server.next(RequestCode.ACK_MESSAGE)
        running += [threads.submit(consumer.ack, found[at : at + 2]) for at in (1, 3, 5)]
        while len(consumer._acks._queues["b"].turns) < 3:
            pass
        may_end.set()
        for each in running:
            each.result(WAIT_S)
    sizes = [sum(len(ack.offsets()) for ack in each.acks) for each in bench.broker.batches]
    assert sizes == [2, 2, 2]


def test_receive_asks_for_as_many_as_it_may_return(bench: Bench) -> None:
    bench.broker.add(*(b"%d" % number for number in range(40)))
    with bench.consumer(begin=ConsumeFrom.FIRST_OFFSET, invisible_s=7) as consumer:
        assert [len(consumer.receive(count)) for count in (1, 5, 32)] == [1, 5, 32]
        pop = bench.broker.pops[0]
        assert (pop.init_mode, pop.invisible_time_ms, pop.max_msg_nums) == (0, 7000, 1)
        assert (pop.queue_id, pop.born_time_ms, pop.hold_with_connection) == (-1, 0, True)
        for count in (0, 33, True, "1"):
            with pytest.raises(ArgumentIllegal, match="count_max"):
                consumer.receive(count)  # type: ignore[arg-type]


def test_a_waiting_receive_returns_the_first_message(bench: Bench) -> None:
    with bench.consumer() as consumer, ThreadPoolExecutor(1) as threads:
        received = threads.submit(consumer.receive)
        bench.server.next(POP)
        bench.broker.add(b"late")
        assert bodies(received.result(WAIT_S)) == [b"late"]


def test_receive_of_several_topics_takes_from_each_without_holding_messages(bench: Bench) -> None:
    with bench.consumer("T", "U") as consumer, ThreadPoolExecutor(1) as threads:
        bench.broker.add(b"t")
        bench.broker.add(b"u", topic="U")
        assert sorted(bodies(consumer.receive())) == [b"t", b"u"]
        received = threads.submit(consumer.receive)
        bench.server.next(RequestCode.NOTIFICATION)
        bench.server.next(RequestCode.NOTIFICATION)
        assert all(pop.poll_time_ms == 0 for pop in bench.broker.pops)
        bench.broker.add(b"later", topic="U")
        assert bodies(received.result(WAIT_S)) == [b"later"]
        consumer.unsubscribe("U")
        bench.broker.add(b"not asked for", topic="U")
        assert consumer.receive(wait_ms=0) == []


def test_wait_tells_of_messages_and_receives_none(bench: Bench) -> None:
    with bench.consumer() as consumer, ThreadPoolExecutor(1) as threads:
        assert not consumer.wait(0)
        waiting = threads.submit(consumer.wait)
        bench.server.next(RequestCode.NOTIFICATION)
        bench.server.next(RequestCode.NOTIFICATION)
        bench.broker.add(b"a")
        assert waiting.result(WAIT_S)
        assert bench.broker.pops == []
        assert bodies(consumer.receive()) == [b"a"]
    with pytest.raises(ClientClosed):
        consumer.wait()


def test_full_broker_is_asked_for_messages(bench: Bench) -> None:
    full = {"hasMsg": "false", "pollingFull": "true"}
    bench.server.on(RequestCode.NOTIFICATION, lambda command: command.answer(fields=full))
    with bench.consumer() as consumer:
        assert consumer.wait(1000)


def test_highest_queue_first_is_asked_for(bench: Bench) -> None:
    with bench.consumer(highest_queue_first=True) as consumer:
        consumer.receive(wait_ms=0)
    assert [pop.highest_queue_first for pop in bench.broker.pops] == [True]


def test_with_acknowledges_and_an_exception_gives_back(bench: Bench) -> None:
    bench.broker.add(b"a", b"b", b"c")
    with bench.consumer() as consumer:
        fine, failing, later = consumer.receive()
        with fine as own:
            assert own.message.body == b"a"
        with pytest.raises(ZeroDivisionError), failing:
            raise ZeroDivisionError("by 0")
        with later:
            raise RetryLater(seconds=90, reason="no stock")
    assert bench.broker.acked == [b"a"]
    first, second = bench.broker.changes
    assert (first.retry_delay_level, first.invisible_time_ms) == (0, 10_000)
    assert (second.retry_delay_level, second.invisible_time_ms) == (None, 90_000)
    assert [first.failure, second.failure] == ["ZeroDivisionError: by 0", "no stock"]


def test_with_leaves_a_message_that_was_settled_inside(bench: Bench) -> None:
    bench.broker.add(b"a", b"b")
    with bench.consumer() as consumer:
        first, second = consumer.receive()
        with first:
            first.ack()
        with pytest.raises(ValueError), second:
            second.ack()
            raise ValueError
    assert bench.broker.acked == [b"a", b"b"]
    assert bench.broker.changes == []


def test_retry_takes_a_level_or_a_delay_and_rises_with_the_tries(bench: Bench) -> None:
    bench.broker.add(b"level", b"delay")
    bench.broker.add(b"fourth", tries=3)
    with bench.consumer() as consumer:
        level, delay, fourth = consumer.receive()
        level.retry(delay_level=5)
        delay.retry(seconds=1.5)
        fourth.retry(reason="no \n" + "ä" * 600)
        with pytest.raises(ArgumentIllegal, match="reason of a retry is a string"):
            level.retry(reason=5)  # type: ignore[arg-type]
        with pytest.raises(ArgumentIllegal, match="and not both"):
            fourth.retry(3, seconds=timedelta(seconds=1))
        asked = [(each.invisible_time_ms, each.retry_delay_level) for each in bench.broker.changes]
        assert asked == [(60_000, 5), (1500, None), (120_000, 0)]
        reasons = [each.failure for each in bench.broker.changes]
        assert reasons == [None, None, "no  " + "ä" * 510]


@pytest.mark.parametrize("tries, level", [(0, DEAD_LETTER), (16, 0)])
def test_the_last_retry_is_a_dead_letter(bench: Bench, tries: int, level: int) -> None:
    bench.broker.add(b"a", tries=tries)
    with bench.consumer() as consumer:
        (delivery,) = consumer.receive()
        delivery.retry(level, reason="no stock")
        sent = ConsumerSendMsgBackHeader.decode(
            bench.server.next(RequestCode.CONSUMER_SEND_MSG_BACK).fields
        )
        assert (sent.delay_level, sent.offset, sent.group) == (DEAD_LETTER, 0, "g")
        assert sent.failure == "no stock"
        assert bench.broker.acked == [b"a"]


def test_a_message_past_its_retries_is_a_dead_letter_without_being_received(bench: Bench) -> None:
    bench.broker.add(b"poison", tries=3)
    bench.broker.add(b"good")
    with bench.consumer(max_reconsume_times=2) as consumer:
        assert bodies(consumer.receive()) == [b"good"]
        bench.server.next(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert bench.broker.acked == [b"poison"]


def test_a_message_with_another_tag_of_the_same_hash_is_acknowledged_unseen(bench: Bench) -> None:
    bench.broker.add(b"other")
    with SimpleConsumer("g", bench.namesrv.address) as consumer:
        consumer.subscribe("T", "wanted")
        assert consumer.receive(wait_ms=0) == []
        assert bench.broker.acked == [b"other"]


def test_a_handle_settles_once(bench: Bench) -> None:
    bench.broker.add(b"a", b"b")
    with bench.consumer() as consumer, bench.consumer() as other:
        first, second = consumer.receive()
        first.ack()
        for again in (first.ack, first.retry, lambda: first.extend(1)):
            with pytest.raises(DeliverySettled, match="a was acknowledged already"):
                again()
        second.retry(seconds=0)
        with pytest.raises(DeliverySettled, match="given back"):
            consumer.ack([second])
        (third,) = consumer.receive()
        with pytest.raises(ArgumentIllegal, match="by the consumer that received it"):
            other.ack([third])
        with pytest.raises(ArgumentIllegal, match="is a Delivery"):
            consumer.ack([third.message])  # type: ignore[list-item]
        assert "is not settled" in repr(third)


def test_a_message_that_was_delivered_again_cannot_be_settled_by_the_first(bench: Bench) -> None:
    bench.broker.add(b"a", b"b", b"c")
    with bench.consumer() as consumer:
        first, second, third = consumer.receive(3)
        bench.broker.forget()
        consumer.receive(1)
        with pytest.raises(DeliveryExpired, match="no longer holds a for"):
            first.ack()
        with pytest.raises(DeliverySettled):
            first.ack()
        with pytest.raises(DeliveryExpired, match="no longer holds b, c for"):
            consumer.ack([second, third])
        assert bench.broker.acked == []


def test_only_the_expired_of_a_batch_fail(bench: Bench) -> None:
    bench.broker.add(b"a", b"b")
    with bench.consumer() as consumer:
        (first,) = consumer.receive(1)
        bench.broker.forget()
        (second,) = consumer.receive(1)
        with pytest.raises(DeliveryExpired, match="no longer holds a for"):
            consumer.ack([first, second])
        assert bench.broker.acked == [b"b"]
        assert (first.is_settled, second.is_settled) == (True, True)


def test_a_hold_with_the_connection_needs_no_extension(bench: Bench) -> None:
    bench.broker.add(b"a")
    with bench.consumer() as consumer:
        (delivery,) = consumer.receive()
        assert delivery.holds_with_connection
        delivery.extend(60)
        assert bench.broker.changes == []
        delivery.ack()


@pytest.mark.parametrize("hold", ["connection", "time"])
def test_a_hold_for_a_time_is_extended(
    bench: Bench, hold: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench.broker.with_connection = False
    bench.broker.add(b"a")
    with caplog.at_level(logging.INFO), bench.consumer(hold=hold) as consumer:
        (delivery,) = consumer.receive()
        assert not delivery.holds_with_connection
        assert bench.broker.pops[0].hold_with_connection == (hold == "connection")
        for _ in range(2):
            delivery.extend(timedelta(minutes=2))
        delivery.ack()
    assert [each.invisible_time_ms for each in bench.broker.changes] == [120_000] * 2
    assert bench.broker.acked == [b"a"]
    assert ("broker holds messages for a time only" in caplog.text) == (hold == "connection")


def test_auto_extend_extends_what_is_not_settled(bench: Bench) -> None:
    bench.broker.with_connection = False
    bench.broker.add(b"a", b"b")
    with bench.consumer(auto_extend=True, invisible_s=1) as consumer:
        slow, quick = consumer.receive()
        quick.ack()
        bench.server.next(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        slow.ack()
    assert {each.offset for each in bench.broker.changes} == {0}
    assert {each.invisible_time_ms for each in bench.broker.changes} == {1000}
    assert bench.broker.acked == [b"b", b"a"]


def test_auto_extend_gives_up_what_was_delivered_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.broker.with_connection = False
    bench.broker.add(b"a")
    with bench.consumer() as consumer:
        (lost,) = consumer.receive()
        lost.receipt.expires_s = 0.0  # soon enough for the next extension
        bench.broker.forget()
        consumer._extend_all()
        assert lost.is_settled
        consumer._extend_all()  # nothing is left to extend
    assert len(bench.broker.changes) == 1
    assert caplog.text == ""


def test_stop_ends_a_receive_that_waits(bench: Bench) -> None:
    with ThreadPoolExecutor(1) as threads:
        consumer = bench.consumer()
        consumer.start()
        received = threads.submit(consumer.receive)
        bench.server.next(POP)
        consumer.stop()
        assert received.result(WAIT_S) == []
        with pytest.raises(ClientClosed):
            consumer.receive()


def test_stop_gives_back_what_is_held_and_its_handles_are_closed(bench: Bench) -> None:
    bench.broker.add(b"a", b"b")
    consumer = bench.consumer()
    consumer.start()
    first, second = consumer.receive()
    first.ack()
    consumer.stop()
    assert [each.invisible_time_ms for each in bench.broker.changes] == [0]
    assert [record.body for record in bench.broker.ready["T"]] == [b"b"]
    assert second.is_settled
    with pytest.raises(ClientClosed):
        second.ack()
    with second:
        pass  # only warns


def test_stop_waits_for_an_acknowledgement_under_way(bench: Bench) -> None:
    bench.broker.add(b"a")
    asked, may_answer = Event(), Event()
    ack = bench.server.handlers[RequestCode.ACK_MESSAGE]

    def slowly(command: RemotingCommand) -> RemotingCommand | bytes | None:
        asked.set()
        may_answer.wait(WAIT_S)
        return ack(command)

    bench.server.on(RequestCode.ACK_MESSAGE, slowly)
    consumer = bench.consumer()
    consumer.start()
    (delivery,) = consumer.receive()
    with ThreadPoolExecutor(2) as threads:
        acked = threads.submit(delivery.ack)
        assert asked.wait(WAIT_S)
        stopped = threads.submit(consumer.stop)
        may_answer.set()
        acked.result(WAIT_S)
        stopped.result(WAIT_S)
    assert bench.broker.acked == [b"a"]
    assert bench.broker.changes == []


def test_a_message_that_arrives_during_the_stop_is_given_back(bench: Bench) -> None:
    consumer = bench.consumer()
    consumer.start()
    asked = Event()
    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(consumer.receive)
        bench.server.next(POP)
        give_back = consumer._give_back

        async def meanwhile(receipts: Any, timeout_ms: float) -> None:
            if not asked.is_set():
                asked.set()
                bench.broker.add(b"a")
                assert received.result(WAIT_S) == []
            await give_back(receipts, timeout_ms)

        consumer._give_back = meanwhile  # type: ignore[method-assign]
        consumer.stop()
    assert [record.body for record in bench.broker.ready["T"]] == [b"a"]


def reborn(bench: Bench) -> FakeServer:
    """Restart the broker at its address."""
    bench.server.close()
    again = FakeServer(int(bench.server.address.rpartition(":")[2]))
    again.handlers = bench.server.handlers
    bench.broker.restarted(again)
    return again


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("troupemq.client.receiving.flows.SETTLE_AGAIN_MS", 20)


@pytest.mark.usefixtures("soon_again")
def test_a_receive_and_an_acknowledgement_survive_a_restart_of_the_broker(bench: Bench) -> None:
    bench.broker.add(b"a")
    with bench.consumer() as consumer, ThreadPoolExecutor(2) as threads:
        (delivery,) = consumer.receive()
        received = threads.submit(consumer.receive)
        while not bench.broker.waits():
            bench.server.next(POP)
        with reborn(bench) as again:
            delivery.ack()
            again.next(POP)
            bench.broker.add(b"after")
            after = received.result(WAIT_S)
            assert bodies(after) == [b"after"]
            consumer.ack(after)
    assert bench.broker.acked == [b"a", b"after"]


@pytest.mark.usefixtures("soon_again")
def test_a_broker_that_moved_is_found_again(bench: Bench) -> None:
    bench.broker.add(b"a")
    with bench.consumer() as consumer, FakeServer() as moved:
        (delivery,) = consumer.receive()
        moved.handlers = bench.server.handlers
        bench.broker.restarted(moved)
        serve_routes(bench.namesrv, {"b": moved}, {"T": 2})
        bench.server.close()
        delivery.ack()
        bench.broker.add(b"b")
        assert bodies(consumer.receive()) == [b"b"]
    assert bench.broker.acked == [b"a"]


def test_an_unreachable_broker_gives_nothing_and_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.consumer() as consumer:
        assert consumer.receive(wait_ms=0) == []
        bench.server.close()
        assert consumer.receive(wait_ms=50) == []
        assert "receive failed" in caplog.text


@pytest.mark.usefixtures("soon_again")
def test_one_dead_broker_does_not_stop_the_others() -> None:
    with FakeServer() as namesrv, FakeServer() as dead, FakeServer() as alive:
        broker = PopBroker(namesrv, alive, name="alive")
        serve_routes(namesrv, {"dead": dead, "alive": alive}, {"T": 1})
        dead.close()
        broker.add(b"a")
        with SimpleConsumer("g", namesrv.address) as consumer:
            consumer.subscribe("T")
            assert bodies(consumer.receive()) == [b"a"]


def test_an_old_broker_is_named_in_one_sentence(bench: Bench) -> None:
    bench.server.on(
        POP,
        lambda command: command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=" request type 200050 not supported"
        ),
    )
    with bench.consumer() as consumer:
        with pytest.raises(NotSupported) as raised:
            consumer.receive()
        assert str(raised.value) == (
            "broker b cannot settle messages one by one: a SimpleConsumer needs TroupeMQ or"
            " RocketMQ 5, use a PushConsumer or a PullConsumer"
        )
    codes = []
    while not bench.server.received.empty():
        codes.append(bench.server.received.get().code)
    assert RequestCode.HEART_BEAT not in codes  # or the old broker would assign queues to it


def test_heartbeats_begin_with_the_first_answer(bench: Bench) -> None:
    with bench.consumer() as consumer:
        consumer.receive(wait_ms=0)
        beat = HeartbeatData.decode(bench.server.next(RequestCode.HEART_BEAT).body)
        (data,) = beat.consumer_data_set
        assert (data.group_name, data.consume_type) == ("g", "CONSUME_POP")
        assert [each.topic for each in data.subscription_data_set] == ["T"]
    bench.server.next(RequestCode.UNREGISTER_CLIENT)


def test_a_refusal_is_raised(bench: Bench) -> None:
    bench.server.on(
        POP, lambda command: command.answer(ResponseCode.NO_PERMISSION, remark="forbidden")
    )
    with bench.consumer() as consumer, pytest.raises(BrokerError, match="forbidden"):
        consumer.receive()


def test_a_missing_topic_is_waited_for_and_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.consumer("Missing") as consumer:
        for _ in range(2):
            assert consumer.receive(wait_ms=0) == []
    assert caplog.text.count("topic not found") == 1


def test_many_threads_share_one_consumer_and_gather_their_acknowledgements(bench: Bench) -> None:
    bench.broker.add(*(b"%d" % number for number in range(40)))
    with bench.consumer() as consumer:

        def work() -> None:
            while received := consumer.receive(1, wait_ms=0):
                received[0].ack()

        threads = [Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert sorted(bench.broker.acked) == sorted(b"%d" % number for number in range(40))
        assert bench.broker.in_flight == {}


def test_arguments_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"hold": "ever"}, "'connection' or 'time'"),
        ({"invisible_s": 0}, "invisible_s"),
        ({"auto_extend": 1}, "auto_extend"),
        ({"begin": ConsumeFrom.TIMESTAMP}, "FIRST_OFFSET or LAST_OFFSET"),
        ({"max_reconsume_times": -2}, "max_reconsume_times"),
        ({"invisible": 60}, "did you mean invisible_s"),
    ]
    for options, said in wrong:
        with pytest.raises(ArgumentIllegal, match=said):
            SimpleConsumer("g", "127.0.0.1:1", **options)


def test_receive_needs_a_subscription_and_a_start(bench: Bench) -> None:
    consumer = SimpleConsumer("g", bench.namesrv.address)
    with pytest.raises(ClientClosed):
        consumer.receive()
    with consumer, pytest.raises(ClientError, match="subscribe first"):
        consumer.receive()


def test_an_iteration_leaves_what_it_has_not_yielded_to_the_next_call(bench: Bench) -> None:
    """The rest of an answer stayed with the consumer until its stop."""
    bench.broker.add(b"a", b"b", b"c")
    with bench.consumer() as consumer:
        for delivery in consumer:
            delivery.ack()
            break
        gc.collect()  # for PyPy, which ends the iteration later
        assert bodies(consumer.receive(wait_ms=0)) == [b"b", b"c"]


def test_an_iteration_yields_nothing_that_a_stop_has_given_back(bench: Bench) -> None:
    bench.broker.add(b"a", b"b", b"c")
    with bench.consumer() as consumer:
        count = 0
        for _ in consumer:
            count += 1
            consumer.stop()
    assert count == 1
