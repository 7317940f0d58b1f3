"""Entries that a table's loader leaves out because they cannot be used.

An entry is what a table would lose on its own: a topic, a group, a group's offset in one queue.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from protocol.bodies import DataVersion
from protocol.errors import RemoteError
from protocol.fastjson import FastjsonError, dumps, loads
from protocol.table_rules import key_fault

K = TypeVar("K")
V = TypeVar("V")

_SHOWN_CHARS_MAX = 200
VERSION = "dataVersion"


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """One entry, and why."""

    path: tuple[object, ...]
    """The keys that lead to it, from the top of the file."""
    reason: str
    value: object
    """As the file has it."""

    @property
    def entry(self) -> str:
        """Its keys in words, fit for a line of a log."""
        return ", ".join(map(_shown, self.path[1:] or self.path))

    def line(self) -> bytes:
        """One line of the side file (storage/tables/json_config.py)."""
        line: dict[str, object] = {"entry": self.entry, "reason": self.reason}
        value = self.value
        for key in reversed(self.path):
            value = {key: value}
        try:
            return dumps({**line, "value": value}) + b"\n"
        except FastjsonError:  # with the keys around it there are too many levels
            return dumps({**line, "value": repr(self.value)[:_SHOWN_CHARS_MAX]}) + b"\n"


LeftOuts = list[SkippedEntry]
Parse = Callable[[str, LeftOuts | None], V]
"""A loader: the table that a text is. A bad entry is put into the list; without a list, and where
the text cannot be the table at all, it raises ValueError or RemoteError."""


def taken_entries(
    found: Mapping[object, object],
    read: Callable[[object, object], tuple[K, V]],
    left_out: LeftOuts | None,
    within: tuple[object, ...],
) -> dict[K, V]:
    """What `read` makes of the entries of one object, by key; it raises for those it cannot use.

    `within`: the keys that lead to that object, from the top of the file. Raises ValueError
    without `left_out`.
    """
    taken: dict[K, V] = {}
    for key, value in found.items():
        try:
            if isinstance(key, str):
                raise_fault(key_fault(key))
            name, taken_value = read(key, value)
        except (RemoteError, ValueError, TypeError, OverflowError) as error:
            reason = error.remark if isinstance(error, RemoteError) else str(error)
            entry = SkippedEntry((*within, key), reason, value)
            if left_out is None:
                raise ValueError(f"{entry.entry}: {reason}") from error
            left_out.append(entry)
        else:
            taken[name] = taken_value
    return taken


def raise_fault(fault: str) -> None:
    """Raises ValueError for what a rule (protocol/table_rules.py) says, if it says anything."""
    if fault:
        raise ValueError(fault)


def taken_version(found: Mapping[object, object], left_out: LeftOuts | None) -> DataVersion:
    """A table's version; where it cannot be used, the first one: everybody asks for that anew."""
    if found.get(VERSION) is None:
        return DataVersion()
    version: Mapping[object, object] = {VERSION: found[VERSION]}
    taken = taken_entries(
        version, lambda key, each: (key, DataVersion.from_json(each)), left_out, ()
    )
    return taken.get(VERSION, DataVersion())


def put_back(
    text: bytes, previous: bytes, left_out: LeftOuts, parse: Parse[V]
) -> tuple[V, LeftOuts] | None:
    """The table with the version before's entries where its own are left out; None: it has none.

    A group whose offset is lost would begin somewhere else: that of some seconds ago is better.
    What is put back is still told, as what the file has of it cannot be used.
    """
    newest, before = loads(text), loads(previous)
    changed = set()
    for each in left_out:
        holder, old = _at(newest, each.path[:-1]), _at(before, each.path)
        if isinstance(holder, dict) and old is not None and old != each.value:
            holder[each.path[-1]] = old
            changed.add(each.path)
    if not changed:
        return None
    still: LeftOuts = []
    table = parse(dumps(newest).decode("utf-8"), still)
    changed -= {each.path for each in still}
    return table, [
        replace(each, reason=f"{each.reason}; that of the version before is used")
        if each.path in changed
        else each
        for each in left_out
    ]


def _at(value: object, path: tuple[object, ...]) -> object:
    """What these keys lead to; None: nothing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _shown(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    text = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return text if text.isprintable() and text else ascii(text)
