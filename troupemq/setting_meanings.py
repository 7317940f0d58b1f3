"""Descriptions and defaults of a broker's settings.

The description is the comment above a setting in the sample file of conf/, which the package
contains. The manual and the console use the same text.
"""

import re
from collections.abc import Iterator
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
