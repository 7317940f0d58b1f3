"""Which queues this consumer has: worked out anew on a tick and when the group has changed.

Runs on the client's housekeeping thread, where blocking is no harm to pulls or listeners.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from protocol.bodies import ConsumerList
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.client import GetConsumerListHeader
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.assignment import Assignment
from troupemq.client.client import Client
from troupemq.client.consume import ConsumerSettings
from troupemq.client.consumer_offsets import ConsumerOffsets
from troupemq.client.errors import ClientError, RouteNotFound, understood
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue
from troupemq.client.process_queue import ProcessQueue

log = client_logger(__name__)

CONSUMER_LIST_TIMEOUT_MS = 3000
INCOMPLETE_AGAIN_MS = 1000
"""After a round that lacked a route, an answer or our own id in the group."""


class Rebalancing:
    """The table of own queues, and how it follows the group."""

    def __init__(
        self,
        client: Client,
        group: str,
        offsets: ConsumerOffsets,
        assign: Assignment,
        settings: ConsumerSettings,
        on_new: Callable[[ProcessQueue], None],
    ) -> None:
        """`on_new` begins to pull a queue."""
        self._client = client
        self._group = group
        self._offsets = offsets
        self._assign = assign
        self._settings = settings
        self._on_new = on_new
        self._closed = False
        self._wanted_since_s: dict[MessageQueue, float] = {}
        self._own: dict[MessageQueue, ProcessQueue] = {}

    @property
    def own(self) -> Mapping[MessageQueue, ProcessQueue]:
        """The queues that this consumer has; changed by replacing it as a whole."""
        return self._own

    def run(self, topics: Sequence[str]) -> float | None:
        """Takes and gives away queues; if not all can be done now, says in how many ms it may."""
        again_ms: list[float] = []
        for topic in () if self._closed else topics:
            try:
                again_ms += self._run_topic(topic)
            except RouteNotFound:
                if not topic.startswith(RETRY_TOPIC_PREFIX):  # which comes when it is needed
                    again_ms.append(INCOMPLETE_AGAIN_MS)
            except ClientError as error:
                log.warning("rebalance failed", topic=topic, error=str(error))
                again_ms.append(INCOMPLETE_AGAIN_MS)
        return min(again_ms, default=None)

    def _run_topic(self, topic: str) -> list[float]:
        routes = self._client.routes
        route = routes.known(topic) or routes.look_up(topic)
        queues = sorted(route.subscribe_queues)
        if not queues:
            raise RouteNotFound(f"no broker lets {topic} be read")
        members = self._members(queues)
        mine = frozenset(self._assign(self._client.id, members, queues))
        lost = [queue for queue in self._own if queue.topic == topic and queue not in mine]
        for queue in lost:
            self._own[queue].drop(0)
        for queue in lost:
            self._give_away(queue)
        again_ms: list[float] = [] if self._client.id in members else [INCOMPLETE_AGAIN_MS]
        alone = members == [self._client.id]
        for queue in queues:
            if queue not in mine:
                self._wanted_since_s.pop(queue, None)
            elif queue not in self._own:
                wait_ms = 0.0 if alone else self._settle_ms(queue)
                if wait_ms > 0:
                    again_ms.append(wait_ms)
                elif not self._take(queue):
                    again_ms.append(INCOMPLETE_AGAIN_MS)
        return again_ms

    def _settle_ms(self, queue: MessageQueue) -> float:
        """How long to leave a queue to whoever may have it still, to finish and commit there."""
        now_s = monotonic()
        since_s = self._wanted_since_s.setdefault(queue, now_s)
        return self._settings.settle_ms - (now_s - since_s) * 1000

    def _members(self, queues: Sequence[MessageQueue]) -> list[str]:
        """The sorted ids of the group, from the first broker that tells. Raises ClientError."""
        header = GetConsumerListHeader(self._group)
        failure: ClientError | None = None
        for broker_name in sorted({queue.broker_name for queue in queues}):
            command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.encode())
            try:
                address = self._client.routes.address(broker_name)
                answer = self._client.remoting.ask(address, command, CONSUMER_LIST_TIMEOUT_MS)
                found = understood(ConsumerList.decode, answer.body)
            except ClientError as error:
                failure = error
                continue
            return sorted(set(found.consumer_id_list))
        assert failure is not None
        raise failure

    def _take(self, queue: MessageQueue) -> bool:
        try:
            offset = self._offsets.start_of(queue)
        except ClientError as error:
            log.warning("queue not taken yet", queue=str(queue), error=str(error))
            return False
        process_queue = ProcessQueue(queue, offset)
        self._own = {**self._own, queue: process_queue}
        if self._closed:  # meanwhile, on another thread
            process_queue.drop(0)
        self._wanted_since_s.pop(queue, None)
        log.info("queue taken", group=self._group, queue=str(queue), offset=offset)
        self._on_new(process_queue)
        return True

    def _give_away(self, queue: MessageQueue) -> None:
        process_queue = self._own[queue]
        process_queue.drop(self._settings.drop_wait_ms / 1000)
        self._own = {key: value for key, value in self._own.items() if key != queue}
        self._commit_and_forget(process_queue)
        log.info("queue given away", group=self._group, queue=str(queue))

    def _commit_and_forget(self, process_queue: ProcessQueue) -> None:
        queue, offset = process_queue.queue, process_queue.committable()
        try:
            self._offsets.commit(queue, offset)
        except ClientError as error:
            log.warning("offset not committed", queue=str(queue), error=str(error))
        self._offsets.forget(queue)

    def commit(self) -> None:
        """Stores how far each queue is; does not wait for the broker's word."""
        for queue, process_queue in self._own.items():
            self._offsets.commit_oneway(queue, process_queue.committable())

    def close(self) -> None:
        """Takes no more queues; no more listener calls, but those under way go on."""
        self._closed = True
        for process_queue in self._own.values():
            process_queue.drop(0)

    def give_all_away(self) -> None:
        """Commits every queue, with the broker's word, and has none any more."""
        own, self._own = self._own, {}
        for process_queue in own.values():
            self._commit_and_forget(process_queue)
