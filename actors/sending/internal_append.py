"""Internal appends: delayed and returned messages, transaction ends, and others of the broker.

PutMessage receives `InternalAppend` and answers with the result that it carries. The records
arrive prepared; only the limits of the log itself are checked. `InternalAppends` is a plain class.
PutMessage owns one; PutReplica owns one that only refuses.

An InternalAppend waits for topics that have to be made first, and for the next file. Its records
enter the log in order. A record refused for lack of room takes all later ones with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, TypeVar

from actors.engine.actor_address import ActorAddress
from actors.sending.appender import Appender, InternalRecord, Put
from actors.sending.messages import InternalAppend, answer_appends
from actors.sending.send_rules import PROPERTIES_BYTES_MAX, RefusedError, TopicState, read_queue
from actors.tables.messages import CreateSystemTopic, CreateTopicOnSend, TopicReady
from protocol.codes import ResponseCode
from protocol.message import HEAD_V6, TOPIC_BYTES_MAX

T = TypeVar("T")


class TopicWaitList(Generic[T]):
    """Items of one actor, by the topic they wait for.

    Each topic is requested once; the topic table answers the actor with `TopicReady`.
    """

    def __init__(self, topics: ActorAddress, count_max: int | None = None) -> None:
        """Initialize the list, in which at most `count_max` items wait for one topic."""
        self._topics = topics
        self._count_max = count_max
        self._waiting: dict[str, list[T]] = {}

    def __contains__(self, topic: str) -> bool:
        """Return whether items wait for the topic, so that later ones must wait behind them."""
        return topic in self._waiting

    def park(self, item: T, create: CreateTopicOnSend | CreateSystemTopic) -> bool:
        """Keep the item, and request the topic if it is the first.

        Return False when too many wait.
        """
        waiting = self._waiting.get(create.topic)
        if waiting is None:
            self._waiting[create.topic] = [item]
            self._topics.tell(create)
        elif self._count_max is not None and len(waiting) >= self._count_max:
            return False
        else:
            waiting.append(item)
        return True

    def release(self, topic: str) -> Sequence[T]:
        """Remove and return the items that waited for this topic."""
        return self._waiting.pop(topic, ())

    def release_all(self) -> Sequence[T]:
        """Remove and return all items."""
        waiting = [*chain.from_iterable(self._waiting.values())]
        self._waiting.clear()
        return waiting


COMMIT_RECORDS = 512
"""Records written without waiting for the end of the batch: 5 ms of the event loop."""

_OVERHEAD_BYTES = HEAD_V6.size + 1 + 2


@dataclass(slots=True, eq=False)
class InternalPut(Put):
    """One record of an InternalAppend on its way into the log."""

    group: InternalRecord
    append: InternalAppend


class InternalAppends:
    """Internal appends that wait for the end of the batch, the next file or a topic. One owner."""

    def __init__(self, appender: Appender, topic_table: ActorAddress, owner: ActorAddress) -> None:
        """`owner` receives TopicReady for the requested topics."""
        self._appender = appender
        self._owner = owner
        self._parking: TopicWaitList[InternalAppend] = TopicWaitList(topic_table)
        self.pending: list[InternalAppend] = []
        self.pending_count = 0
        """Number of records in `pending` that are not stored yet."""

    def keep(
        self, append: InternalAppend, known_topics: Mapping[str, object], made: str = ""
    ) -> None:
        """Keep an append for the end of the batch, or until its topics are made.

        `made` may lack in the known topics.
        """
        for wanted in append.topics:
            if wanted.topic not in known_topics and wanted.topic != made:
                self._parking.park(append, replace(wanted, reply_to=self._owner))
                return
        self.pending.append(append)
        self.pending_count += len(append.records)

    def topic_ready(self, message: TopicReady, known_topics: Mapping[str, object]) -> None:
        """Continue with the appends that waited for this topic.

        Some may wait for the next topic.
        """
        released = self._parking.release(message.topic)
        if message.config is None:
            remark = f"topic[{message.topic}] not exist"
            answer_appends(released, ResponseCode.SYSTEM_ERROR, remark)
            return
        for append in released:
            self.keep(append, known_topics, message.topic)

    def puts(self) -> list[InternalPut]:
        """Return the records to append next, in order; refuse those that the log cannot take."""
        puts: list[InternalPut] = []
        states: dict[str, TopicState] = {}
        for append in self.pending:
            for number in range(append.done_count, len(append.records)):
                record = append.records[number]
                if self._fits(record):
                    state = states.get(record.topic_name)
                    if state is None:
                        state = self._appender.own_state_of(record.topic_name)
                        states[record.topic_name] = state
                    known = self._appender.config_of(record.topic_name)
                    record.queue_id = read_queue(record.topic_name, known, record.queue_id)
                    puts.append(InternalPut(state, record, append))
                elif puts and puts[-1].append is append:
                    break  # its result follows those of earlier records
                else:
                    refused = len(append.records) - number if append.is_chain else 1
                    append.settle(ResponseCode.MESSAGE_ILLEGAL, refused)
                    if append.is_chain:
                        break
        return puts

    def stored(self, puts: Sequence[InternalPut]) -> list[InternalAppend]:
        """Note that `puts` are stored; remove and return the appends that are complete."""
        for put in puts:
            counts = put.state.puts
            counts.own_count += 1
            counts.own_bytes += put.group.record_bytes
            put.append.done_count += 1
        done: list[InternalAppend] = []
        pending, self.pending = self.pending, []
        for append in pending:
            is_whole = append.done_count == len(append.records)
            if is_whole and (append.records or not self.pending):
                done.append(append)
            else:
                self.pending.append(append)
        self.pending_count = sum(len(each.records) - each.done_count for each in self.pending)
        return done

    def _fits(self, record: InternalRecord) -> bool:
        properties_bytes = len(record.properties)
        topic_bytes = len(record.topic)
        size = _OVERHEAD_BYTES + topic_bytes + len(record.body) + properties_bytes
        return (
            properties_bytes <= PROPERTIES_BYTES_MAX
            and topic_bytes <= TOPIC_BYTES_MAX
            and size <= self._appender.group_bytes_max
        )

    def refuse(self, error: RefusedError) -> None:
        """Refuse all appends that wait for the log; records already stored keep their result."""
        pending, self.pending, self.pending_count = self.pending, [], 0
        answer_appends(pending, error.code, error.remark)

    def refuse_all(self, error: RefusedError) -> None:
        """Refuse everything, including appends that wait for a topic."""
        self.pending += self._parking.release_all()
        self.refuse(error)
