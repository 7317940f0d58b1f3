"""The table of request modes: how groups request the messages of topics.

Owns: the modes and messageRequestMode.json, which exists once a mode has been set.
Receives: Request (connections); TakeRequestModes (SlaveSync).
Sends: WriteFile (ConfigWriter); EncodeAnswer (TableEncoder).

A mode outlives its topic and its group, as in 5.x.

Source: broker/loadbalance/MessageRequestModeManager.java, QueryAssignmentProcessor
.setMessageRequestMode, AdminBrokerProcessor.getAllMessageRequestMode (tag rocketmq-all-5.3.3).
"""

from collections.abc import Mapping, Sequence

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.network.request import serves, short_body
from actors.tables.groups import GroupFinder
from actors.tables.messages import EncodeAnswer, TakeRequestModes, encode_later
from actors.tables.persisted import BatchedTable, Then
from actors.tables.topics import SLAVE_REFUSES
from protocol.bodies_assignment import RequestMode, RequestModeTable
from protocol.bodies_tables import TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from protocol.table_rules import request_mode_fault
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.tables.request_modes import format_request_modes, parse_request_modes

log = get_logger(__name__)

Modes = Mapping[str, Mapping[str, RequestMode]]
"""Modes by topic and group."""
MODES_MAX = 50_000
"""Maximum entries: 8 MB of file, whose text takes 0.3 s on a thread."""


class RequestModes(BatchedTable):
    """Table of request modes. Runs on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        path: str,
        *,
        modes: SnapshotRef[Modes],
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        config_writer: ActorAddress,
        encoder: ActorAddress,
    ) -> None:
        """Publish `modes`; read `topics` and `groups`."""
        super().__init__(path, config_writer)
        self._config, self._encoder = config, encoder
        self._published = modes
        self._topics, self._groups = topics, groups
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def on_start(self) -> None:
        loaded = self.load(parse_request_modes)
        self._modes = (loaded.value or RequestModeTable()).modes
        self._publish()
        if loaded.is_to_be_saved:
            self.changed()
            self.save_changes()

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, request: Request) -> None:
        """Set the mode of a topic and group, both of which must exist."""
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        mode = RequestMode.decode(short_body(request.command))
        topic, group = self._checked(mode)
        self.begin_change()
        self._modes.setdefault(topic, {})[group] = mode
        log.info("request mode set", topic=topic, group=group, mode=mode.mode)
        self.changed(lambda refusal: self.answer_saved(request, refusal))

    def _checked(self, mode: RequestMode) -> tuple[str, str]:
        """Return topic and group of a mode. Raises RemoteError, in the words of 5.x."""
        topic, group = mode.topic, mode.consumer_group
        if topic is None or group is None:
            name = "topic" if topic is None else "consumerGroup"
            remark = f"java.lang.NullPointerException: {name} is null"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        if topic.startswith(RETRY_TOPIC_PREFIX):
            remark = "retry topic is not allowed to set mode"
            raise RemoteError(ResponseCode.NO_PERMISSION, remark)
        if topic not in self._topics.value:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        self._groups.check(group)
        if self._groups.find(group) is None:
            remark = "subscription group does not exist"
            raise RemoteError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if fault := request_mode_fault(mode):
            raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)
        known = self._modes.get(topic, {})
        if group not in known and sum(map(len, self._modes.values())) >= MODES_MAX:
            remark = f"there are {MODES_MAX} request modes already"
            raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "request mode limit reached")
        return topic, group

    @serves(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def all_modes(self, request: Request) -> RemotingCommand | None:
        """Answer with the whole table; TableEncoder sends a large one."""
        count = sum(map(len, self._modes.values()))
        if count <= ENCODED_HERE_MAX:
            return request.command.answer(body=RequestModeTable(self._modes).encode())
        encode_later(self._encoder, EncodeAnswer(request, self._publish()), count)
        return None

    @handles(TakeRequestModes)
    def on_take(self, message: TakeRequestModes) -> None:
        """Replace a slave's modes with those of its master."""
        if message.table.modes != self._modes:
            self._modes = message.table.modes
            log.info("request modes taken over from the master", topics=len(self._modes))
            self.changed()

    def write(self, thens: Sequence[Then]) -> None:
        """Publish the table at once and save it."""
        table = self._publish()
        self.save(lambda: format_request_modes(table), *thens)

    def _publish(self) -> RequestModeTable:
        table = RequestModeTable({topic: dict(each) for topic, each in self._modes.items()})
        self._published.value = table.modes
        return table
