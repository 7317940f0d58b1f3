"""Request for a page: its viewer, its parameters, and the data behind all pages."""

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
from troupemq.console.tail import Scans
from troupemq.console.watch import ClusterWatch

REASON_HIDDEN = "hidden from this role"
ROWS_OF_A_PAGE = 50
ROWS_OF_A_PAGE_MAX = 1000
TEXT_CHARS_MAX = 1000
ZONE_CHARS_MAX = 64

Row = TypeVar("Row")


@dataclass(frozen=True)
class ConsoleSettings:
    data: Path
    """Directory of accounts, audit log and thresholds."""
    namesrv: str | None = None
    bind_address: str = "127.0.0.1"
    port: int = 8088
    """0 selects a free port."""
    prefix: str = ""
    """Prefix of all paths, behind a reverse proxy: `/mq`."""
    hosts: Sequence[str] = ()
    """Allowed Host names, besides the bind address and the names of this machine."""
    hide_bodies: bool = False
    """Hide message bodies from the role viewer."""
    behind_tls: bool = False
    """A proxy in front speaks TLS: mark cookies as secure."""
    tls: TlsSettings | None = None
    """Certificate of the console; None for plain HTTP."""
    alerts: AlertSettings = field(default_factory=AlertSettings)


class Console:
    """State behind all pages. Raises StoreError, ClientError."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.accounts = Accounts(settings.data / "accounts.json")
        self.audit = AuditLog(settings.data / "audit.log")
        self.sessions = Sessions()
        self.throttle = Throttle()
        self.scans = Scans()
        self.alerts = Alerts(settings.alerts, settings.data / "thresholds.json")
        self.cluster = WatchedCluster(settings.namesrv)
        taker = SnapshotTaker(self.cluster.session)
        told = self.alerts.look if settings.alerts.tells else None
        self.watch = ClusterWatch(taker.take, told)

    def stop(self, timeout_s: float) -> bool:
        """Stop; return False if a thread did not end in time."""
        is_over = self.watch.stop(timeout_s)
        self.cluster.close()
        self.audit.close()
        return is_over


class RequestRefused(Exception):
    """Refusal of a request: an HTTP status, a title and a sentence."""

    status = 403
    title = "Not allowed"


class NotThere(RequestRefused):
    """Requested object not found."""

    status, title = 404, "Not found"


class NotUsable(RequestRefused):
    """Parameter with an invalid value."""

    status, title = 400, "Invalid parameter"


@dataclass(frozen=True)
class PageRequest:
    console: Console
    viewer: Viewer
    query: Mapping[str, str]
    zone: tzinfo = UTC
    is_refresh: bool = False
    """The browser reloads the content of a page that it shows."""
    is_api: bool = False
    """A program asks: it gets all tabs of a page."""

    @property
    def cluster(self) -> WatchedCluster:
        return self.console.cluster

    def fresh_snapshot(self) -> ClusterSnapshot:
        """Return a snapshot of the last 2 s for a page that opens, the newest for a refresh."""
        if not self.is_refresh:
            self.console.watch.renew()
        return self.snapshot()

    def snapshot(self) -> ClusterSnapshot:
        """Return the newest snapshot, without what this viewer may not see."""
        now = self.console.watch.newest()
        return now if self.sees_bodies() else _without_reasons(now)

    def text(self, name: str, rule: Rule | None = None) -> str:
        """Return a query parameter, trimmed and cut; empty if it is missing.

        The default of `rule` is the rule of its name. Raises NotUsable.
        """
        found = self.query.get(name, "")[:TEXT_CHARS_MAX].strip()
        if fault := self.fault(name, found, rule):
            raise NotUsable(f"{fault}.")
        return found

    def fault(self, name: str, text: str, rule: Rule | None = None) -> str:
        """Return why a text is invalid for the parameter `name`, or an empty text.

        Names that brokers list are always valid, because old stores may have topics and groups
        with other names.
        """
        fault = fault_of(name, text, rule)
        if fault and text.isprintable():
            now = self.snapshot()
            return "" if text in now.topics or text in now.groups else fault
        return fault

    def needed(self, name: str, rule: Rule | None = None) -> str:
        """Return a required parameter. Raises NotThere if it is missing, NotUsable."""
        found = self.text(name, rule)
        if not found:
            raise NotThere(f"The parameter {name} is missing from the address of this page.")
        return found

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number, clamped to its limits."""
        number = plain_number(self.text(name))
        return default if number is None else min(max(number, least), most)

    def time_ms(self, name: str) -> int | None:
        """Return a time in ms since 1970, given as such or as ISO 8601 in the viewer's zone.

        None if it is missing or invalid.
        """
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
        return self.viewer.may("operator") or not self.console.settings.hide_bodies

    def rows_of_page(
        self, path: str, rows: Sequence[Row], more: Mapping[str, object]
    ) -> tuple[Sequence[Row], Pager]:
        """Return the rows of the requested page, and links to the others."""
        shown = self.number("rows", ROWS_OF_A_PAGE, 1, ROWS_OF_A_PAGE_MAX)
        first = self.number("first", 0, 0, max(0, len(rows) - 1))
        kept = {name: value for name, value in more.items() if value}
        if shown != ROWS_OF_A_PAGE:
            kept["rows"] = shown
        part = rows[first : first + shown]
        before = after = None
        if first > 0:
            before = Link("Previous", path, {**kept, "first": max(0, first - shown)})
        if first + shown < len(rows):
            after = Link("Next", path, {**kept, "first": first + shown})
        return part, Pager(first, len(part), len(rows), before, after)


def _without_reasons(now: ClusterSnapshot) -> ClusterSnapshot:
    """Return a copy without failure reasons of job runs, which may quote messages."""
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
    """Registered page: its path, the role it needs, and its function."""

    path: str
    role: str
    make: PageFunction


PLACES: dict[str, Place] = {}


def page(path: str, role: str = "viewer") -> Callable[[PageFunction], PageFunction]:
    """Register a function as the page of a path, and as JSON below /api."""

    def register(make: PageFunction) -> PageFunction:
        PLACES[path] = Place(path, role, make)
        return make

    return register


def zone_of(name: str) -> tzinfo:
    """Return the time zone that a browser has named; UTC if it is unknown."""
    if (
        not 0 < len(name) <= ZONE_CHARS_MAX
        or not name.replace("/", "").replace("_", "").replace("-", "").replace("+", "").isalnum()
    ):
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        return UTC


def snapshot_page(title: str, now: ClusterSnapshot, parts: list[Part], refresh_s: int = 0) -> Page:
    """Return a page about a snapshot, with what is missing in it."""
    return Page(title, parts, now.missing, refresh_s, now.taken_ms)


def table_of(found: CommandResult[Any], name: str, title: str, nothing: str) -> list[Part]:
    """Return the results as a table, with the failures above it."""
    if found.failures and not found.rows:
        return failures_of(found.failures, name)
    return [*failures_of(found.failures, name), RowTable(name, title, found.rows, nothing)]


def failures_of(failures: Iterable[str], name: str) -> list[Part]:
    """Return failures as sentences; empty without any."""
    notes = [Note("watch", f"{each}.".replace("..", ".")) for each in failures]
    return [Notes(f"{name}_failures", "", notes)] if notes else []
