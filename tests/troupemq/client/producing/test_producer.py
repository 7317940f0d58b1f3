"""Requests of a producer, its results, its retries at another broker, and its back-pressure."""

from concurrent.futures import Future
from threading import Event, Thread
from time import monotonic

import pytest

from protocol.batch import decode_batch
from protocol.codes import RequestCode, ResponseCode
from protocol.compression import decompress
from protocol.frame import RemotingCommand, encode
from protocol.headers.send import SendMessageHeader
from protocol.properties import parse
from tests.troupemq.client.cluster import BATCH, MESSAGE, SEND, Cluster, refuse, sends, stored
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientBusy,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.message import Message, MessageQueue, SendResult, SendStatus
from troupemq.client.producing.producer import InFlight, Producer
from troupemq.client.producing.queue_choice import by_hash_of
from troupemq.client.settings import ProducerSettings


def test_a_send_has_every_field_a_broker_needs(cluster: Cluster) -> None:
    queue = MessageQueue("T", "a", 1)
    with cluster.producer() as producer:
        result = producer.send(MESSAGE, queue=queue)
        command = cluster.a.next(SEND)
    header = SendMessageHeader.of_command(command)
    assert (result.status, result.queue, result.queue_offset) == (SendStatus.OK, queue, 42)
    assert result.offset_message_id == "OFFSETID"
    assert (header.producer_group, header.topic, header.queue_id) == ("pg", "T", 1)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.flag, header.sys_flag, header.batch, header.broker_name) == (7, 0, False, "a")
    properties = parse((header.properties or "").encode())
    assert properties == {
        "a": "b",
        "KEYS": "k",
        "TAGS": "new",
        "UNIQ_KEY": result.message_id,
        "WAIT": "true",
    }
    assert command.body == b"body"


def test_two_sends_of_one_message_have_two_ids(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        assert producer.send(MESSAGE).message_id != producer.send(MESSAGE).message_id


def test_queues_are_used_in_turn(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        queues = [producer.send(MESSAGE).queue for _ in range(8)]
    assert queues[:4] == queues[4:]
    assert len(set(queues)) == 4


def test_a_queue_can_be_chosen_by_a_value(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        chosen = {producer.send(MESSAGE, choose=by_hash_of("order 7")).queue for _ in range(5)}
    assert len(chosen) == 1


@pytest.mark.parametrize(
    "status",
    [
        SendStatus.FLUSH_DISK_TIMEOUT,
        SendStatus.FLUSH_SLAVE_TIMEOUT,
        SendStatus.SLAVE_NOT_AVAILABLE,
    ],
)
def test_a_weaker_durability_is_a_result_and_not_retried(
    cluster: Cluster, status: SendStatus
) -> None:
    for broker in (cluster.a, cluster.b):
        broker.on(SEND, lambda command: stored(command, ResponseCode[status.name]))
    with cluster.producer() as producer:
        assert producer.send(MESSAGE).status is status
    assert sends(cluster.a) + sends(cluster.b) == 1


@pytest.mark.parametrize("failure", ["closed", "system error", "no permission", "half a frame"])
def test_a_send_refused_by_one_broker_is_retried_at_another(cluster: Cluster, failure: str) -> None:
    def fail(command: RemotingCommand) -> RemotingCommand | bytes | None:
        if failure == "system error":
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="refused")
        if failure == "no permission":
            return command.answer(ResponseCode.NO_PERMISSION, remark="refused")
        if failure == "half a frame":
            cluster.a.connected.get(timeout=WAIT_S).sendall(encode(command.answer())[:9])
        cluster.a.cut()
        return None

    cluster.a.on(SEND, fail)
    with cluster.producer() as producer:
        results = [producer.send(MESSAGE) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"b"}


def test_a_send_to_an_unreachable_broker_is_retried_at_another(cluster: Cluster) -> None:
    cluster.a.close()
    with cluster.producer() as producer:
        results = [producer.send_async(MESSAGE) for _ in range(4)]
        assert {result.result(WAIT_S).queue.broker_name for result in results} == {"b"}


def test_an_unreachable_broker_is_named_with_the_setting_of_its_address(cluster: Cluster) -> None:
    """Behind NAT, or in a container, the error said only that the connection was refused."""
    cluster.a.close()
    with cluster.producer() as producer:
        with pytest.raises(ConnectionFailed, match="connection refused") as caught:
            producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))
        producer.send(MESSAGE, queue=MessageQueue("T", "b", 0))
    (note,) = caught.value.__notes__
    assert note.startswith("a has registered this address") and "set its brokerIP1" in note


