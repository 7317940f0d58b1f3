"""Spans of a client, after OpenTelemetry's semantic conventions for messaging.

    send TOPIC      PRODUCER, from the send to its answer; the message carries it as `traceparent`
    create TOPIC    PRODUCER, one for each message of a batch, carried by the message; the
                    batch's send TOPIC is then a CLIENT span with links to them
    receive TOPIC   CLIENT, a poll that returned messages, with links to their contexts
    process TOPIC   CONSUMER, around a listener call: child of the message's context and linked
                    to it; for several messages only linked. Of a message that is settled by
                    itself from its `with` block, or else its receive, to its settlement

A message that already carries a `traceparent` keeps it, and its send is linked to it. Without a
span provider there are no spans, but messages that a listener sends carry the context of the
message that it consumes. Needs opentelemetry-api. For any thread.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from contextvars import Token
from dataclasses import replace
from time import time_ns
from typing import Any, Protocol, TypeVar

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from protocol import span_names as names
from protocol.properties import TRAN_MSG
from protocol.span_names import AttributeValue
from remoting.address import split_address
from troupemq.client.arguments import check_instance
from troupemq.client.message import Message, MessageView, SendResult

SCOPE = "troupemq"
CARRIED_CHARS_MAX = 2048
"""Limit of tracestate and baggage; all properties of a message have at most 32,767 bytes."""


class SpanSwitch:
    """State of the instrumentation of all clients in this process (troupemq/otel.py)."""

    is_on = True
    provider: trace.TracerProvider | None = None
    """Span provider in place of the application's."""


SWITCH = SpanSwitch()


