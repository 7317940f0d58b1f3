"""Calls the listener: a fixed number of threads, each with a few messages at a time.

A message whose listener fails goes back to the broker, which brings it again later through the
group's retry topic; if it cannot go back, it is kept here and tried again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from troupemq.client.client import Client
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageView
from troupemq.client.process_queue import ProcessQueue

log = client_logger(__name__)

SEND_BACK_TIMEOUT_MS = 5000

RISING_DELAY = 0
"""The delay level that lets the broker choose: 10 s for the first return, more for each further."""


class ConsumeResult(Enum):
    """What a listener says of the messages it was given."""

    SUCCESS = "SUCCESS"
    RETRY_LATER = "RETRY_LATER"


Listener = Callable[[Sequence[MessageView]], ConsumeResult | None]
"""Gets messages of one queue, one unless consume_batch_size says more; None means SUCCESS, an
exception RETRY_LATER, for all of them. Called by many threads at once."""


@dataclass(frozen=True)
class ConsumerSettings:
    """What a consumer does by itself; the defaults are the Java client's."""

    consume_threads: int = 20
    consume_batch_size: int = 1
    pull_batch_size: int = 32
    queue_count_max: int = 1000
    """Messages of one queue that wait in the client; then it pulls no more of them."""

    queue_bytes_max: int = 100 << 20
    suspend_ms: int = 15_000
    """How long a broker holds a pull that finds nothing."""

    pull_timeout_ms: int = 30_000
    commit_interval_ms: int = 5000
    rebalance_interval_ms: int = 20_000
    max_reconsume_times: int = 16
    again_after_ms: int = 5000
    """A failed message that its broker did not take back is tried here again after this time."""

    settle_ms: int = 500
    """How long a queue that was another member's is left to it before it is pulled: what it has
    not committed would come twice. The Java client does not wait."""

    drop_wait_ms: int = 1000
    """How long a rebalance waits for listener calls of a queue that it gives away."""


@dataclass(slots=True)
class _Task:
    process_queue: ProcessQueue
    views: Sequence[MessageView]


class Consuming:
    """The listener's threads."""

    def __init__(
        self,
        client: Client,
        group: str,
        listener: Listener,
        settings: ConsumerSettings,
        on_room: Callable[[ProcessQueue], None],
    ) -> None:
        """`on_room` is told of a queue that was full and may be pulled again."""
        self._client = client
        self._group = group
        self._listener = listener
        self._settings = settings
        self._on_room = on_room
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._run, name=f"troupemq-consume-{number}", daemon=True)
            for number in range(settings.consume_threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the threads once they have done what they do; tasks of dropped queues are none."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline_s = monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        """Consumes these messages, in no order."""
        size = self._settings.consume_batch_size
        for first in range(0, len(views), size):
            self._tasks.put(_Task(process_queue, views[first : first + size]))

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if task.process_queue.begin():
                try:
                    self._consume(task.process_queue, task.views)
                finally:
                    task.process_queue.end()

    def _consume(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        try:
            result = self._listener(views)
        except Exception:  # the application's; whatever it is, the messages come again
            where = str(process_queue.queue)
            log.error("listener failed", group=self._group, queue=where, exc_info=True)
            result = ConsumeResult.RETRY_LATER
        kept: list[MessageView] = []
        if result is ConsumeResult.RETRY_LATER:
            if process_queue.dropped:
                return  # whoever has the queue now gets them again anyway
            kept = [view for view in views if not self._send_back(view)]
        kept_offsets = {view.queue_offset for view in kept}
        done = [view.queue_offset for view in views if view.queue_offset not in kept_offsets]
        settings = self._settings
        if process_queue.done(done, settings.queue_count_max, settings.queue_bytes_max):
            self._on_room(process_queue)
        if kept:
            self._client.housekeeping.later(
                settings.again_after_ms, lambda: self.submit(process_queue, kept)
            )

    def _send_back(self, view: MessageView) -> bool:
        """Gives a message back to its broker; False if that was not possible."""
        header = ConsumerSendMsgBackHeader(
            offset=view.physical_offset,
            group=self._group,
            delay_level=RISING_DELAY,
            origin_msg_id=view.message_id,
            origin_topic=view.topic,
            max_reconsume_times=self._settings.max_reconsume_times,
            broker_name=view.queue.broker_name,
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        try:
            address = self._client.routes.address(view.queue.broker_name)
            self._client.remoting.ask(address, command, SEND_BACK_TIMEOUT_MS)
        except ClientError as error:
            log.warning("message kept for another try", id=view.message_id, error=str(error))
            return False
        return True
