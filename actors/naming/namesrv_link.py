"""Registration of this broker at one name server, independent of the others.

Owns: one connection to it, and the topics that it has accepted over that connection.
Receives: Listening, RegisterTopic, RegisterAll, BarrierForRegistrations and AskForRoute from
Registration; its tick.
Sends: Registered and Sent to Registration; RouteAnswered to Assignments.

Registers at the start, after 10 s, then every registerNameServerPeriod; unregisters at the stop. A
name server that is down is tried every few seconds. This costs one log line when it goes down and
one when it is back.

A single topic is registered alone in one case only. The name server has accepted all topics over
this connection, and this is the only change since. 4.9.7's name server would take the first
registration's version for the whole table. It would then miss the other topics for good.

A table of more than WHOLE_TOPICS_MAX topics may exceed a frame (16 MiB), which disconnects 4.9.7.
Here it is sent in parts. Any name server joins them, as a registration never removes topics. Each
part has a version of its own; the last part has the table's. Only missing topics are sent, after a
query of the name server's version.

Source: BrokerController.registerBrokerAll, BrokerOuterAPI.java.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import ClassVar, Protocol

from actors.config import BrokerConfig
from actors.engine.actor import Actor, BatchEnd, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.naming.messages import (
    AskForRoute,
    BarrierForRegistrations,
    Listening,
    Registered,
    RouteAnswered,
    Sent,
)
from actors.tables.messages import RegisterAll, RegisterTopic
from protocol.bodies import PERM_READ, PERM_WRITE, TopicRouteData
from protocol.bodies_tables import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
)
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import GetRouteInfoHeader
from protocol.headers.namesrv import (
    BrokerIdentityHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
)
from protocol.host import host_port
from protocol.message import body_crc
from remoting.sync_connection import RemotingFailed, SyncConnection

log = get_logger(__name__)

SECOND_AFTER_MS = 10_000
LOOK_MS = 5000
"""Longest time until a restarted name server has the routes; 4.9.7 waits for the next period."""

GOODBYE_TIMEOUT_MS = 3000
ROUTE_TIMEOUT_MS = 2000
ROUTE_QUEUES_MAX = 65_536
"""Maximum queues that a route is taken to have, as of a topic here."""
READ_WRITE = PERM_READ | PERM_WRITE
WHOLE_TOPICS_MAX = 5_000
"""Up to this size a table is sent whole each time, as in 4.9.7: at most 2 MB."""

PART_TOPICS = 2_000
ORDERED_BYTES_MAX = 4 << 20
"""Bytes of an answer with ordered topics, some 50,000.

To read them blocks all threads for 0.2 s. TroupeMQ's name server sends 1 MiB of characters at most.
"""


class BlockingConnection(Protocol):
    """The part of SyncConnection that actors use; tests replace it."""

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
class _Tick:
    """Register again now."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Check that the connection is open."""


