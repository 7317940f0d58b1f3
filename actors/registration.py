"""Keeps this broker registered at every name server.

Owns: one connection to each name server.
Told by: whoever opened the ports (`Listening`), topics (`RegisterTopic`, `RegisterAll`), its tick.
Tells: topics (`SetOrderTopics`); on a slave HaSlave (`MasterAt`) and SlaveSync (`MasterIs`).

Registers at the start, after 10 s, then every registerNameServerPeriod; at the stop it says
goodbye.  A name server that is down is tried again each time, behind those that are up, and costs
one log line when it goes and one when it is back.

Source: BrokerController.registerBrokerAll, BrokerOuterAPI.java.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from structlog import get_logger

from actors.actor import Actor, BatchEnd, Where, handles
from actors.address import Address
from actors.config import PERM_READ, PERM_WRITE, BrokerConfig
from actors.master_news import MasterAt, MasterIs
from actors.namesrv_client import NamesrvClient, NamesrvUnreachable
from actors.published import Published
from protocol.bodies import DataVersion, KVTable, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.checksum import body_crc
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.namesrv import (
    BrokerIdentityHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)

log = get_logger(__name__)

SECOND_AFTER_MS = 10_000
GOODBYE_TIMEOUT_S = 3.0
READ_WRITE = PERM_READ | PERM_WRITE


class Client(Protocol):
    """One name server, as the registration needs it."""

    address: str

    def call(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand: ...

    def tell(self, request: RemotingCommand, timeout_s: float) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listening:
    """The broker can be reached at these ports now."""

    port: int
    ha_port: int


@dataclass(frozen=True, slots=True)
class RegisterTopic:
    """An administrator has changed one topic; `version` is that of the table with it."""

    config: TopicConfig
    version: DataVersion


@dataclass(frozen=True, slots=True)
class RegisterAll:
    """Topics have come: tell the name servers soon, without waiting for their answers."""


@dataclass(frozen=True, slots=True)
class SetOrderTopics:
    """Exactly these topics are ordered, says the name server."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Tick:
    """Time to register."""


