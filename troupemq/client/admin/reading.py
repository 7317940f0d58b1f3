"""Reading of queues outside of any group, and of trace messages.

A trace body consists of records that end with the character 2. The fields of a record are
separated by the character 1; the first one is its kind:

    Pub             time, region, group, topic, message id, tags, keys, store host, body bytes,
                    cost ms, message type, broker's id, success, client host
    SubBefore       time, region, group, request id, message id, retries, keys, client host
    SubAfter        request id, message id, cost ms, success, keys, context code, time, group
    EndTransaction  time, region, group, topic, message id, tags, keys, store host, message type,
                    transaction id, state, from a check

Older clients omit the last fields.

Source: client/trace/TraceDataEncoder.java.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from protocol.codes import PULL_SUBSCRIPTION, RequestCode, ResponseCode
from protocol.compression import CompressionError, decompress
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueueHeader,
    SearchOffsetHeader,
)
from protocol.message import MessageRecord, RecordError, decode_records
from troupemq.client.admin.answers import HIDDEN, Result, Time
from troupemq.client.admin.base import TIMEOUT_MS, AdminBase
from troupemq.client.admin.operations import BlockingMethods, operation, stepped
from troupemq.client.errors import BadAnswer, BrokerError, understood
from troupemq.client.message import MessageQueue, MessageView, view_of
from troupemq.numbers import whole

PULLED_MAX = 32
TRACE_BYTES_MAX = 4 << 20
"""Unfolded body of a trace message; clients write some 100 KiB."""
EVENTS_MAX = 10_000
"""Records of a trace message that are read."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""A group that every broker has, for tools."""
PASSED_OVER = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass
class ReaderFlows:
    """Reader of a queue, outside of any group; it changes no offsets."""

    admin: AdminBase
    address: str
    queue: MessageQueue
    expression: str
    group: str

    @operation
    async def ends(self) -> tuple[int, int]:
        """Return the min and max offset; the max is behind the last message."""
        header = QueueHeader(self.queue.topic, self.queue.queue_id, self.queue.broker_name)
        first = self._offset(await self.admin.ask(self.address, RequestCode.GET_MIN_OFFSET, header))
        last = self._offset(await self.admin.ask(self.address, RequestCode.GET_MAX_OFFSET, header))
        return first, last

    @operation
    async def offset_at(self, time_ms: int) -> int:
        """Return the offset of the first message stored at `time_ms` or later."""
        queue = self.queue
        header = SearchOffsetHeader(queue.topic, queue.queue_id, time_ms, queue.broker_name)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return self._offset(await self.admin.ask(self.address, code, header))

    def _offset(self, answer: RemotingCommand) -> int:
        return understood(OffsetResponseHeader.decode, answer.fields).offset

    @operation
    async def at(self, offset: int) -> MessageView | None:
        """Return the message at `offset`, or None."""
        views, _ = await self._pull(offset, 1)
        return next((view for view in views if view.queue_offset == offset), None)

    async def _messages(self, first: int, last: int) -> AsyncIterator[MessageView]:
        """Yield the messages from `first` on and before `last`."""
        while first < last:
            views, following = await self._pull(first, PULLED_MAX)
            for view in views:
                if view.queue_offset >= last:
                    return
                yield view
            if following <= first:
                return
            first = following

    async def _pull(self, offset: int, count: int) -> tuple[list[MessageView], int]:
        header = PullMessageHeader(
            consumer_group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_ms=0,
            sub_version=0,
            subscription=self.expression,
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        answer = await self.admin.call(self.address, command, TIMEOUT_MS)
        if answer.code not in (ResponseCode.SUCCESS, *PASSED_OVER):
            raise BrokerError(answer.code, answer.remark, self.address)
        found = understood(PullMessageResponseHeader.decode, answer.fields)
        views = await self.admin._decoded(self._wanted, answer.body)
        return views, found.next_begin_offset

    def _wanted(self, body: bytes | memoryview | None) -> list[MessageView]:
        views = (view_of(record, self.queue) for record in records_of(body))
        return [view for view in views if self._wants(view)]

    def _wants(self, view: MessageView) -> bool:
        """Return whether its tag matches: brokers compare only hashes, which tags may share."""
        tags = {tag.strip() for tag in self.expression.split("||")}
        return "*" in tags or "" in tags or view.tags in tags


@dataclass
class QueueReader(BlockingMethods, ReaderFlows):
    """A reader whose methods block."""

    def __post_init__(self) -> None:
        assert isinstance(self.admin, BlockingMethods)
        parts = self.address, self.queue, self.expression, self.group
        self._flows = ReaderFlows(self.admin._flows, *parts)

    def messages(self, first: int, last: int) -> Iterator[MessageView]:
        """Yield the messages from `first` on and before `last`."""
        return stepped(self._flows._messages(first, last))


def records_of(body: bytes | memoryview | None) -> list[MessageRecord]:
    """Return the records of an answer. Raises BadAnswer."""
    try:
        return list(decode_records(bytes(body or b"")))
    except RecordError as error:
        raise BadAnswer(f"messages that cannot be understood: {error}") from None


@dataclass(frozen=True, slots=True)
class TraceEvent(Result):
    """One record of a trace, written by a client about a message; fields are texts."""

    kind: str
    message_id: str
    time_ms: Time | str | None
    """Time in ms since 1970; an invalid one stays a text."""
    group: str | None
    client: str | None
    cost_ms: str | None
    success: str | None
    retries: str | None
    state: str | None
    host: str | None
    request_id: str | None = field(default=None, metadata=HIDDEN)
    """Id that the records before and after one listener call share."""


FIELD, RECORD = "\x01", "\x02"

_FIELDS = {
    "Pub": "time_ms region group topic message_id tags keys host body_bytes cost_ms message_type"
    " offset_message_id success client",
    "SubBefore": "time_ms region group request_id message_id retries keys client",
    "SubAfter": "request_id message_id cost_ms success keys context_code time_ms group",
    "EndTransaction": "time_ms region group topic message_id tags keys host message_type"
    " transaction_id state from_check",
}


def events_in(views: Iterable[MessageView], message_id: str | None = None) -> Iterator[TraceEvent]:
    """Yield the valid records of trace messages, all or those about one message.

    Any client may have sent unreadable ones.
    """
    for view in views:
        with suppress(CompressionError):
            body = decompress(view.stored_body, view.sys_flag, TRACE_BYTES_MAX)
            for event in islice(events_of(body), EVENTS_MAX):
                if message_id in (None, event.message_id):
                    yield event


def events_of(body: bytes) -> Iterator[TraceEvent]:
    """Yield the valid records of a trace message."""
    for record in body.decode(errors="replace").split(RECORD):
        kind, *values = record.split(FIELD)
        found = dict(zip(_FIELDS.get(kind, "").split(), values, strict=False))
        if "message_id" not in found:
            continue
        time = whole(found.get("time_ms"))
        yield TraceEvent(
            kind,
            found["message_id"],
            found.get("time_ms") or None if time is None else Time(time),
            found.get("group"),
            found.get("client"),
            found.get("cost_ms"),
            found.get("success"),
            found.get("retries"),
            found.get("state"),
            found.get("host"),
            found.get("request_id"),
        )
