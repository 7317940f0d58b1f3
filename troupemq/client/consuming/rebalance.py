"""Rebalance: computes this consumer's queues periodically and when members change.

Its methods are flows. They run one by one, without delaying pulls or listeners.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from protocol.bodies import ConsumerList
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import GetConsumerListHeader
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.connection.calls import (
    Blocking,
    Call,
    Flow,
    InTurn,
    LookUpRoute,
    Value,
    WaitFor,
    decoded,
    pause,
)
from troupemq.client.connection.client import ClientCore, now_ms
from troupemq.client.connection.route import MASTER_ID
from troupemq.client.consuming.assignment import Assignment, share_of
from troupemq.client.consuming.consumer_offsets import COMMITS_OF_A_TURN, Offsets
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.errors import (
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    ResultUnknown,
    RouteNotFound,
)
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue
from troupemq.client.settings import ConsumerSettings

if TYPE_CHECKING:
    from troupemq.client.consuming.queue_locks import MemberLocks

log = client_logger(__name__)

CONSUMER_LIST_TIMEOUT_MS = 3000
INCOMPLETE_AGAIN_MS = 1000
"""Pause after a round without a route, an answer, or the own id among the members."""

APART_MIN = 4096
"""Queues and members from which they are sorted and shared out on a thread: 3 ms."""

LOCKED_AGAIN_MS = 500
"""Pause after a round in which another member or an own listener still used a queue."""


class Rebalancing:
    """The assigned queues of a consumer, and their changes."""

    def __init__(
        self,
        client: ClientCore,
        group: str,
        offsets: Offsets,
        assign: Assignment | None,
        settings: ConsumerSettings,
        on_new: Callable[[ProcessQueue], None],
        *,
        locks: "MemberLocks | None" = None,
        position: Callable[[ProcessQueue], int | None] = ProcessQueue.committable,
    ) -> None:
        """Start without queues.

        `on_new` starts the pulls of a queue. `assign`: None takes all queues (broadcast). With
        `locks`, a queue is taken once the broker has locked it, and released once no listener call
        uses it. `position` returns the offset to commit, None for no commit.
        """
        self._client = client
        self._group = group
        self._offsets = offsets
        self._assign = assign
        self._settings = settings
        self._on_new = on_new
        self._locks = locks
        self._position = position
        self._closed = False
        self._wanted_since_s: dict[MessageQueue, float] = {}
        self._own: dict[MessageQueue, ProcessQueue] = {}
        self._missing: set[str] = set()
        self._began_ms: int | None = None
        """Time of the first round, wall clock."""
        self._known: dict[str, frozenset[MessageQueue]] = {}
        """Queues of each topic in its last round."""
        self._late: set[MessageQueue] = set()
        """Queues that have appeared after the first round and are not taken yet."""
        self._back_s: dict[str, float] = {}
        """First answers of masters after the end of a connection, monotonic; 0 until then."""
        self._silent: set[str] = set()
        """Names of brokers that have not answered in the current round; it asks them no more."""
        self._looks_again = True
        """Whether the name servers have answered in the current round."""

    @property
    def own(self) -> Mapping[MessageQueue, ProcessQueue]:
        """The assigned queues; each change replaces the mapping, so any thread may read it."""
        return self._own

    def run(self, topics: Sequence[str]) -> Flow[float | None]:
        """Take and release queues; return None if all is done, else the ms until the next try."""
        again_ms: float | None = yield InTurn(self._run(topics))
        return again_ms

    def _run(self, topics: Sequence[str]) -> Flow[float | None]:
        again_ms: list[float] = []
        self._began_ms = self._began_ms or now_ms()
        self._silent.clear()
        self._looks_again = True
        if self._locks is not None:
            yield from self._locks.renew_forgotten(self._own.values())
        for topic in topics:
            if self._closed:
                break
            try:
                again_ms += yield from self._run_topic(topic)
            except RouteNotFound as error:
                if self.missing(topic, error):
                    again_ms.append(INCOMPLETE_AGAIN_MS)
            except ClientError as error:
                own_fault = isinstance(error, ResultUnknown)
                say = log.error if own_fault else log.warning
                say("rebalance failed", topic=topic, error=str(error))
                again_ms.append(INCOMPLETE_AGAIN_MS)
        if not self._closed:
            again_ms += yield from self._give_away(
                [queue for queue in self._own if queue.topic not in topics]
            )
        return min(again_ms, default=None)

    def missing(self, topic: str, error: RouteNotFound) -> bool:
        """Warn once about a missing topic; return False for a retry topic, created when needed."""
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

    def _run_topic(self, topic: str) -> Flow[list[float]]:
        route = yield LookUpRoute(topic)
        if self._looks_again and not all(MASTER_ID in ids for ids in route.addresses.values()):
            try:  # the master may be back, and knows later offsets
                route = yield LookUpRoute(topic, again=True)
            except ClientError as error:
                self._looks_again = isinstance(error, RouteNotFound)
        queues = yield from _apart(
            lambda: sorted(route.subscribe_queues), len(route.subscribe_queues)
        )
        if not queues:
            raise RouteNotFound(f"no broker has readable queues of {topic}")
        known = yield from _apart(partial(self._noted_queues, topic, queues), len(queues))
        if topic in self._missing:
            self._missing.discard(topic)
            log.info("topic found", group=self._group, topic=topic)
        again_ms: list[float] = []
        incomplete_ms = 0.0
        if self._assign is None:
            members, mine = [self._client.id], known
        else:
            members, incomplete_ms = yield from self._members(queues)
            share = partial(share_of, self._assign, self._client.id, members, queues)
            mine = yield from _apart(share, len(members) + len(queues))
            if self._client.id not in members:
                again_ms.append(INCOMPLETE_AGAIN_MS)
            if incomplete_ms > 0:  # otherwise queues move now, and back when all have returned
                again_ms.append(incomplete_ms)
                mine = mine.union(queue for queue in self._own if queue in known)
        if self._closed:  # by a stop, which releases all queues after its listener calls
            return again_ms
        again_ms += yield from self._give_away(
            [
                queue
                for queue, held in self._own.items()
                if queue.topic == topic and (queue not in mine or held.dropped)
            ]
        )
        self._wanted_since_s = {
            queue: since_s
            for queue, since_s in self._wanted_since_s.items()
            if queue.topic != topic or queue in mine
        }
        alone = members == [self._client.id] or self._locks is not None
        for queue in queues:
            if self._closed:  # by a stop, which waits for this round
                break
            if queue in mine and queue not in self._own:
                wait_ms = incomplete_ms or (0.0 if alone else self._settle_ms(queue))
                if wait_ms > 0:
                    again_ms.append(wait_ms)
                elif (take_again_ms := (yield from self._take(queue))) is not None:
                    again_ms.append(take_again_ms)
        return again_ms

    def _noted_queues(self, topic: str, queues: list[MessageQueue]) -> frozenset[MessageQueue]:
        """Return the queues of a topic, after a note of those that it has only now."""
        known = frozenset(queues)
        before = self._known.get(topic, frozenset() if topic in self._missing else known)
        self._known[topic] = known
        self._late |= known - before
        self._late -= before - known
        return known

    def _settle_ms(self, queue: MessageQueue) -> float:
        """Return the ms until a queue may be taken: its former owner must finish and commit."""
        now_s = monotonic()
        since_s = self._wanted_since_s.setdefault(queue, now_s)
        return self._settings.settle_ms - (now_s - since_s) * 1000

    def _members(self, queues: Sequence[MessageQueue]) -> Flow[tuple[list[str], float]]:
        """Return the group's sorted client ids from the first broker with an answer, or raise.

        With the ms in which other members may still return to this broker, 0 usually: the list of
        a restarted one begins empty, and members repeat a failed pull after a pause.
        """
        header = GetConsumerListHeader(self._group)
        failure: ClientError | None = None
        names = {queue.broker_name for queue in queues}
        for broker_name in sorted(names - self._silent or names):
            command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.encode())
            try:
                address = self._client.routes.address(broker_name)
                answer = yield Call(address, command, CONSUMER_LIST_TIMEOUT_MS)
                members = yield from decoded(_members_in, answer.body)
                return members, self._incomplete_ms(address)
            except ClientError as error:
                failure = self._noted(broker_name, error)
        assert failure is not None
        raise failure

    def _incomplete_ms(self, address: str) -> float:
        if address not in self._back_s:
            return 0.0
        since_s = self._back_s[address] = self._back_s[address] or monotonic()
        wait_ms = self._settings.pull_error_delay_ms + self._settings.settle_ms
        return max(0.0, wait_ms - (monotonic() - since_s) * 1000)

    def _noted(self, broker_name: str, error: ClientError) -> ClientError:
        """Return the error, after a note if the broker does not answer: each try takes seconds."""
        if isinstance(error, RequestTimeout | ConnectionFailed):
            self._silent.add(broker_name)
        return error

    def _take(self, queue: MessageQueue) -> Flow[float | None]:
        """Take a queue; return None, or the ms until the next try."""
        if queue.broker_name in self._silent:
            return INCOMPLETE_AGAIN_MS
        if self._locks is not None:
            wait_ms = self._locks.wait_ms(queue, self._settings.lock_valid_ms)
            if wait_ms > 0:
                return wait_ms
        try:
            if self._locks is not None and not (yield from self._locks.lock(queue)):
                log.info("queue locked by another member", group=self._group, queue=str(queue))
                return LOCKED_AGAIN_MS
            since_ms = self._began_ms if queue in self._late else None
            offset = yield from self._offsets.start_of(queue, since_ms)
        except ClientError as error:
            self._noted(queue.broker_name, error)
            log.warning("queue assignment postponed", queue=str(queue), error=str(error))
            return INCOMPLETE_AGAIN_MS
        self._late.discard(queue)
        self._wanted_since_s.pop(queue, None)
        log.info("queue assigned", group=self._group, queue=str(queue), offset=offset)
        self._add(queue, offset)
        return None

    def _add(self, queue: MessageQueue, offset: int, before: ProcessQueue | None = None) -> None:
        process_queue = ProcessQueue(queue, offset)
        if before is not None:
            process_queue.rests, process_queue.locked_at_s = before.rests, before.locked_at_s
        elif self._locks is not None:
            process_queue.set_locked(True)
        self._own = {**self._own, queue: process_queue}
        if self._closed:  # by another thread in the meantime
            process_queue.drop()
        self._on_new(process_queue)

    def _give_away(self, queues: Sequence[MessageQueue]) -> Flow[list[float]]:
        """Release queues; return the ms until the next try for those with running orderly calls."""
        again_ms: list[float] = []
        for queue in queues:
            self._own[queue].drop()
        deadline_s = monotonic() + self._settings.drop_wait_ms / 1000
        for queue in queues:
            if self._closed:  # by a stop, which releases the others
                break
            held = self._own[queue]
            drained = yield WaitFor(held.when_idle, max(0.0, deadline_s - monotonic()))
            if self._locks is not None and not drained:
                held.unlock_tries += 1
                log.warning("queue release postponed", queue=str(queue), tries=held.unlock_tries)
                again_ms.append(LOCKED_AGAIN_MS)
                continue
            self._own = {key: value for key, value in self._own.items() if key != queue}
            yield from self._commit_last_of(held)
            if self._locks is not None and held.locked_at_s is not None:
                yield from self._locks.unlock([queue], oneway=True)
            log.info("queue released", group=self._group, queue=str(queue))
        return again_ms

    def _commit_last_of(self, held: ProcessQueue) -> Flow[None]:
        queue = held.queue
        offset = self._last_position(held)
        if offset is not None:
            try:
                if queue.broker_name in self._silent:
                    yield from self._offsets.commit_all({queue: offset})
                else:
                    yield from self._offsets.commit(queue, offset)
            except ClientError as error:
                self._noted(queue.broker_name, error)
                log.warning("offset commit failed", queue=str(queue), error=str(error))

    def _last_position(self, held: ProcessQueue) -> int | None:
        """Return the offset to commit of a released queue; None for no commit."""
        if self._locks is not None and held.locked_at_s is None:
            return None  # another member has the queue already
        return self._position(held)

    def connection_lost(self, address: str) -> None:
        """Note the end of a connection: its broker may know no member any more. Any thread."""
        self._back_s[address] = 0.0
        if self._locks is not None:
            self._locks.connection_lost(address, self._own)

    def lost(self, held: ProcessQueue) -> None:
        """Drop a queue without its lock; the next round takes it again at the stored offset."""
        held.drop()

    def restart_at(self, queue: MessageQueue, offset: int) -> Flow[bool]:
        """Continue an assigned queue at `offset` and store that. Raises ClientError.

        Return False if the caller must try again, because an orderly listener call still runs.
        """
        done: bool = yield InTurn(self._restart_at(queue, offset))
        return done

    def _restart_at(self, queue: MessageQueue, offset: int) -> Flow[bool]:
        held = self._own.get(queue)
        if held is None or self._closed:
            return True
        held.drop()
        drained = is_stored = False
        try:
            drained = yield WaitFor(held.when_idle, self._settings.drop_wait_ms / 1000)
            if self._locks is not None and not drained:
                return False
            yield from self._offsets.commit(queue, offset)
            is_stored = True
            log.info("queue offset reset", group=self._group, queue=str(queue), offset=offset)
        finally:  # also after a failure: no round would take a queue that the application assigns
            if self._locks is None or (drained and held.locked_at_s is not None):
                self._add(queue, offset if is_stored else held.committable(), held)
                if not is_stored:
                    self._own[queue].acknowledged = held.acknowledged
        return True  # without a lock it stays dropped, until the next round takes it again

    def assign(self, queues: Sequence[MessageQueue]) -> Flow[None]:
        """Take exactly these queues, without a rebalance.

        Raises ClientError at the first failure, and keeps the queues taken before it.
        """
        yield InTurn(self._assign_all(queues))

    def _assign_all(self, queues: Sequence[MessageQueue]) -> Flow[None]:
        self._silent.clear()
        yield from self._give_away(
            [queue for queue, held in self._own.items() if queue not in queues or held.dropped]
        )
        for queue in queues:
            if queue not in self._own:
                self._add(queue, (yield from self._offsets.start_of(queue)))

    def commit(self) -> Flow[None]:
        """Commit the offsets of all queues without waiting for confirmations."""
        own = tuple(self._own.items())
        for start in range(0, len(own), COMMITS_OF_A_TURN):
            if start:
                yield Blocking(pause)
            yield from self._offsets.commit_all(
                {
                    queue: offset
                    for queue, held in own[start : start + COMMITS_OF_A_TURN]
                    if not held.dropped and (offset := self._position(held)) is not None
                }
            )

    def renew_locks(self) -> Flow[None]:
        """Renew all locks; called every `lock_interval_ms`."""
        if self._locks is not None:
            yield from self._locks.renew(self._own.values())

    def close(self) -> None:
        """Take no more queues and allow no new listener calls; running calls continue."""
        self._closed = True
        for held in self._own.values():
            held.drop()

    def give_all_away(self, timeout_s: float) -> Flow[int]:
        """Release all queues; commit their offsets and return the number of confirmed ones."""
        committed: int = yield InTurn(self._give_all_away(timeout_s))
        return committed

    def _give_all_away(self, timeout_s: float) -> Flow[int]:
        own, self._own = self._own, {}
        last = {queue: self._last_position(held) for queue, held in own.items()}
        known = {queue: offset for queue, offset in last.items() if offset is not None}
        committed = yield from self._offsets.commit_last(known, timeout_s)
        idle = [queue for queue, held in own.items() if held.drop()]
        if self._locks is not None and idle:  # the leases of the others expire
            yield from self._locks.unlock(idle, oneway=False)
        return committed


def _members_in(body: bytes | memoryview | None) -> list[str]:
    return sorted(set(ConsumerList.decode(body).consumer_id_list))


def _apart(work: Callable[[], Value], size: int) -> Flow[Value]:
    """Return the result of `work`, which a large size has done on a thread."""
    if size < APART_MIN:
        return work()
    value: Value = yield Blocking(work)
    return value
