"""Snapshot of a cluster, the data of all lists: brokers, topics and groups.

Two rounds of concurrent requests share one deadline. The first asks each broker for its figures,
topics, groups and consumer lags. The second asks for members and dead letters, for a limited
number of groups. Servers that do not answer are listed in `missing`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from math import inf
from time import monotonic, time_ns

from protocol.bodies import PERM_READ, PERM_WRITE, MessageQueue
from protocol.bodies_admin import ClientConnection, TopicStatsTable
from protocol.bodies_own import (
    AclRefusal,
    AclRefusals,
    GroupChanges,
    Jobs,
    OffsetProgress,
    OpenTransactions,
    ProgressList,
    ProgressStats,
    StoreState,
)
from protocol.bodies_tables import KVTable, SubscriptionGroupTable, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode
from protocol.headers.admin import (
    ConsumerGroupHeader,
    GetBrokerConsumeStatsHeader,
    TopicHeader,
)
from protocol.headers.client import GetConsumerRunningInfoHeader
from protocol.headers.transaction import OpenTransactionsHeader
from protocol.topic_names import DLQ_TOPIC_PREFIX
from troupemq.client.admin import BrokerPlace
from troupemq.client.admin.brokers import properties_of
from troupemq.client.admin.progress import (
    AskedMember,
    GroupProgress,
    MemberProgress,
    QueueProgress,
    group_of,
    members_of_group,
    queues_of,
    stuck_after_ms,
)
from troupemq.client.errors import ClientError
from troupemq.console.cluster import DeadlineSession, PendingAnswer
from troupemq.console.questions import SnapshotQuestions, UnsupportedRequests
from troupemq.numbers import first_finite
from troupemq.text import one_line

ROUND_S = 3.0
"""Deadline of the first round; the second gets the rest of SNAPSHOT_S."""

SNAPSHOT_S = 4.5
GROUPS_ASKED_MAX = 200
"""Limit of groups to ask for members, those with the largest lag first."""

DEAD_LETTERS_ASKED_MAX = 200
WAITING_MAX = 1000
"""Limit of queues of a group at a broker to look for stuck ones, the longest waiting first."""

STUCK_ASKED_MAX = 10
"""Limit of stuck groups to ask for what their members hold, the longest stuck first."""

MEMBERS_ASKED_MAX = 20
"""Limit of members of a stuck group to ask."""


ACCESS_S = 30.0
"""Interval at which brokers are asked for access control, whose answers may be long."""

GONE_KEPT_MS = 86_400_000
"""Time for which a broker counts as gone after its last answer; then it counts as removed."""


@dataclass
class GroupSummary:
    """Consumer group, summed over all brokers."""

    name: str
    lag: int = 0
    late_ms: int | None = None
    """The largest time lag of a queue; None without one.

    Of RocketMQ brokers it is an upper bound: the time since the last consumed message was stored.
    """
    tps: float = 0.0
    topics: dict[str, int] = field(default_factory=dict)
    """Consumer lag by topic."""
    members: int | None = None
    """None if not asked or not answered."""
    differs: bool = False
    """Members subscribe differently; only TroupeMQ brokers report it."""
    dead_letters: int | None = None
    waiting: list[ProgressStats] = field(default_factory=list)
    """Progress in the queues with a lag, by broker."""
    progress: GroupProgress | None = None
    """Progress in the queues with a lag; None without one."""
    stuck_members: Sequence[MemberProgress] = ()
    """Members of a stuck group that finish nothing; empty if not asked or not known."""

    @property
    def is_stuck(self) -> bool | None:
        """Whether messages wait and none is consumed; None if no server reports it."""
        return False if self.progress is None else self.progress.is_stuck

    @property
    def stuck_queues(self) -> list[QueueProgress]:
        """The stuck queues, the longest first."""
        queues = () if self.progress is None else self.progress.queues
        stuck = (each for each in queues if each.is_stuck)
        return sorted(stuck, key=lambda each: each.stuck_since_ms or 0)

    @property
    def stuck_since_ms(self) -> int:
        return self.progress.stuck_since_ms or 0 if self.progress else 0


@dataclass
class TopicSummary:
    """Topic, summed over its masters, with the groups that consume it."""

    name: str
    brokers: int = 0
    read_queues: int = 0
    write_queues: int = 0
    perm: int = 0
    groups: dict[str, int] = field(default_factory=dict)
    """Consumer lag by group."""


@dataclass
class BrokerSummary:
    """Broker; `says` has its runtime figures, and is empty if it did not answer."""

    place: BrokerPlace
    says: dict[str, str] = field(default_factory=dict)
    store: StoreState | None = None
    """State and damage of its store; None if the broker does not report it."""
    answered_ms: int = 0
    """Time of its last answer; 0 if it has not answered since the console started."""

    def number(self, name: str) -> float | None:
        """Return the first number of a runtime figure."""
        return first_finite(self.says.get(name))

    @property
    def disk_ratio(self) -> float | None:
        """Usage of the fuller disk, of log and store root; sends are refused when one is full."""
        ratios = self.number("commitLogDiskRatio"), self.number("consumeQueueDiskRatio")
        return max((each for each in ratios if each is not None), default=None)


@dataclass
class ClusterSnapshot:
    """State of a cluster; `missing` has a sentence for each missing answer."""

    taken_ms: int = 0
    took_s: float = 0.0
    brokers: list[BrokerSummary] = field(default_factory=list)
    topics: dict[str, TopicSummary] = field(default_factory=dict)
    configs: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    """Topics of each master, by the broker's name."""
    groups: dict[str, GroupSummary] = field(default_factory=dict)
    transactions: dict[str, OpenTransactions] = field(default_factory=dict)
    """Count and oldest of the open transactions by broker address; TroupeMQ brokers only."""
    jobs: dict[str, Jobs] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    gone: list[BrokerSummary] = field(default_factory=list)
    """Brokers that answered before, and that no name server lists now."""
    unguarded: list[BrokerPlace] = field(default_factory=list)
    """Brokers without access control."""
    refusals: list[AclRefusal] = field(default_factory=list)
    """Refusals of access control; TroupeMQ brokers report them, to administrators."""

    @property
    def without(self) -> str:
        """Suffix of sums that lack masters: ` without broker-a`; empty if all have answered."""
        silent = [each.place for each in self.masters if not each.says]
        lacking = sorted({each.name for each in (*silent, *(one.place for one in self.gone))})
        return f" without {', '.join(lacking)}" if lacking else ""

    @property
    def masters(self) -> list[BrokerSummary]:
        return [each for each in self.brokers if each.place.is_master]

    def topic_at(self, topic: str) -> dict[str, TopicConfig]:
        """Return the topic at each master that has it, by the broker's name."""
        return {broker: some[topic] for broker, some in self.configs.items() if topic in some}

    @property
    def clusters(self) -> list[str]:
        return sorted({each.place.cluster for each in self.brokers})