def test_a_busy_answer_is_not_retried(cluster: Cluster) -> None:
    for broker in (cluster.a, cluster.b):
        broker.on(SEND, refuse(ResponseCode.SYSTEM_BUSY))
    with cluster.producer() as producer, pytest.raises(BrokerError) as caught:
        producer.send(MESSAGE)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert sends(cluster.a) + sends(cluster.b) == 1


def test_attempts_are_counted_and_all_failures_reported(cluster: Cluster) -> None:
    for broker in (cluster.a, cluster.b):
        broker.on(SEND, refuse(ResponseCode.SYSTEM_ERROR))
    with cluster.producer() as producer, pytest.raises(BrokerError) as caught:
        producer.send(MESSAGE)
    assert sends(cluster.a) + sends(cluster.b) == 3
    assert len(caught.value.__notes__) == 2


def test_a_silent_broker_uses_up_the_timeout_of_a_send(cluster: Cluster) -> None:
    for broker in (cluster.a, cluster.b):
        broker.on(SEND, lambda command: None)
    with cluster.producer() as producer, pytest.raises(RequestTimeout):
        producer.send(MESSAGE, timeout_ms=40)
    assert sends(cluster.a) + sends(cluster.b) == 1


def test_a_send_that_times_out_at_name_servers_is_not_sent(cluster: Cluster) -> None:
    answer = cluster.namesrv.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC]

    def late(command: RemotingCommand) -> RemotingCommand | bytes | None:
        Event().wait(0.1)
        return answer(command)

    cluster.namesrv.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, late)
    with (
        cluster.producer() as producer,
        pytest.raises(RequestTimeout, match="no route of the topic T: no name server"),
    ):
        producer.send(MESSAGE, timeout_ms=40)
    assert sends(cluster.a) + sends(cluster.b) == 0, "else it is stored, and said not to be"


def test_with_a_timeout_per_attempt_a_silent_broker_is_replaced(cluster: Cluster) -> None:
    cluster.a.on(SEND, lambda command: None)
    with cluster.producer(ProducerSettings(try_timeout_ms=400)) as producer:
        results = [producer.send(MESSAGE, timeout_ms=WAIT_S * 1000) for _ in range(2)]
    assert {result.queue.broker_name for result in results} == {"b"}


def test_a_send_to_a_named_queue_is_tried_once(cluster: Cluster) -> None:
    cluster.a.on(SEND, refuse(ResponseCode.SYSTEM_ERROR))
    with cluster.producer() as producer, pytest.raises(BrokerError):
        producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))
    assert sends(cluster.a) == 1


def test_an_answer_without_its_fields_is_an_error_and_leaves_no_caller_waiting(
    cluster: Cluster,
) -> None:
    cluster.a.on(SEND, lambda command: command.answer())
    with cluster.producer() as producer, pytest.raises(BadAnswer):
        producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))


def test_a_missing_topic_uses_the_default_topics_route(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        queues = {producer.send(Message("New", b"x")).queue for _ in range(16)}
    assert {queue.queue_id for queue in queues} == {0, 1, 2, 3}
    assert {queue.topic for queue in queues} == {"New"}


def test_without_a_default_topic_an_unknown_topic_is_an_error(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {})
    with cluster.producer() as producer, pytest.raises(RouteNotFound):
        producer.send(MESSAGE)


def test_a_read_only_topic_accepts_no_sends(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 2}, perm=4)
    with cluster.producer() as producer, pytest.raises(RouteNotFound):
        producer.send(MESSAGE)


def test_without_a_name_server_a_send_fails_with_its_address(cluster: Cluster) -> None:
    cluster.namesrv.close()
    with cluster.producer() as producer, pytest.raises(ConnectionFailed) as caught:
        producer.send(MESSAGE)
    assert cluster.namesrv.address in str(caught.value)


def test_the_second_name_server_replaces_an_unreachable_first(cluster: Cluster) -> None:
    with FakeServer() as down:
        down.close()
        with Producer("pg", f"{down.address};{cluster.namesrv.address}") as producer:
            assert producer.send(MESSAGE).status is SendStatus.OK


def test_a_batch_is_one_request(cluster: Cluster) -> None:
    messages = [Message("T", b"%d" % number, keys=f"k{number}", flag=number) for number in range(3)]
    with cluster.producer() as producer:
        result = producer.send_batch(messages, queue=MessageQueue("T", "a", 0))
        command = cluster.a.next(BATCH)
    header = SendMessageHeader.of_command(command)
    assert (header.batch, header.properties) == (True, "WAIT\x01true")
    inside = decode_batch(command.body or b"")
    assert [(each, flag) for each, _, flag in inside] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    ids = [parse(text)["UNIQ_KEY"] for _, text, _ in inside]
    assert result.message_id == ",".join(ids)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x", delay_level=1)],
        [Message("T", b"x"), Message("T", b"x", wait_store_ok=False)],
        [Message("T", bytes(3 << 20)), Message("T", bytes(3 << 20))],
    ],
)
def test_an_invalid_batch_is_refused(cluster: Cluster, messages: list[Message]) -> None:
    with cluster.producer() as producer, pytest.raises(MessageIllegal):
        producer.send_batch(messages)


