"""A send that has arrived becomes one that can be appended, is refused, or waits for its topic.

A plain class; PutMessage owns the one there is.  What it knows of a topic is looked up once per
producer's shape and topic table; what is left for each message is a few comparisons.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from actors.config import BrokerConfig
from actors.engine.published import Published
from actors.network.hooks import SendContext
from actors.network.sends import Sends
from actors.sending.append_batch import Part, Pending
from actors.sending.send_prepare import Preparer
from actors.sending.send_rules import (
    PROPERTIES_BYTES_MAX,
    RefusedError,
    SendRules,
    TopicState,
    illegal_message,
    new_state,
)
from actors.statistics.put_stats import PutStats
from actors.tables.groups import GroupFinder
from protocol.batch import decode_batch
from protocol.bodies import TopicConfig
from protocol.codes import ResponseCode
from protocol.host import HOST_V4_BYTES
from protocol.message import HEAD_V6
from protocol.send_wire import LearntShape, Send, SendShape
from protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK
from storage.config import StoreConfig

PARKED_MAX = 20_000
"""Sends that wait for one topic; past it they are refused as 4.9.7 does when busy."""

BUSY = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
SHAPES_MAX = 100_000
RECORD_EXTRA_BYTES = 64 << 10
"""How much longer than the longest body a whole record may be."""

_NO_HOST_FLAGS = ~(BORN_HOST_V6 | STORE_HOST_V6)
"""How long the hosts in a record are is not for its sender to say."""

OVERHEAD_BYTES = HEAD_V6.size + 1 + 127 + 2
"""The most that a record needs beside body and properties: head, topic, their lengths."""

Parked = tuple[Sends, Send, SendContext | None]
MakeTopic = Callable[[str, Sends, Send], None]
"""Has a topic made that is not there, for this send; the answer comes as `topic_ready`."""


class SendTaker:
    """The checks of one broker, and what it knows of its topics."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        topics: Published[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        preparer: Preparer,
        random: Random,
        make_topic: MakeTopic,
        group_bytes_max: int,
        stats: PutStats,
    ) -> None:
        self._topics, self._groups = topics, groups
        self._preparer = preparer
        self._rules = SendRules(config, random)
        self._make_topic = make_topic
        self._stats = stats
        self._config = config
        self._rejects_transactions = config.reject_transaction_message
        self._store_config = store_config
        self._group_bytes_max = group_bytes_max
        self._limit_bytes()
        self._states: dict[str, TopicState] = {}
        self._by_shape: dict[SendShape, TopicState] = {}
        self._seen_topics: Mapping[str, TopicConfig] | None = None
        self._next_offsets: dict[str, dict[int, int]] = {}
        self._parked: dict[str, list[Parked]] = {}

    def start_at(self, next_offsets: Mapping[tuple[str, int], int]) -> None:
        """Tells the offset that the next message of each queue gets."""
        for (topic, queue_id), offset in next_offsets.items():
            self._next_offsets.setdefault(topic, {})[queue_id] = offset

    def forget_queues(self, queues: Iterable[tuple[str, int, int]]) -> None:
        """Topic, queue id and offset: what is still at this offset begins at 0 again."""
        for topic, queue_id, offset in queues:
            state = self._states.get(topic)
            known = self._next_offsets.get(topic, {}) if state is None else state.next_offsets
            if known.get(queue_id) == offset:
                del known[queue_id]

    def look_at_topics(self) -> None:
        """Forgets what was looked up in older tables and settings; before each group of sends."""
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

    def take(
        self,
        message: Sends,
        send: Send,
        context: SendContext | None,
        now_ms: int,
        arrived_ms: float,
    ) -> Pending | None:
        """What can be appended; None when the send is parked until its topic is made.

        Raises RefusedError, or RemoteError for a batch that cannot be cut.
        """
        shape, tail, _, _, queue_id, sys_flag, _, flag, properties, body = send
        state = self._by_shape.get(shape)
        if state is None:
            state = self._find_state(message, send, context, now_ms)
            if state is None:
                return None
        if queue_id >= state.queue_id_limit:
            raise self._rules.bad_queue(state, queue_id, message.peer.remote)
        if queue_id < 0:
            queue_id = self._rules.random_queue(state)
        queue_id_stored = queue_id
        if state.is_retry:
            target = self._retry_target(message, send, context, state)
            if target is None:
                return None
            if target is not state:
                state, queue_id_stored = target, 0
        parts: Sequence[Part]
        if tail.batch:
            parts, waits = self._batch_parts(send)
            delay_ms, sys_flag = 0, sys_flag | state.sys_flag
        else:
            if self._rejects_transactions and self._preparer.is_half(properties):
                raise self._rules.transaction_forbidden()
            stored, code, keys, waits, sys_flag, redirect = self._preparer.prepare(
                state.config.topic_name, queue_id_stored, sys_flag | state.sys_flag, properties
            )
            delay_ms = 0
            if redirect is not None:
                state = self.system_topic(redirect.topic)
                queue_id_stored, delay_ms = redirect.queue_id, redirect.delay_ms
            body_bytes, stored_bytes = len(body), len(stored)
            if (
                body_bytes > self._max_body_bytes
                or stored_bytes > PROPERTIES_BYTES_MAX
                or body_bytes + stored_bytes + OVERHEAD_BYTES > self._max_record_bytes
            ):
                raise illegal_message(self._max_body_bytes)
            parts = ((flag, body, stored, code, keys),)
        sys_flag &= _NO_HOST_FLAGS
        if len(message.peer.host) != HOST_V4_BYTES:
            sys_flag |= BORN_HOST_V6
        return (
            message,
            send,
            state,
            queue_id_stored,
            queue_id,
            sys_flag,
            delay_ms,
            waits,
            parts,
            context,
            arrived_ms,
        )

    def check(self, message: Sends, send: Send, now_ms: int) -> None:
        """What is looked at before the store may say no; makes no topic. Raises RefusedError."""
        shape, tail, rules = send[0], send[1], self._rules
        rules.check_accepting(now_ms)
        config = rules.check_topic(shape.topic, self._topics.value)
        if config is None:
            return
        state = self._state(shape.topic, config)
        if send[4] >= state.queue_id_limit:
            raise rules.bad_queue(state, send[4], message.peer.remote)
        if state.is_retry:
            rules.dead_letter_topic(send, self._groups)
        if self._rejects_transactions and not tail.batch and self._preparer.is_half(send[8]):
            raise rules.transaction_forbidden()

    def topic_ready(self, topic: str) -> list[Parked]:
        """Gives back the sends that waited for this topic, in order."""
        return self._parked.pop(topic, [])

    def unknown_topic(self, topic: str) -> RefusedError:
        """The answer when a topic does not exist and may not be made."""
        return self._rules.unknown_topic(topic)

    def give_up_parked(self) -> list[Parked]:
        """Gives back everything that waits for a topic."""
        parked = [item for waiting in self._parked.values() for item in waiting]
        self._parked.clear()
        return parked

    def _find_state(
        self, message: Sends, send: Send, context: SendContext | None, now_ms: int
    ) -> TopicState | None:
        shape = send[0]
        self._rules.check_accepting(now_ms)
        config = self._rules.check_topic(shape.topic, self._topics.value)
        if config is None or shape.topic in self._parked:
            self._park(shape.topic, message, send, context)
            return None
        state = self._state(shape.topic, config)
        if isinstance(shape, LearntShape) and not state.is_retry:
            if len(self._by_shape) >= SHAPES_MAX:
                self._by_shape.clear()
            self._by_shape[shape] = state
        return state

    def _park(self, topic: str, message: Sends, send: Send, context: SendContext | None) -> None:
        """Keeps a send until its topic is made; behind those that wait for it already."""
        parked = self._parked.get(topic)
        if parked is None:
            self._parked[topic] = [(message, send, context)]
            self._make_topic(topic, message, send)
        elif len(parked) >= PARKED_MAX:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, BUSY)
        else:
            parked.append((message, send, context))

    def _retry_target(
        self, message: Sends, send: Send, context: SendContext | None, state: TopicState
    ) -> TopicState | None:
        """For a send to %RETRY%group: there, or to the dead letters; None: their topic is made."""
        topic = self._rules.dead_letter_topic(send, self._groups)
        if topic is None:
            return state
        config = self._topics.value.get(topic)
        if config is None or topic in self._parked:
            self._park(topic, message, send, context)
            return None
        return self._state(topic, config)

    def _state(self, topic: str, config: TopicConfig) -> TopicState:
        state = self._states.get(topic)
        if state is None:
            state = self._states[topic] = new_state(topic, config, self._stats.of_topic(topic))
            state.next_offsets = self._next_offsets.pop(topic, {})
        elif state.config is not config:
            state.configure(config)
        return state

    def system_topic(self, topic: str) -> TopicState:
        """Where delayed, half and our own messages go; their topics need not be in the table."""
        config = self._topics.value.get(topic) or TopicConfig(topic, 1, 1)
        return self._state(topic, config)

    def _batch_parts(self, send: Send) -> tuple[Sequence[Part], bool]:
        """The records of a batch, and whether they wait for the disk."""
        sys_flag, properties, body = send[5], send[8], send[9]
        if (
            sys_flag & TRANSACTION_MASK
            or self._preparer.is_delayed(properties)
            or len(body) > self._max_body_bytes
        ):
            raise illegal_message(self._max_body_bytes)
        suffix, waits = self._preparer.batch_suffix(properties)
        parts: list[Part] = []
        batch_bytes = 0
        for part in decode_batch(body):
            stored, code, keys = self._preparer.batch_part(part.properties, suffix)
            batch_bytes += len(part.body) + len(stored) + OVERHEAD_BYTES
            if len(stored) > PROPERTIES_BYTES_MAX or batch_bytes > self._group_bytes_max:
                raise illegal_message(self._max_body_bytes)
            parts.append((part.flag, part.body, stored, code, keys))
        if not parts:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "the batch holds no message")
        return parts, waits
