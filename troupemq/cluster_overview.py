"""Overview of a cluster at one moment, from answers of its servers.

what                request                         RocketMQ's brokers
brokers             106 GET_BROKER_CLUSTER_INFO     yes
throughput, disk    28 GET_BROKER_RUNTIME_INFO      yes
groups              317 GET_BROKER_CONSUME_STATS    lag only, and slow: requested less often
members of a group  208, 203, 307                   yes, on demand
actors              30015 GET_ACTORS                no; on demand
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic, time

from protocol.bodies_own import ActorLine, ActorList
from protocol.codes import RequestCode, ResponseCode
from troupemq.client.admin import Admin, BrokerPlace
from troupemq.client.admin.brokers import first_number
from troupemq.client.admin.progress import GroupProgress, ProgressReport
from troupemq.client.errors import BrokerError, ClientError
from troupemq.text import size_text

LAG_EVERY_S = 5.0
REPORT_EVERY_S = 2.0
ASK_MS = 3000
ACTORS_MAX = 100
DISK_RATIO_MAX = 0.85
"""Share from which brokers delete old files early."""
SLAVE_LAG_BYTES_MAX = 256 << 20


@dataclass(slots=True)
class BrokerFigures:
    place: BrokerPlace
    trouble: str = ""
    """Reason for missing figures; else empty."""
    version: str = ""
    in_tps: float = 0.0
    out_tps: float = 0.0
    waiting_sends: int = 0
    disk_ratio: float = 0.0
    log_bytes: int = 0
    log_end: int = 0
    """Max offset of the commit log."""
    lag_bytes: int | None = None
    """Bytes that a slave lacks of its master's log; None for a master, and without its master."""
    behind_bytes: int = 0
    """Bytes of the commit log that are not dispatched yet."""
    actors: Sequence[ActorLine] | None = None
    """None if not asked, and for a broker of RocketMQ."""
    slow_handlers: int = 0


@dataclass(slots=True)
class ClusterOverview:
    at_s: float = 0.0
    brokers: list[BrokerFigures] = field(default_factory=list)
    groups: list[GroupProgress] = field(default_factory=list)
    groups_at_s: float = 0.0
    """Time at which the groups were asked for; 0 before the first answer."""
    report: ProgressReport | None = None
    """One group with its members; only on demand."""
    report_trouble: str = ""
    """Reason for a missing report."""

    @property
    def troubles(self) -> list[str]:
        """Problems, one sentence each: brokers that are gone first."""
        found = [f"{each.place.name}: {each.trouble}" for each in self.brokers if each.trouble]
        for each in self.brokers:
            name = each.place.name
            if each.disk_ratio >= DISK_RATIO_MAX:
                found.append(f"{name}: the disk is {each.disk_ratio:.0%} full.")
            if each.lag_bytes is not None and each.lag_bytes > SLAVE_LAG_BYTES_MAX:
                lag = size_text(each.lag_bytes)
                found.append(f"{name}: the slave {each.place.id} is {lag} behind its master.")
            for actor in each.actors or ():
                if not actor.is_up and actor.handled:
                    found.append(f"{name}: the actor {actor.name} is down.")
        stuck = sorted((each for each in self.groups if each.is_stuck), key=_urgency)
        return found + [f"{each.group} is {each.verdict}." for each in stuck]

    @property
    def missing(self) -> list[str]:
        """Names of masters whose groups are missing in the sums."""
        return [each.place.name for each in self.brokers if each.place.is_master and each.trouble]

    def busiest_actors(self) -> list[tuple[str, ActorLine]]:
        """Return broker name and actor, longest inbox first."""
        lines = [(each.place.name, actor) for each in self.brokers for actor in each.actors or ()]
        lines.sort(key=lambda line: (-line[1].inbox, -line[1].restarts, -line[1].handled))
        return lines[:ACTORS_MAX]


