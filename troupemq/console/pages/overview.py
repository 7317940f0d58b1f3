"""The pages of the whole and of its brokers."""

from collections.abc import Iterable

from actors.config import BrokerConfig
from storage.config import StoreConfig, live_keys_of
from troupemq.cli.admin.output import Time
from troupemq.console.asking import NotThere, PageRequest, failures_of, page
from troupemq.console.changes import change_link
from troupemq.console.findings import findings_of
from troupemq.console.parts import (
    Cells,
    Facts,
    Form,
    Input,
    LineChart,
    Link,
    Links,
    Note,
    Notes,
    Page,
    RowTable,
    Share,
    Size,
    Span,
)
from troupemq.console.snapshot import BrokerSummary, GroupSummary

WORST = 10
REFRESH_S = 5
LIVE = live_keys_of(BrokerConfig).keys() | live_keys_of(StoreConfig).keys()
"""Settings that hold without a restart, at our brokers."""


@page("/")
def overview(asked: PageRequest) -> Page:
    """What is wrong now, in sentences; the brokers; the groups that are furthest behind."""
    now = asked.snapshot()
    findings = findings_of(now, asked.console.alerts.thresholds)
    notes = [each.note for each in findings]
    if not notes:
        answered = sum(bool(each.says) for each in now.brokers)
        notes = [Note("fine", f"Nothing is wrong: {answered} brokers answer, no group is late.")]
    late = sorted(now.groups.values(), key=lambda each: (-(each.late_ms or 0), -each.lag))
    return Page(
        "Overview",
        [
            Notes("findings", "What is wrong now", notes),
            RowTable("brokers", "Brokers", [broker_row(each) for each in now.brokers]),
            LineChart("Messages a second, and how many wait for groups", "/api/history"),
            RowTable(
                "late_groups",
                "Groups that are furthest behind",
                [group_row(each) for each in late if each.lag][:WORST],
                "No group is behind.",
            ),
            Links(
                [
                    Link("Find a message", "/messages"),
                    Link("All groups", "/groups"),
                    Link("All topics", "/topics"),
                ]
            ),
        ],
        now.missing,
        REFRESH_S,
        now.taken_ms,
    )


@page("/history")
def history(asked: PageRequest) -> Page:
    """The points of the chart, for programs."""
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
    return Page("The last hour", [RowTable("history", "The last hour", rows)])


def broker_row(each: BrokerSummary) -> Cells:
    """One broker in a list."""
    place = each.place
    ratio = each.number("commitLogDiskRatio")
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
    """One group in a list."""
    return {
        "group": Link(each.name, "/group", {"name": each.name}),
        "lag": each.lag,
        "late_at_most_ms": None if each.late_ms is None else Span(each.late_ms),
        "members": each.members,
        "consumed_tps": each.tps,
        "topics": [Link(name, "/topic", {"name": name}) for name in own_first(each.topics)[:3]],
        "dead_letters": each.dead_letters,
    }


def own_first(names: Iterable[str]) -> list[str]:
    """Topics in order, those of retries behind the others."""
    return sorted(names, key=lambda name: (name.startswith("%"), name))


@page("/brokers")
def brokers(asked: PageRequest) -> Page:
    """All brokers."""
    now = asked.snapshot()
    rows = [
        {
            **broker_row(each),
            "waiting_sends": each.number("sendThreadPoolQueueSize"),
            "put_99_ms": each.number("putLatency99"),
            "unflushed": each.says.get("remainHowManyDataToFlush"),
            "index_behind": _size(each.number("dispatchBehindBytes")),
            "up": each.says.get("runtime", "").strip("[ ]") or None,
        }
        for each in now.brokers
    ]
    nothing = "No broker is registered at the name servers."
    return Page(
        "Brokers",
        [RowTable("brokers", "Brokers", rows, nothing)],
        now.missing,
        REFRESH_S,
        now.taken_ms,
    )


def _size(number: float | None) -> Size | None:
    return None if number is None else Size(number)


@page("/broker")
def broker(asked: PageRequest) -> Page:
    """One broker: its figures, its settings, and which of them hold without a restart."""
    address = asked.needed("address")
    now = asked.snapshot()
    state = next((each for each in now.brokers if each.place.address == address), None)
    if state is None:
        raise NotThere(f"No broker is registered with the address {address}.")
    settings = asked.cluster.run("getBrokerConfig", "-b", address)
    values = settings.rows[0] if settings.rows else {}
    rows = [
        {
            "setting": name,
            "value": value,
            "holds": "at once" if name in LIVE else "after a restart",
            "change": change_link(
                asked, "Change", "setting", {"address": address, "key": name, "value": value}
            ),
        }
        for name, value in values.items()
        if name != "broker_address"
    ]
    page = Page(
        f"Broker {state.place.name}",
        [Facts("broker", "", broker_row(state))],
        now.missing,
        taken_ms=now.taken_ms,
    )
    page.parts += failures_of(settings.failures, "settings")
    page.parts.append(Facts("figures", "All figures", dict(sorted(state.says.items())), True, True))
    page.parts.append(RowTable("settings", "Settings", rows, "It says no settings."))
    if asked.viewer.may("admin"):
        inputs = [
            Input("address", "", "hidden", address),
            Input("key", "Setting", needed=True),
            Input("value", "Value", needed=True),
        ]
        page.parts.append(Form("Change a setting", "/change/setting", inputs, "Show", True, True))
    return page
