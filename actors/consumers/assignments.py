"""Answers with the queues of a client, for groups whose members leave the assignment to brokers.

Owns: routes of the topics asked for, and the requests that wait for one.
Receives: Request (connections); RouteAnswered (a NamesrvLink).
Sends: AskForRoute (Registration); EncodeAnswer (TableEncoder).

A topic's queues are those of all brokers, which name servers know. A route is asked for again when
it is ROUTE_FRESH_MS old; until the answer comes, the former one serves. Members and modes are read
from snapshots.

An answer without a list tells the client to keep its queues and to ask again in a second. An empty
list is final. It is the answer for retry topics where POP brings retries: a group has one retry
topic here, and its messages would come twice. RocketMQ 5.x has another one for POP.

Source: broker/processor/QueryAssignmentProcessor.java, broker/topic/TopicRouteInfoManager.java
(tag rocketmq-all-5.3.3).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.naming.messages import AskForRoute, RouteAnswered
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.network.request import Responder, serves, short_body
from actors.tables.consumer_views import ConsumerView
from actors.tables.messages import EncodeAnswer, encode_later
from actors.tables.request_modes import Modes
from protocol.allocation import averagely, averagely_by_circle
from protocol.bodies import MessageQueue
from protocol.bodies_assignment import (
    AVG,
    AVG_BY_CIRCLE,
    POP,
    PULL,
    AssignmentAnswer,
    AssignmentQuery,
    QueueAssignment,
    RequestMode,
)
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.headers.pop import ALL_QUEUES
from protocol.receipts import topic_of
from protocol.topic_names import GROUP_CHARS_MAX, RETRY_TOPIC_PREFIX
from storage.access.acl_file import SUB

ROUTE_FRESH_MS = 30_000
"""Interval at which clients ask for routes as well."""
MISSING_FRESH_MS = 1000
"""Interval for topics without a route: clients repeat the request every second."""
WAIT_MS = 2500
"""Longest wait for a route; clients wait 3 s."""
ROUTES_MAX = 10_000
"""Maximum routes kept; the oldest goes first."""
WAITING_MAX = 10_000
"""Maximum requests that wait for routes."""
NAME_CHARS_MAX = len(RETRY_TOPIC_PREFIX) + 2 * GROUP_CHARS_MAX + 1

ANSWER_COST = 30
"""Queues that take as long as the rest of an answer."""

Queues: TypeAlias = Sequence[tuple[str, int]]
"""Broker names with their numbers of queues."""

BROADCASTING, CLUSTERING = "BROADCASTING", "CLUSTERING"

Rule = Callable[[str, Sequence[str], Sequence[int]], Sequence[int]]
_RULES: Mapping[str | None, Rule] = {AVG: averagely, AVG_BY_CIRCLE: averagely_by_circle}


@dataclass(slots=True)
class _Route:
    """The readable queues of a topic."""

    queues: Queues | None
    known_ms: float
    is_asked: bool = False
    """Whether a newer one is on its way."""

    @property
    def fresh_ms(self) -> float:
        return MISSING_FRESH_MS if self.queues is None else ROUTE_FRESH_MS


@dataclass(frozen=True, slots=True)
class _GiveUp:
    """Deadline of the requests that wait for a topic's route."""

    topic: str
    serial: int


@dataclass(frozen=True, slots=True)
class _AnswerMore:
    """Message to itself: answer more of the requests whose route is known."""


