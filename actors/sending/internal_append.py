"""Messages that other actors have stored: delayed ones, those sent back, ends of transactions.

`InternalAppend` is told to PutMessage; whoever told it gets one `InternalAppended`.  The records
come prepared: nothing of them is checked but what the log itself cannot take.  `InternalAppends` is
a plain class; PutMessage owns the one there is, and PutReplica one that only refuses.

An InternalAppend waits for topics that have to be made first, and for the next file.  Its records
get into the log in their order: when one is refused for want of a place, so are those behind it.
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
from actors.tables.messages import CreateSystemTopic, TopicReady
from protocol.codes import ResponseCode
from protocol.host import HOST_V4_BYTES
from protocol.message import HEAD_V6, TOPIC_BYTES_MAX
from protocol.sysflag import BORN_HOST_V6

COMMIT_RECORDS = 512
"""So many are written without waiting for the end of the batch: 5 ms of the loop."""

_OVERHEAD_BYTES = HEAD_V6.size + 1 + 2
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class InternalRecord(Record):
    """One message as it is to lie in the log, and then what became of it; without a place it is not
    there. The store host is this broker's."""

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
        """`keys` is what the index gets: UNIQ_KEY, then the words of KEYS. The bits of `sys_flag`
        that say how long the hosts are need not be right."""
        # The record that is appended itself, not one of which that is made: 0.5 µs less.
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
        """Whether it is in the log, if perhaps not as safe as it was to be; known with the code."""
        return self.code in _STORED


@dataclass(slots=True)
class InternalAppended:
    """What became of an InternalAppend: its records, in order, and why some are not stored."""

    token: object
    results: Sequence[InternalRecord]
    remark: str | None = None
    code: int = ResponseCode.SUCCESS
    """How safe everything is that was put before; of an empty put the only answer."""

    def refuse(self, remark: str) -> None:
        """Whoever asked is gone; if it asked for somebody else, that one is told."""
        answer = getattr(self.token, "refuse", None)
        if answer is not None:
            answer(remark)


class AppendResults:
    """What became of several InternalAppends, told with one message, itself, to who wants to know.
    Stands where their `reply_to` stands; on the loop."""

    __slots__ = ("_gathered", "_owner")

    def __init__(self, owner: ActorAddress) -> None:
        self._owner = owner
        self._gathered: deque[InternalAppended] = deque()

    def tell(self, outcome: InternalAppended) -> None:
        """Adds one."""
        self._gathered.append(outcome)
        if len(self._gathered) == 1:
            self._owner.tell(self)

    def hand_out(self, take: Callable[[InternalAppended], None]) -> None:
        """Calls `take` with each, in order; one with which it fails stays, to be refused."""
        gathered = self._gathered
        while gathered:
            take(gathered[0])
            gathered.popleft()

    def refuse(self, remark: str) -> None:
        """Whoever asked is gone."""
        while self._gathered:
            self._gathered.popleft().refuse(remark)


@dataclass(slots=True, eq=False)
class InternalAppend:
    """Append these; then tell `reply_to` InternalAppended with this token. Told to PutMessage.

    An empty one is answered when everything that was put before it is.
    """

    records: Sequence[InternalRecord]
    reply_to: ActorAddress | AppendResults | None
    """None: nobody wants to know."""
    token: object = None
    waits: bool = False
    """The answer comes when they are on the disk under SYNC_FLUSH, of a SYNC_MASTER at a slave."""
    topics: Sequence[CreateSystemTopic] = ()
    """What is to be made first where it is not there; a topic that nobody makes is stored all
    the same."""
    is_chain: bool = False
    """A record that does not fit into the log takes those behind it along."""
    done_count: int = 0
    """Of so many records, the first ones, it is known what became of them."""

    def answer(self, code: int, remark: str | None = None) -> None:
        """Tells the outcome; those that have none yet get `code`."""
        self.settle(code, len(self.records) - self.done_count)
        if self.reply_to is not None:
            self.reply_to.tell(InternalAppended(self.token, self.records, remark, code))

    def settle(self, code: int, count: int) -> None:
        """That is what became of the next `count` records."""
        done_count = self.done_count
        self.done_count = done_count + count
        for record in self.records[done_count : self.done_count]:
            record.code = code

    @property
    def first_offset(self) -> int:
        """Where the first of the stored records lies."""
        return self.records[0].physical_offset

    def flushed(self, code: int) -> None:
        """Tells the outcome once it is known how safe the records are."""
        for record in self.records:
            if record.is_stored:
                record.code = code
        self.answer(code)

    def refuse(self, remark: str) -> None:
        """Nobody will append what is left of it."""
        self.answer(ResponseCode.SYSTEM_ERROR, remark)


