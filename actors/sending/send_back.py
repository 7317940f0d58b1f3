"""Return of messages that a consumer failed to process (CONSUMER_SEND_MSG_BACK).

Owns: nothing; it reads the commit log.
Receives: Request from connections; ReturnChecked from RecordChecker; CopyStored from PutMessage;
ReturnHeld from Receipts.
Sends: CheckRecord to RecordChecker, because bytes at an offset may be part of a body;
InternalAppend to PutMessage.

A copy goes to the group's retry topic, through a delay level that rises with every return, or as a
timer if the consumer names a delay. Beyond the group's limit, or on the consumer's request, it goes
to the dead-letter queue. The answer follows when the copy is stored.

Source: broker/processor/SendMessageProcessor.java (asyncConsumerSendMsgBack).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from actors.config import BrokerConfig
from actors.dispatching.messages import CheckRecord, RecordChecked
from actors.engine.actor import Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.hooks import Hooks, SendBackContext
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.sending.appender import InternalRecord
from actors.sending.messages import AppendResult, InternalAppend, ReturnHeld
from actors.sending.property_rewriter import Redirect, delayed, timer_redirect
from actors.sending.send_rules import (
    DLQ_QUEUES,
    FAQ,
    MAX_RECONSUME_FROM_VERSION,
    TimerRules,
    read_queue,
)
from actors.statistics.counts import PutStats
from actors.tables.groups import GroupFinder
from actors.tables.messages import CreateSystemTopic
from actors.tables.topics import UNIT_SUB_FLAG
from protocol.bodies import PERM_WRITE
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_MASK, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.message import MessageRecord
from protocol.message_id import offset_message_id
from protocol.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    RETRY_TOPIC,
    TAGS,
    TROUPE_FAILURE,
    WAIT,
    failure_bytes,
    find_pairs,
    real_topic,
)
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from storage.access.acl_file import SUB
from storage.dispatching.dispatch import index_keys, tags_code
from storage.message_store import MessageStore
from storage.reading.record_place import place_of

_FIRST_LEVEL = 3
"""Delay level of the first return, if the consumer leaves the choice to the broker."""

_TRIES_MAX = 2**31 - 1
"""Maximum of a record's 32 bits; senders may begin there. 4.9.7 stores a negative number next."""

_NOTHING_AT = "look message by offset failed, %d"
_PUT_STATUS = {
    ResponseCode.SERVICE_NOT_AVAILABLE: "SERVICE_NOT_AVAILABLE",
    ResponseCode.MESSAGE_ILLEGAL: "MESSAGE_ILLEGAL",
}
_OTHER_STATUS = "CREATE_MAPEDFILE_FAILED"


@dataclass(slots=True, eq=False)
class CopyStored(AppendResult):
    """Result of the append of a copy: the request, and what is counted."""

    request: Request
    topic: str
    """Original topic of the message."""
    group: str
    is_dead: bool
    """Whether it goes to the dead-letter queue."""

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


@dataclass(slots=True)
class ReturnChecked(RecordChecked):
    """Answer about a message that may be returned if its consume queue confirms it.

    The record is read again then, so that thousands of returns do not keep their records in memory.
    """

    request: Request
    header: ConsumerSendMsgBackHeader
    group: SubscriptionGroupConfig
    queue_id: int
    """Queue id in the retry topic."""

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


