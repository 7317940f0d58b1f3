"""Mark of a copy in progress, which no start accepts.

storage/backup/ creates and removes `<root>/troupemq/backup.running.json`. RocketMQ ignores it and
would open the incomplete store.
"""

from storage.config import StoreConfig
from storage.errors import UnfinishedCopy
from storage.files.disk import Disk


def mark_path(root: str) -> str:
    return f"{root}/troupemq/backup.running.json"


def require_finished_copy(config: StoreConfig, disk: Disk) -> None:
    """Raise UnfinishedCopy for a store with a running or aborted copy."""
    if disk.exists(mark_path(config.root)):
        raise UnfinishedCopy(
            f"the store {config.root} is an unfinished copy: run `troupemq store backup`"
            " or `troupemq store restore` again, as before."
        )
