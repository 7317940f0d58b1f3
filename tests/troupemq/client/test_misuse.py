"""The client used wrongly: one clear error, at once, and nothing left behind."""

import asyncio
import gc
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from threading import Event, Thread, enumerate
from time import monotonic
from typing import Any

import pytest

from protocol.codes import RequestCode
from protocol.signature import Credentials
from remoting.tls_options import Tls
from tests.troupemq.client.cluster import MESSAGE, Cluster, sends
from tests.troupemq.client.consuming.test_consumer import Seen, broker, consumer, fill
from tests.troupemq.client.producing.test_transaction import QUEUE, member, question
from tests.troupemq.fake_broker import FakeBroker
from tests.troupemq.fake_server import WAIT_S, FakeServer
from troupemq.aio import Admin as AioAdmin
from troupemq.client.admin import Admin
from troupemq.client.callbacks import ResultFuture
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.idempotent import MemorySeen, SqliteSeen
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import (
    ArgumentIllegal,
    BrokerError,
    ClientClosed,
    ClientError,
    MessageIllegal,
    QueueChoiceFailed,
    RequestTimeout,
)
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import (
    FaultAvoiding,
    LowestLatency,
    RoundRobin,
    by_hash_of,
)
from troupemq.client.producing.transaction import TransactionProducer, TransactionState
from troupemq.client.receiving.simple_consumer import SimpleConsumer
from troupemq.client.settings import ConsumerSettings, ProducerSettings

__all__ = ["broker"]

LONG_S = 60.0
NEW = Message("New", b"x")


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before_is_not_collected() -> None:
    """Or each of the tests here would go through all that this process has imported."""
    gc.collect()
    if hasattr(gc, "freeze"):  # not on PyPy
        gc.freeze()


def listen(views: Sequence[MessageView]) -> None:
    raise AssertionError("nothing was sent")


def untyped(value: object) -> Any:
    """Return a value that a type checker would reject."""
    return value


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("a group's name", lambda: Producer(untyped(None))),
    ("no listener for T", lambda: PushConsumer("g").subscribe("T")),
    ("the listener is a function", lambda: PushConsumer("g", untyped("127.0.0.1:9876"))),
    ("name servers are .* 9876", lambda: Producer("g", untyped(9876))),
    ("name servers are", lambda: PullConsumer("g", untyped(b"127.0.0.1:9876"))),
    ("settings are ProducerSettings", lambda: Producer("g", settings=untyped({"retries": 1}))),
    (
        "settings are ConsumerSettings",
        lambda: PullConsumer("g", settings=untyped(ProducerSettings())),
    ),
    ("choose is a function", lambda: Producer("g", choose=untyped("first"))),
    ("assign is a function", lambda: PushConsumer("g", listen, assign=untyped("averagely"))),
    ("begin is a ConsumeFrom", lambda: PushConsumer("g", listen, begin=untyped("first"))),
    ("orderly is True or", lambda: PushConsumer("g", listen, orderly=untyped("false"))),
    ("broadcast is True or", lambda: PushConsumer("g", listen, broadcast=untyped(0))),
    ("auto_commit is True or", lambda: PullConsumer("g", auto_commit=untyped("no"))),
    (
        "subscribe has no argument 'tags': it has topic, expression, sql",
        lambda: untyped(PushConsumer("g", listen)).subscribe("T", tags="new"),
    ),
    (
        "subscribe has no argument 'expresion': did you mean expression",
        lambda: untyped(PullConsumer("g")).subscribe("T", expresion="new"),
    ),
    ("the callback is a function", lambda: ResultFuture[int]().add_done_callback(untyped(None))),
    ("begin_ms is for", lambda: PushConsumer("g", listen, begin_ms=1)),
    ("check is a function", lambda: TransactionProducer("g", untyped("127.0.0.1:9876"))),
    ("check_threads is 0", lambda: TransactionProducer("g", untyped(listen), check_threads=0)),
    ("send_timeout_ms is 0", lambda: ProducerSettings(send_timeout_ms=0)),
    ("try_timeout_ms is -1", lambda: ProducerSettings(try_timeout_ms=-1)),
    ("retries is '3'", lambda: ProducerSettings(retries=untyped("3"))),
    ("commit_interval_ms is 0", lambda: ConsumerSettings(commit_interval_ms=0)),
    ("consume_threads is '3'", lambda: ConsumerSettings(consume_threads=untyped("3"))),
]


