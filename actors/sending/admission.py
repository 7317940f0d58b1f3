"""Admission of sends: each becomes a put, is refused, or waits for its topic.

This is a plain class. PutMessage owns one; PutReplica owns one that only refuses. 4.9.7's checks,
codes and texts are in actors/sending/send_rules.py. The state of a topic is looked up once per
producer's shape and topic table. Each message then costs a few comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

from actors.config import BrokerConfig
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.hooks import SendContext
from actors.network.messages import Sends
from actors.sending.appender import NO_HOST_FLAGS, Appender, Record, TimerRecord
from actors.sending.batches import SHORT_BYTES, TURN_COST_MAX, BatchPiece, LongBatches, MessageBatch
from actors.sending.half_message_cache import HalfMessageCache, HalfRecord, with_owner
from actors.sending.internal_append import TopicWaitList
from actors.sending.property_rewriter import PropertyRewriter
from actors.sending.put_answers import PutAnswers, SendPut
from actors.sending.send_rules import (
    DLQ_QUEUES,
    OPEN_TRANSACTIONS_MAX,
    OVERHEAD_BYTES,
    PROPERTIES_BYTES_MAX,
    RefusedError,
    SendRules,
    TopicState,
    illegal_message,
)
from actors.tables.groups import GroupFinder
from actors.tables.messages import CreateSystemTopic, CreateTopicOnSend, TopicReady
from protocol.bodies_tables import TopicConfig
from protocol.codes import BORN_HOST_V6, TRANSACTION_MASK, ResponseCode
from protocol.errors import RemoteError
from protocol.host import HOST_V4_BYTES
from protocol.send_values import Send, SendShape
from protocol.topic_names import HALF_TOPIC
from storage.clock import Clock
from storage.config import StoreConfig
from storage.transactions.table import TransactionTable

PARKED_MAX = 20_000
"""Maximum sends waiting for one topic; beyond it, sends are refused as 4.9.7 does when busy."""

BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
SHAPES_MAX = 40_000
"""Maximum shapes remembered: those of two ports (protocol/send_values.py), and some more."""
RECORD_EXTRA_BYTES = 64 << 10
"""Bytes by which a whole record may exceed the longest body."""


@dataclass(slots=True, eq=False)
class _ParkedSend:
    sends: Sends
    send: Send
    context: SendContext | None


class Admission:
    """Checks of one broker's sends. One owner."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        preparer: PropertyRewriter,
        appender: Appender,
        answers: PutAnswers,
        random: Random,
        clock: Clock,
        recent_halves: HalfMessageCache,
        transactions: TransactionTable,
        topic_table: ActorAddress,
        owner: ActorAddress,
    ) -> None:
        """`owner` receives TopicReady for the requested topics."""
        self._topics, self._groups = topics, groups
        self._preparer = preparer
        self.topics_with_cut_keys = preparer.topics_with_cut_keys
        self._appender = appender
        self._answers = answers
        self._rules = SendRules(config, random)
        self._config, self._store_config, self._clock = config, store_config, clock
        self._recent_halves, self._transactions = recent_halves, transactions
        self._owner = owner
        self._rejects_transactions = config.reject_transaction_message
        self._has_accounts = config.acl_enable
        self._group_bytes_max = appender.group_bytes_max
        self._limit_bytes()
        self._by_shape: dict[SendShape, TopicState] = {}
        self._seen_topics: Mapping[str, TopicConfig] | None = None
        self.long_batches = LongBatches(preparer, answers)
        self._turn_cost = 0
        self._parking: TopicWaitList[_ParkedSend] = TopicWaitList(topic_table, PARKED_MAX)

    # --- many at a time

    def admit(self, sends: Sends, puts: list[SendPut], arrived_ms: float) -> int:
        """Check every send; add accepted ones to `puts` and return the bytes of their bodies."""
        sends.owed = len(sends.sends)
        self._look_at_topics()
        see_sends, put_of, body_bytes = self._answers.see_sends, self.put_of, 0
        for send in sends.sends:
            context = self._answers.arrived(sends, send) if see_sends else None
            try:
                put = put_of(sends, send, context, arrived_ms)
            except (RefusedError, RemoteError) as error:
                self._answers.refused(sends, send, error, context)
                continue
            if put is not None:
                puts.append(put)
                body_bytes += len(send.body)
        if sends.frames or not sends.owed:
            sends.hand_over()
        return body_bytes

    def refuse(self, sends: Sends, error: RefusedError) -> None:
        """Refuse all sends because the store takes none.

        A send that fails its own checks is refused for that reason instead.
        """
        sends.owed = len(sends.sends)
        self._look_at_topics()
        for send in sends.sends:
            self._refuse_checked(sends, send, error, self._answers.arrived(sends, send))
        sends.hand_over()

    def topic_ready(
        self,
        message: TopicReady,
        puts: list[SendPut],
        arrived_ms: float,
        error: RefusedError | None,
    ) -> int:
        """Continue, in order, with the sends that waited for a topic, as `admit` does.

        With an `error` the store takes none of them.
        """
        unknown, body_bytes = self._rules.unknown_topic(message.topic), 0
        for parked in self._parking.release(message.topic):
            sends, send, context = parked.sends, parked.send, parked.context
            if message.config is None:
                self._answers.refused(sends, send, unknown, context)
            elif error is not None:
                self._refuse_checked(sends, send, error, context)
            else:
                try:
                    put = self.put_of(sends, send, context, arrived_ms)
                except (RefusedError, RemoteError) as refusal:
                    self._answers.refused(sends, send, refusal, context)
                else:
                    if put is not None:
                        puts.append(put)
                        body_bytes += len(send.body)
            sends.hand_over()
        return body_bytes

    def refuse_puts(self, puts: Sequence[SendPut], error: RefusedError) -> None:
        """Refuse admitted sends that were not stored."""
        touched: dict[Sends, None] = {}
        for put in puts:
            if isinstance(put, BatchPiece):
                self.long_batches.refuse(put.batch, error)
                continue
            self._answers.refused(put.sends, put.send, error, put.context)
            touched[put.sends] = None
        for sends in touched:
            sends.hand_over()

    def end_turn(self) -> None:
        """Allow the next turn its short batches."""
        self._turn_cost = 0

    def refuse_parked(self, error: RefusedError) -> None:
        for parked in self._parking.release_all():
            self._answers.refused(parked.sends, parked.send, error, parked.context)
            parked.sends.hand_over()

    # --- one of them

    def put_of(
        self,
        sends: Sends,
        send: Send,
        context: SendContext | None,
        arrived_ms: float,
    ) -> SendPut | None:
        """Return the put of a send; None if it waits for its topic, or is a long batch.

        Raises RefusedError, or RemoteError for a batch that cannot be cut.
        """
        tail, body, queue_id = send.tail, send.body, send.queue_id
        state = self._by_shape.get(send.shape)
        if state is None:
            state = self._find_state(sends, send, context)
            if state is None:
                return None
        if queue_id >= state.queue_id_limit:
            raise self._rules.bad_queue(state, queue_id, sends.peer.remote)
        if queue_id < 0:
            queue_id = self._rules.random_queue(state)
        queue_id_stored = queue_id
        if state.is_retry:
            target = self._retry_target(sends, send, context, state)
            if target is None:
                return None
            if target is not state:
                state, queue_id_stored = target, 0
        born_host = sends.peer.host
        host_flag = 0 if len(born_host) == HOST_V4_BYTES else BORN_HOST_V6
        if tail.batch:
            batch = self._batch_of(sends, send, context, state, queue_id, queue_id_stored)
            if len(body) > SHORT_BYTES or self._turn_cost > TURN_COST_MAX:
                self.long_batches.add(batch)
                return None
            batch.prepare(self._preparer)
            self._turn_cost += batch.cost
            waits = batch.suffix.waits
            return SendPut(state, batch.whole(), sends, send, queue_id, waits, context, arrived_ms)
        if self._rejects_transactions and self._preparer.is_half(send.properties):
            raise self._rules.transaction_forbidden()
        stored, code, keys, waits, sys_flag, redirect = self._preparer.prepare(
            state.config.topic_name,
            queue_id_stored,
            send.sys_flag | state.sys_flag,
            send.properties,
        )
        delay_ms, kind, sent_to, sent_to_queue_id = 0, Record, state, queue_id_stored
        if redirect is not None:
            is_half = redirect.topic == HALF_TOPIC
            if is_half and self._transactions.pending_count >= OPEN_TRANSACTIONS_MAX:
                raise self._rules.too_many_transactions()
            kind = HalfRecord if is_half else TimerRecord if redirect.due_ms else Record
            stored = with_owner(stored, send) if is_half and self._has_accounts else stored
            state.puts.redirected(len(body) + len(stored), is_half=is_half)
            state = self._appender.own_state_of(redirect.topic)
            queue_id_stored, delay_ms = redirect.queue_id, redirect.delay_ms
        body_bytes, stored_bytes = len(body), len(stored)
        if (
            body_bytes > self._max_body_bytes
            or stored_bytes > PROPERTIES_BYTES_MAX
            or body_bytes + stored_bytes + OVERHEAD_BYTES > self._max_record_bytes
        ):
            raise illegal_message(self._max_body_bytes)
        record: Record = kind(
            state.topic,
            queue_id_stored,
            0,
            send.message_flag,
            sys_flag & NO_HOST_FLAGS | host_flag,
            send.born_timestamp,
            born_host,
            tail.reconsume_times,
            0,
            body,
            stored,
            crc32(body) & 0x7FFFFFFF,
            code,
            keys,
            delay_ms,
        )
        if redirect is None:
            return SendPut(state, record, sends, send, queue_id, waits, context, arrived_ms)
        if isinstance(record, HalfRecord):
            record.real_name, record.real_topic = sent_to.config.topic_name, sent_to.topic
            record.real_queue_id, record.waits = sent_to_queue_id, waits
            self._recent_halves.expected.append(record)
        elif isinstance(record, TimerRecord):
            record.due_ms = redirect.due_ms
        return SendPut(state, record, sends, send, queue_id, waits, context, arrived_ms)

    def _batch_of(
        self,
        sends: Sends,
        send: Send,
        context: SendContext | None,
        state: TopicState,
        queue_id: int,
        stored_queue_id: int,
    ) -> MessageBatch:
        if (
            send.sys_flag & TRANSACTION_MASK
            or self._preparer.is_delayed(send.properties)
            or len(send.body) > self._max_body_bytes
        ):
            raise illegal_message(self._max_body_bytes)
        host_flag = 0 if len(sends.peer.host) == HOST_V4_BYTES else BORN_HOST_V6
        return MessageBatch(
            sends,
            send,
            context,
            state,
            queue_id,
            stored_queue_id,
            (send.sys_flag | state.sys_flag) & NO_HOST_FLAGS | host_flag,
            self._preparer.batch_suffix(send.properties),
            self._group_bytes_max,
            self._max_body_bytes,
        )

    def _check(self, sends: Sends, send: Send) -> None:
        """Check a send that the store does not take; make no topic.

        Raises RefusedError.
        """
        rules = self._rules
        rules.check_accepting(self._clock.now_ms())
        config = rules.check_topic(send.shape.topic, self._topics.value)
        rules.check_producers(send.shape.producer_group)
        if config is None:
            return
        state = self._appender.state_of(send.shape.topic, config)
        if send.queue_id >= state.queue_id_limit:
            raise rules.bad_queue(state, send.queue_id, sends.peer.remote)
        if state.is_retry:
            rules.dead_letter_topic(send, self._groups)
        is_half = not send.tail.batch and self._preparer.is_half(send.properties)
        if self._rejects_transactions and is_half:
            raise rules.transaction_forbidden()

    # --- topics

    def _look_at_topics(self) -> None:
        """Forget lookups of older tables and settings."""
        if self._seen_topics is not self._topics.value:
            self._by_shape.clear()
            self._seen_topics = self._topics.value
        self._rejects_transactions = self._config.reject_transaction_message
        if self._store_config.max_message_bytes != self._max_body_bytes:
            self._limit_bytes()

    def _limit_bytes(self) -> None:
        self._max_body_bytes = self._store_config.max_message_bytes
        longest = self._max_body_bytes + RECORD_EXTRA_BYTES
        self._max_record_bytes = min(self._group_bytes_max, longest)

    def _find_state(
        self, sends: Sends, send: Send, context: SendContext | None
    ) -> TopicState | None:
        shape = send.shape
        self._rules.check_accepting(self._clock.now_ms())
        config = self._rules.check_topic(shape.topic, self._topics.value)
        self._rules.check_producers(shape.producer_group)  # skipped for a known shape
        if config is None or shape.topic in self._parking:
            self._park(shape.topic, sends, send, context)
            return None
        state = self._appender.state_of(shape.topic, config)
        if shape.values and not state.is_retry:
            if len(self._by_shape) >= SHAPES_MAX:
                self._by_shape.clear()
            self._by_shape[shape] = state
        return state

    def _retry_target(
        self, sends: Sends, send: Send, context: SendContext | None, state: TopicState
    ) -> TopicState | None:
        """Return the state for a send to %RETRY%group: that topic's or the dead-letter topic's.

        Return None if the send is parked until its topic is made.
        """
        topic = self._rules.dead_letter_topic(send, self._groups)
        if topic is None:
            return state
        config = self._topics.value.get(topic)
        if config is None or topic in self._parking:
            self._park(topic, sends, send, context)
            return None
        return self._appender.state_of(topic, config)

    def _park(self, topic: str, sends: Sends, send: Send, context: SendContext | None) -> None:
        """Keep a send until its topic is made, behind those that already wait for it."""
        shape = send.shape
        create: CreateTopicOnSend | CreateSystemTopic
        if topic != shape.topic:
            create = CreateSystemTopic(topic, DLQ_QUEUES, self._owner)
        else:
            create = CreateTopicOnSend(
                topic=shape.topic,
                default_topic=shape.default_topic,
                queue_nums=shape.default_topic_queue_nums,
                unit_mode=send.tail.unit_mode,
                producer=sends.peer.remote,
                reply_to=self._owner,
            )
        if not self._parking.park(_ParkedSend(sends, send, context), create):
            raise RefusedError(ResponseCode.SYSTEM_ERROR, BUSY)

    def _refuse_checked(
        self,
        sends: Sends,
        send: Send,
        error: RefusedError,
        context: SendContext | None,
    ) -> None:
        try:
            self._check(sends, send)
        except RefusedError as earlier:
            error = earlier
        self._answers.refused(sends, send, error, context)
