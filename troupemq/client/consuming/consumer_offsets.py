"""Offsets of a consumer group at the broker (clustering), and min and max offsets of queues."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from enum import Enum
from time import monotonic

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.connection.calls import Blocking, Call, Calls, Flow, LookUpRoute, pause
from troupemq.client.connection.client import ClientCore, now_ms
from troupemq.client.errors import ArgumentIllegal, BrokerError, ClientError, understood
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

OFFSET_TIMEOUT_MS = 5000
COMMITS_OF_A_TURN = 1000
"""Commits that are encoded before other tasks of an event loop run: 12 ms."""
_LAST_DAY_S = 253_402_214_400
_TIME = re.compile(r"[0-9]{14}")
HALF_HOUR_MS = 1_800_000


class ConsumeFrom(Enum):
    """Start of a group in a queue where it has no offset.

        PushConsumer("billing", listen, begin=ConsumeFrom.FIRST_OFFSET)

    As in 4.9.7, a broker answers offset 0 for a young queue: its first message still exists and is
    recent. A new group then begins at the first message with any choice.
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def timestamp_ms(text: str) -> int:
    """Return ms since 1970 of a local time, `20261121143000`. Raises ArgumentIllegal."""
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise ArgumentIllegal(f"a time is 14 digits, such as 20261121143000, and not {text!r}")
    try:
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:  # such as a 31st of February
        raise ArgumentIllegal(f"{text} is no local time: {error}") from None