@pytest.mark.parametrize("said, wrong", WRONG, ids=[said for said, _ in WRONG])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_invalid_argument_is_an_error_before_anything_is_opened(
    said: str, wrong: Callable[[], object]
) -> None:
    with pytest.raises(ArgumentIllegal, match=said) as caught:
        wrong()
    assert isinstance(caught.value, ClientError) and "\n" not in str(caught.value)
    del caught
    gc.collect()


ILLEGAL = r"contains illegal characters, allowing only \^\[%\|a-zA-Z0-9_-\]\+\$"
"""The Java client's words, as all of those below."""


@pytest.mark.parametrize(
    "value, said",
    [
        (None, "a topic's name is a string, and not None"),
        (3, "a topic's name is a string, and not 3"),
        ("", "The specified topic is blank$"),
        (" \t", "The specified topic is blank$"),
        ("a b", rf"The specified topic\[a b\] {ILLEGAL}"),
        ("a\n", rf"The specified topic\[a\\n\] {ILLEGAL}"),
        ("ä", rf"The specified topic\[ä\] {ILLEGAL}"),
        ("x" * 128, "The specified topic is longer than topic max length 127.$"),
    ],
)
def test_an_invalid_topic_name_is_refused(value: Any, said: str) -> None:
    for wrong in (
        lambda: Message(value, b"x"),
        lambda: PullConsumer("g").subscribe(value),
        lambda: PushConsumer("g", listen).subscribe(value),
    ):
        with pytest.raises(MessageIllegal, match=f"^{said}"):
            wrong()
    Message("x" * 127, b"x")


GROUPS = [
    (3, "a group's name is a string, and not 3"),
    ("", "the specified group is blank$"),
    (" ", "the specified group is blank$"),
    ("a b", rf"the specified group\[a b\] {ILLEGAL}"),
    ("a\n", rf"the specified group\[a\\n\] {ILLEGAL}"),
    ("x" * 256, "the specified group is longer than group max length 255.$"),
]


@pytest.mark.parametrize(
    "made, own",
    [
        (Producer, "producer"),
        (lambda group: TransactionProducer(group, untyped(listen)), "producer"),
        (PullConsumer, "consumer"),
        (lambda group: PushConsumer(group, listen), "consumer"),
    ],
    ids=["Producer", "TransactionProducer", "PullConsumer", "PushConsumer"],
)
def test_group_names_follow_the_java_clients_rules(made: Callable[[Any], object], own: str) -> None:
    default = f"DEFAULT_{own.upper()}"
    refused = f"{own}Group can not equal {default}, please specify another one."
    for value, said in [*GROUPS, (default, refused)]:
        with pytest.raises(ArgumentIllegal, match=f"^{said}"):
            made(value)
    made("x" * 255)
    made("%|a-z_9")


def test_an_empty_body_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway, producer.request):
            with pytest.raises(MessageIllegal, match=r"^the message body length is zero$"):
                send(Message("T", b""))
        with pytest.raises(MessageIllegal, match=r"^the message body length is zero$"):
            producer.send_batch([MESSAGE, Message("T", b"")])
    assert sends(cluster.a) == sends(cluster.b) == 0


def test_a_body_beyond_the_limit_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    said = r"^the message body size over max value, MAX: 100$"
    with cluster.producer(ProducerSettings(max_message_bytes=100)) as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway, producer.request):
            with pytest.raises(MessageIllegal, match=said):
                send(Message("T", bytes(101)))
        with pytest.raises(MessageIllegal, match=said):
            producer.send_batch([Message("T", bytes(50))] * 2)
        producer.send(Message("T", bytes(100)))
    assert sends(cluster.a) + sends(cluster.b) == 1


@pytest.mark.parametrize("tags", [None, ["a", "b"], 3])
def test_tags_must_be_one_string(tags: Any) -> None:
    with pytest.raises(MessageIllegal, match="tags are a string"):
        PullConsumer("g").subscribe("T", tags)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_client_never_started_needs_no_stop() -> None:
    Producer("g")
    PushConsumer("g", listen)
    gc.collect()