class SendBack(Responder):
    """Actor on a thread, because it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        delays_ms: Sequence[int],
        timers: TimerRules,
        hooks: Hooks,
        random: Random,
        stats: PutStats,
        put_message: ActorAddress,
        record_checker: ActorAddress,
    ) -> None:
        super().__init__()
        self._store = store
        self._config = config
        self._topics, self._groups = topics, groups
        self._delays_ms, self._timers = delays_ms, timers
        self._hooks = hooks
        self._random = random
        self._stats = stats
        self._put_message, self._record_checker = put_message, record_checker
        self._under_way = 0

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def on_send_back(self, request: Request) -> RemotingCommand | None:
        """Have the copy stored; the answer follows."""
        header = ConsumerSendMsgBackHeader.decode(request.command.fields)
        if self._hooks.see_send_backs and (header.origin_msg_id or "").strip():
            self._hooks.sent_back(
                SendBackContext(
                    header.group,
                    header.origin_topic or "",
                    header.origin_msg_id or "",
                    request.peer.remote,
                    header.delay_level,
                )
            )
        group = self._checked_group(header.group)
        if group.retry_queue_nums <= 0:
            return request.command.answer()
        topic = RETRY_TOPIC_PREFIX + header.group
        config = self._topics.value.get(topic)
        queue_id = self._random.randrange(99_999_999) % group.retry_queue_nums
        if config is not None:  # the topic may be older than the settings of the group
            queue_id = read_queue(topic, config, queue_id)
        if config is not None and not config.perm & PERM_WRITE:
            raise RemoteError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden"
            )
        record = self._read(header.offset)
        found, grant = ReturnChecked(request, header, group, queue_id), request.grant
        if grant is None or grant.passes_all:
            self._give_back(found, record)
            return None
        # Otherwise a client could obtain any message through its retry topic.
        topic_read = real_topic(record.topic, record.properties)
        grant.require_topic(request.command.code, topic_read, SUB, header.group)
        self._record_checker.tell(CheckRecord(place_of(record), found, self.address))
        return None

    @handles(ReturnChecked)
    def on_return_checked(self, found: ReturnChecked) -> None:
        """Return the message if its queue confirms it."""
        try:
            if not found.is_own:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % found.header.offset)
            self._give_back(found, self._read(found.header.offset))
        except RemoteError as error:
            found.request.answer(error.code, remark=error.remark)

    def _read(self, offset: int) -> MessageRecord:
        record = self._store.commit_log.read_record(offset, self._store.damage)
        if record is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % offset)
        return record

    def _give_back(self, found: ReturnChecked, record: MessageRecord) -> None:
        request, header, group = found.request, found.header, found.group
        topic, queue_id = RETRY_TOPIC_PREFIX + header.group, found.queue_id
        sys_flag = UNIT_SUB_FLAG if header.unit_mode else 0
        wanted = [CreateSystemTopic(topic, group.retry_queue_nums, topic_sys_flag=sys_flag)]
        level, limit = header.delay_level, group.retry_max_times
        if request.command.version >= MAX_RECONSUME_FROM_VERSION:
            limit = limit if header.max_reconsume_times is None else header.max_reconsume_times
        is_dead = level < 0 or record.reconsume_times >= limit
        if is_dead:
            topic, queue_id, level = DLQ_TOPIC_PREFIX + header.group, 0, 0
            wanted.append(CreateSystemTopic(topic, DLQ_QUEUES))
        elif level == 0:
            level = _FIRST_LEVEL + record.reconsume_times
        own = self._copy(
            record,
            header.group,
            Redirect(topic, queue_id, 0),
            level,
            tries=record.reconsume_times + 1,
            failure=header.failure,
            delay_ms=header.delay_ms or 0,
        )
        self.begin_change()
        self._under_way += 1
        stored = CopyStored(request, _origin_of(own), header.group, is_dead)
        self._put_message.tell(InternalAppend([own], self.address, stored, topics=wanted))

    @handles(ReturnHeld)
    def on_return_held(self, message: ReturnHeld) -> None:
        """Have a copy of a message in flight stored; the result goes to the requester."""
        try:
            self._return_held(message)
        except RemoteError as error:
            is_gone = error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            message.fail(error.remark, is_gone=is_gone)

    def _return_held(self, message: ReturnHeld) -> None:
        group = self._checked_group(message.group)
        record = self._store.commit_log.read_record(message.physical_offset, self._store.damage)
        if record is None or group.retry_queue_nums <= 0:
            message.fail(_NOTHING_AT % message.physical_offset, is_gone=True)
            return
        result, level, tries = message.result, message.delay_level, record.reconsume_times
        topic = RETRY_TOPIC_PREFIX + message.group
        queue_id = self._random.randrange(99_999_999) % group.retry_queue_nums
        config = self._topics.value.get(topic)
        if config is not None:
            queue_id = read_queue(topic, config, queue_id)
        wanted = [CreateSystemTopic(topic, group.retry_queue_nums)]
        if not result.is_move:
            if (level is not None and level < 0) or tries >= group.retry_max_times:
                topic, queue_id, level = DLQ_TOPIC_PREFIX + message.group, 0, None
                wanted.append(CreateSystemTopic(topic, DLQ_QUEUES))
            elif level == 0:
                level = _FIRST_LEVEL + tries
            tries += 1
        own = self._copy(
            record,
            message.group,
            Redirect(topic, queue_id, 0),
            level or 0,
            tries=tries,
            failure=_failure_of(record) if result.is_move else message.failure,
            delay_ms=self._timer_ms(level or 0),
        )
        self._put_message.tell(
            InternalAppend([own], message.reply_to, result, waits=True, topics=wanted)
        )
        if not result.is_move:
            self._count(own, message.group, is_dead=topic.startswith(DLQ_TOPIC_PREFIX))

    def _timer_ms(self, level: int) -> int:
        """Return a level's delay, for a timer in its place; 0 for an invalid level.

        A kill repeats no timer, but messages of levels since the last save of their offset.
        """
        if not level or not self._delays_ms:
            return 0
        delay_ms = self._delays_ms[min(level, len(self._delays_ms)) - 1]
        return delay_ms if self._timers.covers(delay_ms) else 0

    def _count(self, own: InternalRecord, group: str, *, is_dead: bool) -> None:
        self._stats.sent_back_one((_origin_of(own), group), is_dead=is_dead)

    def _checked_group(self, name: str) -> SubscriptionGroupConfig:
        self._groups.check(name)
        group = self._groups.find(name)
        if group is None:
            raise RemoteError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name} {FAQ}",
            )
        if not self._config.broker_permission & PERM_WRITE:
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden",
            )
        return group

    def _copy(
        self,
        record: MessageRecord,
        group: str,
        target: Redirect,
        level: int,
        *,
        tries: int,
        failure: str | None = None,
        delay_ms: int = 0,
    ) -> InternalRecord:
        """Return the message as stored in its next topic, by way of its delay level if it has one.

        Its original topic is the topic of the record. Only in the group's own retry topic is it
        taken from the properties, because there the broker has written or checked them.
        """
        pairs: dict[bytes, bytes] = dict(find_pairs(record.properties))
        if record.topic != RETRY_TOPIC_PREFIX + group:  # the sender can have set them to anything
            pairs.pop(RETRY_TOPIC.encode(), None)
            pairs.pop(ORIGIN_MESSAGE_ID.encode(), None)
        pairs.setdefault(RETRY_TOPIC.encode(), record.topic.encode())
        pairs[WAIT.encode()] = b"false"
        pairs[DELAY.encode()] = b"%d" % level
        origin = offset_message_id(record.store_host, record.physical_offset)
        pairs.setdefault(ORIGIN_MESSAGE_ID.encode(), origin.encode())
        end = b""
        is_plain = record.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
        due_ms = self._timers.due_in_ms(delay_ms) if level > 0 and is_plain else 0
        if due_ms:
            target, end = timer_redirect(pairs, target.topic, target.queue_id, due_ms, self._timers)
        elif level > 0 and is_plain:
            target = delayed(pairs, target.topic, target.queue_id, level, self._delays_ms)
        text = _with_failure(pairs, failure, len(end)) + end
        return InternalRecord(
            target.topic,
            target.queue_id,
            record.body,
            text,
            tags_code(pairs.get(TAGS.encode(), b"")),
            index_keys(text),
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.born_host,
            min(tries, _TRIES_MAX),
            delay_ms=target.delay_ms,
            due_ms=target.due_ms,
        )

    @handles(CopyStored)
    def on_copy_stored(self, message: CopyStored) -> None:
        """Answer the consumer; after a failure it keeps its message."""
        self._under_way -= 1
        request = message.request
        (result,) = message.results
        if result.is_stored:
            pair = message.topic, message.group
            self._stats.sent_back_one(pair, is_dead=message.is_dead)
            request.answer()
            return
        topic_missing = message.remark is not None and message.remark.startswith("topic[")
        remark = (
            message.remark
            if topic_missing
            else _PUT_STATUS.get(ResponseCode(result.code), _OTHER_STATUS)
        )
        request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)

    def can_stop(self) -> bool:
        return self._under_way <= 0


def _origin_of(copy: InternalRecord) -> str:
    """Return the topic that a copy comes from."""
    pairs: dict[bytes, bytes] = dict(find_pairs(copy.properties))
    return pairs[RETRY_TOPIC.encode()].decode("utf-8", "replace")


def _failure_of(record: MessageRecord) -> str:
    """Return the reason of the failure before, or an empty text."""
    pairs: dict[bytes, bytes] = dict(find_pairs(record.properties))
    return pairs.get(TROUPE_FAILURE.encode(), b"").decode("utf-8", "replace")


def _with_failure(pairs: dict[bytes, bytes], failure: str | None, end_bytes: int) -> bytes:
    """Return the property text with the reason of this failure, which replaces an earlier one.

    The reason is cut to the room that the other properties and `end_bytes` leave, so that it never
    prevents a return.
    """
    own = TROUPE_FAILURE.encode()
    pairs.pop(own, None)
    text = b"\x02".join(name + b"\x01" + value for name, value in pairs.items())
    room = PROPERTIES_BYTES_MAX - len(text) - len(own) - 2 - end_bytes
    reason = failure_bytes(failure or "", room)
    return b"\x02".join((text, own + b"\x01" + reason)) if reason else text
