"""The spans of a client, as OpenTelemetry's conventions for messaging want them.

    send TOPIC      PRODUCER, from the send to its answer; the message carries it as `traceparent`
    create TOPIC    PRODUCER, of each message of a batch, which carries it; then send TOPIC is a
                    CLIENT with links to them
    receive TOPIC   CLIENT, a poll that brought messages, with links to what they carry
    process TOPIC   CONSUMER, around a listener: a child of what its message carries, and linked
                    to it; of several messages only linked

A message that carries a `traceparent` already keeps it: its send is linked to that.  Without a
provider of spans there are none, but what came with a message is passed on with what its listener
sends.  Needs opentelemetry-api.  For any thread.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from time import time_ns

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
"""Of tracestate and baggage: more than that is not sent with a message, which has 32,767 bytes."""


class ClientSpans:
    """Those of one client."""

    def __init__(
        self,
        client_id: str,
        address_of: Callable[[str], str | None] = lambda _: None,
        provider: trace.TracerProvider | None = None,
    ) -> None:
        """`address_of` a broker's name gives its host:port, if that is known. `provider` of spans:
        by default the application's, whenever it sets one."""
        self._address_of, self._provider = address_of, provider
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._client_id = client_id
        self._rocket = names.RocketNames(os.environ.get(names.OPT_IN, ""))

    @property
    def is_on(self) -> bool:
        """Whether somebody wants spans, or there is one to pass on."""
        provider = self._provider or trace.get_tracer_provider()
        is_provided = not isinstance(provider, trace.ProxyTracerProvider)
        return is_provided or trace.get_current_span().get_span_context().is_valid

    # --- sending

    def around(
        self, message: Message, send: Callable[[Message], Future[SendResult]]
    ) -> Future[SendResult]:
        """Sends it within a span, which ends with the answer."""
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
        send: Callable[[Sequence[Message]], Future[SendResult]],
    ) -> Future[SendResult]:
        """The same of a batch."""
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
        """The same of one that nobody answers."""
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
        """The span of a send that begins, and the message that carries it."""
        carried = _carried(message.properties)
        span = self._tracer.start_span(
            f"send {message.topic}",
            kind=SpanKind.PRODUCER,
            links=_links([carried]),
            attributes=self._of_message(message, "send"),
        )
        return span, message if carried is not None else _with(message, span)

    def send_batch(self, messages: Sequence[Message]) -> tuple[Span, Sequence[Message]]:
        """The same of a batch, whose messages get a span each."""
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
        """What cannot even be begun has failed."""
        try:
            yield
        except BaseException as error:
            _fail(span, error)
            span.end()
            raise

    def sent(self, span: Span, done: Future[SendResult]) -> None:
        """The answer has come."""
        error = done.exception()
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
        """Whether there is anything to do for these."""
        return self.is_on or any(names.TRACEPARENT in view.properties for view in views)

    @contextmanager
    def process(self, group: str, views: Sequence[MessageView], model: str) -> Iterator[Span]:
        """The span of what a listener does. `model`: clustering or broadcasting."""
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
        """The listener has failed, or says that the messages are to come again."""
        if error is not None:
            _fail(span, error)
        else:
            span.set_attribute(names.ERROR_TYPE, "retry_later")
            span.set_status(Status(StatusCode.ERROR, "to be consumed again"))

    def receive(self, group: str, views: Sequence[MessageView], model: str, begun_ns: int) -> None:
        """A poll has brought these; it began then, of the wall clock."""
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
        if message.delay_level:
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


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, str(error)))


def _carried(properties: Mapping[str, str]) -> Context | None:
    """What a message carries; None: nothing."""
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
    """The message, carrying this span; as it is where there is nothing to carry."""
    found: dict[str, str] = {}
    propagate.inject(found, context=trace.set_span_in_context(span))
    parent = found.pop(names.TRACEPARENT, None)
    if parent is None:
        return message
    if sum(map(len, found.values())) > CARRIED_CHARS_MAX:
        found = {}
    more = {name: value for name, value in found.items() if value and name in names.CARRIED}
    return replace(message, properties={**message.properties, names.TRACEPARENT: parent, **more})
