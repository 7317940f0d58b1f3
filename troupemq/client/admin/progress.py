"""Progress of consumer groups, by queue and by member: consumed, in flight and stuck.

A queue is stuck if messages wait in it and nothing was consumed from it for STUCK_AFTER_S seconds.
A member is stuck if messages wait in any of its queues and it has finished none for that long.

time                            source                                  known for
of a changed consumer offset    GET_CONSUME_STATS with `withProgress`   TroupeMQ's brokers
of the last finished message    GET_CONSUMER_RUNNING_INFO               clients of TroupeMQ and Java
of the first waiting message    the former, else the message            all brokers

What no server reports is None. A queue without either time is neither stuck nor fine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import NamedTuple

from protocol.bodies import MessageQueue
from protocol.bodies_admin import ClientConnection
from protocol.bodies_own import OffsetProgress, ProgressStats
from troupemq.client.admin.answers import HIDDEN, OPTIONAL, Result, Span, Time
from troupemq.client.admin.members import ClientInfo, queue_named
from troupemq.client.admin.stacks import ThreadStack, busy_sentence, stacks_of
from troupemq.numbers import whole
from troupemq.text import one_line, span_text

STUCK_AFTER_S = 30.0
"""The time at brokers that have no setting for it (stuckAfterSeconds)."""
IN_HAND_MAX = 100
"""Limit of messages in listener calls that are read from one queue of one member."""
_MEMBER_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class CurrentMessage(Result):
    """A message that a member has received and not finished."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    message_id: str | None
    since_ms: Time | None
    """Begin of its listener call; None if the client does not report it."""
    tries: int | None
    """Earlier deliveries that failed; None if the client does not report it."""

    @property
    def place(self) -> str:
        return f"offset {self.queue_offset} of {self.topic}, {self.broker}, queue {self.queue_id}"


_PLACE = ("topic", "broker", "queue_id")
_CURRENT = {"offset": "queue_offset", "message_id": "message_id", "since_ms": "since_ms"}


def _of_current(current: CurrentMessage | None, *names: str) -> dict[str, object]:
    """Return fields of the current message for a row, as `current_…`; None without one."""
    return {
        f"current_{name}": None if current is None else getattr(current, _CURRENT.get(name, name))
        for name in (*names, *_CURRENT, "tries")
    }


@dataclass(frozen=True, slots=True)
class QueueOwner(Result):
    """The member that has a queue; None: not known."""

    client: str | None


