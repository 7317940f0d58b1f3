"""Parts of a page: tables, facts, sentences, texts, forms and charts.

Every page consists of these alone. A template turns them into HTML, and `as_json` into the answer
of /api, so that both show the same data with the same rights.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlencode

from troupemq.client.admin import Span as Span
from troupemq.client.admin import Time
from troupemq.console.given import Rule
from troupemq.numbers import odd_number

PICKED = "ids"
"""Field of a form that has a value for each checked row."""

Cells = Mapping[str, Any]
"""Row of a table: text, numbers, booleans, Time, Span, Size, Link, or lists of them."""


class Size(int):
    """Number of bytes."""


class CommandLine(str):
    """Command line, shown with a button that copies it."""


class Pick(str):
    """Value of a checkbox; a change gets the checked ones as its field PICKED, with commas."""


class Share(float):
    """Fraction of 1; shown in percent."""


@dataclass(frozen=True)
class Link:
    """Text with a link to another page."""

    text: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)

    @property
    def href(self) -> str:
        """URL below the console's prefix."""
        return f"{self.path}?{urlencode(self.query, errors='replace')}" if self.query else self.path

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Pager:
    """Position of the shown rows among all, and links to the others."""

    first: int
    shown: int
    total: int
    before: Link | None = None
    after: Link | None = None


@dataclass(frozen=True)
class RowTable:
    """Table; its rows have equal keys, which are the JSON keys and give the headings."""

    name: str
    title: str
    rows: Sequence[Cells]
    nothing: str = "No data."
    about: str = ""
    pager: Pager | None = None
    marked: Collection[int] = ()
    """Numbers of the rows that stand out."""
    only_json: Collection[str] = ()
    """Keys that pages do not show, in favour of others."""
    folded: bool = False
    picks: "Picks | None" = None

    @property
    def shown_rows(self) -> Sequence[Cells]:
        """The rows as pages show them."""
        if not self.only_json:
            return self.rows
        return [
            {key: each for key, each in row.items() if key not in self.only_json}
            for row in self.rows
        ]


@dataclass(frozen=True)
class Picks:
    """Changes of the rows whose Pick is checked."""

    key: str
    """Column of the Picks."""
    changes: Sequence[Link]
    """Text of each button, and the path of its change; the query is sent with it."""


@dataclass(frozen=True)
class Facts:
    """Properties of one object, a line each."""

    name: str
    title: str
    facts: Cells
    folded: bool = False
    as_is: bool = False
    """Show the keys unchanged, because clients or brokers define them."""
    only_json: Collection[str] = ()
    """Keys that pages do not show, in favour of others."""

    @property
    def shown(self) -> Cells:
        """The properties as pages show them."""
        return {key: each for key, each in self.facts.items() if key not in self.only_json}


@dataclass(frozen=True)
class Note:
    """Sentence with a level: `fine`, `watch` or `trouble`."""

    level: str
    text: str
    link: Link | None = None
    since_ms: Time | None = None
    """Begin of the state that the text describes."""


@dataclass(frozen=True)
class Notes:
    name: str
    title: str
    notes: Sequence[Note]


@dataclass(frozen=True)
class LongText:
    """Text of several lines, shown unchanged."""

    name: str
    title: str
    text: str
    folded: bool = False
    copies: bool = False
    """Offer a button that copies the text."""


@dataclass(frozen=True)
class Input:
    """Field of a form: `text`, `long`, `number`, `time`, `choice`, `secret` or `hidden`."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    choices: Sequence[str] = ()
    hint: str = ""
    needed: bool = False
    rule: Rule | None = None
    """Rule for its value; None selects the rule of its name (given.py)."""
    offers: str = ""
    """Kind of names offered while one types: `topics` or `groups`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Words for choices that are codes."""
    is_rare: bool = False
    """Fold it, because most requests leave it empty."""


@dataclass(frozen=True)
class Form:
    """Form; with `post` it previews or makes a change, else it filters."""

    title: str
    action: str
    inputs: Sequence[Input]
    submit: str
    post: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Links:
    links: Sequence[Link]


@dataclass(frozen=True)
class ChartLine:
    """Line of a chart for one key of the rows; `dash` distinguishes it without colour."""

    key: str
    label: str
    colour: str
    """Colour variable of style.css: `link`, `fine`, `watch` or `trouble`."""
    dash: tuple[int, int] = (0, 0)
    on_the_right: bool = False
    """Use a second scale."""


@dataclass(frozen=True)
class LineChart:
    """Lines over time; `path` answers the rows as JSON, each with a `time_ms`."""

    name: str
    title: str
    path: str
    rows: str
    lines: Sequence[ChartLine]
    with_points: bool = False
    """Mark each row with a point, for charts of few rows."""

    @property
    def page_path(self) -> str:
        """Path of the page with the same rows."""
        return self.path.removeprefix("/api")

    @property
    def as_data(self) -> str:
        """Description of the chart for console.js, as JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Tabs:
    """Links to the sections of a page, of which one is shown."""

    links: Sequence[Link]
    current: int


@dataclass(frozen=True)
class ProgressLine:
    """Progress of a search or a live page: a sentence, links, and the facts for /api."""

    name: str
    text: str
    facts: Cells
    links: Sequence[Link] = ()
    share: float | None = None
    """Fraction that is done; None for an unknown one."""


@dataclass(frozen=True)
class LivePart:
    """Parts that the browser requests again, by themselves; without an interval never."""

    name: str
    parts: "Sequence[Part]"
    again: Link
    every_s: int = 0
    comes_later: bool = False
    """Request it once, after the page is shown, because it takes time."""


Part = (
    RowTable | Facts | Notes | LongText | Form | Links | LineChart | Tabs | ProgressLine | LivePart
)


@dataclass
class Page:
    """Page; `missing` has a sentence for each server that did not answer."""

    title: str
    parts: list[Part] = field(default_factory=list)
    missing: Sequence[str] = ()
    refresh_s: int = 0
    """Interval at which the browser reloads the content; 0 for never."""
    taken_ms: int = 0
    """Time of the snapshot behind the page; 0 for a page without one."""


def as_json(page: Page) -> dict[str, Any]:
    """Return the page as JSON: a key for each named part."""
    found: dict[str, Any] = {"title": page.title, "missing": list(page.missing)}
    if page.taken_ms:
        found["taken_ms"] = page.taken_ms
    _add_json(found, page.parts)
    return found


def _add_json(found: dict[str, Any], parts: Sequence[Part]) -> None:
    for part in parts:
        match part:
            case RowTable():
                found[part.name] = [plain(row) for row in part.rows]
                if part.pager is not None:
                    found[f"{part.name}_total"] = part.pager.total
            case Facts():
                found[part.name] = plain(part.facts)
            case Notes():
                found[part.name] = [_plain_note(each) for each in part.notes]
            case LongText():
                found[part.name] = part.text
            case ProgressLine():
                found[part.name] = {"text": part.text, **plain(part.facts)}
            case LivePart():
                _add_json(found, part.parts)


def _plain_note(note: Note) -> dict[str, Any]:
    since = {} if note.since_ms is None else {"since_ms": plain(note.since_ms)}
    return {"level": note.level, "text": note.text, **since}


def plain(value: object) -> Any:
    """Return a cell as a value of JSON."""
    if odd := odd_number(value):
        return odd
    if isinstance(value, Time):
        return int(value) if value > 0 else None
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
