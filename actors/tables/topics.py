"""The topic table of a broker.

Owns: the topics and topics.json.
Receives: Request (connections); CreateTopicOnSend (PutMessage, ReplyMessage); CreateSystemTopic
(PutMessage, SendBack, Clients); WhenRegistered (Clients); SetOrderTopics (Registration);
PermissionChanged (Settings); ReplaceTopics (SlaveSync).
Sends: WriteFile (ConfigWriter); RegisterTopic, RegisterAll, WhenRegistered (Registration);
RemoveTopic, TablesComplete (CleanFiles); ForgetTopic, TopicsGone (ConsumerOffsets); EncodeAnswer
(TableEncoder); TopicReady (the requesting actor).

A change is published, answered and registered once it is on disk. No client can learn of a topic
that a crash then loses.

Source: broker/topic/TopicConfigManager.java, AdminBrokerProcessor.updateAndCreateTopic.

TopicSet has the topics, and the rules of their creation, change and deletion.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger, shown_names
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.network.request import serves
from actors.tables.messages import (
    CreateSystemTopic,
    CreateTopicOnSend,
    EncodeAnswer,
    ForgetTopic,
    NameServersTold,
    PermissionChanged,
    RegisterAll,
    RegisterTopic,
    RemoveTopic,
    ReplaceTopics,
    SetOrderTopics,
    TablesComplete,
    TopicReady,
    TopicsGone,
    WhenRegistered,
    encode_later,
)
from actors.tables.names import check_topic_name
from actors.tables.persisted import BatchedTable, Then
from protocol.bodies import PERM_INHERIT
from protocol.bodies_admin import TopicList
from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader, TopicHeader
from protocol.table_rules import asked_topic_fault
from protocol.topic_names import (
    AUTO_CREATE_TOPIC,
    DLQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    is_legal_name,
)
from storage.tables.store_traces import restored_topics
from storage.tables.topics import READ_WRITE, always_present, format_topics, parse_topics

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
OF_GROUPS = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
"""Prefixes of retry and dead-letter topics, one of each per consumer group."""


class Topics:
    """The topics and their version."""

    def __init__(self, config: BrokerConfig, loaded: TopicConfigTable | None = None) -> None:
        """Take `loaded`, the file's table, which overrides the topics of every broker."""
        self._config = config
        self.configs = {topic.topic_name: topic for topic in _always_present(config)}
        self.system_topics = SYSTEM_TOPICS | self.configs.keys()
        self.version = DataVersion()
        if loaded is not None:
            self.configs.update(loaded.topic_configs)
            self.version = loaded.data_version
        self._own_count = _count_of_groups(self.configs)

    def table(self) -> TopicConfigTable:
        """Return a copy that does not change."""
        return TopicConfigTable(dict(self.configs), self.version)

    def replace(self, table: TopicConfigTable) -> None:
        self.configs = dict(table.topic_configs)
        self.version = table.data_version
        self._own_count = _count_of_groups(self.configs)

    def put(self, config: TopicConfig, now_ms: int) -> None:
        before = self.configs.get(config.topic_name)
        if before is not None and config.read_queue_nums < before.read_queue_nums:
            log.warning(
                "queues no longer read",
                topic=config.topic_name,
                first_queue=config.read_queue_nums,
                last_queue=before.read_queue_nums - 1,
                hint="consumers do not get their messages; consumer lag counts them",
            )
        self._own_count += before is None and config.topic_name.startswith(OF_GROUPS)
        self.configs[config.topic_name] = config
        self.version = self.version.next(now_ms)

    def delete(self, topic: str, now_ms: int) -> bool:
        """Delete a topic; return whether it existed."""
        if self.configs.pop(topic, None) is None:
            return False
        self._own_count -= topic.startswith(OF_GROUPS)
        self.version = self.version.next(now_ms)
        return True

    def made_from_default(
        self, topic: str, default_topic: str, queue_nums: int, *, unit_mode: bool
    ) -> TopicConfig | None:
        """Return the settings of a topic created by a send; None if that is not allowed."""
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        if topic in OF_GROUPS or self.is_full(topic):
            return None
        sys_flag = (UNIT_SUB_FLAG if is_retry else UNIT_FLAG) if unit_mode else 0
        pattern = self.configs.get(default_topic)
        # the file may still have TBW102 from a time with autoCreateTopicEnable
        closed = default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable
        if pattern is not None and pattern.perm & PERM_INHERIT and not closed:
            queues = max(0, min(queue_nums, pattern.write_queue_nums))
            perm = pattern.perm & ~PERM_INHERIT
            return TopicConfig(topic, queues, queues, perm, pattern.topic_filter_type, sys_flag)
        if is_retry:
            return TopicConfig(topic, 1, 1, READ_WRITE, topic_sys_flag=sys_flag)
        return None

    def is_full(self, topic: str) -> bool:
        """Return whether the limit for this kind of topic, own or of groups, is reached."""
        is_own = topic.startswith(OF_GROUPS)
        most = 2 * self._config.auto_groups_max if is_own else self._config.auto_topics_max
        if not 0 < most <= len(self.configs):
            return False
        return most <= (self._own_count if is_own else len(self.configs) - self._own_count)

    def set_order(self, ordered: frozenset[str], now_ms: int) -> bool:
        """Set which topics are ordered; return whether that changed any."""
        changed = [
            replace(config, order=name in ordered)
            for name, config in self.configs.items()
            if config.order != (name in ordered)
        ]
        if changed:
            self.configs.update({config.topic_name: config for config in changed})
            self.version = self.version.next(now_ms)
        return bool(changed)

    def is_system(self, topic: str) -> bool:
        """Return whether administrators must not change the topic."""
        return topic in self.system_topics or topic.startswith(SYSTEM_TOPIC_PREFIX)


