"""Life of a message: every known event from its send to its end, in order.

event                    known from
sent                     the message (born time), or a trace of its producer
prepared, committed      the half message; a trace has the verdict
delayed, due             the copy in the delay level and its setting
stored, indexed          the message, and the query that found it
delivered, consumed      traces of consumers; else members that hold it now, and consumer offsets
retried, dead            copies in the group's retry topic and dead-letter queue, with their reasons
redriven                 the copy with the key that `job redrive` gives it
waiting, filtered        consumer offsets and subscriptions: the state at present

All brokers answer these queries, RocketMQ's too. `unknown` lists what nothing tells. Times of
`sent` and of traces are of the client's clock, the others of the broker's.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from protocol.delay_levels import delay_levels_ms
from protocol.headers.client import QueryMessageHeader
from protocol.message_id import is_offset_message_id
from protocol.properties import DELAY, REAL_TOPIC, TRAN_MSG, TROUPE_FAILURE
from protocol.timers import TIMER_OUT_MS
from protocol.topic_names import (
    DLQ_TOPIC_PREFIX,
    HALF_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    TRACE_TOPIC,
)
from troupemq.client.admin.answers import HIDDEN, Failures, Result, Time
from troupemq.client.admin.messages import FOREVER_MS, QUERIED_MAX, MessageAdmin
from troupemq.client.admin.operations import reads
from troupemq.client.admin.reading import TraceEvent, events_in
from troupemq.client.errors import ClientError, MessageNotFound, RouteNotFound
from troupemq.client.message import MessageView
from troupemq.numbers import whole
from troupemq.text import one_line

REDRIVE_MARK = "redrive:"
"""Start of the key of a redriven copy; the broker's id of the dead letter follows."""
LIVES_MAX = 10
"""Limit of messages with the same key whose lives are told, the newest."""
GROUPS_MAX = 50
"""Limit of groups that are asked about a message."""
COPIES_MAX = 64
"""Limit of copies of a message in one topic at one broker."""

_STAGES = (
    *("sent", "prepared", "committed", "rolled back", "delayed", "due", "stored", "indexed"),
    *("delivered", "consumed", "failed", "retried", "dead", "redriven"),
    *("filtered", "passed", "waiting", "unknown"),
)
"""Order of events at the same time; those without a time are states at present, and come last."""


@dataclass(frozen=True, slots=True)
class LifeEvent(Result):
    """One event; fields that do not apply, or are not known, are None."""

    time_ms: Time | None
    """None for a state at present."""
    what: str
    group: str | None = None
    client: str | None = None
    topic: str | None = None
    broker: str | None = None
    queue_id: int | None = None
    offset: int | None = None
    tries: int | None = None
    took_ms: int | None = None
    detail: str = ""
    message_id: str | None = None
    """Id of another message: of the redriven copy."""

    @property
    def sentence(self) -> str:
        """Return the event in words, without its time."""
        words = [self.what]
        if self.group is not None:
            words.append(f"by {self.group}" if self.what in _BY_GROUP else f"for {self.group}")
        if self.client is not None:
            words.append(f"({self.client})")
        if self.topic is not None:
            words.append(f"at offset {self.offset} of {self.topic}, {self.broker},")
            words.append(f"queue {self.queue_id}")
        if self.tries:
            words.append(f"after {self.tries} failed tries")
        if self.took_ms is not None:
            words.append(f"in {self.took_ms} ms")
        text = " ".join(words)
        return f"{text}: {self.detail}" if self.detail else text


_BY_GROUP = ("consumed", "failed", "filtered", "passed")


@dataclass(frozen=True, slots=True)
class MessageLife(Result):
    """The events of one message, in order, and what cannot be known."""

    message_id: str
    topic: str
    tags: str | None
    keys: tuple[str, ...]
    events: tuple[LifeEvent, ...]
    unknown: tuple[str, ...]
    """A sentence for each part of its life that nothing reports."""
    view: MessageView | None = field(default=None, metadata=HIDDEN)
    """The stored message; None if only copies of it are left."""