@pytest.mark.parametrize("nothing", ["a text", None, b"body"])
def test_an_object_that_is_not_a_message_is_refused(cluster: Cluster, nothing: Any) -> None:
    with cluster.producer() as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises(ArgumentIllegal, match="is a Message"):
                send(nothing)
        with pytest.raises(ArgumentIllegal, match="of Messages"):
            producer.send_batch([nothing])


def test_an_invalid_queue_choice_is_an_error_and_delays_no_stop(cluster: Cluster) -> None:
    no_queue = untyped(0)
    with cluster.producer() as producer:
        with pytest.raises(QueueChoiceFailed, match="but 0"):
            producer.send(MESSAGE, queue=no_queue)
        with pytest.raises(QueueChoiceFailed, match="but 0"):
            producer.send(MESSAGE, choose=lambda queues, message: no_queue)
        begun_s = monotonic()
    assert monotonic() - begun_s < Producer.stop_timeout_s


def test_a_queue_id_of_another_type_spoiled_the_sends_to_the_queue_of_that_number(
    cluster: Cluster,
) -> None:
    """1.0 and True equal 1: their header was kept, and each later send to queue 1 had it."""
    with cluster.producer() as producer:
        for wrong in (1.0, "1", None):
            with pytest.raises(QueueChoiceFailed, match="a queue id is an integer, and not"):
                producer.send(MESSAGE, queue=MessageQueue("T", "a", untyped(wrong)))
        for queue_id in (True, 1):
            result = producer.send(MESSAGE, queue=MessageQueue("T", "a", queue_id))
            assert result.queue.queue_id == 1


