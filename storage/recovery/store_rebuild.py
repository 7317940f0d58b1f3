"""Makes everything that follows from the log anew: queues, index, transaction table.

The order to do so is a file of its own, `<root>/troupemq/rebuild`. Whoever opens the store and
finds it removes what was derived, and takes the order away once the queues are on disk again: so
an interrupted rebuild is begun again by the next start, whatever was left of the old files.
"""

from storage.config import StoreConfig
from storage.errors import store_error
from storage.files.disk import Disk
from storage.files.lock_file import StoreLock
from storage.recovery.clean_stop import remove_clean_stop

_DIRECTORIES = ("consumequeue", "consumequeue_ext", "index", "transaction")
"""Below the root; made from the log."""


def order_path(config: StoreConfig) -> str:
    """The file that says so."""
    return f"{config.root}/troupemq/rebuild"


def order_rebuild(config: StoreConfig, disk: Disk) -> None:
    """Says that the next start has to do it.

    Raises StoreLocked when somebody has the store, StoreError when the disk refuses.
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
        raise store_error(f"cannot make {path}", error) from error
    finally:
        lock.release()


def rebuild_is_ordered(config: StoreConfig, disk: Disk) -> bool:
    """Whether this start has to do it."""
    return disk.exists(order_path(config))


def remove_derived(config: StoreConfig, disk: Disk) -> list[str]:
    """Removes what is derived; returns the directories that are gone. Raises OSError."""
    remove_clean_stop(config, disk)
    paths = [f"{config.root}/{name}" for name in _DIRECTORIES]
    found = [path for path in paths if disk.is_dir(path)]
    for path in found:
        disk.remove_tree(path)
    disk.sync_directory(config.root)
    return found


def rebuild_is_done(config: StoreConfig, disk: Disk) -> None:
    """Takes the order away, when the queues are on disk. Raises OSError."""
    path = order_path(config)
    disk.unlink(path)
    disk.sync_directory(path.rpartition("/")[0])
