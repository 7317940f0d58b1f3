"""How many entries each JSON table has: noted at a clean stop, for a start to say what is lost.

Only tables that a broker has in its config directory. A table that cannot be read is not counted:
what is wrong with it is its loader's to say.
"""

from collections.abc import Callable, Mapping

from storage.config import StoreConfig
from storage.disk import Disk
from storage.finding import Finding
from storage.json_config import parsed_table
from storage.offsets import group_of

Entries = Mapping[object, object]


def _filter_count(topics: Entries) -> int:
    groups = [each.get("groupFilterData") for each in topics.values() if isinstance(each, dict)]
    return sum(len(each) for each in groups if isinstance(each, dict))


_COUNTS: dict[str, tuple[str, Callable[[Entries], int], str]] = {
    "topics.json": ("topicConfigTable", len, "the settings of {} topics"),
    "subscriptionGroup.json": ("subscriptionGroupTable", len, "the settings of {} groups"),
    "consumerOffset.json": (
        "offsetTable",
        lambda table: len({group_of(str(key)) for key in table}),
        "the offsets of {} groups",
    ),
    "delayOffset.json": ("offsetTable", len, "the places of {} delay levels"),
    "consumerFilter.json": ("filterDataByTopic", _filter_count, "the expressions of {} groups"),
}
"""By file: its table, how many entries that has, and what they are."""


def count_entries(config: StoreConfig, disk: Disk) -> dict[str, int]:
    """By the name of each file that is there. Never raises for what is in them."""
    counts = {}
    for name, (table, count, _) in _COUNTS.items():
        path = f"{config.config_dir}/{name}"
        try:
            text = disk.read_bytes(path).decode("utf-8")
            counts[name] = count(parsed_table(text, table)[1])
        except (OSError, ValueError, RecursionError):
            continue
    return counts


def lost_tables(config: StoreConfig, disk: Disk, known: Mapping[str, int]) -> list[Finding]:
    """The files that were there at the last clean stop and of which nothing is left."""
    found = []
    for name, count in known.items():
        path = f"{config.config_dir}/{name}"
        if name in _COUNTS and not disk.exists(path) and not disk.exists(f"{path}.bak"):
            lost = _COUNTS[name][2].format(count)
            text = f"{path} and its previous version are missing: {lost} are lost"
            found.append(Finding("config", text))
    return found
