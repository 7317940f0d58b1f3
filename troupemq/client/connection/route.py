"""Routes of topics: looked up at the name servers, cached and refreshed."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple, TypeAlias

from protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import GetRouteInfoHeader
from protocol.java_numbers import plain_number
from troupemq.client.connection.calls import Blocking, Call, RouteFlow, Value, decoded, drive
from troupemq.client.connection.connection import split_address
from troupemq.client.connection.remoting import Remoting
from troupemq.client.errors import (
    ArgumentIllegal,
    BadAnswer,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    RouteNotFound,
)
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

MASTER_ID = 0
DEFAULT_TOPIC = "TBW102"
"""Topic that lends its route to a missing topic; a send then creates the missing one."""

DEFAULT_TOPIC_QUEUE_COUNT = 4
QUEUES_MAX = 1 << 18
"""Limit of a topic's queues: each is an object here, and an answer may claim billions."""

ADDRESSES_MAX = 20_000
"""Limit of a route's broker addresses, each of which gets heartbeats.

A name server of TroupeMQ has at most 10,000 brokers.
"""

LOOK_UP_TIMEOUT_MS = 3000
DEFAULT_NAMESRV = "127.0.0.1:9876"
NAMESRV_VARIABLE = "NAMESRV_ADDR"
START_ONE = "start one: troupemq namesrv"
NAMESRV_CODES = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
)
"""Requests that every name server answers, and no broker."""

NO_NAMESRV = "a broker listens there, not a name server (usually port 9876)"


