"""Extension of a consume queue: data that does not fit into 20-byte units.

All integers are big-endian. Each message dispatched under enableConsumeQueueExt has one unit here.
The tags code field of its queue unit is the address of that extension unit.

    offset  size  type   field
    0       2     i16    unit_bytes        20 + bitmap_bytes; 0: unwritten, -1: end of this file
    2       8     i64    tags_code         value that a queue unit without an extension has
    10      8     i64    store_timestamp   ms
    18      2     i16    bitmap_bytes
    20      n     bytes  bitmap            Bloom filter bits of the subscriptions that match

Files are `consumequeue_ext/<topic>/<queue id>/<first byte, 20 digits>`, sparse and of one size (48
MiB). No unit crosses the end of a file or takes its last 4 bytes. The address of the unit at byte b
is b - 2^63. A tags code of at most -2^31 - 1 is an address, because no hash is that small.

Like queue units, new units stay in memory until `write_out`.

Source: store/ConsumeQueueExt.java.
"""

from struct import Struct
from typing import Final, NamedTuple

from storage.errors import store_error
from storage.files.mapped_file import file_name
from storage.queues.message_filter import EXT_ADDRESS_MAX
from storage.queues.queue_files import QueueFiles
from storage.queues.queue_run import QueueRun

_HEAD: Final = Struct(
    ">h"  # unit_bytes
    "q"  # tags_code
    "q"  # store_timestamp, ms
    "h"  # bitmap_bytes
)
HEAD_BYTES: Final = _HEAD.size
assert HEAD_BYTES == 20
_END_MARK: Final = b"\xff\xff"
_ROOM_LEFT_BYTES: Final = 4
_UNIT_BYTES_MAX: Final = 0x7FFF
_ADDRESS_MIN: Final = -(1 << 63)
_OFFSET_MAX: Final = EXT_ADDRESS_MAX - _ADDRESS_MIN
_KEPT_BYTES: Final = 8 << 10
"""Written bytes kept in memory, so that consumers at the queue's end read no file."""


class ExtUnit(NamedTuple):
    """Extension data of one message."""

    tags_code: int
    store_timestamp: int
    bitmap: bytes | None
    """Bit b is bit b % 8 of byte b // 8, counted from the least significant."""


def is_address(code: int) -> bool:
    """Return whether a tags code is the address of an extension unit."""
    return code <= EXT_ADDRESS_MAX


