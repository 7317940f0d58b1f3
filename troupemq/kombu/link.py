"""The requests of one connection in one process: sends, topics, and reads outside of groups."""

from collections.abc import Callable, Sequence
from random import choice
from time import monotonic

from protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    OffsetResponseHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    QueueHeader,
)
from protocol.message import RecordError
from troupemq.client.admin import Admin
from troupemq.client.admin.reading import PASSED_OVER, TOOLS_GROUP
from troupemq.client.connection.pending import Answer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientError,
    ConnectionFailed,
    RouteNotFound,
    understood,
)
from troupemq.client.log import client_logger
from troupemq.client.message import Message, MessageQueue, MessageView, records_in, view_of
from troupemq.client.producing.producer import Producer
from troupemq.client.receiving.simple_consumer import SimpleConsumer
from troupemq.kombu.envelope import STEPS, QueueMessage
from troupemq.kombu.places import KombuPlace

log = client_logger(__name__)

GROUP = "kombu"
PULLED_MAX = 32
HELD_MS = 15_000
SLACK_MS = 5000
TIMEOUT_MS = 5000
MISSING_MAX = 10_000


class BrokerLink(Producer):
    """The producer of a connection; it also reads topics without a group.

    A forked child needs a link of its own.
    """

    def __init__(self, place: KombuPlace) -> None:
        super().__init__(
            GROUP, place.namesrv, choose=by_step, credentials=place.credentials, tls=place.tls
        )
        self.place = place
        self._known: set[str] = set()
        self._missing: dict[str, float] = {}

    def check(self) -> None:
        """Raise ConnectionFailed unless a name server answers and lists a broker."""
        if not self._client.routes.masters_of_cluster(None):
            raise ConnectionFailed(f"no broker is registered at {', '.join(self.place.namesrv)}")

    def every(self, interval_ms: float, task: Callable[[], None]) -> None:
        """Run `task` again and again, on a thread where it may block."""
        self._client.housekeeping.every(interval_ms, task, first_ms=interval_ms)

    def admin(self) -> Admin:
        """Return an Admin, to be used in a `with` block."""
        place = self.place
        return Admin(place.namesrv, credentials=place.credentials, tls=place.tls)

    def consumer(self, queue: str, retries_max: int) -> SimpleConsumer:
        """Return the consumer of a queue, which is not started."""
        topic = self.place.queue(queue)
        consumer = SimpleConsumer(
            topic,
            self.place.namesrv,
            begin=ConsumeFrom.FIRST_OFFSET,
            max_reconsume_times=retries_max,
            highest_queue_first=True,
            credentials=self.place.credentials,
            tls=self.place.tls,
        )
        consumer.subscribe(topic)
        return consumer

    def check_message(self, message: Message) -> None:
        """Raise MessageIllegal for a message that is not sent, such as a long one."""
        self._check_message(message)

    def send_to_all(self, message: Message) -> None:
        """Store a message at one broker, and at the others if they can be reached.

        Raises ClientError if no broker stores it.
        """
        stored = self.send(message).queue
        for queue in self.queues(message.topic):
            if queue != stored:
                try:
                    self.send(message, queue=queue)
                except ClientError as error:
                    log.warning("binding not copied", broker=queue.broker_name, error=str(error))

    # --- topics

    def has_topic(self, topic: str, missing_s: float = 0.0) -> bool:
        """Return whether a topic exists; one that was missing `missing_s` ago is not looked up."""
        if topic in self._known:
            return True
        if monotonic() - self._missing.get(topic, float("-inf")) <= missing_s:
            return False
        try:
            self._client.routes.look_up(topic)
        except RouteNotFound:
            if len(self._missing) >= MISSING_MAX:
                self._missing.clear()
            self._missing[topic] = monotonic()
            return False
        self._known.add(topic)
        return True

    def ensure_topic(self, topic: str, queue_count: int = STEPS) -> None:
        """Create a missing topic. Raises ClientError, such as a BrokerError without permission."""
        if not self.has_topic(topic):
            with self.admin() as admin:
                admin.create_topic(topic, queue_count)
            self._client.routes.look_up(topic)
            self._known.add(topic)

    def forget_topic(self, topic: str) -> None:
        self._known.discard(topic)

    # --- reading without a group

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic, of those brokers that name servers list."""
        return self._client.routes.get(topic).subscribe_queues

    def ends(self, topic: str) -> dict[MessageQueue, int]:
        """Return the max offset of each queue of a topic."""
        asked = []
        for queue in self.readable(topic):
            header = QueueHeader(topic, queue.queue_id, queue.broker_name)
            command = RemotingCommand(RequestCode.GET_MAX_OFFSET, header.encode())
            asked.append((queue, self._ask(queue, command, TIMEOUT_MS)))
        found = {}
        for queue, asking in asked:
            answer = asking.result()
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, answer.remark, queue.broker_name)
            found[queue] = understood(OffsetResponseHeader.decode, answer.fields).offset
        return found

    def pull(
        self, queue: MessageQueue, offset: int, expression: str = "*", held_ms: int = HELD_MS
    ) -> Answer:
        """Return a future of the messages from `offset` on; `pulled` reads it."""
        header = PullMessageHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=PULLED_MAX,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if held_ms else 0),
            commit_offset=0,
            suspend_timeout_ms=held_ms,
            sub_version=0,
            subscription=expression,
        )
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        return self._ask(queue, command, held_ms + SLACK_MS)

    def _ask(self, queue: MessageQueue, command: RemotingCommand, timeout_ms: float) -> Answer:
        try:
            address = self._client.routes.master(queue.broker_name)
        except ClientError as error:
            failed: Answer = Answer()
            failed.set_exception(error)
            return failed
        return self._client.remoting.call_async(address, command, timeout_ms)

    def route_in_doubt(self, topic: str) -> None:
        """Look up a route that may have changed, soon."""
        self._client.refresh_soon(topic)

    def apart(self, task: Callable[[], None]) -> None:
        """Run `task`, which takes long, on another thread than the I/O thread."""
        self._client.housekeeping.post(task)

    def later(self, delay_ms: float, task: Callable[[], None]) -> None:
        """Run `task` on the I/O thread after `delay_ms`."""
        self._client.remoting.later(delay_ms, task)


def pulled(answer: Answer, queue: MessageQueue) -> tuple[list[MessageView], int]:
    """Return the messages of a pull that is answered, and the next offset. Raises ClientError."""
    command = answer.result()
    if command.code not in (ResponseCode.SUCCESS, *PASSED_OVER):
        raise BrokerError(command.code, command.remark, queue.broker_name)
    found = understood(PullMessageResponseHeader.decode, command.fields)
    try:
        views = [view_of(record, queue) for record in records_in(command.body)]
    except RecordError as error:
        raise BadAnswer(f"messages that cannot be understood: {error}") from None
    return views, found.next_begin_offset


def by_step(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Return the queue of a message's priority, at any broker."""
    step = message.step if isinstance(message, QueueMessage) else 0
    fitting = [queue for queue in queues if queue.queue_id == step]
    return fitting[0] if len(fitting) == 1 else choice(fitting or queues)
