"""A push consumer in simulation: heartbeats, rebalance, locks, long pulls, send-backs, offsets.

It does what DefaultMQPushConsumerImpl does, in its order and at its intervals, and processes for as
long as it is told to.  What it has processed is written down in the world (`Consumed`).

Source: client/impl/consumer/*.java.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol.bodies import (
    ConsumerList,
    MessageQueue,
    SubscriptionData,
)
from protocol.bodies_client import ResetOffsetBody
from protocol.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    GetConsumerListHeader,
    PullMessageResponseHeader,
    UnregisterClientHeader,
)
from protocol.message import MessageRecord, decode_records
from protocol.properties import TAGS, parse
from protocol.tags import TagFilter
from protocol.topic_names import RETRY_TOPIC_PREFIX
from tests.support.process_queues import (
    ProcessQueue,
    averagely,
    heartbeat_command,
    offset_command,
)
from tests.support.queue_holders import QueueHolder

if TYPE_CHECKING:
    from tests.support.world import World

HEARTBEAT_MS = 30_000.0
REBALANCE_MS = 20_000.0
LOCK_EVERY_MS = 20_000.0
PERSIST_MS = 5_000.0
HOLD_MS = 15_000.0
PULL_TIMEOUT_MS = 30_000.0
AGAIN_MS = 3_000.0
"""After an error a pull, and after a failed send-back a message, waits."""
ORDERLY_AGAIN_MS = 1_000.0
RESET_MS = 10_000.0
HELD_MAX = 64
"""Messages of one queue that wait to be processed, past which it is not pulled."""

Listener = Callable[["Consumer", MessageRecord], bool]
"""Whether the message was processed; False: it is to come again."""
Answer = RemotingCommand | None


def everything(_consumer: "Consumer", _record: MessageRecord) -> bool:
    """Processes whatever comes."""
    return True


class Consumer(QueueHolder):
    """One member of a group."""

    def __init__(
        self,
        world: "World",
        client_id: str,
        place: int,
        *,
        group: str,
        subscriptions: Mapping[str, SubscriptionData],
        listener: Listener = everything,
        work_ms: Callable[[], float] = lambda: 0.0,
        is_orderly: bool = False,
        is_broadcast: bool = False,
        local_offsets: dict[MessageQueue, int] | None = None,
    ) -> None:
        """`work_ms` says how long a message takes; `local_offsets` is kept for a broadcast group.

        An orderly consumer tries a message again and again where it stands.
        """
        self.listener, self.work_ms = listener, work_ms
        self.subscriptions = dict(subscriptions)
        self.is_orderly, self.is_broadcast = is_orderly, is_broadcast
        if not is_broadcast:
            retry = RETRY_TOPIC_PREFIX + group
            self.subscriptions.setdefault(retry, SubscriptionData(retry, sub_version=1))
        self.local_offsets = {} if local_offsets is None else local_offsets
        self._leaving: list[ProcessQueue] = []
        """Given up, but not unlocked, for a message is being processed."""
        super().__init__(world, client_id, place, group)

    # --- its rhythm

    def on_connect(self) -> None:
        self.heartbeat(then=self.rebalance)
        self.every(HEARTBEAT_MS, self.heartbeat)
        self.every(REBALANCE_MS, self.rebalance)
        self.every(PERSIST_MS, self.persist)
        if self.is_orderly:
            self.every(LOCK_EVERY_MS, self.renew_locks)
            self.renew_locks()
        for mine in self.queues.values():
            mine.is_pulling = False
            sending, mine.sending = mine.sending, set()
            for offset in sending:
                self._again(mine, offset)
            self.pull(mine)
            self.process(mine)

    def on_lost_broker(self) -> None:
        for mine in (*self.queues.values(), *self._leaving):
            for offset in mine.busy:
                self.world.leave(self, mine.queue, offset)
            mine.busy.clear()
            if mine.is_dropped:  # it has been reset: the next rebalance starts from nothing
                self.queues.pop(mine.queue, None)
        self._leaving.clear()

    def on_notice(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.rebalance()
        elif command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self.reset(ResetOffsetBody.decode(command.body).offset_table)

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Forgets what it has of these queues, and after a while begins again where it is sent."""
        reset = [mine for queue, mine in self.queues.items() if queue in offsets]
        for mine in reset:
            mine.is_dropped = True
            mine.records.clear()

        def go() -> None:
            for mine in reset:
                if self.queues.get(mine.queue) is mine:
                    mine.consumed = offsets[mine.queue]
                    self.give_up(mine)
            self.rebalance()

        self.after(RESET_MS, go)

    def stop(self) -> None:
        """A clean stop: it lets go of everything, and says so."""
        self.persist()
        for mine in [*self.queues.values()]:
            self.give_up(mine, at_once=True)
        header = UnregisterClientHeader(self.client_id, None, self.group)
        self.tell(RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode()))
        self.die()

    def heartbeat(self, then: Callable[[], None] | None = None) -> None:
        model = "BROADCASTING" if self.is_broadcast else "CLUSTERING"
        subscriptions = [*self.subscriptions.values()]
        command = heartbeat_command(self.client_id, self.group, model, subscriptions)
        self.ask(command, lambda answer: then() if answer and not answer.code and then else None)

    # --- which queues

    def rebalance(self) -> None:
        if self.is_broadcast:
            self._divide([self.client_id])
            return
        fields = GetConsumerListHeader(self.group).encode()
        command = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)

        def taken(answer: Answer) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._divide(ConsumerList.decode(answer.body).consumer_id_list)

        self.ask(command, taken)

    def _divide(self, members: Sequence[str]) -> None:
        """Takes its part of the queues, and gives up what is another's."""
        wanted: set[MessageQueue] = set()
        for topic in self.subscriptions:
            queues = self.world.queues(topic)
            wanted.update(averagely(queues, sorted(members), self.client_id))
        for queue, mine in [*self.queues.items()]:
            if queue not in wanted:
                self.give_up(mine)
        leaving = {mine.queue for mine in self._leaving}
        new = [queue for queue in wanted if queue not in self.queues and queue not in leaving]
        new.sort(key=lambda queue: (queue.topic, queue.queue_id))
        if self.is_orderly and new:
            self.lock(new, self._begin_all)
        else:
            self._begin_all(new)

    def _begin_all(self, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            self._begin(queue)

    def _begin(self, queue: MessageQueue) -> None:
        """Asks where to begin, and begins."""
        locked_ms = self.world.at_ms

        def begin(offset: int) -> None:
            if queue not in self.queues and self.is_alive:
                mine = ProcessQueue(queue, offset, locked_ms=locked_ms)
                self.queues[queue] = mine
                self.world.began(self, queue, offset)
                self.pull(mine)

        if self.is_broadcast:
            begin(self.local_offsets.get(queue, 0))
            return

        def taken(answer: Answer) -> None:
            if answer is None:
                return  # the next rebalance
            if answer.code == ResponseCode.SUCCESS:
                begin(int((answer.fields or {})["offset"]))
            elif answer.code == ResponseCode.QUERY_NOT_FOUND:
                begin(0)

        self.ask(offset_command(self.group, queue), taken)

    def give_up(self, mine: ProcessQueue, *, at_once: bool = False) -> None:
        """Lets go of a queue; an orderly consumer only when it is not processing a message."""
        del self.queues[mine.queue]
        mine.is_dropped = True
        if self.is_orderly and mine.busy and not at_once:
            self._leaving.append(mine)
            return
        self._persist([mine])
        if self.is_orderly:
            for offset in mine.busy:
                self.world.leave(self, mine.queue, offset)
            mine.busy.clear()
            self.unlock(mine)

    # --- pulling

    def pull(self, mine: ProcessQueue) -> None:
        """Asks for more, unless it has enough, or has asked."""
        if mine.is_dropped or mine.is_pulling or len(mine.records) >= HELD_MAX or not self._link:
            return
        mine.is_pulling = True
        subscription = self.subscriptions[mine.queue.topic]
        commits = mine.consumed >= 0 and not self.is_broadcast
        flags = PULL_SUSPEND | (PULL_COMMIT_OFFSET if commits else 0)
        header = mine.pull_header(self.group, subscription, flags, int(HOLD_MS))
        command = RemotingCommand(RequestCode.PULL_MESSAGE, header.encode())
        if commits:
            self.world.commits(self, mine.queue, mine.consumed)
        self.ask(command, partial(self._pulled, mine, self.world.at_ms), PULL_TIMEOUT_MS)

    def _pulled(self, mine: ProcessQueue, asked_ms: int, answer: Answer) -> None:
        mine.is_pulling = False
        if mine.is_dropped:
            return
        found = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
        moved = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
        if answer is None or answer.code not in (*found, *moved):
            self.after_linked(AGAIN_MS, lambda: self.pull(mine))
            return
        header = PullMessageResponseHeader.decode(answer.fields)
        self.world.pulled(self, mine.queue, asked_ms, mine.next_offset, answer)
        if answer.code == ResponseCode.SUCCESS:
            for record in decode_records(bytes(answer.body or b"")):
                if self._wants(record):
                    mine.records[record.queue_offset] = record
        mine.next_offset = header.next_begin_offset
        if not mine.records:
            mine.consumed = max(mine.consumed, mine.next_offset)
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            mine.consumed = mine.next_offset  # backwards too
        self.process(mine)
        self.pull(mine)

    def _wants(self, record: MessageRecord) -> bool:
        """Tags are compared by their text here, by their hash in the broker."""
        subscription = self.subscriptions[record.topic]
        if subscription.expression_type != "TAG":
            return True
        tags = TagFilter.parse(subscription.sub_string).tags
        return not tags or parse(record.properties).get(TAGS) in tags

    # --- processing

    def process(self, mine: ProcessQueue) -> None:
        """Begins what can be begun."""
        if self.is_orderly:
            if not mine.busy and mine.records and self.is_locked(mine):
                self._work(mine, min(mine.records))
            return
        for offset in sorted(mine.records.keys() - mine.busy):
            self._work(mine, offset)

    def _work(self, mine: ProcessQueue, offset: int) -> None:
        mine.busy.add(offset)
        self.world.enter(self, mine.queue, offset)
        self.after(self.work_ms(), lambda: self._worked(mine, offset))

    def _worked(self, mine: ProcessQueue, offset: int) -> None:
        record = mine.records.get(offset)
        if offset not in mine.busy:
            return  # stopped meanwhile
        if record is None:
            mine.busy.discard(offset)
            self.world.leave(self, mine.queue, offset)
            return  # reset meanwhile
        done = self.listener(self, record)
        self.world.consumed(self, record, done=done)
        if not done and not self.is_broadcast and not self.is_orderly:
            self._send_back(mine, record)
            return
        if done or self.is_broadcast:
            mine.remove(offset)
            self._release(mine, offset)
        else:
            self.after(ORDERLY_AGAIN_MS, lambda: self._release(mine, offset))

    def _release(self, mine: ProcessQueue, offset: int) -> None:
        """The message is not being processed any more."""
        if offset not in mine.busy:
            return
        mine.busy.discard(offset)
        self.world.leave(self, mine.queue, offset)
        if mine.is_dropped:
            if mine in self._leaving:
                self._leaving.remove(mine)
                self.queues[mine.queue] = mine
                self.give_up(mine)
            return
        self.process(mine)
        self.pull(mine)

    def _send_back(self, mine: ProcessQueue, record: MessageRecord) -> None:
        header = ConsumerSendMsgBackHeader(
            record.physical_offset, self.group, 0, origin_topic=record.topic
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        if self._link is None:
            self.after(AGAIN_MS, lambda: self._again(mine, record.queue_offset))
            return
        mine.sending.add(record.queue_offset)

        def taken(answer: Answer) -> None:
            mine.sending.discard(record.queue_offset)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                mine.remove(record.queue_offset)
                self._release(mine, record.queue_offset)
            else:
                self.after(AGAIN_MS, lambda: self._again(mine, record.queue_offset))

        self.ask(command, taken)

    def _again(self, mine: ProcessQueue, offset: int) -> None:
        """Process it again: whether the broker took it back is unknown."""
        if offset in mine.busy:
            mine.busy.discard(offset)
            self.world.leave(self, mine.queue, offset)
            self.process(mine)

    # --- offsets

    def persist(self) -> None:
        self._persist([*self.queues.values()])

    def _persist(self, queues: Sequence[ProcessQueue]) -> None:
        for mine in queues:
            if mine.consumed < 0:
                continue
            if self.is_broadcast:
                self.local_offsets[mine.queue] = mine.consumed
                continue
            self.world.commits(self, mine.queue, mine.consumed)
            self.tell(mine.commit_command(self.group))