class ConsumeQueueExt:
    """Extension of one queue. One owner; offsets count bytes."""

    __slots__ = (
        "_files",
        "_firsts",
        "_run",
        "_syncing",
        "_tails",
        "_unit_bytes_max",
        "directory",
        "end_offset",
        "synced_offset",
        "written_offset",
    )

    def __init__(self, directory: str, files: QueueFiles) -> None:
        self.directory = directory
        self.end_offset = 0
        """Offset of the next unit, if its file has space for it."""
        self.written_offset = 0
        self.synced_offset = 0
        self._syncing = 0
        self._files = files
        self._firsts: list[int] = []
        self._tails: list[tuple[int, bytearray]] = [(0, bytearray())]
        """Memory pieces with their first offsets; all but the last end with their file."""
        self._run: QueueRun | None = None
        self._unit_bytes_max = min(_UNIT_BYTES_MAX, files.file_bytes - _ROOM_LEFT_BYTES)

    # -- adding -------------------------------------------------------------------------------

    def put(self, tags_code: int, store_timestamp: int, bitmap: bytes | None = None) -> int:
        """Append a unit and return its address, or the tags code if no unit can be added."""
        bitmap = bitmap or b""
        size = HEAD_BYTES + len(bitmap)
        offset, file_bytes = self.end_offset, self._files.file_bytes
        tail = self._tails[-1][1]
        if size > self._unit_bytes_max or offset + size + file_bytes > _OFFSET_MAX:
            return tags_code
        position = offset % file_bytes
        if size > file_bytes - position - _ROOM_LEFT_BYTES:
            tail += _END_MARK
            offset += file_bytes - position
            tail = bytearray()
            self._tails.append((offset, tail))
        tail += _HEAD.pack(size, tags_code, store_timestamp, len(bitmap))
        tail += bitmap
        self.end_offset = offset + size
        return offset + _ADDRESS_MIN

    def write_out(self) -> None:
        """Write the units that are only in memory to the files. Raises DiskFull or StoreError."""
        for start, tail in self._tails:
            data = tail[max(0, self.written_offset - start) :]
            if data:
                self._write(data, start + len(tail) - len(data))
                self.written_offset = start + len(tail)
        start, tail = self._tails[-1]
        surplus = max(0, len(tail) - _KEPT_BYTES)
        if surplus >= _KEPT_BYTES or len(self._tails) > 1:
            self._tails = [(start + surplus, tail[surplus:])]

    def _write(self, data: bytearray, start: int) -> None:
        position = start % self._files.file_bytes
        file_first = start - position
        path = self._path(file_first)
        try:
            if not self._firsts:
                # Files found here belong to a deleted queue.
                self._files.disk.remove_tree(self.directory)
            if file_first not in self._firsts:
                self._files.create(self.directory, path, durable_names=bool(self._firsts))
                self._firsts.append(file_first)
            self._files.write(path, data, position)
        except OSError as error:
            raise store_error("cannot write to a consume queue's extension", error) from error

    # -- reading ------------------------------------------------------------------------------

    def get(self, address: int) -> ExtUnit | None:
        """Return the unit at `address`, or None if it is missing or damaged."""
        offset = address - _ADDRESS_MIN
        if address > EXT_ADDRESS_MAX or not self._tails or offset >= self.end_offset:
            return None
        for start, tail in reversed(self._tails):
            if offset >= start:
                return _unit_at(tail, offset - start)
        position = offset % self._files.file_bytes
        if offset - position not in self._firsts:
            return None
        view = self._files.view(self._path(offset - position))
        return _unit_at(view, position)

    # -- start-up and cleaning ----------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether there is neither a file nor a unit in memory."""
        return not self._firsts and not any(tail for _, tail in self._tails)

    def load(self, run: QueueRun) -> str:
        """Load the files of a run; return the fault found, or an empty text.

        No file changes. The caller must call `resume_at` next.
        """
        self._run = run
        self._firsts = list(run.firsts)
        self.end_offset = self.written_offset = (
            run.firsts[-1] + self._files.file_bytes if run.firsts else 0
        )
        self._tails = [(self.end_offset, bytearray())]
        return run.fault

    def mend(self) -> None:
        """Delete unusable files and what follows the end. Raises OSError."""
        run, self._run = self._run, None
        if run is not None:
            for path in run.unfit:
                self._files.remove(path)
            self.set_end(self.end_offset)

    def end_of(self, address: int) -> int | None:
        """Return the offset behind the unit at `address`, or None if it is missing."""
        unit = self.get(address)
        if unit is None:
            return None
        return address - _ADDRESS_MIN + HEAD_BYTES + len(unit.bitmap or b"")

    def behind_file_of(self, address: int) -> int:
        """Return the first offset behind the file that contains `address`."""
        offset = address - _ADDRESS_MIN
        return offset + self._files.file_bytes - offset % self._files.file_bytes

    def set_end(self, offset: int) -> None:
        """Set the offset of the next unit and delete what follows. Raises OSError."""
        file_bytes = self._files.file_bytes
        while self._firsts and self._firsts[-1] >= offset:
            self._files.remove(self._path(self._firsts.pop()))
        self.end_offset = self.written_offset = self.synced_offset = self._syncing = offset
        self._tails = [(offset, bytearray())]
        if self._firsts and offset < self._firsts[-1] + file_bytes:
            self._files.zero_from(self._path(self._firsts[-1]), offset - self._firsts[-1])

    def resume_at(self, offset: int) -> None:
        """Set the offset of the next unit without touching files, as after a clean stop."""
        self.end_offset = self.written_offset = self.synced_offset = self._syncing = offset
        self._tails = [(offset, bytearray())]

    def trim_before(self, address: int) -> list[str]:
        """Release the files before a unit, except the last file; return their paths."""
        offset, paths = address - _ADDRESS_MIN, []
        while len(self._firsts) > 1 and self._firsts[0] + self._files.file_bytes <= offset:
            paths.append(self._path(self._firsts.pop(0)))
            self._files.forget(paths[-1])
        return paths

    def unsynced_paths(self) -> list[str]:
        """Return the files with written, unsynced units, and start one sync of them."""
        self._syncing = self.written_offset
        return [
            self._path(first)
            for first in self._firsts
            if first + self._files.file_bytes > self.synced_offset and first < self.written_offset
        ]

    def mark_synced(self) -> None:
        """Mark the files of the last `unsynced_paths` as synced."""
        self.synced_offset = min(self._syncing, self.written_offset)

    def remove(self) -> None:
        self.forget_files()
        self._files.disk.remove_tree(self.directory)
        self._firsts, self._run = [], None
        self.resume_at(0)

    def forget_files(self) -> None:
        """Close the files before another component moves or deletes them."""
        for first in self._firsts:
            self._files.forget(self._path(first))

    def _path(self, file_first: int) -> str:
        return f"{self.directory}/{file_name(file_first)}"


def _unit_at(data: bytearray | memoryview, position: int) -> ExtUnit | None:
    """Return the unit at a position of a memory piece or file, if its lengths agree."""
    if position + HEAD_BYTES > len(data):
        return None
    size, tags_code, store_timestamp, bitmap_bytes = _HEAD.unpack_from(data, position)
    start = position + HEAD_BYTES
    if bitmap_bytes < 0 or size != HEAD_BYTES + bitmap_bytes or position + size > len(data):
        return None
    bitmap = bytes(data[start : start + bitmap_bytes]) if bitmap_bytes else None
    return ExtUnit(tags_code, store_timestamp, bitmap)
