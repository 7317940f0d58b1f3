"""Batches of sinks, appended without the messages that an earlier attempt has stored.

Owns: the lanes (storage/dispatching/sink_table.py) with messages in progress, and stored progress
that the table does not know yet.
Receives: Request from connections; BatchStored and AppendsDecided from PutMessage and GroupCommit.
Sends: InternalAppend to PutMessage.

Each lane has one request in progress at a time. A second one, of an old attempt or after a client
timeout, is answered SYSTEM_BUSY. The known progress of a lane is therefore complete when a request
arrives. After a start, and after a failed append, requests are refused until all earlier appends
are decided and the table covers the log that far.

    first message of the request     answer
    has the next number              appended if the chain agrees; answered when it is as durable
                                     as any other message
    has a smaller number             stored messages are skipped, as if they had just been stored
    has a larger number              SINK_BATCH_HAS_GAP: ask for the progress of the lane
    is of an older batch             success: nothing is stored
    follows other contents           SINK_BATCH_DIFFERS
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.sending.appender import InternalRecord
from actors.sending.messages import AppendResult, InternalAppend
from actors.sending.property_rewriter import PropertyRewriter
from actors.sending.send_rules import (
    PROPERTIES_BYTES_MAX,
    RefusedError,
    SendRules,
    illegal_message,
)
from protocol.bodies_tables import TopicConfig
from protocol.codes import MULTI_TAGS, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.own import (
    SinkBatchHeader,
    SinkLaneHeader,
    SinkProgressHeader,
    chain_of,
)
from protocol.properties import find_pairs
from protocol.sink import (
    CHAIN_START,
    SINK_MARK,
    SinkMark,
    SinkMessage,
    decode_sink_body,
    owner_of,
)
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from storage.dispatching.sink_table import Lane, Progress, SinkTable
from storage.message_store import MessageStore

log = get_logger(__name__)

_NOT_OURS = frozenset((b"UNIQ_KEY", b"TROUPE_SINK", b"TRAN_MSG"))
"""Properties that a message of a sink may not have."""
_BUSY = "another attempt is sending messages of this partition: try again"
_UNSAFE = "stored, but not yet as durable as the flush settings require: try again"
_READING = "the stored progress of sinks is still being read from the commit log: try again"
_DIFFERS = (
    "this batch was planned differently before: message {sequence} of partition {partition} does"
    " not follow the stored messages. A repeated batch needs the same rows in the same order: with"
    " a shuffle before the sink, set its option sortRows"
)


PIECE_BYTES = 128 << 10
"""Properties of a batch that are prepared in one round of the loop: 28 KiB take up to 2 ms."""
BATCHES_LEFT_OUT_MAX = 1 << 24
"""Maximum consecutive batches without a message in a lane: six months of one per second."""
_LEAPS = (
    "batch {batch} of query {query} follows batch {known}: the gap is too large. If the batch"
    " numbers of the query start again, give it another name"
)


@dataclass(slots=True, eq=False)
class BatchStored(AppendResult):
    """Result of the append of a batch; empty if all its messages were stored earlier.

    Messages stored earlier are perhaps not durable yet.
    """

    request: Request
    lane: Lane
    known: Progress
    """Progress of the lane after this append."""

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


@dataclass(slots=True, eq=False)
class _Preparing:
    """Message to itself: make the next records of a batch."""

    stored: BatchStored
    header: SinkBatchHeader
    first: int
    """Number of the first message."""
    messages: Sequence[SinkMessage]
    records: list[InternalRecord] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class AppendsDecided(AppendResult):
    """Result of an empty append: everything sent before it is decided."""

    run: int


class Sink(Responder):
    """Actor on the event loop that appends the batches of sinks."""

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
        self._busy: dict[Lane, BatchStored] = {}
        self._stored: dict[Lane, tuple[int, Progress]] = {}
        self._order: deque[tuple[int, Lane]] = deque()
        self._run = 0
        self._evicted_count = 0
        self._known_from: int | None = None
        """Log offset that the table has to cover; None while earlier appends are undecided."""

    def on_start(self) -> None:
        if not self._config.is_slave:
            self._settle()

    def _settle(self) -> None:
        """Wait until earlier appends are decided, then for the table to cover them."""
        self._run += 1
        self._known_from = None
        self._stored.clear()
        self._order.clear()
        self._put_message.tell(InternalAppend((), self.address, AppendsDecided(self._run)))

    # --- requests

    @serves(RequestCode.GET_SINK_PROGRESS)
    def progress(self, request: Request) -> RemotingCommand | None:
        header = SinkLaneHeader.decode(request.command.fields)
        table = self._whole_table()
        lane = _lane_of(request, header)
        if lane in self._busy:
            raise RemoteError(ResponseCode.SYSTEM_BUSY, _BUSY)
        return _answer(request, self._progress(table, lane))

    @serves(RequestCode.SEND_SINK_BATCH)
    def send(self, request: Request) -> RemotingCommand | None:
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
            return _answer(request, None)  # the lane has no progress to record
        assert known is not None
        stored = BatchStored(request, lane, known)
        batch = _Preparing(stored, header, known.sequence - len(new), new)
        try:
            self._prepare(batch)
        except RefusedError as error:
            raise RemoteError(error.code, error.remark) from None
        self.begin_change()
        self._busy[lane] = stored
        self._go_on(batch)
        return None

    def _go_on(self, batch: _Preparing) -> None:
        """Append the records, or make the others of them in the next round."""
        if len(batch.records) < len(batch.messages):
            self.system.loop.tell_in_next_round(self.address, batch)
            return
        self._put_message.tell(
            InternalAppend(batch.records, self.address, batch.stored, waits=True, is_chain=True)
        )

    @handles(_Preparing)
    def on_preparing(self, batch: _Preparing) -> None:
        """Make the next records, or refuse the batch; then none of them is stored."""
        lane, request = batch.stored.lane, batch.stored.request
        if self._busy.get(lane) is not batch.stored:
            return  # of an actor that has failed
        try:
            self._prepare(batch)
        except (RefusedError, RemoteError) as error:
            del self._busy[lane]
            request.answer(error.code, remark=error.remark)
        else:
            self._go_on(batch)

    def _whole_table(self) -> SinkTable:
        """Return the table if it covers everything but this actor's own appends.

        Raises RemoteError.
        """
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
                "sink progress evicted",
                lanes=table.evicted_count,
                hint="a repeated batch of these lanes is stored again: raise sinkProgressMax",
            )
        while self._order and self._order[0][0] <= table.covered_offset:
            end, lane = self._order.popleft()
            if self._stored.get(lane, (0,))[0] == end:
                del self._stored[lane]
        return table

    def _progress(self, table: SinkTable, lane: Lane) -> Progress | None:
        stored = self._stored.get(lane)
        found = table.find(lane) if stored is None else stored[1]
        if found is None and lane.owner:  # progress from before access control was enabled
            return self._progress(table, lane._replace(owner=""))
        return found

    # --- from messages to records

    def _prepare(self, batch: _Preparing) -> None:
        """Make the next records of a batch.

        Raises RefusedError, or RemoteError for properties that Java cannot read.
        """
        if not batch.messages:
            return
        request, header, made = batch.stored.request, batch.header, batch.records
        topic = header.topic
        self._rules.check_accepting(self.system.clock.now_ms())
        config = self._rules.check_topic(topic, self._topics.value)
        if config is None:
            raise self._rules.unknown_topic(topic)
        if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            remark = f"a sink cannot write to retry and dead-letter topics: {topic}"
            raise RefusedError(ResponseCode.NO_PERMISSION, remark)
        lane = batch.stored.lane
        mark = SinkMark(header.query, header.partition, header.batch, 0, b"", lane.owner)
        cost = 0
        while len(made) < len(batch.messages) and cost < PIECE_BYTES:
            each = batch.messages[len(made)]
            own = mark._replace(sequence=batch.first + len(made), chain=each.chain)
            made.append(self._record(request, config, own, each))
            cost += len(each.properties)

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
            remark = "a message of a sink may not have UNIQ_KEY, TROUPE_SINK or TRAN_MSG"
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
            due_ms=0 if redirect is None else redirect.due_ms,
        )

    # --- append results

    @handles(AppendsDecided)
    def on_appends_decided(self, message: AppendsDecided) -> None:
        if message.run == self._run:
            self._known_from = self._store.commit_log.end_offset

    @handles(BatchStored)
    def on_batch_stored(self, message: BatchStored) -> None:
        """Answer the batch; after a failed append, wait for the table again."""
        request, lane, results = message.request, message.lane, message.results
        if self._busy.get(lane) is message:
            del self._busy[lane]
        failed = next((each for each in results if not each.is_stored), None)
        if failed is not None:
            self._settle()
            request.answer(failed.code, remark=message.remark or _refused_text(failed.code))
            return
        if results:
            end = results[-1].physical_offset + results[-1].record_bytes
            self._stored[lane] = end, message.known
            self._order.append((end, lane))
        if message.code != ResponseCode.SUCCESS:
            request.answer(message.code, remark=message.remark or _UNSAFE)
            return
        request.respond(_answer(request, message.known))

    def can_stop(self) -> bool:
        return not self._busy

    def on_failure(self, *_: object) -> None:
        for batch in self._busy.values():
            batch.on_undelivered("the broker's sink was interrupted: try again")


def _new_messages(
    header: SinkBatchHeader, messages: Sequence[SinkMessage], known: Progress | None
) -> Sequence[SinkMessage]:
    """Return the messages that are not stored yet.

    Raises RemoteError if they cannot follow the stored ones.
    """
    if known is not None and header.batch - known.batch > BATCHES_LEFT_OUT_MAX:
        remark = _LEAPS.format(batch=header.batch, query=header.query, known=known.batch)
        raise RemoteError(ResponseCode.SINK_BATCH_DIFFERS, remark)
    if known is None or header.batch > known.batch:
        known = Progress(header.batch, 0, CHAIN_START)
    if header.batch < known.batch:
        return ()
    there = known.sequence - header.sequence
    if there < 0:
        remark = f"expected message {known.sequence} of the batch, got {header.sequence}"
        raise RemoteError(ResponseCode.SINK_BATCH_HAS_GAP, remark)
    if there > len(messages):
        return ()
    before = chain_of(header.chain) if there == 0 else messages[there - 1].chain
    if before != known.chain:
        remark = _DIFFERS.format(sequence=known.sequence, partition=header.partition)
        raise RemoteError(ResponseCode.SINK_BATCH_DIFFERS, remark)
    return messages[there:]


def _lane_of(request: Request, header: SinkLaneHeader) -> Lane:
    """Return the lane of the requester's account; without accounts, the only one of that name."""
    access_key = "" if request.grant is None else request.grant.account.access_key
    return Lane(header.query, header.partition, header.topic, owner_of(access_key))


def _answer(request: Request, progress: Progress | None) -> RemotingCommand:
    header = SinkProgressHeader()
    if progress is not None:
        header = SinkProgressHeader(progress.batch, progress.sequence, progress.chain.hex())
    return request.command.answer(ResponseCode.SUCCESS, header.encode())


def _refused_text(code: int) -> str:
    if code == ResponseCode.MESSAGE_ILLEGAL:
        return "a message is too large for a commit log file"
    return "not stored: try again"
