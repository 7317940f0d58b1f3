"""Messages received and settled one by one: RocketMQ 5's POP.

Owns: what is in flight, by group and queue; the receives that wait.
Receives: Request (connections); ReceiveAgain (ColdRead, FilterTable); Arrived, CaughtUp,
QueuesEmptied (Reput); UnitVerified (Scrubber); HeldReturned (SendBack, PutMessage); PeerClosed
(connections); MemberLeft (Clients); OffsetsAdvanced (ConsumerOffsets).
Sends: header and views of the log to the connection; AdvanceOffsets (ConsumerOffsets); ReturnHeld
(SendBack); ReadCold (ColdRead); VerifyUnit (Scrubber); CompileFirst (FilterTable); ReadBody
(TableEncoder).
Publishes: figures of what is in flight.

What is in flight does not survive a crash, and need not: the consumer offset stays below every
message that is neither settled nor safely copied, so that all of those are handed out again.
ConsumerOffsets keeps what is settled, and then sends the answers to acknowledgements. POP of 5.x
stores checkpoints and acknowledgements as messages instead.

Source: broker/processor/PopMessageProcessor.java, AckMessageProcessor.java,
ChangeInvisibleTimeProcessor.java, NotificationProcessor.java, PopLongPollingService.java.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from actors.dispatching.messages import (
    Arrived,
    CaughtUp,
    QueuesEmptied,
    UnitVerified,
    VerifyUnit,
)
from actors.engine.actor import BatchEnd, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.messages import PeerClosed, Request, StreamPeer
from actors.network.request import Responder, serves
from actors.pulling.held_pulls import origin_of
from actors.pulling.messages import ReadCold
from actors.pulling.pull_rules import NotCompiled
from actors.receipts.figures import ReceiptFigures, Survey
from actors.receipts.hand_out import HandOut, Taken, count_given
from actors.receipts.held_receives import (
    HeldReceive,
    ReceiveHeader,
    WaitTable,
    WokenReceives,
    interned,
)
from actors.receipts.ledger import NEVER_MS, UNKNOWN, Delivery, Holder, Ledger
from actors.receipts.ledgers import Ledgers
from actors.receipts.messages import (
    ExpireMore,
    MemberLeft,
    ReceiptsTick,
    ReceiveAgain,
    WakeMore,
)
from actors.receipts.neighbours import Neighbours
from actors.receipts.receive_rules import ReceiveRules, topic_meant, wanted_acks
from actors.receipts.settlement import GRACE_MS, TICK_MS, Copy, Deadlines, Settlement, Terms
from actors.sending.messages import HeldReturned, ReturnHeld
from actors.statistics.counts import PullStats
from actors.tables.messages import AdvanceOffsets, Answer, CompileFirst, OffsetsAdvanced, read_body
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand, encode_head
from protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationHeader,
    NotificationResponseHeader,
    PopMessageHeader,
)
from protocol.receipts import ORDER_REVIVE_QUEUE, BatchAckBody, answer_fields
from protocol.topic_names import RETRY_TOPIC_PREFIX

WOKEN_PER_ROUND = 4
"""Receives processed between rounds of socket events: 0.2 ms."""
ENDED_PER_TICK = 1_000
"""Receives past their deadline, or of closed connections, that leave the table in one tick."""
EXPIRED_PER_ROUND = 32
"""Deliveries returned between rounds of socket events: 1,024 messages, 3 ms."""
RECLAIM_MS = 2_000.0
"""Time after a start in which clients reclaim what they held with their connections."""
COPIES_MAX = 256
"""Copies under way; each has its record in memory."""
COLD_READS_MAX = 2
"""Cold reads of a receive; later cold pages are touched."""
CHECK_TICKS = 50
"""Ticks between checks for receives that missed a message, and publications of figures."""


class Receipts(Responder):
    """Actor on the event loop."""

    def __init__(
        self,
        rules: ReceiveRules,
        ledgers: Ledgers,
        hand_out: HandOut,
        *,
        waits: WaitTable,
        neighbours: Neighbours,
        stats: PullStats,
        published: SnapshotRef[ReceiptFigures],
        delays_ms: Sequence[int],
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        """Publish `published`; Reput reads the count of `waits`."""
        super().__init__()
        self._rules, self._ledgers, self._hand_out = rules, ledgers, hand_out
        self._waits, self._neighbours = waits, neighbours
        self._stats, self._published, self._to = stats, published, addresses
        self._delays_ms = delays_ms
        self._waking = WokenReceives(waits, self._go_on_soon)
        """Woken receives that are not processed yet; other events are processed in between."""
        self._goes_on = False
        self._doubts: dict[tuple[str, int, int], list[Ledger]] = {}
        """Ledgers that wait for the verification of a unit, by topic, queue and offset."""
        self._due: deque[Delivery] = deque()
        """Deliveries past their deadline."""
        self._under_way = 0
        """Copies without a result."""
        self._answers: list[Answer] = []
        """Answers to settlements of this batch."""
        self._nonce = self._ticks = 0
        self._survey: Survey | None = None
        """Count of what is in flight, while it is under way."""
        self._is_used = self._draining = False
        self._received = self._settled = self._returned = self._moved = 0

    def on_start(self) -> None:
        now_ms = self.system.clock.monotonic_ms()
        self._waits.clear()
        self._deadlines, self._opens_ms = Deadlines(now_ms), now_ms + RECLAIM_MS
        rules, came_at = self._rules, self._hand_out.came_at
        self._settlement = Settlement(
            self._ledgers, self._deadlines, rules.physical_offset, rules.tries_max, came_at
        )
        self._hand_out.is_closed = self._settlement.is_moving
        self._published.value = ReceiptFigures()

    # --- receives

    @serves(RequestCode.POP_MESSAGE)
    def on_pop(self, request: Request) -> RemotingCommand | None:
        """Answer a new receive, or let it wait for messages or the disk."""
        self._begin(request, PopMessageHeader.decode(request.command.fields))
        return None

    @serves(RequestCode.NOTIFICATION)
    def on_notification(self, request: Request) -> RemotingCommand | None:
        """Answer when a receive would find messages."""
        self._begin(request, NotificationHeader.decode(request.command.fields))
        return None

    def _begin(self, request: Request, header: ReceiveHeader) -> None:
        command, peer = request.command, request.peer
        if command.is_oneway or not peer.is_open:  # the messages would be lost
            return
        self._rules.check_receive(header, peer.remote)
        wanted = None
        try:
            if isinstance(header, PopMessageHeader):
                wanted = self._rules.wanted(header, peer)
        except NotCompiled as error:
            again = CompileFirst(str(error), ReceiveAgain(request), self.address)
            self._to["consumer_filters"].tell(again)
            return
        clock, wait_ms = self.system.clock, header.poll_time_ms
        age_ms = clock.now_ms() - header.born_time_ms
        if 0 < age_ms < wait_ms:  # else the client has another clock
            wait_ms -= age_ms
        now_ms = clock.monotonic_ms()
        receive = HeldReceive(
            peer,
            header,
            interned(header),
            wanted,
            now_ms + wait_ms,
            command.opaque,
            origin_of(command),
            request.grant,
        )
        self.begin_change()
        self._use()
        self._neighbours.note_receive(header.consumer_group, peer.peer_id, now_ms)
        self._process(receive)

    def _use(self) -> None:
        if not self._is_used:  # a broker without receives has no ticks
            self._is_used = True
            self._hand_out.is_early = self.system.clock.monotonic_ms() < self._opens_ms
            self.every(TICK_MS, ReceiptsTick())

    @handles(ReceiveAgain)
    def on_receive_again(self, message: ReceiveAgain) -> None:
        """Go on with a receive after a cold read or a compilation."""
        if message.receive is None:
            self.on_request(message.request)
        elif self._may_go_on(message.receive):
            self._process(message.receive)

    def _may_go_on(self, receive: HeldReceive) -> bool:
        """Check a receive that has waited once more; if it ends here, wake the next one."""
        request, header = receive.request(), receive.header
        try:
            if (grant := receive.grant) is not None:
                code = request.command.code
                receive.grant = grant.of_waiting(code, header.consumer_group, header.topic)
            self._rules.check_receive(header, receive.peer.remote)
        except RemoteError as error:
            self.tell_of(error, request)
            request.answer(error.code, {}, remark=error.remark)
        else:
            if receive.peer.is_open:
                return True
        self._waking.next_after(receive, with_retries=True)
        return False

    def _process(self, receive: HeldReceive) -> None:
        """Answer a receive, or let it wait."""
        header = receive.header
        if receive.has_left:
            self._answer_empty(receive, ResponseCode.POLLING_TIMEOUT)
            return
        if isinstance(header, NotificationHeader):
            if self._hand_out.finds(receive):
                receive.request().answer(fields=NotificationResponseHeader(has_msg=True).encode())
            else:
                self._hold(receive)
            return
        if not self._settlement.has_room(header.consumer_group):
            group = header.consumer_group
            self.system.rarely.warn("in-flight message limit reached", group=group, names=[group])
            self._answer_empty(receive, ResponseCode.POLLING_FULL)
            return
        reads_cold = receive.cold_reads >= COLD_READS_MAX
        taken = self._hand_out.take(receive, header, reads_cold=reads_cold)
        self._note(taken)
        if taken.unread is not None:
            self.note_unread(taken.unread)
        if taken.found:
            self._deliver(receive, header, taken)
        elif taken.cold:
            receive.cold_reads += 1
            self._stats.cold_count += 1
            again = ReceiveAgain(receive.request(), receive)
            self._to["cold_read"].tell(ReadCold(taken.cold, again, self.address))
        elif taken.has_more and not self._is_over(receive):
            self._waking.add(receive)
        else:
            receive.looked *= not taken.has_more  # its time is over
            self._hold(receive)

    def _is_over(self, receive: HeldReceive) -> bool:
        return self._draining or self.system.clock.monotonic_ms() >= receive.deadline_ms

    def _hold(self, receive: HeldReceive) -> None:
        """Let a receive wait that has found nothing, or look at the rest of its queues first."""
        if receive.looked and not self._draining:
            self._waking.add(receive)
            return
        receive.cold_reads = receive.looked = 0
        if self._is_over(receive):
            self._answer_empty(receive, ResponseCode.POLLING_TIMEOUT)
        elif not self._waits.has_room(receive.peer.peer_id, receive.wanted):
            self.system.rarely.warn(
                "held receive limit reached", peer=receive.peer.remote, held=self._waits.count
            )
            self._answer_empty(receive, ResponseCode.POLLING_FULL)
        else:
            self._waits.add(receive)

    def _note(self, taken: Taken) -> None:
        """Have doubtful units verified, and crowded queues relieved."""
        for ledger, offset in taken.doubtful:
            key = ledger.topic, ledger.queue_id, offset
            if key not in self._doubts:
                self._doubts[key] = []
                self._to["scrubber"].tell(VerifyUnit(*key, self.address))
            self._doubts[key].append(ledger)
        for ledger in taken.crowded:
            self._settlement.move(ledger)
        if taken.has_no_room:
            self.system.rarely.warn("limit of queues that groups receive from reached")

    def _answer_empty(self, receive: HeldReceive, code: int) -> None:
        header, request = receive.header, receive.request()
        if isinstance(header, NotificationHeader):
            is_full = code == ResponseCode.POLLING_FULL
            answer = NotificationResponseHeader(has_msg=False, polling_full=is_full)
            request.answer(fields=answer.encode())
            return
        fields = answer_fields(header, self.system.clock.now_ms(), 0, ())
        request.answer(code, fields, remark="NO_MESSAGE_IN_QUEUE")

    def _deliver(self, receive: HeldReceive, header: PopMessageHeader, taken: Taken) -> None:
        """Send messages without copying the log; wake the next receive if some are left."""
        now_ms = self.system.clock.monotonic_ms()
        deadline_ms = NEVER_MS
        if not header.hold_with_connection:
            deadline_ms = now_ms + max(0, header.invisible_time_ms)
        peer = receive.peer
        holder = Holder(peer.peer_id, peer.remote)
        nonce, attempt_id = self._next_nonce(), header.attempt_id or ""
        terms = Terms(nonce, deadline_ms, holder, now_ms, header.order, attempt_id)
        queues = [self._settlement.deliver(found, terms) for found in taken.found]
        views = [view for found in taken.found for view in found.views]
        body_bytes = sum(found.body_bytes for found in taken.found)
        fields = answer_fields(header, terms.nonce, taken.rest, queues)
        answer = receive.request().command.answer(fields=fields, remark="FOUND")
        stream: StreamPeer = peer  # type: ignore[assignment]
        stream.write((encode_head(answer, body_bytes), *views))
        self._received += count_given(taken, self._stats, self._neighbours)
        if taken.rest:
            self._waking.next_after(receive, with_retries=taken.retries > 0)

    def _next_nonce(self) -> int:
        """Return a pop time that no other receive has."""
        self._nonce = max(self._nonce + 1, self.system.clock.now_ms())
        return self._nonce

    # --- acknowledgements and changes

    @serves(RequestCode.ACK_MESSAGE)
    def on_ack(self, request: Request) -> RemotingCommand | None:
        """Settle one message; the answer follows when that survives a kill."""
        header = AckMessageHeader.decode(request.command.fields)
        handle = self._rules.handle(header)
        group, topic = header.consumer_group, topic_meant(header, handle.topic_kind)
        self._require(request, group, topic)
        remote = request.peer.remote
        self._rules.check_place(topic, header.queue_id, header.offset, remote, is_ack=True)
        self.begin_change()
        self._use()
        ledger = self._ledgers.find(group, topic, header.queue_id)
        if not self._settlement.acknowledge(ledger, header.offset, handle.pop_time_ms):
            return request.command.answer(ResponseCode.NO_MESSAGE, remark=_VOID)
        self._settled += 1
        self._answers.append((request, request.command.answer()))
        return None

    @serves(RequestCode.BATCH_ACK_MESSAGE)
    def on_batch_ack(self, request: Request) -> RemotingCommand | None:
        """Settle several messages; void handles among them are passed over, as in 5.x."""
        command = request.command
        if command.body is None:
            return command.answer(ResponseCode.NO_MESSAGE)
        body = read_body(request, BatchAckBody, self._to["table_encoder"], self.address)
        if body is None:
            return None
        if not body.acks:
            return command.answer(ResponseCode.NO_MESSAGE)
        wanted = wanted_acks(body.acks, partial(self._require, request))
        self.begin_change()
        self._use()
        for ack, topic, offsets in wanted:
            ledger = self._ledgers.find(ack.consumer_group, topic, ack.queue_id)
            low, high = self._rules.bounds(topic, ack.queue_id)
            known = [offset for offset in offsets if low <= offset < high]
            nonce = ack.pop_time_ms
            self._settled += self._settlement.acknowledge_all(ledger, known, nonce)
        self._answers.append((request, command.answer()))
        return None

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def on_change(self, request: Request) -> RemotingCommand | None:
        """Give a message another deadline or connection, or have it retried."""
        header = ChangeInvisibleTimeHeader.decode(request.command.fields)
        group, remote = header.consumer_group, request.peer.remote
        handle = self._rules.handle(header)
        topic, nonce = topic_meant(header, handle.topic_kind), handle.pop_time_ms
        self._require(request, group, topic)
        self._rules.check_place(topic, header.queue_id, header.offset, remote, is_ack=False)
        self.begin_change()
        self._use()
        ledger = self._ledgers.find(group, topic, header.queue_id)
        level, invisible_ms = header.retry_delay_level, header.invisible_time_ms
        holder, failure = Holder(request.peer.peer_id, remote), header.failure or ""
        is_ordered = ledger is not None and ledger.is_ordered
        if level is not None and (level < 0 or not is_ordered):
            entry = self._settlement.give_back(ledger, header.offset, nonce, holder, failure)
            if entry is None:
                return request.command.answer(ResponseCode.NO_MESSAGE, {}, remark=_VOID)
            self._copy(Copy(entry, level), request)
            return None
        if level is not None:
            invisible_ms = self._delays_ms[min(max(level, 1), len(self._delays_ms)) - 1]
        now_ms = self.system.clock.monotonic_ms()
        deadline_ms = now_ms + max(0, invisible_ms)
        terms = Terms(self._next_nonce(), deadline_ms, holder, now_ms, failure=failure)
        if header.hold_with_connection:
            terms = Terms(nonce, NEVER_MS, holder, now_ms)
            has_lost_order = handle.revive_queue_id == ORDER_REVIVE_QUEUE and not is_ordered
            if has_lost_order or not request.peer.is_open:
                ledger = None
        if self._settlement.change(ledger, header.offset, nonce, terms) is None:
            return request.command.answer(ResponseCode.NO_MESSAGE, {}, remark=_VOID)
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time_ms=terms.nonce,
            invisible_time_ms=invisible_ms,
            revive_queue_id=handle.revive_queue_id,
            hold_with_connection=header.hold_with_connection or None,
        )
        return request.command.answer(fields=answer.encode())

    def _require(self, request: Request, group: str, topic: str) -> None:
        """Raise AccessRefused unless the sender may receive what it settles."""
        if request.grant is not None:
            request.grant.require_consumers(request.command.code, ((group, (topic,)),))

    # --- copies

    def _copy(self, copy: Copy, request: Request | None = None) -> None:
        entry, failure = copy.entry, self._settlement.failure_of(copy.entry)
        self._under_way += 1
        result = HeldReturned(entry, request, copy.is_move)
        ledger, offset = entry.ledger, entry.physical_offset
        if offset == UNKNOWN:
            found = self._rules.physical_offset(ledger.topic, ledger.queue_id, entry.offset)
            offset = UNKNOWN if found is None else found
        found_at = ledger.group, offset, copy.delay_level
        self._to["send_back"].tell(ReturnHeld(*found_at, result, self.address, failure))

    @handles(HeldReturned)
    def on_held_returned(self, result: HeldReturned) -> None:
        """Note that a copy is stored, or not; answer the client that waits for it."""
        self._under_way -= 1
        self._returned += not result.is_move and result.is_stored
        self._moved += result.is_move and result.is_stored
        group = result.held.ledger.group
        self._settlement.returned(result, self._retries)
        if result.is_move and not self._settlement.is_moving(group):
            self._waking.arrived((RETRY_TOPIC_PREFIX + group).encode(), 0)
        if not result.is_stored and not result.is_gone:
            self.system.rarely.warn("message in flight not copied", group=group, why=result.remark)
        if result.request is not None:
            is_done = result.is_stored or result.is_gone
            code = ResponseCode.SUCCESS if is_done else ResponseCode.SYSTEM_ERROR
            remark = None if is_done else result.remark
            answer = result.request.command.answer(code, _NO_HANDLE.encode(), remark=remark)
            self._answers.append((result.request, answer))

    def _retries(self, group: str, queue_id: int) -> Ledger:
        return self._ledgers.open(group, RETRY_TOPIC_PREFIX + group, queue_id)

    # --- what wakes receives

    @handles(Arrived)
    def on_arrived(self, message: Arrived) -> None:
        topics = self._waits.topics
        concerned = (
            (each.topic, each.queue_id) for each in message.entries if each.topic in topics
        )
        for topic, queue_id in dict.fromkeys(concerned):
            self._waking.arrived(topic, queue_id)

    @handles(CaughtUp)
    def on_caught_up(self, _: CaughtUp) -> None:
        self._waking.all_first()

    @handles(QueuesEmptied)
    def on_queues_emptied(self, _: QueuesEmptied) -> None:
        self._waking.all_first()

    @handles(UnitVerified)
    def on_unit_verified(self, message: UnitVerified) -> None:
        key = message.topic, message.queue_id, message.queue_offset
        for ledger in self._doubts.pop(key, ()):
            ledger.verified = message.queue_offset
        self._waking.arrived(message.topic.encode(), message.queue_id)

    def _go_on_soon(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self.system.loop.tell_in_next_round(self.address, WakeMore())

    @handles(WakeMore)
    def on_wake_more(self, _: WakeMore) -> None:
        self._goes_on = False
        for _n in range(WOKEN_PER_ROUND):
            receive = self._waking.take()
            if receive is not None and self._may_go_on(receive):
                self._process(receive)
        if self._waking:
            self._go_on_soon()

    # --- time

    @handles(ReceiptsTick)
    def on_tick(self, _: ReceiptsTick) -> None:
        """End what is past its deadline."""
        now_ms = self.system.clock.monotonic_ms()
        self._due += self._deadlines.due(now_ms)
        self._expire_some()
        if self._hand_out.is_early and now_ms >= self._opens_ms:
            self._hand_out.is_early = False
            self._waking.all_first()
        for receive in self._waits.due(now_ms, ENDED_PER_TICK):
            self._waking.add(receive)  # each looks at its queues once more
        self._ticks += 1
        self._waits.forget_some(ENDED_PER_TICK)
        self._ledgers.forget_some()
        if self._ticks % CHECK_TICKS == 0:
            self._check(now_ms)
        if self._survey is not None and self._survey.go_on():
            self._publish(self._survey, now_ms)
            self._survey = None

    def _expire_some(self) -> None:
        """Return messages past their deadline, a limited number in each round of the loop."""
        now_ms, due = self.system.clock.monotonic_ms(), self._due
        for _n in range(min(EXPIRED_PER_ROUND, len(due))):
            delivery = due.popleft()
            self._ledgers.find(*delivery.ledger.place)  # drops what a reset has made void
            self._settlement.expire(delivery, now_ms)
        if due:
            self.system.loop.tell_in_next_round(self.address, ExpireMore())

    @handles(ExpireMore)
    def on_expire_more(self, _: ExpireMore) -> None:
        self._expire_some()

    def _check(self, now_ms: float) -> None:
        """Do every few seconds what no event causes."""
        self._hand_out.forget()
        self._neighbours.forget(now_ms)
        if self._ticks % (CHECK_TICKS * 12) == 0:
            self._ledgers.look_for_unused()
        self._settlement.count_again()
        self._doubts.clear()
        for place, queue_id in self._hand_out.missed(self._waits):
            self._waking.next_of(place, queue_id)
        if self._survey is None:
            self._survey = Survey(self._ledgers)

    def _publish(self, survey: Survey, now_ms: float) -> None:
        in_flight = survey.figures(now_ms, self.system.clock.now_ms())
        counts = self._received, self._settled, self._returned, self._moved
        self._published.value = ReceiptFigures(in_flight, self._waits.count, *counts)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Send what this batch has brought: copies, wake-ups, consumer offsets."""
        self._hand_out.effort, settlement = 0, self._settlement
        while settlement.copies and self._under_way < COPIES_MAX:
            self._copy(settlement.copies.popleft())
        freed, settlement.freed = settlement.freed, {}
        for group, topic, queue_id in freed:
            self._waking.next_of((group, topic), queue_id)
        commits, answers = self._ledgers.commits(), self._answers
        if commits or answers:
            self._answers = []
            self._to["consumer_offsets"].tell(AdvanceOffsets(commits, self.address, answers))

    @handles(OffsetsAdvanced)
    def on_offsets_advanced(self, message: OffsetsAdvanced) -> None:
        self._ledgers.committed(message.commits)

    # --- clients that leave

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """Return what lives with the connection, in a second; forget its receives."""
        peer_id = message.peer.peer_id
        self._waits.forget(peer_id)
        self._deadlines.end(peer_id, self.system.clock.monotonic_ms() + GRACE_MS)

    @handles(MemberLeft)
    def on_member_left(self, message: MemberLeft) -> None:
        """Return at once what lives with the connection of a client that has signed off."""
        for receive in self._waits.of_peer(message.peer_id, message.group):
            receive.has_left = True
            self._waking.add(receive)
        now_ms = self.system.clock.monotonic_ms()
        self._deadlines.end(message.peer_id, now_ms, message.group)

    # --- the end

    def on_drain(self) -> None:
        """Answer all waiting receives: the broker stops."""
        self._draining = True
        for receive in (*self._waking.drain(), *self._waits.all()):
            self._answer_empty(receive, ResponseCode.POLLING_TIMEOUT)

    def on_failure(self, *_: object) -> None:
        """Refuse all waiting receives; clients still hold what they have, without a record here."""
        for receive in (*self._waking.drain(), *self._waits.all()):
            receive.request().refuse("receipts restarted")
        for request, _response in self._answers:
            request.refuse("receipts restarted")
        self._waits.clear()


_NO_HANDLE = ChangeInvisibleTimeResponseHeader()
_VOID = "the handle is no longer valid"
"""Remark about a message that is settled, handed out again, or on its way to a retry."""