@dataclass(frozen=True, slots=True)
class QueueProgress(Result):
    """Progress of a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    owner: QueueOwner | None = field(metadata=OPTIONAL)
    lag: int
    last_consumed_ms: Time
    """Store time of the last consumed message."""
    late_ms: Span | None
    """Time lag: age of the first message that is not consumed; None without one."""
    in_flight: int | None
    """Messages that members have pulled and not consumed."""
    consumed_at_ms: Time | None
    """Time when a message was last consumed, or the offset last reset."""
    is_stuck: bool | None
    stuck_since_ms: Time | None
    last_message_id: str | None = None
    """The message that was last finished; only if members were asked, and report it."""
    current: CurrentMessage | None = field(default=None, metadata=HIDDEN)
    """The oldest message in flight; only if members were asked."""
    group_tps: float = field(default=0.0, metadata=HIDDEN)
    """Throughput of the group at this broker, msg/s."""

    @property
    def client(self) -> str | None:
        return None if self.owner is None else self.owner.client

    @property
    def place(self) -> str:
        """The place where the group stands."""
        return (
            f"offset {self.consumer_offset} of {self.topic}, {self.broker}, queue {self.queue_id}"
        )

    def row(self) -> dict[str, object]:
        return Result.row(self) | _of_current(self.current)


@dataclass(frozen=True, slots=True)
class GroupProgress(Result):
    """Progress of one group at all brokers."""

    group: str
    members: int | None
    """None if it is not known."""
    version: int | None
    type: str | None
    model: str | None
    tps: float
    lag: int
    late_ms: Span | None
    in_flight: int | None
    consumed_at_ms: Time | None
    stuck_queues: int | None
    """None if no broker and no member reports when messages are consumed."""
    stuck_since_ms: Time | None
    verdict: str
    held_since_ms: Time | None = None
    """Time of the oldest listener call or receive that has not ended; None if none is known."""
    held_tries: int | None = None
    """Most earlier deliveries of such a message."""
    queues: tuple[QueueProgress, ...] = field(default=(), metadata=HIDDEN)

    @property
    def is_stuck(self) -> bool | None:
        return None if self.stuck_queues is None else self.stuck_queues > 0


@dataclass(frozen=True, slots=True)
class MemberProgress(Result):
    """Progress of one member of a group; None for what it does not report."""

    client: str
    address: str
    language: str
    version: int
    queues: int | None
    lag: int | None
    cached: int | None
    """Messages that it has pulled and not consumed."""
    tps: float | None
    failed_tps: float | None
    consumed_at_ms: Time | None
    """Time when it last finished a message; for Java's client also when it got its queues."""
    is_stuck: bool | None
    stuck_since_ms: Time | None
    verdict: str
    last_message_id: str | None = None
    """The message that it last finished; Java's client does not tell."""
    current: CurrentMessage | None = field(default=None, metadata=HIDDEN)
    """The message whose call lasts longest, else the oldest one that it holds."""
    in_hand: tuple[CurrentMessage, ...] = field(default=(), metadata=HIDDEN)
    """All messages in listener calls, the longest call first."""
    threads: tuple[ThreadStack, ...] = field(default=(), metadata=HIDDEN)
    """Busy workers first."""
    queue_names: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    info: ClientInfo | None = field(default=None, metadata=HIDDEN)

    def row(self) -> dict[str, object]:
        return Result.row(self) | _of_current(self.current, *_PLACE)


@dataclass(frozen=True, slots=True)
class ProgressReport(Result):
    """Everything about the progress of one group."""

    group: GroupProgress
    queues: tuple[QueueProgress, ...]
    members: tuple[MemberProgress, ...]
    failures: tuple[str, ...] = ()
    """A sentence for each server that did not answer."""

    def row(self) -> dict[str, object]:
        return {
            "group": self.group.row(),
            "queues": [each.row() for each in self.queues],
            "members": [each.row() for each in self.members],
        }


# --- what a member reports


class HeldQueue(NamedTuple):
    """One queue at its member."""

    queue: MessageQueue
    cached: int
    first_offset: int
    idle_since_ms: int
    """Time of the last finished message, else of the assignment; 0 if it is not reported."""
    consumed_at_ms: int
    """Time of the last finished message, as far as the client tells it from an assignment."""
    last_message_id: str | None
    """The last finished message; None before the first, and if it is not reported."""
    in_hand: Sequence[CurrentMessage]

    @property
    def oldest(self) -> CurrentMessage | None:
        """The oldest message in flight; None without any."""
        if self.in_hand:
            return min(self.in_hand, key=lambda each: each.queue_offset)
        if not self.cached:
            return None
        place = self.queue.topic, self.queue.broker_name, self.queue.queue_id
        return CurrentMessage(*place, self.first_offset, None, None, None)


class AskedMember(NamedTuple):
    """One member and its answer; `refusal` is the reason for a missing one."""

    connection: ClientConnection
    info: ClientInfo | None
    refusal: str = ""

    @property
    def held(self) -> list[HeldQueue]:
        return [] if self.info is None else self._queues(self.info.table)

    @property
    def received(self) -> list[HeldQueue]:
        """Queues of messages that it settles one by one; other members have the same queues."""
        return [] if self.info is None else self._queues(self.info.pop_table or {})

    def _queues(self, table: Mapping[str, object]) -> list[HeldQueue]:
        named = ((queue_named(str(name)), each) for name, each in table.items())
        return [
            _held(queue, each)
            for queue, each in named
            if queue is not None and isinstance(each, dict)
        ]