class Registration(Actor):
    """Runs on a thread: its sockets block, with a timeout."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        config: BrokerConfig,
        *,
        table: Published[TopicConfigTable],
        addresses: Mapping[str, Address],
        connect: Callable[[str], Client] = NamesrvClient,
    ) -> None:
        super().__init__()
        self._config = config
        self._table = table
        self._to = addresses
        self._clients = [connect(address) for address in config.namesrv_addresses]
        self._up: dict[str, bool] = {}
        self._timeout_s = config.register_timeout_ms / 1000
        self._identity: BrokerIdentityHeader | None = None
        self._ha_address = ""
        self._all_wanted = False

    @handles(Listening)
    def on_listening(self, message: Listening) -> None:
        """The first registration, and the rhythm of the others."""
        config = self._config
        first = self._identity is None
        self._identity = BrokerIdentityHeader(
            config.broker_name,
            f"{config.broker_ip1}:{message.port}",
            config.broker_cluster_name,
            config.broker_id,
        )
        self._ha_address = f"{config.broker_ip2}:{message.ha_port}"
        self._register(force=True)
        if first:
            self.after(SECOND_AFTER_MS, _Tick())

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Once more; with forceRegister=false only if a name server knows something else."""
        self._register(force=self._config.force_register)
        self.after(self._config.register_period_ms, _Tick())

    @handles(RegisterTopic)
    def on_register_topic(self, message: RegisterTopic) -> None:
        """One topic only, and its order in the answer."""
        table = TopicConfigTable({message.config.topic_name: message.config}, message.version)
        self._send(table, oneway=False)

    @handles(RegisterAll)
    def on_register_all(self, _: RegisterAll) -> None:
        """Several of these in a batch are one registration."""
        self._all_wanted = True

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Registers once for all topics that came."""
        if self._all_wanted:
            self._all_wanted = False
            self._send(self._table.value, oneway=True)

    def on_stop(self) -> None:
        if self._identity is not None:
            fields = self._identity.encode()
            for client in self._clients:
                if self._up.get(client.address):
                    request = RemotingCommand(RequestCode.UNREGISTER_BROKER, fields)
                    self._call(client, request, GOODBYE_TIMEOUT_S)
        for client in self._clients:
            client.close()

    # --- registering

    def _register(self, *, force: bool) -> None:
        if force or self._is_needed():
            self._send(self._table.value, oneway=False)

    def _is_needed(self) -> bool:
        """Asks every name server, which counts as a sign of life where nothing has changed."""
        assert self._identity is not None
        version = self._table.value.data_version
        answers = []
        for client in self._in_order():
            request = RemotingCommand(
                RequestCode.QUERY_DATA_VERSION, self._identity.encode(), version.encode()
            )
            answer = self._call(client, request, self._timeout_s)
            answers.append(answer is None or _differs(answer, version))
        return any(answers)

    def _send(self, table: TopicConfigTable, *, oneway: bool) -> None:
        """To every name server; the first answer says which topics are ordered."""
        if self._identity is None:
            return  # nobody could reach us yet; `Listening` brings the whole table
        fields, body = self._request_of(self._with_permission(table))
        answers = []
        for client in self._in_order():
            request = RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)
            if oneway:
                self._tell(client, request)
            else:
                answers.append(self._call(client, request, self._timeout_s))
        first = next((answer for answer in answers if answer is not None), None)
        if first is None:
            return
        if first.body:
            self._take_order(first)
        if self._config.is_slave:
            self._take_master(first)

    def _take_master(self, answer: RemotingCommand) -> None:
        """A slave learns from the first answer where its master is, or that there is none."""
        try:
            header = RegisterBrokerResponseHeader.decode(answer.fields)
        except RemoteError as error:
            log.warning("master not understood", reason=error.remark)
            return
        if header.ha_server_address:
            self._to["ha_slave"].tell(MasterAt(header.ha_server_address))
        self._to["slave_sync"].tell(MasterIs(header.master_address or None))

    def _take_order(self, answer: RemotingCommand) -> None:
        try:
            ordered = KVTable.decode(bytes(answer.body or b"")).table
        except RemoteError as error:
            log.warning("ordered topics not understood", reason=error.remark)
            return
        self._to["topics"].tell(SetOrderTopics(frozenset(ordered)))

    def _with_permission(self, table: TopicConfigTable) -> TopicConfigTable:
        """A broker that may not be read or written says so with each of its topics."""
        permission = self._config.broker_permission
        if permission & READ_WRITE == READ_WRITE:
            return table
        configs = {
            name: replace(config, perm=permission) for name, config in table.topic_configs.items()
        }
        return TopicConfigTable(configs, table.data_version)

    def _request_of(self, table: TopicConfigTable) -> tuple[dict[str, str], bytes]:
        assert self._identity is not None
        compressed = self._config.compressed_register
        body = RegisterBrokerBody(table).encode(compressed=compressed)
        identity = self._identity
        header = RegisterBrokerHeader(
            identity.broker_name,
            identity.broker_address,
            identity.cluster_name,
            self._ha_address,
            identity.broker_id,
            compressed,
            body_crc(body),
        )
        return header.encode(), body

    # --- name servers

    def _in_order(self) -> list[Client]:
        """Those that were up last time come first."""
        return sorted(self._clients, key=lambda client: not self._up.get(client.address, True))

    def _call(
        self, client: Client, request: RemotingCommand, timeout_s: float
    ) -> RemotingCommand | None:
        """The answer, when it is a success; what went wrong is logged once."""
        try:
            answer = client.call(request, timeout_s)
        except NamesrvUnreachable as error:
            self._note(client.address, str(error))
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._note(client.address, f"answer {answer.code}: {answer.remark}")
            return None
        self._note(client.address, None)
        return answer

    def _tell(self, client: Client, request: RemotingCommand) -> None:
        try:
            client.tell(request, self._timeout_s)
        except NamesrvUnreachable as error:
            self._note(client.address, str(error))

    def _note(self, address: str, failure: str | None) -> None:
        """One line per change of state, not per try."""
        was_up = self._up.get(address)
        self._up[address] = failure is None
        if failure is None and not was_up:
            log.info("registered", namesrv=address)
        elif failure is not None and was_up is not False:
            log.warning("not registered", namesrv=address, reason=failure)


def _differs(answer: RemotingCommand, version: DataVersion) -> bool:
    """Whether the name server wants to be told again; it does when its answer is no answer."""
    try:
        if QueryDataVersionResponseHeader.decode(answer.fields).changed:
            return True
        return bool(answer.body) and DataVersion.decode(answer.body) != version
    except RemoteError:
        return True