@dataclass(slots=True)
class InternalAppendGroup:
    """Several of them, each for itself, in order. Told to PutMessage."""

    appends: Sequence[InternalAppend]

    def refuse(self, remark: str) -> None:
        """Nobody will append what is left of them."""
        for append in self.appends:
            append.refuse(remark)


@dataclass(slots=True, eq=False)
class InternalPut(Put):
    """One record of an InternalAppend, on its way into the log."""

    group: InternalRecord
    append: InternalAppend


class InternalAppends:
    """Those that wait for the end of the batch, for the next file, or for a topic. One owner."""

    def __init__(self, appender: Appender, topic_table: ActorAddress, owner: ActorAddress) -> None:
        """`owner` is told of the topics that it has made."""
        self._appender = appender
        self._owner = owner
        self._parking: TopicWaitList[InternalAppend] = TopicWaitList(topic_table)
        self.pending: list[InternalAppend] = []
        self.pending_count = 0
        """Records that are in `pending`, those that got into the log aside."""

    def keep(self, append: InternalAppend, known_topics: Mapping[str, object]) -> None:
        """Keeps it for the end of the batch, or until its topics are made."""
        for wanted in append.topics:
            if wanted.topic not in known_topics:
                self._parking.park(append, replace(wanted, reply_to=self._owner))
                return
        self.pending.append(append)
        self.pending_count += len(append.records)

    def topic_ready(self, message: TopicReady, known_topics: Mapping[str, object]) -> None:
        """What waited for this topic goes on, perhaps to wait for the next one."""
        for append in self._parking.release(message.topic):
            if message.config is None:
                append.answer(ResponseCode.SYSTEM_ERROR, f"topic[{message.topic}] not exist")
            else:
                self.keep(append, {**known_topics, message.topic: message.config})

    def puts(self) -> list[InternalPut]:
        """The records that are to be appended next, in order; refuses what the log cannot take."""
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
                    break  # its result comes behind those of the records before it
                else:
                    refused = len(append.records) - number if append.is_chain else 1
                    append.settle(ResponseCode.MESSAGE_ILLEGAL, refused)
                    if append.is_chain:
                        break
        return puts

    def stored(self, puts: Sequence[InternalPut]) -> list[InternalAppend]:
        """Notes that these are in the log; takes out and gives what is whole now."""
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
        """Whether the log can take it at all."""
        properties_bytes = len(record.properties)
        topic_bytes = len(record.topic)
        size = _OVERHEAD_BYTES + topic_bytes + len(record.body) + properties_bytes
        return (
            properties_bytes <= PROPERTIES_BYTES_MAX
            and topic_bytes <= TOPIC_BYTES_MAX
            and size <= self._appender.group_bytes_max
        )

    def refuse(self, error: RefusedError) -> None:
        """What waits for the log is refused; what got into it before, says so."""
        pending, self.pending, self.pending_count = self.pending, [], 0
        for append in pending:
            append.answer(error.code, error.remark)

    def refuse_all(self, error: RefusedError) -> None:
        """Everything is refused, also what waits for a topic."""
        self.pending += self._parking.release_all()
        self.refuse(error)