def _held(queue: MessageQueue, said: Mapping[str, object]) -> HeldQueue:
    calls = said.get("inHand")
    calls = calls[:IN_HAND_MAX] if isinstance(calls, list) else []
    place = queue.topic, queue.broker_name, queue.queue_id
    in_hand = [
        CurrentMessage(
            *place,
            offset,
            _id(each.get("msgId")),
            Time(whole(each.get("since")) or 0),
            whole(each.get("tries")) or 0,
        )
        for each in calls
        if isinstance(each, dict) and (offset := whole(each.get("queueOffset"))) is not None
    ]
    cached, first, finished = (
        max(0, whole(said.get(name)) or 0)
        for name in ("cachedMsgCount", "cachedMsgMinOffset", "lastConsumeTimestamp")
    )
    none_yet = whole(said.get("lastConsumedOffset")) == -1
    last = _id(said.get("lastConsumedMsgId"))
    return HeldQueue(queue, cached, first, finished, 0 if none_yet else finished, last, in_hand)


def _id(value: object) -> str | None:
    return one_line(str(value or ""))[:_MEMBER_CHARS_MAX] or None


# --- rules


def queues_of(
    stats: Iterable[ProgressStats],
    stuck_after_s: float | None = None,
    members: Sequence[AskedMember] | None = None,
    came_ms: Mapping[MessageQueue, int] | None = None,
) -> list[QueueProgress]:
    """Return the progress in each queue, in order.

    `stuck_after_s`: by default as each broker is set. `members`: None if not asked. `came_ms`:
    times of first waiting messages that no broker reports.
    """
    held = {
        each.queue: (asked.connection.client_id, each)
        for asked in members or ()
        for each in asked.held
    }
    found = []
    for each in stats:
        now_ms, after_ms = each.answered_timestamp or _now_ms(), stuck_after_ms(each, stuck_after_s)
        for queue, where in each.offset_table.items():
            owner, at_member = held.get(queue, (None, None))
            came = where.waiting_timestamp or (came_ms or {}).get(queue, 0)
            since_ms = _idle_since(where, each.observed_since, came, at_member)
            is_stuck = None if since_ms is None else now_ms - since_ms >= after_ms
            if not where.lag:
                is_stuck = False
            known = [where.moved_timestamp, 0 if at_member is None else at_member.consumed_at_ms]
            is_told = bool(each.observed_since) or at_member is not None
            found.append(
                QueueProgress(
                    queue.topic,
                    queue.broker_name,
                    queue.queue_id,
                    where.broker_offset,
                    where.consumer_offset,
                    None if members is None else QueueOwner(owner),
                    where.lag,
                    Time(where.last_timestamp),
                    Span(max(0, now_ms - came)) if where.lag and came else None,
                    _in_flight(where, at_member),
                    Time(max(known)) if is_told else None,
                    is_stuck,
                    Time(since_ms) if is_stuck and since_ms else None,
                    None if at_member is None else at_member.last_message_id,
                    None if at_member is None else at_member.oldest,
                    each.consume_tps,
                )
            )
    return sorted(found, key=lambda each: (each.topic, each.broker, each.queue_id))


def stuck_after_ms(stats: ProgressStats, given_s: float | None) -> float:
    """Return the given time without consumption, else the broker's setting."""
    return given_s * 1000 if given_s is not None else stats.stuck_after or STUCK_AFTER_S * 1000


def _now_ms() -> int:
    return time_ns() // 1_000_000


def _idle_since(
    where: OffsetProgress, observed_ms: int, came_ms: int, held: HeldQueue | None
) -> int | None:
    """Return since when messages wait and none is consumed; None if that is not known."""
    moved_ms = where.moved_timestamp or observed_ms
    finished_ms = 0 if held is None else held.idle_since_ms
    if not (moved_ms or finished_ms) or not (came_ms or observed_ms):
        return None
    return max(moved_ms, finished_ms, came_ms)