def timestamp_text(time_ms: int) -> str:
    """Return a time in ms since 1970 in the Java client's form, local time, up to the year 9999."""
    return datetime.fromtimestamp(min(time_ms // 1000, _LAST_DAY_S)).strftime("%Y%m%d%H%M%S")


class QueueEnds:
    """Flows for min and max offsets of queues, and offsets by time; for any thread.

    Only masters are asked, as in 4.9.7: a group that began at the end of a slave which lacks its
    offset would skip messages.
    """

    def __init__(
        self,
        client: ClientCore,
        begin: ConsumeFrom = ConsumeFrom.LAST_OFFSET,
        begin_ms: int | None = None,
    ) -> None:
        """Keep the start of new groups; `begin_ms` is for TIMESTAMP, by default 30 minutes ago."""
        self._client = client
        self.begin = begin
        self.begin_ms = begin_ms if begin_ms is not None else now_ms() - HALF_HOUR_MS

    def first_position(self, queue: MessageQueue, since_ms: int | None = None) -> Flow[int]:
        """Return the start of a group that has never consumed the queue. Raises ClientError.

        With `since_ms`, LAST_OFFSET means the messages from that time on.
        """
        if queue.topic.startswith(RETRY_TOPIC_PREFIX) or self.begin is ConsumeFrom.FIRST_OFFSET:
            return (yield from self.first(queue))
        if self.begin is ConsumeFrom.TIMESTAMP:
            since_ms = self.begin_ms
        if since_ms is not None:
            return (yield from self.at_time(queue, since_ms))
        return (yield from self.end(queue))

    def first(self, queue: MessageQueue) -> Flow[int]:
        """Return the min offset. Raises ClientError."""
        return self.ask(queue, RequestCode.GET_MIN_OFFSET, _fields(queue))

    def end(self, queue: MessageQueue) -> Flow[int]:
        """Return the max offset, which is behind the last message. Raises ClientError."""
        return self.ask(queue, RequestCode.GET_MAX_OFFSET, _fields(queue))

    def at_time(self, queue: MessageQueue, time_ms: int) -> Flow[int]:
        """Return the offset of the first message stored at or after `time_ms`.

        If all are older, TroupeMQ answers the max offset, 4.9.7 that of the last message. Raises
        ClientError.
        """
        header = SearchOffsetHeader(queue.topic, queue.queue_id, time_ms, queue.broker_name)
        return self.ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())

    def ask(
        self,
        queue: MessageQueue,
        code: RequestCode,
        fields: dict[str, str],
        *,
        may_ask_slave: bool = False,
    ) -> Flow[int]:
        """Return the offset that the queue's broker answers. Raises ClientError.

        With `may_ask_slave`, a slave answers in place of a missing master.
        """
        yield LookUpRoute(queue.topic)  # the client may not know the topic's route yet
        routes = self._client.routes
        address = (routes.address if may_ask_slave else routes.master)(queue.broker_name)
        answer = yield Call(address, RemotingCommand(code, fields), OFFSET_TIMEOUT_MS)
        return understood(OffsetResponseHeader.decode, answer.fields).offset


def _fields(queue: MessageQueue) -> dict[str, str]:
    return QueueHeader(queue.topic, queue.queue_id, queue.broker_name).encode()


class Offsets(ABC):
    """Store of a group's offsets; its methods are flows."""

    def __init__(self, ends: QueueEnds) -> None:
        self._ends = ends

    def start_of(self, queue: MessageQueue, since_ms: int | None = None) -> Flow[int]:
        """Return the offset at which the group continues, or begins, in `queue`.

        `since_ms` is when the consumer began, for a queue that has appeared after that: messages
        sent before it is taken are not old.

        Commit a first position at once. If a rebalance computed LAST_OFFSET again, it would skip
        the messages that arrived in between. Raises ClientError.
        """
        stored = yield from self.stored(queue)
        if stored is not None:
            return stored
        offset = yield from self._ends.first_position(queue, since_ms)
        yield from self.commit(queue, offset)
        return offset

    @abstractmethod
    def stored(self, queue: MessageQueue) -> Flow[int | None]:
        """Return the stored offset of `queue`, or None. Raises ClientError."""

    @abstractmethod
    def commit(self, queue: MessageQueue, offset: int) -> Flow[None]:
        """Store `offset` and wait for the confirmation. Raises ClientError."""

    @abstractmethod
    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> Flow[int]:
        """Store offsets; return how many. A failure is logged, and the next call repeats it."""

    def commit_last(self, offsets: Mapping[MessageQueue, int], timeout_s: float) -> Flow[int]:
        """Store offsets at the stop; return the number of confirmed ones. A failure is logged."""
        return (yield from self.commit_all(offsets))


class GroupOffsets(Offsets):
    """One group's offsets at the brokers; for any thread."""

    def __init__(self, client: ClientCore, group: str, ends: QueueEnds) -> None:
        super().__init__(ends)
        self._client = client
        self._group = group

    def stored(self, queue: MessageQueue) -> Flow[int | None]:
        header = QueryConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, queue.broker_name
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        try:
            return (yield from self._ends.ask(queue, code, header.encode(), may_ask_slave=True))
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None

    def commit(self, queue: MessageQueue, offset: int) -> Flow[None]:
        yield LookUpRoute(queue.topic)
        yield self._update_call(queue, offset, OFFSET_TIMEOUT_MS)

    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> Flow[int]:
        """Send all offsets one way each time, so that the next call makes up for a loss.

        A connection may break, and a broker may be killed before it saves them. 4.9.7 loses one of
        a group's first commits if two arrive at once.
        """
        yield from ()  # a flow, though it waits for nothing
        sent = 0
        for queue, offset in offsets.items():
            try:
                address = self._client.routes.address(queue.broker_name)
                self._client.remoting.oneway(address, self._update(queue, offset))
                sent += 1
            except ClientError as error:
                _log_failed_commit(queue, error)
        return sent

    def commit_last(self, offsets: Mapping[MessageQueue, int], timeout_s: float) -> Flow[int]:
        """Commit one queue of each topic first, then all others at once.

        4.9.7 loses first commits that arrive at once, and no later commit would make up for it.
        """
        with suppress(ClientError):
            for queue in {each.broker_name: each for each in offsets}.values():
                if self._client.routes.known_master(queue.broker_name) is None:
                    # a slave forgets them once its master is back
                    yield LookUpRoute(queue.topic, again=True)
        first = {*{(queue.topic, queue.broker_name): queue for queue in offsets}.values()}
        deadline_s = monotonic() + min(OFFSET_TIMEOUT_MS / 1000, timeout_s)
        some = yield from self._commit_at_once(
            {queue: offsets[queue] for queue in first}, deadline_s
        )
        others = {queue: offset for queue, offset in offsets.items() if queue not in first}
        return some + (yield from self._commit_at_once(others, deadline_s))

    def _commit_at_once(self, offsets: Mapping[MessageQueue, int], deadline_s: float) -> Flow[int]:
        timeout_ms = max(1.0, (deadline_s - monotonic()) * 1000)
        calls: dict[MessageQueue, Call] = {}
        for number, (queue, offset) in enumerate(offsets.items(), 1):
            if number % COMMITS_OF_A_TURN == 0:
                yield Blocking(pause)
            try:
                calls[queue] = self._update_call(queue, offset, timeout_ms)
            except ClientError as error:
                _log_failed_commit(queue, error)
        answers = yield Calls(list(calls.values()))
        for queue, answer in zip(calls, answers, strict=True):
            if isinstance(answer, ClientError):
                _log_failed_commit(queue, answer)
        return sum(not isinstance(answer, ClientError) for answer in answers)

    def _update_call(self, queue: MessageQueue, offset: int, timeout_ms: float) -> Call:
        address = self._client.routes.address(queue.broker_name)
        return Call(address, self._update(queue, offset), timeout_ms)

    def _update(self, queue: MessageQueue, offset: int) -> RemotingCommand:
        header = UpdateConsumerOffsetHeader(
            self._group, queue.topic, queue.queue_id, offset, queue.broker_name
        )
        return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())


def _log_failed_commit(queue: MessageQueue, error: ClientError) -> None:
    log.warning("offset commit failed", queue=str(queue), error=str(error))
