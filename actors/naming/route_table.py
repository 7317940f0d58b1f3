"""Route table of a name server: which broker has which topic; a plain class.

    queues      topic → broker name → queues and permission
    brokers     broker name → cluster, and broker id → address
    clusters    cluster → broker names, each in one cluster
    live        broker address → last registration, connection, owner, topics

Topics come from masters only. Registrations add and change them. They go with the last broker of a
name. Data of brokers and queues are replaced, never changed: other threads read them in copies of
the tables. Times are monotonic.

Source: namesrv/routeinfo/RouteInfoManager.java.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias

from actors.naming.table_limits import (
    TOPIC_CHARS_MAX,
    TOPICS_MAX,
    TOPICS_OF_ALL_MAX,
    check_brokers,
    check_filter_servers,
)
from actors.naming.topic_intake import KnownTopics, TopicIntake
from protocol.bodies import PERM_WRITE, BrokerData, ClusterInfo, QueueData, TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.bodies_tables import DataVersion, TopicConfig, TopicConfigTable
from protocol.headers.namesrv import RegisterBrokerHeader, RegisterBrokerResponseHeader

SWEPT_AT_ONCE = 20_000
"""Topics looked at, and brokers of them, in one step of the removal of brokers: 5 ms."""
CHANGED_AT_ONCE = 5_000
"""Topics looked at in one step of a change of a broker's permissions: 10 ms."""
BODY_NAMES_AT_ONCE = 10_000
"""Topics of a body that are joined at once, so that a thread does not hold the interpreter."""
BROKER_EXPIRES_MS = 120_000
MASTER_ID = 0

Holder = tuple[str, str]
"""Owner of a broker: (account, "") or ("", host)."""


Chosen: TypeAlias = Callable[[Mapping[str, QueueData]], bool]
"""Choice of a topic by its queues, by broker name."""


@dataclass(slots=True)
class _Sweep:
    """Removal of broker names from their topics, in steps."""

    names: set[str] = field(default_factory=set)
    topics: Iterator[str] = field(default_factory=lambda: iter(()))
    again: dict[str, set[str]] = field(default_factory=dict)
    """Topics that a broker of such a name has registered meanwhile."""


@dataclass(slots=True)
class LiveBroker:
    """One registered broker address."""

    updated_ms: float
    topics: KnownTopics
    peer_id: int
    ha_server_address: str
    holder: Holder | None = None
    """None without access control."""


