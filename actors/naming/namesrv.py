"""The name server: tells clients which broker has which topic.

Owns: the RouteTable, and through its base KvServer the KvConfig.
Receives: Request and PeerClosed from connections; FromReader with Began, TopicSlice, Ended,
UnreadableRegistration and PassedOn from RegistrationReader; FileWritten from config_writer;
AskFigures from MetricsPort; its own tick.
Sends: ReadRegistration and PassOn to RegistrationReader; WriteFile to config_writer; LongAnswer to
LongAnswers.

An unknown request code gets no answer, as in 4.9.7; the connection sees to that.

Source: namesrv/processor/DefaultRequestProcessor.java.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from actors.config import NamesrvConfig
from actors.engine.actor import AskFigures, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import refuse
from actors.engine.server_log import TEXT_CHARS_MAX, get_logger
from actors.naming.broker_ownership import (
    check_goodbye,
    check_holder,
    check_place,
    holder_of,
    warn_of_rival,
)
from actors.naming.kv_server import ORDER_TOPIC_CONFIG, KvServer
from actors.naming.messages import (
    Began,
    Ended,
    FromReader,
    PassedOn,
    PassOn,
    ReadRegistration,
    RouteFigures,
    TopicSlice,
    UnreadableRegistration,
)
from actors.naming.registration_reader import (
    ReaderBacklog,
    check_crc,
    held_bytes,
    is_large,
)
from actors.naming.route_table import Chosen, RouteTable, has_flags, topics_body
from actors.naming.topic_intake import TopicIntake
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import LongAnswer, PeerClosed, Request
from actors.network.request import check_waiting, serves
from protocol.bodies import BrokerData, ClusterInfo, TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.bodies_tables import DataVersion, TopicConfigTable
from protocol.codes import VERSION_5, VERSION_STANDARD_JSON_ROUTE, RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import GetRouteInfoHeader
from protocol.headers.fields import Header
from protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerIdentityHeader,
    BrokerNameHeader,
    DeleteTopicInNamesrvHeader,
    GetTopicsByClusterHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    WipeWritePermResponseHeader,
)
from protocol.registration import read_registration

log = get_logger(__name__)

FIRST_SCAN_MS = 5000
SCAN_MS = 10_000

VERSION_BYTES_MAX = 4 << 10
"""Maximum length of a data version: brokers send some 60 bytes. A read may have 16 of them."""
OF_READER_AT_ONCE = 10
"""Messages of the reader in a round: 500 topics each, 10 ms in all."""
CHOSEN_HERE_MAX = 50_000
"""Maximum topics from which a list is chosen on the loop, counted for each broker: 15 ms."""
LISTED_CHARS_HERE_MAX = 512 << 10
"""Characters of names that are listed on the loop: 4 ms; control characters take 40 ms."""
_TOPIC_BYTES, _BROKER_BYTES = 100, 500
ROUTE_BROKERS_HERE_MAX = 100
"""Brokers of a route that is encoded on the loop: 2 ms; a read may have 16 requests for routes."""
ROUTE_BROKERS_OF_ROUND = 400
"""Brokers of all such routes of a round: 5 ms."""
ROUTE_CHARS_HERE_MAX = 32 << 10
"""Characters of its names and addresses."""
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


@dataclass(frozen=True, slots=True)
class _Scan:
    """Remove brokers with an expired registration."""


@dataclass(frozen=True, slots=True)
class _SweepMore:
    """Remove such brokers from some more of their topics."""


@dataclass(frozen=True, slots=True)
class _TakeMore:
    """Take some more messages of the reader."""


@dataclass(frozen=True, slots=True)
class _ChangeMore:
    """Change the permission of some more topics of a broker."""


@dataclass(slots=True)
class _PermChange:
    """Change of a broker's write permission, in steps."""

    request: Request
    event: str
    broker_name: str
    steps: Iterator[int]
    count: int = 0

    def answer(self) -> Header:
        """Return the header of the answer."""
        if self.request.command.code == RequestCode.WIPE_WRITE_PERM_OF_BROKER:
            return WipeWritePermResponseHeader(self.count)
        return AddWritePermResponseHeader(self.count)


