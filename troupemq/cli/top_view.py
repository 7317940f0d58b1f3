"""View of `top`: the lines of its screen, and the effects of its keys, without a terminal.

Three views: the cluster with its groups, one group with its members, and the actors. Rows with a
problem begin with `!`, besides their colour.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from protocol.bodies_own import ActorLine
from troupemq.cli.terminal import (
    ALARM,
    BACKSPACE,
    BOLD,
    CHOSEN,
    DIM,
    DOWN,
    ENTER,
    ESCAPE,
    LEFT,
    PAGE_DOWN,
    PAGE_UP,
    PLAIN,
    RIGHT,
    UP,
    Line,
)
from troupemq.client.admin.progress import GroupProgress, MemberProgress, QueueProgress
from troupemq.cluster_overview import BrokerFigures, ClusterOverview
from troupemq.text import cut, one_line, padded, size_text, span_text

Row = TypeVar("Row")
Cell = str | int | float | None

TROUBLES_SHOWN_MAX, BROKERS_SHOWN_MAX = 3, 4
PAGE = 10
LATEST_MS = 1 << 62
NAME_COLUMNS_MIN = 8
FILTER_CHARS_MAX = 100
KEYS = "q quit  ↑↓ choose  enter members  ←→ sort  r reverse  / filter  a actors  ? help"
GROUP_KEYS = "esc back  ↑↓ scroll  t threads  q quit  ? help"
ACTOR_KEYS = "esc back  ↑↓ scroll  q quit  ? help"
HELP = """\
q           quit
↑ ↓         choose a group, or scroll; page up and page down go ten rows
enter       the members and queues of the chosen group
esc         back; also ends a filter
← →         sort by the column to the left or right
r           reverse the order
/           show only groups with this text in their name or topic
a           the actors of the brokers, which are asked only while they are shown
t           stacks of the threads that call the listener, without library calls
?           this page

Lag         messages that a group has not consumed, in all its topics
Time lag    age of the first message that is not consumed; ≤ is an upper bound
In flight   pulled and not consumed
Out         messages pulled per second, in the last minute
Stuck       time for which messages wait and none was consumed, from the broker's
            stuckAfterSeconds on; ? if no server reports it

