"""The topics of a broker.

Owns: the table of topics and topics.json.
Told by: connections (`Request`), PutMessage (`CreateTopicOnSend`, `CreateSystemTopic`), Clients
(`CreateSystemTopic`, `WhenRegistered`), ReplyMessage (`CreateTopicOnSend`), Registration
(`SetOrderTopics`), Settings (`PermissionChanged`), SlaveSync (`ReplaceTopics`).
Tells: config_writer; Registration (`RegisterTopic`, `RegisterAll`, `WhenRegistered`); CleanFiles
(`RemoveTopic`, `TablesComplete`); ConsumerOffsets (`ForgetTopic`, `TopicsGone`); TableEncoder
(`EncodeAnswer`); whoever asked (`TopicReady`).

A change is published, answered and registered once it is on disk: nobody can lose a topic that he
was told of.

Source: broker/topic/TopicConfigManager.java, AdminBrokerProcessor.updateAndCreateTopic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from structlog import get_logger

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.messages import Message
from actors.engine.rate_limited_log import shown_names
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.request import Request, serves
from actors.tables.messages import ForgetTopic, TopicsGone
from actors.tables.names import check_topic_name
from actors.tables.persisted import BatchedTable, Then
from actors.tables.registering import (
    NameServersTold,
    RegisterAll,
    RegisterTopic,
    SetOrderTopics,
    WhenRegistered,
)
from actors.tables.table_encoder import EncodeAnswer
from actors.tables.topic_set import OF_GROUPS, Topics
from protocol.bodies import TopicConfig, TopicConfigTable
from protocol.bodies_admin import TopicList
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.admin import CreateTopicHeader, TopicHeader
from protocol.table_rules import asked_topic_fault
from protocol.topic_names import is_legal_name
from storage.tables.store_traces import restored_topics
from storage.tables.topics import READ_WRITE, format_topics, parse_topics

log = get_logger(__name__)

NO_RESPONSE_CODE = "not set any response code"
"""4.9.7 leaves this remark in the answer of a created topic."""
SLAVE_REFUSES = (
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker."
)


@dataclass(frozen=True, slots=True)
class TopicReady:
    """The topic exists now; None: it does not, and may not be made."""

    topic: str
    config: TopicConfig | None


@dataclass(frozen=True, slots=True)
class CreateTopicOnSend(Message):
    """Somebody sends to a topic that is not there: make it if its default topic allows that."""

    topic: str
    default_topic: str
    queue_nums: int
    unit_mode: bool
    producer: str
    reply_to: ActorAddress

    def on_undelivered(self, _remark: str) -> None:
        """The table is gone: the sends that wait are refused."""
        self.reply_to.tell(TopicReady(self.topic, None))


@dataclass(frozen=True, slots=True)
class CreateSystemTopic(Message):
    """Make a topic for retries or dead letters, unless it is there."""

    topic: str
    queue_nums: int
    reply_to: ActorAddress | None = None
    topic_sys_flag: int = 0

    def on_undelivered(self, _remark: str) -> None:
        """The table is gone: the sends that wait are refused."""
        if self.reply_to is not None:
            self.reply_to.tell(TopicReady(self.topic, None))


@dataclass(frozen=True, slots=True)
class ReplaceTopics:
    """The master's table: a slave's own from now on."""

    table: TopicConfigTable
    log_end: int = 0
    """How much of the log this slave had before it asked: a topic that is not in the table has no
    live record below."""
    has_all: bool = False
    """Whether that is all that the master had when it told the table before."""
    continues: bool = True
    """Whether the table before was the same master's."""


@dataclass(frozen=True, slots=True)
class RemoveTopic(Message):
    """This topic is in no table any more: remove its queues and answer."""

    topic: str
    request: Request | None
    before: int | None = None
    """Only queues without a record behind this place of the log; None: all."""
    queue_ids: frozenset[int] | None = None
    """Only these, though the topic be in the table; None: all."""

    def on_undelivered(self, remark: str) -> None:
        """Answers with an error."""
        if self.request is not None:
            self.request.refuse(remark)


@dataclass(frozen=True, slots=True)
class TablesComplete:
    """Told to CleanFiles by a master: no table lacks what the log has, if this was a slave's."""


@dataclass(frozen=True, slots=True)
class PermissionChanged:
    """The broker as a whole may be read or written otherwise than before."""


