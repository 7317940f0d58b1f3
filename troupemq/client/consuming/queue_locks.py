"""The broker's locks on the queues of an orderly consumer, each held by one member of a group.

A lock is a lease of 60 s at the broker. The client renews it every 20 s and trusts it for 30 s.

Source: client/impl/consumer/RebalanceImpl.java (lock, lockAll, unlock, unlockAll).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from protocol import bodies
from protocol.bodies import LockBatchRequest, LockBatchResponse
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from troupemq.client.connection.calls import Call, Flow
from troupemq.client.connection.client import ClientCore
from troupemq.client.consuming.process_queue import ProcessQueue
from troupemq.client.errors import ClientError, understood
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

LOCK_TIMEOUT_MS = 1000
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

    def lock(self, queue: MessageQueue) -> Flow[bool]:
        """Lock a queue; return whether that succeeded. Raises ClientError without an answer."""
        return queue in (yield from self._ask(queue.broker_name, [queue]))

    def renew(self, process_queues: Iterable[ProcessQueue]) -> Flow[bool]:
        """Renew the locks; return whether all are held. Without an answer, they expire here."""
        by_broker: defaultdict[str, list[ProcessQueue]] = defaultdict(list)
        for each in process_queues:
            if not each.dropped:
                by_broker[each.queue.broker_name].append(each)
        all_ours = True
        for broker_name, held in by_broker.items():
            try:
                ours = yield from self._ask(broker_name, [each.queue for each in held])
            except ClientError as error:
                log.warning("queue lock renewal failed", broker=broker_name, error=str(error))
                all_ours = False
                continue
            for each in held:
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
        for broker_name in sorted({queue.broker_name for queue in queues}):
            at_broker = [queue for queue in queues if queue.broker_name == broker_name]
            command = self._command(RequestCode.UNLOCK_BATCH_MQ, at_broker)
            try:
                address = self._client.routes.master(broker_name)
                if oneway:
                    self._client.remoting.oneway(address, command)
                else:
                    yield Call(address, command, LOCK_TIMEOUT_MS)
            except ClientError as error:
                log.warning("queue unlock failed", broker=broker_name, error=str(error))

    def _ask(self, broker_name: str, queues: Collection[MessageQueue]) -> Flow[set[MessageQueue]]:
        address = self._client.routes.master(broker_name)
        command = self._command(RequestCode.LOCK_BATCH_MQ, queues)
        answer = yield Call(address, command, LOCK_TIMEOUT_MS)
        found = understood(LockBatchResponse.decode, answer.body)
        return {
            MessageQueue(each.topic, each.broker_name, each.queue_id)
            for each in found.lock_ok_mq_set
        }

    def _command(self, code: RequestCode, queues: Collection[MessageQueue]) -> RemotingCommand:
        listed = [
            bodies.MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues
        ]
        body = LockBatchRequest(self._client.id, self._group, listed)
        return RemotingCommand(code, body=body.encode())
