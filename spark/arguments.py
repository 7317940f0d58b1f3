"""Arguments of a job as the fields of a dataclass, checked before Spark starts."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from spark.parts import spark_pays
from storage.errors import StoreError
from storage.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class OfStore:
    """Arguments of every job over a store; each job has a subclass."""

    store: str
    commit_log: str | None = None


@dataclass(frozen=True, slots=True)
class OfShared(OfStore):
    """Arguments of a job that may run on Spark."""

    published_offset: int | None = None
    with_spark: bool | None = None


@dataclass(frozen=True, slots=True)
class OfMessages(OfShared):
    """Arguments of a job that reads messages."""

    since: Any = None
    until: Any = None
    range_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Raise StoreError for an invalid range of times."""
        since_ms, until_ms = time_ms("since", self.since), time_ms("until", self.until)
        if since_ms is not None and until_ms is not None and until_ms < since_ms:
            raise StoreError(f"until {self.until} is before since {self.since}: exchange them")


Arguments = TypeVar("Arguments")
StoreArguments = TypeVar("StoreArguments", bound=OfStore)

GIVEN_BY_BROKERS = ("store", "commit_log", "published_offset", "output")
"""Arguments that a broker adds to every run; a job ignores those that it does not have."""

_WORDS = {str: "a text", int: "a number", bool: "true or false", float: "a number"}


def read_arguments(kind: type[Arguments], job: str, given: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a job.

    Raises StoreError for a name that is missing or unknown, or an invalid value.
    """
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    found = {}
    for name, value in given.items():
        if name in known:
            if value is not None:
                found[name] = _checked(job, name, value, hints[name])
        elif name not in GIVEN_BY_BROKERS:
            hint = did_you_mean(name, known, f"it has {', '.join(known)}")
            raise StoreError(f"{job} has no argument {name}; {hint}")
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and not found.get(name):
            raise StoreError(f"{job} needs the argument {name}")
    return kind(**found)


def checked(kind: type[StoreArguments], job: str, given: Mapping[str, Any]) -> StoreArguments:
    """Return the arguments of a job over a store.

    Raises StoreError for an invalid argument or store.
    """
    wanted = read_arguments(kind, job, given)
    check_store(wanted.store, wanted.commit_log)
    return wanted


def pays(wanted: OfShared) -> bool:
    """Return whether to start Spark: as `with_spark` says, else by the size of the log."""
    return spark_pays(wanted.store, wanted.commit_log, wanted.with_spark)


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
    """Raise StoreError if `store` is no store directory."""
    log = commit_log or str(Path(store) / "commitlog")
    if not Path(store).is_dir():
        raise StoreError(f"{store} is no store directory: the path does not exist")
    if not any(Path(part).is_dir() for part in log.split(",")):
        raise StoreError(f"{store} is no store directory: {log} is missing")


def check_topics(store: str, topics: Iterable[str] | None) -> None:
    """Raise StoreError for a topic without a consume queue in the store."""
    there = topic_names(store)
    for topic in topics or ():
        if topic not in there:
            some = ", ".join(sorted(there)[:20]) or "none"
            raise StoreError(f"topic {topic} not found in {store}: it has {some}")


def topic_names(store: str) -> set[str]:
    """Return the topics that have consume queues."""
    try:
        return set(os.listdir(Path(store) / "consumequeue"))
    except OSError:
        return set()


def check_output(output: str) -> None:
    """Create a missing output directory; raise StoreError if it is not writable."""
    try:
        Path(output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write to {output}: {error.strerror}") from error
    if not os.access(output, os.W_OK | os.X_OK):
        raise StoreError(f"cannot write to {output}: Permission denied")


def time_ms(name: str, value: Any) -> int | None:
    """Return a time in ms since 1970, given as such or as ISO 8601; None stays None.

    ISO 8601 without a zone is UTC. Raises StoreError for anything else.
    """
    if value is None or isinstance(value, int):
        return value
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        raise StoreError(
            f"invalid {name} {value!r}: use a time such as 2026-11-20T08:00, or ms"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
