"""Numbers of entries in the JSON tables at a clean stop, for the report of lost tables at a start.

Only existing tables are counted. An unreadable one is not: its loader reports the fault.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from storage.config import StoreConfig
from storage.errors import Finding
from storage.files.disk import Disk
from storage.tables.json_config import parsed_table
from storage.tables.offsets import group_of

Entries = Mapping[object, object]


def _filter_count(topics: Entries) -> int:
    groups = [each.get("groupFilterData") for each in topics.values() if isinstance(each, dict)]
    return sum(len(each) for each in groups if isinstance(each, dict))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Content of a file, in words for the operator."""

    table: str
    what: str
    entry: str
    after: str
    """Effect of the loss."""
    count: Callable[[Entries], int] = len


_KINDS = {
    "topics.json": _Kind(
        "topicConfigTable",
        "the settings",
        "topic",
        "topics with queues or offsets are restored with default settings",
    ),
    "subscriptionGroup.json": _Kind(
        "subscriptionGroupTable",
        "the settings",
        "group",
        "groups get the default settings",
    ),
    "consumerOffset.json": _Kind(
        "offsetTable",
        "the offsets",
        "group",
        "they start like new groups",
        lambda table: len({group_of(str(key)) for key in table}),
    ),
    "delayOffset.json": _Kind(
        "offsetTable",
        "the places",
        "delay level",
        "retained messages are delivered again",
    ),
    "consumerFilter.json": _Kind(
        "filterDataByTopic",
        "the expressions",
        "subscription",
        "the consumers send them again",
        _filter_count,
    ),
    "messageRequestMode.json": _Kind(
        "messageRequestModeMap",
        "the request modes",
        "subscription",
        "the groups pull again",
        lambda table: sum(len(each) for each in table.values() if isinstance(each, dict)),
    ),
}
"""Kinds by file name."""


def count_entries(config: StoreConfig, disk: Disk) -> dict[str, int]:
    """Return counts by name of each existing file. Invalid content raises nothing."""
    counts = {}
    for name, kind in _KINDS.items():
        path = f"{config.config_dir}/{name}"
        try:
            text = disk.read_bytes(path).decode("utf-8")
            counts[name] = kind.count(parsed_table(text, kind.table)[1])
        except (OSError, ValueError, RecursionError):
            continue
    return counts


def lost_tables(config: StoreConfig, disk: Disk, known: Mapping[str, int]) -> list[Finding]:
    """Return a finding for each file that existed at the last clean stop and is lost."""
    found = []
    for name, count in known.items():
        path, kind = f"{config.config_dir}/{name}", _KINDS.get(name)
        if kind is not None and not disk.exists(path) and not disk.exists(f"{path}.bak"):
            entries = f"{count} {kind.entry}{'' if count == 1 else 's'}"
            lost = f"{kind.what} of {entries} are lost; {kind.after}"
            text = f"{path} and its previous version are missing: {lost}"
            found.append(Finding("config", text))
    return found
