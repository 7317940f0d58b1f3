"""The topics of a broker.

Owns: the table of topics and topics.json.
Told by: connections (`Request`), PutMessage (`CreateTopicOnSend`, `CreateSystemTopic`), Clients
(`CreateSystemTopic`, `AnswerWhenMade`), ReplyMessage (`CreateTopicOnSend`), Registration
(`SetOrderTopics`).
Tells: config_writer; Registration (`RegisterTopic`, `RegisterAll`); whoever asked (`TopicReady`).

A change is published, answered and registered once it is on disk: nobody can lose a topic that he
was told of.

Source: broker/topic/TopicConfigManager.java, AdminBrokerProcessor.updateAndCreateTopic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from structlog import get_logger

from actors.actor import handles
from actors.address import Address
from actors.config import PERM_INHERIT, BrokerConfig
from actors.persisted import PersistedTable
from actors.published import Published
from actors.registration import RegisterAll, RegisterTopic, SetOrderTopics
from actors.request import Request, serves
from actors.send_rules import RefusedError, check_name
from protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.admin import CreateTopicHeader
from protocol.topic_names import (
    AUTO_CREATE_TOPIC,
    RETRY_TOPIC_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)
from storage.store_traces import StoreTraces
from storage.topics import (
    READ_WRITE,
    always_present,
    completed_topics,
    format_topics,
    parse_topics,
)

log = get_logger(__name__)

NO_RESPONSE_CODE = "not set any response code"
"""4.9.7 leaves this remark in the answer of a created topic."""

SLAVE_REFUSES = (
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker."
)
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2


@dataclass(frozen=True, slots=True)
class TopicReady:
    """The topic exists now; None: it does not, and may not be made."""

    topic: str
    config: TopicConfig | None


@dataclass(frozen=True, slots=True)
class CreateTopicOnSend:
    """Somebody sends to a topic that is not there: make it if its default topic allows that."""

    topic: str
    default_topic: str
    queue_nums: int
    unit_mode: bool
    producer: str
    reply_to: Address

    def refuse(self, _remark: str) -> None:
        """The table is gone: the sends that wait are refused."""
        self.reply_to.tell(TopicReady(self.topic, None))


@dataclass(frozen=True, slots=True)
class CreateSystemTopic:
    """Make a topic for retries or dead letters, unless it is there."""

    topic: str
    queue_nums: int
    reply_to: Address | None = None
    topic_sys_flag: int = 0

    def refuse(self, _remark: str) -> None:
        """The table is gone: the sends that wait are refused."""
        if self.reply_to is not None:
            self.reply_to.tell(TopicReady(self.topic, None))


@dataclass(frozen=True, slots=True)
class AnswerWhenMade:
    """Answer this request when the topics that were wanted before are there."""

    request: Request

    def refuse(self, remark: str) -> None:
        """Answers it with an error."""
        self.request.refuse(remark)


class Topics:
    """The table and its rules."""

    def __init__(self, config: BrokerConfig, loaded: TopicConfigTable | None = None) -> None:
        """`loaded` is the file's; it goes over the topics that every broker has."""
        self._config = config
        self.configs = {topic.topic_name: topic for topic in _always_present(config)}
        self._system_topics = SYSTEM_TOPICS | self.configs.keys()
        self.version = DataVersion()
        if loaded is not None:
            self.configs.update(loaded.topic_configs)
            self.version = loaded.data_version

    def table(self) -> TopicConfigTable:
        """A copy that does not change any more."""
        return TopicConfigTable(dict(self.configs), self.version)

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Creates or changes a topic."""
        self.configs[config.topic_name] = config
        self.version = self.version.next(now_ms)

    def made_from_default(
        self, topic: str, default_topic: str, queue_nums: int, *, unit_mode: bool
    ) -> TopicConfig | None:
        """What a send makes of a topic that is not there; None when it may not."""
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        sys_flag = (UNIT_SUB_FLAG if is_retry else UNIT_FLAG) if unit_mode else 0
        pattern = self.configs.get(default_topic)
        # TBW102 may still be in the file of a broker that had autoCreateTopicEnable once
        closed = default_topic == AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable
        if pattern is not None and pattern.perm & PERM_INHERIT and not closed:
            queues = max(0, min(queue_nums, pattern.write_queue_nums))
            perm = pattern.perm & ~PERM_INHERIT
            return TopicConfig(topic, queues, queues, perm, pattern.topic_filter_type, sys_flag)
        if is_retry:
            return TopicConfig(topic, 1, 1, READ_WRITE, topic_sys_flag=sys_flag)
        return None

    def set_order(self, ordered: frozenset[str], now_ms: int) -> bool:
        """Sets and clears `order`; whether that changed anything."""
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
        """Whether administrators may not touch it."""
        return topic in self._system_topics or topic.startswith(SYSTEM_TOPIC_PREFIX)


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


class TopicTable(PersistedTable):
    """Lives on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        path: str,
        *,
        topics: Published[Mapping[str, TopicConfig]],
        table: Published[TopicConfigTable],
        config_writer: Address,
        registration: Address,
    ) -> None:
        """Publishes `topics` for those who look topics up, and `table` for those who pass it on."""
        super().__init__(path, config_writer)
        self._config = config
        self._published, self._published_table = topics, table
        self._registration = registration
        self._topics = Topics(config)

    def on_start(self) -> None:
        loaded = self.load(parse_topics)
        table = loaded.value
        found: list[str] = []
        if table is None or not loaded.is_newest:
            known = self._topics.configs
            numbers = StoreTraces(self.system.disk, self._path).queue_numbers()
            table, found = completed_topics(table, numbers, known, self.system.clock.now_ms())
            if found:
                log.warning("topics found by their queues", topics=found)
        self._topics = Topics(self._config, table)
        self._publish(self._topics.table())
        if found or loaded.broken:
            self._changed()

    # --- told by other actors

    @handles(CreateTopicOnSend)
    def on_create_on_send(self, message: CreateTopicOnSend) -> None:
        """Makes the topic, or says that it may not be made."""
        config = self._topics.configs.get(message.topic)
        if config is not None:
            self._when_saved(lambda: message.reply_to.tell(TopicReady(message.topic, config)))
            return
        made = self._topics.made_from_default(
            message.topic, message.default_topic, message.queue_nums, unit_mode=message.unit_mode
        )
        if made is None:
            message.reply_to.tell(TopicReady(message.topic, None))
            return
        log.info("topic created", topic=made.topic_name, producer=message.producer)
        self._create(made, message.reply_to)

    @handles(CreateSystemTopic)
    def on_create_system_topic(self, message: CreateSystemTopic) -> None:
        """Makes a topic for retries or dead letters."""
        config = self._topics.configs.get(message.topic)
        if config is None:
            flag, queues = message.topic_sys_flag, message.queue_nums
            made = TopicConfig(message.topic, queues, queues, READ_WRITE, topic_sys_flag=flag)
            log.info("topic created", topic=message.topic)
            self._create(made, message.reply_to)
        elif message.reply_to is not None:
            reply_to = message.reply_to
            self._when_saved(lambda: reply_to.tell(TopicReady(message.topic, config)))

    @handles(AnswerWhenMade)
    def on_answer_when_made(self, message: AnswerWhenMade) -> None:
        """By now they are in the file, and on their way to the name servers."""
        self._when_saved(message.request.answer)

    @handles(SetOrderTopics)
    def on_set_order_topics(self, message: SetOrderTopics) -> None:
        """Takes over which topics are ordered."""
        if self._topics.set_order(message.topics, self.system.clock.now_ms()):
            log.info("ordered topics changed", topics=sorted(message.topics))
            self._changed()

    # --- asked by administrators

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def update_and_create(self, request: Request) -> RemotingCommand | None:
        """Creates a topic or changes it; `order` and `defaultTopic` are ignored, as in 4.9.7."""
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        header = CreateTopicHeader.decode(request.command.fields)
        self._check_new(header.topic)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
        )
        log.info("topic updated", topic=header.topic, peer=request.peer.remote)
        self._topics.put(config, self.system.clock.now_ms())

        def answer(table: TopicConfigTable, refusal: str) -> None:
            self._registration.tell(RegisterTopic(config, table.data_version))
            self.answer_saved(request, refusal, remark=NO_RESPONSE_CODE)

        self._changed(answer)
        return None

    def _check_new(self, topic: str) -> None:
        try:
            check_name(topic)
        except RefusedError as error:
            raise RemoteError(error.code, error.remark) from None
        if self._topics.is_system(topic):
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"The topic[{topic}] is conflict with system topic.",
            )

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    def all_topics(self, request: Request) -> RemotingCommand:
        """The whole table."""
        return request.command.answer(fields={}, body=self._topics.table().encode())

    # --- changes

    def _create(self, config: TopicConfig, reply_to: Address | None) -> None:
        self._topics.put(config, self.system.clock.now_ms())

        def announce(*_: object) -> None:
            self._registration.tell(RegisterAll())
            if reply_to is not None:
                reply_to.tell(TopicReady(config.topic_name, config))

        self._changed(announce)

    def _changed(self, then: Callable[[TopicConfigTable, str], None] | None = None) -> None:
        """Saves the table as it is now, then publishes that, then does `then`.

        That gets the table, and why the disk has refused it, if it has.
        """
        table = self._topics.table()

        def saved(refusal: str) -> None:
            self._publish(table)
            if then is not None:
                then(table, refusal)

        self.save(lambda: format_topics(table), saved)

    def _when_saved(self, then: Callable[[], None]) -> None:
        """At once, or when the changes that are on their way to the disk have arrived."""
        if self._unwritten:
            self._unwritten.append((self._serial, lambda _: then()))
        else:
            then()

    def _publish(self, table: TopicConfigTable) -> None:
        self._published_table.value = table
        self._published.value = table.topic_configs
