"""The state of a cluster at one moment, of which all lists are made: brokers, topics, groups.

Two rounds of questions, in each all at once, both within one deadline: what each broker says of
itself, its topics and groups, how far the groups are; then, of a limited number, who is there and
what lies among the dead letters. Who does not answer is missing, and said to be.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import TypeVar

from protocol.bodies import KVTable, SubscriptionGroupTable, TopicConfig, TopicConfigTable
from protocol.bodies_admin import ConsumerConnection, ConsumeStatsList, TopicStatsTable
from protocol.bodies_own import GroupChanges, Jobs, OpenTransactions, StoreState
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.admin import (
    ConsumerGroupHeader,
    GetBrokerConsumeStatsHeader,
    TopicHeader,
)
from protocol.headers.fields import Header
from protocol.headers.transaction import OpenTransactionsHeader
from protocol.json_body import Body
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.client.admin import BrokerPlace
from troupemq.client.errors import BrokerError, ClientError, understood
from troupemq.console.cluster import DeadlineSession, PendingAnswer
from troupemq.numbers import first_finite
from troupemq.text import one_line

ROUND_S = 3.0
"""For the first round; the second gets what is left of SNAPSHOT_S."""

SNAPSHOT_S = 4.5
GROUPS_ASKED_MAX = 200
"""Of so many groups it is asked who is there: those that are behind first."""

DEAD_LETTERS_ASKED_MAX = 200

UNSUPPORTED_S = 600.0
"""So long a broker is not asked again for what it does not serve: official ones log each time."""

Found = TypeVar("Found", bound=Body)


@dataclass
class GroupSummary:
    """One consumer group, over all brokers."""

    name: str
    lag: int = 0
    late_ms: int | None = None
    """At the most: since the store time of the last message that it has consumed in the queue
    where that is oldest; None: it is not behind."""
    tps: float = 0.0
    topics: dict[str, int] = field(default_factory=dict)
    """Topic → how far it is behind there."""
    members: int | None = None
    """None: not asked, or nobody said."""
    differs: bool = False
    """Whether its members subscribe differently; our brokers say so."""
    dead_letters: int | None = None


@dataclass
class TopicSummary:
    """One topic: what its masters' settings say, and who consumes it."""

    name: str
    brokers: int = 0
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    """Group → how far it is behind."""


@dataclass
class BrokerSummary:
    """One broker; `says` is empty for one that did not answer."""

    place: BrokerPlace
    says: dict[str, str] = field(default_factory=dict)
    store: StoreState | None = None
    """What of its store is there and damaged; None: it does not say."""

    def number(self, name: str) -> float | None:
        """The first number of one of its figures."""
        return first_finite(self.says.get(name))


@dataclass
class ClusterSnapshot:
    """All of it; `missing` are sentences."""

    taken_ms: int = 0
    took_s: float = 0.0
    brokers: list[BrokerSummary] = field(default_factory=list)
    topics: dict[str, TopicSummary] = field(default_factory=dict)
    groups: dict[str, GroupSummary] = field(default_factory=dict)
    transactions: dict[str, OpenTransactions] = field(default_factory=dict)
    """Broker's address → how many are open, and the oldest; of our brokers."""
    jobs: dict[str, Jobs] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def masters(self) -> list[BrokerSummary]:
        return [each for each in self.brokers if each.place.is_master]

    @property
    def clusters(self) -> list[str]:
        return sorted({each.place.cluster for each in self.brokers})


