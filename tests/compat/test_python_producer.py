"""Our Python producer against the official broker and ours: who consumes gets what was sent."""

from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from threading import Condition, Event, Thread

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.transaction import EndTransactionHeader
from tests.compat.agent import Agent, closing, java_agent
from tests.compat.conftest import MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import SERIAL, Outgoing, varied
from tests.compat.mqadmin import mqadmin
from tests.compat.patience import wait_until
from tests.compat.servers import Broker
from tests.compat.toolchain import Java
from troupemq import (
    Admin,
    BrokerError,
    ClientError,
    ConsumeFrom,
    Message,
    MessageView,
    Producer,
    ProducerSettings,
    PushConsumer,
    SendResult,
    SendStatus,
    TransactionProducer,
    TransactionState,
    create_reply_message,
)
from troupemq.client.remoting import Remoting

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
UNKNOWN = TransactionState.UNKNOWN
COUNT = 42
PATIENT = ProducerSettings(send_timeout_ms=10_000)
ASKS_SOON = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
REQUEST_TIMEOUT_MS = 15_000
WAYS = ("sync", "async", "oneway", "batch", "batches")


class Collector:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.views: list[MessageView] = []
        self._news = Condition()

    def __call__(self, views: Sequence[MessageView]) -> None:
        with self._news:
            self.views += views
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.views) >= count, 60), len(self.views)


