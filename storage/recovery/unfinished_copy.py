"""The mark of a copy that is being made: no start takes such a store.

`<root>/troupemq/backup.running.json`, made and taken away by storage/backup/. RocketMQ does not
know it, and would take the store for what is there.
"""

from storage.config import StoreConfig
from storage.errors import UnfinishedCopy
from storage.files.disk import Disk


def mark_path(root: str) -> str:
    """Where the mark of a copy lies."""
    return f"{root}/troupemq/backup.running.json"


def require_finished_copy(config: StoreConfig, disk: Disk) -> None:
    """Raises UnfinishedCopy for a store that is being copied to, or was when that was ended."""
    if disk.exists(mark_path(config.root)):
        raise UnfinishedCopy(
            f"the store {config.root} is a copy that is not finished: run `troupemq store backup`"
            " or `troupemq store restore` again, as before."
        )
