"""Keeps this broker registered at one name server, whatever the others do.

Owns: one connection to it; what it has accepted over that connection.
Told by: Registration (`Listening`, `RegisterTopic`, `RegisterAll`, `BarrierForRegistrations`), its
tick.
Tells: Registration (`Registered`, `Sent`).

Registers at the start, after 10 s, then every registerNameServerPeriod; at the stop it says
goodbye. A name server that is down is tried again every few seconds, and costs one log line when it
goes and one when it is back.

One topic is registered alone only over a connection over which the name server has taken all of
them, and only as the one change since. 4.9.7's name server takes the version of the first
registration that it gets for the whole table, and would otherwise miss the rest for good.

A table of more than WHOLE_TOPICS_MAX topics may not fit into a frame (16 MiB: 4.9.7 is cut off by
its name server then). It goes in parts, which any name server puts together, for a registration
never takes topics away: each part has a version of its own, the last one the table's. Only what
the name server lacks is sent: it is asked for its version first.

Source: BrokerController.registerBrokerAll, BrokerOuterAPI.java.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import ClassVar, Protocol

from structlog import get_logger

from actors.config import BrokerConfig
from actors.engine.actor import Actor, BatchEnd, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from actors.tables.messages import RegisterAll, RegisterTopic
from protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from protocol.checksum import body_crc
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.namesrv import (
    BrokerIdentityHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
)
from protocol.host import host_port
from remoting.sync_connection import RemotingFailed, SyncConnection

log = get_logger(__name__)

SECOND_AFTER_MS = 10_000
LOOK_MS = 5000
"""How soon a name server that is there again has our routes; 4.9.7: at the next period."""

GOODBYE_TIMEOUT_MS = 3000
READ_WRITE = PERM_READ | PERM_WRITE
WHOLE_TOPICS_MAX = 5_000
"""Up to here a table is sent as 4.9.7 does, whole each time: 2 MB at the most."""

PART_TOPICS = 2_000
ORDERED_BYTES_MAX = 4 << 20
"""Of an answer with ordered topics, some 50,000: while these are read, for 0.2 s, no other thread
gets on. Our name server has 1 MiB of characters."""


class BlockingConnection(Protocol):
    """The part of a SyncConnection that actors use; tests put a fake in its place."""

    address: str
    connection_count: int

    def is_connected(self) -> bool: ...

    def call(
        self,
        request: RemotingCommand,
        *,
        timeout_ms: int | None = None,
        repeats: bool = False,
        over: int | None = None,
    ) -> RemotingCommand: ...

    def send(self, request: RemotingCommand, *, timeout_ms: int | None = None) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Listening:
    """The broker can be reached at these ports now."""

    port: int
    ha_port: int


@dataclass(frozen=True, slots=True)
class BarrierForRegistrations:
    """Say `Sent` when everything that came before this is on its way to the name server."""

    serial: int


@dataclass(frozen=True, slots=True)
class Sent:
    """It is, or it cannot be."""

    serial: int


@dataclass(frozen=True, slots=True)
class Registered:
    """What a name server has answered to a registration; None: it has not, or refuses."""

    namesrv: str
    answer: RemotingCommand | None
    """Without its body."""
    ordered: frozenset[str] | None = None
    """Which of this broker's topics are ordered, says that; None: it says nothing of that."""


@dataclass(frozen=True, slots=True)
class _Tick:
    """Time to register."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Time to see whether the name server still knows us."""