class SnapshotTaker:
    """Takes one."""

    def __init__(
        self,
        session: DeadlineSession,
        now_ms: Callable[[], int] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._session = session
        self._now_ms = now_ms or (lambda: time_ns() // 1_000_000)
        self._unsupported = _Unsupported(clock)

    def take(self) -> ClusterSnapshot:
        """Never raises: a cluster that nobody can reach is one sentence in `missing`."""
        began_s = monotonic()
        found = ClusterSnapshot(self._now_ms())
        try:
            with self._session.within(ROUND_S):
                places = self._session.brokers()
        except ClientError as error:
            found.missing.append(one_line(str(error)))
            return found
        found.brokers = [BrokerSummary(place) for place in places]
        self._first_round(found, ROUND_S)
        self._second_round(found, max(0.5, SNAPSHOT_S - (monotonic() - began_s)))
        found.took_s = monotonic() - began_s
        return found

    def _first_round(self, found: ClusterSnapshot, seconds: float) -> None:
        about = _Questions(self._session, found, seconds, self._unsupported)
        runtime = [
            (
                each,
                about.ask(each.place.address, RequestCode.GET_BROKER_RUNTIME_INFO),
                about.ask(each.place.address, RequestCode.GET_STORE_STATE),
            )
            for each in found.brokers
        ]
        stats_header = GetBrokerConsumeStatsHeader(False)
        of_masters = [
            (
                each,
                about.ask(each.place.address, RequestCode.GET_ALL_TOPIC_CONFIG),
                about.ask(each.place.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
                about.ask(each.place.address, RequestCode.GET_BROKER_CONSUME_STATS, stats_header),
                about.ask(
                    each.place.address,
                    RequestCode.GET_OPEN_TRANSACTIONS,
                    OpenTransactionsHeader(-1),
                ),
                about.ask(each.place.address, RequestCode.GET_JOBS),
            )
            for each in found.masters
        ]
        for each, later, store in runtime:
            table = about.body(KVTable, each.place.address, later)
            each.says = {} if table is None else table.table
            each.store = about.body(StoreState, each.place.address, store, True)
        for each, topics, groups, stats, transactions, jobs in of_masters:
            address = each.place.address
            if (config := about.body(TopicConfigTable, address, topics)) is not None:
                _add_topics(found, config.topic_configs.values())
            if (known := about.body(SubscriptionGroupTable, address, groups)) is not None:
                for name in known.subscription_group_table:
                    found.groups.setdefault(name, GroupSummary(name))
            if (lags := about.body(ConsumeStatsList, address, stats)) is not None:
                _add_lags(found, lags)
            if (ends := about.body(OpenTransactions, address, transactions, True)) is not None:
                found.transactions[address] = ends
            if (runs := about.body(Jobs, address, jobs, True)) is not None:
                found.jobs[address] = runs

    def _second_round(self, found: ClusterSnapshot, seconds: float) -> None:
        """Members of groups, all of which are at every broker; dead letters by their topics."""
        about = _Questions(self._session, found, seconds, self._unsupported)
        masters = [each.place.address for each in found.masters if each.says]
        if not masters:
            return
        consumed = [each for each in found.groups.values() if each.topics]
        asked = sorted(consumed, key=lambda each: -each.lag)[:GROUPS_ASKED_MAX]
        there = []
        for number, group in enumerate(asked):
            header = ConsumerGroupHeader(group.name)
            address = masters[number % len(masters)]
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            there.append(
                (
                    group,
                    address,
                    about.ask(address, code, header),
                    about.ask(address, RequestCode.GET_GROUP_CHANGES, header),
                )
            )
        dead = [name for name in found.topics if name.startswith(DLQ_TOPIC_PREFIX)]
        letters = [
            (
                name.removeprefix(DLQ_TOPIC_PREFIX),
                address,
                about.ask(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(name)),
            )
            for name in sorted(dead)[:DEAD_LETTERS_ASKED_MAX]
            for address in masters
        ]
        for group, address, members, changes in there:
            group.members = about.members(address, members)
            known = about.body(GroupChanges, address, changes, True)
            group.differs = known is not None and bool(known.mismatches)
        for name, address, later in letters:
            ends = about.body(TopicStatsTable, address, later, True)
            if ends is not None:
                state = found.groups.setdefault(name, GroupSummary(name))
                count = sum(
                    each.max_offset - each.min_offset for each in ends.offset_table.values()
                )
                state.dead_letters = (state.dead_letters or 0) + count


class _Unsupported:
    """Which broker does not serve which request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[tuple[str, int], float] = {}

    def holds(self, address: str, code: int) -> bool:
        since_s = self._since_s.get((address, code))
        return since_s is not None and self._clock() - since_s < UNSUPPORTED_S

    def note(self, address: str, code: int) -> None:
        self._since_s[address, code] = self._clock()


class _Questions:
    """Those of one round."""

    def __init__(
        self,
        session: DeadlineSession,
        found: ClusterSnapshot,
        seconds: float,
        unsupported: _Unsupported,
    ) -> None:
        self._session = session
        self._unsupported = unsupported
        self._found = found
        self._timeout_ms = seconds * 1000

    def ask(
        self, address: str, code: RequestCode, header: Header | None = None
    ) -> PendingAnswer | None:
        """None if the broker does not serve that."""
        if self._unsupported.holds(address, code):
            return None
        command = RemotingCommand(code, {} if header is None else header.encode())
        return self._session.call_later(address, command, self._timeout_ms)

    def body(
        self, kind: type[Found], address: str, later: PendingAnswer | None, perhaps: bool = False
    ) -> Found | None:
        """The answer. None where there is none, which is said unless not all brokers have it."""
        if later is None:
            return None
        try:
            answer = later.answer()
            if perhaps and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self._unsupported.note(address, later.code)
                return None
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, answer.remark, address)
            return understood(kind.decode, answer.body)
        except BrokerError as error:
            if not perhaps:
                self._miss(f"{address} refuses: {error}")
        except ClientError as error:
            self._miss(str(error) if address in str(error) else f"{address}: {error}")
        return None

    def members(self, address: str, later: PendingAnswer | None) -> int | None:
        """How many there are; None if nobody says."""
        if later is None:
            return None
        try:
            answer = later.answer()
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return 0
            if answer.code != ResponseCode.SUCCESS:
                return None
            return len(understood(ConsumerConnection.decode, answer.body).connection_set)
        except ClientError as error:
            self._miss(str(error) if address in str(error) else f"{address}: {error}")
            return None

    def _miss(self, sentence: str) -> None:
        sentence = one_line(sentence)
        if sentence not in self._found.missing and len(self._found.missing) < 50:
            self._found.missing.append(sentence)


def _add_topics(found: ClusterSnapshot, configs: Iterable[TopicConfig]) -> None:
    for config in configs:
        state = found.topics.setdefault(config.topic_name, TopicSummary(config.topic_name))
        state.brokers += 1
        state.read_queues += config.read_queue_nums
        state.write_queues += config.write_queue_nums
        state.perm = config.perm


def _add_lags(found: ClusterSnapshot, lags: ConsumeStatsList) -> None:
    for table in lags.consume_stats_list:
        for name, several in table.items():
            group = found.groups.setdefault(name, GroupSummary(name))
            for stats in several:
                group.tps += stats.consume_tps
                for queue, where in stats.offset_table.items():
                    group.lag += where.lag
                    group.topics[queue.topic] = group.topics.get(queue.topic, 0) + where.lag
                    if queue.topic in found.topics:
                        groups = found.topics[queue.topic].groups
                        groups[name] = groups.get(name, 0) + where.lag
                    if where.lag and where.last_timestamp > 0:
                        late_ms = max(0, found.taken_ms - where.last_timestamp)
                        group.late_ms = max(group.late_ms or 0, late_ms)


def own_topics(names: Sequence[str], system: frozenset[str]) -> list[str]:
    """Those that applications have made."""
    prefixes = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
    return [name for name in names if name not in system and not name.startswith(prefixes)]