class Namesrv(KvServer):
    """Actor on the loop."""

    def __init__(
        self,
        config: NamesrvConfig,
        config_writer: ActorAddress,
        reader: ActorAddress,
        long_answers: ActorAddress,
    ) -> None:
        super().__init__(config.kv_config_path, config_writer, long_answers)
        self._reader = reader
        self._at_reader = ReaderBacklog()
        self._is_passed_on = self._has_asked_to_sweep = False
        self._from_reader: deque[object] = deque()
        self._perm_changes: deque[_PermChange] = deque()
        self._intake: TopicIntake | None = None
        """State of the large registration in progress."""
        self._refusal: RemoteError | None = None
        self._config = config
        self._routes = RouteTable()
        self._round, self._round_brokers = -1, 0
        """Number of a round of the loop, and of brokers whose routes were asked for in it."""
        self._registered_count = self._expired_count = self._gone_count = (
            0  # brokers since the start
        )

    def on_start(self) -> None:
        self.load_kv()
        self.after(FIRST_SCAN_MS, _Scan())

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        counts = self._registered_count, self._expired_count, self._gone_count
        message.reply(RouteFigures(*self._routes.sizes(), *counts))

    # --- brokers

    @handles(_Scan)
    def on_scan(self, _: _Scan) -> None:
        """Remove brokers without a registration for two minutes."""
        expired = [*self._routes.expire(self.system.clock.monotonic_ms())]
        self.system.rarely.warn("broker expired", names=expired)
        self._expired_count += len(expired)
        self._sweep_soon()
        self.system.rarely.tell_rest()
        self.after(SCAN_MS, _Scan())

    @handles(PeerClosed)
    def on_peer_closed(self, message: PeerClosed) -> None:
        """Remove the brokers of a closed connection at once."""
        if self._waits(message):
            return
        gone = [*self._routes.peer_closed(message.peer.peer_id)]
        self.system.rarely.warn("broker connection closed", names=gone)
        self._gone_count += len(gone)
        self._sweep_soon()

    def _sweep_soon(self) -> None:
        if self._routes.is_sweeping and not self._has_asked_to_sweep:
            self._has_asked_to_sweep = True
            self.system.loop.tell_in_next_round(self.address, _SweepMore())

    @handles(_SweepMore)
    def on_sweep_more(self, _: _SweepMore) -> None:
        self._has_asked_to_sweep = False
        self._routes.sweep_some()
        self._sweep_soon()

    @serves(RequestCode.REGISTER_BROKER)
    def register(self, request: Request) -> RemotingCommand | None:
        """Register a broker; the answer has the ordered topics, if there are any."""
        command = request.command
        header = RegisterBrokerHeader.decode(command.fields)
        check_place(self._routes, request, header)
        raw = command.body or b""
        if self._at_reader.count or is_large(raw, is_compressed=header.compressed):
            self._at_reader.gives(held_bytes(command))
            self._reader.tell(ReadRegistration(request, header, self.address))
            return None
        body = bytes(raw)
        check_crc(header, body)
        found = read_registration(body, command.version, compressed=header.compressed)
        configs = dict(chain.from_iterable(part.items() for part in found.slices))
        topics = TopicConfigTable(configs, found.version)
        self._warn_of_rival(header)
        is_new = self._routes.data_version(header.broker_address) is None
        now_ms = self.system.clock.monotonic_ms()
        origin = request.peer.peer_id, now_ms, holder_of(request.grant)
        self.begin_change()
        answer = self._routes.register(header, topics, found.filter_servers, *origin)
        return self._registered(command, header, answer, is_new=is_new)

    def _warn_of_rival(self, header: RegisterBrokerHeader) -> None:
        rival = self._routes.rival(header)
        if rival is not None:
            warn_of_rival(self.system.rarely, header, rival)

    def _registered(
        self,
        command: RemotingCommand,
        header: RegisterBrokerHeader,
        answer: RegisterBrokerResponseHeader,
        *,
        is_new: bool,
    ) -> RemotingCommand:
        self._registered_count += 1
        if is_new:
            self._tell("broker registered", header)
        return command.answer(fields=answer.encode(), body=self.kv.ordered())

    @handles(FromReader)
    def on_from_reader(self, message: FromReader) -> None:
        """Keep a message of the reader: half a million topics may come at once."""
        self._from_reader.append(message.message)
        if len(self._from_reader) == 1:
            self.system.loop.tell_in_next_round(self.address, _TakeMore())

    @handles(_TakeMore)
    def on_take_more(self, _: _TakeMore) -> None:
        """Pass on the next messages of the reader, which this actor then handles one by one."""
        for _number in range(min(len(self._from_reader), OF_READER_AT_ONCE)):
            self.address.tell(self._from_reader.popleft())
        if self._from_reader:
            self.system.loop.tell_in_next_round(self.address, _TakeMore())

    @handles(Began)
    def on_began(self, message: Began) -> None:
        """Begin a large registration; later requests of its broker wait for its end.

        Its name or address may belong to another broker by now, so check again.
        """
        self._intake, self._refusal = None, None
        try:
            check_place(self._routes, message.request, message.header)
        except RemoteError as error:
            self._refusal = error
            return
        self._warn_of_rival(message.header)
        now_ms = self.system.clock.monotonic_ms()
        self._intake = self._routes.begin(message.header, message.version, message.topics, now_ms)

    @handles(TopicSlice)
    def on_topic_slice(self, message: TopicSlice) -> None:
        """Add some topics of the large registration."""
        if self._intake is not None:
            self._routes.take(message.broker_name, message.queues, self._intake)

    @handles(Ended)
    def on_ended(self, message: Ended) -> None:
        """Complete the large registration and answer it."""
        self._at_reader.has_back(held_bytes(message.request.command))
        if self._refusal is not None:
            message.request.answer(self._refusal.code, remark=self._refusal.remark)
            return
        if self._intake is None:  # Namesrv has restarted since `Began`
            message.on_undelivered("registration interrupted: register again")
            return
        if self._routes.is_full:
            self.log_dropped("topic limit reached", broker=message.header.broker_name)
        request, header = message.request, message.header
        is_new = self._routes.data_version(header.broker_address) is None
        answer = self._routes.finish(
            header,
            self._intake.result(),
            message.filter_servers,
            request.peer.peer_id,
            self.system.clock.monotonic_ms(),
            holder_of(request.grant),
        )
        self._intake = None
        request.respond(self._registered(request.command, header, answer, is_new=is_new))

    @handles(UnreadableRegistration)
    def on_unreadable(self, message: UnreadableRegistration) -> None:
        """Refuse the large registration."""
        self._at_reader.has_back(held_bytes(message.request.command))
        peer = message.request.peer.remote
        self.system.rarely.warn("registration refused", peer=peer, why=message.remark)
        message.request.answer(message.code, remark=message.remark)

    def _waits(self, message: Request | PeerClosed) -> bool:
        """Return whether a message must wait for a registration in progress.

        It then returns as PassedOn. Raises LimitReached if the backlog is full, except for
        PeerClosed.
        """
        if not self._at_reader.count or self._is_passed_on:
            return False
        held = held_bytes(message.command) if isinstance(message, Request) else 0
        self._at_reader.gives(held)
        self._reader.tell(PassOn(message, self.address, held))
        return True

    @handles(PassedOn)
    def on_passed_on(self, message: PassedOn) -> None:
        """Process a message after its wait."""
        self._at_reader.has_back(message.held_bytes)
        self._is_passed_on = True
        try:
            self.handler_of(message.message)(self, message.message)
        finally:
            self._is_passed_on = False

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister(self, request: Request) -> RemotingCommand | None:
        """Remove a broker that stops."""
        request.command.body = None  # unused, and would take space while it waits
        if self._waits(request):
            return None
        header = BrokerIdentityHeader.decode(request.command.fields)
        check_goodbye(self._routes, request.grant, header)
        self.begin_change()
        if self._routes.unregister(header.broker_address):
            self._tell("broker unregistered", header)
        self._sweep_soon()
        return request.command.answer()

    def _tell(self, event: str, header: RegisterBrokerHeader | BrokerIdentityHeader) -> None:
        if self.system.rarely.may_tell("broker changes suppressed", name=header.broker_name):
            log.info(event, broker=header.broker_address, name=header.broker_name)

    @serves(RequestCode.QUERY_DATA_VERSION)
    def query_data_version(self, request: Request) -> RemotingCommand | None:
        """Tell a broker whether to register again; if not, renew its registration."""
        if len(request.command.body or b"") > VERSION_BYTES_MAX:  # to read it would delay clients
            remark = "the body is not a data version"
            raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a body is too long")
        if self._waits(request):
            return None
        header = BrokerIdentityHeader.decode(request.command.fields)
        check_holder(self._routes, request.grant, header)
        address = header.broker_address
        version = DataVersion.decode(request.command.body)
        known = None
        if self._routes.live_address(header.broker_name, header.broker_id) is not None:
            known = self._routes.data_version(address)
        changed = known is None or self._routes.is_changed(address, version)
        self.begin_change()
        if known == version:
            self._routes.touch(address, self.system.clock.monotonic_ms())
        return request.command.answer(
            fields=QueryDataVersionResponseHeader(changed).encode(),
            body=known.encode() if known is not None else None,
        )

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, request: Request) -> None:
        name = BrokerNameHeader.decode(request.command.fields).broker_name
        steps = self._routes.wipe_write_perm(name)
        self._change_perm(_PermChange(request, "write permission wiped", name, steps))

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, request: Request) -> None:
        name = BrokerNameHeader.decode(request.command.fields).broker_name
        steps = self._routes.add_write_perm(name)
        self._change_perm(_PermChange(request, "write permission added", name, steps))

    def _change_perm(self, change: "_PermChange") -> None:
        """Begin a change behind those that wait; a step of one of them runs in a round."""
        check_waiting(len(self._perm_changes), change.request.command)
        self.begin_change()
        self._perm_changes.append(change)
        if len(self._perm_changes) == 1:
            self.system.loop.tell_in_next_round(self.address, _ChangeMore())

    @handles(_ChangeMore)
    def on_change_more(self, _: _ChangeMore) -> None:
        """Change some more topics of a broker; answer behind the last ones."""
        change = self._perm_changes[0]
        count = next(change.steps, None)
        if count is not None:
            change.count = count
        else:
            self._perm_changes.popleft()
            request, name = change.request, change.broker_name
            self._tell_change(request, change.event, broker=name, topics=change.count)
            request.answer(fields=change.answer().encode())
        if self._perm_changes:
            self.system.loop.tell_in_next_round(self.address, _ChangeMore())

    def can_stop(self) -> bool:
        """Return whether the settings are saved and all requests are answered."""
        return super().can_stop() and not self._perm_changes and not self._from_reader

    def on_failure(self, *reason: object) -> None:
        """Refuse the requests that wait for a round."""
        while self._from_reader:
            refuse(self._from_reader.popleft(), self.remark())
        while self._perm_changes:
            self._perm_changes.popleft().request.refuse(self.remark())
        super().on_failure(*reason)

    def _tell_change(self, request: Request, event: str, **about: str | int | None) -> None:
        """Log a change by an administrator; without access control, by any client."""
        peer = request.peer.remote
        if self.system.rarely.may_tell("route changes suppressed", peer=peer):
            texts = {
                name: each[:TEXT_CHARS_MAX] if isinstance(each, str) else each
                for name, each in about.items()
            }
            log.info(event, **texts, peer=peer)

    # --- routes and topics

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, request: Request) -> RemotingCommand | None:
        """Return a topic's brokers and queues, in the client's JSON dialect.

        LongAnswers answers with many of them, or with long names.
        """
        command = request.command
        header = GetRouteInfoHeader.decode(command.fields)
        queues = self._routes.queues_at(header.topic)
        if not queues:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}{FAQ}",
            )
        order = None
        if self._config.order_message_enable:
            order = self.kv.get(ORDER_TOPIC_CONFIG, header.topic)
        standard = command.version >= VERSION_STANDARD_JSON_ROUTE
        standard = standard or bool(header.accept_standard_json_only)
        form = _RouteForm(order, command.version >= VERSION_5, standard)
        if self._may_encode(len(queues)):
            route = self._routes.route_of(queues)
            if not _is_long(route, order or ""):
                return command.answer(body=form.encode(route))
        check_waiting(self._long_answers.waiting, command, len(queues) * _BROKER_BYTES)
        route = self._routes.route_of(queues)
        self._long_answers.tell(LongAnswer(request, _LongRoute(route, form)))
        return None

    def _may_encode(self, brokers: int) -> bool:
        """Return whether a route of so many is encoded here; others of this round count, too."""
        if brokers > ROUTE_BROKERS_HERE_MAX:
            return False
        if (now := self.system.loop.round_count) != self._round:
            self._round, self._round_brokers = now, 0
        self._round_brokers += brokers
        return self._round_brokers <= ROUTE_BROKERS_OF_ROUND

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self, request: Request) -> RemotingCommand | None:
        """Return all brokers; LongAnswers answers with many of them."""
        if (count := self._routes.broker_count) > ENCODED_HERE_MAX:
            check_waiting(self._long_answers.waiting, request.command, count * _BROKER_BYTES)
        found = _Clusters(self._routes.cluster_info(), request.command.version >= VERSION_5)
        if count <= ENCODED_HERE_MAX:
            return request.command.answer(body=found.encode())
        self._long_answers.tell(LongAnswer(request, found))
        return None

    def _topics(self, request: Request, chosen: Chosen | None = None) -> RemotingCommand | None:
        """Return topics; LongAnswers answers with those of a large table."""
        count, queues = self._routes.topic_count, self._routes.queues_count
        if queues <= CHOSEN_HERE_MAX and self._routes.topic_chars <= LISTED_CHARS_HERE_MAX:
            return request.command.answer(body=topics_body(self._routes.topics(chosen)))
        check_waiting(self._long_answers.waiting, request.command, count * _TOPIC_BYTES)
        self._long_answers.tell(LongAnswer(request, self._routes.choice(chosen)))
        return None

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def topic_list(self, request: Request) -> RemotingCommand | None:
        return self._topics(request)

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, request: Request) -> RemotingCommand | None:
        cluster = GetTopicsByClusterHeader.decode(request.command.fields).cluster
        return self._topics(request, self._routes.in_cluster(cluster))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, request: Request) -> RemotingCommand | None:
        """Return names of clusters and brokers; LongAnswers answers with long ones."""
        topics, broker_address = self._routes.system_topics()
        if (chars := sum(map(len, topics))) <= LISTED_CHARS_HERE_MAX:
            return request.command.answer(body=topics_body(topics, broker_address))
        check_waiting(self._long_answers.waiting, request.command, chars)
        self._long_answers.tell(LongAnswer(request, TopicList(topics, broker_address)))
        return None

    @serves(RequestCode.GET_UNIT_TOPIC_LIST)
    def unit_topics(self, request: Request) -> RemotingCommand | None:
        return self._topics(request, has_flags(lambda flags: bool(flags & UNIT_FLAG)))

    @serves(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
    def unit_sub_topics(self, request: Request) -> RemotingCommand | None:
        return self._topics(request, has_flags(lambda flags: bool(flags & UNIT_SUB_FLAG)))

    @serves(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    def unit_sub_only_topics(self, request: Request) -> RemotingCommand | None:
        both = UNIT_FLAG | UNIT_SUB_FLAG
        return self._topics(request, has_flags(lambda flags: flags & both == UNIT_SUB_FLAG))

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, request: Request) -> RemotingCommand:
        header = DeleteTopicInNamesrvHeader.decode(request.command.fields)
        self.begin_change()
        self._routes.delete_topic(header.topic, header.cluster_name)
        self._tell_change(request, "topic deleted", topic=header.topic, cluster=header.cluster_name)
        return request.command.answer()


def _of_5(data: BrokerData) -> BrokerData:
    """Return the data as a 5.x name server has it: its clients may insist on the field.

    A slave never takes the master's place here.
    """
    return replace(data, enable_acting_master=False)


def _is_long(route: TopicRouteData, order: str) -> bool:
    """Return whether a route of few brokers must be encoded on a thread."""
    brokers = route.broker_datas
    addresses = [at for data in brokers for at in data.broker_addrs.values()]
    if len(addresses) > ROUTE_BROKERS_HERE_MAX * 3:
        return True
    servers = [each for some in route.filter_server_table.values() for each in some]
    names = [name for data in brokers for name in (data.cluster, data.broker_name)]
    chars = sum(map(len, (*names, *addresses, *servers, order)))
    return chars > ROUTE_CHARS_HERE_MAX


@dataclass(frozen=True, slots=True)
class _Clusters:
    """Body of a list of all brokers."""

    found: ClusterInfo
    is_5: bool

    def encode(self) -> bytes:
        if not self.is_5:
            return self.found.encode()
        table = {name: _of_5(data) for name, data in self.found.broker_addr_table.items()}
        return replace(self.found, broker_addr_table=table).encode()


@dataclass(frozen=True, slots=True)
class _RouteForm:
    """Form of a route for one client."""

    order: str | None
    is_5: bool
    standard_json: bool

    def encode(self, route: TopicRouteData) -> bytes:
        if self.is_5:
            route = replace(route, broker_datas=[*map(_of_5, route.broker_datas)])
        route = replace(route, order_topic_conf=self.order)
        return route.encode(standard_json=self.standard_json)


@dataclass(frozen=True, slots=True)
class _LongRoute:
    """Body of a route that is encoded on a thread."""

    route: TopicRouteData
    form: _RouteForm

    def encode(self) -> bytes:
        return self.form.encode(self.route)