def _count_of_groups(topics: Iterable[str]) -> int:
    """Return the number of retry and dead-letter topics."""
    return sum(topic.startswith(OF_GROUPS) for topic in topics)


def _always_present(config: BrokerConfig) -> list[TopicConfig]:
    return always_present(
        config.broker_cluster_name,
        config.broker_name,
        auto_create_topic_enable=config.auto_create_topic_enable,
        default_topic_queue_nums=config.default_topic_queue_nums,
        cluster_topic_enable=config.cluster_topic_enable,
        broker_topic_enable=config.broker_topic_enable,
        trace_topic=config.trace_topic_name if config.trace_topic_enable else None,
    )


log = get_logger(__name__)

NO_RESPONSE_CODE = "not set any response code"
"""Remark that 4.9.7 leaves in the answer of a created topic."""
SLAVE_REFUSES = (
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker."
)


REMOVED_PER_ROUND = 1_000
"""Deleted topics of which a slave removes the queues in a round of the loop: 2 ms."""


CREATED_PER_ROUND = 50
"""Topics that sends and groups create in a round of the loop: 5 ms."""


@dataclass(frozen=True, slots=True)
class _CreateOn:
    """Create the next topics."""


@dataclass(frozen=True, slots=True)
class _RemoveOn:
    """Remove the queues of the next deleted topics."""