def test_a_body_over_the_limit_is_refused_before_sending(cluster: Cluster) -> None:
    with cluster.producer() as producer, pytest.raises(MessageIllegal, match="4194304"):
        producer.send(Message("T", bytes((4 << 20) + 1)))


def test_a_long_body_is_compressed(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send(Message("T", b"x" * 4097), queue=MessageQueue("T", "a", 0))
        command = cluster.a.next(SEND)
    header = SendMessageHeader.of_command(command)
    assert header.sys_flag == 769
    assert decompress(bytes(command.body or b""), header.sys_flag) == b"x" * 4097


def test_a_oneway_send_expects_no_answer(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        message_id = producer.send_oneway(MESSAGE, queue=MessageQueue("T", "a", 1))
        command = cluster.a.next(SEND)
    assert command.is_oneway
    header = SendMessageHeader.of_command(command)
    assert parse((header.properties or "").encode())["UNIQ_KEY"] == message_id


def test_a_stop_waits_for_sends_in_flight(cluster: Cluster) -> None:
    arrived = Event()

    def slowly(command: RemotingCommand) -> RemotingCommand:
        assert arrived.wait(WAIT_S)
        return stored(command)

    cluster.a.on(SEND, slowly)
    with cluster.producer() as producer:
        future = producer.send_async(MESSAGE, queue=MessageQueue("T", "a", 0))
        assert not future.done()
        arrived.set()
    assert future.result(0).status is SendStatus.OK


def test_a_stop_unregisters_the_client(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send(MESSAGE, queue=MessageQueue("T", "b", 0))
    goodbye = cluster.b.next(RequestCode.UNREGISTER_CLIENT)
    assert goodbye.fields is not None and goodbye.fields["producerGroup"] == "pg"


def test_a_new_connection_starts_with_a_heartbeat(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        producer.send(MESSAGE, queue=MessageQueue("T", "a", 0))
        beat = cluster.a.next()
        assert beat.code == RequestCode.HEART_BEAT
    assert b'"producerDataSet":[{"groupName":"pg"}]' in bytes(beat.body or b"")


def test_a_stopped_producer_is_an_error(cluster: Cluster) -> None:
    producer = cluster.producer()
    with pytest.raises(ClientClosed, match="start"):
        producer.send(MESSAGE)
    producer.stop()


def test_a_callback_can_send_again(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        second: list[SendResult] = []
        finished = Event()

        def again(_: object) -> None:
            producer.send_async(MESSAGE).add_done_callback(remember)

        def remember(done: Future[SendResult]) -> None:
            second.append(done.result())
            finished.set()

        producer.send_async(MESSAGE).add_done_callback(again)
        assert finished.wait(WAIT_S)
    assert len(second) == 1


def test_every_error_of_a_send_is_a_client_error() -> None:
    assert issubclass(MessageIllegal, ClientError) and issubclass(MessageIllegal, ValueError)


# --- back-pressure


def test_sends_are_admitted_up_to_the_limits() -> None:
    room = InFlight(count_max=2, bytes_max=100)
    room.enter(60, monotonic())
    room.enter(40, monotonic())
    with pytest.raises(ClientBusy, match="2 sends of 100 bytes"):
        room.enter(0, monotonic())
    room.leave(60)
    with pytest.raises(ClientBusy):
        room.enter(61, monotonic())
    room.enter(60, monotonic())


def test_a_single_send_of_any_size_is_admitted() -> None:
    room = InFlight(count_max=2, bytes_max=100)
    room.enter(1000, monotonic())
    with pytest.raises(ClientBusy):
        room.enter(1, monotonic())


def test_a_waiting_send_is_admitted_when_others_finish() -> None:
    room = InFlight(count_max=1, bytes_max=100)
    room.enter(1, monotonic())
    entered = Event()

    def wait() -> None:
        room.enter(1, monotonic() + WAIT_S)
        entered.set()

    thread = Thread(target=wait)
    thread.start()
    assert not entered.is_set()
    room.leave(1)
    assert entered.wait(WAIT_S)
    thread.join()
    assert not room.wait_empty(0)
    room.leave(1)
    assert room.wait_empty(0)


def test_a_caller_that_must_not_block_is_refused_at_once() -> None:
    room = InFlight(1, 100)
    room.enter(1, monotonic())
    with pytest.raises(ClientBusy):
        room.enter(1, monotonic() + 1000 * WAIT_S, lambda: False)
