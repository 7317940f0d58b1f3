"""Output: what a command found, as a table for people or as one JSON object a line.

A row is a mapping; its keys are the JSON names and, in capitals, the headings of the table.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime

import click

from troupemq.daemon import say

Row = Mapping[str, object]
GAP = "  "


class Time(int):
    """A wall-clock time in ms since 1970: a number in JSON, local time in a table."""

    def __str__(self) -> str:
        if self <= 0:
            return "-"
        return datetime.fromtimestamp(self / 1000).isoformat(" ", "milliseconds")


class Output:
    """Where a command puts what it found; `failed` once a part of it did not work."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.failed = False

    def table(self, rows: Iterable[Row], nothing: str) -> None:
        """Rows with the same keys; `nothing` is the sentence for none of them."""
        if self.as_json:
            for row in rows:
                click.echo(json.dumps(row, ensure_ascii=False))
            return
        lines = [{key: _cell(value) for key, value in row.items()} for row in rows]
        if not lines:
            say(nothing)
            return
        headings = {key: _heading(key) for key in lines[0]}
        widths = {key: max(len(line[key]) for line in [headings, *lines]) for key in headings}
        for line in [headings, *lines]:
            cells = (line[key].ljust(width) for key, width in widths.items())
            click.echo(GAP.join(cells).rstrip())

    def fields(self, fields: Row, title: str = "") -> None:
        """One thing, a line for each of its properties; the title is for people."""
        if self.as_json:
            click.echo(json.dumps(fields, ensure_ascii=False))
            return
        if title:
            click.echo(title)
        width = max((len(name) for name in fields), default=0)
        for name, value in fields.items():
            click.echo(f"{name.ljust(width)}{GAP}{_cell(value)}".rstrip())

    def done(self, sentence: str, **fields: object) -> None:
        """Something was carried out: a sentence for people, its facts in JSON."""
        click.echo(json.dumps(fields, ensure_ascii=False) if self.as_json else sentence)

    def item(self, fields: Row, line: str) -> None:
        """One of many things that have a line of their own for people."""
        click.echo(json.dumps(fields, ensure_ascii=False) if self.as_json else line)

    def fail(self, sentence: str) -> None:
        """A part did not work: the command goes on, and ends with exit code 1."""
        self.failed = True
        say(sentence)


def _heading(key: str) -> str:
    return key.removesuffix("_ms").replace("_", " ").upper()


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_cell(each)}" for name, each in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value)) or "-"
    return str(value)