def _in_flight(where: OffsetProgress, held: HeldQueue | None) -> int | None:
    if held is not None:
        return held.cached
    pull_offset = where.pull_offset
    return None if pull_offset is None else max(0, pull_offset - where.consumer_offset)


def group_of(
    group: str,
    queues: Sequence[QueueProgress],
    *,
    tps: float,
    members: int | None = None,
    version: int | None = None,
    kind: str | None = None,
    model: str | None = None,
    stats: Sequence[ProgressStats] = (),
    now_ms: int | None = None,
) -> GroupProgress:
    """Return the progress of a group as the sum of its queues.

    `stats`: answers of brokers, which know receives without acknowledgement.
    """
    stuck = sorted(
        (each for each in queues if each.is_stuck), key=lambda each: each.stuck_since_ms or 0
    )
    is_known = any(each.is_stuck is not None for each in queues if each.lag) or not any(
        each.lag for each in queues
    )
    flying = [each.in_flight for each in queues if each.in_flight is not None]
    times = [each.consumed_at_ms for each in queues if each.consumed_at_ms is not None]
    since_ms = stuck[0].stuck_since_ms if stuck else None
    found = GroupProgress(
        group,
        members,
        version,
        kind,
        model,
        tps,
        sum(each.lag for each in queues),
        max((each.late_ms for each in queues if each.late_ms is not None), default=None),
        sum(flying) if flying else None,
        max(times, default=None),
        len(stuck) if is_known else None,
        since_ms,
        "",
        *_held_longest(queues, stats),
        tuple(queues),
    )
    return replace(found, verdict=_group_verdict(found, stuck, now_ms or _now_ms()))


def _held_longest(
    queues: Sequence[QueueProgress], stats: Sequence[ProgressStats]
) -> tuple[Time | None, int | None]:
    """Return the begin of the oldest call or receive that has not ended, and the most tries."""
    calls = [each.current for each in queues if each.current is not None and each.current.since_ms]
    times = [each.since_ms or 0 for each in calls]
    times += [each.held_since for each in stats if each.held_since]
    tries = [each.tries or 0 for each in calls]
    tries += [each.held_tries for each in stats if each.held_since]
    return (Time(min(times)), max(tries)) if times else (None, None)


def _group_verdict(group: GroupProgress, stuck: Sequence[QueueProgress], now_ms: int) -> str:
    if not group.lag:
        return "nothing waits"
    alone = "; it has no member" if group.members == 0 else ""
    if stuck:
        first = stuck[0]
        more = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        span = span_text(max(0, now_ms - (first.stuck_since_ms or 0)) / 1000)
        return f"stuck for {span} at {first.place}{more}{alone}"
    if group.stuck_queues is None:
        return f"unknown: nothing reports when messages are consumed{alone}"
    return f"consumes {group.tps:,.1f} msg/s{alone}"


def members_of_group(
    group: str,
    members: Sequence[AskedMember],
    queues: Sequence[QueueProgress],
    stuck_after_s: float = STUCK_AFTER_S,
    now_ms: int | None = None,
) -> list[MemberProgress]:
    """Return the progress of each member, stuck ones first."""
    by_place = {(each.topic, each.broker, each.queue_id): each for each in queues}
    now_ms = now_ms or _now_ms()
    found = [_member(group, each, by_place, stuck_after_s * 1000, now_ms) for each in members]
    return sorted(found, key=lambda each: (each.is_stuck is not True, each.client))