@dataclass(slots=True)
class _Waiting:
    """Requests for a topic without a known route."""

    serial: int
    requests: list[tuple[Request, AssignmentQuery]]


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer that is worked out where it is encoded: 65,536 queues take 0.7 s."""

    asked: AssignmentQuery
    mode: RequestMode
    member_ids: Sequence[str] | None
    queues: Queues | None

    def encode(self) -> bytes:
        found: list[QueueAssignment] | None = None
        if self.queues is not None:
            taken = assigned(self.asked, self.mode, self.member_ids, self.queues)
            if taken is not None:
                found = [QueueAssignment(queue, self.mode.mode) for queue in taken]
        return AssignmentAnswer(found).encode()


class Assignments(Responder):
    """Actor on the loop."""

    def __init__(
        self,
        *,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        modes: SnapshotRef[Modes],
        registration: ActorAddress,
        encoder: ActorAddress,
    ) -> None:
        super().__init__()
        self._consumers, self._modes = consumers, modes
        self._registration, self._encoder = registration, encoder
        self._routes: dict[str, _Route] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._ready: deque[tuple[Request, AssignmentQuery, Queues | None]] = deque()
        """Requests whose route has been answered."""
        self._waiting_count = self._serial = 0

    @serves(RequestCode.QUERY_ASSIGNMENT)
    def query(self, request: Request) -> None:
        """Answer with the client's queues of a topic, or when the topic's route is known."""
        asked = AssignmentQuery.decode(short_body(request.command))
        topic, group = _checked(asked)
        if request.grant is not None:
            request.grant.require_group(request.command.code, group)
            if topic_of("", topic, group) != RETRY_TOPIC_PREFIX + group:  # that is its group's
                request.grant.require_topic(request.command.code, topic, SUB, group)
        route = self._routes.get(topic)
        now_ms = self.system.clock.monotonic_ms()
        if route is not None and now_ms - route.known_ms < route.fresh_ms:
            self._answer(request, asked, route.queues)
            return
        if route is not None and route.queues is not None:
            if not route.is_asked:
                route.is_asked = True
                self._registration.tell(AskForRoute(topic, self.address))
            self._answer(request, asked, route.queues)
            return
        self._wait(topic, request, asked)

    def _wait(self, topic: str, request: Request, asked: AssignmentQuery) -> None:
        if self._waiting_count >= WAITING_MAX:
            remark = f"{WAITING_MAX} requests wait for routes"
            raise LimitReached(ResponseCode.SYSTEM_BUSY, remark, "assignment requests wait")
        self.begin_change()
        waiting = self._waiting.get(topic)
        if waiting is None:
            self._serial += 1
            waiting = self._waiting[topic] = _Waiting(self._serial, [])
            self._registration.tell(AskForRoute(topic, self.address))
            self.after(WAIT_MS, _GiveUp(topic, self._serial))
        waiting.requests.append((request, asked))
        self._waiting_count += 1

    @handles(RouteAnswered)
    def on_route_found(self, message: RouteAnswered) -> None:
        """Keep the route and answer what waits for it."""
        topic, known = message.topic, self._routes.pop(message.topic, None)
        queues = message.queues
        if not message.is_known:  # the former one stays: no name server has denied it
            queues = None if known is None else known.queues
        now_ms = self.system.clock.monotonic_ms()
        if message.is_known or known is not None:
            while len(self._routes) >= ROUTES_MAX:
                del self._routes[next(iter(self._routes))]
            self._routes[topic] = _Route(queues, now_ms)
        self._answer_waiting(topic, queues)

    @handles(_GiveUp)
    def on_give_up(self, message: _GiveUp) -> None:
        """Answer without a list: the client asks again."""
        waiting = self._waiting.get(message.topic)
        if waiting is not None and waiting.serial == message.serial:
            self._answer_waiting(message.topic, None)

    def _answer_waiting(self, topic: str, queues: Queues | None) -> None:
        waiting = self._waiting.pop(topic, None)
        if waiting is None:
            return
        if not self._ready:
            self.system.loop.tell_in_next_round(self.address, _AnswerMore())
        self._ready += [(request, asked, queues) for request, asked in waiting.requests]

    @handles(_AnswerMore)
    def on_answer_more(self, _: _AnswerMore) -> None:
        """Answer some of the requests whose route is known."""
        left = ENCODED_HERE_MAX
        while self._ready and left > 0:
            request, asked, queues = self._ready.popleft()
            self._waiting_count -= 1
            self._answer(request, asked, queues)
            left -= ANSWER_COST + min(_count(queues), ENCODED_HERE_MAX)
        if self._ready:
            self.system.loop.tell_in_next_round(self.address, _AnswerMore())

    def on_failure(self, *_: object) -> None:
        for request, _asked, _queues in self._ready:
            request.refuse(self.remark())
        for waiting in self._waiting.values():
            for request, _asked in waiting.requests:
                request.refuse(self.remark())
        self._waiting.clear()

    def _answer(self, request: Request, asked: AssignmentQuery, queues: Queues | None) -> None:
        topic, group = asked.topic or "", asked.consumer_group or ""
        view = self._consumers.value.get(group)
        if _is_settled_elsewhere(topic, group, view, self._modes.value, has_route=bool(queues)):
            request.answer(body=AssignmentAnswer([]).encode())
        else:
            mode = self._modes.value.get(topic, {}).get(group) or RequestMode()
            members = () if view is None else view.members.values()
            ids = None if view is None else sorted({each.client_id for each in members})
            answer = _Answer(asked, mode, ids, queues)
            if _count(queues) > ENCODED_HERE_MAX:
                try:
                    encode_later(self._encoder, EncodeAnswer(request, answer), _count(queues))
                except LimitReached as error:
                    self.tell_of(error, request)
                    request.answer(error.code, remark=error.remark)
                return
            request.answer(body=answer.encode())


def _count(queues: Queues | None) -> int:
    return sum(number for _, number in queues or ())


def _checked(asked: AssignmentQuery) -> tuple[str, str]:
    """Return topic and group of a request. Raises RemoteError."""
    model = asked.message_model if asked.message_model in (BROADCASTING, CLUSTERING) else None
    for name, value in (
        ("topic", asked.topic),
        ("consumerGroup", asked.consumer_group),
        ("messageModel", model),
    ):
        if value is None:
            remark = f"java.lang.NullPointerException: {name} is null"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        if len(value) > NAME_CHARS_MAX:
            remark = f"{name} is longer than {NAME_CHARS_MAX} characters"
            raise LimitReached(ResponseCode.SYSTEM_ERROR, remark, "a name is too long")
    return asked.topic or "", asked.consumer_group or ""


def _is_settled_elsewhere(
    topic: str, group: str, view: ConsumerView | None, modes: Modes, *, has_route: bool
) -> bool:
    """Return whether no member has to pull a retry topic.

    That is the group's own one while it requests all its topics by POP, and those that 5.x clients
    name for each topic, `%RETRY%group_topic`: brokers here have none.
    """
    own = RETRY_TOPIC_PREFIX + group
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return False
    if topic != own:
        return not has_route
    wanted = () if view is None else [each for each in view.subscriptions if each != own]
    return bool(wanted) and all(_mode_of(modes, each, group) == POP for each in wanted)


def _mode_of(modes: Modes, topic: str, group: str) -> str:
    mode = modes.get(topic, {}).get(group)
    return PULL if mode is None else mode.mode


def assigned(
    asked: AssignmentQuery,
    mode: RequestMode,
    member_ids: Sequence[str] | None,
    queues: Queues,
) -> list[MessageQueue] | None:
    """Return the client's queues by 5.x's rules, or None where these give no result.

    `member_ids` are sorted, None for an unknown group. `queues` are broker names, sorted, with
    their numbers of queues.
    """
    topic = asked.topic or ""
    ends = [*accumulate(count for _, count in queues)]
    everything = range(ends[-1] if ends else 0)

    def queue_at(position: int) -> MessageQueue:
        broker = bisect_right(ends, position)
        first = ends[broker - 1] if broker else 0
        return MessageQueue(topic, queues[broker][0], position - first)

    if asked.message_model == BROADCASTING:
        return [queue_at(each) for each in everything]
    rule = _RULES.get(asked.strategy_name)
    if rule is None or member_ids is None:
        return None
    own_id = asked.client_id or ""
    if mode.mode == POP and not 0 < mode.pop_share_queue_num < len(member_ids) - 1:
        return [MessageQueue(topic, name, ALL_QUEUES) for name, _ in queues]
    if not own_id or not everything or not member_ids:
        return None
    if mode.mode != POP:
        return [queue_at(each) for each in rule(own_id, member_ids, everything)]
    return [queue_at(each) for each in sorted(_shared(rule, own_id, mode, member_ids, everything))]


def _shared(
    rule: Rule, own_id: str, mode: RequestMode, member_ids: Sequence[str], everything: range
) -> set[int]:
    """Return the queues of a member and of the `pop_share_queue_num` members behind it."""
    if own_id not in member_ids:
        return set()
    index = member_ids.index(own_id)
    if len(member_ids) > len(everything):  # every member has one
        return {index % len(everything)}
    sharing = range(index, index + mode.pop_share_queue_num + 1)
    ids = [member_ids[each % len(member_ids)] for each in sharing]
    return {position for each in ids for position in rule(each, member_ids, everything)}