A row that begins with ! has a problem.""".splitlines()


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    heading: str
    cell: Callable[[Row], str]
    width: int = 0
    """Width in columns; 0 for a name, which shares the rest of the line."""
    order: Callable[[Row], Cell] | None = None
    """Value to sort by; None for a column that is not sorted by."""
    from_columns: int = 0
    """Width of the terminal from which the column is shown."""


def table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    width: int,
    *,
    is_bad: Callable[[Row], bool] = lambda _: False,
    mark: str = "",
    chosen: Row | None = None,
) -> list[Line]:
    """Return a heading and a line per row; the heading `mark` has an arrow."""
    shown = [each for each in columns if width >= each.from_columns]
    rest = width - 1 - sum(max(each.width, 0) for each in shown) - len(shown)
    names = [each for each in shown if not each.width]
    share = max(NAME_COLUMNS_MIN, rest // max(1, len(names)))

    def line(cells: Iterator[str], start: str) -> str:
        parts = []
        for each, text in zip(shown, cells, strict=True):
            size = each.width or share
            parts.append(padded(cut(text, size), size, right=bool(each.width)))
        return f"{start}{' '.join(parts)}".rstrip()

    headings = (f"{each.heading}▾" if each.heading == mark else each.heading for each in shown)
    lines = [Line(line(headings, " "), BOLD)]
    for row in rows:
        bad = is_bad(row)
        text = line((one_line(each.cell(row)) for each in shown), "!" if bad else " ")
        style = ALARM if bad else PLAIN
        lines.append(Line(text, CHOSEN if row is chosen else style))
    return lines


def _span(ms: float | None) -> str:
    return "" if ms is None else span_text(ms / 1000)


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


BROKERS: Sequence[Column[BrokerFigures]] = (
    Column("Broker", lambda each: each.place.name),
    Column("Id", lambda each: str(each.place.id), 2),
    Column("In (msg/s)", lambda each: _of(each, f"{each.in_tps:,.0f}"), 10),
    Column("Out (msg/s)", lambda each: _of(each, f"{each.out_tps:,.0f}"), 11),
    Column("Send queue", lambda each: _of(each, f"{each.waiting_sends:,}"), 10),
    Column("Dispatch lag", lambda each: _of(each, size_text(each.behind_bytes)), 12),
    Column("Replica lag", lambda each: _replica(each), 11),
    Column("Log", lambda each: _of(each, size_text(each.log_bytes)), 10, from_columns=100),
    Column("Disk", lambda each: _of(each, f"{each.disk_ratio:.0%}"), 4),
)


def _of(each: BrokerFigures, text: str) -> str:
    return text if each.version else "–"


def _replica(each: BrokerFigures) -> str:
    return "" if each.lag_bytes is None else size_text(each.lag_bytes)


def _topic(group: GroupProgress) -> str:
    """Return the topic with the largest lag, and the number of others."""
    lags: dict[str, int] = {}
    for each in group.queues:
        lags[each.topic] = lags.get(each.topic, 0) + each.lag
    if not lags:
        return ""
    worst = max(lags, key=lambda topic: (lags[topic], not topic.startswith("%"), topic))
    others = sum(not topic.startswith("%") for topic in lags if topic != worst)
    return f"{worst} +{others}" if others else worst


GROUPS: Sequence[Column[GroupProgress]] = (
    Column("Group", lambda each: each.group, order=lambda each: each.group),
    Column("Topic", _topic, order=_topic),
    Column("Lag", lambda each: _count(each.lag), 9, lambda each: each.lag),
    Column("Time lag", lambda each: _time_lag(each), 9, lambda each: _late_ms(each) or 0),
    Column("In flight", lambda each: _count(each.in_flight), 9, lambda each: each.in_flight or 0),
    Column("Out (msg/s)", lambda each: f"{each.tps:,.0f}", 11, lambda each: each.tps),
    Column("Stuck", lambda each: _stuck(each), 7, lambda each: -(each.stuck_since_ms or LATEST_MS)),
)


def _time_lag(each: GroupProgress) -> str:
    """Return the time lag, or an upper bound where the brokers do not tell it."""
    ms = _late_ms(each)
    if ms is None:
        return "?" if each.lag else ""
    return _span(ms) if each.late_ms is not None else f"≤{_span(ms)}"


def _late_ms(each: GroupProgress) -> float | None:
    """Return the time lag, else the age of the last consumed message; None if unknown."""
    if each.late_ms is not None:
        return each.late_ms
    times = [one.last_consumed_ms for one in each.queues if one.lag and one.last_consumed_ms > 0]
    return datetime.now().timestamp() * 1000 - min(times) if times else None


def _stuck(each: GroupProgress) -> str:
    if each.is_stuck is None:
        return "?"
    return _since(each.stuck_since_ms) if each.is_stuck else ""


def _since(time_ms: int | None) -> str:
    if not time_ms:
        return ""
    return span_text(max(0.0, datetime.now().timestamp() - time_ms / 1000))


MEMBERS: Sequence[Column[MemberProgress]] = (
    Column("Member", lambda each: each.client),
    Column("Queues", lambda each: _count(each.queues), 6),
    Column("Lag", lambda each: _count(each.lag), 9),
    Column("In flight", lambda each: _count(each.cached), 9),
    Column("Consumed (msg/s)", lambda each: "?" if each.tps is None else f"{each.tps:,.1f}", 16),
    Column("Last consumed", lambda each: _ago(each.consumed_at_ms), 13),
)
QUEUES: Sequence[Column[QueueProgress]] = (
    Column("Topic", lambda each: each.topic),
    Column("Broker", lambda each: each.broker),
    Column("Queue", lambda each: str(each.queue_id), 5),
    Column("Offset", lambda each: f"{each.consumer_offset:,}", 11),
    Column("Lag", lambda each: f"{each.lag:,}", 9),
    Column("Time lag", lambda each: _span(each.late_ms), 8),
    Column("Member", lambda each: each.client or "none"),
)
ACTORS: Sequence[Column[tuple[str, ActorLine]]] = (
    Column("Actor", lambda each: each[1].name + ("" if each[1].is_up else " (down)")),
    Column("Broker", lambda each: each[0]),
    Column("Inbox", lambda each: f"{each[1].inbox:,}", 9),
    Column("Handled", lambda each: f"{each[1].handled:,}", 15),
    Column("Restarts", lambda each: str(each[1].restarts), 8),
)


def _ago(time_ms: int | None) -> str:
    return f"{_since(time_ms)} ago" if time_ms else "?"


@dataclass(slots=True)
class TopView:
    """State of the screen."""

    shows: str = "groups"
    """One of groups, group, actors."""
    group: str | None = None
    """Name of the shown group."""
    sort: str = "Lag"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    has_help: bool = False
    has_threads: bool = False
    scroll: int = 0
    is_over: bool = False
    _chosen: str = ""
    _rows: list[GroupProgress] = field(default_factory=list)

    # --- keys

    def press(self, key: str) -> None:
        """Carry out a pressed key."""
        if self.is_typing:
            self._type(key)
        elif key == "q":
            self.is_over = True
        elif self.has_help:
            self.has_help = False
        elif key == "?":
            self.has_help = True
        elif key in (UP, DOWN, PAGE_UP, PAGE_DOWN):
            self._move({UP: -1, DOWN: 1, PAGE_UP: -PAGE, PAGE_DOWN: PAGE}[key])
        elif self.shows == "groups":
            self._press_in_groups(key)
        elif key in (ESCAPE, BACKSPACE):
            self.shows, self.group, self.scroll = "groups", None, 0
        elif key == "t" and self.shows == "group":
            self.has_threads = not self.has_threads

    def _press_in_groups(self, key: str) -> None:
        if key == ENTER and self._rows:
            self.shows, self.group, self.scroll = "group", self._chosen_row().group, 0
        elif key == "a":
            self.shows, self.scroll = "actors", 0
        elif key == "/":
            self.is_typing = True
        elif key == ESCAPE:
            self.filter = ""
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key in (LEFT, RIGHT, "<", ">"):
            names = [each.heading for each in GROUPS]
            step = -1 if key in (LEFT, "<") else 1
            self.sort = names[(names.index(self.sort) + step) % len(names)]

    def _type(self, key: str) -> None:
        if key == ENTER:
            self.is_typing = False
        elif key == ESCAPE:
            self.is_typing, self.filter = False, ""
        elif key == BACKSPACE:
            self.filter = self.filter[:-1]
        elif len(key) == 1 and len(self.filter) < FILTER_CHARS_MAX:
            self.filter += key

    def _move(self, step: int) -> None:
        if self.shows != "groups":
            self.scroll = max(0, self.scroll + step)
        elif self._rows:
            place = self._rows.index(self._chosen_row()) + step
            self._chosen = self._rows[min(max(place, 0), len(self._rows) - 1)].group

    def _chosen_row(self) -> GroupProgress:
        named = (each for each in self._rows if each.group == self._chosen)
        return next(named, self._rows[0])

    # --- lines

    def lines(self, now: ClusterOverview, columns: int, rows: int, trouble: str = "") -> list[Line]:
        """Return the screen: head, problems, the view, and a line with the keys.

        `trouble` is the reason why `now` is old.
        """
        if self.has_help:
            return [Line("troupemq top", BOLD), Line(""), *map(Line, HELP)]
        head = [Line(head_of(now), BOLD)]
        troubles = [*([trouble] if trouble else []), *now.troubles]
        head += [Line(f"! {one_line(each)}", ALARM) for each in troubles[:TROUBLES_SHOWN_MAX]]
        if len(troubles) > TROUBLES_SHOWN_MAX:
            head.append(Line(f"! {len(troubles) - TROUBLES_SHOWN_MAX} more problems", ALARM))
        room = max(1, rows - len(head) - 1)
        if self.shows == "group":
            body, keys = self._scrolled(self._group_lines(now, columns), room), GROUP_KEYS
        elif self.shows == "actors":
            body, keys = self._scrolled(_actor_lines(now, columns), room), ACTOR_KEYS
        else:
            body, keys = self._cluster_lines(now, columns, room), KEYS
        body += [Line("")] * (room - len(body))
        last = f"filter: {self.filter}█" if self.is_typing else keys
        if self.filter and not self.is_typing and self.shows == "groups":
            last = f"filter: {self.filter} (esc ends it)  {keys}"
        return [*head, *body[:room], Line(last, DIM)]

    def _scrolled(self, lines: list[Line], room: int) -> list[Line]:
        self.scroll = min(self.scroll, max(0, len(lines) - room))
        return lines[self.scroll : self.scroll + room]

    def _cluster_lines(self, now: ClusterOverview, columns: int, room: int) -> list[Line]:
        bad_first = sorted(now.brokers, key=lambda each: not each.trouble)
        some = bad_first[:BROKERS_SHOWN_MAX]
        lines = table(BROKERS, some, columns, is_bad=lambda each: bool(each.trouble))
        if len(now.brokers) > len(some):
            lines.append(Line(f"  {len(now.brokers) - len(some)} more brokers", DIM))
        self._rows = self._sorted(now.groups)
        if not self._rows:
            has_filter = bool(self.filter and now.groups)
            none = f"No group contains {self.filter!r}." if has_filter else "No group has consumed."
            return [*lines, Line(""), Line(one_line(none))]
        chosen = self._chosen_row()
        left = max(1, room - len(lines) - 1)
        first = max(0, min(self._rows.index(chosen) - left // 2, len(self._rows) - left))
        some_rows = self._rows[first : first + left]
        return lines + table(
            GROUPS,
            some_rows,
            columns,
            is_bad=lambda each: bool(each.is_stuck),
            mark=self.sort,
            chosen=chosen,
        )

    def _sorted(self, groups: Sequence[GroupProgress]) -> list[GroupProgress]:
        wanted = self.filter.casefold()
        found = [
            each
            for each in groups
            if wanted in each.group.casefold() or wanted in _topic(each).casefold()
        ]
        return in_order(found, self.sort, is_reversed=self.is_reversed)

    def _group_lines(self, now: ClusterOverview, columns: int) -> list[Line]:
        report = now.report
        if report is None or report.group.group != self.group:
            why = one_line(now.report_trouble) or "asking its members …"
            return [Line(f"Group {one_line(self.group or '')}: {why}", BOLD)]
        group = report.group
        kinds = " ".join(each for each in (group.type, group.model) if each)
        lines = [
            Line(
                f"Group {one_line(group.group)}  {_count(group.members)} members  {one_line(kinds)}"
                f"  Lag {group.lag:,}  Time lag {_span(group.late_ms) or '–'}",
                BOLD,
            ),
            Line(one_line(group.verdict), ALARM if group.is_stuck else PLAIN),
            *(Line(f"! {one_line(each)}", ALARM) for each in report.failures),
        ]
        for number, each in enumerate(report.members):
            heading, row = table(MEMBERS, [each], columns, is_bad=lambda one: bool(one.is_stuck))
            lines += [*([] if number else [heading]), row, *self._member_lines(each)]
        stuck_first = sorted(report.queues, key=lambda each: (not each.is_stuck, -each.lag))
        return lines + table(QUEUES, stuck_first, columns, is_bad=lambda each: bool(each.is_stuck))

    def _member_lines(self, member: MemberProgress) -> Iterator[Line]:
        yield Line(f"   {one_line(member.verdict)}", ALARM if member.is_stuck else DIM)
        current = member.current
        if current is not None:
            since = "" if current.since_ms is None else f" for {_since(current.since_ms)}"
            tries = f", {current.tries} failed tries" if current.tries else ""
            message = f" {current.message_id}" if current.message_id else ""
            yield Line(f"   current message{message}: {one_line(current.place)}{since}{tries}", DIM)
        for each in member.threads if self.has_threads else ():
            if each.is_worker:
                yield Line(f"   {one_line(each.name)}", BOLD)
                yield from (Line(f"      {one_line(one)}") for one in each.folded())


def in_order(
    groups: Sequence[GroupProgress], heading: str, *, is_reversed: bool = False
) -> list[GroupProgress]:
    """Return the groups in the order of a column: numbers largest first, names in order."""
    column = next(each for each in GROUPS if each.heading == heading)
    order = column.order or column.cell
    found = sorted(groups, key=lambda each: each.group)
    return sorted(found, key=order, reverse=bool(column.width) != is_reversed)  # type: ignore[arg-type]


def head_of(now: ClusterOverview) -> str:
    moment = datetime.fromtimestamp(now.at_s)
    masters = [each for each in now.brokers if each.place.is_master]
    without = f" (without {', '.join(map(one_line, now.missing))})" if now.missing else ""
    return (
        f"{moment:%H:%M:%S}  {len(now.brokers)} brokers, {len(masters)} of them masters"
        f"  In {sum(each.in_tps for each in masters):,.0f} msg/s"
        f"  Out {sum(each.out_tps for each in now.brokers):,.0f} msg/s"
        f"  Lag {sum(each.lag for each in now.groups):,}{without}"
    )


def _actor_lines(now: ClusterOverview, columns: int) -> list[Line]:
    if all(each.actors is None for each in now.brokers):
        return [Line("No broker has actors: RocketMQ's have none.")]
    slow = sum(each.slow_handlers for each in now.brokers)
    lines = table(ACTORS, now.busiest_actors(), columns, is_bad=lambda each: not each[1].is_up)
    return [Line(f"Handlers longer than 50 ms: {slow:,}"), *lines]


def plain_lines(now: ClusterOverview, columns: int, *, with_actors: bool) -> Iterator[str]:
    """Yield everything once, as plain text."""
    yield head_of(now)
    yield from (f"! {one_line(each)}" for each in now.troubles)
    yield ""
    tables = [table(BROKERS, now.brokers, columns, is_bad=lambda each: bool(each.trouble))]
    groups = in_order(now.groups, "Lag")
    tables.append(table(GROUPS, groups, columns, is_bad=lambda each: bool(each.is_stuck)))
    if with_actors:
        tables.append(_actor_lines(now, columns))
    for lines in tables:
        yield from (each.text for each in lines)
        yield ""