def test_a_stop_in_a_callback_is_refused(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        assert "must not wait" in error_in_callback(producer, producer.stop)
        assert producer.is_running


def test_a_first_route_in_a_callback_is_refused_and_blamed_on_no_name_server(
    cluster: Cluster,
) -> None:
    """The error was that no name server answers, with the way to start one."""
    with cluster.producer() as producer:
        for call in (lambda: producer.queues("New"), lambda: producer.send_oneway(NEW)):
            said = error_in_callback(producer, call)
            assert said == "a callback must not wait for an answer: the answers come after it"


def error_in_callback(producer: Producer, call: Callable[[], object]) -> str:
    """Return the error of a call on the I/O thread."""
    said: Future[str] = Future()

    def run() -> None:
        try:
            call()
        except ClientError as error:
            said.set_result(str(error))

    producer.send(MESSAGE)  # starts the thread
    producer._client.remoting.later(0, run)
    return said.result(WAIT_S)


def test_a_second_stop_does_not_close_the_firsts_connections(broker: FakeBroker) -> None:
    fill(broker, 1)
    begun, ended = Event(), Event()

    def slow(views: Sequence[MessageView]) -> None:
        begun.set()
        assert ended.wait(WAIT_S)

    member = consumer(broker, slow)
    member.start()
    assert begun.wait(WAIT_S)
    stop = Thread(target=member.stop)
    stop.start()
    while member.is_running:
        stop.join(0.001)
    member.stop()  # as by a signal handler
    ended.set()
    stop.join(WAIT_S)
    assert broker.committed["g", 0] == 1


def test_messages_of_a_listener_that_exits_are_redelivered(broker: FakeBroker) -> None:
    fill(broker, 4)
    calls: list[bytes] = []
    enough = Event()

    def leaving(views: Sequence[MessageView]) -> None:
        calls.extend(view.body for view in views)
        if len(calls) == 4:
            enough.set()
        sys.exit(3)

    settings = ConsumerSettings(consume_threads=1, commit_interval_ms=20, again_after_ms=10)
    with consumer(broker, leaving, settings, ConsumeFrom.FIRST_OFFSET):
        assert enough.wait(WAIT_S)


def test_a_hanging_transaction_check_delays_a_stop_up_to_its_limit(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    begun, ended = Event(), Event()

    def slow(view: MessageView) -> None:
        begun.set()
        ended.wait(LONG_S)

    producer = member(cluster, slow)
    producer.start()
    producer.send(MESSAGE, queue=QUEUE)
    cluster.a.push(question())
    assert begun.wait(WAIT_S)
    begun_s = monotonic()
    producer.stop(0.01)
    assert monotonic() - begun_s < LONG_S / 2
    assert "client stopped" in caplog.text
    assert "checks=1 sends_left=0 checks_left=1" in caplog.text
    ended.set()
    for thread in enumerate():
        if thread.name.startswith("troupemq-check"):
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_an_unknown_local_state_leaves_the_transaction_open(cluster: Cluster) -> None:
    with member(cluster) as producer:
        result = producer.send_in_transaction(MESSAGE, lambda m, i: untyped(True), queue=QUEUE)
        with pytest.raises(ArgumentIllegal, match="execute is a function"):
            producer.send_in_transaction(MESSAGE, untyped(TransactionState.COMMIT))
    assert (result.state, result.told) == (TransactionState.UNKNOWN, False)
    assert isinstance(result.error, TypeError)


def test_a_hanging_broker_delays_a_stop_once_and_not_per_queue() -> None:
    with FakeServer() as namesrv, FakeServer() as server:
        broker = FakeBroker(namesrv, server, queue_count=8)
        fill(broker, 8)
        seen = Seen()
        member = consumer(broker, seen, ConsumerSettings(settle_ms=0))
        member.start()
        seen.take(8)
        server.on(RequestCode.UPDATE_CONSUMER_OFFSET, lambda command: None)
        begun_s = monotonic()
        member.stop(0.01)
        assert monotonic() - begun_s < LONG_S / 3


def test_a_hanging_broker_delays_a_stop_once_and_not_per_queue_that_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("troupemq.client.consuming.consumer_offsets.OFFSET_TIMEOUT_MS", 200)
    with FakeServer() as namesrv, FakeServer() as server:
        broker = FakeBroker(namesrv, server, queue_count=8)
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, lambda command: None)
        member = consumer(broker, Seen(), ConsumerSettings(settle_ms=0))
        member.start()
        server.next(RequestCode.QUERY_CONSUMER_OFFSET)
        member.stop()
        received = [server.received.get() for _ in range(server.received.qsize())]
        codes = [command.code for command in received]
        assert codes.count(RequestCode.QUERY_CONSUMER_OFFSET) <= 1


def test_a_stopped_consumer_refuses_subscriptions() -> None:
    """Formerly the subscription was accepted without effect."""
    for stopped in (PushConsumer("g", listen), PullConsumer("g")):
        stopped.stop()
        with pytest.raises(ClientClosed, match="the consumer was stopped"):
            stopped.subscribe("T")


def test_a_poll_without_a_subscription_is_refused(broker: FakeBroker) -> None:
    """Formerly it waited for its timeout and returned no messages."""
    with PullConsumer("g", broker.namesrv.address) as polled:
        with pytest.raises(ClientError, match="the consumer has no queues: subscribe or assign"):
            polled.poll(0)
        polled.assign([])
        assert not polled.poll(0)
        with pytest.raises(ArgumentIllegal, match="timeout_ms is None"):
            polled.poll(untyped(None))


def test_an_uncalled_queue_selector_factory_is_refused_at_the_send(cluster: Cluster) -> None:
    with Producer("g", cluster.namesrv.address) as producer:
        for choice, said in (
            (RoundRobin, r"choose is the class RoundRobin: .* RoundRobin\(\)"),
            (by_hash_of, r"choose is by_hash_of itself: call it with a key"),
            (0, "choose is a function, and not 0"),
        ):
            with pytest.raises(ArgumentIllegal, match=said):
                producer.send(MESSAGE, choose=untyped(choice))


def test_a_second_consumer_with_the_same_client_id_is_refused_while_the_first_runs(
    broker: FakeBroker,
) -> None:
    """Formerly both consumed every message of the group."""

    def second() -> PullConsumer:
        return PullConsumer("g", broker.namesrv.address, instance_name="one")

    with second():
        for _ in range(2):  # to refuse one does not take the place from the first
            refused = pytest.raises(ClientError, match="give each an instance_name of its own")
            with refused, second():
                pass
        PullConsumer("other", broker.namesrv.address, instance_name="one").stop()
    with second():
        pass


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Credentials("a", untyped(None)), "are strings, and not str, NoneType"),
        (lambda: Credentials(untyped(5), "secret"), "are strings, and not int, str"),
        (
            lambda: Producer("g", tls=Tls(checks_server=untyped(None))),
            "checks_server is True or",
        ),
        (lambda: Producer("g", tls=Tls(untyped(5))), "trust of Tls is a string, and not 5"),
        (lambda: Producer("g", tls=Tls(key_password=untyped(5))), "key_password of Tls is a str"),
        (lambda: MemorySeen(untyped("x")), "keys_max is 'x', and not an integer"),
        (lambda: MemorySeen(lease_s=float("nan")), "lease_s is a number of seconds, and not nan"),
        (lambda: SqliteSeen(untyped(None)), "path is a file, and not None"),
        (lambda: SqliteSeen("seen", untyped(None)), "keep_s is a number of seconds, and not"),
        (lambda: LowestLatency(untyped("x")), "again_s is 'x'"),
        (
            lambda: FaultAvoiding(untyped(5)),
            "steps of FaultAvoiding are lists, and not 5",
        ),
        (lambda: FaultAvoiding([1.0], []), "have the same length"),
    ],
)
def test_a_wrong_argument_was_told_by_what_failed_later(
    call: Callable[[], object], told: str
) -> None:
    """None for checks_server accepted any server; a secret of None was told as `encode`."""
    with pytest.raises(ValueError, match=told):
        call()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda admin: admin.members_of(5), "a group's name is a string, and not 5"),
        (lambda admin: admin.timers(broker=5), "broker is a string or None, and not 5"),
        (lambda admin: admin.timers(brokr="b"), "timers has no argument 'brokr': did you mean"),
        (lambda admin: admin.allocate_queues("T", "one"), "members is an iterable, and not 'one'"),
        (lambda admin: admin.stored_offset("g", "T"), "the queue is a MessageQueue, and not 'T'"),
        (lambda admin: admin.reader("T"), "the queue is a MessageQueue, and not 'T'"),
        (lambda admin: admin.runtime_info("b:1", timeout_ms="x"), "timeout_ms is a number, and"),
        (lambda admin: admin.runtime_info("b:1", float("nan")), "timeout_ms is a number, and"),
        (
            lambda admin: admin.update_topic("T", read_queues="4"),
            "read_queues is '4', and not an integer",
        ),
    ],
)
def test_an_argument_of_admin_was_told_by_the_attribute_that_it_lacks(
    call: Callable[[Any], object], told: str
) -> None:
    """`members_of(5)` ended in `can only concatenate str (not "int") to str`."""
    with Admin("127.0.0.1:1") as admin, pytest.raises(ArgumentIllegal, match=told):
        call(admin)

    async def awaited() -> None:
        async with AioAdmin("127.0.0.1:1") as admin:
            await untyped(call(admin))

    with pytest.raises(ArgumentIllegal, match=told):
        asyncio.run(awaited())


