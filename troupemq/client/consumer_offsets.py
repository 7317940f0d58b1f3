"""How far a consumer group has come in each queue, kept at the broker (clustering)."""

from enum import Enum
from threading import Lock

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.client import Client
from troupemq.client.errors import BrokerError, ClientError, understood
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

OFFSET_TIMEOUT_MS = 5000


class ConsumeFrom(Enum):
    """Where a group begins in a queue that it has no offset of.

    A broker answers 0 for a young queue, whose first message is still there and recent: then a new
    group begins at the first message whatever was chosen. So does 4.9.7.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumerOffsets:
    """Reads and writes one group's offsets; for any thread, all but `commit_oneway` block."""

    def __init__(self, client: Client, group: str, begin: ConsumeFrom, begin_ms: int) -> None:
        """`begin_ms` is the store time to begin at with ConsumeFrom.TIMESTAMP."""
        self._client = client
        self._group = group
        self._begin = begin
        self._begin_ms = begin_ms
        self._lock = Lock()
        self._committed: dict[MessageQueue, int] = {}

    def start_of(self, queue: MessageQueue) -> int:
        """Where the group goes on in `queue`.

        A first position is committed at once: were it worked out again after a rebalance, "the
        end" would be further on, and what came in between would be lost. Raises ClientError.
        """
        header = QueryConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, queue.broker_name
        )
        try:
            return self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
        offset = self._first_position(queue)
        self.commit(queue, offset)
        return offset

    def _first_position(self, queue: MessageQueue) -> int:
        topic, queue_id, broker_name = queue.topic, queue.queue_id, queue.broker_name
        if topic.startswith(RETRY_TOPIC_PREFIX) or self._begin is ConsumeFrom.FIRST_OFFSET:
            code, fields = RequestCode.GET_MIN_OFFSET, QueueHeader(topic, queue_id, broker_name)
            return self._ask(queue, code, fields.encode())
        if self._begin is ConsumeFrom.TIMESTAMP:
            search = SearchOffsetHeader(topic, queue_id, self._begin_ms, broker_name)
            return self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.encode())
        fields = QueueHeader(topic, queue_id, broker_name)
        return self._ask(queue, RequestCode.GET_MAX_OFFSET, fields.encode())

    def _ask(self, queue: MessageQueue, code: RequestCode, fields: dict[str, str]) -> int:
        address = self._client.routes.address(queue.broker_name)
        command = RemotingCommand(code, fields)
        answer = self._client.remoting.ask(address, command, OFFSET_TIMEOUT_MS)
        return understood(OffsetResponseHeader.decode, answer.fields).offset

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Stores `offset` and waits for the broker's word. Raises ClientError."""
        address = self._client.routes.address(queue.broker_name)
        self._client.remoting.ask(address, self._update(queue, offset), OFFSET_TIMEOUT_MS)
        self._remember(queue, offset)

    def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        """Stores `offset` unless it was stored already; a failure is made good by the next one."""
        if self._committed.get(queue) == offset:
            return
        try:
            address = self._client.routes.address(queue.broker_name)
            self._client.remoting.oneway(address, self._update(queue, offset))
        except ClientError as error:
            log.warning("offset not committed", queue=str(queue), error=str(error))
            return
        self._remember(queue, offset)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is another consumer's."""
        with self._lock:
            self._committed.pop(queue, None)

    def _remember(self, queue: MessageQueue, offset: int) -> None:
        with self._lock:
            self._committed[queue] = offset

    def _update(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        header = UpdateConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, offset, queue.broker_name
        )
        return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
