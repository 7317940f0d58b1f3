"""Pulls: checked, answered by joining queue units with the commit log, or held.

Owns: nothing; reads the tables' snapshots and, below the watermark, the store.
Receives: Request from connections; Woken and BarrierForHolds from PullHold; ColdReadForPull from
ColdRead and consumer_filters.
Sends: header and views of the log to the connection; Hold and LastAnswered to PullHold; VerifyUnit
to the scrubber; ReadCold to ColdRead; CommitOffset to ConsumerOffsets for pulls that carry an
offset; CompileFirst to consumer_filters; InternalAppend to PutMessage for a pull outside of its
queue (pull_rules.py).

A pull is looked at when it arrives (`on_pull`), when it is woken after a hold (`on_woken`), and
after a cold read or a compilation (`on_warmed`). Each time it is checked and read again.

Source: PullMessageProcessor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from actors.config import MASTER_ID, BrokerConfig
from actors.dispatching.messages import VerifyUnit
from actors.engine.actor import BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.hooks import Hooks, PullContext
from actors.network.messages import Request, RequestMessage, StreamPeer
from actors.network.request import Responder, serves
from actors.pulling.held_pulls import TOO_MANY_HELD, HoldTable, hold_of, queue_key
from actors.pulling.messages import NEVER, BarrierForHolds, LastAnswered, ReadCold, Woken
from actors.pulling.pull_rules import NotCompiled, PullCorrection, PullRules
from actors.statistics.counts import GroupCounts, PullStats, counts_of
from actors.tables.consumer_views import ConsumerView
from actors.tables.groups import GroupFinder
from actors.tables.messages import CommitOffset, CompileFirst
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand, encode_head
from protocol.headers.client import PullMessageHeader
from storage.message_store import MessageStore
from storage.queues.message_filter import MessageFilter
from storage.reading.get_message import GetLimits, GetResult, GetStatus, get_message
from storage.reading.page_probe import ColdPart, PageProbe
from storage.tables.consumer_filters import ConsumerFilters

_CODE_OF_STATUS = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND, _SUCCESS = GetStatus.FOUND, int(ResponseCode.SUCCESS)  # looked up once
_EMPTY_QUEUE = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)

BELIEVED_MS = 5_000
"""Time for which pages found in memory count as being there."""
VERIFY_MS = 5_000
"""Wait of a pull without long polling while its first message is in doubt."""
FILTER_BYTES_OF_BATCH = 1 << 20
"""Work on property filters for a batch of pulls, in bytes as in checked_get.py: 12 ms.

Past it, a pull with such a filter reads a few records, and its client asks again for more.
"""
FILTER_BYTES_MIN = 4 << 10
COLD_READS_MAX = 2
"""Cold reads of a pull: its queue's file, then the log; later cold pages are touched."""


@dataclass(slots=True)
class ColdReadForPull(RequestMessage):
    """Request to process a pull again after a cold read or a compilation."""

    request: Request
    woken: Woken | None
    """The end of its hold; None if it has not been held."""
    cold_reads: int
    """Number of cold reads since it arrived or was woken; 0: it has not been read yet."""


@dataclass(slots=True)
class _Pull:
    """A checked pull, and what it has waited for."""

    request: Request
    header: PullMessageHeader
    group: SubscriptionGroupConfig
    wanted: MessageFilter | None
    """Filter of its messages; None for all."""
    woken: Woken | None
    cold_reads: int


@dataclass(slots=True)
class _Cold:
    """Result of a read that needs these parts of files in memory."""

    parts: Sequence[ColdPart]


@dataclass(slots=True)
class _InDoubt:
    """Result of a read with an invalid first unit, which must be verified."""


@dataclass(slots=True)
class _Missed:
    """Result of a read without messages; its status is the reason."""

    result: GetResult


_Read: TypeAlias = GetResult | _Cold | _InDoubt | _Missed
"""Result of a read; a GetResult has messages."""


