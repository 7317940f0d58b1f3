"""A simulated client with queues of its own, and the locks that orderly consumption needs on them.

Source: client/impl/consumer/RebalanceImpl.java (lock, lockAll, unlock).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueue
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from tests.support.process_queues import ProcessQueue
from tests.support.seats import Client

if TYPE_CHECKING:
    from tests.support.world import World

LOCK_LIVES_MS = 30_000.0
"""A lock that was not renewed for so long is not trusted any more by its own holder."""
Granted = Callable[[list[MessageQueue]], None]


class QueueHolder(Client):
    """A member of a group, and the queues that it has."""

    def __init__(self, world: "World", client_id: str, place: int, group: str) -> None:
        self.group = group
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        super().__init__(world, client_id, place)

    def process(self, mine: ProcessQueue) -> None:
        """The queue is locked again, or there is more in it."""

    def is_locked(self, mine: ProcessQueue) -> bool:
        """Return whether its lock is free by now."""
        return self.world.at_ms - mine.locked_ms < LOCK_LIVES_MS

    def renew_locks(self) -> None:
        """Renew all its locks; a denied lock is lost."""
        queues = [*self.queues]
        if not queues:
            return
        asked_ms = self.world.at_ms

        def taken(granted: list[MessageQueue]) -> None:
            for queue in queues:
                mine = self.queues.get(queue)
                if mine is not None and queue in granted:
                    mine.locked_ms = asked_ms
                    self.process(mine)
                elif mine is not None:
                    mine.locked_ms = asked_ms - LOCK_LIVES_MS

        self.lock(queues, taken)

    def lock(self, queues: list[MessageQueue], granted: Granted) -> None:
        """Asks for locks; `granted` is called with those that it has got."""
        body = LockBatchRequest(self.client_id, self.group, queues).encode()

        def taken(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                granted(LockBatchResponse.decode(answer.body).lock_ok_mq_set)

        self.ask(RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=body), taken)

    def unlock(self, mine: ProcessQueue) -> None:
        """Gives one lock back."""
        body = LockBatchRequest(self.client_id, self.group, [mine.queue]).encode()
        self.tell(RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=body, flag=ONEWAY_FLAG))
