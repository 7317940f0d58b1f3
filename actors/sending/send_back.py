"""Takes messages back from consumers that failed at them (CONSUMER_SEND_MSG_BACK).

Owns: nothing; it reads the log.
Told by: connections (`Request`), RecordChecker (`RecordChecked`), PutMessage (`InternalAppended`).
Tells: RecordChecker (`CheckRecord`: what lies at an offset may be a part of a body), PutMessage
(`InternalAppend`).

A copy goes to the group's retry topic, by way of a delay level that rises with every return; past
the group's limit, or when the consumer says so, to its dead letters.  The answer comes when the
copy is stored.

Source: broker/processor/SendMessageProcessor.java (asyncConsumerSendMsgBack).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from actors.access.real_topic import real_topic
from actors.config import BrokerConfig
from actors.dispatching.record_check import CheckRecord, RecordChecked
from actors.engine.actor import Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.hooks import Hooks, SendBackContext
from actors.network.request import Request, Responder, serves
from actors.sending.internal_append import InternalAppend, InternalAppended, InternalRecord
from actors.sending.property_rewriter import Redirect, delayed
from actors.sending.send_rules import (
    DLQ_QUEUES,
    FAQ,
    MAX_RECONSUME_FROM_VERSION,
    read_queue,
)
from actors.statistics.counts import Counts
from actors.statistics.put_stats import PutStats
from actors.tables.groups import GroupFinder
from actors.tables.messages import CreateSystemTopic
from actors.tables.topic_set import UNIT_SUB_FLAG
from protocol.bodies import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
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
)
from protocol.property_shapes import find_pairs
from protocol.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from storage.access.acl_file import SUB
from storage.dispatching.dispatch import index_keys, tags_code
from storage.message_store import MessageStore
from storage.reading.record_place import place_of

_FIRST_LEVEL = 3
"""The delay level of the first return, where the consumer leaves that to the broker."""

_NOTHING_AT = "look message by offset failed, %d"
_PUT_STATUS = {
    ResponseCode.SERVICE_NOT_AVAILABLE: "SERVICE_NOT_AVAILABLE",
    ResponseCode.MESSAGE_ILLEGAL: "MESSAGE_ILLEGAL",
}
_OTHER_STATUS = "CREATE_MAPEDFILE_FAILED"


@dataclass(frozen=True, slots=True)
class _Return:
    """Who gave a message back, and what is counted when it is stored."""

    request: Request
    topic: str
    """Where the message was sent to at first."""
    group: str
    is_dead: bool
    """Whether it goes to the group's dead letters."""

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


@dataclass(slots=True)
class _Found:
    """A message that may be given back as soon as its queue vouches for it.

    It is read again then: whoever gives back thousands at a time would have all of them kept.
    """

    request: Request
    header: ConsumerSendMsgBackHeader
    group: SubscriptionGroupConfig
    queue_id: int
    """Of its retry topic."""

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


class SendBack(Responder):
    """Runs on a thread: it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        delays_ms: Sequence[int],
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
        self._delays_ms = delays_ms
        self._hooks = hooks
        self._random = random
        self._stats = stats
        self._put_message, self._record_checker = put_message, record_checker
        self._under_way = 0

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def on_send_back(self, request: Request) -> RemotingCommand | None:
        """Stores the copy; the answer follows."""
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
        if config is not None:  # the topic may be older than the group's settings
            queue_id = read_queue(topic, config, queue_id)
        if config is not None and not config.perm & PERM_WRITE:
            raise RemoteError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden"
            )
        record = self._read(header.offset)
        found, grant = _Found(request, header, group, queue_id), request.grant
        if grant is None or grant.passes_all:
            self._give_back(found, record)
            return None
        # Else any message could be had by a detour.
        topic_read = real_topic(record.topic, record.properties)
        grant.require_topic(request.command.code, topic_read, SUB, header.group)
        self._record_checker.tell(CheckRecord(place_of(record), found, self.address))
        return None

    @handles(RecordChecked)
    def on_checked(self, message: RecordChecked) -> None:
        """It is known whether it is a message at all."""
        found = message.token
        assert isinstance(found, _Found)
        try:
            if not message.is_own:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % found.header.offset)
            self._give_back(found, self._read(found.header.offset))
        except RemoteError as error:
            found.request.answer(error.code, remark=error.remark)

    def _read(self, offset: int) -> MessageRecord:
        record = self._store.commit_log.read_record(offset, self._store.damage)
        if record is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % offset)
        return record

    def _give_back(self, found: _Found, record: MessageRecord) -> None:
        """Has the copy stored."""
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
        own = self._copy(record, header, topic, queue_id, level)
        self.begin_change()
        self._under_way += 1
        origin = dict(find_pairs(own.properties))[RETRY_TOPIC.encode()].decode("utf-8", "replace")
        token = _Return(request, origin, header.group, is_dead)
        self._put_message.tell(InternalAppend([own], self.address, token, topics=wanted))

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
        header: ConsumerSendMsgBackHeader,
        topic: str,
        queue_id: int,
        level: int,
    ) -> InternalRecord:
        """The message as it lies in its next topic, by way of a delay level if it has one.

        It comes from the topic where it lies. Only a message in the group's own retry topic says
        itself where it came from: the broker has written that, or looked at it.
        """
        pairs: dict[bytes, bytes] = dict(find_pairs(record.properties))
        if (
            record.topic != RETRY_TOPIC_PREFIX + header.group
        ):  # its sender has written what it likes
            pairs.pop(RETRY_TOPIC.encode(), None)
            pairs.pop(ORIGIN_MESSAGE_ID.encode(), None)
        pairs.setdefault(RETRY_TOPIC.encode(), record.topic.encode())
        pairs[WAIT.encode()] = b"false"
        pairs[DELAY.encode()] = b"%d" % level
        origin = offset_message_id(record.store_host, record.physical_offset)
        pairs.setdefault(ORIGIN_MESSAGE_ID.encode(), origin.encode())
        target = Redirect(topic, queue_id, 0)
        if level > 0 and record.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT):
            target = delayed(pairs, topic, queue_id, level, self._delays_ms)
        text = _with_failure(pairs, header.failure)
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
            record.reconsume_times + 1,
            delay_ms=target.delay_ms,
        )

    @handles(InternalAppended)
    def on_internal_appended(self, message: InternalAppended) -> None:
        """The copy is stored, or the consumer keeps its message."""
        self._under_way -= 1
        token = message.token
        assert isinstance(token, _Return)
        request = token.request
        (result,) = message.results
        if result.is_stored:
            counts = self._stats.sent_back.setdefault((token.topic, token.group), Counts())
            counts.count += 1
            counts.times += 1
            if token.is_dead:
                dead, key = self._stats.dead_letters, (token.topic, token.group)
                dead[key] = dead.get(key, 0) + 1
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
        """Once every consumer knows whether its message is stored."""
        return self._under_way <= 0


def _with_failure(pairs: dict[bytes, bytes], failure: str | None) -> bytes:
    """Return the property text with the reason of this failure in place of an earlier one's.

    The reason is cut to the room that the properties leave: it must not keep a message back.
    """
    own = TROUPE_FAILURE.encode()
    pairs.pop(own, None)
    text = b"\x02".join(name + b"\x01" + value for name, value in pairs.items())
    room = PROPERTIES_BYTES_MAX - len(text) - len(own) - 2
    reason = failure_bytes(failure or "", room)
    return b"\x02".join((text, own + b"\x01" + reason)) if reason else text