def namesrv_addresses(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the addresses of the name servers.

    `given`: `a:9876;b:9876`, or a list. [default: NAMESRV_ADDR, else 127.0.0.1:9876]
    Raises ConnectionFailed for an invalid address, ArgumentIllegal for another type.
    """
    if given is None:
        given = os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV
    if not isinstance(given, Sequence) or not all(isinstance(text, str) for text in given):
        raise ArgumentIllegal(f"name servers are host:port or several of them, and not {given!r}")
    text = given if isinstance(given, str) else ";".join(given)
    addresses = tuple(each.strip() for each in text.replace(",", ";").split(";") if each.strip())
    if not addresses:
        raise ConnectionFailed(f"{given!r} names no name server: use host:port")
    for address in addresses:
        if "://" in address:
            raise ConnectionFailed(f"{address!r} is a URL: a name server is host:port alone")
        if len(address.split()) > 1:
            raise ConnectionFailed(f"{address!r} is not one address: separate several with ;")
        split_address(address)
    return addresses


def named_by(given: str | Sequence[str] | None) -> str:
    """Return the source of the addresses of `namesrv_addresses(given)`, for errors."""
    if given is not None:
        return "named by the argument namesrv or -n"
    if os.environ.get(NAMESRV_VARIABLE):
        return f"named by the environment's {NAMESRV_VARIABLE}"
    return f"the default, for neither namesrv, -n nor {NAMESRV_VARIABLE} is given"


class Route(NamedTuple):
    """The queues of one topic and the addresses of its brokers."""

    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    addresses: Mapping[str, Mapping[int, str]]
    """Broker name → broker id → address."""

    stands_in: bool = False
    """Whether this is the default topic's route, for a topic that does not exist yet."""

    clusters: frozenset[str] = frozenset()
    """The clusters of those brokers."""


FetchedRoute: TypeAlias = tuple[Route, bool]
"""A route, and whether it differs from the known one."""


def route_of(topic: str, data: TopicRouteData, queue_count_max: int | None = None) -> Route:
    """Return the route in an answer. Raises BadAnswer above QUEUES_MAX and ADDRESSES_MAX."""
    count = sum(len(each.broker_addrs) for each in data.broker_datas)
    if count > ADDRESSES_MAX:
        raise BadAnswer(f"a route of {count} brokers for {topic}: the limit is {ADDRESSES_MAX}")
    addresses = {each.broker_name: dict(each.broker_addrs) for each in data.broker_datas}
    limit = queue_count_max if queue_count_max is not None else 1 << 31
    claimed = sum(
        min(max(each.read_queue_nums, 0), limit) + min(max(each.write_queue_nums, 0), limit)
        for each in data.queue_datas
    )
    if claimed > QUEUES_MAX:
        raise BadAnswer(f"a route of {claimed} queues for {topic}: the limit is {QUEUES_MAX}")

    def queues(count: Callable[[QueueData], int], perm: int) -> tuple[MessageQueue, ...]:
        found = (
            MessageQueue(topic, each.broker_name, queue_id)
            for each in sorted(data.queue_datas, key=lambda each: each.broker_name)
            if each.perm & perm and _has_broker(addresses, each.broker_name, perm)
            for queue_id in range(min(count(each), limit))
        )
        return tuple(dict.fromkeys(found))  # of a broker named twice two members would get a queue

    ordered = None
    if data.order_topic_conf and queue_count_max is None:
        ordered = _ordered_queues(topic, data.order_topic_conf)
    return Route(
        ordered or queues(lambda each: each.write_queue_nums, PERM_WRITE),
        queues(lambda each: each.read_queue_nums, PERM_READ),
        addresses,
        queue_count_max is not None,
        frozenset(each.cluster for each in data.broker_datas),
    )


def _ordered_queues(topic: str, order: str) -> tuple[MessageQueue, ...] | None:
    """Return the queues of an ordered topic, `broker-a:8;broker-b:8`; None for another text.

    They stay the same while a broker is down: a key has one queue at all times, and the same one
    as in Java, which takes them from here, too.
    """
    places: list[tuple[str, int]] = []
    for part in order.rstrip(";").split(";"):
        name, _, count = part.partition(":")
        places.append((name, plain_number(count.partition(":")[0], QUEUES_MAX) or 0))
    if not 0 < sum(count for _, count in places) <= QUEUES_MAX or not all(map(all, places)):
        log.warning("invalid order of a topic ignored", topic=topic, order=order[:100])
        return None
    return tuple(MessageQueue(topic, name, each) for name, count in places for each in range(count))


def _has_broker(addresses: Mapping[str, Mapping[int, str]], name: str, perm: int) -> bool:
    ids = addresses.get(name, {})
    return MASTER_ID in ids if perm == PERM_WRITE else bool(ids)


def _is_of_broker(refusal: BrokerError, asked: int) -> bool:
    """Return whether the refusal shows that the server is a broker, not a name server."""
    return asked in NAMESRV_CODES and refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def writable(topic: str, route: Route) -> Route:
    """Return the route. Raises RouteNotFound if no queue of it takes messages."""
    if not route.publish_queues:
        raise RouteNotFound(f"no broker takes messages for {topic}")
    return route


class RouteCache:
    """Routes of all topics that a client uses, and the flows that look them up."""

    def __init__(self, namesrvs: Sequence[str], named_by: str = "as asked for") -> None:
        """Keep the name servers; `named_by` says in errors where their addresses come from."""
        self.namesrvs = tuple(namesrvs)
        self._named_by = named_by
        self._current = 0
        self._routes: dict[str, Route] = {}
        self._addresses: dict[str, Mapping[int, str]] = {}
        self._former: dict[str, Mapping[int, str]] = {}
        """Addresses of the brokers forgotten last, for commits and unlocks of their queues."""

    # --- flows

    def asking_namesrv(self, command: RemotingCommand) -> RouteFlow[RemotingCommand]:
        """Return a success from the last name server that answered, else the next.

        Raises ClientError.
        """
        error: ClientError | None = None
        failures: dict[str, str] = {}
        for turn in range(len(self.namesrvs)):
            index = (self._current + turn) % len(self.namesrvs)
            try:
                answer: RemotingCommand = yield Call(
                    self.namesrvs[index], command, LOOK_UP_TIMEOUT_MS
                )
            except BrokerError as refusal:
                if not _is_of_broker(refusal, command.code):
                    self._current = index  # it answers, and one before it does not
                    raise
                error = ConnectionFailed(str(refusal))
                failures[self.namesrvs[index]] = NO_NAMESRV
                continue
            except ClientError as failure:
                error = failure
                address = self.namesrvs[index]
                failures[address] = str(failure).removeprefix(f"{address}: ")
                continue
            self._current = index
            return answer
        assert error is not None
        if isinstance(error, ClientClosed):
            raise error
        raise type(error)(self.no_answer(failures)) from None

    def looking_up(self, topic: str, *, or_default: bool = False) -> RouteFlow[Route]:
        """Ask a name server. Raises RouteNotFound and other ClientErrors, keeping the old route."""
        try:
            route, has_changed = yield from self._fetching(topic, topic)
        except RouteNotFound as error:
            if not or_default:
                raise
            route, has_changed = yield from self._fetching_default(topic, error)
        if has_changed:
            log.debug("route changed", topic=topic, queues=len(route.publish_queues))
        self._routes[topic] = route
        self._addresses = {**self._addresses, **route.addresses}
        return route

    def _fetching_default(self, topic: str, unknown: RouteNotFound) -> RouteFlow[FetchedRoute]:
        """Return the default topic's route; without one no broker would create the topic."""
        try:
            return (yield from self._fetching(topic, DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT))
        except RouteNotFound:
            raise RouteNotFound(f"{unknown}, and no broker would create it") from None

    def _fetching(
        self, topic: str, asked: str, queue_count_max: int | None = None
    ) -> RouteFlow[FetchedRoute]:
        """Return a route of `topic`, which is that of the topic `asked`."""
        header = GetRouteInfoHeader(asked)
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
        try:
            answer = yield from self.asking_namesrv(command)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise RouteNotFound(f"the name server does not know the topic {asked}") from None
            raise
        if not answer.body:
            raise RouteNotFound(f"the name server sent an empty route of {asked}")
        known = self._routes.get(topic)

        def read(body: bytes | memoryview | None) -> FetchedRoute:
            route = route_of(topic, TopicRouteData.decode(body), queue_count_max)
            return route, route != known

        return (yield from decoded(read, answer.body))

    def listing_brokers(self) -> RouteFlow[list[BrokerData]]:
        """Return all brokers that a name server lists. Raises ClientError."""
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = yield from self.asking_namesrv(command)
        found = yield from decoded(ClusterInfo.decode, answer.body)
        return [*found.broker_addr_table.values()]

    # --- what is known

    def to_refresh(
        self, topics: Iterable[str], *, and_known: bool = True
    ) -> list[tuple[str, bool]]:
        """Return these topics and all known ones, each with whether the default topic may do."""
        return [
            (topic, topic in self._routes and self._routes[topic].stands_in)
            for topic in {*topics, *(self._routes if and_known else ())}
        ]

    def forget_unused_brokers(self) -> None:
        """Forget brokers without a topic: they get no more heartbeats."""
        named = {name for route in self._routes.values() for name in route.addresses}
        if unused := self._addresses.keys() - named:
            self._former = {name: self._addresses[name] for name in unused}
        self._addresses = {name: self._addresses[name] for name in named}

    def no_answer(self, failures: Mapping[str, str] | str) -> str:
        """Return an error text: the name servers, their failures, their source, and advice."""
        if isinstance(failures, str):
            failures = {address: failures for address in self.namesrvs}
        said = "; ".join(f"{each}: {why}" for each, why in failures.items())
        return f"no name server answers: {said} ({self._named_by}; {START_ONE})"

    def known(self, topic: str) -> Route | None:
        """Return the cached route of `topic`, or None."""
        return self._routes.get(topic)

    def name_of(self, address: str) -> str:
        """Return the name of the broker at `address`, or the address if it is unknown."""
        return next(
            (name for name, ids in self._addresses.items() if address in ids.values()), address
        )

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """Return a broker's address, of any id if `broker_id` is missing. Raises RouteNotFound."""
        ids = self._ids_of(broker_name)
        if not ids:
            raise RouteNotFound(f"no address of the broker {broker_name} is known")
        return ids.get(broker_id) or next(iter(ids.values()))

    def known_master(self, broker_name: str) -> str | None:
        """Return the address of a broker name's master, or None if it is unknown."""
        return self._ids_of(broker_name).get(MASTER_ID)

    def _ids_of(self, broker_name: str) -> Mapping[int, str]:
        return self._addresses.get(broker_name) or self._former.get(broker_name, {})

    def master(self, broker_name: str) -> str:
        """Return the address of a broker name's master. Raises RouteNotFound."""
        address = self.known_master(broker_name)
        if address is None:
            raise RouteNotFound(f"no master of the broker {broker_name} is known")
        return address

    def all_addresses(self, *, masters_only: bool) -> list[str]:
        return sorted(
            {
                address
                for ids in self._addresses.values()
                for broker_id, address in ids.items()
                if broker_id == MASTER_ID or not masters_only
            }
        )


class Routes(RouteCache):
    """A route table for any thread; look-ups block."""

    def __init__(
        self, remoting: Remoting, namesrvs: Sequence[str], named_by: str = "as asked for"
    ) -> None:
        super().__init__(namesrvs, named_by)
        self._remoting = remoting
        self._lock = Lock()

    def _driven(self, flow: RouteFlow[Value]) -> Value:
        self._remoting.check_may_wait()  # or each name server would count as one without an answer
        ask = self._remoting.ask
        return drive(flow, lambda each: each.work() if isinstance(each, Blocking) else ask(*each))

    def ask_namesrv(self, command: RemotingCommand) -> RemotingCommand:
        """Return a success from the last good name server, else the next. Raises ClientError."""
        return self._driven(self.asking_namesrv(command))

    def publish_route(self, topic: str) -> Route:
        """Return the route for sends; for a missing topic, that of the default topic.

        Raises RouteNotFound, or another ClientError if no name server answers.
        """
        route = self._routes.get(topic)
        if route is None or not route.publish_queues:
            route = self.look_up(topic, or_default=True)
        return writable(topic, route)

    def get(self, topic: str) -> Route:
        """Return the cached route of `topic`, else look it up. Raises as `look_up`."""
        return self._routes.get(topic) or self.look_up(topic)

    def look_up(self, topic: str, *, or_default: bool = False) -> Route:
        """Ask a name server. Raises RouteNotFound and other ClientErrors, keeping the old route."""
        with self._lock:
            return self._driven(self.looking_up(topic, or_default=or_default))

    def refresh(self, topics: Iterable[str], *, and_known: bool = True) -> None:
        """Look up these topics and all known ones; keep the old route where that fails."""
        for topic, or_default in self.to_refresh(topics, and_known=and_known):
            try:
                self.look_up(topic, or_default=or_default)
            except RouteNotFound:
                log.debug("topic route not found", topic=topic)
            except ClientError as error:
                log.warning("route refresh failed", topic=topic, error=str(error))
                return  # no name server answers: the next topic would fail as well
        with self._lock:
            self.forget_unused_brokers()

    def listed_brokers(self) -> list[BrokerData]:
        """Return all brokers that a name server lists. Raises ClientError."""
        return self._driven(self.listing_brokers())

    def masters_of_cluster(self, cluster: str | None) -> dict[str, str]:
        """Return name → address of a cluster's masters, or of all. Raises ClientError."""
        return {
            each.broker_name: each.broker_addrs[MASTER_ID]
            for each in self.listed_brokers()
            if MASTER_ID in each.broker_addrs and cluster in (None, each.cluster)
        }
