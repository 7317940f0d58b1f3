"""Pulls the queues that this consumer has: one request under way for each, held by the broker
until there is something (long polling).

All of it runs on one thread (`task_thread.py`), which never waits for an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.pull import PullMessageHeader, PullMessageResponseHeader
from protocol.message import RecordError, decode_records
from protocol.sysflag import PULL_SUSPEND
from protocol.tags import ALL_TAGS, TagFilter
from troupemq.client.client import Client
from troupemq.client.consume import ConsumerSettings, Consuming
from troupemq.client.errors import BrokerError, ClientClosed, ClientError, understood
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView, view_of
from troupemq.client.process_queue import ProcessQueue
from troupemq.client.task_thread import TaskThread

log = client_logger(__name__)

TAG_EXPRESSION = "TAG"
ERROR_DELAY_MS = 1000
"""Before the next pull after a failure; the Java client waits 3 s."""

HELD_S = 0.005
NOT_HELD_DELAY_MS = 10
"""After a "nothing there" that came at once: a broker that does not hold pulls (it stops, or long
polling is off) is not asked in a tight loop."""

_OFFSET_CODES = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""The answers that say where to go on."""

_SUBSCRIPTION_CODES = frozenset(
    (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)
)
"""The broker does not know what we subscribed to: a heartbeat tells it."""


@dataclass(frozen=True)
class Subscription:
    """What a group wants of a topic: an expression of tags, `*` or `a || b`."""

    topic: str
    expression: str
    filter: TagFilter
    version: int

    @classmethod
    def of_tags(cls, topic: str, expression: str, version: int) -> "Subscription":
        """Raises RemoteError for an expression that is none."""
        return cls(topic, expression or ALL_TAGS, TagFilter.parse(expression), version)

    def wants(self, view: MessageView) -> bool:
        """Looks at the tag itself: the broker compares hashes only."""
        return not self.filter.tags or view.tags in self.filter.tags


class Pulling:
    """Keeps a pull under way for every queue given to it, as long as it is not dropped."""

    def __init__(
        self,
        client: Client,
        group: str,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Subscription],
        consuming: Callable[[], Consuming],
    ) -> None:
        self._client = client
        self._group = group
        self._settings = settings
        self._subscriptions = subscriptions
        self._consuming = consuming
        self._thread = TaskThread("troupemq-pull")

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        return self._thread.stop(timeout_s)

    def go_on(self, process_queue: ProcessQueue) -> None:
        """Pulls the queue: it is new, or has room again. For any thread."""
        self._thread.post(self._pulls(process_queue))

    def _pulls(self, process_queue: ProcessQueue) -> Callable[[], None]:
        return lambda: self._pull(process_queue)

    def _pull(self, process_queue: ProcessQueue) -> None:
        settings = self._settings
        if process_queue.dropped:
            return
        if process_queue.pause_if_full(settings.queue_count_max, settings.queue_bytes_max):
            return  # `go_on` comes when there is room
        queue = process_queue.queue
        subscription = self._subscriptions[queue.topic]
        header = PullMessageHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=process_queue.pull_offset,
            max_msg_nums=settings.pull_batch_size,
            sys_flag=PULL_SUSPEND,
            commit_offset=0,
            suspend_timeout_ms=settings.suspend_ms,
            sub_version=subscription.version,
            expression_type=TAG_EXPRESSION,
            broker_name=queue.broker_name,
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        try:
            address = self._client.routes.address(queue.broker_name, process_queue.broker_id)
        except ClientError as error:
            self._failed(process_queue, error)
            return
        answer = self._client.remoting.call_async(address, command, settings.pull_timeout_ms)
        asked_s = monotonic()
        answer.add_done_callback(
            lambda done: self._thread.post(
                lambda: self._pulled(process_queue, address, asked_s, done)
            )
        )

    def _pulled(
        self,
        process_queue: ProcessQueue,
        address: str,
        asked_s: float,
        answer: Future[RemotingCommand],
    ) -> None:
        if process_queue.dropped:
            return
        error = answer.exception()
        if error is not None:
            self._failed(process_queue, error)
            return
        response = answer.result()
        try:
            self._take(process_queue, response, address, asked_s)
        except (ClientError, RecordError) as failure:
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
                self._client.housekeeping.post(lambda: self._client.heartbeat_to(address))
            raise BrokerError(response.code, response.remark, address)
        header = understood(PullMessageResponseHeader.decode, response.fields)
        if response.code == ResponseCode.SUCCESS:
            self._found(process_queue, header, response)
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(process_queue, header)
        else:
            self._go_to(process_queue, header, ())
            held = monotonic() - asked_s > HELD_S
            again = held or response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            self._thread.later(0 if again else NOT_HELD_DELAY_MS, self._pulls(process_queue))

    def _found(
        self,
        process_queue: ProcessQueue,
        header: PullMessageResponseHeader,
        response: RemotingCommand,
    ) -> None:
        queue = process_queue.queue
        wants = self._subscriptions[queue.topic].wants
        views = [
            view
            for record in decode_records(response.body or b"")
            if record.queue_offset >= process_queue.pull_offset
            and wants(view := view_of(record, queue))
        ]
        self._go_to(process_queue, header, views)
        self.go_on(process_queue)

    def _go_to(
        self,
        process_queue: ProcessQueue,
        header: PullMessageResponseHeader,
        views: Sequence[MessageView],
    ) -> None:
        process_queue.broker_id = header.suggest_which_broker_id
        process_queue.pull_offset = header.next_begin_offset
        process_queue.put(views, header.next_begin_offset)
        if views:
            self._consuming().submit(process_queue, views)

    def _moved(self, process_queue: ProcessQueue, header: PullMessageResponseHeader) -> None:
        log.warning(
            "offset moved",
            queue=str(process_queue.queue),
            wanted=process_queue.pull_offset,
            next=header.next_begin_offset,
        )
        same = process_queue.pull_offset == header.next_begin_offset
        process_queue.broker_id = header.suggest_which_broker_id
        process_queue.pull_offset = header.next_begin_offset
        process_queue.move_to(header.next_begin_offset)
        self._thread.later(ERROR_DELAY_MS if same else 0, self._pulls(process_queue))

    def _failed(self, process_queue: ProcessQueue, error: BaseException) -> None:
        if isinstance(error, ClientClosed):
            return
        log.warning("pull failed", queue=str(process_queue.queue), error=str(error))
        process_queue.broker_id = 0
        self._thread.later(ERROR_DELAY_MS, self._pulls(process_queue))
