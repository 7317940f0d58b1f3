"""Cluster overview in a terminal: `top`."""

import os
import sys
from threading import Event, Thread

import click

from troupemq.cli.options import FiniteRange, acl_option, leave, namesrv_option
from troupemq.cli.terminal import Terminal
from troupemq.cli.top_view import TopView, plain_lines
from troupemq.client.admin import Admin
from troupemq.client.admin.base import SILENT_S
from troupemq.client.errors import ClientError
from troupemq.cluster_overview import ClusterOverview, ClusterPoller
from troupemq.interrupts import sigterm_interrupts
from troupemq.text import one_line

PLAIN_COLUMNS = 120
JOIN_TIMEOUT_S = 5.0


@click.command()
@click.option(
    "--once",
    is_flag=True,
    help="Print one plain table and end, as without a terminal: in a pipe or a script.",
)
@click.option("--actors", is_flag=True, help="With --once: also print the brokers' actors.")
@click.option(
    "--interval",
    type=FiniteRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh at this interval.",
)
@click.option(
    "--stuck-after",
    type=FiniteRange(min=0.1, max=86_400),
    metavar="SECONDS",
    help="A queue is stuck if messages wait and none was consumed for this long."
    " [default: the broker's stuckAfterSeconds]",
)
@acl_option
@namesrv_option
def top(
    namesrv: str | None, once: bool, actors: bool, interval: float, stuck_after: float | None
) -> None:
    """Show throughput, disk, consumer lag and stuck groups of all brokers.

    Keys: enter shows a group's members, what each of them is doing, and where it is stuck. The
    arrows choose a group and the column to sort by, / filters, ? lists all keys, and q quits.

    Works with RocketMQ's brokers, too, which do not report when messages are consumed and have no
    actors. Groups are refreshed every five seconds.
    """
    terminal = Terminal(0, sys.stdout)
    try:
        with Admin(namesrv, silent_s=SILENT_S) as admin:
            poller = ClusterPoller(admin, stuck_after)
            if once or not terminal.shows_screens:
                _print(poller.take(with_actors=actors), with_actors=actors)
            else:
                with sigterm_interrupts():  # so that SIGTERM also restores the terminal
                    follow(poller, interval, terminal)
    except ClientError as error:
        leave(one_line(str(error)))
    except KeyboardInterrupt:
        pass


def _print(overview: ClusterOverview, *, with_actors: bool) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    for line in plain_lines(overview, PLAIN_COLUMNS, with_actors=with_actors):
        click.echo(line.encode(encoding, "backslashreplace").decode(encoding))


class _Watch:
    """Asks the cluster on a thread, so that keys work while a broker does not answer."""

    def __init__(self, poller: ClusterPoller, view: TopView, interval_s: float) -> None:
        self.newest = poller.take()  # raises ClientError before the screen opens
        self.trouble = ""
        """Reason for an overview older than the interval; empty without one."""
        self._poller, self._view, self._interval_s = poller, view, interval_s
        self._now, self._over = Event(), False
        self.wake, self._wakes = os.pipe()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def at_once(self) -> None:
        """Ask now, as another view is shown."""
        self._now.set()

    def _run(self) -> None:
        while True:
            self._now.wait(self._interval_s)
            self._now.clear()
            if self._over:
                return
            view = self._view
            try:
                self.newest = self._poller.take(
                    with_actors=view.shows == "actors", group=view.group
                )
                self.trouble = ""
            except ClientError as error:
                self.trouble = str(error)
            os.write(self._wakes, b"\0")

    def end(self) -> None:
        self._over = True
        self._now.set()
        self._thread.join(JOIN_TIMEOUT_S)
        if not self._thread.is_alive():
            os.close(self.wake)
            os.close(self._wakes)


def follow(poller: ClusterPoller, interval_s: float, terminal: Terminal) -> None:
    """Show the cluster until the key q, or the end of the terminal."""
    view = TopView()
    watch = _Watch(poller, view, interval_s)
    try:
        with terminal.opened():
            while not view.is_over:
                columns, rows = terminal.size()
                terminal.show(view.lines(watch.newest, columns, rows, watch.trouble))
                shown = view.shows
                for key in terminal.keys(interval_s, watch.wake):
                    view.press(key)
                if view.shows != shown:
                    watch.at_once()
    except (EOFError, BrokenPipeError):  # the terminal is gone
        return
    finally:
        watch.end()
