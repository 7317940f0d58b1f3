"""Pages as HTML: Jinja templates with automatic escaping, headings, text of cells, the glossary."""

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache
from hashlib import sha384
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from troupemq.client.admin import Time
from troupemq.console.accounts import Viewer
from troupemq.console.findings import spoken
from troupemq.console.parts import PICKED, Cells, CommandLine, Link, Page, Pick, Share, Size, Span
from troupemq.numbers import odd_number
from troupemq.text import escaped, size_text

LABELS = {
    "after_ms": "Elapsed",
    "again": "Consumed again",
    "at": "Brokers",
    "behind": "Replication lag",
    "average_size": "Average message size",
    "before": "State before",
    "cached": "Cached messages",
    "consume_from_where": "First start offset",
    "content": "Fingerprint",
    "consumed_at_ms": "Last consumed",
    "cost_ms": "Duration",
    "current": "Current message",
    "current_since_ms": "In its call since",
    "disk_bytes": "Disk size",
    "disk_free_bytes": "Disk space free",
    "disk_trouble_percent": "Disk usage, problem (%)",
    "disk_watch_percent": "Disk usage, warning (%)",
    "failed_in_an_hour": "Failed in the last hour",
    "from": "Client address",
    "handled": "Messages handled",
    "holds": "Takes effect",
    "in_bytes_a_second": "In (bytes/s)",
    "in_today": "Messages in today",
    "inbox": "Inbox depth",
    "kind": "Type",
    "lag": "Consumer lag",
    "lag_messages": "Consumer lag (messages)",
    "lag_minutes": "Time lag (minutes)",
    "last_ms": "Last refusal",
    "last_refused_ms": "Last refusal",
    "late_at_most_ms": "Max time lag",
    "late_ms": "Time lag",
    "line": "Command",
    "log_end": "Max physical offset",
    "log_files": "Commit log files",
    "log_size": "Commit log size",
    "log_start": "Min physical offset",
    "looked_through_ms": "Last complete verification",
    "may": "Permission",
    "means": "Meaning",
    "mebibytes": "Cached MiB",
    "milliseconds_to_consume": "Consume latency (ms)",
    "milliseconds_to_pull": "Pull latency (ms)",
    "newest": "Newest messages",
    "next": "Next message",
    "next_due_ms": "Next due time",
    "next_ms": "Next run",
    "now": "Before",
    "of": "Messages in all",
    "offset_now": "Offset before",
    "offset_then": "Offset after",
    "one_minute": "1 minute",
    "out_today": "Messages out today",
    "perm": "Permission",
    "put_p99_ms": "Put latency, p99",
    "queue_names": "Assigned queues",
    "replica_mib": "Replication lag (MiB)",
    "reached_ms": "Read up to",
    "rows_a_second": "Rows/s",
    "said": "Result text",
    "send_back": "Redrive",
    "sentence": "Reason",
    "size_of_a_file": "Commit log file size",
    "still_kept": "Next message retained",
    "texts": "Text",
    "then": "After",
    "times": "Count",
    "times_asked": "Check-backs",
    "times_consumed_before": "Retries",
    "times_tried": "Retries",
    "took_ms": "Duration",
    "took_s": "Duration (s)",
    "transaction_minutes": "Transaction age (minutes)",
    "ten_minutes": "10 minutes",
    "ten_s": "10 s",
    "tries": "Attempts",
    "unflushed": "Not flushed",
    "unsigned_from": "Allowlisted address",
    "up_ms": "Uptime",
    "value_now": "Value before",
    "value_then": "Value after",
    "waiting": "Backlog",
    "waiting_in_it": "Cached messages",
    "waiting_sends": "Send backlog",
    "waiting_pulls": "Pull backlog",
    "what": "Event",
    "who": "User",
    "why": "Reason",
}
"""Headings of JSON keys that are unclear by their words alone."""

