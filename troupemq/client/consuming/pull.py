"""Long polling: one open pull for each assigned queue, which the broker holds until a message.

All of it runs on one thread (`task_thread.py`) or event loop, and never waits for an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from time import monotonic

from protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import PullMessageHeader, PullMessageResponseHeader
from protocol.message import MessageRecord, RecordError
from protocol.tags import ALL_TAGS
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.connection.client import ClientCore, now_ms
from troupemq.client.connection.task_thread import Tasks
from troupemq.client.consuming.consumer_statistics import ConsumerStatistics
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import BadAnswer, BrokerError, ClientClosed, ClientError, understood
from troupemq.client.log import client_logger
from troupemq.client.message import LONG_PULL_BYTES, MessageView, records_in, view_of
from troupemq.client.settings import ConsumerSettings

log = client_logger(__name__)

UNKNOWN_TO_BROKER_DELAY_MS = 200
"""Pause after a pull for whose topic the broker, or this client, has no subscription just now."""

BROKER_BUSY_DELAY_MS = 20
"""Pause after FLOW_CONTROL."""

HELD_S = 0.005
NOT_HELD_DELAY_MS = 10
"""Pause after an answer without progress within HELD_S.

That comes from a broker that does not hold pulls, or a slave without the messages asked for.
"""

_OFFSET_CODES = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""Codes of answers with a next offset."""

_SUBSCRIPTION_CODES = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    )
)

Submit = Callable[[ProcessQueue, Sequence[MessageView]], None]


