"""Output of a command, as a text table or as one JSON object per line.

A row is a mapping. Its keys are the JSON names and, in upper case, the headings of the table.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from troupemq.client.admin.answers import Answers, Change, Result, Row, Span, Time
from troupemq.client.errors import ClientError
from troupemq.numbers import odd_number
from troupemq.text import escaped, escaped_json, one_line, padded, say, width_of

GAP = "  "
_LABELS = {"late_ms": "time_lag"}
"""Labels that differ from the key in JSON."""


class Output:
    """Printer of a command's results; `failed` after the failure of a part."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.failed = False
        self._said: set[str] = set()

    def table(self, found: Iterable[Row | Result], nothing: str) -> bool:
        """Print rows with the same keys, else `nothing`; return whether there are any."""
        if self.as_json:
            some = False
            for row in self._rows(found):
                some = True
                self._print_json(row)
            return some
        rows = list(self._rows(found))
        for line in _table(rows):
            _print(line)
        if not rows and nothing:
            say(nothing)
        return bool(rows)

    def _rows(self, found: Iterable[Row | Result]) -> Iterator[Row]:
        """Yield each result as a row; print the failures."""
        if isinstance(found, Answers):
            found.tell(self.fail)
        for each in found:
            yield each.row() if isinstance(each, Result) else each

    def changes(self, done: Iterable[Change]) -> None:
        for each in done:
            self.done(each)
        if isinstance(done, Answers):
            done.tell(self.fail)

    def fields(self, fields: Row, title: str = "") -> None:
        """Print one object, a line per property; JSON omits the title."""
        if self.as_json:
            self._print_json(fields)
            return
        if title:
            _print(escaped(title))
        for line in _fields(fields):
            _print(line)

    def done(self, change: Change | str, **fields: object) -> None:
        """Print a change that was made, as a sentence or as JSON fields."""
        if isinstance(change, Change):
            self.item(change.row(), change.sentence)
        else:
            self.item(fields, change)

    def item(self, fields: Row, line: str) -> None:
        """Print one of several objects, as a line or as JSON."""
        if self.as_json:
            self._print_json(fields)
        else:
            _print(escaped(line))

    def footer(self, line: str) -> None:
        """Print the totals of a table; not with JSON."""
        if not self.as_json:
            _print("")
            _print(escaped(line))

    def note(self, sentence: str) -> None:
        """Print advice on stderr; not with JSON."""
        if not self.as_json:
            say(one_line(sentence))

    def fail(self, sentence: str) -> None:
        """Print the failure of a part; the command continues, and ends with exit code 1."""
        self.failed = True
        if sentence not in self._said:  # a stopped broker fails for each of its groups
            self._said.add(sentence)
            say(one_line(sentence))

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Report a ClientError of a part without ending the command."""
        try:
            yield
        except ClientError as error:
            self.fail(str(error))

    def _print_json(self, found: Row) -> None:
        _print(as_json(found))


def as_json(found: object, indent: int | None = None) -> str:
    """Return JSON in which characters are escaped that stdout cannot encode."""
    text = escaped_json(json.dumps(_plain(found), ensure_ascii=False, indent=indent))
    try:
        text.encode(_encoding())
    except UnicodeEncodeError:
        return escaped_json(json.dumps(_plain(found), indent=indent))
    return text


def _plain(value: object) -> object:
    if odd := odd_number(value):
        return odd
    if isinstance(value, Time):
        return int(value) if value > 0 else None
    if isinstance(value, Span):
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _print(line: str) -> None:
    encoding = _encoding()
    click.echo(line.encode(encoding, "backslashreplace").decode(encoding))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    keys = list(rows[0])
    cells = [[_cell(row.get(key)) for key in keys] for row in rows]
    headings = [_heading(key, [row.get(key) for row in rows]) for key in keys]
    widths = [max(map(width_of, column)) for column in zip(headings, *cells, strict=True)]
    right = [all(map(_is_number, (row.get(key) for row in rows))) for key in keys]
    for line in [headings, *cells]:
        columns = zip(line, widths, right, strict=True)
        yield GAP.join(padded(*column) for column in columns).rstrip()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool | Time)


def _heading(key: str, values: Sequence[object]) -> str:
    return _label(key, values).replace("_", " ").upper()


def _label(key: str, values: Sequence[object]) -> str:
    """Return a label; that of a point in time or a duration has no `_ms`."""
    is_time = any(isinstance(value, Time | Span) for value in values)
    is_time = is_time or all(value is None for value in values)
    return escaped(_LABELS.get(key, key.removesuffix("_ms") if is_time else key))


def _fields(fields: Row) -> Iterator[str]:
    labels = {name: _label(name, [value]) for name, value in fields.items()}
    width = max(map(width_of, labels.values()), default=0)
    for name, value in fields.items():
        label = labels[name]
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            yield label
            yield from (GAP + line for line in _table(value))
        elif isinstance(value, str) and "\n" in value.strip():
            yield label
            yield from (GAP + escaped(line) for line in value.strip().splitlines())
        else:
            yield f"{padded(label, width)}{GAP}{_cell(value)}".rstrip()


def _cell(value: object) -> str:
    if odd := odd_number(value):
        return odd
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        pairs = (f"{escaped(str(name))}={_cell(each)}" for name, each in value.items())
        return " ".join(pairs) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "-"
    return escaped(str(value))