def _member(
    group: str,
    asked: AskedMember,
    by_place: Mapping[tuple[str, str, int], QueueProgress],
    stuck_after_ms: float,
    now_ms: int,
) -> MemberProgress:
    link = asked.connection
    start = link.client_id, link.client_addr, link.language, link.version
    if asked.info is None:
        verdict = f"reports nothing: {asked.refusal}"
        return MemberProgress(*start, None, None, None, None, None, None, None, None, verdict)
    held = asked.held
    places = ((each.queue.topic, each.queue.broker_name, each.queue.queue_id) for each in held)
    queues = [by_place[place] for place in places if place in by_place]
    in_hand = sorted(
        (one for each in (*held, *asked.received) for one in each.in_hand),
        key=lambda each: each.since_ms or 0,
    )
    oldest = [one for each in held if (one := each.oldest) is not None]
    current = in_hand[0] if in_hand else min(oldest, key=_age_unknown, default=None)
    rates = asked.info.rates
    cached, lag = sum(each.cached for each in held), sum(each.lag for each in queues)
    finished_ms = max((each.consumed_at_ms for each in held), default=0)
    idle_ms = max((each.idle_since_ms for each in held), default=0)
    since_ms = _member_idle_since(idle_ms, current, queues, now_ms)
    waits = bool(cached or lag)
    is_stuck = waits and (None if since_ms is None else now_ms - since_ms >= stuck_after_ms)
    threads = stacks_of(asked.info.said.get("jstack"), group)
    found = MemberProgress(
        *start,
        len(held),
        lag,
        cached,
        rates and rates[0],
        rates and rates[1],
        Time(finished_ms) if finished_ms else None,
        is_stuck,
        Time(since_ms) if is_stuck and since_ms else None,
        "",
        max(held, key=_last_finish).last_message_id if held else None,
        current,
        tuple(in_hand),
        threads,
        tuple(sorted(str(name) for name in asked.info.table)),
        asked.info,
    )
    return replace(found, verdict=_member_verdict(found, now_ms))


def _last_finish(held: HeldQueue) -> int:
    return held.consumed_at_ms


def _age_unknown(message: CurrentMessage) -> tuple[str, str, int]:
    return message.topic, message.broker, message.queue_id


def _member_idle_since(
    idle_ms: int,
    current: CurrentMessage | None,
    queues: Sequence[QueueProgress],
    now_ms: int,
) -> int | None:
    """Return since when messages wait at a member and it finishes none."""
    waits: list[int] = [now_ms - each.late_ms for each in queues if each.late_ms is not None]
    if current is not None and current.since_ms:
        waits.append(current.since_ms)
    return max(idle_ms, min(waits)) if idle_ms and waits else None


def _member_verdict(member: MemberProgress, now_ms: int) -> str:
    """Return what the member does, or why it does nothing, with the function it is in."""
    threads = busy_sentence(member.threads) if member.threads else ""
    if member.is_stuck and member.stuck_since_ms:
        span = span_text(max(0, now_ms - member.stuck_since_ms) / 1000)
        if not member.cached:
            return f"nothing finished for {span}; it has pulled no message"
        return f"nothing finished for {span}; {threads or 'its threads are unknown'}"
    if not member.queues:
        in_flight = None if member.info is None else member.info.in_flight
        return "has no queue" if in_flight is None else f"in flight: {in_flight:,}"
    if not member.lag and not member.cached:
        return "nothing waits"
    if member.is_stuck is None:
        return "unknown: it does not report when it finishes messages"
    rate = "" if member.tps is None else f"{member.tps:,.1f} msg/s"
    return "; ".join(each for each in ("consumes " + rate if rate else "consumes", threads) if each)


def members_told(stats: Sequence[ProgressStats]) -> int | None:
    """Return the number of members; each connects to all brokers. None if no broker reports it."""
    found = max((each.members for each in stats), default=-1)
    return found if found >= 0 else None


def stats_by_group(
    tables: Iterable[Mapping[str, Sequence[ProgressStats]]],
) -> Iterator[tuple[str, list[ProgressStats]]]:
    """Yield each group with its progress at all brokers, from their lists."""
    found: dict[str, list[ProgressStats]] = {}
    for table in tables:
        for group, several in table.items():
            found.setdefault(group, []).extend(several)
    yield from found.items()
