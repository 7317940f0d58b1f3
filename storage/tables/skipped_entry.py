"""Unusable entries that a table's loader leaves out.

An entry is the smallest part of a table: a topic, a group, a group's offset in one queue.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from protocol.bodies_tables import DataVersion
from protocol.errors import RemoteError
from protocol.fastjson import dumps, loads
from protocol.fastjson_limits import FastjsonError
from protocol.table_rules import key_fault

K = TypeVar("K")
V = TypeVar("V")

_SHOWN_CHARS_MAX = 200
VERSION = "dataVersion"


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    path: tuple[object, ...]
    """Keys that lead to it from the top of the file."""
    reason: str
    value: object

    @property
    def entry(self) -> str:
        """Keys of the entry as text for a log line."""
        return ", ".join(map(_shown, self.path[1:] or self.path))

    def line(self) -> bytes:
        """Return one line of the side file (storage/tables/json_config.py)."""
        line: dict[str, object] = {"entry": self.entry, "reason": self.reason}
        value = self.value
        for key in reversed(self.path):
            value = {key: value}
        try:
            return dumps({**line, "value": value}) + b"\n"
        except FastjsonError:  # too many levels with the keys around it
            return dumps({**line, "value": repr(self.value)[:_SHOWN_CHARS_MAX]}) + b"\n"


LeftOuts = list[SkippedEntry]
Parse = Callable[[str, LeftOuts | None], V]
"""A loader: it returns the table in a text and adds unusable entries to the list.

Without a list, or for a text that is no such table, it raises ValueError or RemoteError.
"""


def taken_entries(
    found: Mapping[object, object],
    read: Callable[[object, object], tuple[K, V]],
    left_out: LeftOuts | None,
    within: tuple[object, ...],
) -> dict[K, V]:
    """Return the entries of one object as `read` converts them; it raises for unusable ones.

    `within` has the keys that lead to that object, from the top of the file. Raise ValueError
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
    """Raise ValueError for a fault found by a rule (protocol/table_rules.py)."""
    if fault:
        raise ValueError(fault)


def taken_version(found: Mapping[object, object], left_out: LeftOuts | None) -> DataVersion:
    """Return a table's version; an unusable one restarts, so that peers fetch the table."""
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
    """Return the table with the previous version's entries for those left out, or None without any.

    A group that lost its offset would start elsewhere; one of some seconds ago is better. Replaced
    entries stay in the list, because the file's own are unusable.
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
        replace(each, reason=f"{each.reason}; the previous version is used")
        if each.path in changed
        else each
        for each in left_out
    ]


def _at(value: object, path: tuple[object, ...]) -> object:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _shown(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    text = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return text if text.isprintable() and text else ascii(text)
