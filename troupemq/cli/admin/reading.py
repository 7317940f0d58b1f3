"""QueueReader: the messages of one queue from one offset to another, for nobody's consumption."""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.offset import OffsetResponseHeader, QueueHeader, SearchOffsetHeader
from protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader
from protocol.message import RecordError, decode_records
from protocol.sysflag import PULL_SUBSCRIPTION
from troupemq.cli.admin.session import TIMEOUT_MS, Session
from troupemq.client.errors import BadAnswer, BrokerError, RouteNotFound, understood
from troupemq.client.message import MessageQueue, MessageView, view_of

TOOLS_GROUP = "TOOLS_CONSUMER"
"""A group that every broker has, for tools."""

PULLED_MAX = 32
PASSED_OVER = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass
class QueueReader:
    """Reads one queue at one broker."""

    session: Session
    address: str
    queue: MessageQueue
    expression: str
    group: str

    def ends(self) -> tuple[int, int]:
        """The first offset and the one behind the last."""
        header = QueueHeader(self.queue.topic, self.queue.queue_id, self.queue.broker_name)
        first = self._offset(self.session.ask(self.address, RequestCode.GET_MIN_OFFSET, header))
        last = self._offset(self.session.ask(self.address, RequestCode.GET_MAX_OFFSET, header))
        return first, last

    def offset_at(self, time_ms: int) -> int:
        """The offset of the first message that was stored then or later."""
        queue = self.queue
        header = SearchOffsetHeader(queue.topic, queue.queue_id, time_ms, queue.broker_name)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return self._offset(self.session.ask(self.address, code, header))

    def _offset(self, answer: RemotingCommand) -> int:
        return understood(OffsetResponseHeader.decode, answer.fields).offset

    def at(self, offset: int) -> MessageView | None:
        """The message there, if there is one."""
        views, _ = self._pull(offset, 1)
        return next((view for view in views if view.queue_offset == offset), None)

    def messages(self, first: int, last: int) -> Iterator[MessageView]:
        """Those from `first` on that lie before `last`."""
        while first < last:
            views, following = self._pull(first, PULLED_MAX)
            for view in views:
                if view.queue_offset >= last:
                    return
                yield view
            if following <= first:
                return
            first = following

    def _pull(self, offset: int, count: int) -> tuple[list[MessageView], int]:
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
        answer = self.session.call(self.address, command, TIMEOUT_MS)
        if answer.code not in (ResponseCode.SUCCESS, *PASSED_OVER):
            raise BrokerError(answer.code, answer.remark, self.address)
        found = understood(PullMessageResponseHeader.decode, answer.fields)
        try:
            records = list(decode_records(bytes(answer.body or b"")))
        except RecordError as error:
            raise BadAnswer(f"messages that cannot be understood: {error}") from None
        views = (view_of(record, self.queue) for record in records)
        return [view for view in views if self._wants(view)], found.next_begin_offset

    def _wants(self, view: MessageView) -> bool:
        """The broker goes by the hashes of tags: two may have the same."""
        tags = {tag.strip() for tag in self.expression.split("||")}
        return "*" in tags or "" in tags or view.tags in tags


def reader_of(
    session: Session, queue: MessageQueue, expression: str = "*", group: str | None = None
) -> QueueReader:
    """The reader of a queue. Raises RouteNotFound for a broker that does not have the topic."""
    for place in session.topic_brokers(queue.topic):
        if place.name == queue.broker_name:
            return QueueReader(session, place.address, queue, expression, group or TOOLS_GROUP)
    raise RouteNotFound(f"the broker {queue.broker_name} does not have the topic {queue.topic}")
