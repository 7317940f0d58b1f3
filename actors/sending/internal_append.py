"""Internal appends: delayed and returned messages, transaction ends, and others of the broker.

PutMessage receives `InternalAppend` and answers with `InternalAppended`. The records arrive
prepared; only the limits of the log itself are checked. `InternalAppends` is a plain class.
PutMessage owns one; PutReplica owns one that only refuses.

An InternalAppend waits for topics that have to be made first, and for the next file. Its records
enter the log in order. A record refused for lack of room takes all later ones with it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

from actors.engine.actor_address import ActorAddress
from actors.sending.appender import Appender, Put, Record
from actors.sending.send_rules import (
    NO_HOST_FLAGS,
    PROPERTIES_BYTES_MAX,
    RefusedError,
    TopicState,
    read_queue,
)
from actors.sending.topic_wait_list import TopicWaitList
from actors.tables.topics import CreateSystemTopic, TopicReady
from protocol.codes import ResponseCode
from protocol.host import HOST_V4_BYTES
from protocol.message import HEAD_V6, TOPIC_BYTES_MAX
from protocol.sysflag import BORN_HOST_V6

COMMIT_RECORDS = 512
"""Records written without waiting for the end of the batch: 5 ms of the event loop."""

_OVERHEAD_BYTES = HEAD_V6.size + 1 + 2
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class InternalRecord(Record):
    """One message as it is to be stored, then its result.

    Its physical offset is negative until it is stored. The store host is this broker's.
    """

    __slots__ = ("code", "topic_name")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        tags_code: int = 0,
        keys: tuple[bytes, ...] = (),
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = bytes(HOST_V4_BYTES),
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        delay_ms: int = 0,
    ) -> None:
        """`keys` are the keys for the index: UNIQ_KEY, then the words of KEYS.

        The bits of `sys_flag` that give the lengths of the hosts need not be right.
        """
        # The record itself is appended, not another one made from it: 0.5 µs less.
        self.topic_name = topic
        self.topic = topic.encode()
        self.queue_id = queue_id
        self.queue_offset = 0
        self.flag = flag
        host_flag = 0 if len(born_host) == HOST_V4_BYTES else BORN_HOST_V6
        self.sys_flag = sys_flag & NO_HOST_FLAGS | host_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.body = body
        self.properties = properties
        self.body_crc = crc32(body) & 0x7FFFFFFF
        self.tags_code = tags_code
        self.keys = keys
        self.delay_ms = delay_ms
        self.physical_offset = -1
        self.record_bytes = 0
        self.code = int(ResponseCode.SUCCESS)

    @property
    def is_stored(self) -> bool:
        """Whether the record is in the log, durable or not; known with the code."""
        return self.code in _STORED


@dataclass(slots=True)
class InternalAppended:
    """Results of an InternalAppend: its records, in order.

    `remark` says why some are not stored.
    """

    token: object
    results: Sequence[InternalRecord]
    remark: str | None = None
    code: int = ResponseCode.SUCCESS
    """Durability of everything appended before it; for an empty append, the only result."""

    def refuse(self, remark: str) -> None:
        """Refuse the token: the requesting actor has stopped."""
        answer = getattr(self.token, "refuse", None)
        if answer is not None:
            answer(remark)


class AppendResults:
    """Results of several InternalAppends, sent as one message.

    Takes the place of their `reply_to`; used on the event loop.
    """

    __slots__ = ("_gathered", "_owner")

    def __init__(self, owner: ActorAddress) -> None:
        self._owner = owner
        self._gathered: deque[InternalAppended] = deque()

    def tell(self, outcome: InternalAppended) -> None:
        """Add one result; the first of a batch sends this object to the owner."""
        self._gathered.append(outcome)
        if len(self._gathered) == 1:
            self._owner.tell(self)

    def hand_out(self, take: Callable[[InternalAppended], None]) -> None:
        """Call `take` with each result, in order.

        If it raises, that result stays and is refused later.
        """
        gathered = self._gathered
        while gathered:
            take(gathered[0])
            gathered.popleft()

    def refuse(self, remark: str) -> None:
        """Refuse all results: the requesting actor has stopped."""
        while self._gathered:
            self._gathered.popleft().refuse(remark)


@dataclass(slots=True, eq=False)
class InternalAppend:
    """Request to PutMessage to append `records`, answered by InternalAppended with the token.

    An empty one is answered when everything sent before it is.
    """

    records: Sequence[InternalRecord]
    reply_to: ActorAddress | AppendResults | None
    """Receiver of the result; None if no result is wanted."""
    token: object = None
    waits: bool = False
    """Whether the answer waits for the sync under SYNC_FLUSH, and for a slave of a SYNC_MASTER."""
    topics: Sequence[CreateSystemTopic] = ()
    """Topics to make first if they are missing.

    Records of a topic that is not made are still stored.
    """
    is_chain: bool = False
    """Whether a record that does not fit into the log also refuses all later ones."""
    done_count: int = 0
    """Number of leading records with a known result."""

    def answer(self, code: int, remark: str | None = None) -> None:
        """Send the results; records without one get `code`."""
        self.settle(code, len(self.records) - self.done_count)
        if self.reply_to is not None:
            self.reply_to.tell(InternalAppended(self.token, self.records, remark, code))

    def settle(self, code: int, count: int) -> None:
        """Set the result of the next `count` records."""
        done_count = self.done_count
        self.done_count = done_count + count
        for record in self.records[done_count : self.done_count]:
            record.code = code

    @property
    def first_offset(self) -> int:
        """Physical offset of the first stored record."""
        return self.records[0].physical_offset

    def flushed(self, code: int) -> None:
        """Send the results once the durability of the records is known."""
        for record in self.records:
            if record.is_stored:
                record.code = code
        self.answer(code)

    def refuse(self, remark: str) -> None:
        """Refuse the rest: PutMessage has stopped."""
        self.answer(ResponseCode.SYSTEM_ERROR, remark)


@dataclass(slots=True)
class InternalAppendGroup:
    """Several independent InternalAppends for PutMessage, in order."""

    appends: Sequence[InternalAppend]

    def refuse(self, remark: str) -> None:
        """Refuse the rest of each: PutMessage has stopped."""
        for append in self.appends:
            append.refuse(remark)


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

    def keep(self, append: InternalAppend, known_topics: Mapping[str, object]) -> None:
        """Keep an append for the end of the batch, or until its topics are made."""
        for wanted in append.topics:
            if wanted.topic not in known_topics:
                self._parking.park(append, replace(wanted, reply_to=self._owner))
                return
        self.pending.append(append)
        self.pending_count += len(append.records)

    def topic_ready(self, message: TopicReady, known_topics: Mapping[str, object]) -> None:
        """Continue with the appends that waited for this topic.

        Some may wait for the next topic.
        """
        for append in self._parking.release(message.topic):
            if message.config is None:
                append.answer(ResponseCode.SYSTEM_ERROR, f"topic[{message.topic}] not exist")
            else:
                self.keep(append, {**known_topics, message.topic: message.config})

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
        """Return whether the record is within the limits of the log."""
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
        for append in pending:
            append.answer(error.code, error.remark)

    def refuse_all(self, error: RefusedError) -> None:
        """Refuse everything, including appends that wait for a topic."""
        self.pending += self._parking.release_all()
        self.refuse(error)