class EndingSend(Protocol):
    """Future of a send, of a thread or of an event loop."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> object: ...


SentFuture = TypeVar("SentFuture", bound=EndingSend)


class ClientSpans:
    def __init__(
        self,
        client_id: str,
        address_of: Callable[[str], str | None] = lambda _: None,
        provider: trace.TracerProvider | None = None,
    ) -> None:
        """Take the application's span provider unless `provider` is given.

        `address_of` returns the host:port of a broker by its name, or None if it is unknown.
        """
        self._address_of, self._provider = address_of, provider
        self._made: tuple[trace.TracerProvider | None, trace.Tracer] | None = None
        self._client_id = client_id
        self._rocket = names.RocketNames(os.environ.get(names.OPT_IN, ""))

    @property
    def is_on(self) -> bool:
        """Whether a span provider is set, or a current span is to be passed on."""
        if not SWITCH.is_on:
            return False
        provider = self._provider or SWITCH.provider or trace.get_tracer_provider()
        is_provided = not isinstance(provider, trace.ProxyTracerProvider)
        return is_provided or trace.get_current_span().get_span_context().is_valid

    @property
    def _tracer(self) -> trace.Tracer:
        provider = self._provider or SWITCH.provider
        if self._made is None or self._made[0] is not provider:
            self._made = provider, trace.get_tracer(SCOPE, tracer_provider=provider)
        return self._made[1]

    # --- sending

    def around(self, message: Message, send: Callable[[Message], SentFuture]) -> SentFuture:
        """Send a message within a span that ends with the answer."""
        if not self.is_on:
            return send(message)
        check_instance(message, Message, "what is sent is a Message")
        span, message = self.send(message)
        with self._ended_on_failure(span):
            sent = send(message)
        sent.add_done_callback(lambda done: self.sent(span, done))
        return sent

    def around_batch(
        self,
        messages: Sequence[Message],
        send: Callable[[Sequence[Message]], SentFuture],
    ) -> SentFuture:
        if not self.is_on or not messages:
            return send(messages)
        for each in messages:
            check_instance(each, Message, "what is sent is a Message")
        span, messages = self.send_batch(messages)
        with self._ended_on_failure(span):
            sent = send(messages)
        sent.add_done_callback(lambda done: self.sent(span, done))
        return sent

    def around_oneway(self, message: Message, send: Callable[[Message], str]) -> str:
        """Send a one-way message within a span; return the message id."""
        if not self.is_on:
            return send(message)
        check_instance(message, Message, "what is sent is a Message")
        span, message = self.send(message)
        with self._ended_on_failure(span):
            message_id = send(message)
        span.set_attribute(names.MESSAGE_ID, message_id)
        span.end()
        return message_id

    def send(self, message: Message) -> tuple[Span, Message]:
        """Start the span of a send; return it and the message that carries it."""
        carried = _carried(message.properties)
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            links=_links([carried]),
            attributes=self._of_message(message, "send"),
        )
        return span, message if carried is not None else _with(message, span)

    def send_batch(self, messages: Sequence[Message]) -> tuple[Span, Sequence[Message]]:
        """Start the span of a batch; return it and the messages, each carrying its own span."""
        sent: list[Message] = []
        for message in messages:
            if _carried(message.properties) is None:
                attributes = self._of_message(message, "create")
                with self._tracer.start_as_current_span(
                    f"create {message.topic}",
                    kind=SpanKind.PRODUCER,
                    attributes=attributes,
                    record_exception=False,
                ) as created:
                    message = _with(message, created)
            sent.append(message)
        topic = messages[0].topic
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.CLIENT,
            links=_links([_carried(message.properties) for message in sent]),
            attributes={
                **self._common("send", topic),
                names.BATCH_COUNT: len(sent),
            },
        )
        return span, sent

    @contextmanager
    def _ended_on_failure(self, span: Span) -> Iterator[None]:
        """End the span as failed if the send itself raises."""
        try:
            yield
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise

    def sent(self, span: Span, done: Future[SendResult]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            _fail(span, error)
            span.end()
            return
        result = done.result()
        address = self._address_of(result.queue.broker_name)
        span.set_attribute(names.MESSAGE_ID, result.message_id)
        span.set_attribute(names.PARTITION, str(result.queue.queue_id))
        if address is not None:
            host, port = split_address(address)
            span.set_attribute(names.SERVER_ADDRESS, host)
            span.set_attribute(names.SERVER_PORT, port)
        span.end()

    # --- consuming

    def wants(self, views: Sequence[MessageView]) -> bool:
        """Return whether a listener call with these messages needs a span or a context."""
        return self.is_on or (
            SWITCH.is_on and any(names.TRACEPARENT in view.properties for view in views)
        )

    @contextmanager
    def process(self, group: str, views: Sequence[MessageView], model: str) -> Iterator[Span]:
        """Enter the span of a listener call. `model`: clustering or broadcasting."""
        carried = [_carried(view.properties) for view in views]
        token = None
        if len(views) == 1 and carried[0] is not None:
            token = contexts.attach(carried[0])
        try:
            with self._tracer.start_as_current_span(
                f"process {views[0].topic}",
                kind=SpanKind.CONSUMER,
                links=_links(carried),
                attributes=self._of_views(group, views, "process", model),
                record_exception=False,
            ) as span:
                yield span
        finally:
            if token is not None:
                contexts.detach(token)

    def to_be_retried(self, span: Span, error: BaseException | None) -> None:
        """Mark the span of a listener that failed, or that returned RETRY_LATER (no error)."""
        if error is not None:
            _fail(span, error)
        else:
            span.set_attribute(names.ERROR_TYPE, "retry_later")
            span.set_status(Status(StatusCode.ERROR, "to be consumed again"))

    def delivery(self, group: str, view: MessageView, model: str) -> "DeliverySpan":
        """Return the span of a message that is settled by itself; it is not started yet."""
        return DeliverySpan(self, group, view, model)

    def start_process(
        self, group: str, view: MessageView, model: str, begun_ns: int | None = None
    ) -> tuple[Span, Context]:
        """Start the span of one message; return it and the context in which it is current."""
        carried = _carried(view.properties)
        span = self._tracer.start_span(
            f"process {view.topic}",
            context=carried,
            kind=SpanKind.CONSUMER,
            links=_links([carried]),
            attributes=self._of_views(group, [view], "process", model),
            start_time=begun_ns,
        )
        return span, trace.set_span_in_context(span, carried)

    def receive(self, group: str, views: Sequence[MessageView], model: str, begun_ns: int) -> None:
        """Record the span of a poll that returned messages; `begun_ns` is of the wall clock."""
        if not self.is_on:
            return
        span = self._tracer.start_span(
            f"receive {views[0].topic}",
            kind=SpanKind.CLIENT,
            links=_links([_carried(view.properties) for view in views]),
            attributes=self._of_views(group, views, "receive", model),
            start_time=min(begun_ns, time_ns()),
        )
        span.end()

    # --- attributes

    def _common(self, operation: str, topic: str) -> dict[str, AttributeValue]:
        return {
            names.SYSTEM: names.ROCKETMQ,
            names.OPERATION_NAME: operation,
            names.OPERATION_TYPE: operation,
            names.DESTINATION: topic,
            names.CLIENT_ID: self._client_id,
            **self._rocket.of({names.NAMESPACE: ""}),
        }

    def _of_message(self, message: Message, operation: str) -> dict[str, AttributeValue]:
        kind = "normal"
        if message.is_delayed:
            kind = "delay"
        elif TRAN_MSG in message.system_properties:
            kind = "transaction"
        own: dict[str, AttributeValue] = {names.MESSAGE_TYPE: kind}
        if message.tags:
            own[names.MESSAGE_TAG] = message.tags
        if message.keys:
            own[names.MESSAGE_KEYS] = tuple(message.keys)
        if message.delay_level:
            own[names.DELAY_LEVEL] = message.delay_level
        return {
            **self._common(operation, message.topic),
            names.BODY_SIZE: len(message.body),
            **self._rocket.of(own),
        }

    def _of_views(
        self, group: str, views: Sequence[MessageView], operation: str, model: str
    ) -> dict[str, AttributeValue]:
        first = views[0]
        own: dict[str, AttributeValue] = {names.CONSUMPTION_MODEL: model}
        found = {
            **self._common(operation, first.topic),
            names.CONSUMER_GROUP: group,
            names.PARTITION: str(first.queue.queue_id),
        }
        if len(views) > 1 or operation == "receive":
            found[names.BATCH_COUNT] = len(views)
        else:
            found[names.MESSAGE_ID] = first.message_id
            found[names.BODY_SIZE] = len(first.stored_body)
            if first.tags:
                own[names.MESSAGE_TAG] = first.tags
            if first.keys:
                own[names.MESSAGE_KEYS] = first.keys
        return {**found, **self._rocket.of(own)}


class DeliverySpan:
    """Span of a message that is settled by itself: made by its block, or at its settlement."""

    __slots__ = ("_begun_ns", "_error", "_is_over", "_of", "_span", "_spans", "_token")

    def __init__(self, spans: ClientSpans, group: str, view: MessageView, model: str) -> None:
        self._spans, self._of = spans, (group, view, model)
        self._begun_ns = time_ns()
        self._span: Span | None = None
        self._token: Token[Context] | None = None
        self._error: BaseException | None = None
        self._is_over = False

    def enter(self) -> None:
        """Begin the block that processes the message; what it sends is below the span."""
        if self._is_over or self._span is not None or not self._spans.wants([self._of[1]]):
            return
        self._span, context = self._spans.start_process(*self._of)
        self._token = contexts.attach(context)

    def leave(self, error: BaseException | None) -> None:
        """End the block, with the exception that counts as its failure."""
        self._error = error
        if self._token is not None:
            contexts.detach(self._token)
            self._token = None

    def end(self, error_type: str = "", text: str = "") -> None:
        """End the span after the settlement, with the block's failure or this one."""
        if self._is_over:
            return
        self._is_over, span = True, self._span
        if span is None:
            if not self._spans.is_on:
                return
            span, _ = self._spans.start_process(*self._of, min(self._begun_ns, time_ns()))
        if self._error is not None:
            _fail(span, self._error)
        elif error_type:
            span.set_attribute(names.ERROR_TYPE, error_type)
            span.set_status(Status(StatusCode.ERROR, text))
        span.end()


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _carried(properties: Mapping[str, str]) -> Context | None:
    if names.TRACEPARENT not in properties:
        return None
    found = propagate.extract(properties, context=Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _links(carried: Sequence[Context | None]) -> list[Link]:
    return [
        Link(trace.get_current_span(each).get_span_context())
        for each in carried
        if each is not None
    ]


def _with(message: Message, span: Span) -> Message:
    """Return the message carrying this span, or unchanged if the span has no context."""
    found: dict[str, str] = {}
    propagate.inject(found, context=trace.set_span_in_context(span))
    parent = found.pop(names.TRACEPARENT, None)
    if parent is None:
        return message
    if sum(map(len, found.values())) > CARRIED_CHARS_MAX:
        found = {}
    more = {name: value for name, value in found.items() if value and name in names.CARRIED}
    return replace(message, properties={**message.properties, names.TRACEPARENT: parent, **more})
