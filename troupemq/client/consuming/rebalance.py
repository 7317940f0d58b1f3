"""Rebalance: this consumer's queues, worked out on a tick and when the group has changed.

Runs on the client's housekeeping thread, where blocking is no harm to pulls or listeners.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from time import monotonic

from protocol.bodies import ConsumerList
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.client import GetConsumerListHeader
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.connection.client import Client
from troupemq.client.consuming.assignment import Assignment, share_of
from troupemq.client.consuming.consumer_offsets import Offsets
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.consuming.queue_locks import MemberLocks
from troupemq.client.errors import (
    ClientError,
    ResultUnknown,
    RouteNotFound,
    understood,
)
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

CONSUMER_LIST_TIMEOUT_MS = 3000
INCOMPLETE_AGAIN_MS = 1000
"""After a round that lacked a route, an answer or our own id in the group."""

LOCKED_AGAIN_MS = 500
"""After a round in which another member, or a listener of ours, was not done with a queue."""


class Rebalancing:
    """The table of own queues, and how it follows the group."""

    def __init__(
        self,
        client: Client,
        group: str,
        offsets: Offsets,
        assign: Assignment | None,
        settings: ConsumerSettings,
        on_new: Callable[[ProcessQueue], None],
        *,
        locks: MemberLocks | None = None,
        position: Callable[[ProcessQueue], int | None] = ProcessQueue.committable,
    ) -> None:
        """`on_new` begins to pull a queue. Without `assign` every queue is ours (broadcast). With
        `locks` a queue is taken when the broker has locked it, and given away when no listener has
        it any more. `position` is what a commit stores, None for
        nothing."""
        self._client = client
        self._group = group
        self._offsets = offsets
        self._assign = assign
        self._settings = settings
        self._on_new = on_new
        self._locks = locks
        self._position = position
        self._closed = False
        self._turn = RLock()
        self._wanted_since_s: dict[MessageQueue, float] = {}
        self._own: dict[MessageQueue, ProcessQueue] = {}
        self._missing: set[str] = set()

    @property
    def own(self) -> Mapping[MessageQueue, ProcessQueue]:
        """The queues that this consumer has; changed by replacing it as a whole."""
        return self._own

    def run(self, topics: Sequence[str]) -> float | None:
        """Takes and gives away queues. None if all is done, else in how many ms to try the rest."""
        again_ms: list[float] = []
        with self._turn:
            for topic in () if self._closed else topics:
                try:
                    again_ms += self._run_topic(topic)
                except RouteNotFound as error:
                    if self.missing(topic, error):
                        again_ms.append(INCOMPLETE_AGAIN_MS)
                except ClientError as error:
                    own_fault = isinstance(error, ResultUnknown)
                    say = log.error if own_fault else log.warning
                    say("rebalance failed", topic=topic, error=str(error))
                    again_ms.append(INCOMPLETE_AGAIN_MS)
            if not self._closed:
                again_ms += self._give_away(
                    [queue for queue in self._own if queue.topic not in topics]
                )
        return min(again_ms, default=None)

    def missing(self, topic: str, error: RouteNotFound) -> bool:
        """Warn, once, that a topic cannot be consumed yet; return False for a retry topic, which
        comes when it is needed."""
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return False
        if topic not in self._missing:
            self._missing.add(topic)
            log.warning(
                "topic not found",
                group=self._group,
                topic=topic,
                error=str(error),
                hint="it is consumed as soon as it exists; create it with"
                f" troupemq admin updateTopic -t {topic} -c DefaultCluster",
            )
        return True

    def _run_topic(self, topic: str) -> list[float]:
        queues = sorted(self._client.routes.get(topic).subscribe_queues)
        if not queues:
            raise RouteNotFound(f"no broker lets {topic} be read")
        if topic in self._missing:
            self._missing.discard(topic)
            log.info("topic found", group=self._group, topic=topic)
        again_ms: list[float] = []
        if self._assign is None:
            members, mine = [self._client.id], frozenset(queues)
        else:
            members = self._members(queues)
            mine = share_of(self._assign, self._client.id, members, queues)
            if self._client.id not in members:
                again_ms.append(INCOMPLETE_AGAIN_MS)
        again_ms += self._give_away(
            [
                queue
                for queue, held in self._own.items()
                if queue.topic == topic and (queue not in mine or held.dropped)
            ]
        )
        alone = members == [self._client.id] or self._locks is not None
        for queue in queues:
            if queue not in mine:
                self._wanted_since_s.pop(queue, None)
            elif queue not in self._own:
                wait_ms = 0.0 if alone else self._settle_ms(queue)
                if wait_ms > 0:
                    again_ms.append(wait_ms)
                elif (take_again_ms := self._take(queue)) is not None:
                    again_ms.append(take_again_ms)
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

    def _take(self, queue: MessageQueue) -> float | None:
        """None once it is ours, else in how many ms it may be."""
        try:
            if self._locks is not None and not self._locks.lock(queue):
                log.info("queue locked by another", group=self._group, queue=str(queue))
                return LOCKED_AGAIN_MS
            offset = self._offsets.start_of(queue)
        except ClientError as error:
            log.warning("queue not taken yet", queue=str(queue), error=str(error))
            return INCOMPLETE_AGAIN_MS
        self._wanted_since_s.pop(queue, None)
        log.info("queue taken", group=self._group, queue=str(queue), offset=offset)
        self._add(queue, offset)
        return None

    def _add(self, queue: MessageQueue, offset: int, before: ProcessQueue | None = None) -> None:
        process_queue = ProcessQueue(queue, offset)
        if before is not None:
            process_queue.rests, process_queue.locked_at_s = before.rests, before.locked_at_s
        elif self._locks is not None:
            process_queue.set_locked(True)
        self._own = {**self._own, queue: process_queue}
        if self._closed:  # meanwhile, on another thread
            process_queue.drop(0)
        self._on_new(process_queue)

    def _give_away(self, queues: Sequence[MessageQueue]) -> list[float]:
        """When to go on with those whose listener calls take too long, of orderly consumers."""
        again_ms: list[float] = []
        for queue in queues:
            self._own[queue].drop(0)
        for queue in queues:
            held = self._own[queue]
            drained = held.drop(self._settings.drop_wait_ms / 1000)
            if self._locks is not None and not drained:
                held.unlock_tries += 1
                log.warning("queue still consumed", queue=str(queue), tries=held.unlock_tries)
                again_ms.append(LOCKED_AGAIN_MS)
                continue
            self._own = {key: value for key, value in self._own.items() if key != queue}
            self._commit_last_of(held)
            if self._locks is not None and held.locked_at_s is not None:
                self._locks.unlock([queue], oneway=True)
            log.info("queue given away", group=self._group, queue=str(queue))
        return again_ms

    def _commit_last_of(self, held: ProcessQueue) -> None:
        queue = held.queue
        offset = self._last_position(held)
        if offset is not None:
            try:
                self._offsets.commit(queue, offset)
            except ClientError as error:
                log.warning("offset not committed", queue=str(queue), error=str(error))

    def _last_position(self, held: ProcessQueue) -> int | None:
        """What to store of a queue that is given away; None for nothing."""
        if self._locks is not None and held.locked_at_s is None:
            return None  # it is another's already
        return self._position(held)

    def lost(self, held: ProcessQueue) -> None:
        """The lock on it is, or was, another member's: the next round looks where the group is."""
        held.drop(0)

    def restart_at(self, queue: MessageQueue, offset: int) -> bool:
        """Goes on there with a queue of ours, and has that stored. False if it must be tried again:
        an orderly listener is not done with it. Raises ClientError."""
        with self._turn:
            held = self._own.get(queue)
            if held is None or self._closed:
                return True
            drained = held.drop(self._settings.drop_wait_ms / 1000)
            if self._locks is not None and not drained:
                return False
            self._offsets.commit(queue, offset)
            log.info("queue set", group=self._group, queue=str(queue), offset=offset)
            if self._locks is None or held.locked_at_s is not None:
                self._add(queue, offset, held)
            return True  # without its lock it stays dropped: the next round takes it, if it is ours

    def assign(self, queues: Sequence[MessageQueue]) -> None:
        """Has these and no others, whatever the group does. Raises ClientError, with those that it
        could take taken."""
        with self._turn:
            self._give_away([queue for queue in self._own if queue not in queues])
            for queue in queues:
                if queue not in self._own:
                    self._add(queue, self._offsets.start_of(queue))

    def commit(self) -> None:
        """Stores how far each queue is; does not wait for the broker's word."""
        self._offsets.commit_all(
            {
                queue: offset
                for queue, held in self._own.items()
                if not held.dropped and (offset := self._position(held)) is not None
            }
        )

    def renew_locks(self) -> None:
        """Every `lock_interval_ms`. Blocks."""
        if self._locks is not None:
            self._locks.renew(self._own.values())

    def close(self) -> None:
        """Takes no more queues; no more listener calls, but those under way go on."""
        self._closed = True
        for held in self._own.values():
            held.drop(0)

    def give_all_away(self, timeout_s: float) -> None:
        """Commits every queue, with the broker's word, and has none any more."""
        with self._turn:
            own, self._own = self._own, {}
            last = {queue: self._last_position(held) for queue, held in own.items()}
            known = {queue: offset for queue, offset in last.items() if offset is not None}
            self._offsets.commit_last(known, timeout_s)
            idle = [queue for queue, held in own.items() if held.drop(0)]
            if self._locks is not None and idle:  # the others get free when their lease is over
                self._locks.unlock(idle, oneway=False)
