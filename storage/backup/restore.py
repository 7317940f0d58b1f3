"""A store made from a copy: the result of the last completed run, and nothing later."""

from dataclasses import dataclass

from storage.backup.copying import FileCopier, Pace
from storage.backup.record import ALSO, BackupFolder, BackupRecord, require_done
from storage.config import StoreConfig
from storage.errors import StoreError, store_error
from storage.files.disk import Disk
from storage.files.lock_file import create_abort
from storage.files.mapped_file import first_offset_of


@dataclass(frozen=True, slots=True)
class RestoreReport:
    taken_ms: int
    """Start of the run that made the copy."""
    log_start: int
    log_end: int
    copied_bytes: int
    was_interrupted: bool
    """Whether a later run was interrupted: its part is left out."""


class StoreRestore:
    """One run; after an interruption it starts again from the beginning."""

    def __init__(
        self, disk: Disk, copy_root: str, config: StoreConfig, pace: Pace = lambda _: None
    ) -> None:
        """Create a run; `config` is that of the new store."""
        self._disk, self._config = disk, config
        self._copy = BackupFolder(disk, copy_root)
        self._store = BackupFolder(disk, config.root, config.commit_log_dir, follows_links=True)
        self._copier = FileCopier(disk, self._store, pace)

    def run(self) -> RestoreReport:
        """Restore the store.

        Raise StoreError for no copy, one without a completed run, an existing store or a full disk.
        """
        self._copy.take()
        try:
            record = require_done(self._copy)
            if self._store.under_way() is None:
                self._require_no_store()
            self._store.take()
            self._store.begin({})
            for name, copied in sorted(record.files.items()):
                if not name.startswith(f"{ALSO}/"):
                    path = self._copy.path(name)
                    self._copier.copy(path, self._store.path(name), copied.through)
            self._reserve(record)
            self._store.sync_names()
            create_abort(self._config, self._disk)
            self._store.hand_over()
        except OSError as error:
            raise store_error("cannot restore the copy", error) from error
        finally:
            self._store.release()
            self._copy.release()
        return RestoreReport(
            record.taken_ms,
            record.log_start,
            record.log_end,
            self._copier.copied_bytes,
            self._copy.under_way() is not None,
        )

    def _require_no_store(self) -> None:
        config, disk = self._config, self._disk
        names = disk.listdir(config.commit_log_dir)
        has_log = any(first_offset_of(name) is not None for name in names)
        if has_log or disk.exists(config.lock_path) or disk.listdir(config.config_dir):
            raise StoreError(
                f"{config.root} has a store: move it away, or name an empty folder; a copy is"
                " never put over a store."
            )

    def _reserve(self, record: BackupRecord) -> None:
        """Allocate real blocks for the file written next, as in every log."""
        names = [name for name in record.files if name.startswith("commitlog/")]
        if names:
            file = self._disk.open(self._store.path(max(names)))
            try:
                file.allocate(file.size())
                file.sync()
            finally:
                file.close()
