"""Rebuild of queues and index from a read-only log into a separate folder, and the swap.

The classes of the store do it, as after a crash that left only the log. So the files are what the
broker's dispatch writes. Index files have new names, which are their times of creation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import EROFS, EXDEV
from itertools import zip_longest
from pathlib import Path

from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import DiskFile, RealDisk
from storage.files.lock_file import StoreLock
from storage.message_store import MessageStore
from storage.recovery.clean_stop import remove_clean_stop
from storage.recovery.store_rebuild import order_path, rebuild_is_done

DERIVED = ("consumequeue", "index")
_OLD = ".before-rebuild"


class StagingDisk(RealDisk):
    """Disk that changes only files inside one folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = f"{folder}/"

    def _is_outside(self, path: str) -> bool:
        return not f"{path}/".startswith(self._folder)

    def _refuse(self, path: str) -> None:
        if self._is_outside(path):
            raise OSError(EROFS, "read-only outside the output folder", path)

    def open(self, path: str, create: bool = False, *, read_only: bool = False) -> DiskFile:
        if self._is_outside(path):
            return super().open(path, read_only=True)
        return super().open(path, create, read_only=read_only)

    def make_dirs(self, path: str, *, durable: bool = True) -> None:
        if not self._is_outside(path):
            super().make_dirs(path, durable=durable)

    def sync_directory(self, path: str) -> None:
        if not self._is_outside(path):
            super().sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(source)
        self._refuse(target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._refuse(path)
        super().unlink(path)

    def remove_tree(self, path: str) -> None:
        self._refuse(path)
        super().remove_tree(path)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Result of a rebuild: end of the log, number of records, damaged ranges."""

    log_end: int
    records: int
    damaged: list[tuple[int, int, str]]


def rebuild(config: StoreConfig, staging: str) -> Rebuilt:
    """Rebuild queues and index of the log of `config` below `staging`, which must be empty."""
    there = replace(config, root=staging, commit_log_dir=config.commit_log_dir)
    store = MessageStore(there, StagingDisk(staging), SystemClock())
    found = store.open()
    try:
        store.catch_up()
    finally:
        store.close()
    return Rebuilt(found.end_offset, found.record_count, list(store.damage.ranges))


def differing(store: str, staging: str) -> list[str]:
    """Return the files that differ: queues by their names, index files by their positions."""
    old, new = (Path(root) / "consumequeue" for root in (store, staging))
    names = {str(path.relative_to(root)) for root in (old, new) for path in _files(root)}
    found = [f"consumequeue/{name}" for name in sorted(names) if not _same(old / name, new / name)]
    pairs = zip_longest(_files(Path(store) / "index"), _files(Path(staging) / "index"))
    return found + [
        f"index file {number}"
        for number, (left, right) in enumerate(pairs)
        if left is None or right is None or not _same(left, right)
    ]


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _same(left: Path, right: Path) -> bool:
    if not (left.is_file() and right.is_file()) or left.stat().st_size != right.stat().st_size:
        return False
    with left.open("rb") as one, right.open("rb") as other:
        while part := one.read(1 << 20):
            if part != other.read(1 << 20):
                return False
    return True


@contextmanager
def offline(config: StoreConfig) -> Iterator[None]:
    """Hold the store's lock as a broker does. Raises StoreLocked while another process holds it."""
    lock = StoreLock(config, RealDisk())
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def swap(config: StoreConfig, staging: str) -> None:
    """Replace the store's queues and index by the rebuilt ones; call it within `offline`.

    The store's rebuild order exists meanwhile, so the next start rebuilds all after an
    interruption. Raises StoreError.
    """
    disk = RealDisk()
    order = order_path(config)
    try:
        disk.make_dirs(order.rpartition("/")[0])
        disk.open(order, create=True).close()
        disk.sync_directory(order.rpartition("/")[0])
        for name in DERIVED:
            _replace(disk, f"{config.root}/{name}", f"{staging}/{name}")
        remove_clean_stop(config, disk)
        disk.sync_directory(config.root)
        rebuild_is_done(config, disk)
        for name in DERIVED:
            if disk.is_dir(f"{config.root}/{name}{_OLD}"):
                disk.remove_tree(f"{config.root}/{name}{_OLD}")
    except OSError as error:
        where = "name an output on the same disk" if error.errno == EXDEV else str(error.strerror)
        raise StoreError(
            f"cannot swap in the rebuilt files: {where}; the broker's next start rebuilds queues "
            "and index"
        ) from error


def _replace(disk: RealDisk, old: str, new: str) -> None:
    if disk.is_dir(old + _OLD):  # left by an interrupted swap
        disk.remove_tree(old + _OLD)
    if disk.is_dir(old):
        disk.rename(old, old + _OLD)
    if disk.is_dir(new):
        disk.rename(new, old)
