"""The table of consumer groups and their settings.

Owns: the groups and subscriptionGroup.json.
Receives: Request (connections); CreateGroup (any actor with a GroupFinder); TakeGroups (SlaveSync).
Sends: WriteFile (ConfigWriter); ForgetOffsets and, on a slave, GroupsGone (ConsumerOffsets);
EncodeAnswer (TableEncoder).

Source: broker/subscription/SubscriptionGroupManager.java.
"""

from collections.abc import Collection, Mapping, Sequence

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.network.request import serves, short_body
from actors.tables.messages import (
    CreateGroup,
    EncodeAnswer,
    ForgetOffsets,
    GroupsGone,
    TakeGroups,
    encode_later,
)
from actors.tables.names import check_group_name
from actors.tables.persisted import BatchedTable, Then
from actors.tables.topics import SLAVE_REFUSES
from protocol.bodies_tables import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.admin import DeleteSubscriptionGroupHeader
from protocol.table_rules import asked_group_fault
from protocol.topic_names import GROUP_CHARS_MAX, is_legal_name
from storage.tables.groups import always_present, format_groups, parse_groups
from storage.tables.store_traces import restored_groups

log = get_logger(__name__)

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
GroupConfigs = Mapping[str, SubscriptionGroupConfig]


class GroupFinder:
    """Finds the settings of a group, and has a missing group created if that is allowed.

    The settings of a new group are known in advance, so no caller has to wait.
    """

    def __init__(
        self, groups: SnapshotRef[GroupConfigs], table: ActorAddress, config: BrokerConfig
    ) -> None:
        self._groups = groups
        self._table = table
        self._config = config

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's settings; None if it is missing and must not be created."""
        found = self._groups.value.get(group)
        may_be_made = self._config.auto_create_group_enable or group.startswith(SYSTEM_GROUP_PREFIX)
        if found is None and may_be_made:
            self._table.tell(CreateGroup(group))
            return None if self.is_full else SubscriptionGroupConfig(group)
        return found

    def check(self, group: str) -> None:
        """Raise RemoteError for an invalid new name; 4.9.7 may have created any name."""
        if group not in self._groups.value:
            check_group_name(group)

    @property
    def is_full(self) -> bool:
        """Whether maxAutoGroups is reached: clients create no more groups."""
        return 0 < self._config.auto_groups_max <= len(self._groups.value)


class GroupTable(BatchedTable):
    """Group table. Runs on the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        path: str,
        *,
        groups: SnapshotRef[GroupConfigs],
        config_writer: ActorAddress,
        consumer_offsets: ActorAddress,
        encoder: ActorAddress,
        retried: Collection[str] = (),
    ) -> None:
        """Take `retried`: groups that must exist, as their retry topics have messages."""
        super().__init__(path, config_writer)
        self._config = config
        self._published = groups
        self._consumer_offsets, self._encoder = consumer_offsets, encoder
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._version = DataVersion()
        self._retried = retried
        self._taken = SubscriptionGroupTable()
        """On a slave: the newest table of its master."""

    def on_start(self) -> None:
        self._groups = {config.group_name: config for config in always_present()}
        loaded = self.load(parse_groups)
        now_ms = self.system.clock.now_ms()
        table, found = restored_groups(self.system.disk, self._path, loaded, self._retried, now_ms)
        if found:
            log.warning("groups found by their topics and offsets", groups=found)
        self._groups.update(table.subscription_group_table)
        self._version = table.data_version
        if loaded.left_out:  # a slave may have another table of this version
            self._version = self._version.next(self.system.clock.now_ms())
        self._taken = SubscriptionGroupTable(dict(self._groups), self._version)
        self._published.value = dict(self._groups)
        if found or loaded.is_to_be_saved:
            self.changed()
            self.save_changes()

    @handles(CreateGroup)
    def on_create(self, message: CreateGroup) -> None:
        """Create a group that a client named."""
        if not is_legal_name(message.group, GROUP_CHARS_MAX):
            self.log_dropped("group not created: no legal name", group=message.group)
        elif message.group in self._groups:
            return
        elif 0 < self._config.auto_groups_max <= len(self._groups):
            most = self._config.auto_groups_max
            self.log_dropped("group not created: maxAutoGroups", group=message.group, most=most)
        else:
            if self.system.rarely.may_tell("many groups created", group=message.group):
                log.info("group created", group=message.group)
            self._put(SubscriptionGroupConfig(message.group))

    @handles(TakeGroups)
    def on_take_groups(self, message: TakeGroups) -> None:
        """Replace all groups with the master's, if their version differs.

        ConsumerOffsets learns which were deleted. A table with a shorter history comes from
        a master that lost its file. Such a table, or that of another master, has deleted
        nothing.
        """
        table, taken = message.table, self._taken
        if self._version != table.data_version:
            groups = frozenset(table.subscription_group_table)
            gone: frozenset[str] = frozenset()
            if message.continues and table.data_version.counter > taken.data_version.counter:
                gone = frozenset(taken.subscription_group_table) - groups
            self._consumer_offsets.tell(GroupsGone(gone, groups))
            self._taken = table
            self._groups = dict(table.subscription_group_table)
            self._version = table.data_version
            log.info("groups taken over from the master", groups=len(self._groups))
            self.changed()

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update_and_create(self, request: Request) -> RemotingCommand | None:
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        config = SubscriptionGroupConfig.decode(short_body(request.command))
        if not config.group_name:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR, "java.lang.NullPointerException: groupName is null"
            )
        if fault := asked_group_fault(config):
            raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)
        log.info("group updated", group=config.group_name, peer=request.peer.remote)
        self.begin_change()
        self._put(config, lambda refusal: self.answer_saved(request, refusal))
        return None

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, request: Request) -> RemotingCommand | None:
        if self._config.is_slave:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, SLAVE_REFUSES)
        header = DeleteSubscriptionGroupHeader.decode(request.command.fields)
        log.info("group deleted", group=header.group_name, peer=request.peer.remote)
        self.begin_change()
        if header.remove_offset:
            self._consumer_offsets.tell(ForgetOffsets(header.group_name))
        if self._groups.pop(header.group_name, None) is None:
            return request.command.answer()
        self._changed(lambda refusal: self.answer_saved(request, refusal))
        return None

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def all_groups(self, request: Request) -> RemotingCommand | None:
        """Answer with the whole table; TableEncoder sends a large one."""
        table = SubscriptionGroupTable(self._groups, self._version)
        if len(self._groups) > ENCODED_HERE_MAX:
            table = SubscriptionGroupTable(self._groups.copy(), self._version)
            encode_later(self._encoder, EncodeAnswer(request, table), len(self._groups))
            return None
        return request.command.answer(body=table.encode())

    def _put(self, config: SubscriptionGroupConfig, *thens: Then) -> None:
        self._groups[config.group_name] = config
        self._changed(*thens)

    def _changed(self, *thens: Then) -> None:
        self._version = self._version.next(self.system.clock.now_ms())
        self.changed(*thens)

    def write(self, thens: Sequence[Then]) -> None:
        """Publish the table at once, so that the next pull finds new groups, and save it."""
        table = SubscriptionGroupTable(dict(self._groups), self._version)
        self._published.value = table.subscription_group_table
        self.save(lambda: format_groups(table), *thens)