class LifeAdmin(MessageAdmin):
    @reads
    async def message_lives(
        self,
        failures: Failures,
        key: str,
        *,
        topic: str | None = None,
        trace_topic: str = TRACE_TOPIC,
    ) -> AsyncIterator[MessageLife]:
        """Return the life of each message with a key, a producer's id or a broker's id.

        Without `topic` all topics are searched. Raises MessageNotFound if none has it, and
        RouteNotFound for a missing `topic`.
        """
        views = await self._views_with(failures, key, topic)
        by_id: dict[str, MessageView] = {}
        for view in sorted(views, key=lambda each: each.store_timestamp_ms):
            by_id.setdefault(view.message_id, view)
        if not by_id:
            if topic is not None:
                await self.topic_brokers(topic)
            where = topic or "any topic"
            raise MessageNotFound(f"no message with the key or id {key} is in {where}")
        if len(by_id) > LIVES_MAX:
            failures.add(f"{len(by_id)} messages have this key: the newest {LIVES_MAX} are shown.")
        for view in [*by_id.values()][-LIVES_MAX:]:
            yield await self._life_of(failures, view, trace_topic)

    @reads
    async def life_of(
        self, failures: Failures, view: MessageView, *, trace_topic: str = TRACE_TOPIC
    ) -> AsyncIterator[MessageLife]:
        """Return the life of one message, as the only result."""
        yield await self._life_of(failures, view, trace_topic)

    # --- the message and its copies

    async def _views_with(
        self, failures: Failures, key: str, topic: str | None
    ) -> list[MessageView]:
        if is_offset_message_id(key):
            with suppress(ClientError):
                return [await self.view_message(key)]
        topics = [topic] if topic is not None else await self.topics()
        found: list[MessageView] = []
        for each in topics:
            if topic is not None or each not in SYSTEM_TOPICS:
                found += await self._copies(failures, each, key)
        own = [each for each in found if not each.queue.topic.startswith(_DERIVED)]
        return own or found

    async def _copies(self, failures: Failures, topic: str, key: str) -> list[MessageView]:
        """Return the messages of a topic with a key, oldest first; none for a missing topic."""
        header = QueryMessageHeader(topic, key, QUERIED_MAX, 0, FOREVER_MS)
        found: list[MessageView] = []
        try:
            masters = await self._masters(topic)
        except RouteNotFound:
            return []
        for name, address in sorted(masters.items()):
            with failures.attempt():
                found += (await self._query(address, name, header))[:COPIES_MAX]
        return sorted(found, key=lambda each: each.store_timestamp_ms)

    async def _life_of(
        self, failures: Failures, view: MessageView, trace_topic: str
    ) -> MessageLife:
        message_id, topic = view.message_id, view.topic
        found = await self._copies(failures, topic, message_id)
        copies = [each for each in found if each.message_id == message_id]
        traces = await self._traces(failures, message_id, trace_topic)
        delayed = _first_stays(
            each
            for each in await self._copies(failures, SCHEDULE_TOPIC, message_id)
            if each.message_id == message_id
        )
        groups = await self._groups_of(failures, topic)
        events = [*_sent(view, copies, traces)]
        events += [each async for each in self._delayed(delayed, copies)]
        unknown: list[str] = []
        if TRAN_MSG in view.properties or view.queue.topic == HALF_TOPIC:
            ends = self._transaction(failures, message_id, traces)
            events += [each async for each in ends]
        events += _stored(copies)
        if not copies and view.queue.topic == topic:
            events.append(_placed("stored", view))
            unknown.append("The index does not have its id: it is off, or has not reached it yet.")
        for group in groups[:GROUPS_MAX]:
            there = self._of_group(failures, group, view, copies, delayed, traces)
            events += [each async for each in there]
        if len(groups) > GROUPS_MAX:
            unknown.append(f"Only {GROUPS_MAX} of {len(groups)} groups were asked.")
        unknown += _unknown(view, groups, traces)
        return MessageLife(
            message_id,
            topic,
            view.tags,
            view.keys,
            tuple(sorted(events, key=_order)),
            tuple(unknown),
            copies[0] if copies else (view if view.queue.topic == topic else None),
        )

    async def _traces(self, failures: Failures, message_id: str, topic: str) -> list[TraceEvent]:
        copies = await self._copies(failures, topic, message_id)
        return await self._caller.blocking(lambda: [*events_in(copies, message_id)])

    # --- stages

    async def _delayed(
        self, delayed: Sequence[MessageView], copies: Sequence[MessageView]
    ) -> AsyncIterator[LifeEvent]:
        """Yield the delays before the first delivery; those of retries belong to their groups."""
        for view in delayed:
            if not view.properties.get(REAL_TOPIC, "").startswith(RETRY_TOPIC_PREFIX):
                yield await self._delay(view, "delayed")
                times = (each.store_timestamp_ms for each in copies)
                due_ms = next((time for time in times if time >= view.store_timestamp_ms), None)
                if due_ms is not None:
                    yield LifeEvent(Time(due_ms), "due", detail="moved to its topic")

    async def _delay(self, view: MessageView, what: str, group: str | None = None) -> LifeEvent:
        due_ms = whole(view.properties.get(_DUE))
        detail = f"timer, due at {Time(due_ms or 0)}"
        if due_ms is None:
            level = whole(view.properties.get(DELAY)) or view.queue.queue_id + 1
            delay_ms = await self._delay_ms(view, level)
            due = "" if delay_ms is None else f", due at {Time(view.store_timestamp_ms + delay_ms)}"
            detail = f"delay level {level}{due}"
        if reason := view.properties.get(TROUPE_FAILURE):
            detail += f"; reason: {one_line(reason)}"
        return LifeEvent(
            Time(view.store_timestamp_ms),
            what,
            group,
            tries=view.reconsume_times or None,
            detail=detail,
        )

    async def _delay_ms(self, view: MessageView, level: int) -> int | None:
        """Return the delay of a level at the message's broker; None if that does not answer."""
        try:
            _, address = await self.listed(view.store_host)
            levels = delay_levels_ms((await self.settings_at(address)).get("messageDelayLevel", ""))
        except (ClientError, ValueError):
            return None
        return levels[level - 1] if 0 < level <= len(levels) else None

    async def _transaction(
        self, failures: Failures, message_id: str, traces: Sequence[TraceEvent]
    ) -> AsyncIterator[LifeEvent]:
        halves = await self._copies(failures, HALF_TOPIC, message_id)
        for number, half in enumerate(halves):
            detail = "half message" if number == 0 else f"checked back {number} times"
            yield LifeEvent(Time(half.store_timestamp_ms), "prepared", detail=detail)
        for event in traces:
            if event.kind == "EndTransaction":
                state = str(event.state or "")
                detail = f"producer {event.group}: {state}"
                yield LifeEvent(_time(event.time_ms), _verdict_of(state), detail=detail)

    async def _of_group(
        self,
        failures: Failures,
        group: str,
        view: MessageView,
        copies: Sequence[MessageView],
        delayed: Sequence[MessageView],
        traces: Sequence[TraceEvent],
    ) -> AsyncIterator[LifeEvent]:
        """Yield what became of the message in one group."""
        traced = list(_traced(group, traces))
        for event in traced:
            yield event
        retry_topic = RETRY_TOPIC_PREFIX + group
        pending = [each for each in delayed if each.properties.get(REAL_TOPIC) == retry_topic]
        returns = [await self._delay(each, "retried", group) for each in pending]
        for event in returns:
            yield event
        retries = [
            each
            for each in await self._copies(failures, retry_topic, view.message_id)
            if each.topic == view.topic
        ]
        for each in retries:
            yield _placed("due", each, group)
        letters = await self._copies(failures, DLQ_TOPIC_PREFIX + group, view.message_id)
        for each in letters:
            reason = each.properties.get(TROUPE_FAILURE)
            detail = f"reason: {one_line(reason)}" if reason else ""
            yield replace(_placed("dead", each, group), detail=detail, tries=each.reconsume_times)
            for copy in await self._copies(
                failures, view.topic, REDRIVE_MARK + each.offset_message_id
            ):
                yield replace(_placed("redriven", copy, group), message_id=copy.message_id)
        if len(pending) > len(retries):
            yield LifeEvent(None, "waiting", group, detail=f"next try: {returns[-1].detail}")
        elif not letters:
            async for event in self._present(group, [view, *copies, *retries][-1], traced):
                yield event

    async def _present(
        self, group: str, newest: MessageView, traced: Sequence[LifeEvent]
    ) -> AsyncIterator[LifeEvent]:
        """Yield the state of the newest copy for a group at present."""
        if event := await self._in_hands(group, newest):
            yield event
            return
        state = "unknown"
        with suppress(ClientError):
            _, address = await self.listed(newest.store_host)
            state = await self._track(newest, group, address)
            if state == "offline" and await self._has_passed(newest, group, address):
                state = "consumed"
        if state == "consumed" and any(each.what == "consumed" for each in traced):
            return
        what, detail = _STATES.get(state, ("unknown", state))
        yield LifeEvent(None, what, group, detail=detail)

    async def _in_hands(self, group: str, view: MessageView) -> LifeEvent | None:
        """Return the delivery to a member whose listener has not returned; None without one."""
        place = view.queue.topic, view.queue.broker_name, view.queue.queue_id, view.queue_offset
        _, asked = await self._asked_members(group, with_stacks=False)
        for member in asked:
            for call in (call for held in member.held for call in held.in_hand):
                if (call.topic, call.broker, call.queue_id, call.queue_offset) == place:
                    client, detail = member.connection.client_id, "its listener has not returned"
                    return LifeEvent(
                        call.since_ms, "delivered", group, client, tries=call.tries, detail=detail
                    )
        return None


