"""Offsets of a consumer group, kept at the broker (clustering)."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from time import monotonic

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
from troupemq.client.connection.client import Client, now_ms
from troupemq.client.connection.connection import Answer
from troupemq.client.connection.remoting import check_success
from troupemq.client.errors import ArgumentIllegal, BrokerError, ClientError, understood
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

OFFSET_TIMEOUT_MS = 5000
_TIME = re.compile(r"[0-9]{14}")
HALF_HOUR_MS = 1_800_000


class ConsumeFrom(Enum):
    """Where a group begins in a queue that it has no offset of.

    A broker answers 0 for a young queue, whose first message is still there and recent: then a new
    group begins at the first message whatever was chosen. So does 4.9.7.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def timestamp_ms(text: str) -> int:
    """The time (ms since 1970) of a text as the Java client takes it, in local time:
    `20261121143000`. Raises ArgumentIllegal, a ValueError."""
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise ArgumentIllegal(f"a time is 14 digits, such as 20261121143000, and not {text!r}")
    return int(datetime.strptime(text, "%Y%m%d%H%M%S").timestamp() * 1000)


def timestamp_text(time_ms: int) -> str:
    """The same the other way."""
    return datetime.fromtimestamp(time_ms // 1000).strftime("%Y%m%d%H%M%S")


class QueueEnds:
    """Where queues begin and end, and where in them a time is. For any thread, all block."""

    def __init__(
        self,
        client: Client,
        begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        begin_ms: int | None = None,
    ) -> None:
        """`begin_ms` is the store time to begin at with ConsumeFrom.TIMESTAMP, by default half an
        hour ago."""
        self._client = client
        self.begin = begin
        self.begin_ms = begin_ms if begin_ms is not None else now_ms() - HALF_HOUR_MS

    def first_position(self, queue: MessageQueue) -> int:
        """Where a group begins that has never consumed the queue. Raises ClientError."""
        if queue.topic.startswith(RETRY_TOPIC_PREFIX) or self.begin is ConsumeFrom.FIRST_OFFSET:
            return self.first(queue)
        if self.begin is ConsumeFrom.TIMESTAMP:
            return self.at_time(queue, self.begin_ms)
        return self.end(queue)

    def first(self, queue: MessageQueue) -> int:
        """The offset of the first message. Raises ClientError."""
        return self.ask(queue, RequestCode.GET_MIN_OFFSET, _fields(queue))

    def end(self, queue: MessageQueue) -> int:
        """The offset behind the last message. Raises ClientError."""
        return self.ask(queue, RequestCode.GET_MAX_OFFSET, _fields(queue))

    def at_time(self, queue: MessageQueue, time_ms: int) -> int:
        """The first message stored at or after that time; the last one if all are older. Raises
        ClientError."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, time_ms, queue.broker_name)
        return self.ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())

    def ask(self, queue: MessageQueue, code: RequestCode, fields: dict[str, str]) -> int:
        """The offset that the queue's broker answers. Raises ClientError."""
        self._client.routes.get(queue.topic)  # it may be a queue that others are told of
        address = self._client.routes.address(queue.broker_name)
        command = RemotingCommand(code, fields)
        answer = self._client.remoting.ask(address, command, OFFSET_TIMEOUT_MS)
        return understood(OffsetResponseHeader.decode, answer.fields).offset


def _fields(queue: MessageQueue) -> dict[str, str]:
    return QueueHeader(queue.topic, queue.queue_id, queue.broker_name).encode()


class Offsets(ABC):
    """Where a group's offsets are kept."""

    def __init__(self, ends: QueueEnds) -> None:
        self._ends = ends

    def start_of(self, queue: MessageQueue) -> int:
        """Where the group goes on, or begins, in `queue`.

        A first position is committed at once: were it worked out again after a rebalance, "the
        end" would be further on, and what came in between would be lost. Raises ClientError.
        """
        stored = self.stored(queue)
        if stored is not None:
            return stored
        offset = self._ends.first_position(queue)
        self.commit(queue, offset)
        return offset

    @abstractmethod
    def stored(self, queue: MessageQueue) -> int | None:
        """What is stored of `queue`; None if nothing is. Raises ClientError."""

    @abstractmethod
    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Stores `offset` and knows that it is stored. Raises ClientError."""

    @abstractmethod
    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stores them; a failure is logged, and made good by the next time."""

    def commit_last(self, offsets: Mapping[MessageQueue, int], timeout_s: float) -> None:
        """Stores them and waits for that; a failure is logged."""
        self.commit_all(offsets)


class GroupOffsets(Offsets):
    """Reads and writes one group's offsets; for any thread, all but `commit_all` block."""

    def __init__(self, client: Client, group: str, ends: QueueEnds) -> None:
        super().__init__(ends)
        self._client = client
        self._group = group

    def stored(self, queue: MessageQueue) -> int | None:
        """The group's offset at the broker, None if it has none. Raises ClientError."""
        header = QueryConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, queue.broker_name
        )
        try:
            return self._ends.ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self._client.routes.get(queue.topic)
        address = self._client.routes.address(queue.broker_name)
        self._client.remoting.ask(address, self._update(queue, offset), OFFSET_TIMEOUT_MS)

    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stores all of them each time, one way: what came to nothing is made good by the next.

        A connection may break, a broker may be killed before it has saved them, and 4.9.7 loses
        one of a group's first commits when two of them come in at once.
        """
        for queue, offset in offsets.items():
            try:
                address = self._client.routes.address(queue.broker_name)
                self._client.remoting.oneway(address, self._update(queue, offset))
            except ClientError as error:
                log.warning("offset not committed", queue=str(queue), error=str(error))

    def commit_last(self, offsets: Mapping[MessageQueue, int], timeout_s: float) -> None:
        """One of each topic goes before the others, which go at once: nothing comes after these
        that would make good what 4.9.7 loses of first ones."""
        first = {*{(queue.topic, queue.broker_name): queue for queue in offsets}.values()}
        deadline_s = monotonic() + min(OFFSET_TIMEOUT_MS / 1000, timeout_s)
        self._commit_at_once({queue: offsets[queue] for queue in first}, deadline_s)
        others = {queue: offset for queue, offset in offsets.items() if queue not in first}
        self._commit_at_once(others, deadline_s)

    def _commit_at_once(self, offsets: Mapping[MessageQueue, int], deadline_s: float) -> None:
        routes, remoting = self._client.routes, self._client.remoting
        timeout_ms = max(1.0, (deadline_s - monotonic()) * 1000)
        answers: list[tuple[MessageQueue, str, Answer]] = []
        for queue, offset in offsets.items():
            try:
                address = routes.address(queue.broker_name)
            except ClientError as error:
                log.warning("offset not committed", queue=str(queue), error=str(error))
            else:
                update = self._update(queue, offset)
                answers.append((queue, address, remoting.call_async(address, update, timeout_ms)))
        for queue, address, answer in answers:
            try:
                check_success(answer.result(), address)
            except ClientError as error:
                log.warning("offset not committed", queue=str(queue), error=str(error))

    def _update(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        header = UpdateConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, offset, queue.broker_name
        )
        return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
