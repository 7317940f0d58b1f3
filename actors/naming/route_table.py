"""The route table of a name server: which broker holds which topic; a plain class.

    queues      topic → broker name → queues and permission
    brokers     broker name → cluster, and broker id → address
    clusters    cluster → broker names, each of them in one
    live        broker address → when it registered last, over which connection, whose, its table

Topics come from masters only, are added and changed by registrations, and leave only with the last
broker of a name.  Times are monotonic.

Source: namesrv/routeinfo/RouteInfoManager.java.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from actors.naming.ceilings import (
    TOPIC_CHARS_MAX,
    TOPICS_MAX,
    TOPICS_OF_ALL_MAX,
    check_brokers,
    check_filter_servers,
)
from actors.naming.topic_intake import KnownTopics, TopicIntake
from protocol.bodies import (
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
)
from protocol.bodies_admin import TopicList
from protocol.headers.namesrv import RegisterBrokerHeader, RegisterBrokerResponseHeader

BROKER_EXPIRES_MS = 120_000
MASTER_ID = 0

Holder = tuple[str, str]
"""Account and host; of an account the host does not count."""


@dataclass(slots=True)
class LiveBroker:
    """One registered address."""

    updated_ms: float
    topics: KnownTopics
    peer_id: int
    ha_server_address: str
    holder: Holder | None = None
    """None without access control."""


class RouteTable:
    """Owned by one actor; nothing in it is shared."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._queues_count = 0
        """A topic counts as often as brokers have it."""
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[str, LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}
        self._wiped: dict[str, dict[str, tuple[QueueData, int]]] = {}
        """By broker and topic: what had its write permission wiped, and the permission before."""

    def sizes(self) -> tuple[int, int, int]:
        """Topics, broker addresses, and clusters. Any thread."""
        return len(self._queues), len(self._live), len(self._clusters)

    # --- brokers come and go

    def register(
        self,
        broker: RegisterBrokerHeader,
        topics: TopicConfigTable,
        filter_servers: Sequence[str] | None,
        peer_id: int,
        now_ms: float,
        holder: Holder | None = None,
    ) -> RegisterBrokerResponseHeader:
        """A broker is alive and has these topics; a slave is told where its live master is."""
        check_filter_servers(filter_servers)
        queues = queues_of(broker.broker_name, topics.topic_configs.values())
        intake = self.begin(broker, topics.data_version, len(queues), now_ms)
        self.take(broker.broker_name, queues, intake)
        return self.finish(broker, intake.result(), filter_servers, peer_id, now_ms, holder)

    def begin(
        self, broker: RegisterBrokerHeader, version: DataVersion, topics: int, now_ms: float
    ) -> TopicIntake:
        """Note that a broker is alive; its topics, so many, go to `take`, and then to `finish`."""
        name, address, broker_id = broker.broker_name, broker.broker_address, broker.broker_id
        data = self._brokers.setdefault(name, BrokerData(broker.cluster_name, name, {}))
        addresses = data.broker_addrs
        self._join(data, broker)
        for other_id in [own for own, at in addresses.items() if at == address]:
            if other_id != broker_id:
                del addresses[other_id]  # the broker has changed its role
        is_first = broker_id not in addresses
        addresses[broker_id] = address
        self.touch(address, now_ms)
        live = self._live.get(address)
        before = None if is_first or live is None else live.topics
        if broker_id != MASTER_ID:  # nothing of it is taken over, and nothing is missing
            before = KnownTopics(version, topics, None)
        return TopicIntake(name, version, topics, before)

    def _join(self, data: BrokerData, broker: RegisterBrokerHeader) -> None:
        """A name is in one cluster: its master's, or, without one, that of whoever came last.

        4.9.7 keeps it in all that it ever named.
        """
        cluster = broker.cluster_name
        if data.cluster != cluster:
            if broker.broker_id != MASTER_ID and MASTER_ID in data.broker_addrs:
                return
            self._leave(data)
            data.cluster = cluster
        self._clusters.setdefault(cluster, set()).add(data.broker_name)

    def _leave(self, data: BrokerData) -> None:
        names = self._clusters.get(data.cluster, set())
        names.discard(data.broker_name)
        if not names:
            self._clusters.pop(data.cluster, None)

    def rival(self, broker: RegisterBrokerHeader) -> str | None:
        """The address of a live broker that has the name and id of this one, and another place."""
        address = self.live_address(broker.broker_name, broker.broker_id)
        return address if address != broker.broker_address else None

    def live_address(self, broker_name: str, broker_id: int) -> str | None:
        """Where the broker of this name and id is alive."""
        data = self._brokers.get(broker_name)
        address = None if data is None else data.broker_addrs.get(broker_id)
        return address if address in self._live else None

    def holder(self, address: str) -> Holder | None:
        """Whose the live broker at this address is; None also where there is none."""
        live = self._live.get(address)
        return None if live is None else live.holder

    def take(self, broker_name: str, queues: Mapping[str, QueueData], intake: TopicIntake) -> None:
        """Take over some of a broker's topics; new ones as far as there is room."""
        left_out = []
        for topic, data in intake.choose(queues).items():
            known = self._queues.get(topic)
            if known is None or broker_name not in known:
                is_full = known is None and len(self._queues) >= TOPICS_MAX
                if is_full or self._queues_count >= TOPICS_OF_ALL_MAX:
                    left_out.append(topic)
                    continue
                if known is None:
                    known = self._queues[topic] = {}
                self._queues_count += 1
            known[broker_name] = data
        intake.no_room(left_out)

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more topics."""
        return len(self._queues) >= TOPICS_MAX or self._queues_count >= TOPICS_OF_ALL_MAX

    def check_room(self, broker: RegisterBrokerHeader, peer_id: int) -> None:
        """Raises RemoteError where a broker would be one too many."""
        address = broker.broker_address
        if address not in self._live:
            of_peer = sum(live.peer_id == peer_id for live in self._live.values())
            check_brokers(len(self._live), of_peer)
        if broker.broker_name not in self._brokers:
            known = self._brokers.values()
            names = sum(address in data.broker_addrs.values() for data in known)
            check_brokers(len(known), names)

    def finish(
        self,
        broker: RegisterBrokerHeader,
        topics: KnownTopics,
        filter_servers: Sequence[str] | None,
        peer_id: int,
        now_ms: float,
        holder: Holder | None = None,
    ) -> RegisterBrokerResponseHeader:
        """Note which topics were taken over; a slave is told where its master is."""
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

    def unregister(self, broker_name: str, address: str, broker_id: int) -> bool:
        """A broker says that it stops; its id counts, whatever address it has now. Whether anything
        of it was there.

        Nothing is left at its address, under other names either: without a life there they would
        never expire. 4.9.7 keeps them for good.
        """
        found = address in self._live
        if found:
            self._remove([address])
        data = self._brokers.get(broker_name)
        if data is not None and data.broker_addrs.pop(broker_id, None) is not None:
            found = True
            if not data.broker_addrs:
                self._forget([broker_name])
        return found

    def peer_closed(self, peer_id: int) -> list[str]:
        """A connection is gone: its brokers leave at once. Returns their addresses."""
        gone = [address for address, live in self._live.items() if live.peer_id == peer_id]
        return self._remove(gone)

    def expire(self, now_ms: float) -> list[str]:
        """Removes the brokers that were silent for too long. Returns their addresses."""
        oldest_ms = now_ms - BROKER_EXPIRES_MS
        gone = [address for address, live in self._live.items() if live.updated_ms < oldest_ms]
        return self._remove(gone)

    def _remove(self, gone: list[str]) -> list[str]:
        """In one pass for all of them: there may be a hundred, and a million topics."""
        if not gone:
            return gone
        addresses = {*gone}
        for address in gone:
            del self._live[address]
            self._filter_servers.pop(address, None)
        empty = []
        for data in self._brokers.values():
            for broker_id in [own for own, at in data.broker_addrs.items() if at in addresses]:
                del data.broker_addrs[broker_id]
            if not data.broker_addrs:
                empty.append(data.broker_name)
        self._forget(empty)
        return gone

    def _forget(self, broker_names: list[str]) -> None:
        """The last broker of a name takes the name along."""
        if not broker_names:
            return
        gone = {*broker_names}
        for name in broker_names:
            self._leave(self._brokers.pop(name))
            self._wiped.pop(name, None)
        for topic in [topic for topic, own in self._queues.items() if not gone.isdisjoint(own)]:
            self._forget_topic(topic, gone.intersection(self._queues[topic]))

    def _forget_topic(self, topic: str, broker_names: Iterable[str]) -> None:
        queues = self._queues.get(topic, {})
        for name in broker_names:
            if queues.pop(name, None) is not None:
                self._queues_count -= 1
        if not queues:
            self._queues.pop(topic, None)

    # --- data versions

    def is_changed(self, address: str, version: DataVersion) -> bool:
        """Return whether the topics of this version are not all known: it must register again."""
        live = self._live.get(address)
        return live is None or live.topics.version != version or not live.topics.is_whole

    def data_version(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return live.topics.version if live is not None else None

    def touch(self, address: str, now_ms: float) -> None:
        """The broker is alive and its topics are as before."""
        live = self._live.get(address)
        if live is not None:
            live.updated_ms = now_ms

    # --- questions

    def route(self, topic: str) -> TopicRouteData | None:
        """Where a topic is; None when no live broker has it."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        addresses = [address for data in brokers for address in data.broker_addrs.values()]
        servers = {at: self._filter_servers[at] for at in addresses if at in self._filter_servers}
        return TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=brokers,
            filter_server_table=servers,
        )

    def cluster_info(self) -> ClusterInfo:
        """All brokers of all clusters."""
        return ClusterInfo(
            broker_addr_table=self._brokers,
            cluster_addr_table={name: sorted(own) for name, own in self._clusters.items()},
        )

    def topics(self, chosen: Callable[[QueueData], bool] | None = None) -> list[str]:
        """All topics, or those whose queues at some broker (any one) are `chosen`."""
        if chosen is None:
            return list(self._queues)
        return [topic for topic, own in self._queues.items() if chosen(next(iter(own.values())))]

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of a cluster; none when there is no such cluster."""
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._queues.items() if names & queues.keys()]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Names of clusters and brokers, which are topics too, and some broker to ask for more."""
        names: dict[str, None] = {}
        for cluster, broker_names in self._clusters.items():
            names.update(dict.fromkeys((cluster, *sorted(broker_names))))
        addresses = [at for data in self._brokers.values() for at in data.broker_addrs.values()]
        return list(names), addresses[0] if addresses else None

    # --- what an administrator changes

    def wipe_write_perm(self, broker_name: str) -> int:
        """Nobody shall write to this broker any more. Returns how many topics that concerns.

        The next registration with another data version puts the broker's own values back.
        """
        wiped, count = self._wiped.setdefault(broker_name, {}), 0
        for topic, data in self._queues_at(broker_name):
            if data.perm & PERM_WRITE:
                wiped[topic] = data, data.perm
                data.perm &= ~PERM_WRITE
            count += 1
        return count

    def add_write_perm(self, broker_name: str) -> int:
        """Restore what the broker has registered. Return how many topics that concerns.

        4.9.7 lets every topic be read and written, those that are read-only, too.
        """
        wiped, count = self._wiped.pop(broker_name, {}), 0
        for topic, data in self._queues_at(broker_name):
            registered, perm = wiped.get(topic, (None, 0))
            if registered is data:  # else the broker has registered it since
                data.perm = perm
            count += 1
        return count

    def _queues_at(self, broker_name: str) -> Iterator[tuple[str, QueueData]]:
        for topic, queues in self._queues.items():
            if (data := queues.get(broker_name)) is not None:
                yield topic, data

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forgets a topic, or only its queues in one cluster."""
        names = self._clusters.get(cluster, set()) if cluster else list(self._queues.get(topic, {}))
        self._forget_topic(topic, names)


def queues_of(broker_name: str, topics: Iterable[TopicConfig]) -> dict[str, QueueData]:
    """A broker's queues by topic; names that are none are left out. Any thread."""
    return {
        config.topic_name: QueueData(
            broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_sys_flag,
        )
        for config in topics
        if 0 < len(config.topic_name) <= TOPIC_CHARS_MAX  # 4.9.7 takes, and lists, one without
    }


def topics_body(topics: Sequence[str], broker_address: str | None = None) -> bytes:
    """The body of an answer. Any thread."""
    joined = '","'.join(topics)
    between = 2 * max(0, len(topics) - 1)
    if broker_address or "\\" in joined or not joined.isprintable() or joined.count('"') != between:
        return TopicList(list(topics), broker_address).encode()
    # sixty thousand names: 100 → 3 ms
    return f'{{"topicList":["{joined}"]}}'.encode() if topics else b'{"topicList":[]}'