@dataclass(slots=True)
class _Forget:
    """Timer tick: ask the kernel again which pages are in memory."""


class PullMessage(Responder):
    """Actor on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        limits: GetLimits,
        probe: PageProbe,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        filters: SnapshotRef[ConsumerFilters],
        hooks: Hooks,
        stats: PullStats,
        held: HoldTable,
        correction: PullCorrection,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__()
        self._store, self._config = store, config
        self._limits, self._probe = limits, probe
        self._topics, self._groups = topics, groups
        self._consumers, self._filters = consumers, filters
        self._hooks, self.stats, self._held, self._to = hooks, stats, held, addresses
        self._correction = correction
        self._rules = PullRules(config, lambda: self.system.clock.monotonic_ms())
        self._filter_bytes = FILTER_BYTES_OF_BATCH

    def on_start(self) -> None:
        self.every(BELIEVED_MS, _Forget())

    @handles(_Forget)
    def on_forget(self, _: _Forget) -> None:
        """Forget which pages are in memory, and read changed limits."""
        self._probe.forget()
        self._limits = self._limits.renewed(self._store.config)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        self._filter_bytes = FILTER_BYTES_OF_BATCH

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def on_pull(self, request: Request) -> RemotingCommand | None:
        """Answer a new pull, or let it wait for a message, the disk or the scrubber."""
        pull = self._checked(request, None, 0)
        if pull is not None:
            read = self._read(pull)
            if pull.header.sys_flag & PULL_COMMIT_OFFSET and not self._config.is_slave:
                self._commit(pull)
            self._answer(pull, read)
        return None

    @handles(Woken, reads_only=True)
    def on_woken(self, message: Woken) -> None:
        """Answer a woken pull, unless it has to wait for the disk or the scrubber."""
        pull = self._checked(message.hold.request(), message, 0)
        if pull is not None:
            self._answer(pull, self._read(pull))

    @handles(ColdReadForPull, reads_only=True)
    def on_warmed(self, message: ColdReadForPull) -> None:
        """Go on with a pull after a cold read or a compilation."""
        if message.woken is None and not message.cold_reads:
            self.on_pull(message.request)
            return
        pull = self._checked(message.request, message.woken, message.cold_reads)
        if pull is not None:
            self._answer(pull, self._read(pull))

    @handles(BarrierForHolds)
    def on_barrier_for_holds(self, _: BarrierForHolds) -> None:
        self._to["pull_hold"].tell(LastAnswered())

    def _checked(self, request: Request, woken: Woken | None, cold_reads: int) -> _Pull | None:
        """Check a pull; return None if it is refused or waits for a compilation."""
        header = request.header
        if not isinstance(header, PullMessageHeader):
            header = request.header = PullMessageHeader.decode(request.command.fields)
        has_waited = woken is not None or cold_reads > 0
        if self._hooks.see_pulls:
            self._show(request, header, has_waited=has_waited)
        rules = self._rules
        try:
            if has_waited and (grant := request.grant) is not None:
                code = request.command.code
                request.grant = grant.of_waiting(code, header.consumer_group, header.topic)
            rules.check_readable()
            group = rules.check_group(
                header.consumer_group, self._groups.find(header.consumer_group)
            )
            rules.check_queue(header, self._topics.value.get(header.topic), request.peer.remote)
            consumers, filters = self._consumers.value, self._filters.value
            wanted = rules.wanted(header, group, consumers, filters, request)
        except NotCompiled as error:
            again = ColdReadForPull(request, woken, cold_reads)
            self._to["consumer_filters"].tell(CompileFirst(str(error), again, self.address))
            return None
        except RemoteError as error:
            self.tell_of(error, request)
            request.answer(error.code, {}, remark=error.remark)
            self._show_answer(request, error.code, error.remark)
            return None
        return _Pull(request, header, group, wanted, woken, cold_reads)

    def _show(self, request: Request, header: PullMessageHeader, *, has_waited: bool) -> None:
        if isinstance(request.seen_as, PullContext):
            request.seen_as.held = has_waited
            return
        request.seen_as = context = PullContext(
            header.consumer_group,
            header.topic,
            header.queue_id,
            request.peer.remote,
            header.queue_offset,
            header.max_msg_nums,
        )
        self._hooks.before_pull(context)

    def _show_answer(
        self, request: Request, code: int, remark: str | None, result: GetResult | None = None
    ) -> None:
        context = request.seen_as
        if not isinstance(context, PullContext):
            return
        context.code, context.remark, context.success = code, remark, bool(result and result.views)
        if result is not None:
            context.next_offset, context.runs = result.next_offset, result.runs
            context.message_count, context.record_bytes = result.count, result.body_bytes
        self._hooks.after_pull(context)

    def _read(self, pull: _Pull) -> _Read:
        """Read the messages that a pull asks for."""
        header, woken = pull.header, pull.woken
        began_ms, is_corrected = self.system.clock.monotonic_ms(), self._limits.correct_offsets
        old = self._correction.old(header, pull.request.peer, began_ms) if is_corrected else None
        result = old or get_message(
            self._store.consume_queues.get_or_create(header.topic, header.queue_id),
            self._store.commit_log,
            header.queue_offset,
            header.max_msg_nums,
            pull.wanted,
            self._limits,
            damage=self._store.damage,
            probe=self._probe if pull.cold_reads < COLD_READS_MAX else None,
            verified=woken is not None and woken.is_verified,
            filter_bytes_max=max(self._filter_bytes, FILTER_BYTES_MIN),
        )
        if pull.wanted is not None and pull.wanted.matches is not None:
            self._filter_bytes -= result.read_bytes
        self._count(header, result, self.system.clock.monotonic_ms() - began_ms)
        status = result.status
        if status is _FOUND:
            return result
        if status is GetStatus.COLD:
            return _Cold(result.cold)
        if status is GetStatus.IN_DOUBT:
            if woken is None or not woken.is_over:
                return _InDoubt()
            result.status = GetStatus.OFFSET_FOUND_NULL
        if is_corrected and old is None:
            self._correction.aim(header, result)
        return _Missed(result)

    def _answer(self, pull: _Pull, read: _Read) -> None:
        """Send the messages, or let the pull wait for what its read lacks."""
        if isinstance(read, GetResult):
            self._send(pull, read, _SUCCESS, self._suggested(pull.group, read))
        elif isinstance(read, _Missed):
            self._answer_missed(pull, read.result)
        elif isinstance(read, _Cold):
            self.stats.cold_count += 1
            warm = ColdReadForPull(pull.request, pull.woken, pull.cold_reads + 1)
            self._to["cold_read"].tell(ReadCold(read.parts, warm, self.address))
        else:
            self._verify(pull)

    def _answer_missed(self, pull: _Pull, result: GetResult) -> None:
        """Hold a pull without messages, or answer it; a woken pull is answered."""
        request, header, group = pull.request, pull.header, pull.group
        code = self._code(header, result.status)
        suggested = self._suggested(group, result)
        if code == ResponseCode.PULL_OFFSET_MOVED and self._limits.correct_offsets:
            host = self._store.commit_log.store_host
            self._correction.tell(header, result, self.system, host)
        elif code == ResponseCode.PULL_OFFSET_MOVED:  # a slave may only ask for a retry
            code, suggested = int(ResponseCode.PULL_RETRY_IMMEDIATELY), group.broker_id
        may_hold = pull.woken is None and header.sys_flag & PULL_SUSPEND
        if code == ResponseCode.PULL_NOT_FOUND and may_hold:
            queue = queue_key(header.topic, header.queue_id)
            if self._held.has_room(request.peer.peer_id, pull.wanted, queue):  # or it comes back
                self._hold(pull)
                return
            self.system.rarely.warn(TOO_MANY_HELD, peer=request.peer.remote, held=self._held.count)
        self._send(pull, result, code, suggested)

    def _commit(self, pull: _Pull) -> None:
        header = pull.header
        place = header.consumer_group, header.topic, header.queue_id
        commit = CommitOffset(*place, header.commit_offset, pull.request.peer)
        self._to["consumer_offsets"].tell(commit)

    def _count(self, header: PullMessageHeader, result: GetResult, took_ms: float) -> None:
        stats = self.stats
        if result.status is _FOUND:
            stats.found_count += 1
            stats.found_ms.note(took_ms)
            if stats.latencies:
                key = f"{header.queue_id}@{header.topic}@{header.consumer_group}"
                if (latency := stats.latencies.get(key)) is not None:
                    latency.count += int(took_ms)
                    latency.times += 1
        elif result.status not in (GetStatus.COLD, GetStatus.IN_DOUBT):
            stats.miss_count += 1
            stats.missed_ms.note(took_ms)
        if took_ms > stats.longest_get_ms:
            stats.longest_get_ms = took_ms

    def _code(self, header: PullMessageHeader, status: GetStatus) -> int:
        if status in _EMPTY_QUEUE:
            moved = header.queue_offset != 0
            return ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        return _CODE_OF_STATUS[status]

    def _hold(self, pull: _Pull) -> None:
        header = pull.header
        wait_ms = header.suspend_timeout_ms
        if not self._config.long_polling_enable:
            wait_ms = self._config.short_polling_ms
        self.stats.held_count += 1
        deadline_ms = self.system.clock.monotonic_ms() + wait_ms
        hold = hold_of(pull.request, header, pull.wanted, deadline_ms, header.queue_offset)
        self._to["pull_hold"].tell(hold)

    def _verify(self, pull: _Pull) -> None:
        """Request the verification of the first message, and hold the pull until its result."""
        header = pull.header
        deadline_ms = pull.woken.hold.deadline_ms if pull.woken is not None else 0.0
        if not deadline_ms:
            suspends = header.sys_flag & PULL_SUSPEND
            wait_ms = header.suspend_timeout_ms if suspends else VERIFY_MS
            deadline_ms = self.system.clock.monotonic_ms() + wait_ms
        to = self._to["pull_hold"]
        to.tell(hold_of(pull.request, header, None, deadline_ms, NEVER))
        doubtful = VerifyUnit(header.topic, header.queue_id, header.queue_offset, to)
        self._to["scrubber"].tell(doubtful)
        self.stats.doubt_count += 1

    def _suggested(self, group: SubscriptionGroupConfig, result: GetResult) -> int:
        """Return the id of the broker that the consumer should pull from next."""
        if not self._config.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if result.is_far_behind else group.broker_id

    def _send(self, pull: _Pull, result: GetResult, code: int, suggested: int) -> None:
        """Send header and views without copying the log."""
        request = pull.request
        if request.seen_as is not None:
            self._show_answer(request, code, result.status.value, result)
        self.stats.pull_count += 1
        if result.views:
            self._count_given(pull.header, result)
        command = request.command
        if command.is_oneway:
            return
        fields = {
            "suggestWhichBrokerId": str(suggested),
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        }
        answer = command.answer(code, fields, remark=result.status.name)
        head = encode_head(answer, result.body_bytes)
        peer: StreamPeer = request.peer  # type: ignore[assignment]
        peer.write((head, *result.views))

    def _count_given(self, header: PullMessageHeader, result: GetResult) -> None:
        stats = self.stats
        stats.get_count += result.count
        stats.get_bytes += result.body_bytes
        pair = header.topic, header.consumer_group
        counts = stats.by_group.get(pair) or counts_of(stats.by_group, pair, GroupCounts)
        counts.count += result.count
        counts.bytes += result.body_bytes
        counts.times += 1
        counts.pulled[header.queue_id] = result.next_offset