class TopicTable(BatchedTable):
    """Topic table with its rules. Runs on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        path: str,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        table: SnapshotRef[TopicConfigTable],
        config_writer: ActorAddress,
        registration: ActorAddress,
        clean_files: ActorAddress,
        consumer_offsets: ActorAddress,
        encoder: ActorAddress,
        queued: Mapping[str, int] | None = None,
    ) -> None:
        """Publish `topics` for lookups, and `table` for answers and registration.

        `queued` are topics that must exist, with their number of queues: the log has
        messages of them.
        """
        super().__init__(path, config_writer)
        self._config = config
        self._published, self._published_table = topics, table
        self._registration, self._clean_files = registration, clean_files
        self._consumer_offsets, self._encoder = consumer_offsets, encoder
        self._topics = Topics(config)
        self._queued = dict(queued or {})
        self._taken = TopicConfigTable()
        """On a slave: the newest table of its master."""
        self._gone: dict[str, bool] = {}
        """On a slave: topics that its master deleted; whether an earlier table showed it."""
        self._removing: deque[tuple[str, ReplaceTopics]] = deque()
        """Deleted topics of which the queues are removed in the next rounds."""
        self._creations: deque[CreateTopicOnSend | CreateSystemTopic] = deque()
        """Topics to create in the next rounds."""
        self._creations_left = CREATED_PER_ROUND

    def on_start(self) -> None:
        loaded = self.load(parse_topics)
        known, now_ms = self._topics.configs, self.system.clock.now_ms()
        table, found = restored_topics(
            self.system.disk, self._path, loaded, known, self._queued, now_ms
        )
        if found:
            log.warning("topics found by their queues", topics=found)
        self._topics = Topics(self._config, table)
        if loaded.left_out:  # slaves and name servers may have another table of this version
            self._topics.version = self._topics.version.next(self.system.clock.now_ms())
        self._taken = self._topics.table()
        self._publish(self._taken)
        if found or loaded.is_to_be_saved:
            self.changed(self._completed)
            self.save_changes()
        else:
            self._completed("")

    def _completed(self, refusal: str) -> None:
        """Tell CleanFiles that the file has all topics of the log."""
        if not refusal and not self._config.is_slave:
            self._clean_files.tell(TablesComplete())

    # --- messages of other actors

    @handles(CreateTopicOnSend)
    def on_create_on_send(self, message: CreateTopicOnSend) -> None:
        """Create the topic and answer with TopicReady."""
        self._create_soon(message)

    @handles(CreateSystemTopic)
    def on_create_system_topic(self, message: CreateSystemTopic) -> None:
        self._create_soon(message)

    @handles(_CreateOn)
    def on_create_on(self, _: _CreateOn) -> None:
        """Create the next topics."""
        self._creations_left = CREATED_PER_ROUND
        while self._creations and self._creations_left:
            self._create_next()

    def _create_soon(self, message: CreateTopicOnSend | CreateSystemTopic) -> None:
        """Create a topic now, or behind earlier ones in a next round."""
        self._creations.append(message)
        if self._creations_left:
            self._create_next()

    def _create_next(self) -> None:
        if self._creations_left == CREATED_PER_ROUND:
            self.system.loop.tell_in_next_round(self.address, _CreateOn())
        self._creations_left -= 1
        message = self._creations.popleft()
        if isinstance(message, CreateTopicOnSend):
            self._create_on_send(message)
        else:
            self._create_system_topic(message)

    def _create_on_send(self, message: CreateTopicOnSend) -> None:
        config = self._topics.configs.get(message.topic)
        if config is not None:
            self.when_saved(lambda: message.reply_to.tell(TopicReady(message.topic, config)))
            return
        made = self._topics.made_from_default(
            message.topic, message.default_topic, message.queue_nums, unit_mode=message.unit_mode
        )
        if made is None:
            if self._topics.is_full(message.topic):
                self.log_dropped("topic not created: maxAutoTopics", topic=message.topic)
            message.reply_to.tell(TopicReady(message.topic, None))
            return
        self._create(made, message.reply_to, producer=message.producer)

    def _create_system_topic(self, message: CreateSystemTopic) -> None:
        config = self._topics.configs.get(message.topic)
        if config is None and (message.topic in OF_GROUPS or not is_legal_name(message.topic)):
            self.log_dropped("topic not created: no legal name", topic=message.topic)
            message.on_undelivered("no legal name")
        elif config is None:
            # 4.9.7 creates a topic of -1 queues for a group with -1 retry queues
            flag, queues = message.topic_sys_flag, max(0, message.queue_nums)
            made = TopicConfig(message.topic, queues, queues, READ_WRITE, topic_sys_flag=flag)
            self._create(made, message.reply_to)
        elif message.reply_to is not None:
            reply_to = message.reply_to
            self.when_saved(lambda: reply_to.tell(TopicReady(message.topic, config)))

    @handles(WhenRegistered)
    def on_when_registered(self, message: WhenRegistered) -> None:
        """Pass the message on to Registration once earlier changes are on disk."""
        to = self._registration
        self.when_saved(lambda: to.tell(message) if to.is_up else message.pass_on())

    @handles(SetOrderTopics)
    def on_set_order_topics(self, message: SetOrderTopics) -> None:
        if self._topics.set_order(message.topics, self.system.clock.now_ms()):
            names = shown_names(sorted(message.topics))
            log.info("ordered topics changed", count=len(message.topics), topics=names)
            self.changed()

    @handles(ReplaceTopics)
    def on_take_topics(self, message: ReplaceTopics) -> None:
        """Replace all topics with the master's, if their version differs.

        Deleted topics lose their queues. A table with a shorter history comes from a master
        that lost its file. Such a table, or that of another master, has deleted nothing.
        """
        table, taken = message.table, self._taken
        if self._topics.version == table.data_version:
            self._remove_gone(message)
            return
        is_later = table.data_version.counter > taken.data_version.counter
        if is_later and message.continues:
            gone = taken.topic_configs.keys() - table.topic_configs.keys()
            gone = {each for each in gone if not self._topics.is_system(each)}
            self._gone.update(dict.fromkeys(gone, False))
            told = TopicsGone(frozenset(gone), frozenset(table.topic_configs))
            self._consumer_offsets.tell(told)
        self._taken = table
        self._topics.replace(table)
        log.info("topics taken over from the master", topics=len(table.topic_configs))
        self.changed(lambda *_: self._remove_gone(message))

    def _remove_gone(self, message: ReplaceTopics) -> None:
        """Remove queues of deleted topics until no earlier record can arrive."""
        if not self._removing:
            self._removing.extend((topic, message) for topic in self._gone)
            self.on_remove_on(_RemoveOn())

    @handles(_RemoveOn)
    def on_remove_on(self, _: _RemoveOn) -> None:
        """Remove the queues of the next deleted topics."""
        for _turn in range(min(REMOVED_PER_ROUND, len(self._removing))):
            topic, message = self._removing.popleft()
            is_back = topic in self._topics.configs
            if not is_back:
                self._clean_files.tell(RemoveTopic(topic, None, message.log_end))
            if is_back or (self._gone[topic] and message.has_all):
                del self._gone[topic]
            else:
                self._gone[topic] = True
        if self._removing:
            self.system.loop.tell_in_next_round(self.address, _RemoveOn())

    def can_stop(self) -> bool:
        return not self._removing and not self._creations and super().can_stop()

    def on_failure(self, *reason: object) -> None:
        while self._creations:
            self._creations.popleft().on_undelivered(self.remark())
        super().on_failure(*reason)

    @handles(PermissionChanged)
    def on_permission_changed(self, _: PermissionChanged) -> None:
        """Register all topics again, with a new version of the table."""
        self._topics.version = self._topics.version.next(self.system.clock.now_ms())
        self.changed(lambda *_: self._registration.tell(RegisterAll()))

    # --- requests of administrators

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def update_and_create(self, request: Request) -> RemotingCommand | None:
        """Create or change a topic; `order` and `defaultTopic` are ignored, as in 4.9.7."""
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        fields = {"topic": "", "defaultTopic": "", **(request.command.fields or {})}
        header = CreateTopicHeader.decode(fields)
        self._check_new(header.topic)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
        )
        if fault := asked_topic_fault(config):
            raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)
        log.info("topic updated", topic=header.topic, peer=request.peer.remote)
        self.begin_change()
        self._topics.put(config, self.system.clock.now_ms())
        version = self._topics.version

        def answer(refusal: str) -> None:
            """Answer when the name servers know the topic, as in 4.9.7, for the route."""
            self._registration.tell(RegisterTopic(config, version))
            told = WhenRegistered(NameServersTold(request, refusal), self.address)
            if self._registration.is_up:
                self._registration.tell(told)
            else:
                told.pass_on()

        self.changed(answer)
        return None

    @handles(NameServersTold)
    def on_name_servers_told(self, message: NameServersTold) -> None:
        self.answer_saved(message.request, message.refusal, remark=NO_RESPONSE_CODE)

    def _check_new(self, topic: str) -> None:
        check_topic_name(topic)
        if self._topics.is_system(topic):
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{topic}] is conflict with system topic.",
            )

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete(self, request: Request) -> RemotingCommand | None:
        """Delete a topic and its queues; name servers return its route until told otherwise."""
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        topic = TopicHeader.decode({"topic": "", **(request.command.fields or {})}).topic
        self._check_new(topic)
        log.info("topic deleted", topic=topic, peer=request.peer.remote)

        def remove(refusal: str) -> None:
            """Remove the queues now that their offsets are deleted."""
            if refusal:
                self.answer_saved(request, refusal)
            else:
                self._clean_files.tell(RemoveTopic(topic, request))

        def forget(refusal: str) -> None:
            told = ForgetTopic(topic, remove)
            told.on_undelivered(refusal) if refusal else self._consumer_offsets.tell(told)

        self.begin_change()
        if self._topics.delete(topic, self.system.clock.now_ms()):
            self.changed(forget)
        else:
            forget("")
        return None

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, request: Request) -> RemotingCommand:
        """Answer with the topics that must not be changed."""
        topics = TopicList(sorted(self._topics.system_topics))
        return request.command.answer(body=topics.encode())

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, request: Request) -> RemotingCommand | None:
        """Answer with the whole table; TableEncoder sends a large one."""
        table = self._topics.table()
        if len(table.topic_configs) > ENCODED_HERE_MAX:
            answer = EncodeAnswer(request, table, {})
            encode_later(self._encoder, answer, len(table.topic_configs))
            return None
        return request.command.answer(fields={}, body=table.encode())

    # --- changes

    def _create(self, config: TopicConfig, reply_to: ActorAddress | None, **by: str) -> None:
        if self.system.rarely.may_tell("many topics created", topic=config.topic_name):
            log.info("topic created", topic=config.topic_name, **by)
        self._topics.put(config, self.system.clock.now_ms())

        def announce(_: str) -> None:
            self._registration.tell(RegisterAll())
            if reply_to is not None:
                reply_to.tell(TopicReady(config.topic_name, config))

        self.changed(announce)

    def write(self, thens: Sequence[Then]) -> None:
        """Save the table, publish it once it is on disk, then call `thens`."""
        table = self._topics.table()
        self.save(lambda: format_topics(table), lambda _: self._publish(table), *thens)

    def _publish(self, table: TopicConfigTable) -> None:
        self._published_table.value = table
        self._published.value = table.topic_configs