def _first_stays(delayed: Iterable[MessageView]) -> list[MessageView]:
    """Return delayed messages; of a timer, which may wait in several levels, its first stay."""
    found: dict[tuple[str | None, str], MessageView] = {}
    for each in delayed:
        one = each.properties.get(_DUE) or each.offset_message_id
        found.setdefault((each.properties.get(REAL_TOPIC), one), each)
    return list(found.values())


_DUE = TIMER_OUT_MS.decode()
_DERIVED = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
_STATES = {
    "consumed": ("passed", "its offset is consumed; who consumed it is not recorded"),
    "filtered": ("filtered", "the group's subscription does not have its tag"),
    "not_yet": ("waiting", "not consumed yet"),
    "offline": ("waiting", "the group has no member"),
    "pull": ("unknown", "pull consumers do not report what they have consumed"),
    "unknown": ("unknown", "the broker does not tell"),
}


def _verdict_of(state: str) -> str:
    if state.startswith("COMMIT"):
        return "committed"
    return "rolled back" if state.startswith("ROLLBACK") else "unknown"


def _placed(what: str, view: MessageView, group: str | None = None) -> LifeEvent:
    queue = view.queue
    return LifeEvent(
        Time(view.store_timestamp_ms),
        what,
        group,
        None,
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        view.queue_offset,
    )