def test_a_wish_to_wait_for_room_is_true_or_false() -> None:
    with (
        FakeServer() as server,
        Producer("g", server.address) as producer,
        pytest.raises(ArgumentIllegal, match="wait_for_room is True or False"),
    ):
        producer.send_async(Message("T", b"x"), wait_for_room=untyped("false"))


@pytest.mark.parametrize(
    "call", [lambda consumer: consumer.retry(None), lambda consumer: consumer.extend(5, 1)]
)
def test_only_a_delivery_is_given_back_or_kept(call: Callable[[Any], object]) -> None:
    with pytest.raises(ArgumentIllegal, match="what is settled is a Delivery, and not"):
        call(SimpleConsumer("g", "127.0.0.1:1"))


@pytest.mark.parametrize("error", [RequestTimeout("late"), BrokerError(2, "busy", "a:1")])
def test_a_note_on_one_of_several_errors_is_on_no_other(error: ClientError) -> None:
    """Sends that fail together have a copy each, whose notes were those of all."""
    error.add_note("before")
    copied = copy(error)
    copied.add_note("its own")
    assert (error.__notes__, copied.__notes__) == (["before"], ["before", "its own"])
    assert (type(copied), str(copied)) == (type(error), str(error))
    assert vars(copied).keys() == vars(error).keys()
