"""Overview of a cluster at one moment, from answers of its servers.

what                request                         RocketMQ's brokers
brokers             106 GET_BROKER_CLUSTER_INFO     yes
throughput, disk    28 GET_BROKER_RUNTIME_INFO      yes
consumer lag        317 GET_BROKER_CONSUME_STATS    yes, but slow: requested less often
actors              30015 GET_ACTORS                no
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic, time

from protocol.bodies_own import ActorLine, ActorList
from protocol.codes import RequestCode, ResponseCode
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.admin import Admin, BrokerPlace
from troupemq.client.admin.brokers import first_number
from troupemq.client.errors import BrokerError, ClientError

LAG_EVERY_S = 5.0
ASK_MS = 3000
GROUPS_MAX = 20
ACTORS_MAX = 12


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
    behind_bytes: int = 0
    """Bytes of the commit log that are not dispatched yet."""
    actors: Sequence[ActorLine] | None = None
    """None for a broker of RocketMQ."""
    slow_handlers: int = 0


@dataclass(slots=True)
class GroupFigures:
    """State of one group in one topic, at all brokers."""

    group: str
    topic: str
    lag: int = 0
    tps: float = 0.0
    consumed_ms: int = 0
    """Earliest store time of the last consumed message, over the queues with lag; 0: unknown."""

    def late_s(self, now_ms: float) -> float | None:
        """Return the time lag; None without lag, or if it is unknown."""
        return (now_ms - self.consumed_ms) / 1000 if self.lag and self.consumed_ms else None


@dataclass(slots=True)
class ClusterOverview:
    at_s: float = 0.0
    brokers: list[BrokerFigures] = field(default_factory=list)
    groups: list[GroupFigures] = field(default_factory=list)

    @property
    def troubles(self) -> list[str]:
        """Problems, one sentence each."""
        found = [f"{each.place.name}: {each.trouble}" for each in self.brokers if each.trouble]
        for each in self.brokers:
            name = each.place.name
            if each.disk_ratio >= 0.85:
                found.append(f"{name}: the disk is {each.disk_ratio:.0%} full.")
            for actor in each.actors or ():
                if not actor.is_up and actor.handled:
                    found.append(f"{name}: the actor {actor.name} is down.")
        return found

    def busiest_actors(self) -> list[tuple[str, ActorLine]]:
        """Return broker name and actor, longest inbox first."""
        lines = [(each.place.name, actor) for each in self.brokers for actor in each.actors or ()]
        lines.sort(key=lambda line: (-line[1].inbox, -line[1].restarts, -line[1].handled))
        return lines[:ACTORS_MAX]

    def worst_groups(self) -> list[GroupFigures]:
        """Return the groups with the largest consumer lag, largest first."""
        return sorted(self.groups, key=lambda each: (-each.lag, each.group, each.topic))[
            :GROUPS_MAX
        ]


class ClusterPoller:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._groups: list[GroupFigures] = []
        self._groups_s = -LAG_EVERY_S

    def take(self) -> ClusterOverview:
        """Return the present overview. Raises ClientError if no name server answers."""
        brokers = [self._broker(place) for place in self._admin.brokers()]
        now_s = monotonic()
        if now_s - self._groups_s >= LAG_EVERY_S:
            self._groups_s = now_s
            masters = [each for each in brokers if each.place.is_master and not each.trouble]
            self._groups = self._lags(masters)
        return ClusterOverview(time(), brokers, self._groups)

    def _broker(self, place: BrokerPlace) -> BrokerFigures:
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
        found.disk_ratio = first_number(table.get("commitLogDiskRatio"))
        ends = (first_number(table.get(f"commitLog{end}Offset")) for end in ("Max", "Min"))
        found.log_bytes = int(next(ends) - next(ends))
        found.behind_bytes = int(first_number(table.get("dispatchBehindBytes")))
        try:
            code = RequestCode.GET_ACTORS
            actors = admin.read(ActorList, place.address, code, timeout_ms=ASK_MS)
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                found.trouble = str(error)
        except ClientError as error:
            found.trouble = str(error)
        else:
            found.actors, found.slow_handlers = actors.actors, actors.slow_handlers
        return found

    def _lags(self, masters: Sequence[BrokerFigures]) -> list[GroupFigures]:
        found: dict[tuple[str, str], GroupFigures] = {}
        for each in masters:
            seen = set()
            try:
                for queue in self._admin.broker_lags(each.place.address, timeout_ms=ASK_MS):
                    if queue.topic.startswith(RETRY_TOPIC_PREFIX):
                        continue
                    key = queue.group, queue.topic
                    line = found.setdefault(key, GroupFigures(*key))
                    line.lag += queue.lag
                    line.tps += 0.0 if key in seen else queue.group_tps
                    seen.add(key)
                    stored_ms = queue.last_consumed_ms
                    if queue.lag and stored_ms > 0:
                        line.consumed_ms = min(line.consumed_ms or stored_ms, stored_ms)
            except ClientError as error:
                each.trouble = str(error)
        return list(found.values())