_Connections = tuple[str, Sequence[ClientConnection]]
"""Address of the broker that was asked for members, and the members."""

_AskedAccess = tuple[BrokerPlace, PendingAnswer | None, PendingAnswer | None]
"""A broker with its pending settings and its pending refusals."""


class SnapshotTaker:
    def __init__(
        self,
        session: DeadlineSession,
        now_ms: Callable[[], int] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._session = session
        self._now_ms = now_ms or (lambda: time_ns() // 1_000_000)
        self._unsupported = UnsupportedRequests(clock)
        self._answered: dict[tuple[str, str, int], tuple[BrokerPlace, int]] = {}
        """The brokers that have answered, and when; keys are cluster, name and id."""
        self._too_long: set[str] = set()
        """Brokers whose progress is too long to read; they are asked for lags only."""
        self._unguarded: list[BrokerPlace] = []
        self._refusals: list[AclRefusal] = []
        self._clock = clock
        self._access_asked_s = -inf

    def take(self) -> ClusterSnapshot:
        """Take a snapshot; an unreachable cluster is a sentence in `missing`, not an error."""
        began_s = monotonic()
        found = ClusterSnapshot(self._now_ms())
        try:
            with self._session.within(ROUND_S):
                places = self._session.brokers()
        except ClientError as error:
            found.missing.append(one_line(str(error)))
            return found
        found.brokers = [BrokerSummary(place) for place in places]
        in_vain_s = self._first_round(found, ROUND_S)
        self._note_answers(found)
        for group in found.groups.values():
            if group.waiting:
                queues = queues_of(group.waiting)
                group.progress = group_of(group.name, queues, tps=group.tps)
                if group.progress.late_ms is not None:
                    group.late_ms = group.progress.late_ms
        seconds = max(0.5, SNAPSHOT_S - (monotonic() - began_s))
        in_vain, connections = self._second_round(found, seconds)
        seconds = max(0.5, SNAPSHOT_S - (monotonic() - began_s))
        in_vain_s += in_vain + self._third_round(found, connections, seconds)
        found.took_s = monotonic() - began_s - in_vain_s
        return found

    def _note_answers(self, found: ClusterSnapshot) -> None:
        """Note when each broker last answered, and which ones are gone."""
        listed = {_identity(each.place) for each in found.brokers}
        for each in found.brokers:
            identity = _identity(each.place)
            if each.says:
                self._answered[identity] = each.place, found.taken_ms
            each.answered_ms = self._answered.get(identity, (each.place, 0))[1]
        for identity, (place, answered_ms) in list(self._answered.items()):
            if found.taken_ms - answered_ms > GONE_KEPT_MS:
                del self._answered[identity]
            elif identity not in listed:
                found.gone.append(BrokerSummary(place, answered_ms=answered_ms))

    def _first_round(self, found: ClusterSnapshot, seconds: float) -> float:
        """Ask all brokers for their lists; return the seconds of waiting for answers in vain."""
        about = SnapshotQuestions(self._session, found.missing, seconds, self._unsupported)
        runtime = [
            (
                each,
                about.ask(each.place.address, RequestCode.GET_BROKER_RUNTIME_INFO),
                about.ask(each.place.address, RequestCode.GET_STORE_STATE),
            )
            for each in found.brokers
        ]
        of_masters = [
            (
                each,
                about.ask(each.place.address, RequestCode.GET_ALL_TOPIC_CONFIG),
                about.ask(each.place.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
                self._ask_lags(about, each.place.address),
                about.ask(
                    each.place.address,
                    RequestCode.GET_OPEN_TRANSACTIONS,
                    OpenTransactionsHeader(-1),
                ),
                about.ask(each.place.address, RequestCode.GET_JOBS),
            )
            for each in found.masters
        ]
        access = self._ask_access(found, about)
        for each, later, store in runtime:
            table = about.body(KVTable, each.place.address, later)
            each.says = {} if table is None else table.table
            each.store = about.body(StoreState, each.place.address, store, True)
        for each, topics, groups, stats, transactions, jobs in of_masters:
            address = each.place.address
            if (config := about.body(TopicConfigTable, address, topics)) is not None:
                found.configs[each.place.name] = config.topic_configs
                _add_topics(found, config.topic_configs.values())
            if (known := about.body(SubscriptionGroupTable, address, groups)) is not None:
                for name in known.subscription_group_table:
                    found.groups.setdefault(name, GroupSummary(name))
            answer = about.answer(address, stats)
            if (lags := about.decoded(ProgressList, address, answer)) is not None:
                _add_lags(found, lags)
            elif answer is not None:  # too long with the progress of so many queues
                self._too_long.add(address)
            if (ends := about.body(OpenTransactions, address, transactions, True)) is not None:
                found.transactions[address] = ends
            if (runs := about.body(Jobs, address, jobs, True)) is not None:
                found.jobs[address] = runs
        self._add_access(found, about, access)
        return about.in_vain_s

    def _ask_lags(self, about: SnapshotQuestions, address: str) -> PendingAnswer | None:
        with_progress = None if address in self._too_long else True
        header = GetBrokerConsumeStatsHeader(False, with_progress)
        return about.ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header)

    def _ask_access(self, found: ClusterSnapshot, about: SnapshotQuestions) -> list[_AskedAccess]:
        """Ask for the setting of access control and for refusals, if the last answers are old."""
        if self._clock() - self._access_asked_s < ACCESS_S:
            return []
        self._access_asked_s = self._clock()
        return [
            (
                each.place,
                about.ask(each.place.address, RequestCode.GET_BROKER_CONFIG),
                about.ask(each.place.address, RequestCode.GET_ACL_REFUSALS),
            )
            for each in found.brokers
        ]

    def _add_access(
        self, found: ClusterSnapshot, about: SnapshotQuestions, asked: Sequence[_AskedAccess]
    ) -> None:
        """Add the newest answers about access control."""
        if asked:
            self._unguarded, self._refusals = [], []
        for place, later, refusals in asked:
            settings = about.answer(place.address, later, True)
            if settings and properties_of(settings.body).get("aclEnable", "").lower() == "false":
                self._unguarded.append(place)
            if (refused := about.body(AclRefusals, place.address, refusals, True)) is not None:
                self._refusals += refused.refusals
        found.unguarded, found.refusals = self._unguarded, self._refusals

    def _second_round(
        self, found: ClusterSnapshot, seconds: float
    ) -> tuple[float, dict[str, _Connections]]:
        """Ask for members, which every broker knows, and for the topics of dead letters.

        Return the seconds of waiting in vain, and the members of each group with their broker.
        """
        connections: dict[str, _Connections] = {}
        about = SnapshotQuestions(self._session, found.missing, seconds, self._unsupported)
        masters = [each.place.address for each in found.masters if each.says]
        if not masters:
            return 0.0, connections
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
            if (known_members := about.members(address, members)) is not None:
                group.members = len(known_members.connection_set)
                connections[group.name] = address, known_members.connection_set
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
        return about.in_vain_s, connections

    def _third_round(
        self, found: ClusterSnapshot, connections: Mapping[str, _Connections], seconds: float
    ) -> float:
        """Ask the members of stuck groups for what they hold; return the seconds in vain."""
        about = SnapshotQuestions(self._session, found.missing, seconds, self._unsupported)
        stuck = [each for each in found.groups.values() if each.is_stuck and each.members]
        stuck.sort(key=lambda each: each.stuck_since_ms)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        asked = []
        for group in stuck[:STUCK_ASKED_MAX]:
            address, members = connections[group.name]
            for each in members[:MEMBERS_ASKED_MAX]:
                header = GetConsumerRunningInfoHeader(group.name, each.client_id)
                asked.append((group, address, each, about.ask(address, code, header)))
        told: dict[str, list[AskedMember]] = {}
        for group, address, each, later in asked:
            told.setdefault(group.name, []).append(about.running_info(address, each, later))
        for name, answers in told.items():
            group = found.groups[name]
            queues = queues_of(group.waiting, members=answers)
            after_ms = max(stuck_after_ms(each, None) for each in group.waiting)
            there = members_of_group(name, answers, queues, after_ms / 1000)
            group.progress = group_of(name, queues, tps=group.tps, members=group.members)
            group.stuck_members = [each for each in there if each.is_stuck]
        return about.in_vain_s


def _identity(place: BrokerPlace) -> tuple[str, str, int]:
    return place.cluster, place.name, place.id


def permission_words(perm: int) -> str:
    """Return a permission in words."""
    words = {PERM_READ | PERM_WRITE: "read and write", PERM_READ: "read only"}
    words |= {PERM_WRITE: "write only", 0: "none"}
    return words[perm & (PERM_READ | PERM_WRITE)]


def _add_topics(found: ClusterSnapshot, configs: Iterable[TopicConfig]) -> None:
    for config in configs:
        state = found.topics.setdefault(config.topic_name, TopicSummary(config.topic_name))
        state.brokers += 1
        state.read_queues += config.read_queue_nums
        state.write_queues += config.write_queue_nums
        state.perm = config.perm


def _waits_since(item: tuple[MessageQueue, OffsetProgress]) -> int:
    return item[1].waiting_timestamp or item[1].last_timestamp


def _add_lags(found: ClusterSnapshot, lags: ProgressList) -> None:
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
                waiting = {queue: each for queue, each in stats.offset_table.items() if each.lag}
                if len(waiting) > WAITING_MAX:
                    oldest = nsmallest(WAITING_MAX, waiting.items(), key=_waits_since)
                    waiting = dict(oldest)
                if waiting:
                    group.waiting.append(replace(stats, offset_table=waiting))