@pytest.fixture(scope="module", params=["official", "ours"])
def broker(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> Iterator[Broker]:
    scratch = tmp_path_factory.mktemp(f"python-{request.param}")
    with (
        make_name_server(request.param, scratch / "name-server") as name_server,
        make_broker(request.param, scratch / "broker", name_server, **ASKS_SOON) as broker,
    ):
        yield broker


@pytest.fixture(scope="module")
def java(broker: Broker, java_tools: Java) -> Iterator[Agent]:
    with closing(java_agent("java", java_tools, broker.scratch, broker)) as agent:
        yield agent


def new_topic(broker: Broker, topic: str, queues: int = 4) -> str:
    with Admin(broker.name_server.address) as admin:
        admin.create_topic(topic, queues)
    wait_for_route(broker, topic)
    return topic


def listening(broker: Broker, topic: str, listener: Collector) -> PushConsumer:
    consumer = PushConsumer(
        f"python-group-of-{topic}",
        listener,
        broker.name_server.address,
        begin=ConsumeFrom.FIRST_OFFSET,
    )
    consumer.subscribe(topic)
    return consumer


def message_of(topic: str, outgoing: Outgoing, *, wait: bool) -> Message:
    return Message(
        topic,
        outgoing.body,
        tags=outgoing.tags,
        keys=outgoing.keys.split() if outgoing.keys else (),
        properties={**outgoing.properties, SERIAL: outgoing.serial},
        flag=outgoing.flag,
        wait_store_ok=wait,
    )


def send(producer: Producer, way: str, messages: list[Message]) -> list[SendResult]:
    match way:
        case "sync":
            return [producer.send(message) for message in messages]
        case "async":
            return [each.result() for each in [producer.send_async(m) for m in messages]]
        case "oneway":
            for message in messages:
                producer.send_oneway(message)
            return []
        case "batch":
            return [producer.send_batch(messages)]
        case _:
            return producer.send_batches(messages)


@pytest.mark.parametrize("way", WAYS)
def test_java_and_python_consumers_get_what_the_python_producer_sent(
    broker: Broker, java: Agent, way: str
) -> None:
    topic = new_topic(broker, f"PY-{way}")
    outgoing = varied(topic, COUNT, waits=True)
    batch = way.startswith("batch")
    messages = [message_of(topic, each, wait=batch or each.wait) for each in outgoing]
    settings = ProducerSettings(
        send_timeout_ms=10_000, max_message_bytes=50_000 if way == "batches" else 4 << 20
    )
    with Producer("python-sender", broker.name_server.address, settings=settings) as producer:
        results = send(producer, way, messages)
    assert {result.status for result in results} <= {SendStatus.OK}
    collector = Collector()
    java.join(topic, f"java-group-of-{topic}", topic)
    with listening(broker, topic, collector):
        collector.wait_for(COUNT)
    wait_until(lambda: len(java.received(topic)) >= COUNT, f"{COUNT} messages at Java's")
    java.leave(topic)
    wanted = {each.serial: (each.body, each.tags, each.flag) for each in outgoing}
    got = {view.properties[SERIAL]: (view.body, view.tags, view.flag) for view in collector.views}
    assert (len(collector.views), got) == (COUNT, wanted)
    events = java.received(topic)
    assert len(events) == COUNT
    assert {
        event["properties"][SERIAL]: (b64decode(event["body"]), event["tags"], event["flag"])
        for event in events
    } == wanted
    by_id = {view.message_id: view for view in collector.views}
    ids = [message_id for result in results for message_id in result.message_id.split(",")]
    assert set(ids) == (set() if way == "oneway" else set(by_id))
    assert {event["msgId"] for event in events} == set(by_id)
    for message, each in zip(messages, outgoing, strict=True):
        view = next(v for v in collector.views if v.properties[SERIAL] == each.serial)
        assert view.keys == message.keys
        assert {**message.properties}.items() <= view.properties.items()
        compressed = len(each.body) >= 4096 and not batch
        assert view.sys_flag == (769 if compressed else 0)


# --- transactions


@pytest.fixture
def ends_transactions(broker: Broker) -> None:
    """Skips where the broker does not know END_TRANSACTION yet."""
    remoting = Remoting(lambda address, command: None)
    header = EndTransactionHeader("nobody", 0, 0, 8, msg_id="")
    command = RemotingCommand(RequestCode.END_TRANSACTION, header.encode())
    code = remoting.call(broker.address, command, 10_000).code
    remoting.close()
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        pytest.skip("this broker does not end transactions")


OUTCOMES = {
    "commit": (COMMIT, None),
    "rollback": (ROLLBACK, None),
    "commit-when-asked": (UNKNOWN, COMMIT),
    "rollback-when-asked": (UNKNOWN, ROLLBACK),
    "raises-then-commit": (None, COMMIT),
}


@pytest.mark.usefixtures("ends_transactions")
def test_transactions_come_out_as_the_application_says(broker: Broker, java: Agent) -> None:
    topic = new_topic(broker, "PY-transactions")
    asked: Counter[str] = Counter()

    def check(view: MessageView) -> TransactionState | None:
        outcome = view.keys[0]
        asked[outcome] += 1
        if asked[outcome] == 1:
            return None  # the broker asks again
        return OUTCOMES[outcome][1]

    def execute(message: Message, transaction_id: str) -> TransactionState:
        state = OUTCOMES[message.keys[0]][0]
        if state is None:
            raise RuntimeError("nobody knows")
        return state

    java.join(topic, f"group-of-{topic}", topic)
    with TransactionProducer(
        "python-transactions", check, broker.name_server.address, settings=PATIENT
    ) as producer:
        results = {
            outcome: producer.send_in_transaction(
                Message(topic, b"compressible " * 500, tags="t", keys=outcome), execute
            )
            for outcome in OUTCOMES
        }
        visible = {"commit", "commit-when-asked", "raises-then-commit"}
        wait_until(
            lambda: {event["keys"] for event in java.received(topic)} >= visible,
            "the committed messages",
            120.0,
        )
        wait_until(lambda: asked["rollback-when-asked"] >= 2, "all questions", 120.0)
    java.leave(topic)
    events = java.received(topic)
    assert Counter(event["keys"] for event in events) == dict.fromkeys(visible, 1)
    for event in events:
        result = results[event["keys"]]
        assert event["msgId"] == result.transaction_id
        assert b64decode(event["body"]) == b"compressible " * 500
        assert event["sysFlag"] & 0xC == 0x8
    assert {o: r.told for o, r in results.items() if r.told} == {"commit": True, "rollback": True}
    assert set(asked) == {o for o, (state, _) in OUTCOMES.items() if state in (UNKNOWN, None)}


@pytest.mark.usefixtures("ends_transactions")
def test_another_producer_of_the_group_is_asked_when_the_first_is_gone(
    broker: Broker, java: Agent
) -> None:
    topic, group = new_topic(broker, "PY-heir"), "python-heirs"
    address = broker.name_server.address
    with TransactionProducer(group, lambda view: None, address, settings=PATIENT) as first:
        message = Message(topic, b"left behind", keys="k")
        result = first.send_in_transaction(message, lambda message, transaction: UNKNOWN)
    java.join(topic, f"group-of-{topic}", topic)
    with TransactionProducer(group, lambda view: COMMIT, address, settings=PATIENT) as heir:
        heir.send(Message(topic, b"first contact"))
        wait_until(lambda: len(java.received(topic)) >= 2, "both messages", 120.0)
    java.leave(topic)
    assert result.transaction_id in {event["msgId"] for event in java.received(topic)}


# --- request and reply


@pytest.fixture
def passes_replies(broker: Broker) -> None:
    """Skips where the broker does not know SEND_REPLY_MESSAGE_V2 yet."""
    command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, {})
    remoting = Remoting(lambda address, command: None)
    code = remoting.call(broker.address, command, 10_000).code
    remoting.close()
    if code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        pytest.skip("this broker does not pass replies on")


class Replier:
    """A Python consumer that answers each message with its body and `suffix`."""

    def __init__(self, producer: Producer, suffix: bytes) -> None:
        self._producer = producer
        self._suffix = suffix

    def __call__(self, views: Sequence[MessageView]) -> None:
        for view in views:
            self._producer.send(create_reply_message(view, view.body + self._suffix))


LONG = b"a long question " * 1000
REPLIERS = ("python", "java")


