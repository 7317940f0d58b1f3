"""Cluster overview in a terminal: `top`."""

from collections.abc import Callable
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING

import click

from actors.settings.extras import install_command, is_installed
from troupemq.cli.options import FiniteRange, acl_option, leave, namesrv_option
from troupemq.client.admin import Admin
from troupemq.client.admin.base import SILENT_S
from troupemq.client.errors import ClientError
from troupemq.cluster_overview import ClusterOverview, ClusterPoller
from troupemq.interrupts import sigterm_interrupts
from troupemq.text import one_line, span_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

EXTRA = "top"
ONCE_COLUMNS = 120
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@click.command()
@click.option("--once", is_flag=True, help="Print the overview once and end, for scripts.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh at this interval.",
)
@acl_option
@namesrv_option
def top(namesrv: str | None, once: bool, interval: float) -> None:
    """Show throughput, consumer lag, actors and disk of all brokers until Ctrl-C.

    Works with RocketMQ's brokers, too, which have no actors. Lag is refreshed every five seconds.
    LATE is the time lag: the age of the last consumed message, in queues with consumer lag.
    """
    if not is_installed(EXTRA):
        leave(f"top needs the library rich: {install_command(EXTRA)}")
    try:
        with Admin(namesrv, silent_s=SILENT_S) as admin:
            poller = ClusterPoller(admin)
            if once:
                _print(poller.take())
            else:
                with sigterm_interrupts():  # so that SIGTERM also restores the terminal
                    _follow(poller.take, interval)
    except ClientError as error:
        leave(one_line(str(error)))
    except KeyboardInterrupt:
        pass


def _print(overview: ClusterOverview) -> None:
    from rich.console import Console

    Console(width=ONCE_COLUMNS, color_system=None, highlight=False).print(drawn(overview))


def _follow(take: Callable[[], ClusterOverview], interval_s: float) -> None:
    from rich.live import Live

    with Live(drawn(take()), screen=True, auto_refresh=False) as live:
        while True:
            Event().wait(interval_s)
            live.update(drawn(take()), refresh=True)


def drawn(overview: ClusterOverview) -> "Group":
    from rich.console import Group
    from rich.text import Text

    moment = datetime.fromtimestamp(overview.at_s)
    masters = [each for each in overview.brokers if each.place.is_master]
    head = Text(
        f"{moment:%H:%M:%S}  {len(overview.brokers)} brokers, {len(masters)} of them masters"
        f"  in {sum(each.in_tps for each in masters):,.0f}/s"
        f"  out {sum(each.out_tps for each in overview.brokers):,.0f}/s"
        f"  lag {sum(each.lag for each in overview.groups):,}"
    )
    troubles = [Text(f"! {one_line(each)}", style="bold red") for each in overview.troubles]
    tables = [_brokers(overview), _groups(overview)]
    if any(each.actors is not None for each in overview.brokers):
        tables.append(_actors(overview))
    return Group(head, *troubles, *tables)


def _table(*columns: tuple[str, bool]) -> "Table":
    """Return a table with these columns: heading, and whether its cells are numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left", overflow="ellipsis")
    return table


def _brokers(overview: ClusterOverview) -> "Table":
    table = _table(
        ("BROKER", False),
        ("ID", True),
        ("IN/s", True),
        ("OUT/s", True),
        ("WAITING", True),
        ("NOT DISPATCHED", True),
        ("LOG", True),
        ("DISK", True),
        ("RESTARTS", True),
        ("SLOW", True),
    )
    for each in overview.brokers:
        name, number = _safe(each.place.name), str(each.place.id)
        if each.trouble and not each.version:
            table.add_row(name, number, *("–" for _ in range(8)))
            continue
        has_actors = each.actors is not None
        restarts = sum(actor.restarts for actor in each.actors or ())
        table.add_row(
            name,
            number,
            f"{each.in_tps:,.0f}",
            f"{each.out_tps:,.0f}",
            str(each.waiting_sends),
            _size(each.behind_bytes),
            _size(each.log_bytes),
            f"{each.disk_ratio:.0%}",
            str(restarts) if has_actors else "–",
            str(each.slow_handlers) if has_actors else "–",
        )
    return table


def _groups(overview: ClusterOverview) -> "Table":
    table = _table(("GROUP", False), ("TOPIC", False), ("LAG", True), ("LATE", True), ("/s", True))
    for each in overview.worst_groups():
        late_s = each.late_s(overview.at_s * 1000)
        late = "" if late_s is None else span_text(late_s)
        table.add_row(
            _safe(each.group), _safe(each.topic), f"{each.lag:,}", late, f"{each.tps:,.0f}"
        )
    if not overview.groups:
        table.add_row("no consumer groups", "", "", "", "")
    return table


def _actors(overview: ClusterOverview) -> "Table":
    table = _table(
        ("ACTOR", False), ("BROKER", False), ("INBOX", True), ("HANDLED", True), ("RESTARTS", True)
    )
    for broker, actor in overview.busiest_actors():
        name = actor.name if actor.is_up else f"{actor.name} (down)"
        counts = f"{actor.inbox:,}", f"{actor.handled:,}", str(actor.restarts)
        table.add_row(_safe(name), _safe(broker), *counts)
    return table


def _safe(text: str) -> str:
    """Escape control characters and rich's markup in a name from a server."""
    from rich.markup import escape

    return escape(one_line(text))


def _size(count: float) -> str:
    unit = 0
    while abs(count) >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"
