"""Changes that the console makes, each previewed before it is carried out.

A form collects the values, a preview shows the current state and the equal command line, and then
the change runs. The audit log records its start and its result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.java_numbers import plain_number
from storage.errors import StoreError
from troupemq.client.admin import Admin, Result
from troupemq.client.admin.base import INT_MAX
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.console.asking import PageRequest
from troupemq.console.cluster import CommandResult
from troupemq.console.names import GROUPS, missing_name
from troupemq.console.parts import Input, Link, Links, Part

CHANGE_S = 15.0
"""Deadline of one change at all brokers."""

HIDDEN = "SECRET"
"""Replaces secrets in command lines and sentences."""

Given = Mapping[str, str]


@dataclass(frozen=True)
class Preview:
    """Preview of a change for the page; `before` goes to the audit log."""

    parts: Sequence[Part] = ()
    before: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsoleChange:
    name: str
    title: str
    role: str
    inputs: Callable[[PageRequest], Sequence[Input]]
    words: Callable[[Given], Sequence[str]] | None
    """Words after `troupemq`; None for changes of the console itself, which have no command."""
    preview: Callable[[PageRequest, Given], Preview] = lambda asked, given: Preview()
    act: Callable[[Admin, Given], Iterable[Result]] | None = None
    """Call the method of Admin behind the command of `words`."""
    do: Callable[[PageRequest, Given, CommandResult[Any]], None] | None = None
    """Carry out a change without a method of Admin. Raises ClientError, StoreError."""
    about: str = ""
    refuses: Callable[[Given], str] = lambda given: ""
    """Return why the values are rejected, neither previewed nor noted; else an empty text."""
    checks: Callable[[PageRequest, Given], str] = lambda asked, given: ""
    """Return why the cluster would reject the values, such as an unknown name, as above."""

    def line(self, asked: PageRequest, given: Given) -> str:
        """Return the command line, with SECRET for secrets; empty without a command."""
        if self.words is None:
            return ""
        hidden = dict.fromkeys(self.secrets(asked), HIDDEN)
        return asked.cluster.line(self.words({**given, **hidden}))

    def secrets(self, asked: PageRequest) -> list[str]:
        return [each.name for each in self.inputs(asked) if each.kind == "secret"]

    def carry_out(self, asked: PageRequest, given: Given) -> CommandResult[Any]:
        if self.do is not None:
            result = CommandResult[Any]()
            try:
                self.do(asked, given, result)
            except (ClientError, StoreError) as error:
                result.fail(str(error))
            return result
        act = self.act
        assert act is not None
        out = asked.cluster.ask(lambda admin: act(admin, given), CHANGE_S)
        for value in filter(None, (given.get(name) for name in self.secrets(asked))):
            out.sentences = [each.replace(value, HIDDEN) for each in out.sentences]
            out.failures = [each.replace(value, HIDDEN) for each in out.failures]
        return out

    def faults(self, asked: PageRequest, given: Given, *, is_meant: bool) -> list[str]:
        """Return what is missing or invalid; a preview (not `is_meant`) needs no secrets."""
        found = []
        for each in self.inputs(asked):
            value = given.get(each.name, "")
            if each.kind == "secret" and not is_meant and self.words is not None:
                continue
            if each.needed and not value:
                found.append(f"{each.label} is missing")
            elif each.kind == "choice" and value and value not in each.choices:
                found.append(f"{each.label} is invalid: use one of {', '.join(each.choices)}")
            elif each.kind not in ("choice", "secret") and (
                fault := asked.fault(each.name, value, each.rule)
            ):
                found.append(fault)
        if why := self.refuses(given) or ("" if found else self.checks(asked, given)):
            found.append(why)
        return found

    def said(self, asked: PageRequest, given: Given) -> dict[str, str]:
        """Return the values for the audit log, without secrets."""
        secret = set(self.secrets(asked))
        return {name: value for name, value in given.items() if value and name not in secret}


def number_of(given: Given, name: str, least: int = 1) -> int:
    """Return a field as a 32-bit number. Raises ArgumentIllegal."""
    text = given[name].strip()
    number = plain_number(text.removeprefix("-"), INT_MAX)
    if number is not None and text.startswith("-"):
        number = -number
    if number is None or number < least:
        raise ArgumentIllegal(f"{name}: {text!r} is not in the range {least}<=x<={INT_MAX}")
    return number


def exist(**kinds: str) -> Callable[[PageRequest, Given], str]:
    """Return a check that the names in these fields exist: `exist(topic=TOPICS)`."""

    def check(asked: PageRequest, given: Given) -> str:
        for name, kind in kinds.items():
            if missing_name(asked.snapshot(), kind, given[name]):
                asked.console.watch.forget()  # the name may be newer than the snapshot
                why = missing_name(asked.snapshot(), kind, given[name])
                if why and not (kind == GROUPS and _has_offsets(asked, given[name])):
                    return why
        return ""

    return check


def _has_offsets(asked: PageRequest, group: str) -> bool:
    """Return whether a group without settings has offsets, like that of a redrive."""
    return bool(asked.cluster.ask(lambda admin: admin.group_progress(group)).found)


CHANGES: dict[str, ConsoleChange] = {}


def register(*changes: ConsoleChange) -> None:
    CHANGES.update({each.name: each for each in changes})


def change_link(
    asked: PageRequest, text: str, name: str, given: Mapping[str, object]
) -> Link | None:
    """Return a link to a change; None if the viewer may not make it."""
    if not asked.viewer.may(CHANGES[name].role):
        return None
    return Link(text, f"/change/{name}", given)


def change_links(
    asked: PageRequest, wanted: Sequence[tuple[str, str, Mapping[str, object]]]
) -> Links:
    """Return links to the changes that the viewer may make."""
    found = (change_link(asked, *each) for each in wanted)
    return Links([each for each in found if each is not None])
