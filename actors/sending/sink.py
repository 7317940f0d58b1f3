"""Takes the batches of sinks, and lets nothing into the log that a batch has brought before.

Owns: which lanes (storage/dispatching/sink_table.py) have messages on their way, and what of those
that are stored the table cannot know yet.
Told by: connections (`Request`), PutMessage and GroupCommit (`InternalAppended`).   Tells:
PutMessage.

For each lane one request is under way at a time; another one, of an attempt that ought to be dead
or of one that has lost its patience, is answered SYSTEM_BUSY.  So what is known of a lane when a
request comes is all there is of it.  After a start, and whenever a put has gone wrong, nothing is
taken until everything that was put before is decided, and until the table covers the log that far.

    the first message that comes     answer
    has the next number              appended, if the chain agrees; the answer comes when it is as
                                     safe as any other message
    has a smaller one                what is stored is passed over, as if it had just been stored
    has a larger one                 SINK_BATCH_HAS_GAP: ask how far the lane is
    is of an older batch             done: nothing is stored
    follows on other contents        SINK_BATCH_DIFFERS
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from structlog import get_logger

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.request import Request, Responder, serves
from actors.sending.internal_append import InternalAppend, InternalAppended, InternalRecord
from actors.sending.property_rewriter import PropertyRewriter
from actors.sending.send_rules import (
    PROPERTIES_BYTES_MAX,
    RefusedError,
    SendRules,
    illegal_message,
)
from protocol.bodies import TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.sink import (
    SinkBatchHeader,
    SinkLaneHeader,
    SinkProgressHeader,
    chain_of,
)
from protocol.property_shapes import find_pairs
from protocol.sink import (
    CHAIN_START,
    SINK_MARK,
    SinkMark,
    SinkMessage,
    decode_sink_body,
    owner_of,
)
from protocol.sysflag import MULTI_TAGS
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from storage.dispatching.sink_table import Lane, Progress, SinkTable
from storage.message_store import MessageStore

log = get_logger(__name__)

_NOT_OURS = frozenset((b"UNIQ_KEY", b"TROUPE_SINK", b"TRAN_MSG"))
"""Properties that a message of a sink may not bring."""
_BUSY = "another attempt sends messages of this partition: try again"
_UNSAFE = "stored, but not as safe as it is to be: try again"
_READING = "the log is still being read for what sinks have stored: try again"
_DIFFERS = (
    "this batch was planned differently before: message {sequence} of partition {partition} does"
    " not follow the messages that were stored. A batch that is repeated needs the same rows in the"
    " same order; with a shuffle before the sink set its option sortRows"
)


BATCHES_LEFT_OUT_MAX = 1 << 24
"""Batches in which a lane had no message, one after the other: six months of one a second."""
_LEAPS = (
    "batch {batch} of the query {query} comes after batch {known}: no query counts so fast. Give"
    " the query another name if its batches begin anew"
)


@dataclass(slots=True)
class _Put:
    """On its way into the log; or stored before, and perhaps not safe yet."""

    request: Request
    lane: Lane
    known: Progress
    """What the lane will have reached."""

    def refuse(self, remark: str) -> None:
        self.request.refuse(remark)


@dataclass(frozen=True, slots=True)
class _Settled:
    """Everything that was put before this came is decided."""

    run: int


class Sink(Responder):
    """Lives on the loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        preparer: PropertyRewriter,
        random: Random,
        put_message: ActorAddress,
    ) -> None:
        super().__init__()
        self._store, self._config = store, config
        self._topics, self._preparer = topics, preparer
        self._rules = SendRules(config, random)
        self._put_message = put_message
        self._busy: dict[Lane, _Put] = {}
        self._stored: dict[Lane, tuple[int, Progress]] = {}
        self._order: deque[tuple[int, Lane]] = deque()
        self._run = 0
        self._evicted_count = 0
        self._known_from: int | None = None
        """The table has to cover the log up to here; None: nobody knows yet what is in the log."""

    def on_start(self) -> None:
        if not self._config.is_slave:
            self._settle()

    def _settle(self) -> None:
        """What was put may be in the log or not: waits until it is decided, then for the table."""
        self._run += 1
        self._known_from = None
        self._stored.clear()
        self._order.clear()
        self._put_message.tell(InternalAppend((), self.address, _Settled(self._run)))

    # --- questions

    @serves(RequestCode.GET_SINK_PROGRESS)
    def progress(self, request: Request) -> RemotingCommand | None:
        """How far a lane is."""
        header = SinkLaneHeader.decode(request.command.fields)
        table = self._whole_table()
        lane = _lane_of(request, header)
        if lane in self._busy:
            raise RemoteError(ResponseCode.SYSTEM_BUSY, _BUSY)
        return _answer(request, self._progress(table, lane))

    @serves(RequestCode.SEND_SINK_BATCH)
    def send(self, request: Request) -> RemotingCommand | None:
        """Stores what is new of a batch."""
        header = SinkBatchHeader.decode(request.command.fields)
        messages = decode_sink_body(request.command.body or b"")
        table = self._whole_table()
        lane = _lane_of(request, header)
        if lane in self._busy:
            raise RemoteError(ResponseCode.SYSTEM_BUSY, _BUSY)
        known = self._progress(table, lane)
        new = _new_messages(header, messages, known)
        if new:
            end = header.sequence + len(messages)
            known = Progress(header.batch, end, new[-1].chain)
        elif known is None:
            return _answer(request, None)  # nothing of it is to be kept
        assert known is not None
        try:
            records = self._records(request, header, known.sequence - len(new), new)
        except RefusedError as error:
            raise RemoteError(error.code, error.remark) from None
        put = _Put(request, lane, known)
        self.begin_change()
        self._busy[lane] = put
        self._put_message.tell(
            InternalAppend(records, self.address, put, waits=True, is_chain=True)
        )
        return None

    def _whole_table(self) -> SinkTable:
        """The table, when it knows all but what was put since. Raises RemoteError."""
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave")
        table, known_from = self._store.sink_table, self._known_from
        if (
            known_from is None
            or table not in self._store.dispatcher.followers
            or table.covered_offset < known_from
        ):
            raise RemoteError(ResponseCode.SYSTEM_BUSY, _READING)
        if table.evicted_count > self._evicted_count:
            self._evicted_count = table.evicted_count
            log.warning(
                "sinks forgotten: a batch of theirs that is repeated is stored again; raise "
                "sinkProgressMax",
                lanes=table.evicted_count,
            )
        while self._order and self._order[0][0] <= table.covered_offset:
            end, lane = self._order.popleft()
            if self._stored.get(lane, (0,))[0] == end:
                del self._stored[lane]
        return table

    def _progress(self, table: SinkTable, lane: Lane) -> Progress | None:
        stored = self._stored.get(lane)
        found = table.find(lane) if stored is None else stored[1]
        if found is None and lane.owner:  # of before there were accounts here
            return self._progress(table, lane._replace(owner=""))
        return found

    # --- from messages to records

    def _records(
        self,
        request: Request,
        header: SinkBatchHeader,
        first: int,
        messages: Sequence[SinkMessage],
    ) -> list[InternalRecord]:
        """As they are to lie in the log. Raises RefusedError: then none of them does."""
        if not messages:
            return []
        topic = header.topic
        self._rules.check_accepting(self.system.clock.now_ms())
        config = self._rules.check_topic(topic, self._topics.value)
        if config is None:
            raise self._rules.unknown_topic(topic)
        if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            remark = f"a sink does not write to retries and dead letters: {topic}"
            raise RefusedError(ResponseCode.NO_PERMISSION, remark)
        owner = _lane_of(request, header).owner
        mark = SinkMark(header.query, header.partition, header.batch, first, b"", owner)
        return [
            self._record(
                request, config, mark._replace(sequence=first + number, chain=each.chain), each
            )
            for number, each in enumerate(messages)
        ]

    def _record(
        self, request: Request, config: TopicConfig, mark: SinkMark, message: SinkMessage
    ) -> InternalRecord:
        topic, given = config.topic_name, message.properties
        if not 0 <= message.queue_id < max(config.write_queue_nums, config.read_queue_nums):
            remark = f"topic {topic} has no queue {message.queue_id}: ask for its route again"
            raise RefusedError(ResponseCode.SYSTEM_ERROR, remark)
        if any(name in given for name in _NOT_OURS) and not _NOT_OURS.isdisjoint(
            name for name, _ in find_pairs(given)
        ):
            remark = "a message of a sink may not bring UNIQ_KEY, TROUPE_SINK or TRAN_MSG"
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, remark)
        sys_flag = MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0
        stored, code, keys, _, sys_flag, redirect = self._preparer.prepare(
            topic, message.queue_id, sys_flag, mark.properties(given, topic)
        )
        bytes_max = self._store.config.max_message_bytes
        if len(message.body) > bytes_max or len(stored) > PROPERTIES_BYTES_MAX:
            raise illegal_message(bytes_max)
        return InternalRecord(
            topic if redirect is None else redirect.topic,
            message.queue_id if redirect is None else redirect.queue_id,
            message.body,
            stored,
            code,
            keys,
            message.flag,
            sys_flag,
            message.born_timestamp,
            request.peer.host,
            prepared_offset=SINK_MARK,
            delay_ms=0 if redirect is None else redirect.delay_ms,
        )

    # --- what was put

    @handles(InternalAppended)
    def on_internal_appended(self, message: InternalAppended) -> None:
        """Everything before a question is decided; or a batch is stored, or is not."""
        token = message.token
        if isinstance(token, _Settled):
            if token.run == self._run:
                self._known_from = self._store.commit_log.end_offset
            return
        assert isinstance(token, _Put)
        if self._busy.get(token.lane) is token:
            del self._busy[token.lane]
        results = message.results
        failed = next((each for each in results if not each.is_stored), None)
        if failed is not None:
            self._settle()
            token.request.answer(failed.code, remark=message.remark or _refused_text(failed.code))
            return
        if results:
            end = results[-1].physical_offset + results[-1].record_bytes
            self._stored[token.lane] = end, token.known
            self._order.append((end, token.lane))
        if message.code != ResponseCode.SUCCESS:
            token.request.answer(message.code, remark=message.remark or _UNSAFE)
            return
        token.request.respond(_answer(token.request, token.known))

    def can_stop(self) -> bool:
        """Once it is known what became of everything that was put."""
        return not self._busy

    def on_failure(self, *_: object) -> None:
        """Nobody who waits is left silent."""
        for put in self._busy.values():
            put.refuse("the broker's sink was interrupted: try again")