class RouteTable:
    """Tables of one actor; not shared."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._queues_count = 0
        """Topics, counted once for each broker that has them."""
        self._topic_chars = 0
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}
        self._wiped: dict[str, dict[str, tuple[QueueData, int]]] = {}
        """Queues without write permission and their old permission, by broker and topic."""
        self._sweeps: list[_Sweep] = []
        """The present removal of broker names, and the next one."""
        self._freed: list[set[str]] = []
        """Topics of removed brokers; a million names take 35 ms to free."""

    def sizes(self) -> tuple[int, int, int]:
        """Return the numbers of topics, broker addresses and clusters; for any thread."""
        return len(self._queues), len(self._live), len(self._clusters)

    # --- registrations

    def register(
        self,
        broker: RegisterBrokerHeader,
        topics: TopicConfigTable,
        filter_servers: Sequence[str] | None,
        peer_id: int,
        now_ms: float,
        holder: Holder | None = None,
    ) -> RegisterBrokerResponseHeader:
        """Register a broker with its topics; return the live master's address to a slave."""
        check_filter_servers(filter_servers)
        queues = queues_of(broker.broker_name, topics.topic_configs.values())
        intake = self.begin(broker, topics.data_version, len(queues), now_ms)
        self.take(broker.broker_name, queues, intake)
        return self.finish(broker, intake.result(), filter_servers, peer_id, now_ms, holder)

    def begin(
        self, broker: RegisterBrokerHeader, version: DataVersion, topics: int, now_ms: float
    ) -> TopicIntake:
        """Note a live broker with `topics` topics, which go to `take` and then `finish`."""
        name, address, broker_id = broker.broker_name, broker.broker_address, broker.broker_id
        data = self._joined(broker)
        is_first = broker_id not in data.broker_addrs
        addresses = {  # without those of an earlier role
            own: at for own, at in data.broker_addrs.items() if at != address or own == broker_id
        }
        addresses[broker_id] = address
        self._brokers[name] = replace(data, broker_addrs=addresses)
        self.touch(address, now_ms)
        live = self._live.get(address)
        before = None if is_first or live is None else live.topics
        if broker_id != MASTER_ID:  # a slave adds and lacks no topics
            before = KnownTopics(version, topics, None)
        return TopicIntake(name, version, topics, before)

    def _joined(self, broker: RegisterBrokerHeader) -> BrokerData:
        """Return the data of a broker name in the cluster of its master, or of its last slave.

        4.9.7 keeps it in every cluster that it ever named.
        """
        name, cluster = broker.broker_name, broker.cluster_name
        data = self._brokers.get(name) or BrokerData(cluster, name)
        if data.cluster != cluster:
            if broker.broker_id != MASTER_ID and MASTER_ID in data.broker_addrs:
                return data
            self._leave(data)
            data = replace(data, cluster=cluster)
        self._clusters.setdefault(cluster, set()).add(name)
        return data

    def _leave(self, data: BrokerData) -> None:
        names = self._clusters.get(data.cluster, set())
        names.discard(data.broker_name)
        if not names:
            self._clusters.pop(data.cluster, None)

    def rival(self, broker: RegisterBrokerHeader) -> str | None:
        """Return the address of another live broker with this name and id, or None."""
        address = self.live_address(broker.broker_name, broker.broker_id)
        return address if address != broker.broker_address else None

    def live_address(self, broker_name: str, broker_id: int) -> str | None:
        """Return the address of the live broker with this name and id, or None."""
        data = self._brokers.get(broker_name)
        address = None if data is None else data.broker_addrs.get(broker_id)
        return address if address in self._live else None

    def holder(self, address: str) -> Holder | None:
        """Return the owner of the live broker at this address, or None."""
        live = self._live.get(address)
        return None if live is None else live.holder

    def take(self, broker_name: str, queues: Mapping[str, QueueData], intake: TopicIntake) -> None:
        """Add a broker's topics, new ones up to the limits."""
        left_out = []
        chosen = intake.choose(queues)
        for sweep in self._sweeps:
            if broker_name in sweep.names:
                sweep.again.setdefault(broker_name, set()).update(chosen)
        for topic, data in chosen.items():
            known = self._queues.get(topic)
            if known is None or broker_name not in known:
                is_full = known is None and len(self._queues) >= TOPICS_MAX
                if is_full or self._queues_count >= TOPICS_OF_ALL_MAX:
                    left_out.append(topic)
                    continue
                if known is None:
                    known = self._queues[topic] = {}
                    self._topic_chars += len(topic)
                self._queues_count += 1
            known[broker_name] = data
        intake.no_room(left_out)

    @property
    def is_full(self) -> bool:
        """Whether a limit of topics is reached."""
        return len(self._queues) >= TOPICS_MAX or self._queues_count >= TOPICS_OF_ALL_MAX

    def check_room(self, broker: RegisterBrokerHeader, peer_id: int) -> None:
        """Raise RemoteError if a broker would exceed a limit."""
        address = broker.broker_address
        if address not in self._live:
            of_peer = sum(live.peer_id == peer_id for live in self._live.values())
            check_brokers(len(self._live), of_peer)
        data = self._brokers.get(broker.broker_name)
        if data is None or data.broker_addrs.get(broker.broker_id) != address:
            known = self._brokers.values()
            names = sum(address in each.broker_addrs.values() for each in known)
            check_brokers(len(known) if data is None else 0, names)

    def finish(
        self,
        broker: RegisterBrokerHeader,
        topics: KnownTopics,
        filter_servers: Sequence[str] | None,
        peer_id: int,
        now_ms: float,
        holder: Holder | None = None,
    ) -> RegisterBrokerResponseHeader:
        """Note which topics were added; return the live master's address to a slave."""
        address, ha_address = broker.broker_address, broker.ha_server_address
        self._live[address] = LiveBroker(now_ms, topics, peer_id, ha_address, holder)
        if filter_servers is not None:
            self._filter_servers.pop(address, None)
            if filter_servers:
                self._filter_servers[address] = list(filter_servers)
        if broker.broker_id == MASTER_ID:
            return RegisterBrokerResponseHeader()
        data = self._brokers.get(broker.broker_name)
        return RegisterBrokerResponseHeader() if data is None else self._master_of(data)

    def _master_of(self, data: BrokerData) -> RegisterBrokerResponseHeader:
        address = data.broker_addrs.get(MASTER_ID)
        live = self._live.get(address) if address is not None else None
        if live is None:
            return RegisterBrokerResponseHeader()
        return RegisterBrokerResponseHeader(live.ha_server_address, address)

    def unregister(self, address: str) -> bool:
        """Remove a stopping broker, with all names at its address; return whether it was live.

        Another broker may have its name and id by now: a promoted slave. 4.9.7 removes that one,
        and keeps other names at the address for good.
        """
        found = address in self._live
        self._remove([address])
        return found

    def peer_closed(self, peer_id: int) -> list[str]:
        """Remove the brokers of a closed connection; return their addresses."""
        gone = [address for address, live in self._live.items() if live.peer_id == peer_id]
        return self._remove(gone)

    def expire(self, now_ms: float) -> list[str]:
        """Remove brokers with an expired registration; return their addresses."""
        oldest_ms = now_ms - BROKER_EXPIRES_MS
        gone = [address for address, live in self._live.items() if live.updated_ms < oldest_ms]
        return self._remove(gone)

    def _remove(self, gone: list[str]) -> list[str]:
        """Remove all in one pass: there may be a hundred brokers and a million topics."""
        if not gone:
            return gone
        addresses = {*gone}
        for address in gone:
            if (live := self._live.pop(address, None)) is not None and live.topics.names:
                self._freed.append(live.topics.names)
            self._filter_servers.pop(address, None)
        empty = []
        for name, data in self._brokers.items():
            if addresses.isdisjoint(data.broker_addrs.values()):
                continue
            left = {own: at for own, at in data.broker_addrs.items() if at not in addresses}
            self._brokers[name] = replace(data, broker_addrs=left)
            if not left:
                empty.append(name)
        self._forget(empty)
        return gone

    def _forget(self, broker_names: list[str]) -> None:
        """Remove broker names that have no broker left."""
        if not broker_names:
            return
        is_first = not self._sweeps
        if len(self._sweeps) < 2:
            self._sweeps.append(_Sweep())
        sweep = self._sweeps[-1]
        for name in broker_names:
            self._leave(self._brokers.pop(name))
            self._wiped.pop(name, None)
            sweep.names.add(name)
            sweep.again.pop(name, None)
        if is_first:
            sweep.topics = iter([*self._queues])
            self.sweep_some()

    @property
    def is_sweeping(self) -> bool:
        """Whether anything is left of removed brokers; `sweep_some` goes on."""
        return bool(self._sweeps or self._freed)

    def sweep_some(self) -> None:
        """Remove broker names from some more topics: there may be a million."""
        freed = 0
        while self._freed and freed < SWEPT_AT_ONCE:
            freed += len(self._freed.pop())
        if not self._sweeps:
            return
        sweep, left = self._sweeps[0], SWEPT_AT_ONCE
        for topic in sweep.topics:
            own = self._queues.get(topic, {})
            if not sweep.names.isdisjoint(own):
                names = [*sweep.names.intersection(own)]
                gone = [each for each in names if topic not in sweep.again.get(each, ())]
                self._forget_topic(topic, gone)
                left -= len(names)
            left -= 1
            if left <= 0:
                return
        del self._sweeps[0]
        for sweep in self._sweeps:
            sweep.topics = iter([*self._queues])

    def _forget_topic(self, topic: str, broker_names: Iterable[str]) -> None:
        queues = self._queues.get(topic, {})
        for name in broker_names:
            if queues.pop(name, None) is not None:
                self._queues_count -= 1
        if not queues and self._queues.pop(topic, None) is not None:
            self._topic_chars -= len(topic)

    # --- data versions

    def is_changed(self, address: str, version: DataVersion) -> bool:
        """Return whether a broker at this version must register again."""
        live = self._live.get(address)
        return live is None or live.topics.version != version or not live.topics.is_whole

    def data_version(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return live.topics.version if live is not None else None

    def touch(self, address: str, now_ms: float) -> None:
        """Renew the registration of a broker with unchanged topics."""
        live = self._live.get(address)
        if live is not None:
            live.updated_ms = now_ms

    # --- queries

    def queues_at(self, topic: str) -> Mapping[str, QueueData]:
        """Return a topic's queues by broker name; empty if no live broker has it."""
        queues, brokers = self._queues.get(topic, {}), self._brokers
        return queues if any(name in brokers for name in queues) else {}

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic, or None if no live broker has it."""
        queues = self.queues_at(topic)
        return self.route_of(queues) if queues else None

    def route_of(self, queues: Mapping[str, QueueData]) -> TopicRouteData:
        """Return the route of a topic with these queues, for any thread; 0.4 µs a broker."""
        brokers = {name: data for name in queues if (data := self._brokers.get(name))}
        found = TopicRouteData([queues[name] for name in brokers], [*brokers.values()])
        if servers := self._filter_servers:
            for data in found.broker_datas:
                for at in data.broker_addrs.values():
                    if (some := servers.get(at)) is not None:
                        found.filter_server_table[at] = some
        return found

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, for any thread."""
        return ClusterInfo(
            broker_addr_table={**self._brokers},
            cluster_addr_table={name: sorted(own) for name, own in self._clusters.items()},
        )

    @property
    def broker_count(self) -> int:
        return len(self._brokers)

    @property
    def topic_count(self) -> int:
        return len(self._queues)

    @property
    def queues_count(self) -> int:
        """Topics, counted once for each broker that has them."""
        return self._queues_count

    @property
    def topic_chars(self) -> int:
        """Characters of all topics."""
        return self._topic_chars

    def topics(self, chosen: Chosen | None = None) -> list[str]:
        """Return all topics, or the chosen ones."""
        return TopicChoice(self._queues, chosen).names()

    def choice(self, chosen: Chosen | None) -> "TopicChoice":
        """Return the same for any thread."""
        return TopicChoice(self._queues.copy(), chosen)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster; empty if the cluster is unknown."""
        return self.topics(self.in_cluster(cluster))

    def in_cluster(self, cluster: str) -> Chosen:
        """Return the choice of a cluster's topics, for any thread."""
        names = frozenset(self._clusters.get(cluster, ()))
        return lambda queues: not names.isdisjoint(queues)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the cluster and broker names, which are topics too, and a broker to query."""
        names: dict[str, None] = {}
        for cluster, broker_names in self._clusters.items():
            names.update(dict.fromkeys((cluster, *sorted(broker_names))))
        addresses = [at for data in self._brokers.values() for at in data.broker_addrs.values()]
        return list(names), addresses[0] if addresses else None

    # --- administration

    def wipe_write_perm(self, broker_name: str) -> Iterator[int]:
        """Remove a broker's write permission in steps; yield the number of its topics so far.

        The next registration with another data version restores the broker's values.
        """
        count = 0
        for some in self._queues_at(broker_name):
            for topic, data in some:
                if data.perm & PERM_WRITE:
                    wiped = replace(data, perm=data.perm & ~PERM_WRITE)
                    self._queues[topic][broker_name] = wiped
                    self._wiped.setdefault(broker_name, {})[topic] = wiped, data.perm
            count += len(some)
            yield count

    def add_write_perm(self, broker_name: str) -> Iterator[int]:
        """Restore registered permissions in steps; yield the number of the topics so far.

        4.9.7 makes every topic readable and writable, even read-only ones.
        """
        wiped, count = self._wiped.pop(broker_name, {}), 0
        for some in self._queues_at(broker_name):
            for topic, data in some:
                registered, perm = wiped.get(topic, (None, 0))
                if registered is data:  # otherwise registered again since
                    self._queues[topic][broker_name] = replace(data, perm=perm)
            count += len(some)
            yield count

    def _queues_at(self, broker_name: str) -> Iterator[list[tuple[str, QueueData]]]:
        """Yield a live broker's queues by topic, in steps: there may be a million topics."""
        topics = iter([*self._queues] if broker_name in self._brokers else ())
        while broker_name in self._brokers and (some := [*islice(topics, CHANGED_AT_ONCE)]):
            found = ((topic, self._queues.get(topic, {}).get(broker_name)) for topic in some)
            yield [(topic, data) for topic, data in found if data is not None]

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues in one cluster."""
        names = self._clusters.get(cluster, set()) if cluster else list(self._queues.get(topic, {}))
        self._forget_topic(topic, names)


def queues_of(broker_name: str, topics: Iterable[TopicConfig]) -> dict[str, QueueData]:
    """Return a broker's queues by topic, without invalid names; for any thread."""
    return {
        config.topic_name: QueueData(
            broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_sys_flag,
        )
        for config in topics
        if 0 < len(config.topic_name) <= TOPIC_CHARS_MAX  # 4.9.7 accepts and lists an empty name
    }


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Topics of a table that are chosen by their queues: the body of an answer."""

    queues: Mapping[str, Mapping[str, QueueData]]
    chosen: Chosen | None

    def names(self) -> list[str]:
        if (chosen := self.chosen) is None:
            return [*self.queues]
        return [topic for topic, own in self.queues.items() if chosen(own)]

    def encode(self) -> bytes:
        return topics_body(self.names())


def has_flags(test: Callable[[int], bool]) -> Chosen:
    """Return the choice of topics by their flags at their first broker, for any thread."""

    def chosen(queues: Mapping[str, QueueData]) -> bool:
        first = [*queues.values()][:1]
        return any(test(data.topic_sys_flag) for data in first)

    return chosen


def topics_body(topics: Sequence[str], broker_address: str | None = None) -> bytes:
    """Return the body of an answer; for any thread."""
    parts = []
    for first in range(0, len(topics), BODY_NAMES_AT_ONCE):
        some = topics[first : first + BODY_NAMES_AT_ONCE]
        joined = '","'.join(some)
        is_plain = joined.isprintable() and "\\" not in joined
        if broker_address or not is_plain or joined.count('"') != 2 * (len(some) - 1):
            return TopicList(list(topics), broker_address).encode()
        parts.append(joined.encode())
    # sixty thousand names: 100 → 3 ms
    return b'{"topicList":["%b"]}' % b'","'.join(parts) if parts else b'{"topicList":[]}'
