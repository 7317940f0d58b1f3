"""Checkpoint: store times up to which each part of the store is synced.

All integers are big-endian; the file has 4096 bytes.

    offset  size  type  field
    0       8     i64   physic_ms    commit log, store timestamp in ms
    8       8     i64   logics_ms    consume queues
    16      8     i64   index_ms     index files that are full
    24      40          zeros
    64      8     text  `TroupeMQ`       TroupeMQ extension up to byte 108; 4.9.7 never changes it
    72      8     i64   durable_offset   see below
    80      24    i64   copy of the three timestamps
    104     4     u32   CRC-32C of the preceding 40 bytes
    108     3988        zeros

Recovery after a crash trusts no younger data. 0 means unknown.

Below `durable_offset`, the commit log and the queue units of all its records are synced. It counts
only while the copy equals the three timestamps. Otherwise RocketMQ has run since, or a bit has
flipped; the older value of each pair of timestamps counts then.

Source: store/StoreCheckpoint.java.
"""

from struct import Struct

from protocol.message import crc32c
from storage.clock import later_time
from storage.config import StoreConfig
from storage.errors import WrongSetting, store_error
from storage.files.disk import Disk, DiskFile
from storage.files.mapped_file import first_offset_of

_LAYOUT = Struct(
    ">q"  # physic_ms
    "q"  # logics_ms
    "q"  # index_ms
)
_OWN_POSITION = 64
_OWN_MAGIC = b"TroupeMQ"
_OWN = Struct(
    ">8s"  # magic
    "q"  # durable_offset
    "q"  # physic_ms
    "q"  # logics_ms
    "q"  # index_ms
)
_OWN_CRC = Struct(">I")
_USED_BYTES = _OWN_POSITION + _OWN.size + _OWN_CRC.size
assert _USED_BYTES == 108
CHECKPOINT_BYTES = 4096
SAFETY_MARGIN_MS = 3000
"""Time before the timestamps at which recovery starts."""


def newest_ms(disk: Disk, path: str) -> int:
    """Return the store time in ms up to which a store is synced; 0 if unknown.

    The file is only read, never created. Raises OSError.
    """
    return _seen(disk, path).physic_ms


def require_log(config: StoreConfig, disk: Disk) -> None:
    """Raise WrongSetting for a store without its commit log, perhaps on a disk that is not mounted.

    A start would give the queue offsets of its messages to new ones. Once the log is back, groups
    that have consumed those would skip the messages. A rebuild would delete the queues, and a
    backup would have no message.
    """
    folder = config.commit_log_dir
    try:
        names = disk.listdir(folder) if disk.is_dir(folder) else []
        has_log = any(first_offset_of(name) is not None for name in names)
        if has_log or not newest_ms(disk, config.checkpoint_path):
            return
    except OSError as error:
        raise store_error("cannot read the checkpoint or the commit log", error) from error
    raise WrongSetting(
        f"the store {config.root} has messages, but {folder} has no commit log: mount its disk or"
        " correct storePathCommitLog. If the log is lost, remove"
        f" {config.checkpoint_path} to start without its messages."
    )


def durable_offset(disk: Disk, path: str) -> int:
    """Return the offset below which log and queue units are synced; 0 if unknown.

    Raises OSError.
    """
    return _seen(disk, path).durable_offset


def _seen(disk: Disk, path: str) -> "Checkpoint":
    found = Checkpoint(disk, path)
    page = disk.read_bytes(path)[:_USED_BYTES] if disk.exists(path) else b""
    if len(page) >= _LAYOUT.size:
        found._take(_LAYOUT.unpack_from(page), page[_OWN_POSITION:])
    return found


