"""A send on its way: other brokers, other routes, too many others, and the end of its producer."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Event, Timer

import pytest

from protocol.batch import decode_batch
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.send import SendMessageHeader
from tests.troupemq.client.cluster import BATCH, MESSAGE, SEND, Cluster, refuse, sends, stored
from tests.troupemq.fake_server import WAIT_S, serve_routes
from troupemq.client.errors import (
    BrokerError,
    ClientBusy,
    ClientClosed,
    ClientError,
    MessageIllegal,
    QueueChoiceFailed,
    RequestTimeout,
)
from troupemq.client.message import Message, MessageQueue, SendResult, SendStatus
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import FaultAvoiding
from troupemq.client.settings import RETRIED_CODES, ProducerSettings


def test_a_weaker_durability_can_be_retried_at_another_broker(cluster: Cluster) -> None:
    cluster.a.on(SEND, lambda command: stored(command, ResponseCode.SLAVE_NOT_AVAILABLE))
    settings = ProducerSettings(retry_another_broker_when_not_ok=True, retries=1)
    with Producer(
        "pg", cluster.namesrv.address, settings=settings, choose=lambda queues, message: queues[0]
    ) as producer:
        assert producer.send(MESSAGE).queue.broker_name == "b"
        cluster.b.on(SEND, refuse(ResponseCode.SYSTEM_ERROR))
        result = producer.send(MESSAGE)
    assert (result.status, result.queue.broker_name) == (SendStatus.SLAVE_NOT_AVAILABLE, "a")
    assert (sends(cluster.a), sends(cluster.b)) == (2, 2)


def test_the_application_chooses_which_answers_are_retried(cluster: Cluster) -> None:
    cluster.a.on(SEND, refuse(ResponseCode.SYSTEM_BUSY))
    busy_too = ProducerSettings(retried_codes=RETRIED_CODES | {ResponseCode.SYSTEM_BUSY})
    with cluster.producer(busy_too) as producer:
        results = [producer.send(MESSAGE) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"b"}


def test_a_failed_attempt_refreshes_the_route(cluster: Cluster) -> None:
    """A broker that was restarted may be somewhere else."""
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 2})
    with cluster.producer() as producer:
        producer.send(MESSAGE)
        cluster.a.close()
        serve_routes(cluster.namesrv, {"a": cluster.b}, {"T": 2})
        assert producer.send(MESSAGE).queue.broker_name == "a"
    assert sends(cluster.b) == 1


def test_a_failing_queue_selector_fails_only_its_send(cluster: Cluster) -> None:
    def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[int(message.body)]

    with cluster.producer() as producer:
        with pytest.raises(QueueChoiceFailed, match="IndexError"):
            producer.send(Message("T", b"99"), choose=choose)
        with pytest.raises(MessageIllegal, match="cannot go to"):
            producer.send(Message("T", b"x"), queue=MessageQueue("U", "a", 0))
        assert producer.send(Message("T", b"1"), choose=choose).queue == MessageQueue("T", "a", 1)


def test_a_producers_queue_selector_learns_the_results_of_sends(cluster: Cluster) -> None:
    cluster.a.on(SEND, refuse(ResponseCode.SYSTEM_ERROR))
    with Producer("pg", cluster.namesrv.address, choose=FaultAvoiding()) as producer:
        results = [producer.send(MESSAGE) for _ in range(12)]
    assert {result.queue.broker_name for result in results} == {"b"}
    assert sends(cluster.a) <= 1


def wait_for(event: Event) -> None:
    assert event.wait(WAIT_S)


def call_back(cluster: Cluster, producer: Producer, callback: Callable[[object], None]) -> None:
    """Has it called on the I/O thread: the answer waits until it is there to be called."""
    added = Event()

    def answer(command: RemotingCommand) -> RemotingCommand:
        assert added.wait(WAIT_S)
        return stored(command)

    cluster.a.on(SEND, answer)
    queue = MessageQueue("T", "a", 0)
    producer.send_async(MESSAGE, queue=queue).add_done_callback(callback)
    added.set()


def test_a_callback_can_send_to_a_new_topic_but_must_not_block(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 2, "U": 2})
    told: list[object] = []
    finished = Event()

    def again(_: object) -> None:
        for wait in (producer.send, producer.send_oneway):
            try:
                wait(Message("V", b"x"))
            except ClientError as error:
                told.append("must not wait" in str(error))
        producer.send_async(Message("U", b"x")).add_done_callback(remember)

    def remember(done: Future[SendResult]) -> None:
        told.append(done.result().queue.topic)
        finished.set()

    with cluster.producer() as producer:
        call_back(cluster, producer, again)
        assert finished.wait(WAIT_S)
    assert told == [True, True, "U"]


def test_a_stop_waits_for_a_send_without_a_route_yet(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 2, "U": 2})
    told, stopping = Event(), Event()
    futures: list[Future[SendResult]] = []

    def again(_: object) -> None:
        futures.append(producer.send_async(Message("U", b"x")))
        told.set()

    with cluster.producer() as producer:
        producer._client.housekeeping.post(lambda: wait_for(stopping))
        call_back(cluster, producer, again)
        assert told.wait(WAIT_S)
        Timer(0.1, stopping.set).start()
    assert futures[0].result(0).status is SendStatus.OK


def test_a_stop_ends_a_send_waiting_for_a_retry(cluster: Cluster) -> None:
    for broker in (cluster.a, cluster.b):
        broker.on(SEND, refuse(ResponseCode.SYSTEM_ERROR))
    producer = cluster.producer(ProducerSettings(retries=1000, send_timeout_ms=600_000))
    producer.start()
    future = producer.send_async(MESSAGE)
    cluster.a.next(SEND)
    cluster.b.next(SEND)
    producer.stop(timeout_s=0.0)
    with pytest.raises(ClientClosed):
        future.result(WAIT_S)


def test_too_many_sends_in_flight_are_refused_as_busy(cluster: Cluster) -> None:
    for broker in (cluster.a, cluster.b):
        broker.on(SEND, lambda command: None)
    settings = ProducerSettings(in_flight_bytes_max=100_000, compress_over_bytes=1 << 20)
    with cluster.producer(settings) as producer:
        first = producer.send_async(Message("T", bytes(99_000)), timeout_ms=200)
        with pytest.raises(ClientBusy, match="1 sends of"):
            producer.send(Message("T", bytes(99_000)), timeout_ms=20)
        with pytest.raises(RequestTimeout):
            first.result(WAIT_S)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_system_topics_are_refused_before_sending(cluster: Cluster, topic: str) -> None:
    with cluster.producer() as producer, pytest.raises(MessageIllegal, match="forbidden"):
        producer.send(Message(topic, b"x"))


def test_any_number_of_messages_is_split_into_batches(cluster: Cluster) -> None:
    messages = [Message("T", b"%03d" % number + bytes(1000)) for number in range(100)]
    with cluster.producer(ProducerSettings(max_message_bytes=30_000)) as producer:
        results = producer.send_batches(messages, queue=MessageQueue("T", "a", 0))
        batches = [decode_batch(cluster.a.next(BATCH).body or b"") for _ in results]
        assert [each for batch in batches for each, _, _ in batch] == [m.body for m in messages]
        assert [len(batch) for batch in batches[:3]] == [27, 27, 27]
        cluster.a.on(BATCH, refuse(ResponseCode.SYSTEM_BUSY))
        with pytest.raises(BrokerError) as caught:
            producer.send_batches(messages, queue=MessageQueue("T", "a", 0))
    assert caught.value.__notes__ == ["the first 0 of 100 messages are stored"]


def test_a_body_is_compressed_from_the_java_clients_threshold(
    cluster: Cluster,
) -> None:
    with cluster.producer() as producer:
        for size in (4095, 4096):
            queue, message = MessageQueue("T", "a", 0), Message("T", bytes(size))
            producer.send(message, queue=queue)
            producer.send_async(message, queue=queue).result(WAIT_S)
            producer.send_oneway(message, queue=queue)
        commands = [cluster.a.next(SEND) for _ in range(6)]
    flags = [SendMessageHeader.of_command(command).sys_flag for command in commands]
    assert flags == [0, 0, 0, 769, 769, 769]


def test_only_brokers_get_heartbeats(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send(MESSAGE)
    codes = set()
    while not cluster.namesrv.received.empty():
        codes.add(cluster.namesrv.received.get().code)
    assert codes == {RequestCode.GET_ROUTEINFO_BY_TOPIC}
