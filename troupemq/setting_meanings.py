"""The meaning of each setting of a broker: the comment above it in the sample, and its default.

The samples of conf/ come with the package: the manual and the console are made of the same words.
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
"""In a wheel, and in a clone."""


@dataclass(frozen=True)
class SettingMeaning:
    """What is known of one setting."""

    words: str
    default: str
    """As it is written into the file; empty: none, or one that the machine decides."""
    is_live: bool
    """Whether a change holds without a restart."""
    is_secret: bool


def sample(name: str) -> str:
    """The text of a sample of conf/; empty where it did not come along."""
    for folder in _FOLDERS:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    return ""


def meanings(text: str) -> dict[str, str]:
    """What the comment above each key of a settings file says."""
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
    """The fields of configuration classes that are filled from settings."""
    for config in classes:
        yield from (each for each in fields(config) if "key" in each.metadata)


def default_text(field: Any) -> str:
    """A field's default as one writes it; below ~ what lies in somebody's home."""
    value = None if field.default is MISSING else field.default
    if value in (None, ""):
        return ""
    home = str(Path.home())
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace(home, "~", 1) if text.startswith(home) else text


@cache
def broker_settings() -> dict[str, SettingMeaning]:
    """Every setting of a broker and its store, by its key."""
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
