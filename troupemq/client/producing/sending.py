"""In-flight sends: retries, deadline and result of each, and lanes of those that have to wait.

Some sends cannot start on their caller's thread, because they would block it:

    route of the topic missing   one thread asks the name servers, once for all waiting sends
    long body to compress        another thread compresses it, so that no name server delays it

The waiting sends of a topic form a lane. They start in order, and later sends of the topic queue up
behind them.
"""

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import index
from threading import Lock
from time import monotonic
from typing import Any, Protocol

from protocol.codes import TRANSACTION_PREPARED, RequestCode, ResponseCode
from protocol.compression import compress
from protocol.frame import RemotingCommand
from protocol.headers.send import (
    BORN_TIMESTAMP_V2,
    FLAG_V2,
    MSG_REGION,
    PROPERTIES_V2,
    SYS_FLAG_V2,
    TRACE_ON,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from protocol.properties import MSG_TYPE, TRAN_MSG
from troupemq.client.callbacks import unknown_result
from troupemq.client.connection.client import Client, now_ms
from troupemq.client.connection.pending import Waiting
from troupemq.client.connection.route import (
    DEFAULT_TOPIC,
    DEFAULT_TOPIC_QUEUE_COUNT,
    RouteCache,
)
from troupemq.client.connection.task_thread import Task, TaskThread
from troupemq.client.errors import (
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    QueueChoiceFailed,
    RequestTimeout,
    RouteNotFound,
    understood,
)
from troupemq.client.log import client_logger
from troupemq.client.message import (
    DEFAULT_REGION,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from troupemq.client.producing.queue_choice import LearningChoice, QueueChoice, away_from

log = client_logger(__name__)

STATUS_OF_CODE: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""Response codes of stored messages."""

ROUTE_CODES = frozenset((ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION))
"""Codes that hint at a changed route."""

SAME_BROKER_PAUSE_MS = 100.0
"""Pause before another try at the broker that has just failed."""

SECONDS_PERHAPS_MS = 60
"""Timeout up to which the error asks whether seconds were meant."""

COMMON_FIELDS_MAX = 4096
"""Limit of queues whose fields are kept."""

RECALL_HANDLE = "recallHandle"
"""Field of answers to sends of timers."""

REPLY = "reply"
"""MSG_TYPE of a reply."""


class SendResultFuture(Protocol):
    """Receiver of a send's result: a future of a thread or of an event loop."""

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, error: ClientError, /) -> None: ...

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


@dataclass(slots=True, eq=False)
class EncodedMessage:
    """One message or one batch, encoded for the broker."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    flag: int = 0
    sys_flag: int = 0
    code: int = RequestCode.SEND_MESSAGE_V2

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.properties)

    def compressed(self) -> "EncodedMessage":
        body, sys_flag = compress(self.body, self.sys_flag)
        return EncodedMessage(
            self.topic, body, self.properties, self.message_id, self.flag, sys_flag, self.code
        )


def parcel_of(message: Message, message_id: str) -> EncodedMessage:
    system = message.system_properties
    parcel = EncodedMessage(
        message.topic,
        message.body,
        message.wire_properties(message_id).decode(),
        message_id,
        message.flag,
    )
    if system:
        if TRAN_MSG in system:
            parcel.sys_flag = TRANSACTION_PREPARED
        if system.get(MSG_TYPE) == REPLY:
            parcel.code = RequestCode.SEND_REPLY_MESSAGE_V2
    return parcel


class SendingClient(Protocol):
    """The parts of a client that a send uses; none of them blocks."""

    @property
    def routes(self) -> RouteCache: ...

    @property
    def remoting(self) -> "SendingRemoting": ...

    def refresh_soon(self, topic: str) -> None: ...


class SendingRemoting(Protocol):
    def call_for(
        self, waiting: Waiting, address: str, command: RemotingCommand, timeout_ms: float
    ) -> None: ...

    def oneway(self, address: str, command: RemotingCommand) -> None: ...

    def is_connected(self, address: str) -> bool: ...

    def later(self, delay_ms: float, task: Callable[[], None]) -> None: ...


class Sender:
    """Sends the requests of one producer to its brokers."""

    def __init__(self, client: SendingClient, producer_group: str) -> None:
        self._client = client
        self._group = producer_group
        self._common: dict[tuple[str, str, int, int], dict[str, str]] = {}
        """Fields that all sends to one queue have, by topic, broker, queue and code."""

    def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the writable queues of the known route; empty without one."""
        route = self._client.routes.known(topic)
        return route.publish_queues if route is not None else ()

    def is_unreached(self, broker_name: str) -> bool:
        """Return whether no connection to the master of a known broker is open."""
        try:
            address = self._client.routes.master(broker_name)
        except RouteNotFound:
            return False
        return not self._client.remoting.is_connected(address)

    def post(
        self, sending: "Sending", queue: MessageQueue, parcel: EncodedMessage, timeout_ms: float
    ) -> None:
        """Send to the queue's master. Raises RouteNotFound if it is unknown."""
        address = self._client.routes.master(queue.broker_name)
        command = self._command(queue, parcel)
        self._client.remoting.call_for(sending, address, command, timeout_ms)

    def _command(self, queue: MessageQueue, parcel: EncodedMessage) -> RemotingCommand:
        key = parcel.topic, queue.broker_name, queue.queue_id, parcel.code
        fields = self._common.get(key)
        if fields is None:
            if len(self._common) >= COMMON_FIELDS_MAX:
                self._common.clear()
            fields = self._common[key] = self._common_fields(queue, parcel)
        fields = {
            **fields,
            SYS_FLAG_V2: str(parcel.sys_flag),
            BORN_TIMESTAMP_V2: str(now_ms()),
            FLAG_V2: str(parcel.flag),
            PROPERTIES_V2: parcel.properties,
        }
        return RemotingCommand(parcel.code, fields, parcel.body)

    def _common_fields(self, queue: MessageQueue, parcel: EncodedMessage) -> dict[str, str]:
        header = SendMessageHeader(
            producer_group=self._group,
            topic=parcel.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_COUNT,
            queue_id=index(queue.queue_id),  # True has the key of 1, and another text
            sys_flag=0,
            born_timestamp=0,
            flag=0,
            properties="",
            reconsume_times=0,
            batch=parcel.code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )
        return header.encode_v2()

    def post_oneway(self, queue: MessageQueue, parcel: EncodedMessage) -> None:
        """Send to the queue's master without an answer. Raises ClientError if nothing was sent."""
        try:
            address = self._client.routes.master(queue.broker_name)
            self._client.remoting.oneway(address, self._command(queue, parcel))
        except ClientError:
            self.route_in_doubt(parcel.topic)
            raise

    def later(self, delay_ms: float, task: Callable[[], None]) -> None:
        self._client.remoting.later(delay_ms, task)

    def route_in_doubt(self, topic: str) -> None:
        """Refresh a route that may have changed, soon."""
        self._client.refresh_soon(topic)


def chosen(choose: QueueChoice, queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Return the queue that `choose` returns for the message.

    Raises RouteNotFound without queues, QueueChoiceFailed if `choose` fails or returns no queue,
    MessageIllegal for a queue of another topic.
    """
    if not queues:
        raise RouteNotFound(f"no broker takes messages for {message.topic}")
    try:
        queue = choose(queues, message)
    except (Exception, SystemExit) as error:  # an application error fails this send only
        raise QueueChoiceFailed(f"no queue was chosen: {error!r}") from error
    if not isinstance(queue, MessageQueue):
        unknown = unknown_result(queue, "choose", "it returns one of the queues")
        raise QueueChoiceFailed(f"no queue was chosen, but {queue!r}: {unknown}")
    try:
        index(queue.queue_id)
    except TypeError:
        raise QueueChoiceFailed(
            f"no queue was chosen: a queue id is an integer, and not {queue.queue_id!r}"
        ) from None
    if queue.topic != message.topic:
        raise MessageIllegal(f"a message to {message.topic} cannot go to the queue {queue}")
    return queue


@dataclass(slots=True, eq=False)
class Sending:
    """A send that retries until it is stored, its tries or its time are used up, or it must fail.

    It receives its answers like a Future: all steps after the first try run on the I/O thread.
    `not_ok_is_tried_again` also tries another broker for a message stored with another status
    than OK.
    """

    carrier: Sender
    parcel: EncodedMessage
    message: Message
    choose: QueueChoice
    tries_left: int
    deadline_s: float
    try_timeout_ms: float | None
    retried_codes: frozenset[int]
    not_ok_is_tried_again: bool
    result: SendResultFuture
    timeout_ms: float
    """Timeout of all tries, as the caller passed it."""

    compresses: bool = False
    """Whether its body must still be compressed."""

    tried: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    stored: SendResult | None = None
    begun_s: float = 0.0
    """Start of the last try, in monotonic seconds."""

    queue: MessageQueue | None = None
    """Queue of the last try; None if no queue was chosen."""

    @property
    def is_half(self) -> bool:
        return TRAN_MSG in self.message.system_properties

    def next_try(self) -> None:
        """Start the next try. Raises nothing: errors become the result of the send."""
        self.queue = None
        self.tries_left -= 1
        self.begun_s = monotonic()
        try:
            left_ms = (self.deadline_s - self.begun_s) * 1000
            if left_ms <= 0:
                raise RequestTimeout(
                    f"the timeout of a send to {self.parcel.topic} expired before this try"
                )
            queue = self.queue = self._choose_queue()
            self.tried.add(queue.broker_name)
            timeout_ms = min(left_ms, self.try_timeout_ms or left_ms)
            self.carrier.post(self, queue, self.parcel, timeout_ms)
        except ClientError as error:
            self.set_exception(error)

    def _choose_queue(self) -> MessageQueue:
        queues = self.carrier.queues_of(self.parcel.topic)
        return chosen(self.choose, away_from(self.tried, queues), self.message)

    def set_result(self, response: RemotingCommand) -> None:
        queue = self.queue
        assert queue is not None
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            self.set_exception(BrokerError(response.code, response.remark, queue.broker_name))
            return
        try:
            header = understood(SendMessageResponseHeader.decode, response.fields)
        except ClientError as bad_answer:
            self.set_exception(bad_answer)
            return
        self._learn(queue, failed=False)
        fields = response.fields or {}
        result = SendResult(
            status,
            self.parcel.message_id,
            header.msg_id,
            MessageQueue(queue.topic, queue.broker_name, header.queue_id),
            header.queue_offset,
            fields.get(MSG_REGION, DEFAULT_REGION),
            fields.get(TRACE_ON) == "true",
            fields.get(RECALL_HANDLE),
        )
        if status is not SendStatus.OK and self.not_ok_is_tried_again and self._may_try_again():
            self.stored = self.stored or result
            self._again(f"{queue.broker_name} answered {status.name}")
            return
        self.result.set_result(result)

    def _learn(self, queue: MessageQueue, *, failed: bool) -> None:
        if isinstance(self.choose, LearningChoice):
            latency_ms = (monotonic() - self.begun_s) * 1000
            try:
                self.choose.learn(queue.broker_name, latency_ms, failed)
            except (Exception, SystemExit):  # of the application: the I/O thread must go on
                log.error("queue choice update failed", broker=queue.broker_name, exc_info=True)

    def set_exception(self, error: ClientError) -> None:
        """Take the failure of the last try: retry, or fail the send."""
        lost = isinstance(error, ConnectionFailed | RequestTimeout | RouteNotFound)
        code = error.code if isinstance(error, BrokerError) else None
        if self.queue is not None:
            self._learn(self.queue, failed=True)
        if lost or code in ROUTE_CODES:
            self.carrier.route_in_doubt(self.parcel.topic)
        if (lost or code in self.retried_codes) and self._may_try_again():
            self._again(str(error))
            return
        if self.stored is not None:
            self.result.set_result(self.stored)
            return
        self.note_short_timeout(error)
        self._note_address(error)
        for failure in self.failures:
            error.add_note(f"before that: {failure}")
        self.result.set_exception(error)

    def _note_address(self, error: ClientError) -> None:
        """Note the setting of an address that cannot be reached, as in a container."""
        name = "" if self.queue is None else self.queue.broker_name
        if isinstance(error, ConnectionFailed | RequestTimeout) and self.carrier.is_unreached(name):
            error.add_note(
                f"{name} has registered this address at the name server: if it runs, set its"
                " brokerIP1 to an address that clients reach"
            )

    def note_short_timeout(self, error: ClientError) -> None:
        """Note the unit at a timeout that was perhaps meant in seconds."""
        if isinstance(error, RequestTimeout) and self.timeout_ms <= SECONDS_PERHAPS_MS:
            error.add_note(f"the timeout was {self.timeout_ms:g} milliseconds, not seconds")

    def _may_try_again(self) -> bool:
        return self.tries_left > 0 and monotonic() < self.deadline_s

    def _again(self, failure: str) -> None:
        """Try another broker at once, or the same one after a pause if all were tried."""
        self.failures.append(failure)
        names = {queue.broker_name for queue in self.carrier.queues_of(self.parcel.topic)}
        if names <= self.tried:
            self.carrier.later(SAME_BROKER_PAUSE_MS, self.next_try)
        else:
            self.next_try()


class OnewaySending(Sending):
    """A send without an answer: it is done once its request is written, with its message id."""

    __slots__ = ()

    def next_try(self) -> None:
        try:
            queue = self._choose_queue()
            self.carrier.post_oneway(queue, self.parcel)
        except ClientError as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(SendResult(SendStatus.OK, self.parcel.message_id, "", queue, -1))


class Lanes:
    """The lanes of one producer; for any thread. No method blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lanes: dict[str, deque[Sending]] = {}
        self._waiting: set[Sending] = set()
        """Sends in any lane before their deadline."""

        self._lock = Lock()
        self._asking = TaskThread("troupemq-routes")
        self._working = TaskThread("troupemq-compress")
        self._started: set[TaskThread] = set()
        self._closed = False

    def submit(self, sending: Sending) -> None:
        """Start a send now, or as soon as its route is known and its body compressed."""
        topic = sending.parcel.topic
        has_route = bool(sending.carrier.queues_of(topic))
        if has_route and not sending.compresses and topic not in self._lanes:
            sending.next_try()
            return
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._waiting.add(sending)
                lane = self._lanes.get(topic)
                if lane is None:
                    self._lanes[topic] = deque((sending,))
                    thread = self._working if has_route else self._asking
                    task = self._drains(topic) if has_route else self._looks_up(topic)
                    self._run(thread, task)
                else:
                    lane.append(sending)
        if is_closed:
            sending.result.set_exception(ClientClosed("the client is stopped"))
        elif not has_route:
            left_ms = (sending.deadline_s - monotonic()) * 1000
            self._client.remoting.later(left_ms, lambda: self._expire(sending))

    def run(self, task: Task) -> None:
        """Run a task that asks name servers or brokers on the look-up thread."""
        with self._lock:
            self._run(self._asking, task)

    def close(self) -> None:
        """Fail the sends that have not started, and stop the threads without waiting for them."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, set()
            self._lanes.clear()
        for sending in waiting:
            sending.result.set_exception(ClientClosed("the client is stopped"))
        for thread in self._started:
            thread.stop(0)

    def _run(self, thread: TaskThread, task: Task) -> None:
        """Post a task, starting the thread at its first one. The caller holds the lock."""
        if thread not in self._started:
            self._started.add(thread)
            thread.start()
        thread.post(task)

    def _looks_up(self, topic: str) -> Callable[[], None]:
        return lambda: self._look_up(topic)

    def _drains(self, topic: str) -> Callable[[], None]:
        return lambda: self._drain(topic)

    def _look_up(self, topic: str) -> None:
        with self._lock:
            if not any(each in self._waiting for each in self._lanes.get(topic, ())):
                self._lanes.pop(topic, None)  # All timed out: do not ask a slow name server.
                return
        try:
            self._client.routes.publish_route(topic)
        except ClientError as error:
            with self._lock:
                lane = self._lanes.pop(topic, deque())
                failed = [each for each in lane if each in self._waiting]
                self._waiting.difference_update(failed)
            for sending in failed:
                sending.result.set_exception(copy(error))  # a copy each: notes are added to errors
            return
        with self._lock:
            if not self._closed:
                self._run(self._working, self._drains(topic))

    def _drain(self, topic: str) -> None:
        """Start the sends of a lane in order; remove the lane when it is empty."""
        while True:
            with self._lock:
                lane = self._lanes.get(topic)
                if not lane:
                    self._lanes.pop(topic, None)
                    return
                sending = lane.popleft()
                is_due = sending in self._waiting
                self._waiting.discard(sending)
            if is_due:
                if sending.compresses:
                    sending.parcel = sending.parcel.compressed()
                sending.next_try()

    def _expire(self, sending: Sending) -> None:
        """Fail a send that still waits for its route at its deadline."""
        with self._lock:
            if sending not in self._waiting:
                return
            self._waiting.discard(sending)
        topic = sending.parcel.topic
        unanswered = self._client.routes.no_answer("no answer within the send's timeout")
        error = RequestTimeout(f"no route of the topic {topic}: {unanswered}")
        sending.note_short_timeout(error)
        sending.result.set_exception(error)
