"""One send under way: which brokers were tried, how long is left, what became of it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.compression import compress
from protocol.headers.send import SendMessageHeader, SendMessageResponseHeader
from troupemq.client.client import now_ms
from troupemq.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    understood,
)
from troupemq.client.message import MessageQueue, SendResult, SendStatus
from troupemq.client.route import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT

STATUS_OF_CODE: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The answers that mean: stored."""

RETRIED_CODES = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)
"""Another broker may do better: the Java client's list. SYSTEM_BUSY is not on it."""


@dataclass(slots=True)
class Parcel:
    """What is sent: one message, or several as a batch, in the form the broker stores."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False

    def compressed(self) -> "Parcel":
        """The same with its body compressed."""
        body, sys_flag = compress(self.body, self.sys_flag)
        return Parcel(
            self.topic, body, self.properties, self.message_id, self.flag, sys_flag, self.is_batch
        )

    def command(self, queue: MessageQueue, producer_group: str) -> RemotingCommand:
        """The request that stores it in `queue`."""
        header = SendMessageHeader(
            producer_group=producer_group,
            topic=self.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_COUNT,
            queue_id=queue.queue_id,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms(),
            flag=self.flag,
            properties=self.properties,
            reconsume_times=0,
            batch=self.is_batch,
            broker_name=queue.broker_name,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE_V2
        return RemotingCommand(code, header.encode_v2(), self.body)


@dataclass(slots=True)
class Sending:
    """Tries until the parcel is stored, tries or time run out, or trying again makes no sense.

    `choose` gives a queue away from the brokers tried, `post` sends a command to a queue's broker
    within some ms. After the first try everything happens on the I/O thread.
    """

    parcel: Parcel
    producer_group: str
    choose: Callable[[set[str]], MessageQueue]
    post: Callable[[MessageQueue, RemotingCommand, float], Future[RemotingCommand]]
    tries_left: int
    deadline_s: float
    try_timeout_ms: float | None
    result: Future[SendResult]
    tried: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def next_try(self) -> None:
        """Sends it (again)."""
        try:
            queue = self.choose(self.tried)
            self.tried.add(queue.broker_name)
            self.tries_left -= 1
            left_ms = max(0.0, (self.deadline_s - monotonic()) * 1000)
            timeout_ms = min(left_ms, self.try_timeout_ms or left_ms)
            command = self.parcel.command(queue, self.producer_group)
            answer = self.post(queue, command, timeout_ms)
        except ClientError as error:
            self._failed(error)
        else:
            answer.add_done_callback(lambda done: self._answered(queue, done))

    def _answered(self, queue: MessageQueue, answer: Future[RemotingCommand]) -> None:
        error = answer.exception()
        if error is not None:
            assert isinstance(error, ClientError)
            self._failed(error)
            return
        response = answer.result()
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            self._failed(BrokerError(response.code, response.remark, queue.broker_name))
            return
        try:
            header = understood(SendMessageResponseHeader.decode, response.fields)
        except ClientError as bad_answer:
            self._failed(bad_answer)
            return
        stored_in = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
        self.result.set_result(
            SendResult(
                status, self.parcel.message_id, header.msg_id, stored_in, header.queue_offset
            )
        )

    def _failed(self, error: ClientError) -> None:
        worth_trying = isinstance(error, ConnectionFailed | RequestTimeout) or (
            isinstance(error, BrokerError) and error.code in RETRIED_CODES
        )
        if worth_trying and self.tries_left > 0 and monotonic() < self.deadline_s:
            self.failures.append(str(error))
            self.next_try()
            return
        for failure in self.failures:
            error.add_note(f"before that: {failure}")
        self.result.set_exception(error)
