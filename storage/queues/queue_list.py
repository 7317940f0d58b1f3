"""Stored list of consume queues, saved with the durable offset of the checkpoint.

`<root>/troupemq/queues.json` maps each topic to the ids of its queues with units. After a crash,
the log is read only from the durable offset, so this list is what reveals a missing directory.
"""

from collections.abc import Iterable

from storage.config import StoreConfig
from storage.files.below import name_fault
from storage.files.checked_json import ODD_VALUES, read_checked, write_checked
from storage.files.disk import Disk

QueueName = tuple[str, int]


class QueueList:
    """List of queues in its file. One thread at a time."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._path = config.queue_list_path
        self._disk = disk
        self._saved: frozenset[QueueName] | None = None

    def load(self) -> frozenset[QueueName]:
        """Return the stored names; none if the file is missing, damaged or has an invalid topic."""
        found = read_checked(self._disk, self._path)
        try:
            names = frozenset((topic, int(each)) for topic in found for each in found[topic])
            return frozenset() if any(name_fault(topic) for topic, _ in names) else names
        except ODD_VALUES:
            return frozenset()

    def save(self, names: Iterable[QueueName]) -> None:
        """Save the list durably if it has changed. Raises StoreError."""
        wanted = frozenset(names)
        if wanted == self._saved:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, queue_id in sorted(wanted):
            by_topic.setdefault(topic, []).append(queue_id)
        write_checked(self._disk, self._path, by_topic)
        self._saved = wanted
