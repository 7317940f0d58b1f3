"""The parts of a page: tables, facts, sentences, texts, forms and charts.

Every page is made of these alone. A template turns them into HTML, `as_json` into what /api
answers: both show the same, with the same rights.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlencode

from troupemq.client.admin import Time
from troupemq.console.given import Rule
from troupemq.numbers import odd_number

Cells = Mapping[str, Any]
"""A row: text, numbers, yes or no, Time, Span, Size, Link, or several of them."""


class Span(int):
    """A duration in ms; None of it is `-`."""


class Size(int):
    """Bytes."""


class Share(float):
    """A part of one: 0.25 is a quarter."""


@dataclass(frozen=True)
class Link:
    """A text that leads to another page."""

    text: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)

    @property
    def href(self) -> str:
        """Below the console's own prefix."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Pager:
    """Some rows of many: where the others are."""

    first: int
    shown: int
    total: int
    before: Link | None = None
    after: Link | None = None


@dataclass(frozen=True)
class RowTable:
    """Rows with the same keys, which are the JSON names and, in words, the headings."""

    name: str
    title: str
    rows: Sequence[Cells]
    nothing: str = "Nothing."
    about: str = ""
    pager: Pager | None = None


@dataclass(frozen=True)
class Facts:
    """One thing, a line for each of its properties."""

    name: str
    title: str
    facts: Cells
    folded: bool = False
    as_is: bool = False
    """Whether the names are somebody else's, to be shown as they are."""


@dataclass(frozen=True)
class Note:
    """A sentence and how bad it is: `fine`, `watch` or `trouble`."""

    level: str
    text: str
    link: Link | None = None


@dataclass(frozen=True)
class Notes:
    """Sentences."""

    name: str
    title: str
    notes: Sequence[Note]


@dataclass(frozen=True)
class LongText:
    """A text of several lines, as it is."""

    name: str
    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Input:
    """One field of a form: `text`, `number`, `time`, `choice`, `secret` or `hidden`."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    choices: Sequence[str] = ()
    hint: str = ""
    needed: bool = False
    rule: Rule | None = None
    """What may be given; None: what its name says (given.py)."""


@dataclass(frozen=True)
class Form:
    """Something to fill in; `post` changes something, or shows first what it would."""

    title: str
    action: str
    inputs: Sequence[Input]
    submit: str
    post: bool = False
    folded: bool = False


@dataclass(frozen=True)
class Links:
    """Where one may go from here."""

    links: Sequence[Link]


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart: a key of the rows; `dash` tells it from the others without colour."""

    key: str
    label: str
    colour: str
    """`link`, `fine`, `watch` or `trouble`, whatever that looks like in the dark."""
    dash: tuple[int, int] = (0, 0)
    on_the_right: bool = False
    """On a scale of its own."""


@dataclass(frozen=True)
class LineChart:
    """Lines over time, of the rows that a path answers as JSON; each has a `time_ms`."""

    name: str
    title: str
    path: str
    rows: str
    lines: Sequence[ChartLine]
    with_points: bool = False
    """Few rows, each of which shall be seen."""

    @property
    def page_path(self) -> str:
        """The same rows as a page."""
        return self.path.removeprefix("/api")

    @property
    def as_data(self) -> str:
        """What the page's script needs to know."""
        return json.dumps(asdict(self))


Part = RowTable | Facts | Notes | LongText | Form | Links | LineChart


@dataclass
class Page:
    """What is shown: its title and its parts; `missing` says who has not answered."""

    title: str
    parts: list[Part] = field(default_factory=list)
    missing: Sequence[str] = ()
    refresh_s: int = 0
    """Asked again so often by the browser; 0: never."""
    taken_ms: int = 0
    """When what it shows was asked; 0: just now."""


def as_json(page: Page) -> dict[str, Any]:
    """The page for programs: a name for each part that has one."""
    found: dict[str, Any] = {"title": page.title, "missing": list(page.missing)}
    if page.taken_ms:
        found["taken_ms"] = page.taken_ms
    for part in page.parts:
        match part:
            case RowTable():
                found[part.name] = [plain(row) for row in part.rows]
                if part.pager is not None:
                    found[f"{part.name}_total"] = part.pager.total
            case Facts():
                found[part.name] = plain(part.facts)
            case Notes():
                found[part.name] = [{"level": note.level, "text": note.text} for note in part.notes]
            case LongText():
                found[part.name] = part.text
    return found


def plain(value: object) -> Any:
    """What JSON can say of a cell."""
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
