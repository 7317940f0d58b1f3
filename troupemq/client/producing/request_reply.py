"""Request-reply: a message, and the reply of its consumer.

    producer   sends a message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL
    consumer   sends create_reply_message(request, body) to <cluster>_REPLY_TOPIC, by any producer
    broker     sends PUSH_REPLY_MESSAGE_TO_CLIENT (326) over the connection of the first producer's
               heartbeats; therefore that producer sends every broker of the cluster one first

Source: client/producer/RequestFutureHolder.java, client/utils/MessageUtil.java,
client/impl/ClientRemotingProcessor.java.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import Protocol

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.send import ReplyMessageHeader
from protocol.properties import (
    ARRIVE_TIME,
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    UNIQ_KEY,
    parse,
)
from protocol.topic_names import REPLY_TOPIC_SUFFIX
from troupemq.client.arguments import check_instance
from troupemq.client.callbacks import ResultFuture
from troupemq.client.connection.client import Client, RequestHandler, now_ms
from troupemq.client.connection.route import RouteCache
from troupemq.client.connection.task_thread import Task
from troupemq.client.errors import (
    ClientClosed,
    ClientError,
    MessageIllegal,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.log import client_logger
from troupemq.client.message import Message, MessageQueue, MessageView, SendResult
from troupemq.client.producing.sending import REPLY

log = client_logger(__name__)

MEET_AGAIN_S = 10.0
"""Pause before a request tries an unreachable broker again."""


def request_of(message: Message, client_id: str, timeout_ms: float) -> Message:
    from uuid import uuid4

    system = {
        **message.system_properties,
        CORRELATION_ID: str(uuid4()),
        REPLY_TO_CLIENT: client_id,
        TTL: str(int(timeout_ms)),
    }
    return replace(message, system_properties=system)


def create_reply_message(request: MessageView, body: bytes) -> Message:
    """Return the reply to a received message; send it once, with any Producer.

        def listen(messages):
            for message in messages:
                producer.send(create_reply_message(message, b"..."))

    Raises MessageIllegal for a message that is not a request.
    """
    check_instance(request, MessageView, "a reply is to a message that was received")
    wanted = {name: request.properties.get(name) for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL)}
    cluster = request.properties.get(CLUSTER)
    missing = [name for name, value in {**wanted, CLUSTER: cluster}.items() if not value]
    if missing:
        lacking = ", ".join(missing)
        raise MessageIllegal(f"{request.message_id} is not a request: it has no {lacking}")
    system = {MSG_TYPE: REPLY, **{name: value for name, value in wanted.items() if value}}
    return Message(f"{cluster}{REPLY_TOPIC_SUFFIX}", body, system_properties=system)


@dataclass(slots=True, eq=False)
class _Expected:
    reply: "ReplyTo"
    is_sent: bool = False


class ReplyTo(Protocol):
    """Future of a reply, of a thread or of an event loop."""

    def set_result(self, reply: MessageView, /) -> object: ...

    def set_exception(self, error: ClientError, /) -> object: ...


class ReplyClient(Protocol):
    """The parts of a client that replies need; none of them blocks."""

    serves: dict[int, RequestHandler]
    asked_by: str

    @property
    def routes(self) -> RouteCache: ...

    @property
    def remoting(self) -> "ReplyRemoting": ...


class ReplyRemoting(Protocol):
    def is_connected(self, address: str) -> bool: ...

    def later(self, delay_ms: float, task: Callable[[], None]) -> None: ...


class ReplyTable:
    """Open requests of one producer; for any thread. Nothing blocks."""

    def __init__(self, client: ReplyClient) -> None:
        self._known_to = client
        self._expected: dict[str, _Expected] = {}
        self._tried_s: dict[str, float] = {}
        self._asked_clusters: set[str] = set()
        self._lock = Lock()
        client.serves[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._reply_came

    # --- the brokers that may push a reply

    def topics_to_ask(self, clusters: AbstractSet[str]) -> list[str]:
        """Return the reply topics of clusters that were never asked for; their routes are next."""
        with self._lock:
            new = clusters - self._asked_clusters
            self._asked_clusters |= clusters
        return [cluster + REPLY_TOPIC_SUFFIX for cluster in sorted(new)]

    def not_asked(self, topic: str, error: ClientError) -> None:
        """Pass over a missing reply topic. Raises any other error."""
        if not isinstance(error, RouteNotFound):
            raise error
        log.debug("reply topic not found", topic=topic)

    def unknown_brokers(self, addresses: Sequence[str]) -> list[str]:
        """Return the brokers to send a heartbeat to, and note that they get one."""
        is_connected = self._known_to.remoting.is_connected
        return [each for each in addresses if not is_connected(each) and self._may_try(each)]

    def _is_due(self, address: str) -> bool:
        return monotonic() - self._tried_s.get(address, -MEET_AGAIN_S) >= MEET_AGAIN_S

    def _may_try(self, address: str) -> bool:
        with self._lock:
            may = self._is_due(address)
            if may:
                self._tried_s[address] = monotonic()
            return may

    # --- requests

    def expect(self, request: Message, timeout_ms: float, reply: ReplyTo) -> None:
        """Register a request until its timeout."""
        correlation_id = request.system_properties[CORRELATION_ID]
        self._expected[correlation_id] = _Expected(reply)
        self._known_to.remoting.later(timeout_ms, lambda: self._expire(correlation_id, timeout_ms))

    def forget(self, request: Message) -> None:
        """Drop a request that nothing waits for any more."""
        self._expected.pop(request.system_properties[CORRELATION_ID], None)

    def failed(self, request: Message, error: ClientError) -> None:
        expected = self._expected.pop(request.system_properties[CORRELATION_ID], None)
        if expected is not None:
            expected.reply.set_exception(error)

    def sent(self, request: Message, done: "DoneSend") -> None:
        """Record that a request was stored, or fail it with the error of its send."""
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, ClientError):
            self.failed(request, error)
        elif expected := self._expected.get(request.system_properties[CORRELATION_ID]):
            expected.is_sent = True

    def _expire(self, correlation_id: str, timeout_ms: float) -> None:
        expected = self._expected.pop(correlation_id, None)
        if expected is not None:
            what = "stored" if expected.is_sent else "not known to be stored"
            error = RequestTimeout(f"no reply in {timeout_ms:.0f} ms; the request is {what}")
            expected.reply.set_exception(error)

    def close(self) -> None:
        """Fail all open requests with ClientClosed."""
        for correlation_id in list(self._expected):
            expected = self._expected.pop(correlation_id, None)
            if expected is not None:
                expected.reply.set_exception(ClientClosed("the client is stopped"))

    def _reply_came(self, command: RemotingCommand) -> RemotingCommand:
        """Deliver a reply, on the I/O thread; as in Java, an unexpected reply is answered, too."""
        header = ReplyMessageHeader.decode(command.fields)
        properties = parse((header.properties or "").encode())
        properties[ARRIVE_TIME] = str(now_ms())
        expected = self._expected.pop(properties.get(CORRELATION_ID, ""), None)
        if expected is None:
            log.warning("unexpected reply ignored", host=header.born_host, topic=header.topic)
        else:
            broker_name = self._known_to.routes.name_of(self._known_to.asked_by)
            queue = MessageQueue(header.topic, broker_name, header.queue_id)
            body = bytes(command.body or b"")
            expected.reply.set_result(_view_of(header, properties, body, queue))
        return command.answer()


def _view_of(
    header: ReplyMessageHeader, properties: Mapping[str, str], body: bytes, queue: MessageQueue
) -> MessageView:
    """Return the view of a reply; its offsets are unknown."""
    return MessageView(
        topic=header.topic,
        stored_body=body,
        properties=MappingProxyType(properties),
        message_id=properties.get(UNIQ_KEY, ""),
        offset_message_id="",
        queue=queue,
        queue_offset=-1,
        flag=header.flag,
        born_timestamp_ms=header.born_timestamp,
        store_timestamp_ms=header.store_timestamp,
        born_host=header.born_host,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times or 0,
        physical_offset=-1,
        stored_bytes=len(body),
        sys_flag=header.sys_flag,
    )


class DoneSend(Protocol):
    """Future of a send that is done."""

    def cancelled(self) -> bool: ...

    def exception(self) -> BaseException | None: ...


class Requests(ReplyTable):
    """Open requests of a threaded producer; for any thread."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._client = client

    def ask(
        self,
        request: Message,
        timeout_ms: float,
        send: Callable[[], Future[SendResult]],
        run: Callable[[Task], None],
    ) -> Future[MessageView]:
        """Send a request with `send` and return a future; `run` runs blocking steps elsewhere."""
        reply: Future[MessageView] = ResultFuture()
        reply.set_running_or_notify_cancel()
        self.expect(request, timeout_ms, reply)

        def begin() -> None:
            try:
                sent = send()
            except ClientError as error:
                self.failed(request, error)
            else:
                sent.add_done_callback(lambda done: self.sent(request, done))

        def meet_and_begin() -> None:
            try:
                self._meet_brokers(request.topic)
            except ClientError as error:
                self.failed(request, error)
            else:
                context.run(begin)

        if self._has_met_brokers(request.topic):
            begin()
        else:
            context = copy_context()  # keeps the caller's span on the other thread
            run(meet_and_begin)
        return reply

    def _has_met_brokers(self, topic: str) -> bool:
        """Return whether `_meet_brokers` would do nothing."""
        route = self._client.routes.known(topic)
        if route is None or not route.publish_queues or route.clusters - self._asked_clusters:
            return False
        addresses = self._client.routes.all_addresses(masters_only=True)
        is_connected = self._client.remoting.is_connected
        return all(is_connected(each) or not self._is_due(each) for each in addresses)

    def _meet_brokers(self, topic: str) -> None:
        """Send a heartbeat to each broker that may push the reply. Blocks; raises ClientError."""
        routes = self._client.routes
        for name in self.topics_to_ask(routes.publish_route(topic).clusters):
            try:
                routes.look_up(name)
            except ClientError as error:
                self.not_asked(name, error)
        unknown = self.unknown_brokers(routes.all_addresses(masters_only=True))
        self._client.run(self._client.heartbeating(unknown))