def _urgency(group: GroupProgress) -> tuple[bool, int]:
    """Return the order of stuck groups: abandoned ones, without a member, come last."""
    return group.members == 0, group.stuck_since_ms or 0


class ClusterPoller:
    """Asks a cluster; one thread uses it."""

    def __init__(self, admin: Admin, stuck_after_s: float | None = None) -> None:
        self._admin = admin
        self._stuck_after_s = stuck_after_s
        self._groups: list[GroupProgress] = []
        self._groups_s = -LAG_EVERY_S
        self._groups_at_s = 0.0
        self._trouble: dict[str, str] = {}
        self._report: ProgressReport | None = None
        self._report_s = 0.0

    def take(self, *, with_actors: bool = False, group: str | None = None) -> ClusterOverview:
        """Return the present overview. Raises ClientError if no name server answers."""
        brokers = [self._broker(place, with_actors) for place in self._admin.brokers()]
        _set_lags(brokers)
        found = ClusterOverview(time(), brokers)
        now_s = monotonic()
        if now_s - self._groups_s >= LAG_EVERY_S:
            self._groups_s = now_s
            self._ask_groups([each.place for each in brokers if not each.trouble])
        for each in brokers:
            each.trouble = each.trouble or self._trouble.get(each.place.address, "")
        found.groups, found.groups_at_s = self._groups, self._groups_at_s
        if group is not None:
            try:
                found.report = self._report_of(group)
            except ClientError as error:
                found.report_trouble = str(error)
        return found

    def _report_of(self, group: str) -> ProgressReport:
        """Return the report of a group, which is asked for every REPORT_EVERY_S."""
        last, now_s = self._report, monotonic()
        if last is None or last.group.group != group or now_s - self._report_s >= REPORT_EVERY_S:
            last = self._admin.progress(group, stuck_after_s=self._stuck_after_s)
            self._report, self._report_s = last, now_s
        return last

    def _broker(self, place: BrokerPlace, with_actors: bool) -> BrokerFigures:
        found, admin = BrokerFigures(place), self._admin
        try:
            table = admin.runtime_info(place.address, ASK_MS)
        except ClientError as error:
            found.trouble = str(error)
            return found
        found.version = table.get("brokerVersionDesc", "")
        found.in_tps = first_number(table.get("putTps"))
        found.out_tps = first_number(table.get("getTransferedTps"))
        found.waiting_sends = int(first_number(table.get("sendThreadPoolQueueSize")))
        disks = ("commitLogDiskRatio", "consumeQueueDiskRatio")
        found.disk_ratio = max(first_number(table.get(disk)) for disk in disks)
        low, high = (first_number(table.get(f"commitLog{end}Offset")) for end in ("Min", "Max"))
        found.log_bytes, found.log_end = int(high - low), int(high)
        found.behind_bytes = int(first_number(table.get("dispatchBehindBytes")))
        if with_actors:
            self._ask_actors(found)
        return found

    def _ask_actors(self, found: BrokerFigures) -> None:
        code = RequestCode.GET_ACTORS
        try:
            actors = self._admin.read(ActorList, found.place.address, code, timeout_ms=ASK_MS)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                found.trouble = str(error)
        except ClientError as error:
            found.trouble = str(error)
        else:
            found.actors, found.slow_handlers = actors.actors, actors.slow_handlers

    def _ask_groups(self, places: Sequence[BrokerPlace]) -> None:
        masters = [place for place in places if place.is_master]
        self._groups, self._trouble = self._admin.progress_at(
            masters, stuck_after_s=self._stuck_after_s, timeout_ms=ASK_MS
        )
        self._groups_at_s = time()


def _set_lags(brokers: Sequence[BrokerFigures]) -> None:
    """Set how far each slave is behind the master of its name."""
    ends = {each.place.name: each.log_end for each in brokers if each.place.is_master}
    for each in brokers:
        end = ends.get(each.place.name)
        if not each.place.is_master and end is not None and each.version:
            each.lag_bytes = max(0, end - each.log_end)
