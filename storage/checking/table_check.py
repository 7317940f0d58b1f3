"""Check of the JSON tables by the loaders of a start: what they omit or refuse.

It also covers previous versions and checksums, which a start reads only after damage.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.bloom import BloomFilter
from protocol.bodies import SubscriptionGroupTable, TopicConfig, TopicConfigTable
from storage.config import StoreConfig
from storage.files.disk import Disk
from storage.finding import Finding
from storage.tables.consumer_filters import ConsumerFilters
from storage.tables.crc_sidecar import Sidecar
from storage.tables.json_config import Loaded, load, parsed_object
from storage.tables.store_traces import restored_groups, restored_topics
from storage.tables.table_files import BROKER_TABLES, table_parsers
from storage.tables.topics import always_present

T = TypeVar("T")

_NAMES_MAX = 20
"""Maximum number of topics or groups in a finding."""


def _usual_topics() -> dict[str, TopicConfig]:
    return {topic.topic_name: topic for topic in always_present("DefaultCluster", "")}


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of the broker that a start uses; defaults where they are unknown."""

    bloom: BloomFilter = field(default_factory=BloomFilter.of)
    known_topics: Mapping[str, TopicConfig] = field(default_factory=_usual_topics)
    """Topics that the broker always has."""
    are_known: bool = False
    """Whether the settings are those of the broker."""


def table_findings(
    disk: Disk,
    config: StoreConfig,
    settings: TableSettings,
    queues_made: Collection[tuple[str, int]] = (),
) -> Iterator[Finding]:
    """Yield the findings in the order of the files. Raise StoreError like a start.

    `queues_made` are missing queues that exist before a start loads the tables.
    """
    parsers = table_parsers(settings.bloom)
    for name in BROKER_TABLES:
        path = f"{config.config_dir}/{name}"
        loaded = load(disk, path, parsers[name])
        if loaded.findings:
            yield Finding("config", loaded.findings)
        for each in loaded.left_out:
            yield Finding("config", entry_left_out(path, each.entry, each.reason))
        yield from _consequences(disk, path, loaded, settings, queues_made)
        yield from _previous(disk, path, loaded)


def entry_left_out(path: str, entry: str, reason: str) -> str:
    """Return the text for an entry that cannot be used."""
    return f"{path}: {entry} is left out: {reason}"


def found_again(path: str, names: list[str]) -> str:
    """Return the text for topics or groups restored from other parts of the store."""
    shown = ", ".join(names[:_NAMES_MAX])
    if len(names) > _NAMES_MAX:
        shown += f" and {len(names) - _NAMES_MAX} more"
    return f"{path}: restored with default settings, from queues and offsets: {shown}"


def _consequences(
    disk: Disk,
    path: str,
    loaded: Loaded[object],
    settings: TableSettings,
    queues_made: Collection[tuple[str, int]],
) -> Iterator[Finding]:
    """Yield what a start adds to an incomplete table, or omits."""
    name = path.rpartition("/")[2]
    whole = loaded.is_newest, loaded.broken, loaded.findings, loaded.left_out
    found: list[str] = []
    if name == "topics.json":
        topics = Loaded(_as(TopicConfigTable, loaded.value), *whole)
        known = settings.known_topics
        _, found = restored_topics(disk, path, topics, known, {}, 0, queues_made)
    elif name == "subscriptionGroup.json":
        groups = Loaded(_as(SubscriptionGroupTable, loaded.value), *whole)
        _, found = restored_groups(disk, path, groups, (), 0, queues_made)
    elif isinstance(filters := loaded.value, ConsumerFilters):
        count = len(filters) - len(filters.loaded(0))
        if count:
            text = f"{path}: {count} filters are for other bit maps: they are skipped"
            yield Finding("config", text, is_wrong=settings.are_known)
    if found:
        yield Finding("config", found_again(path, found))


def _as(kind: type[T], value: object) -> T | None:
    return value if isinstance(value, kind) else None


def _previous(disk: Disk, path: str, loaded: Loaded[object]) -> Iterator[Finding]:
    """Yield faults of the previous version, if a start does not need it, and of the checksums."""
    backup, sidecar = f"{path}.bak", f"{path}.crc"
    if loaded.value is not None and not loaded.broken and disk.exists(backup):
        if disk.is_dir(backup):
            yield Finding("config", f"{backup} is a directory")
        else:
            try:
                parsed_object(disk.read_bytes(backup).decode("utf-8"))
            except (ValueError, RecursionError) as error:
                yield Finding("config", f"{backup} cannot be used ({error})")
    if disk.exists(sidecar) and (
        disk.is_dir(sidecar) or Sidecar.decode(disk.read_bytes(sidecar)) is None
    ):
        yield Finding("config", f"{sidecar} is damaged: it cannot identify a flipped bit")
