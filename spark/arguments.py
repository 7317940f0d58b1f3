"""What a job was told, as the fields of a dataclass; and refusals before Spark starts."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from storage.errors import StoreError

Arguments = TypeVar("Arguments")

GIVEN_BY_BROKERS = ("store", "commit_log", "published_offset", "output")
"""What a broker adds to every run; a job that has no such argument passes them over."""

_WORDS = {str: "a text", int: "a number", bool: "true or false", float: "a number"}


def read_arguments(kind: type[Arguments], job: str, given: Mapping[str, Any]) -> Arguments:
    """The arguments of a job. Raises StoreError for a name that is missing, unknown or no value."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    found = {}
    for name, value in given.items():
        if name in known:
            if value is not None:
                found[name] = _checked(job, name, value, hints[name])
        elif name not in GIVEN_BY_BROKERS:
            raise StoreError(f"{job} has no argument {name}; it has {', '.join(known)}")
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and not found.get(name):
            raise StoreError(f"{job} needs the argument {name}")
    return kind(**found)


def _checked(job: str, name: str, value: Any, hint: Any) -> Any:
    if hint is Any:
        return value
    kinds = [each for each in get_args(hint) if each is not NoneType] or [hint]
    kind = kinds[0]
    if kind in _WORDS:
        allowed = (int, float) if kind is float else kind
        if isinstance(value, allowed) and (kind is bool or not isinstance(value, bool)):
            return value
        raise StoreError(f"{job}: {name} = {value!r} is not {_WORDS[kind]}")
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise StoreError(f'{job}: {name} = {value!r} is not a list: write ["a", "b"]')
    return tuple(value)


def check_store(store: str, commit_log: str | None = None) -> None:
    """Raises StoreError for what is no store directory."""
    log = commit_log or str(Path(store) / "commitlog")
    if not Path(store).is_dir():
        raise StoreError(f"{store} is no store directory: there is nothing at this path")
    if not any(Path(part).is_dir() for part in log.split(",")):
        raise StoreError(f"{store} is no store directory: it has no {log}")


def check_topics(store: str, topics: Iterable[str] | None) -> None:
    """Raises StoreError for a topic that the store has no queue of."""
    there = topic_names(store)
    for topic in topics or ():
        if topic not in there:
            some = ", ".join(sorted(there)[:20]) or "none at all"
            raise StoreError(f"there is no topic {topic} in {store}; there is {some}")


def topic_names(store: str) -> set[str]:
    """The topics that have queues."""
    try:
        return set(os.listdir(Path(store) / "consumequeue"))
    except OSError:
        return set()


def check_output(output: str) -> None:
    """Raises StoreError for a directory that cannot be written; makes it where it is missing."""
    try:
        Path(output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write to {output}: {error.strerror}") from error
    if not os.access(output, os.W_OK | os.X_OK):
        raise StoreError(f"cannot write to {output}: Permission denied")