GLOSSARY = (
    ("Commit log", "File sequence of a broker that holds all its messages in order of arrival."),
    ("Dispatch", "Indexing of new messages, which makes them visible to consumers."),
    ("Consumer group", "Consumers with one name that share the messages of their topics."),
    ("Consumer offset", "Position in a queue of the next message that the group consumes."),
    ("Consumer lag", "Number of messages between the consumer offset and the end of the queue."),
    ("Time lag", "Age of the oldest message that the group has not consumed."),
    ("Rebalance", "New assignment of queues to members after a member joins or leaves."),
    ("Dead letter", "Message set aside after its last retry failed. A redrive sends it again."),
    ("Open transaction", "Half message without commit or rollback. Consumers do not get it."),
    ("Delay level", "Fixed time for which a broker holds a message before consumers get it."),
)
"""Terms that an operator needs, each with its meaning."""


def heading(key: str) -> str:
    """Return the heading of a JSON key; values state their units, except rates."""
    if key in LABELS:
        return LABELS[key]
    if key.endswith("_tps"):
        key = f"{key.removesuffix('_tps')} (msg/s)"
    words = key.removesuffix("_ms").replace("_", " ").strip()
    return words[:1].upper() + words[1:]


HERE = Path(__file__).parent
STATIC = HERE / "static"
CELL_CHARS_MAX = 4000
LINES_OF_PHONE = 80
"""Lines that a table has on a narrow screen before its fold, where each cell has its own."""

CHARS_OF_PHONE = 28
"""Characters of a cell that such a line holds."""

ROWS_OF_PHONE_MIN = 4

TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class MenuEntry:
    """Link of the navigation."""

    text: str
    path: str
    key: str
    """Key that opens it after `g`."""
    role: str = "viewer"
    """Role that sees it."""
    pages: tuple[str, ...] = ()
    """Paths of pages that belong to it, besides its own."""


MENU = {
    "Watch": (
        MenuEntry("Overview", "/", "o", pages=("/history",)),
        MenuEntry("Groups", "/groups", "g", pages=("/group", "/group/members", "/client")),
        MenuEntry("Brokers", "/brokers", "b", pages=("/broker",)),
        MenuEntry("Alerts", "/alerts", "a"),
    ),
    "Data": (
        MenuEntry("Topics", "/topics", "t", pages=("/topic", "/producers")),
        MenuEntry("Messages", "/messages", "m", pages=("/message", "/message/life", "/tail")),
        MenuEntry("Dead letters", "/dead-letters", "d", pages=("/dead-letters/group",)),
        MenuEntry("Transactions", "/transactions", "x"),
        MenuEntry("Delays", "/delays", "y"),
        MenuEntry("Traces", "/trace", "r"),
    ),
    "Administer": (
        MenuEntry("Jobs", "/jobs", "j", pages=("/jobs/history", "/job")),
        MenuEntry("Access", "/access", "c", "admin"),
        MenuEntry("Users", "/users", "u", "admin"),
        MenuEntry("Audit", "/audit", "l", "admin"),
    ),
}
"""Navigation: the groups of links by their headings."""


def static_files() -> dict[str, tuple[bytes, str]]:
    """Return the files that /static serves, with their types, by name."""
    return {
        path.name: (path.read_bytes(), TYPES[path.suffix])
        for path in sorted(STATIC.iterdir())
        if path.suffix in TYPES
    }


def integrity_of(data: bytes) -> str:
    return "sha384-" + b64encode(sha384(data).digest()).decode()


def numbers(rows: Iterable[Cells]) -> set[str]:
    return {
        key
        for row in rows
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool | Time)
    }


def rows_of_phone(rows: Sequence[Cells]) -> int:
    """Return how many rows of a table a narrow screen shows before the fold."""
    lines = 0
    for number, row in enumerate(rows):
        lines += sum(map(_lines_of_phone, row.values()))
        if lines > LINES_OF_PHONE and number >= ROWS_OF_PHONE_MIN:
            return number
    return len(rows)


def _lines_of_phone(value: object) -> int:
    match value:
        case str():
            return 1 + len(value) // CHARS_OF_PHONE
        case Link():
            return _lines_of_phone(value.text)
        case Mapping():
            return sum(map(_lines_of_phone, value.values())) or 1
        case list() | tuple():
            return sum(map(_lines_of_phone, value)) or 1
    return 1


