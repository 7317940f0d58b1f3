"""Request-reply: a message, and the reply of its consumer.

    producer   sends a message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL
    consumer   sends create_reply_message(request, body) to <cluster>_REPLY_TOPIC, by any producer
    broker     sends PUSH_REPLY_MESSAGE_TO_CLIENT (326) over the connection of the first producer's
               heartbeats; therefore that producer sends every broker of the cluster one first

Source: client/producer/RequestFutureHolder.java, client/utils/MessageUtil.java,
client/impl/ClientRemotingProcessor.java.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from threading import Lock
from time import monotonic
from types import MappingProxyType
from uuid import uuid4

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
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
from troupemq.client.connection.client import Client, now_ms
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
    reply: Future[MessageView]
    is_sent: bool = False


class Requests:
    """Open requests of one producer; for any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._expected: dict[str, _Expected] = {}
        self._tried_s: dict[str, float] = {}
        self._asked_clusters: set[str] = set()
        self._lock = Lock()
        client.serves[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] = self._reply_came

    def ask(
        self,
        request: Message,
        timeout_ms: float,
        send: Callable[[], Future[SendResult]],
        run: Callable[[Task], None],
    ) -> Future[MessageView]:
        """Send a request with `send` and return a future; `run` runs blocking steps elsewhere."""
        reply = self._expect(request, timeout_ms)

        def begin() -> None:
            try:
                sent = send()
            except ClientError as error:
                self._failed(request, error)
            else:
                sent.add_done_callback(lambda done: self._sent(request, done))

        def meet_and_begin() -> None:
            try:
                self._meet_brokers(request.topic)
            except ClientError as error:
                self._failed(request, error)
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
        clusters = routes.publish_route(topic).clusters
        with self._lock:
            new = clusters - self._asked_clusters
            self._asked_clusters |= clusters
        for cluster in new:
            try:
                routes.look_up(cluster + REPLY_TOPIC_SUFFIX)
            except RouteNotFound:
                log.debug("reply topic not found", cluster=cluster)
        for address in routes.all_addresses(masters_only=True):
            if not self._client.remoting.is_connected(address) and self._may_try(address):
                self._client.heartbeat_to(address)

    def _is_due(self, address: str) -> bool:
        return monotonic() - self._tried_s.get(address, -MEET_AGAIN_S) >= MEET_AGAIN_S

    def _may_try(self, address: str) -> bool:
        with self._lock:
            may = self._is_due(address)
            if may:
                self._tried_s[address] = monotonic()
            return may

    def _expect(self, request: Message, timeout_ms: float) -> Future[MessageView]:
        """Register a request until its timeout; return a future of its reply."""
        correlation_id = request.system_properties[CORRELATION_ID]
        reply: Future[MessageView] = ResultFuture()
        reply.set_running_or_notify_cancel()
        self._expected[correlation_id] = _Expected(reply)
        self._client.remoting.later(timeout_ms, lambda: self._expire(correlation_id, timeout_ms))
        return reply

    def _failed(self, request: Message, error: ClientError) -> None:
        expected = self._expected.pop(request.system_properties[CORRELATION_ID], None)
        if expected is not None:
            expected.reply.set_exception(error)

    def _sent(self, request: Message, done: Future[SendResult]) -> None:
        """Record that a request was stored, or fail it with the error of its send."""
        correlation_id = request.system_properties[CORRELATION_ID]
        error = done.exception()
        if error is None:
            expected = self._expected.get(correlation_id)
            if expected is not None:
                expected.is_sent = True
        elif (expected := self._expected.pop(correlation_id, None)) is not None:
            expected.reply.set_exception(error)

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
            broker_name = self._client.routes.name_of(self._client.asked_by)
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