class NamesrvLink(Actor):
    """Actor on a thread: its socket blocks, with a timeout."""

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
        """Last whole table that the name server accepted, over connection `_accepted_over`."""
        self._accepted_over = 0
        self._told = DataVersion()
        """Version of the table with the last change that was sent."""
        self._parts = count(1)

    @handles(Listening)
    def on_listening(self, message: Listening) -> None:
        """Register for the first time and start the timers."""
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
        """Register again; a master with forceRegister=false only after a version mismatch.

        Only the answer to a registration tells a slave where its master is.
        """
        self._register(force=self._config.force_register)
        self.after(self._config.register_period_ms, _Tick())

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        """Register if the connection has closed: the name server has removed the broker."""
        if not self._is_connected():
            self._register(force=True)

    def _is_connected(self) -> bool:
        try:
            return self._client.is_connected()
        except RemotingFailed as error:
            where = self._client.address
            self.system.rarely.warn(
                "name server connection closed", of=where, namesrv=where, reason=error.reason
            )
            return False

    @handles(RegisterTopic)
    def on_register_topic(self, message: RegisterTopic) -> None:
        """Register a single topic."""
        if self._identity is None:
            return  # no port is open yet; `Listening` registers the whole table
        table = TopicConfigTable({message.config.topic_name: message.config}, message.version)
        is_next = message.version.counter == self._told.counter + 1
        if self._accepted is None or self._all_wanted or not is_next:
            self._register(force=True)
        elif self._client.connection_count != self._accepted_over or not self._is_connected():
            self._register(force=True)  # it may have restarted with an empty table
        elif not self._send(table, over=self._accepted_over):
            self._accepted = None  # unknown whether it has this topic

    @handles(RegisterAll)
    def on_register_all(self, _: RegisterAll) -> None:
        """Note that all topics must be registered, once per batch."""
        self._all_wanted = True

    @handles(BarrierForRegistrations)
    def on_say_when_sent(self, message: BarrierForRegistrations) -> None:
        """Keep the barrier until the topics of this batch are registered."""
        self._asked.append(message)

    @handles(BatchEnd)
    def on_batch_end(self, _: BatchEnd) -> None:
        """Register once for all topics of the batch."""
        if self._all_wanted and self._identity is not None:
            table = self._table.value
            if len(table.topic_configs) > WHOLE_TOPICS_MAX:
                self._register_large(table)
            else:
                self._send_oneway(self._registration_of(table))
                self._accepted = None  # a one-way request has no answer
        self._all_wanted = False
        asked, self._asked = self._asked, []
        for each in asked:
            self._registration.tell(Sent(each.serial))

    @handles(AskForRoute)
    def on_find_route(self, message: AskForRoute) -> None:
        """Ask for the route of a topic, whatever the state of the registration."""
        header = GetRouteInfoHeader(message.topic).encode()
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        found = RouteAnswered(message.topic, None, is_known=False)
        try:
            answer = self._client.call(request, timeout_ms=ROUTE_TIMEOUT_MS, repeats=True)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                found = RouteAnswered(message.topic, None)
            elif answer.code == ResponseCode.SUCCESS:
                route = TopicRouteData.decode(answer.body)
                found = RouteAnswered(message.topic, _readable(message.topic, route))
            else:
                self._warn_of_route(f"answer {answer.code}: {answer.remark}")
        except RemotingFailed as error:
            self._warn_of_route(error.reason)
        except RemoteError as error:
            self._warn_of_route(error.remark)
        message.reply_to.tell(found)

    def _warn_of_route(self, reason: str) -> None:
        where = self._client.address
        self.system.rarely.warn("no route found", of=where, namesrv=where, reason=reason)

    def on_stop(self) -> None:
        if self._identity is not None and self._is_up:
            fields = self._identity.encode()
            request = RemotingCommand(RequestCode.UNREGISTER_BROKER, fields)
            # no time for an answer: the connection closes next
            self._send_oneway(request, GOODBYE_TIMEOUT_MS)
        self._client.close()

    # --- registering

    def _register(self, *, force: bool) -> None:
        table = self._table.value
        if len(table.topic_configs) > WHOLE_TOPICS_MAX:
            self._register_large(table)
        elif force or self._config.is_slave or not self._has_whole(table.data_version):
            self._take_note(table, is_taken=self._send(table))

    def _has_whole(self, version: DataVersion) -> bool:
        """Return whether it has all topics of this version; the query renews the registration."""
        changed, known = self._known_version(version)
        return not changed and known == version

    def _known_version(self, version: DataVersion) -> tuple[bool, DataVersion | None]:
        """Return whether it needs a registration, and the version that it has, if any."""
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
        """Send the topics that the name server lacks, in parts.

        All parts use one connection. A new one may lead to a restarted name server without the
        earlier parts.
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
            # a version that no table and no earlier part has
            version = DataVersion(now_ms, -next(self._parts))
            if not self._send(TopicConfigTable(part, version), over=over):
                self._accepted = None
                return
        is_taken = self._send(TopicConfigTable(lacking, table.data_version), over=over)
        self._take_note(table, is_taken=is_taken)

    def _lacking(
        self, table: TopicConfigTable, known: DataVersion | None
    ) -> dict[str, TopicConfig]:
        """Return the topics it lacks; last the broker's own name, which completes the version."""
        if self._config.is_slave:  # a name server ignores a slave's topics
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
        """Register these topics and return whether it accepted them.

        If `over` is given, use that connection only.
        """
        answer = self._call(self._registration_of(table), over=over)
        ordered: frozenset[str] | None = None
        if answer is not None and answer.body:
            ordered = self._ordered(bytes(answer.body), table)
            answer.body = None
        self._registration.tell(Registered(self._client.address, answer, ordered))
        return answer is not None

    def _ordered(self, body: bytes, sent: TopicConfigTable) -> frozenset[str] | None:
        """Return the ordered ones of the broker's topics; the answer may list a million others."""
        try:
            if len(body) > ORDERED_BYTES_MAX:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, f"{len(body)} bytes of ordered topics")
            names = KVTable.decode(body).table.keys()
        except RemoteError as error:
            where = self._client.address
            self.system.rarely.warn(
                "ordered topics rejected", of=where, namesrv=where, reason=error.remark
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
        """Return the topics with the broker's permission, if that is restricted."""
        permission = self._config.broker_permission
        if permission & READ_WRITE == READ_WRITE:
            return table
        configs = {
            name: replace(config, perm=permission) for name, config in table.topic_configs.items()
        }
        return TopicConfigTable(configs, table.data_version)

    # --- the name server

    def _call(self, request: RemotingCommand, *, over: int | None = None) -> RemotingCommand | None:
        """Return a successful answer, or None; a failure is logged once."""
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
        """Log a change of state, not each try."""
        was_up, self._is_up = self._is_up, failure is None
        if failure is None and not was_up:
            log.info("registration accepted", namesrv=self._client.address)
        elif failure is not None and was_up is not False:
            log.warning("registration failed", namesrv=self._client.address, reason=failure)


def _readable(topic: str, route: TopicRouteData) -> list[tuple[str, int]]:
    """Return the brokers of a route, in the order in which consumers divide their queues."""
    queues = sorted(
        (each.broker_name, each.read_queue_nums)
        for each in route.queue_datas
        if each.perm & PERM_READ and each.read_queue_nums > 0
    )
    if sum(count for _, count in queues) > ROUTE_QUEUES_MAX:
        raise RemoteError(ResponseCode.SYSTEM_ERROR, f"the route of {topic} has too many queues")
    return queues