class Checkpoint:
    """Three timestamps and the durable offset, in memory and in their file.

    No value goes back while the store is open, unless the clock was far ahead.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self.physic_ms = 0
        self.logics_ms = 0
        self.index_ms = 0
        self.durable_offset = 0
        """Log offset below which log and queue units are synced; 0 if unknown."""
        self.found = False
        """Whether `load` found a file with timestamps."""
        self.fault = ""
        """Fault found by `load`, as text."""
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None

    def load(self) -> None:
        """Open the file, creating it if missing; a file that is too short counts as empty.

        Raises StoreError.
        """
        try:
            is_there = self._disk.exists(self._path)
            file = self._file = self._disk.open(self._path, create=True)
            page = file.pread(_USED_BYTES, 0)
            if len(page) >= _LAYOUT.size:
                self.found = True
                self._take(_LAYOUT.unpack_from(page), page[_OWN_POSITION:])
            if (size := file.size()) != CHECKPOINT_BYTES:
                found = f"{self._path} has {size} bytes instead of {CHECKPOINT_BYTES}"
                self.fault = found if is_there else f"{self._path} is missing"
                file.set_size(CHECKPOINT_BYTES)
        except OSError as error:
            raise store_error("cannot open the checkpoint", error) from error

    def _take(self, times: tuple[int, ...], own: bytes) -> None:
        """Take over the file's values, as far as its two parts agree."""
        copy = own[: _OWN.size]
        is_whole = len(own) == _OWN.size + _OWN_CRC.size and copy.startswith(_OWN_MAGIC)
        if is_whole and _OWN_CRC.unpack_from(own, _OWN.size)[0] == crc32c(copy):
            _, durable_offset, *copied = _OWN.unpack(copy)
            self.durable_offset = durable_offset if tuple(copied) == times else 0
            times = tuple(map(min, times, copied))
        elif any(own):
            self.fault = f"the durable offset in {self._path} is damaged"
        self.physic_ms, self.logics_ms, self.index_ms = (max(0, each) for each in times)

    def limit(self, end_offset: int) -> bool:
        """Limit the durable offset to the log's end; return whether it must be saved."""
        is_beyond = self.durable_offset > end_offset
        self.durable_offset = min(self.durable_offset, end_offset)
        return is_beyond

    def distrust_queues(self) -> None:
        """Reset what the file says of the queues, durably, before some are rebuilt.

        Raises StoreError.
        """
        if self.durable_offset or self.logics_ms:
            self.durable_offset = self.logics_ms = 0
            self.save()

    def timestamps(self) -> tuple[int, int, int]:
        return self.physic_ms, self.logics_ms, self.index_ms

    def advance(
        self,
        *,
        physic_ms: int = 0,
        logics_ms: int = 0,
        index_ms: int = 0,
        durable_offset: int = 0,
    ) -> None:
        """Advance values to data that is already synced.

        Times go back if the clock was far ahead (`later_time`).
        """
        self.durable_offset = max(self.durable_offset, durable_offset)
        if physic_ms:
            self.physic_ms = later_time(self.physic_ms, physic_ms)
        if logics_ms:
            self.logics_ms = later_time(self.logics_ms, logics_ms)
        if index_ms:
            self.index_ms = later_time(self.index_ms, index_ms)

    def lower_index(self, index_ms: int) -> None:
        """Lower the index time, because newer index files will be replaced; call `save` next."""
        self.index_ms = min(self.index_ms, index_ms)

    def save(self) -> None:
        """Save all values durably. Blocks; one thread at a time. Raises StoreError."""
        assert self._file is not None, "load comes first"
        times = self.timestamps()
        own = _OWN.pack(_OWN_MAGIC, self.durable_offset, *times)
        padding = bytes(_OWN_POSITION - _LAYOUT.size)
        page = b"".join((_LAYOUT.pack(*times), padding, own, _OWN_CRC.pack(crc32c(own))))
        try:
            self._file.pwrite(page, 0)
            self._file.sync()
        except OSError as error:
            raise store_error("cannot write the checkpoint", error) from error

    def trusted_until_ms(self, *, with_index: bool) -> int:
        """Return the store time in ms before which log and queues (and the index) are synced."""
        oldest = max(0, min(self.physic_ms, self.logics_ms) - SAFETY_MARGIN_MS)
        return min(oldest, self.index_ms) if with_index else oldest

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
