"""Our Python producer against the official broker and ours: who consumes gets what was sent."""

from base64 import b64decode
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread

import pytest

from protocol.codes import ResponseCode
from tests.compat.admin_shell import admin_shell
from tests.compat.agent import Agent
from tests.compat.conftest import MakeBroker, MakeNameServer
from tests.compat.corpus import SERIAL, Outgoing, varied
from tests.compat.patience import wait_until
from tests.compat.python_clients import PATIENT, new_topic
from tests.compat.python_members import Got, member
from tests.compat.servers import Broker
from tests.compat.toolchain import Java
from troupemq import (
    BrokerError,
    ClientError,
    Message,
    MessageQueue,
    Producer,
    ProducerSettings,
    PushConsumer,
    SendResult,
    SendStatus,
)

pytestmark = pytest.mark.slow(seconds=3)

COUNT = 42
WAYS = ("sync", "async", "oneway", "batch", "batches")


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


def listening(broker: Broker, topic: str, listener: Got) -> PushConsumer:
    consumer = member(f"python-group-of-{topic}", listener, broker.name_server.address)
    consumer.subscribe(topic)
    return consumer


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
def test_java_and_python_consumers_get_the_python_producers_messages(
    any_broker: Broker, java_beside: Agent, way: str
) -> None:
    topic = new_topic(any_broker, f"PY-{way}")
    outgoing = varied(topic, COUNT, waits=True)
    batch = way.startswith("batch")
    messages = [message_of(topic, each, wait=batch or each.wait) for each in outgoing]
    settings = ProducerSettings(
        send_timeout_ms=10_000, max_message_bytes=50_000 if way == "batches" else 4 << 20
    )
    with Producer("python-sender", any_broker.name_server.address, settings=settings) as producer:
        results = send(producer, way, messages)
    assert {result.status for result in results} <= {SendStatus.OK}
    collector = Got()
    java_beside.join(topic, f"java-group-of-{topic}", topic)
    with listening(any_broker, topic, collector):
        collector.wait(COUNT)
    wait_until(lambda: len(java_beside.received(topic)) >= COUNT, f"{COUNT} messages at Java's")
    java_beside.leave(topic)
    wanted = {each.serial: (each.body, each.tags, each.flag) for each in outgoing}
    got = {view.properties[SERIAL]: (view.body, view.tags, view.flag) for view in collector.views}
    assert (len(collector.views), got) == (COUNT, wanted)
    events = java_beside.received(topic)
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


# --- traces


def test_mqadmin_reads_the_python_producers_traces(any_broker: Broker, java_tools: Java) -> None:
    topic = new_topic(any_broker, "PY-traced")
    settings = ProducerSettings(send_timeout_ms=10_000, trace=True)
    with Producer("python-traced", any_broker.name_server.address, settings=settings) as producer:
        result = producer.send(Message(topic, b"traced", tags="t", keys="k"))
    names = any_broker.name_server.address
    with admin_shell(java_tools, any_broker.scratch, names) as run:

        def found() -> list[str]:
            printed = run("queryMsgTraceById", "-i", result.message_id)
            return [line for line in printed.splitlines() if "python-traced" in line]

        wait_until(lambda: found() != [], "the trace", 60.0)
        (line,) = found()
    assert "Pub" in line and "success" in line


# --- nothing is lost


def under_load(acknowledged: set[str]) -> None:
    """Waits for some more messages."""
    enough = len(acknowledged) + 2000
    wait_until(lambda: len(acknowledged) >= enough, "a load", 90.0)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["official", "ours"])
def test_acknowledged_messages_survive_a_kill_of_the_broker(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    make_name_server: MakeNameServer,
    make_broker: MakeBroker,
) -> None:
    scratch: Path = tmp_path_factory.mktemp(f"killed-{kind}")
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
            # An official broker on a crowded machine refuses some; no error leaves doubt.
            assert {getattr(error, "code", error) for error in failed} <= {ResponseCode.SYSTEM_BUSY}
            collector = Got()
            with listening(broker, topic, collector):
                wait_until(
                    lambda: acknowledged <= {view.message_id for view in collector.views},
                    "every acknowledged message",
                    60.0,
                )
        finally:
            ended.set()
            broker.stop()


def test_errors_carry_the_brokers_code_and_text(any_broker: Broker) -> None:
    """A queue that is not there: 4.9.7 answers code 1, which is tried again elsewhere first."""
    topic = new_topic(any_broker, "PY-errors", 2)
    with Producer("python-errors", any_broker.name_server.address, settings=PATIENT) as producer:
        queue = producer.queues(topic)[0]
        wrong = MessageQueue(topic, queue.broker_name, 99)
        with pytest.raises(BrokerError) as caught:
            producer.send(Message(topic, b"x"), queue=wrong)
        assert caught.value.code == ResponseCode.SYSTEM_ERROR
        assert isinstance(caught.value, ClientError)
