"""The checkpoint: up to which store time each part of the store is known to be on disk.

All integers big-endian; the file has 4096 bytes.

    offset  size  type  field
    0       8     i64   physic_ms    commit log, store timestamp in ms
    8       8     i64   logics_ms    consume queues
    16      8     i64   index_ms     index files that are full
    24      4072        zeros

Recovery after a crash trusts nothing that is younger. 0 means nothing is known.

Source: store/StoreCheckpoint.java.
"""

from struct import Struct

from storage.disk import Disk, DiskFile
from storage.errors import store_error

_LAYOUT = Struct(
    ">q"  # physic_ms
    "q"  # logics_ms
    "q"  # index_ms
)
CHECKPOINT_BYTES = 4096
SAFETY_MARGIN_MS = 3000
"""Recovery starts this much earlier than the timestamps say."""


class Checkpoint:
    """The three timestamps, in memory and in their file. They never go backwards."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.physic_ms = 0
        self.logics_ms = 0
        self.index_ms = 0
        self.found = False
        """Whether the file was there and held timestamps when it was loaded."""
        self._disk = disk
        self._path = path
        self._file: DiskFile | None = None

    def load(self) -> None:
        """Opens the file, and makes it if it is missing; one that is too short counts as empty.

        Raises StoreError.
        """
        try:
            file = self._file = self._disk.open(self._path, create=True)
            head = file.pread(_LAYOUT.size, 0)
            if len(head) == _LAYOUT.size:
                self.found = True
                self.physic_ms, self.logics_ms, self.index_ms = _LAYOUT.unpack(head)
            if file.size() != CHECKPOINT_BYTES:
                file.set_size(CHECKPOINT_BYTES)
        except OSError as error:
            raise store_error("cannot open the checkpoint", error) from error

    def advance(self, *, physic_ms: int = 0, logics_ms: int = 0, index_ms: int = 0) -> None:
        """Moves timestamps forward; call it only with times whose data is on disk already."""
        self.physic_ms = max(self.physic_ms, physic_ms)
        self.logics_ms = max(self.logics_ms, logics_ms)
        self.index_ms = max(self.index_ms, index_ms)

    def save(self) -> None:
        """Puts the timestamps on disk. Blocks; one thread at a time. Raises StoreError."""
        assert self._file is not None, "load comes first"
        try:
            self._file.pwrite(_LAYOUT.pack(self.physic_ms, self.logics_ms, self.index_ms), 0)
            self._file.sync()
        except OSError as error:
            raise store_error("cannot write the checkpoint", error) from error

    def trusted_until_ms(self, *, with_index: bool) -> int:
        """The store time before which log and queues (and the index) are complete on disk."""
        oldest = max(0, min(self.physic_ms, self.logics_ms) - SAFETY_MARGIN_MS)
        return min(oldest, self.index_ms) if with_index else oldest

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
