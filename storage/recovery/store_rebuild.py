"""Rebuild of all files derived from the log: queues, index and transaction table.

The order is a file of its own, `<root>/troupemq/rebuild`. The next start that finds it deletes the
derived files; it removes the order once the queues are synced again. An interrupted rebuild is
therefore repeated by the next start.
"""

from storage.config import StoreConfig
from storage.errors import store_error
from storage.files.disk import Disk
from storage.files.lock_file import StoreLock
from storage.recovery.clean_stop import remove_clean_stop

_DIRECTORIES = ("consumequeue", "consumequeue_ext", "index", "transaction")
"""Directories of derived files, below the root."""


def order_path(config: StoreConfig) -> str:
    return f"{config.root}/troupemq/rebuild"


def order_rebuild(config: StoreConfig, disk: Disk) -> None:
    """Order a rebuild for the next start.

    Raises StoreLocked when the store is in use, StoreError when the disk fails.
    """
    lock = StoreLock(config, disk)
    lock.acquire()
    path = order_path(config)
    directory = path.rpartition("/")[0]
    try:
        disk.make_dirs(directory)
        disk.open(path, create=True).close()
        disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot create {path}", error) from error
    finally:
        lock.release()


def rebuild_is_ordered(config: StoreConfig, disk: Disk) -> bool:
    return disk.exists(order_path(config))


def remove_derived(config: StoreConfig, disk: Disk) -> list[str]:
    """Delete the derived files; return the deleted directories. Raises OSError."""
    remove_clean_stop(config, disk)
    paths = [f"{config.root}/{name}" for name in _DIRECTORIES]
    found = [path for path in paths if disk.is_dir(path)]
    for path in found:
        disk.remove_tree(path)
    disk.sync_directory(config.root)
    return found


def rebuild_is_done(config: StoreConfig, disk: Disk) -> None:
    """Remove the order after the queues are synced. Raises OSError."""
    path = order_path(config)
    disk.unlink(path)
    disk.sync_directory(path.rpartition("/")[0])