@pytest.mark.usefixtures("passes_replies")
@pytest.mark.parametrize("replier", REPLIERS)
def test_a_python_request_gets_its_reply(broker: Broker, java: Agent, replier: str) -> None:
    topic = new_topic(broker, f"PY-asks-{replier}")
    group = f"repliers-of-{topic}"
    address = broker.name_server.address
    with Producer("python-asks", address, settings=PATIENT) as producer:
        if replier == "java":
            java.reply(group, topic, b" -> reply")
            replies = ask_all(producer, topic)
        else:
            consumer = PushConsumer(
                group, Replier(producer, b" -> reply"), address, begin=ConsumeFrom.FIRST_OFFSET
            )
            consumer.subscribe(topic)
            with consumer:
                replies = ask_all(producer, topic)
    assert replies == [body + b" -> reply" for body in (b"short", LONG, b"again")]


def ask_all(producer: Producer, topic: str) -> list[bytes]:
    """Three requests at once, one of them long enough to be compressed, as is its reply."""
    futures = [
        producer.request_async(Message(topic, body), 4 * REQUEST_TIMEOUT_MS)
        for body in (b"short", LONG, b"again")
    ]
    return [future.result().body for future in futures]


@pytest.mark.usefixtures("passes_replies")
def test_a_java_request_gets_its_reply_from_python(broker: Broker, java: Agent) -> None:
    topic = new_topic(broker, "PY-replies")
    address = broker.name_server.address
    with Producer("python-replies", address, settings=PATIENT) as producer:
        consumer = PushConsumer(
            f"repliers-of-{topic}",
            Replier(producer, b" -> reply"),
            address,
            begin=ConsumeFrom.FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        with consumer:
            # Java's heartbeat may come after its request: it waits for the next one, 30 s.
            for body in (b"short", LONG):
                got = java.ask("java-asks", topic, body, 4 * REQUEST_TIMEOUT_MS)
                assert got == body + b" -> reply"


# --- traces


def test_mqadmin_reads_the_python_producers_traces(broker: Broker, java_tools: Java) -> None:
    topic = new_topic(broker, "PY-traced")
    settings = ProducerSettings(send_timeout_ms=10_000, trace=True)
    with Producer("python-traced", broker.name_server.address, settings=settings) as producer:
        result = producer.send(Message(topic, b"traced", tags="t", keys="k"))
    run = mqadmin(java_tools, broker.scratch, broker.name_server.address)

    def shown() -> str:
        return run("queryMsgTraceById", "-i", result.message_id).stdout

    wait_until(lambda: "python-traced" in shown(), "the trace", 60.0)
    line = next(line for line in shown().splitlines() if "python-traced" in line)
    assert "Pub" in line and "success" in line


# --- nothing is lost


def under_load(acknowledged: set[str]) -> None:
    """Waits for some more messages."""
    enough = len(acknowledged) + 2000
    wait_until(lambda: len(acknowledged) >= enough, "a load", 90.0)


@pytest.mark.parametrize("kind", ["official", "ours"])
def test_what_was_acknowledged_is_there_after_the_broker_was_killed(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    scratch = tmp_path_factory.mktemp(f"killed-{kind}")
    acknowledged: set[str] = set()
    failed: list[BaseException] = []
    ended = Event()

    def remember(done: Future[SendResult]) -> None:
        error = done.exception()
        if error is None:
            acknowledged.add(done.result().message_id)
        else:
            failed.append(error)

    with make_name_server(kind, scratch / "name-server") as name_server:
        broker = make_broker(kind, scratch / "broker", name_server)
        broker.start()
        try:
            topic = new_topic(broker, f"PY-killed-{kind}")
            settings = ProducerSettings(retries=1000, send_timeout_ms=60_000, in_flight_max=500)
            with Producer("python-load", name_server.address, settings=settings) as producer:

                def load() -> None:
                    number = 0
                    while not ended.is_set():
                        number += 1
                        future = producer.send_async(Message(topic, b"%d" % number))
                        future.add_done_callback(remember)

                thread = Thread(target=load)
                thread.start()
                for _ in range(2):
                    under_load(acknowledged)
                    broker.child.kill()
                    broker.address = ""
                    broker.start()
                under_load(acknowledged)
                ended.set()
                thread.join()
                producer.stop(60.0)
            assert failed == []
            collector = Collector()
            with listening(broker, topic, collector):
                wait_until(
                    lambda: acknowledged <= {view.message_id for view in list(collector.views)},
                    "every acknowledged message",
                    60.0,
                )
        finally:
            ended.set()
            broker.stop()


def test_errors_are_those_of_the_broker(broker: Broker) -> None:
    """A queue that is not there: 4.9.7 answers code 1, which is tried again elsewhere first."""
    topic = new_topic(broker, "PY-errors", 2)
    with Producer("python-errors", broker.name_server.address, settings=PATIENT) as producer:
        queue = producer.queues(topic)[0]
        wrong = type(queue)(topic, queue.broker_name, 99)
        with pytest.raises(BrokerError) as caught:
            producer.send(Message(topic, b"x"), queue=wrong)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        assert isinstance(caught.value, ClientError)
