"""Descriptions and defaults of a broker's settings.

The description is the comment above a setting in the sample file of conf/, which the package
contains. The manual and the console use the same text. A description names the unit of its value,
so that a value can be put into words.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from actors.config import BrokerConfig
from storage.config import StoreConfig

SAMPLES = ("broker.conf", "namesrv.conf")
_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "conf", _HERE.parent / "conf")
"""Folder of the samples in a wheel, then in a clone."""


@dataclass(frozen=True)
class SettingMeaning:
    words: str
    default: str
    """Default as written in the file; empty without one, or if it depends on the machine."""
    is_live: bool
    """Whether a change takes effect without a restart."""
    is_secret: bool


def _duration(milliseconds: float) -> str:
    """Return a duration in the largest unit that it fills."""
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if milliseconds >= size and milliseconds * 10 % size == 0:
            count = milliseconds / size
            return f"{count:,.4g} {unit}{'' if count == 1 else 's'}"
    return f"{milliseconds / 1000:,.7g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"


def _bytes(count: float) -> str:
    """Return a number of bytes in the largest binary unit that it fills."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:,.4g} {unit}"
    return f"{count:g} bytes"


_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("in milliseconds since 1970", lambda value: ""),
    ("in milliseconds", _duration),
    ("in seconds", lambda value: _duration(value * 1000)),
    ("in hours", lambda value: _duration(value * 3_600_000)),
    ("days for which", lambda value: _duration(value * 86_400_000)),
    ("in percent", lambda value: f"{value:g} %"),
    ("as a fraction of 1", lambda value: f"{value * 100:.4g} %"),
    ("pages of 4096 bytes", lambda value: _bytes(value * 4096)),
    ("in bytes", _bytes),
    ("maximum bytes", _bytes),
)
"""Phrases of descriptions that name the unit of the value, and the words for a value."""

_END = re.compile(r"[.;,] |[.;]$")
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,6})?")


def in_words(value: str, words: str) -> str:
    """Return a value in plain words and units, by its description; empty if it needs none."""
    for phrase in (f" {value or 'Empty'}: ", f" {value} is "):
        _, is_there, rest = f" {words}".partition(phrase)
        if is_there:
            return _END.split(rest)[0]
    if value in ("true", "false"):
        return "yes" if value == "true" else "no"
    if not _NUMBER.fullmatch(value):
        return ""
    folded = words.casefold()
    phrase = min((each for each, _ in _UNITS if each in folded), key=folded.find, default="")
    return dict(_UNITS)[phrase](float(value)) if phrase else ""


def sample(name: str) -> str:
    """Return the text of a sample file of conf/; empty if it is missing."""
    for folder in _FOLDERS:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    return ""


def meanings(text: str) -> dict[str, str]:
    """Return the comment above each key of a settings file."""
    found: dict[str, str] = {}
    comment: list[str] = []
    after_key = False
    for line in text.splitlines():
        key = re.match(r"#?([\w.]+) = ?", line)
        if key is not None:
            found[key[1]] = " ".join(comment)
            after_key = True
        elif line.startswith("# ") and not line.startswith("# ---"):
            comment = [*([] if after_key else comment), line[2:].strip()]
            after_key = False
        else:
            comment, after_key = [], False
    return found


def fields_with_keys(*classes: type[Any]) -> Iterator[Any]:
    """Yield the fields of configuration classes that are filled from settings."""
    for config in classes:
        yield from (each for each in fields(config) if "key" in each.metadata)


def default_text(field: Any) -> str:
    """Return a field's default as written in a settings file, with ~ for the home folder."""
    value = None if field.default is MISSING else field.default
    if value in (None, ""):
        return ""
    home = str(Path.home())
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace(home, "~", 1) if text.startswith(home) else text


@cache
def broker_settings() -> dict[str, SettingMeaning]:
    """Return every setting of a broker and its store, by key."""
    words = meanings(sample("broker.conf"))
    return {
        each.metadata["key"]: SettingMeaning(
            words.get(each.metadata["key"], ""),
            default_text(each),
            bool(each.metadata["live"]),
            bool(each.metadata["secret"]),
        )
        for each in fields_with_keys(BrokerConfig, StoreConfig)
    }