@dataclass(eq=False)
class Pulling:
    """Keeps one pull open for each of its queues until the queue is dropped."""

    client: ClientCore
    tasks: Tasks
    group: str
    settings: ConsumerSettings
    subscriptions: Mapping[str, TopicSubscription]
    statistics: ConsumerStatistics
    submit: Submit
    _: KW_ONLY
    orderly: bool = False
    tells_subscription: bool = False
    """Whether pulls carry the expression."""
    _rests: bool = field(default=False, init=False)
    _resting: dict[int, ProcessQueue] = field(default_factory=dict, init=False)
    _matched: set[str] = field(default_factory=set, init=False)
    """Topics with a matching message, or with a logged warning that no message matches."""
    _passed_over: dict[str, int] = field(default_factory=dict, init=False)
    _told_idle: set[str] = field(default_factory=set, init=False)

    def go_on(self, process_queue: ProcessQueue) -> None:
        """Pull a queue that is new or has room again. For any thread."""
        self.tasks.post(self._pulls(process_queue))

    def rest(self, rests: bool) -> None:
        """Suspend or resume all pulls. For any thread."""

        def change() -> None:
            self._rests = rests
            if not rests:
                resting, self._resting = self._resting, {}
                for process_queue in resting.values():
                    self._pull(process_queue)

        self.tasks.post(change)

    def _pulls(self, process_queue: ProcessQueue) -> Callable[[], None]:
        return lambda: self._pull(process_queue)

    def _pull(self, process_queue: ProcessQueue) -> None:
        settings = self.settings
        if process_queue.dropped or process_queue.pull_is_under_way or process_queue.rests:
            return
        if self._rests:
            self._resting[id(process_queue)] = process_queue
            return
        process_queue.last_pull_ms = now_ms()
        if process_queue.pause_if_full(settings, spans=not self.orderly):
            return  # `go_on` is called when there is room
        queue = process_queue.queue
        subscription = self.subscriptions.get(queue.topic)
        if subscription is None:
            self._unsubscribed(process_queue)
            return
        tells = self.tells_subscription
        header = PullMessageHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=process_queue.pull_offset,
            max_msg_nums=settings.pull_batch_size,
            sys_flag=PULL_SUSPEND | (PULL_SUBSCRIPTION if tells else 0),
            commit_offset=0,
            suspend_timeout_ms=settings.suspend_ms,
            subscription=subscription.expression if tells else None,
            sub_version=subscription.version,
            expression_type=subscription.expression_type,
            broker_name=queue.broker_name,
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        try:
            address = self.client.routes.address(queue.broker_name, process_queue.broker_id)
        except ClientError as error:
            self._failed(process_queue, error)
            return
        process_queue.pull_is_under_way = True
        pull = _Pull(self, process_queue, address, monotonic())
        self.client.remoting.call_for(pull, address, command, settings.pull_timeout_ms)

    def answered(self, pull: "_Pull", answer: RemotingCommand | BaseException) -> None:
        """Take the answer or the failure of a pull. For any thread."""
        self.tasks.post(lambda: self._pulled(pull, answer))

    def _pulled(self, pull: "_Pull", answer: RemotingCommand | BaseException) -> None:
        process_queue = pull.process_queue
        process_queue.pull_is_under_way = False
        if process_queue.dropped:
            return
        if isinstance(answer, BaseException):
            self._failed(process_queue, answer)
            return
        try:
            self._take(process_queue, answer, pull.address, pull.asked_s)
        except ClientError as failure:
            self._failed(process_queue, failure)

    def _take(
        self,
        process_queue: ProcessQueue,
        response: RemotingCommand,
        address: str,
        asked_s: float,
    ) -> None:
        if response.code not in _OFFSET_CODES or not response.fields:
            if response.code in _SUBSCRIPTION_CODES:
                self.client.flows.post(lambda: self.client.heartbeating([address]))
            raise BrokerError(response.code, response.remark, address)
        header = understood(PullMessageResponseHeader.decode, response.fields)
        if response.code == ResponseCode.SUCCESS:
            self._found(process_queue, header, response, asked_s)
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(process_queue, header)
        elif header.next_begin_offset < process_queue.pull_offset:
            raise BadAnswer(f"{address} answers offset {header.next_begin_offset}, a step back")
        else:
            may_repeat = response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            may_repeat &= header.next_begin_offset != process_queue.pull_offset
            self._go_to(process_queue, header, ())
            again = may_repeat or monotonic() - asked_s > HELD_S
            self.tasks.later(0 if again else NOT_HELD_DELAY_MS, self._pulls(process_queue))

    def _found(
        self,
        process_queue: ProcessQueue,
        header: PullMessageResponseHeader,
        response: RemotingCommand,
        asked_s: float,
    ) -> None:
        queue = process_queue.queue
        subscription = self.subscriptions.get(queue.topic)
        if subscription is None:
            self._unsubscribed(process_queue)
            return
        first, body = process_queue.pull_offset, response.body

        def read() -> list[MessageView] | RecordError:
            try:
                return [
                    view
                    for record in _ordered(records_in(body), first, header.next_begin_offset)
                    if record.queue_offset >= first
                    and subscription.wants(view := view_of(record, queue))
                ]
            except RecordError as error:
                return error

        def came(views: list[MessageView] | RecordError) -> None:
            process_queue.pull_is_under_way = False
            if process_queue.dropped:
                return
            if isinstance(views, RecordError):
                self._failed(process_queue, views)
                return
            self.statistics.pulled(queue.topic, len(views), (monotonic() - asked_s) * 1000)
            self._go_to(process_queue, header, views)
            self.go_on(process_queue)

        if len(body or b"") > LONG_PULL_BYTES:
            process_queue.pull_is_under_way = True
            self.tasks.apart(read, came)
        else:
            came(read())

    def _unsubscribed(self, process_queue: ProcessQueue) -> None:
        """Look again soon: a rebalance releases the queue, unless its topic is subscribed again."""
        self.tasks.later(UNKNOWN_TO_BROKER_DELAY_MS, self._pulls(process_queue))

    def _go_to(
        self,
        process_queue: ProcessQueue,
        header: PullMessageResponseHeader,
        views: Sequence[MessageView],
    ) -> None:
        if views:
            self._matched.add(process_queue.queue.topic)
        elif process_queue.queue.topic not in self._matched:
            self._nothing_came(process_queue, header)
        process_queue.was_moved = False
        process_queue.broker_id = header.suggest_which_broker_id
        process_queue.pull_offset = header.next_begin_offset
        process_queue.put(views, header.next_begin_offset)
        if views:
            self.submit(process_queue, views)

    def _nothing_came(self, process_queue: ProcessQueue, header: PullMessageResponseHeader) -> None:
        """Log once per topic why no message arrives: no match, or the end of the queue."""
        topic = process_queue.queue.topic
        subscription = self.subscriptions.get(topic)
        if subscription is None or topic.startswith(RETRY_TOPIC_PREFIX):
            return
        passed = header.next_begin_offset - process_queue.pull_offset
        self._passed_over[topic] = self._passed_over.get(topic, 0) + max(0, passed)
        if header.next_begin_offset < header.max_offset:
            return
        if self._passed_over[topic] and subscription.expression != ALL_TAGS:
            self._matched.add(topic)
            log.warning(
                "no message matches the subscription",
                group=self.group,
                topic=topic,
                kind=subscription.expression_type,
                expression=subscription.expression,
                passed_over=self._passed_over[topic],
                hint="messages arrive, but none of them has these tags or properties so far",
            )
        elif topic not in self._told_idle:
            self._told_idle.add(topic)
            log.info(
                "queue end reached",
                group=self.group,
                topic=topic,
                queue=str(process_queue.queue),
                offset=header.next_begin_offset,
            )

    def _moved(self, process_queue: ProcessQueue, header: PullMessageResponseHeader) -> None:
        log.warning(
            "offset moved",
            queue=str(process_queue.queue),
            wanted=process_queue.pull_offset,
            next=header.next_begin_offset,
        )
        again = process_queue.was_moved or process_queue.pull_offset == header.next_begin_offset
        process_queue.was_moved = True
        process_queue.broker_id = header.suggest_which_broker_id
        process_queue.pull_offset = header.next_begin_offset
        process_queue.move_to(header.next_begin_offset)
        delay_ms = self.settings.pull_error_delay_ms if again else 0
        self.tasks.later(delay_ms, self._pulls(process_queue))

    def _failed(self, process_queue: ProcessQueue, error: BaseException) -> None:
        if isinstance(error, ClientClosed):
            return
        process_queue.broker_id = 0
        code = error.code if isinstance(error, BrokerError) else None
        delay_ms = self.settings.pull_error_delay_ms
        if code in _SUBSCRIPTION_CODES:
            delay_ms = min(delay_ms, UNKNOWN_TO_BROKER_DELAY_MS)
        elif code == ResponseCode.FLOW_CONTROL:
            delay_ms = BROKER_BUSY_DELAY_MS
        if code not in _SUBSCRIPTION_CODES:  # these are normal while a group starts
            log.warning("pull failed", queue=str(process_queue.queue), error=str(error))
        self.tasks.later(delay_ms, self._pulls(process_queue))


def _ordered(
    records: Sequence[MessageRecord], first: int, next_offset: int
) -> Sequence[MessageRecord]:
    """Return the records of an answer. Raises RecordError unless they lead on to `next_offset`.

    A queue would be pulled without end, or commit an offset behind an unconsumed message.
    """
    last = -1
    for record in records:
        if record.queue_offset <= last:
            raise RecordError(f"message {record.queue_offset} behind message {last} of a queue")
        last = record.queue_offset
    if next_offset <= max(last, first):
        raise RecordError(f"next offset {next_offset} after a pull from {first} to {last}")
    return records


@dataclass(slots=True, eq=False)
class _Pull:
    """An open pull, which waits for its answer."""

    pulling: Pulling
    process_queue: ProcessQueue
    address: str
    asked_s: float

    def set_result(self, answer: RemotingCommand, /) -> None:
        self.pulling.answered(self, answer)

    def set_exception(self, error: ClientError, /) -> None:
        self.pulling.answered(self, error)
