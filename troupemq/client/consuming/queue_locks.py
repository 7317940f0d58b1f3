"""Orderly consumption: the broker's locks on queues, and one listener call at a time per queue.

A lock is a lease of 60 s at the broker. The client renews it every 20 s and trusts it for 30 s.

A restarted broker has forgotten all locks, and at first knows few of a group's members. The first
one would take the queues that others still consume. So after the end of a connection to a master, a
member renews its own locks first. It takes a queue of others when these no longer trust their lock.

Source: client/impl/consumer/RebalanceImpl.java (lock, lockAll, unlock, unlockAll).

A queue is consumed while the broker's lock on it is valid. A failed message is retried here while
its queue pauses. At the retry limit it is sent to the retry topic, where the broker makes it a dead
letter, and the queue continues.

Source: client/impl/consumer/ConsumeMessageOrderlyService.java.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from protocol import bodies
from protocol.bodies import LockBatchRequest, LockBatchResponse
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from troupemq.client.connection.calls import Call, Calls, Flow, decoded
from troupemq.client.connection.client import ClientCore
from troupemq.client.consuming.consume import Consuming, Handle, ListenerFlow
from troupemq.client.consuming.listener import Outcome, RetryLater
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, MessageView

log = client_logger(__name__)

LOCK_TIMEOUT_MS = 1000
LOCK_AGAIN_MS = 3000
"""Pause after a renewal that failed; of a broker without an answer also for its other queues."""
LEASE_MS = 60_000
"""Lease at the broker; after it, another member may have had the queue meanwhile."""


class MemberLocks:
    """Flows for the locks of one member of a group; for any thread."""

    def __init__(
        self, client: ClientCore, group: str, on_lost: Callable[[ProcessQueue], None]
    ) -> None:
        """Keep `on_lost`, which gets each queue that another member has or may have had."""
        self._client = client
        self._group = group
        self._on_lost = on_lost
        self._silent_until_s: dict[str, float] = {}
        """Ends of the pauses of brokers that did not answer a renewal, by name."""
        self._broken: dict[str, tuple[float, frozenset[MessageQueue]]] = {}
        """Last end of a connection to each broker, and the own queues at that time, by name."""
        self._to_renew: set[str] = set()
        """Names of brokers that may have forgotten the own locks."""

    def connection_lost(self, address: str, own: Iterable[MessageQueue]) -> None:
        """Note that a connection has ended, while these queues were held. For any thread."""
        name = self._client.routes.name_of(address)
        if address == self._client.routes.known_master(name):
            self._broken[name] = monotonic(), frozenset(own)
            self._to_renew.add(name)

    def wait_ms(self, queue: MessageQueue, valid_ms: float) -> float:
        """Return the ms until no member trusts a lock that the broker may have forgotten."""
        broken_s, own = self._broken.get(queue.broker_name, (0.0, frozenset()))
        if not broken_s or queue in own:
            return 0.0
        return max(0.0, valid_ms - (monotonic() - broken_s) * 1000)

    def renew_forgotten(self, process_queues: Iterable[ProcessQueue]) -> Flow[None]:
        """Renew the locks at brokers whose connection has ended since they were last renewed."""
        names = frozenset(self._to_renew)
        held = [each for each in process_queues if each.queue.broker_name in names]
        self._to_renew -= names
        if held:
            yield from self.renew(held)
            self._to_renew |= names & self._silent_until_s.keys()

    def lock(self, queue: MessageQueue) -> Flow[bool]:
        """Lock a queue; return whether that succeeded. Raises ClientError without an answer."""
        answer = yield self._call(RequestCode.LOCK_BATCH_MQ, queue.broker_name, [queue])
        return queue in (yield from _granted(answer))

    def renew(self, process_queues: Iterable[ProcessQueue]) -> Flow[bool]:
        """Renew the locks; return whether all are held. Without an answer, they expire here.

        Released queues keep theirs while a listener call runs: another member would consume the
        same queue. All brokers are asked at once, or a lock could be renewed after its release.
        """
        by_broker: defaultdict[str, list[ProcessQueue]] = defaultdict(list)
        for each in process_queues:
            if not each.dropped or (each.running and each.locked_at_s is not None):
                by_broker[each.queue.broker_name].append(each)
        now_s = monotonic()
        self._silent_until_s = {
            name: end_s for name, end_s in self._silent_until_s.items() if end_s > now_s
        }
        calls: dict[str, Call] = {}
        for name, held in by_broker.items():
            if name not in self._silent_until_s:
                with self._logged("queue lock renewal failed", name):
                    queues = [each.queue for each in held]
                    calls[name] = self._call(RequestCode.LOCK_BATCH_MQ, name, queues)
        answers = yield Calls(list(calls.values()))
        all_ours = len(calls) == len(by_broker)
        for name, answer in zip(calls, answers, strict=True):
            ours: set[MessageQueue] | None = None
            with self._logged("queue lock renewal failed", name):
                ours = yield from _granted(answer)
            if ours is None:
                self._silent_until_s[name] = monotonic() + LOCK_AGAIN_MS / 1000
                all_ours = False
                continue
            for each in by_broker[name]:
                all_ours = self._renewed(each, each.queue in ours) and all_ours
        return all_ours

    def _renewed(self, held: ProcessQueue, is_ours: bool) -> bool:
        was_ours = held.lock_is_valid(LEASE_MS)
        held.set_locked(is_ours and was_ours)
        if not (is_ours and was_ours):
            log.warning("queue lock lost", group=self._group, queue=str(held.queue))
            self._on_lost(held)
            return False
        return True

    def unlock(self, queues: Collection[MessageQueue], *, oneway: bool) -> Flow[None]:
        """Release locks; if a request does not reach the broker, the lease expires."""
        calls: dict[str, Call] = {}
        for name in sorted({queue.broker_name for queue in queues}):
            at_broker = [queue for queue in queues if queue.broker_name == name]
            with self._logged("queue unlock failed", name):
                call = self._call(RequestCode.UNLOCK_BATCH_MQ, name, at_broker)
                if oneway:
                    self._client.remoting.oneway(call.address, call.command)
                else:
                    calls[name] = call
        answers = yield Calls(list(calls.values()))
        for name, answer in zip(calls, answers, strict=True):
            with self._logged("queue unlock failed", name):
                _success(answer)

    @contextmanager
    def _logged(self, event: str, broker_name: str) -> Iterator[None]:
        """Log a ClientError, and go on behind the block."""
        try:
            yield
        except ClientError as error:
            log.warning(event, broker=broker_name, error=str(error))

    def _call(self, code: RequestCode, broker_name: str, queues: Collection[MessageQueue]) -> Call:
        """Return a request for locks of a broker. Raises RouteNotFound."""
        listed = [
            bodies.MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues
        ]
        body = LockBatchRequest(self._client.id, self._group, listed)
        address = self._client.routes.master(broker_name)
        return Call(address, RemotingCommand(code, body=body.encode()), LOCK_TIMEOUT_MS)


def _success(answer: RemotingCommand | ClientError) -> RemotingCommand:
    if isinstance(answer, ClientError):
        raise answer
    return answer


def _granted(answer: RemotingCommand | ClientError) -> Flow[set[MessageQueue]]:
    """Return the locked queues in an answer. Raises the error in its place, and BadAnswer."""
    found = yield from decoded(LockBatchResponse.decode, _success(answer).body)
    return {
        MessageQueue(each.topic, each.broker_name, each.queue_id) for each in found.lock_ok_mq_set
    }


REST_MS_MIN = 10
REST_MS_MAX = 30_000


@dataclass(eq=False)
class OrderlyConsuming(Consuming):
    """Consumes each queue in the order of its messages, with one call at a time."""

    locks: MemberLocks | None
    """None for broadcasting."""
    now_s: Callable[[], float] = monotonic

    def submit(self, process_queue: ProcessQueue, views: Sequence[MessageView]) -> None:
        if process_queue.claim():
            self._go_on(process_queue)

    def _go_on(self, process_queue: ProcessQueue) -> None:
        self.listening.run(self._run(process_queue))

    def _later(self, process_queue: ProcessQueue, delay_ms: float) -> None:
        self.tasks.later(delay_ms, lambda: self._resumed(process_queue))

    def _resumed(self, process_queue: ProcessQueue) -> Flow[None]:
        yield from ()  # a flow, though it waits for nothing
        self._go_on(process_queue)

    def _run(self, process_queue: ProcessQueue) -> ListenerFlow[None]:
        """Consume the claimed queue until it is empty or fails, or other queues are due."""
        begun_s = self.now_s()
        settings = self.settings
        while not process_queue.dropped:
            if self.locks is not None and not process_queue.lock_is_valid(settings.lock_valid_ms):
                self.tasks.later(REST_MS_MIN, lambda: self._lock_again(process_queue))
                return
            views = process_queue.first(settings.consume_batch_size)
            if not views:
                return
            rest_ms = yield from self._consume(process_queue, views)
            if rest_ms is not None:
                self._later(process_queue, rest_ms)
                return
            if (self.now_s() - begun_s) * 1000 > settings.continuous_ms:
                self._go_on(process_queue)  # behind the queues that wait for a thread
                return
        process_queue.release()

    def _lock_again(self, process_queue: ProcessQueue) -> Flow[None]:
        assert self.locks is not None
        if not process_queue.dropped:
            ours = yield from self.locks.renew([process_queue])
            self._later(process_queue, REST_MS_MIN if ours else LOCK_AGAIN_MS)

    def _consume(
        self, process_queue: ProcessQueue, views: Sequence[MessageView]
    ) -> ListenerFlow[float | None]:
        """Call the listener; return the queue's pause in ms, or None if it continues."""
        if not process_queue.begin(views):
            return None  # the queue is dropped: the loop ends
        try:
            outcome, took_ms = yield Handle(views)
            good, bad = outcome.split(views)
            self._count(process_queue, good, bad, took_ms)
            if outcome.failed is None:
                self._done(process_queue, views)
                return None
            first_bad = next(
                (n for n, view in enumerate(views) if bad and view is bad[0]), len(views)
            )
            self._done(process_queue, views[:first_bad])
            return (yield from self._failed(process_queue, bad, outcome, outcome.failed))
        finally:
            process_queue.end()

    def _failed(
        self,
        process_queue: ProcessQueue,
        views: Sequence[MessageView],
        outcome: Outcome,
        failed: RetryLater,
    ) -> Flow[float | None]:
        rest_ms = self.settings.suspend_queue_ms if failed.suspend_ms is None else failed.suspend_ms
        rest_ms = min(max(rest_ms, REST_MS_MIN), REST_MS_MAX)
        if views:
            next_try = f"in {rest_ms:g} ms, its queue waits"
            if self._is_at_its_limit(views[0]):
                next_try = "none, it becomes a dead letter"
            self._log_failure(views, outcome, next_try)
        given_up: list[MessageView] = []
        for view in views:
            if (yield from self._gives_up(view, outcome.reason)):
                given_up.append(view)
        self._done(process_queue, given_up)
        return None if len(given_up) == len(views) else rest_ms

    def _is_at_its_limit(self, view: MessageView) -> bool:
        back = self.sending_back
        return back is not None and view.reconsume_times >= back.retries_max

    def _gives_up(self, view: MessageView, reason: str) -> Flow[bool]:
        """Return whether the broker took the message as a dead letter; else count the try."""
        back = self.sending_back
        if (
            back is not None
            and self._is_at_its_limit(view)
            and (yield from back.send_again(view, view.reconsume_times, reason))
        ):
            return True
        view.reconsume_times += 1
        return False