class NamesrvLink(Actor):
    """Runs on a thread: its socket blocks, with a timeout."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        config: BrokerConfig,
        namesrv: str,
        *,
        table: SnapshotRef[TopicConfigTable],
        registration: ActorAddress,
        connect: Callable[[str], BlockingConnection] = SyncConnection,
    ) -> None:
        super().__init__()
        self._config = config
        self._table = table
        self._registration = registration
        self._client = connect(namesrv)
        self._is_up: bool | None = None
        self._identity: BrokerIdentityHeader | None = None
        self._ha_address = ""
        self._all_wanted = False
        self._asked: list[BarrierForRegistrations] = []
        self._accepted: TopicConfigTable | None = None
        """The last whole table that it has taken, over the connection with this number."""
        self._accepted_over = 0
        self._told = DataVersion()
        """That of the table with the last change that it was told of."""
        self._parts = count(1)

    @handles(Listening)
    def on_listening(self, message: Listening) -> None:
        """The first registration, and the rhythm of the others."""
        config = self._config
        first = self._identity is None
        self._identity = BrokerIdentityHeader(
            config.broker_name,
            host_port(config.broker_ip1, message.port),
            config.broker_cluster_name,
            config.broker_id,
        )
        self._ha_address = host_port(config.broker_ip2, message.ha_port)
        self._register(force=True)
        if first:
            self.after(SECOND_AFTER_MS, _Tick())
            self.every(LOOK_MS, _Look())

    @handles(_Tick)
    def on_tick(self, _: _Tick) -> None:
        """Once more; with forceRegister=false only if the name server knows something else."""
        self._register(force=self._config.force_register)
        self.after(self._config.register_period_ms, _Tick())

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """A name server forgets a broker when the connection closes, and may have been away."""
        if not self._is_connected():
            self._register(force=True)

    def _is_connected(self) -> bool:
        try:
            return self._client.is_connected()
        except RemotingFailed as error:
            where = self._client.address
            self.system.rarely.warn(
                "connection to name server closed", of=where, namesrv=where, reason=error.reason
            )
            return False

    @handles(RegisterTopic)
    def on_register_topic(self, message: RegisterTopic) -> None:
        """One topic only, and its order in the answer."""
        if self._identity is None:
            return  # nobody could reach us yet; `Listening` brings the whole table
        table = TopicConfigTable({message.config.topic_name: message.config}, message.version)
        is_next = message.version.counter == self._told.counter + 1
        if self._accepted is None or self._all_wanted or not is_next:
            self._register(force=True)
        elif self._client.connection_count != self._accepted_over or not self._is_connected():
            self._register(force=True)  # it may have restarted, and know nothing of us
        elif not self._send(table, over=self._accepted_over):
            self._accepted = None  # whether it has taken this topic is not known

    @handles(RegisterAll)
    def on_register_all(self, _: RegisterAll) -> None:
        """Several of these in a batch are one registration."""
        self._all_wanted = True

    @handles(BarrierForRegistrations)
    def on_say_when_sent(self, message: BarrierForRegistrations) -> None:
        """Topics that came in this batch are registered at its end."""
        self._asked.append(message)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Registers once for all topics that came."""
        if self._all_wanted and self._identity is not None:
            table = self._table.value
            if len(table.topic_configs) > WHOLE_TOPICS_MAX:
                self._register_large(table)
            else:
                self._send_oneway(self._registration_of(table))
                self._accepted = None  # no answer says that it has taken them
        self._all_wanted = False
        asked, self._asked = self._asked, []
        for each in asked:
            self._registration.tell(Sent(each.serial))

    def on_stop(self) -> None:
        if self._identity is not None and self._is_up:
            fields = self._identity.encode()
            request = RemotingCommand(RequestCode.UNREGISTER_BROKER, fields)
            # an answer would come too late: the connection closes next
            self._send_oneway(request, GOODBYE_TIMEOUT_MS)
        self._client.close()

    # --- registering

    def _register(self, *, force: bool) -> None:
        table = self._table.value
        if len(table.topic_configs) > WHOLE_TOPICS_MAX:
            self._register_large(table)
        elif force or not self._has_whole(table.data_version):
            self._take_note(table, is_taken=self._send(table))

    def _has_whole(self, version: DataVersion) -> bool:
        """Return whether it has all topics of this version; asking is a sign of life."""
        changed, known = self._known_version(version)
        return not changed and known == version

    def _known_version(self, version: DataVersion) -> tuple[bool, DataVersion | None]:
        """Return whether it wants a registration, and the version it has; None: of none."""
        assert self._identity is not None
        request = RemotingCommand(
            RequestCode.QUERY_DATA_VERSION, self._identity.encode(), version.encode()
        )
        answer = self._call(request)
        if answer is None:
            return True, None
        try:
            changed = QueryDataVersionResponseHeader.decode(answer.fields).changed
            if answer.body:
                return changed, DataVersion.decode(answer.body)
        except RemoteError:
            return True, None
        return changed, None if changed else version

    def _register_large(self, table: TopicConfigTable) -> None:
        """In parts, and only what the name server lacks; at last with the table's version.

        All parts go over one connection: behind another there may be a name server that has
        restarted and lacks the parts before.
        """
        changed, known = self._known_version(table.data_version)
        if not self._is_up:
            return
        over = self._client.connection_count
        lacking = self._lacking(table, known) if changed else {}
        now_ms = self.system.clock.now_ms()
        while len(lacking) > PART_TOPICS:
            part = dict(islice(lacking.items(), PART_TOPICS))
            lacking = dict(islice(lacking.items(), PART_TOPICS, None))
            # a version that no table has, nor any part before
            version = DataVersion(now_ms, -next(self._parts))
            if not self._send(TopicConfigTable(part, version), over=over):
                self._accepted = None
                return
        is_taken = self._send(TopicConfigTable(lacking, table.data_version), over=over)
        self._take_note(table, is_taken=is_taken)

    def _lacking(
        self, table: TopicConfigTable, known: DataVersion | None
    ) -> dict[str, TopicConfig]:
        """What it lacks; last the topic of the broker's own name, which makes the version whole."""
        if self._config.is_slave:  # it takes no slave's topics
            return {}
        own, configs, before = self._config.broker_name, table.topic_configs, self._accepted
        if self._accepted_over != self._client.connection_count:
            before = None
        has = before.topic_configs if before and before.data_version == known else {}
        lacking = {name: config for name, config in configs.items() if has.get(name) != config}
        lacking.pop(own, None)
        return lacking | {own: configs[own]} if own in configs else lacking

    def _take_note(self, table: TopicConfigTable, *, is_taken: bool) -> None:
        self._accepted = table if is_taken else None
        self._accepted_over = self._client.connection_count

    def _send(self, table: TopicConfigTable, *, over: int | None = None) -> bool:
        """Register these topics, only over connection `over` if given; return whether it took
        them."""
        answer = self._call(self._registration_of(table), over=over)
        ordered: frozenset[str] | None = None
        if answer is not None and answer.body:
            ordered = self._ordered(bytes(answer.body), table)
            answer.body = None
        self._registration.tell(Registered(self._client.address, answer, ordered))
        return answer is not None

    def _ordered(self, body: bytes, sent: TopicConfigTable) -> frozenset[str] | None:
        """Which of the broker's own topics are: a name server may know a million others."""
        try:
            if len(body) > ORDERED_BYTES_MAX:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, f"{len(body)} bytes of them")
            names = KVTable.decode(body).table.keys()
        except RemoteError as error:
            where = self._client.address
            self.system.rarely.warn(
                "ordered topics not understood", of=where, namesrv=where, reason=error.remark
            )
            return None
        own = self._table.value.topic_configs.keys()
        return frozenset(names & own) | frozenset(names & sent.topic_configs.keys())

    def _registration_of(self, table: TopicConfigTable) -> RemotingCommand:
        assert self._identity is not None
        self._told = table.data_version
        compressed = self._config.compressed_register
        body = RegisterBrokerBody(self._with_permission(table)).encode(compressed=compressed)
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
        return RemotingCommand(RequestCode.REGISTER_BROKER, header.encode(), body)

    def _with_permission(self, table: TopicConfigTable) -> TopicConfigTable:
        """A broker that may not be read or written says so with each of its topics."""
        permission = self._config.broker_permission
        if permission & READ_WRITE == READ_WRITE:
            return table
        configs = {
            name: replace(config, perm=permission) for name, config in table.topic_configs.items()
        }
        return TopicConfigTable(configs, table.data_version)

    # --- the name server

    def _call(self, request: RemotingCommand, *, over: int | None = None) -> RemotingCommand | None:
        """The answer, when it is a success; what went wrong is logged once."""
        timeout_ms = self._config.register_timeout_ms
        try:
            answer = self._client.call(request, timeout_ms=timeout_ms, repeats=True, over=over)
        except RemotingFailed as error:
            self._note(error.reason)
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._note(f"answer {answer.code}: {answer.remark}")
            return None
        self._note(None)
        return answer

    def _send_oneway(self, request: RemotingCommand, timeout_ms: int | None = None) -> None:
        try:
            timeout_ms = timeout_ms or self._config.register_timeout_ms
            self._client.send(request, timeout_ms=timeout_ms)
        except RemotingFailed as error:
            self._note(error.reason)

    def _note(self, failure: str | None) -> None:
        """One line per change of state, not per try."""
        was_up, self._is_up = self._is_up, failure is None
        if failure is None and not was_up:
            log.info("registered", namesrv=self._client.address)
        elif failure is not None and was_up is not False:
            log.warning("not registered", namesrv=self._client.address, reason=failure)