def _sent(
    view: MessageView, copies: Sequence[MessageView], traces: Sequence[TraceEvent]
) -> Iterator[LifeEvent]:
    """Yield the sends: those that a trace has, else that of the message itself."""
    traced = [each for each in traces if each.kind == "Pub"]
    for each in traced:
        good = "" if each.success in (None, "true") else "not acknowledged as stored"
        yield LifeEvent(
            _time(each.time_ms),
            "sent",
            client=each.client or view.born_host,
            took_ms=whole(each.cost_ms),
            detail="; ".join(one for one in (f"producer {each.group}", good) if one),
        )
    if not traced:
        first = copies[0] if copies else view
        yield LifeEvent(Time(first.born_timestamp_ms), "sent", client=first.born_host)


def _stored(copies: Sequence[MessageView]) -> Iterator[LifeEvent]:
    for number, each in enumerate(copies):
        event = _placed("stored", each)
        yield replace(event, detail="again: its producer retried the send") if number else event
        yield LifeEvent(Time(each.store_timestamp_ms), "indexed", detail="found by its id")


def _traced(group: str, traces: Sequence[TraceEvent]) -> Iterator[LifeEvent]:
    """Yield the deliveries to a group that traces have, and their results."""
    befores: dict[str, TraceEvent] = {}
    for each in traces:
        if each.kind == "SubBefore" and each.group == group:
            befores[str(each.request_id)] = each
            yield LifeEvent(
                _time(each.time_ms),
                "delivered",
                group,
                each.client,
                tries=whole(each.retries) or None,
            )
    for each in traces:
        before = befores.get(str(each.request_id))
        if each.kind == "SubAfter" and (before is not None or each.group == group):
            took_ms = whole(each.cost_ms)
            begun = None if before is None else _time(before.time_ms)
            ended = _time(each.time_ms) or (begun and Time(begun + (took_ms or 0)))
            what = "failed" if each.success == "false" else "consumed"
            client = None if before is None else before.client
            yield LifeEvent(ended, what, group, client, took_ms=took_ms)


def _unknown(
    view: MessageView, groups: Sequence[str], traces: Sequence[TraceEvent]
) -> Iterator[str]:
    if not groups:
        yield "No group consumes its topic, or no broker told its groups."
    if not any(each.kind == "Pub" for each in traces):
        yield "The send was not traced: its duration and its result are unknown."
    if groups and not any(each.kind.startswith("Sub") for each in traces):
        yield "No consumer traces: who consumed it, and when, is not recorded."


def _time(value: object) -> Time | None:
    return value if isinstance(value, Time) and value > 0 else None


def _order(event: LifeEvent) -> tuple[bool, int, int]:
    rank = _STAGES.index(event.what)
    return event.time_ms is None, event.time_ms or 0, rank
