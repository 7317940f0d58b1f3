"""The request of a page: who asks for what, and all that it may be answered from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from actors.settings.tls_settings import TlsSettings
from protocol.java_numbers import plain_number
from troupemq.console.accounts import Accounts, Viewer
from troupemq.console.alerts import Alerts, AlertSettings
from troupemq.console.audit import AuditLog
from troupemq.console.cluster import CommandResult, WatchedCluster
from troupemq.console.given import Rule, fault_of
from troupemq.console.parts import Link, Note, Notes, Page, Pager, Part, RowTable
from troupemq.console.sessions import Sessions, Throttle
from troupemq.console.snapshot import ClusterSnapshot, SnapshotTaker
from troupemq.console.watch import ClusterWatch

REASON_HIDDEN = "why is hidden from this role"
ROWS_OF_A_PAGE = 50
ROWS_OF_A_PAGE_MAX = 1000
TEXT_CHARS_MAX = 1000
ZONE_CHARS_MAX = 64

Row = TypeVar("Row")


@dataclass(frozen=True)
class ConsoleSettings:
    """What the console needs to know."""

    data: Path
    """Where accounts, audit log and thresholds are kept."""
    namesrv: str | None = None
    bind_address: str = "127.0.0.1"
    port: int = 8088
    """0 takes a free one."""
    prefix: str = ""
    """Of all paths, behind a reverse proxy: `/mq`."""
    hosts: Sequence[str] = ()
    """Names by which browsers may call it, besides the bind address and this machine."""
    hide_bodies: bool = False
    """Viewers see no bodies of messages."""
    behind_tls: bool = False
    """Cookies go over TLS only."""
    tls: TlsSettings | None = None
    """Its own certificate; None: it speaks none itself."""
    alerts: AlertSettings = field(default_factory=AlertSettings)


class Console:
    """All that pages are answered from. Raises StoreError, ClientError."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.accounts = Accounts(settings.data / "accounts.json")
        self.audit = AuditLog(settings.data / "audit.log")
        self.sessions = Sessions()
        self.throttle = Throttle()
        self.alerts = Alerts(settings.alerts, settings.data / "thresholds.json")
        self.cluster = WatchedCluster(settings.namesrv)
        taker = SnapshotTaker(self.cluster.session)
        told = self.alerts.look if settings.alerts.tells else None
        self.watch = ClusterWatch(taker.take, told)

    def stop(self, timeout_s: float) -> bool:
        """False if something still goes on."""
        is_over = self.watch.stop(timeout_s)
        self.cluster.close()
        self.audit.close()
        return is_over


class NotThere(Exception):
    """There is no such thing: one sentence for a 404."""


class NotUsable(Exception):
    """A parameter that cannot be what it is named after: one sentence for a 400."""


@dataclass(frozen=True)
class PageRequest:
    """One request for a page."""

    console: Console
    viewer: Viewer
    query: Mapping[str, str]
    zone: tzinfo = UTC

    @property
    def cluster(self) -> WatchedCluster:
        return self.console.cluster

    def snapshot(self) -> ClusterSnapshot:
        """The newest state of the cluster, as far as this viewer may see it."""
        now = self.console.watch.newest()
        return now if self.sees_bodies() else _without_reasons(now)

    def text(self, name: str, rule: Rule | None = None) -> str:
        """A field of the query, cut and without blanks around; empty where it is missing.

        Without a `rule` that of its name holds. Raises NotUsable.
        """
        found = self.query.get(name, "")[:TEXT_CHARS_MAX].strip()
        if fault := self.fault(name, found, rule):
            raise NotUsable(f"{fault}.")
        return found

    def fault(self, name: str, text: str, rule: Rule | None = None) -> str:
        """Why a text cannot be what it is given as. What brokers list themselves is never refused:
        an old store may have topics and groups with other names."""
        fault = fault_of(name, text, rule)
        if fault and text.isprintable():
            now = self.snapshot()
            return "" if text in now.topics or text in now.groups else fault
        return fault

    def needed(self, name: str, rule: Rule | None = None) -> str:
        """Raises NotThere without it, and NotUsable."""
        found = self.text(name, rule)
        if not found:
            raise NotThere(f"The address of this page lacks {name}.")
        return found

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number, within limits whatever was given."""
        number = plain_number(self.text(name))
        return default if number is None else min(max(number, least), most)

    def time_ms(self, name: str) -> int | None:
        """A time of the viewer's own clock, or ms since 1970; None for none, or no time."""
        text = self.text(name)
        number = plain_number(text)
        if number is not None and 11 <= len(text) <= 14:
            return number
        try:
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=self.zone) if moment.tzinfo is None else moment
            return int(moment.timestamp() * 1000)
        except (ValueError, OverflowError):
            return None

    def sees_bodies(self) -> bool:
        """Whether this viewer may see what messages say."""
        return self.viewer.may("operator") or not self.console.settings.hide_bodies

    def rows_of_page(
        self, path: str, rows: Sequence[Row], more: Mapping[str, object]
    ) -> tuple[Sequence[Row], Pager]:
        """Those of the page that the query wants, and where the others are."""
        shown = self.number("rows", ROWS_OF_A_PAGE, 1, ROWS_OF_A_PAGE_MAX)
        first = self.number("first", 0, 0, max(0, len(rows) - 1))
        kept = {name: value for name, value in more.items() if value}
        if shown != ROWS_OF_A_PAGE:
            kept["rows"] = shown
        part = rows[first : first + shown]
        before = after = None
        if first > 0:
            before = Link("Before", path, {**kept, "first": max(0, first - shown)})
        if first + shown < len(rows):
            after = Link("After", path, {**kept, "first": first + shown})
        return part, Pager(first, len(part), len(rows), before, after)


def _without_reasons(now: ClusterSnapshot) -> ClusterSnapshot:
    """A copy in which runs of jobs do not say why they failed: that may be part of a message."""
    jobs = {
        address: replace(
            found,
            runs=[
                replace(each, sentence=REASON_HIDDEN, tail=[]) if each.sentence else each
                for each in found.runs
            ],
        )
        for address, found in now.jobs.items()
    }
    return replace(now, jobs=jobs)


PageFunction = Callable[[PageRequest], Page]


@dataclass(frozen=True)
class Place:
    """A page: its path, who may see it, what makes it."""

    path: str
    role: str
    make: PageFunction


PLACES: dict[str, Place] = {}


def page(path: str, role: str = "viewer") -> Callable[[PageFunction], PageFunction]:
    """Registers a function as the page of a path, and as JSON below /api."""

    def register(make: PageFunction) -> PageFunction:
        PLACES[path] = Place(path, role, make)
        return make

    return register


def zone_of(name: str) -> tzinfo:
    """The time zone that a browser has named; UTC for one that this machine does not know."""
    if (
        not 0 < len(name) <= ZONE_CHARS_MAX
        or not name.replace("/", "").replace("_", "").replace("-", "").replace("+", "").isalnum()
    ):
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return UTC


def table_of(found: CommandResult[Any], name: str, title: str, nothing: str) -> list[Part]:
    """Return what was found as a table, with what failed above it."""
    if found.failures and not found.rows:
        return failures_of(found.failures, name)
    return [*failures_of(found.failures, name), RowTable(name, title, found.rows, nothing)]


def failures_of(failures: Iterable[str], name: str) -> list[Part]:
    """Sentences about what did not work."""
    notes = [Note("watch", f"{each}.".replace("..", ".")) for each in failures]
    return [Notes(f"{name}_failures", "", notes)] if notes else []
