"""Overview page: current problems, brokers, and charts of the last hour."""

from collections.abc import Iterable, Sequence
from time import time_ns

from troupemq.client.admin import Time
from troupemq.console.asking import PageRequest, page, snapshot_page
from troupemq.console.findings import findings_of, spoken
from troupemq.console.parts import (
    Cells,
    ChartLine,
    Facts,
    LineChart,
    Link,
    Links,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Share,
    Span,
)
from troupemq.console.snapshot import BrokerSummary, ClusterSnapshot, GroupSummary

WORST = 10
REFRESH_S = 5
NO_BROKERS = "No broker is registered: start one with --namesrv, or check -n of the console."


@page("/")
def overview(asked: PageRequest) -> Page:
    now = asked.fresh_snapshot()
    findings = findings_of(now, asked.console.alerts.thresholds)
    notes = [each.note for each in findings]
    if all(each.is_standing for each in findings):
        answered = sum(bool(each.says) for each in now.brokers)
        answer = "1 broker answers" if answered == 1 else f"{answered} brokers answer"
        fine = f"No problems: {answer}, no group exceeds its lag thresholds."
        notes.insert(0, Note("fine", fine))
    late = sorted(
        (each for each in now.groups.values() if each.lag),
        key=lambda each: (not each.is_stuck, -(each.late_ms or 0), -each.lag),
    )[:WORST]
    parts: list[Part] = [
        Notes("findings", "Current problems", notes),
        Facts("sums", f"Sums of all brokers{now.without}", _sums(now)),
        RowTable(
            "late_groups",
            f"Groups with the largest time lag{now.without}",
            [group_row(each) for each in late],
            "No group has a lag.",
            marked=stuck_rows(late),
        ),
        LineChart(
            "history_chart",
            f"Throughput and consumer lag{now.without}",
            "/api/history",
            "history",
            (
                ChartLine("in_tps", "In (msg/s)", "link"),
                ChartLine("out_tps", "Out (msg/s)", "fine", (8, 4)),
                ChartLine("lag", "Consumer lag", "trouble", (2, 3), on_the_right=True),
            ),
        ),
        RowTable("brokers", "Brokers", [broker_row(each) for each in now.brokers], NO_BROKERS),
        Links(
            [
                Link("Message search", "/messages"),
                Link("All groups", "/groups"),
                Link("All topics", "/topics"),
            ]
        ),
    ]
    return snapshot_page("Overview", now, parts, REFRESH_S)


def _sums(now: ClusterSnapshot) -> Cells:
    """Return sums over the masters that answer."""
    there = [*now.brokers, *now.gone]
    return {
        "brokers": f"{sum(bool(each.says) for each in there)} of {len(there)} answer",
        "in_tps": sum(each.number("putTps") or 0.0 for each in now.masters),
        "out_tps": sum(each.number("getTransferedTps") or 0.0 for each in now.masters),
        "lag": sum(each.lag for each in now.groups.values()),
        "groups_with_lag": sum(bool(each.lag) for each in now.groups.values()),
        "stuck_groups": sum(bool(each.is_stuck) for each in now.groups.values()),
        "dead_letters": sum(each.dead_letters or 0 for each in now.groups.values()),
    }


@page("/history")
def history(asked: PageRequest) -> Page:
    asked.snapshot()
    moments = list(asked.console.watch.history)
    rows = [
        {
            "time_ms": Time(each.taken_ms),
            "in_tps": each.in_tps,
            "out_tps": each.out_tps,
            "lag": each.lag,
        }
        for each in moments
    ]
    return Page("Last hour", [RowTable("history", "Last hour", rows)])


def broker_row(each: BrokerSummary) -> Cells:
    place, ratio = each.place, each.disk_ratio
    return {
        "broker": Link(place.name, "/broker", {"address": place.address}),
        "role": "master" if place.is_master else f"slave {place.id}",
        "cluster": place.cluster,
        "address": place.address,
        "version": each.says.get("brokerVersionDesc", "does not answer"),
        "in_tps": each.number("putTps"),
        "out_tps": each.number("getTransferedTps"),
        "disk": None if ratio is None else Share(ratio),
        "oldest_message_ms": Time(int(each.number("earliestMessageTimeStamp") or 0)),
    }


def group_row(each: GroupSummary) -> Cells:
    return {
        "group": Link(each.name, "/group", {"name": each.name}),
        "lag": each.lag,
        "late_at_most_ms": None if each.late_ms is None else Span(each.late_ms),
        "members": each.members,
        "consumed_tps": each.tps,
        "topics": [Link(name, "/topic", {"name": name}) for name in own_first(each.topics)[:3]],
        "dead_letters": each.dead_letters,
        "stuck": stuck_text(each.is_stuck, each.stuck_since_ms),
    }


def stuck_text(is_stuck: bool | None, since_ms: int | None) -> str:
    """Return whether and for how long a group or queue is stuck, in words."""
    if not is_stuck:
        return "unknown" if is_stuck is None else "no"
    span_ms = time_ns() // 1_000_000 - (since_ms or 0)
    return f"for {spoken(span_ms)}" if since_ms else "yes"


def stuck_rows(groups: Sequence[GroupSummary]) -> list[int]:
    """Return the numbers of the rows of stuck groups."""
    return [number for number, each in enumerate(groups) if each.is_stuck]


def own_first(names: Iterable[str]) -> list[str]:
    """Return topics sorted, with retry topics last."""
    return sorted(names, key=lambda name: (name.startswith("%"), name))
