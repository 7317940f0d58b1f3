"""Requests of brokers to a push consumer, most of them on behalf of an administrator.

    220 RESET_CONSUMER_CLIENT_OFFSET      continue at other offsets
    221 GET_CONSUMER_STATUS_FROM_CLIENT   return the consumer offsets
    307 GET_CONSUMER_RUNNING_INFO         return settings, queues and figures
    309 CONSUME_MESSAGE_DIRECTLY          consume this message and return the result

Source: client/impl/ClientRemotingProcessor.java, client/impl/factory/MQClientInstance.java.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from protocol.bodies import MessageQueue as QueueKey
from protocol.bodies_client import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetList,
)
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    ConsumeMessageDirectlyHeader,
    GetConsumerRunningInfoHeader,
    GetConsumerStatusHeader,
    ResetOffsetHeader,
)
from protocol.message import RecordError, decode_records
from troupemq.client.connection.client import RequestHandler
from troupemq.client.connection.pending import Answer
from troupemq.client.consuming.consume import Consuming
from troupemq.client.consuming.listener import Outcome
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, view_of

DIRECT_MAX = 32
"""Messages that administrators have consumed directly, at once; each may have 16 MiB."""
TOO_MANY_DIRECT = "this client consumes too many messages directly: ask again later"


class Reporting(Protocol):
    """A consumer that reports its state."""

    group: str

    def info(self, *, stacks: bool = False) -> ConsumerRunningInfo: ...


class Asked(Reporting, Protocol):
    orderly: bool


@dataclass(frozen=True)
class ConsumerRequests:
    """Handlers of the requests, on the I/O thread or event loop; what waits runs elsewhere."""

    consumer: Asked
    rebalancing: Rebalancing
    consuming: Consuming
    direct: set[Answer] = field(default_factory=set)
    """Open answers to CONSUME_MESSAGE_DIRECTLY."""

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def _status(self, command: RemotingCommand) -> RemotingCommand:
        try:
            header = GetConsumerStatusHeader.decode(command.fields)
        except RemoteError as error:
            return command.answer(error.code, remark=error.remark)
        own = self.rebalancing.own if header.group == self.consumer.group else {}
        table = {
            QueueKey(queue.topic, queue.broker_name, queue.queue_id): held.committable()
            for queue, held in own.items()
            if not header.topic or header.topic == queue.topic
        }
        return command.answer(body=ConsumerStatusBody(table).encode())

    def _running_info(self, command: RemotingCommand) -> RemotingCommand:
        return answer_running_info(command, self.consumer)

    def _consume_directly(self, command: RemotingCommand) -> RemotingCommand | Answer:
        try:
            header = ConsumeMessageDirectlyHeader.decode(command.fields)
            (record,) = decode_records(bytes(command.body or b""))
        except RemoteError as error:
            return command.answer(error.code, remark=error.remark)
        except (RecordError, ValueError) as error:
            remark = f"not one message: {error}"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        if header.consumer_group != self.consumer.group:
            return _not_here(command, header.consumer_group)
        if len(self.direct) >= DIRECT_MAX:
            return command.answer(ResponseCode.SYSTEM_BUSY, remark=TOO_MANY_DIRECT)
        queue = MessageQueue(record.topic, header.broker_name or "", record.queue_id)
        answer: Answer = Future()
        self.direct.add(answer)

        def then(outcome: Outcome, took_ms: float) -> None:
            result = ConsumeMessageDirectlyResult(
                order=self.consumer.orderly,
                consume_result=_result_name(outcome),
                remark=_remark(outcome),
                spent_time_mills=int(took_ms),
            )
            self.direct.discard(answer)
            answer.set_result(command.answer(body=result.encode()))

        self.consuming.directly(view_of(record, queue), then)
        return answer


def _result_name(outcome: Outcome) -> str:
    if outcome.error is not None:
        return "CR_THROW_EXCEPTION"
    return "CR_SUCCESS" if outcome.failed is None else "CR_LATER"


def _remark(outcome: Outcome) -> str | None:
    return None if outcome.error is None else outcome.reason


def answer_running_info(command: RemotingCommand, consumer: Reporting) -> RemotingCommand:
    """Return the state of a consumer."""
    try:
        header = GetConsumerRunningInfoHeader.decode(command.fields)
    except RemoteError as error:
        return command.answer(error.code, remark=error.remark)
    if header.consumer_group != consumer.group:
        return _not_here(command, header.consumer_group)
    return command.answer(body=consumer.info(stacks=header.jstack_enable).encode())


def _not_here(command: RemotingCommand, group: str) -> RemotingCommand:
    remark = f"The Consumer Group <{group}> not exist in this consumer"
    return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)


log = client_logger(__name__)


def requested_offsets(command: RemotingCommand, group: str) -> list[tuple[MessageQueue, int]]:
    """Return queues and offsets of a reset of this group; log another or an invalid one."""
    try:
        header = ResetOffsetHeader.decode(command.fields)
        offsets = list(_offsets(command.body))
    except RemoteError as error:
        log.warning("invalid offset reset rejected", reason=error.remark)
        return []
    if header.group != group:
        log.info("offset reset of another group ignored", group=header.group)
        return []
    return [each for each in offsets if each[0].topic == header.topic]


def _offsets(body: bytes | memoryview | None) -> Iterable[tuple[MessageQueue, int]]:
    """Yield queues and offsets of a reset, from the form of Java or that of C++ clients."""
    try:
        table = ResetOffsetBody.decode(body).offset_table
    except RemoteError:
        for each in ResetOffsetList.decode(body).offset_table:
            yield MessageQueue(each.topic, each.broker_name, each.queue_id), each.offset
        return
    for key, offset in table.items():
        yield MessageQueue(key.topic, key.broker_name, key.queue_id), offset
