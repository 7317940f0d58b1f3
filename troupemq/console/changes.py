"""The changes that the console makes, each shown before it is carried out.

A change is asked for in a form, previewed, and then done; the preview says the command line that
does the same, and what there is now. What was done, or failed, is in the audit log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.java_numbers import plain_number
from troupemq.client.admin import Admin, Result
from troupemq.client.admin.base import INT_MAX
from troupemq.client.errors import ArgumentIllegal
from troupemq.console.asking import PageRequest
from troupemq.console.cluster import CommandResult
from troupemq.console.parts import Input, Link, Links, Part

CHANGE_S = 15.0
"""For one change at all brokers."""

HIDDEN = "SECRET"
"""Stands in lines and sentences for what was given and is shown to nobody."""

Given = Mapping[str, str]


@dataclass(frozen=True)
class Preview:
    """Effect of a change: for the page, and `before` for the audit log."""

    parts: Sequence[Part] = ()
    before: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsoleChange:
    """One kind of change."""

    name: str
    title: str
    role: str
    inputs: Callable[[PageRequest], Sequence[Input]]
    words: Callable[[Given], Sequence[str]] | None
    """After `troupemq`; None: of the console's own accounts, which no command knows."""
    preview: Callable[[PageRequest, Given], Preview] = lambda asked, given: Preview()
    act: Callable[[Admin, Given], Iterable[Result]] | None = None
    """Calls the method of Admin that the command of `words` calls."""
    do: Callable[[PageRequest, Given], CommandResult[Any]] | None = None
    """Carries out what no method of Admin does."""
    about: str = ""
    refuses: Callable[[Given], str] = lambda given: ""
    """Why what is given is not even looked at, nor noted; empty: it is."""

    def line(self, asked: PageRequest, given: Given) -> str:
        """Return the command line, with SECRET for what is secret; empty where there is none."""
        if self.words is None:
            return ""
        hidden = dict.fromkeys(self.secrets(asked), HIDDEN)
        return asked.cluster.line(self.words({**given, **hidden}))

    def secrets(self, asked: PageRequest) -> list[str]:
        """Return the names of the fields that are never shown again."""
        return [each.name for each in self.inputs(asked) if each.kind == "secret"]

    def carry_out(self, asked: PageRequest, given: Given) -> CommandResult[Any]:
        """Carry it out; what failed is in `failures`."""
        if self.do is not None:
            return self.do(asked, given)
        act = self.act
        assert act is not None
        out = asked.cluster.ask(lambda admin: act(admin, given), CHANGE_S)
        for value in filter(None, (given.get(name) for name in self.secrets(asked))):
            out.sentences = [each.replace(value, HIDDEN) for each in out.sentences]
            out.failures = [each.replace(value, HIDDEN) for each in out.failures]
        return out

    def faults(self, asked: PageRequest, given: Given, *, is_meant: bool) -> list[str]:
        """Return what is missing, or not among the choices. A preview is made without secrets."""
        found = []
        for each in self.inputs(asked):
            value = given.get(each.name, "")
            if each.kind == "secret" and not is_meant and self.words is not None:
                continue
            if each.needed and not value:
                found.append(f"{each.label} is needed")
            elif each.kind == "choice" and value and value not in each.choices:
                found.append(f"{each.label} is one of {', '.join(each.choices)}")
            elif each.kind not in ("choice", "secret") and (
                fault := asked.fault(each.name, value, each.rule)
            ):
                found.append(fault)
        if why := self.refuses(given):
            found.append(why)
        return found

    def said(self, asked: PageRequest, given: Given) -> dict[str, str]:
        """Return what was given, for the audit log: no secrets."""
        secret = set(self.secrets(asked))
        return {name: value for name, value in given.items() if value and name not in secret}


def number_of(given: Given, name: str, least: int = 1) -> int:
    """Return a field as a number of 32 bits. Raises ArgumentIllegal."""
    text = given[name].strip()
    number = plain_number(text.removeprefix("-"), INT_MAX)
    if number is not None and text.startswith("-"):
        number = -number
    if number is None or number < least:
        raise ArgumentIllegal(f"{name}: {text!r} is not in the range {least}<=x<={INT_MAX}")
    return number


CHANGES: dict[str, ConsoleChange] = {}


def register(*changes: ConsoleChange) -> None:
    """Make changes known by their names."""
    CHANGES.update({each.name: each for each in changes})


def change_link(
    asked: PageRequest, text: str, name: str, given: Mapping[str, object]
) -> Link | None:
    """Return a link to a change; None for a viewer that may not make it."""
    if not asked.viewer.may(CHANGES[name].role):
        return None
    return Link(text, f"/change/{name}", given)


def change_links(
    asked: PageRequest, wanted: Sequence[tuple[str, str, Mapping[str, object]]]
) -> Links:
    """Return links to the changes that the viewer may make."""
    found = (change_link(asked, *each) for each in wanted)
    return Links([each for each in found if each is not None])