@pass_context
def cell(context: Context, value: object) -> Markup:
    if odd := odd_number(value):
        return escape(odd)
    match value:
        case None | "":
            return Markup('<span class="none">-</span>')
        case bool():
            return Markup("yes") if value else Markup("no")
        case Time():
            return moment(value, context["zone"])
        case Span():
            return Markup('<span title="{} ms">{}</span>').format(int(value), spoken(value))
        case Size():
            return Markup('<span title="{} bytes">{}</span>').format(int(value), size_text(value))
        case CommandLine():
            shape = '<code>{}</code> <button type="button" class="quiet copy">Copy</button>'
            return Markup(shape).format(shown(value))
        case Pick():
            shape = '<input type="checkbox" name="{}" value="{}" aria-label="Select {}">'
            return Markup(shape).format(PICKED, value, value)
        case Share():
            return Markup("{:.0f} %").format(value * 100)
        case int():
            return escape(f"{value:,}")
        case float():
            return escape(f"{value:,.1f}")
        case Link():
            return Markup('<a href="{}{}">{}</a>').format(
                context["prefix"], value.href, shown(value.text)
            )
        case Mapping():
            pairs = (
                Markup("{}: {}").format(shown(str(key)), cell(context, each))
                for key, each in value.items()
            )
            return Markup("<br>").join(pairs) or cell(context, None)
        case list() | tuple():
            return Markup(", ").join(cell(context, each) for each in value) or cell(context, None)
    return escape(shown(str(value)))


def shown(text: str) -> str:
    """Return foreign text with control and direction characters escaped, cut at CELL_CHARS_MAX."""
    text = escaped(text)
    return text if len(text) <= CELL_CHARS_MAX else text[:CELL_CHARS_MAX] + "…"


def lines(text: str) -> str:
    """Return a text of several lines with each line escaped, and tabs as spaces."""
    return "\n".join(escaped(line.replace("\t", "    ")) for line in text.split("\n"))


def moment(value: Time, zone: tzinfo) -> Markup:
    """Return a time in the viewer's zone, with UTC as its tooltip."""
    if value <= 0:
        return Markup('<span class="none">-</span>')
    try:
        utc = datetime.fromtimestamp(value / 1000, UTC)
        there = utc.astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return escape(str(int(value)))
    shape = '<time datetime="{}" title="{} UTC"><span>{}</span> <span>{}</span></time>'
    return Markup(shape).format(
        utc.isoformat(timespec="milliseconds"),
        f"{utc:%Y-%m-%d %H:%M:%S}.{utc.microsecond // 1000:03}",
        f"{there:%Y-%m-%d}",
        f"{there:%H:%M:%S}",
    )


@cache
def environment() -> Environment:
    """Return the templates, one set per process, because compiling takes 0.1 s."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(cell=cell, heading=heading, shown=shown, lines=lines, numbers=numbers)
    made.filters.update(rows_of_phone=rows_of_phone)
    made.tests["of"] = lambda part, name: type(part).__name__ == name
    return made


def _menu_of(viewer: Viewer) -> dict[str, list[MenuEntry]]:
    found = {name: [each for each in some if viewer.may(each.role)] for name, some in MENU.items()}
    return {name: some for name, some in found.items() if some}


class Renderer:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.files = static_files()
        self._integrity = {name: integrity_of(data) for name, (data, _) in self.files.items()}

    def page(self, page: Page, path: str, viewer: Viewer | None, csrf: str, zone: tzinfo) -> str:
        return self._render(
            "page.html",
            page=page,
            path=path,
            viewer=viewer,
            csrf=csrf,
            zone=zone,
            taken=Time(page.taken_ms),
            menu={} if viewer is None else _menu_of(viewer),
        )

    def options(self, names: Iterable[str]) -> str:
        """Return names as the options of a field's list."""
        return Markup("").join(Markup('<option value="{}">').format(each) for each in names)

    def login(self, following: str, sentence: str = "") -> str:
        return self._render(
            "login.html",
            page=Page("Log in"),
            path="/login",
            viewer=None,
            csrf="",
            zone=UTC,
            menu={},
            following=following,
            sentence=sentence,
        )

    def _render(self, name: str, **values: Any) -> str:
        template = environment().get_template(name)
        return template.render(
            prefix=self._prefix, integrity=self._integrity, glossary=GLOSSARY, **values
        )
