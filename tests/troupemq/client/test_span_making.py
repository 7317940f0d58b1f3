"""Tests of troupemq/client/span_making.py: the spans of a client, and how they hang together."""

import asyncio
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from protocol.batch import decode_batch
from protocol.codes import RequestCode, ResponseCode
from protocol.headers.send import SendMessageHeader
from protocol.message import MessageRecord
from protocol.properties import parse
from protocol.span_names import OPT_IN
from tests.troupemq.client.cluster import BATCH, SEND, Cluster, refuse
from tests.troupemq.client.receiving.pop_broker import PopBroker
from tests.troupemq.fake_server import FakeServer
from troupemq import aio
from troupemq.client.consuming.consumer import ListenerThreads
from troupemq.client.consuming.listener import ConsumeResult, Listener, Outcome, RetryLater
from troupemq.client.errors import BrokerError, MessageIllegal
from troupemq.client.message import Message, MessageQueue, MessageView, view_of
from troupemq.client.producing.producer import Producer
from troupemq.client.receiving.simple_consumer import SimpleConsumer
from troupemq.client.settings import ProducerSettings
from troupemq.client.span_making import ClientSpans

MESSAGE = Message("T", b"body", tags="new", keys="k")
QUEUE = MessageQueue("T", "a", 0)
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Made:
    """The spans that were made."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> ClientSpans:
        return ClientSpans("me", lambda _: "127.0.0.1:10911", self.provider)

    def producer(self, cluster: Cluster, retries: int = 2) -> Producer:
        producer = cluster.producer(ProducerSettings(retries=retries))
        producer._spans = self.spans()
        return producer

    def all(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def by_start(self) -> Sequence[ReadableSpan]:
        """Return the spans by start: the one of a send may end after its caller has the result."""
        return sorted(self.all(), key=lambda each: each.start_time or 0)

    def one(self) -> ReadableSpan:
        (found,) = self.all()
        return found


@pytest.fixture
def made() -> Made:
    return Made()


def text_of(found: SpanContext) -> str:
    """Return the traceparent that a message carries."""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def own(span: ReadableSpan) -> str:
    assert span.context is not None
    return text_of(span.context)


def linked(span: ReadableSpan) -> list[str]:
    return [text_of(link.context) for link in span.links]


def view() -> MessageView:
    return view_of(MessageRecord("T", b"body"), QUEUE)


def received(properties: dict[str, str]) -> MessageView:
    found = view()
    found.properties = MappingProxyType(properties)
    return found


def test_a_sends_span_is_carried_in_the_message(cluster: Cluster, made: Made) -> None:
    tracer = made.provider.get_tracer("application")
    with made.producer(cluster) as producer:
        with tracer.start_as_current_span("outer") as outer:
            result = producer.send(MESSAGE, queue=QUEUE)
        command = cluster.a.next(SEND)
    _, span = made.by_start()
    header = SendMessageHeader.of_command(command)
    assert parse((header.properties or "").encode())["traceparent"] == own(span)
    assert span.parent is not None and span.parent.span_id == outer.get_span_context().span_id
    assert (span.name, span.kind) == ("send T", SpanKind.PRODUCER)
    attributes = dict(span.attributes or {})
    assert attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.client.id": "me",
        "messaging.message.id": result.message_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k",),
        "server.address": "127.0.0.1",
        "server.port": 10911,
    }


def test_a_message_with_a_span_keeps_it_and_links_the_send(cluster: Cluster, made: Made) -> None:
    message = Message("T", b"body", properties={"traceparent": PARENT}, delay_level=3)
    with made.producer(cluster) as producer:
        producer.send_oneway(message, queue=QUEUE)
        header = SendMessageHeader.of_command(cluster.a.next(SEND))
    assert parse((header.properties or "").encode())["traceparent"] == PARENT
    span = made.one()
    assert linked(span) == [PARENT]
    assert (span.attributes or {})["messaging.rocketmq.message.type"] == "delay"
    assert (span.attributes or {})["messaging.rocketmq.message.delay_time_level"] == 3


def test_each_message_of_a_batch_has_a_span_and_the_send_is_linked_to_all(
    cluster: Cluster, made: Made
) -> None:
    with made.producer(cluster) as producer:
        producer.send_batch([MESSAGE, Message("T", b"other")], queue=QUEUE)
        command = cluster.a.next(BATCH)
    *created, send = made.all()
    carried = [parse(text)["traceparent"] for _, text, _ in decode_batch(command.body or b"")]
    assert [own(each) for each in created] == carried == linked(send)
    assert [each.name for each in created] == ["create T", "create T"]
    assert (send.name, send.kind) == ("send T", SpanKind.CLIENT)
    assert (send.attributes or {})["messaging.batch.message_count"] == 2


def test_a_failure_marks_its_span(cluster: Cluster, made: Made) -> None:
    cluster.a.handlers[SEND] = cluster.b.handlers[SEND] = refuse(ResponseCode.MESSAGE_ILLEGAL)
    with made.producer(cluster, retries=0) as producer:
        with pytest.raises(BrokerError):
            producer.send(MESSAGE)
        with pytest.raises(MessageIllegal):
            producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
    assert [(each.status.status_code, _error(each)) for each in made.by_start()] == [
        (StatusCode.ERROR, "BrokerError"),
        (StatusCode.ERROR, "MessageIllegal"),
    ]


def _error(span: ReadableSpan) -> object:
    return (span.attributes or {}).get("error.type")


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("", ["messaging.rocketmq.namespace"]),
        ("http,messaging", ["rocketmq.namespace"]),
        ("messaging/dup", ["messaging.rocketmq.namespace", "rocketmq.namespace"]),
    ],
)
def test_the_environment_chooses_the_attribute_names(
    made: Made, monkeypatch: pytest.MonkeyPatch, said: str, names: list[str]
) -> None:
    monkeypatch.setenv(OPT_IN, said)
    span, _ = made.spans().send(MESSAGE)
    span.end()
    found = made.one().attributes or {}
    assert [name for name in sorted(found) if name.endswith("rocketmq.namespace")] == names


def test_too_long_baggage_is_omitted(made: Made) -> None:
    for size, is_there in ((100, True), (10_000, False)):
        token = context.attach(baggage.set_baggage("a", "x" * size))
        span, message = made.spans().send(MESSAGE)
        span.end()
        context.detach(token)
        assert ("baggage" in message.properties) is is_there
        assert "traceparent" in message.properties


# --- consuming


def consume(found: ClientSpans | None, listener: Listener, *views: MessageView) -> Outcome:
    nobody: Any = None
    listening = ListenerThreads(nobody, "g", listener, 0)
    listening.start(found, "clustering")
    return listening._call(views)[0]


def test_a_listener_runs_in_a_child_span_of_the_message(made: Made) -> None:
    seen: list[SpanContext] = []

    def listener(_: Sequence[MessageView]) -> None:
        seen.append(trace.get_current_span().get_span_context())
        assert baggage.get_baggage("user") == "7"

    consume(made.spans(), listener, received({"traceparent": PARENT, "baggage": "user=7"}))
    span = made.one()
    assert span.parent is not None and span.context == seen[0]
    assert text_of(span.parent) == PARENT and linked(span) == [PARENT]
    assert (span.name, span.kind) == ("process T", SpanKind.CONSUMER)
    found = span.attributes or {}
    assert found["messaging.consumer.group.name"] == "g"
    assert found["messaging.rocketmq.consumption_model"] == "clustering"
    assert not trace.get_current_span().get_span_context().is_valid, "it is over"


def test_several_messages_are_linked_and_have_no_parent(made: Made) -> None:
    views = received({"traceparent": PARENT}), received({"traceparent": "00-zz"}), received({})
    consume(made.spans(), lambda _: None, *views)
    span = made.one()
    assert span.parent is None and linked(span) == [PARENT]
    assert (span.attributes or {})["messaging.batch.message_count"] == 3


def test_a_retry_marks_its_span_as_failed(made: Made) -> None:
    def fails(_: Sequence[MessageView]) -> None:
        raise ValueError("no")

    assert consume(made.spans(), fails, view()).failed is not None
    consume(made.spans(), lambda _: ConsumeResult.RETRY_LATER, view())
    assert [_error(span) for span in made.all()] == ["ValueError", "retry_later"]
    assert {span.status.status_code for span in made.all()} == {StatusCode.ERROR}


def test_a_polls_span_is_linked_to_the_spans_of_its_messages(made: Made) -> None:
    made.spans().receive("g", [received({"traceparent": PARENT}), view()], "broadcasting", 1)
    span = made.one()
    assert (span.name, span.kind, linked(span)) == ("receive T", SpanKind.CLIENT, [PARENT])
    assert span.start_time == 1 and (span.attributes or {})["messaging.batch.message_count"] == 2


# --- without


def test_without_a_provider_no_span_is_created_and_context_is_forwarded(
    cluster: Cluster,
) -> None:
    plain = ClientSpans("me")
    assert not plain.is_on and not plain.wants([view()])
    sent: list[Message] = []

    def listener(_: Sequence[MessageView]) -> None:
        assert plain.is_on
        span, message = plain.send(MESSAGE)
        span.end()
        sent.append(message)

    consume(plain, listener, received({"traceparent": PARENT}))
    assert [message.properties for message in sent] == [{"traceparent": PARENT}]
    with cluster.producer() as producer:
        producer.send(MESSAGE, queue=QUEUE)
        header = SendMessageHeader.of_command(cluster.a.next(SEND))
    assert "traceparent" not in (header.properties or "")


class Settling:
    """Settlements by threads, or by coroutines, with their spans."""

    def __init__(self, made: Made) -> None:
        self.made, self.current = made, SpanContext(0, 0, False)

    def note(self) -> None:
        self.current = trace.get_current_span().get_span_context()

    def threads(self, namesrv: str) -> None:
        consumer = SimpleConsumer("g", namesrv)
        consumer._spans = self.made.spans()
        consumer.subscribe("T")
        with consumer:
            fine, failing, later, listed, back, _kept = consumer.receive()
            with fine:
                self.note()
            with pytest.raises(KeyError), failing:
                raise KeyError("price")
            with later:
                raise RetryLater(reason="no stock")
            consumer.ack([listed])
            back.retry()

    def coroutines(self, namesrv: str) -> None:
        async def main() -> None:
            consumer = aio.SimpleConsumer("g", namesrv)
            await consumer.subscribe("T")
            async with consumer:
                consumer._spans = self.made.spans()
                fine, failing, later, listed, back, _kept = await consumer.receive()
                async with fine:
                    self.note()
                with pytest.raises(KeyError):
                    async with failing:
                        raise KeyError("price")
                async with later:
                    raise RetryLater(reason="no stock")
                await consumer.ack([listed])
                await back.retry()

        asyncio.run(main())


@pytest.mark.parametrize("settle", [Settling.threads, Settling.coroutines])
def test_each_received_message_has_a_span_until_its_settlement(
    made: Made, settle: Callable[[Settling, str], None]
) -> None:
    with FakeServer() as namesrv, FakeServer() as server:
        PopBroker(namesrv, server, {"T": 1}).add(*b"a b c d e f".split(), traceparent=PARENT)
        settling = Settling(made)
        settle(settling, namesrv.address)
    received, *spans = made.all()
    assert received.name == "receive T" and linked(received) == [PARENT] * 6
    assert {span.name for span in spans} == {"process T"}
    assert own(spans[0]) == text_of(settling.current)
    assert [linked(span) for span in spans] == [[PARENT]] * 6
    assert {text_of(span.parent) for span in spans if span.parent} == {PARENT}
    assert [(span.attributes or {}).get("error.type") for span in spans] == [
        None,
        "KeyError",
        "retry_later",
        None,
        "retry_later",
        "returned",
    ]
    assert [(span.attributes or {})["messaging.message.id"] for span in spans] == [*"abcdef"]
    begun_ns = received.end_time or 0
    assert all((span.start_time or 0) >= begun_ns for span in spans)
    assert not trace.get_current_span().get_span_context().is_valid


def test_span_of_a_message_that_cannot_be_settled_is_an_error(made: Made) -> None:
    with FakeServer() as namesrv, FakeServer() as server:
        broker = PopBroker(namesrv, server, {"T": 1})
        broker.add(b"gone", b"refused")
        consumer = SimpleConsumer("g", namesrv.address)
        consumer._spans = made.spans()
        consumer.subscribe("T")
        with consumer:
            gone, refused = consumer.receive()
            broker.forget()
            with gone:
                pass
            server.on(RequestCode.ACK_MESSAGE, refuse(ResponseCode.NO_PERMISSION))
            with refused:
                pass
    errors = [(span.attributes or {}).get("error.type") for span in made.all()[1:]]
    assert errors == ["expired", "BrokerError"], "and one span for a message"
