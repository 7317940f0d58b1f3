"""What a table's loader leaves out: entries that cannot be used, while the others can.

An entry is what a table would lose on its own: a topic, a group, a group's offset in one queue.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from protocol.bodies import DataVersion
from protocol.errors import RemoteError
from protocol.fastjson import FastjsonError, dumps
from protocol.table_rules import key_fault

K = TypeVar("K")
V = TypeVar("V")

_SHOWN_CHARS_MAX = 200
VERSION = "dataVersion"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One entry, and why."""

    entry: str
    """Its key in words, fit for a line of a log."""
    reason: str
    value: object
    """The entry as the file has it: objects around it down to its key, nothing else in them."""

    def line(self) -> bytes:
        """One line of the side file (storage/json_config.py)."""
        line: dict[str, object] = {"entry": self.entry, "reason": self.reason}
        try:
            return dumps({**line, "value": self.value}) + b"\n"
        except FastjsonError:  # it refers to what is around it, without an end
            return dumps({**line, "value": repr(self.value)[:_SHOWN_CHARS_MAX]}) + b"\n"


LeftOuts = list[LeftOut]
Parse = Callable[[str, LeftOuts | None], V]
"""A loader: the table that a text is. A bad entry is put into the list; without a list, and where
the text cannot be the table at all, it raises ValueError or RemoteError."""


def taken_entries(
    found: Mapping[object, object],
    read: Callable[[object, object], tuple[K, V]],
    left_out: LeftOuts | None,
    within: tuple[str, ...] = (),
) -> dict[K, V]:
    """What `read` makes of the entries of one object, by key; it raises for those it cannot use.

    `within`: the keys of the objects around this one. Raises ValueError without `left_out`.
    """
    taken: dict[K, V] = {}
    for key, value in found.items():
        try:
            if isinstance(key, str):
                raise_fault(key_fault(key))
            name, entry = read(key, value)
        except (RemoteError, ValueError, TypeError, OverflowError) as error:
            reason = error.remark if isinstance(error, RemoteError) else str(error)
            shown = ", ".join(map(_shown, (*within, key)))
            if left_out is None:
                raise ValueError(f"{shown}: {reason}") from error
            whole: dict[object, object] = {key: value}
            for around in reversed(within):
                whole = {around: whole}
            left_out.append(LeftOut(shown, reason, whole))
        else:
            taken[name] = entry
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
    taken = taken_entries(version, lambda key, each: (key, DataVersion.from_json(each)), left_out)
    return taken.get(VERSION, DataVersion())


def _shown(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    text = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return text if text.isprintable() and text else ascii(text)