def _new_messages(
    header: SinkBatchHeader, messages: Sequence[SinkMessage], known: Progress | None
) -> Sequence[SinkMessage]:
    """Those that are not in the log. Raises RemoteError if they cannot follow what is."""
    if known is not None and header.batch - known.batch > BATCHES_LEFT_OUT_MAX:
        remark = _LEAPS.format(batch=header.batch, query=header.query, known=known.batch)
        raise RemoteError(ResponseCode.SINK_BATCH_DIFFERS, remark)
    if known is None or header.batch > known.batch:
        known = Progress(header.batch, 0, CHAIN_START)
    if header.batch < known.batch:
        return ()
    there = known.sequence - header.sequence
    if there < 0:
        remark = f"message {header.sequence} of a batch came, but {known.sequence} is the next one"
        raise RemoteError(ResponseCode.SINK_BATCH_HAS_GAP, remark)
    if there > len(messages):
        return ()
    before = chain_of(header.chain) if there == 0 else messages[there - 1].chain
    if before != known.chain:
        remark = _DIFFERS.format(sequence=known.sequence, partition=header.partition)
        raise RemoteError(ResponseCode.SINK_BATCH_DIFFERS, remark)
    return messages[there:]


def _lane_of(request: Request, header: SinkLaneHeader) -> Lane:
    """The lane of that name that the requester's account has; without accounts the only one."""
    access_key = "" if request.grant is None else request.grant.account.access_key
    return Lane(header.query, header.partition, header.topic, owner_of(access_key))


def _answer(request: Request, progress: Progress | None) -> RemotingCommand:
    header = SinkProgressHeader()
    if progress is not None:
        header = SinkProgressHeader(progress.batch, progress.sequence, progress.chain.hex())
    return request.command.answer(ResponseCode.SUCCESS, header.encode())


def _refused_text(code: int) -> str:
    if code == ResponseCode.MESSAGE_ILLEGAL:
        return "a message does not fit into a file of the log"
    return "not stored: try again"