class TopicTable(BatchedTable):
    """Lives on the loop."""

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
        """Publishes `topics` for those who look topics up, and `table` for those who pass it on.

        `queued`: topics that have to be there, with so many queues: the log has messages of them.
        """
        super().__init__(path, config_writer)
        self._config = config
        self._published, self._published_table = topics, table
        self._registration, self._clean_files = registration, clean_files
        self._consumer_offsets, self._encoder = consumer_offsets, encoder
        self._topics = Topics(config)
        self._queued = dict(queued or {})
        self._taken = TopicConfigTable()
        """Of a slave: the newest table of its master's."""
        self._gone: dict[str, bool] = {}
        """Of a slave: topics that its master has deleted, and whether that is known for a while."""

    def on_start(self) -> None:
        loaded = self.load(parse_topics)
        known, now_ms = self._topics.configs, self.system.clock.now_ms()
        table, found = restored_topics(
            self.system.disk, self._path, loaded, known, self._queued, now_ms
        )
        if found:
            log.warning("topics found by their queues", topics=found)
        self._topics = Topics(self._config, table)
        if loaded.left_out:  # slaves and name servers may know another table of this version
            self._topics.version = self._topics.version.next(self.system.clock.now_ms())
        self._taken = self._topics.table()
        self._publish(self._taken)
        if found or loaded.is_to_be_saved:
            self.changed(self._completed)
            self.save_changes()
        else:
            self._completed("")

    def _completed(self, refusal: str) -> None:
        """What is in the log is in the file, too."""
        if not refusal and not self._config.is_slave:
            self._clean_files.tell(TablesComplete())

    # --- told by other actors

    @handles(CreateTopicOnSend)
    def on_create_on_send(self, message: CreateTopicOnSend) -> None:
        """Makes the topic, or says that it may not be made."""
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
        log.info("topic created", topic=made.topic_name, producer=message.producer)
        self._create(made, message.reply_to)

    @handles(CreateSystemTopic)
    def on_create_system_topic(self, message: CreateSystemTopic) -> None:
        """Makes a topic for retries or dead letters."""
        config = self._topics.configs.get(message.topic)
        if config is None and (message.topic in OF_GROUPS or not is_legal_name(message.topic)):
            self.log_dropped("topic not created: no legal name", topic=message.topic)
            message.on_undelivered("no legal name")
        elif config is None:
            # 4.9.7 makes a topic of -1 queues for a group that has so many for retries
            flag, queues = message.topic_sys_flag, max(0, message.queue_nums)
            made = TopicConfig(message.topic, queues, queues, READ_WRITE, topic_sys_flag=flag)
            log.info("topic created", topic=message.topic)
            self._create(made, message.reply_to)
        elif message.reply_to is not None:
            reply_to = message.reply_to
            self.when_saved(lambda: reply_to.tell(TopicReady(message.topic, config)))

    @handles(WhenRegistered)
    def on_when_registered(self, message: WhenRegistered) -> None:
        """By then they are in the file, and the name servers come next, if there are any."""
        to = self._registration
        self.when_saved(lambda: to.tell(message) if to.is_up else message.pass_on())

    @handles(SetOrderTopics)
    def on_set_order_topics(self, message: SetOrderTopics) -> None:
        """Takes over which topics are ordered."""
        if self._topics.set_order(message.topics, self.system.clock.now_ms()):
            names = shown_names(sorted(message.topics))
            log.info("ordered topics changed", count=len(message.topics), topics=names)
            self.changed()

    @handles(ReplaceTopics)
    def on_take_topics(self, message: ReplaceTopics) -> None:
        """Takes over all of the master's topics when they are of another version.

        The queues of those that it has deleted go. A table with less history than the last one is
        that of a master that has lost its file; that, or another master, has deleted nothing.
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
        """Again and again until no record of before the deletion can come any more."""
        for topic, is_known in self._gone.copy().items():
            is_back = topic in self._topics.configs
            if not is_back:
                self._clean_files.tell(RemoveTopic(topic, None, message.log_end))
            if is_back or (is_known and message.has_all):
                del self._gone[topic]
            else:
                self._gone[topic] = True

    @handles(PermissionChanged)
    def on_permission_changed(self, _: PermissionChanged) -> None:
        """Every topic is registered anew, as another version of the table."""
        self._topics.version = self._topics.version.next(self.system.clock.now_ms())
        self.changed(lambda *_: self._registration.tell(RegisterAll()))

    # --- asked by administrators

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def update_and_create(self, request: Request) -> RemotingCommand | None:
        """Creates a topic or changes it; `order` and `defaultTopic` are ignored, as in 4.9.7."""
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
            """When the name servers know, as in 4.9.7: who was answered may ask for the route."""
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
        """Forgets a topic and its queues; name servers go on naming it until they are told."""
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        topic = TopicHeader.decode({"topic": "", **(request.command.fields or {})}).topic
        self._check_new(topic)
        log.info("topic deleted", topic=topic, peer=request.peer.remote)

        def remove(refusal: str) -> None:
            """Its offsets are gone: the numbers of its queues may begin again."""
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
        """The topics that nobody may change."""
        topics = TopicList(sorted(self._topics.system_topics))
        return request.command.answer(body=topics.encode())

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, request: Request) -> RemotingCommand | None:
        """The whole table; a large one is written by somebody who has the time."""
        table = self._topics.table()
        if len(table.topic_configs) > ENCODED_HERE_MAX:
            self._encoder.tell(EncodeAnswer(request, table, {}))
            return None
        return request.command.answer(fields={}, body=table.encode())

    # --- changes

    def _create(self, config: TopicConfig, reply_to: ActorAddress | None) -> None:
        self._topics.put(config, self.system.clock.now_ms())

        def announce(_: str) -> None:
            self._registration.tell(RegisterAll())
            if reply_to is not None:
                reply_to.tell(TopicReady(config.topic_name, config))

        self.changed(announce)

    def write(self, thens: Sequence[Then]) -> None:
        """Saves the table as it is now, then publishes that, then does the rest."""
        table = self._topics.table()
        self.save(lambda: format_topics(table), lambda _: self._publish(table), *thens)

    def _publish(self, table: TopicConfigTable) -> None:
        self._published_table.value = table
        self._published.value = table.topic_configs
