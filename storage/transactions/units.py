"""The units of the transaction state table, and the run of files that contains them.

All integers big-endian. Unit n of the table starts at byte 24·n.

    offset  size  type  field
    0       8     i64   physical_offset   first byte of the half message in the commit log
    8       4     i32   record_bytes
    12      4     u32   timestamp_s       birth time, seconds since 1970; the same in every copy
                                          made by a check-back
    16      4     i32   group_hash        Java's hashCode of the producer group, 0 without one
    20      4     i32   state             one of the values below

Files `<root>/transaction/statetable/<first byte, 20 digits>` are sparse, with as many units each as
a ConsumeQueue file. Units are in the order of the log; only the state changes, in place.

RocketMQ before 3.1 had the same layout there; 4.9.7 ignores it.
"""

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from storage.config import CONSUME_QUEUE_UNIT_BYTES, StoreConfig
from storage.errors import StoreError, store_error
from storage.files.disk import Disk
from storage.files.mapped_file import file_name, first_offset_of
from storage.queues.queue_files import QueueFiles
from storage.queues.unsynced import Unsynced

UNIT: Final = Struct(
    ">q"  # physical_offset
    "i"  # record_bytes
    "I"  # timestamp_s
    "i"  # group_hash
    "i"  # state
)
UNIT_BYTES: Final = UNIT.size
STATE = Struct(">i")
_STATE_POSITION: Final = UNIT_BYTES - STATE.size
_OFFSET = Struct(">q")
assert (UNIT_BYTES, _STATE_POSITION) == (24, 20)

PREPARED: Final = 4
COMMITTING: Final = 5
"""Prepared, with a record in the log that commits it, but not yet one that settles it."""
COMMITTED: Final = 8
ROLLED_BACK: Final = 12
REPLACED: Final = 16
"""A check-back has appended a newer copy of the half message, which counts."""
DISCARDED: Final = 20
"""Checked too often or too old: moved to TRANS_CHECK_MAX_TIME_TOPIC."""
STATES: Final = frozenset((PREPARED, COMMITTING, COMMITTED, ROLLED_BACK, REPLACED, DISCARDED))
PENDING_STATES: Final = frozenset((PREPARED, COMMITTING))

_OPEN_FILES_MAX = 16
_STATE_SIZE_RANGE = range(1, 1 << 31)


class TransactionUnit(NamedTuple):
    physical_offset: int
    record_bytes: int
    timestamp_s: int
    group_hash: int
    state: int


class TransactionFiles:
    """The files, addressed by unit number. One owner."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.directory = f"{config.root}/transaction/statetable"
        self.file_units = config.consume_queue_file_bytes // CONSUME_QUEUE_UNIT_BYTES
        self.end = 0
        self._disk = disk
        self._file_bytes = self.file_units * UNIT_BYTES
        self._files = QueueFiles(disk, self._file_bytes, _OPEN_FILES_MAX)
        self._firsts: list[int] = []
        self._dirty: dict[int, int] = {}
        self._write_count = 0

    @property
    def first(self) -> int:
        return self._firsts[0] if self._firsts else self.end

    def file_start(self, number: int) -> int:
        """Return the number of the first unit in the file of a unit."""
        return number - number % self.file_units

    def _path(self, first: int) -> str:
        return f"{self.directory}/{file_name(first * UNIT_BYTES)}"

    # -- start-up -----------------------------------------------------------------------------

    def load(self, end: int) -> None:
        """Load the files up to unit `end`; remove and zero the rest.

        Raise StoreError if a file is missing or has another size.
        """
        firsts: list[int] = []
        for name in self._disk.listdir(self.directory):
            first_byte = first_offset_of(name)
            if first_byte is None:
                continue
            first, rest = divmod(first_byte, UNIT_BYTES)
            if first >= end:
                self._files.remove(f"{self.directory}/{name}")
                continue
            if (
                rest
                or first % self.file_units
                or (firsts and first != firsts[-1] + self.file_units)
            ):
                raise StoreError(f"{self.directory}/{name} does not follow the file before it")
            self._check_size(f"{self.directory}/{name}")
            firsts.append(first)
        if end and (not firsts or end > firsts[-1] + self.file_units):
            raise StoreError(f"{self._path(self.file_start(max(0, end - 1)))} is missing")
        self._firsts, self.end = firsts, end
        if firsts:
            self._files.zero_from(self._path(firsts[-1]), (end - firsts[-1]) * UNIT_BYTES)

    def _check_size(self, path: str) -> None:
        file = self._disk.open(path, read_only=True)
        try:
            if file.size() != self._file_bytes:
                raise StoreError(f"{path} has {file.size()} bytes, not {self._file_bytes}")
        finally:
            file.close()

    def start_anew(self) -> None:
        """Remove all files: the next unit is number 0. Raise OSError."""
        self._files.close()
        names = [n for n in self._disk.listdir(self.directory) if first_offset_of(n) is not None]
        for name in names:
            self._disk.unlink(f"{self.directory}/{name}")
        if names:
            self._disk.sync_directory(self.directory)
        self._firsts, self.end = [], 0
        self._dirty.clear()

    def close(self) -> None:
        self._files.close()

    # -- writing ------------------------------------------------------------------------------

    def append(self, data: bytes | bytearray) -> None:
        """Write whole units behind the last one.

        Raise DiskFull or StoreError; then none of them counts.
        """
        number, position = self.end, 0
        try:
            while position < len(data):
                first = self.file_start(number)
                if not self._firsts or first > self._firsts[-1]:
                    is_new_run = not self._firsts
                    self._files.create(
                        self.directory, self._path(first), durable_names=not is_new_run
                    )
                    self._firsts.append(first)
                count = min(len(data) - position, (first + self.file_units - number) * UNIT_BYTES)
                self._write(number, data[position : position + count], 0)
                number += count // UNIT_BYTES
                position += count
        except OSError as error:
            raise store_error("cannot write to the transaction table", error) from error
        self.end = number

    def set_states(self, states: Mapping[int, int]) -> None:
        """Change states in place, by unit number. Raise DiskFull or StoreError."""
        try:
            for number, state in states.items():
                if number >= self.first:
                    self._write(number, STATE.pack(state), _STATE_POSITION)
        except OSError as error:
            raise store_error("cannot write to the transaction table", error) from error

    def _write(self, number: int, data: bytes | bytearray, position: int) -> None:
        first = self.file_start(number)
        self._write_count += 1
        self._dirty[first] = self._write_count
        self._files.write(self._path(first), data, (number - first) * UNIT_BYTES + position)

    # -- syncing from another thread ----------------------------------------------------------

    def unsynced(self) -> tuple[Unsynced, dict[int, int]]:
        """Return files and names that may not be on disk, and the argument for `mark_synced`."""
        paths = [self._path(first) for first in sorted(self._dirty)]
        return Unsynced(paths, self._files.names_to_sync()), dict(self._dirty)

    def mark_synced(self, files: Unsynced, dirty: Mapping[int, int]) -> None:
        """Note that the result of `unsynced` is on disk; later writes are not."""
        for first, write_count in dirty.items():
            if self._dirty.get(first) == write_count:
                del self._dirty[first]
        self._files.names_synced(files.directories)

    # -- reading ------------------------------------------------------------------------------

    def read(self, number: int, count: int) -> bytes:
        """Return up to `count` units from `number` as bytes; fewer at the end of a file or run."""
        first = self.file_start(number)
        count = min(count, first + self.file_units - number, self.end - number)
        if count <= 0 or number < self.first:
            return b""
        start = (number - first) * UNIT_BYTES
        return bytes(self._files.view(self._path(first))[start : start + count * UNIT_BYTES])

    def read_all(self) -> bytes:
        return b"".join(
            self.read(max(first, self.first), self.file_units) for first in self._firsts
        )

    def peek(self, end: int) -> bytes:
        """Return the units below `end` of the files on disk, beside their owner."""
        parts: list[bytes] = []
        for name in self._disk.listdir(self.directory):
            first_byte = first_offset_of(name)
            if first_byte is None or first_byte >= end * UNIT_BYTES:
                continue
            try:
                file = self._disk.open(f"{self.directory}/{name}", read_only=True)
            except FileNotFoundError:
                continue
            try:
                parts.append(file.pread(min(self._file_bytes, end * UNIT_BYTES - first_byte), 0))
            finally:
                file.close()
        return b"".join(parts)

    def unit(self, number: int) -> TransactionUnit | None:
        data = self.read(number, 1)
        return TransactionUnit(*UNIT.unpack(data)) if data else None

    def file_ends(self) -> Iterator[TransactionUnit]:
        """Yield the first and the last unit of each file."""
        for first in self._firsts:
            last = min(first + self.file_units, self.end) - 1
            for number in sorted({first, last}):
                unit = self.unit(number)
                if unit is not None:
                    yield unit

    def search(self, physical_offset: int) -> int:
        """Return the number of the first unit with a half message at or behind an offset."""
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            if _OFFSET.unpack_from(self.read(middle, 1))[0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    # -- cleaning -----------------------------------------------------------------------------

    def trim_before(self, min_physical: int) -> list[str]:
        """Drop files, except the last, that have only deleted half messages; return their paths."""
        paths: list[str] = []
        while len(self._firsts) > 1:
            last = self.unit(self._firsts[0] + self.file_units - 1)
            if last is None or last.physical_offset >= min_physical:
                break
            first = self._firsts.pop(0)
            self._dirty.pop(first, None)
            self._files.forget(self._path(first))
            paths.append(self._path(first))
        return paths


def fault_in(units: Iterable[TransactionUnit], end_offset: int) -> str:
    """Return the fault of consecutive units, or ""."""
    previous = -1
    for unit in units:
        offset, size = unit.physical_offset, unit.record_bytes
        if offset <= previous or size not in _STATE_SIZE_RANGE or offset + size > end_offset:
            return f"a unit names {size} bytes at {offset} of the log"
        if unit.state not in STATES:
            return f"the unit of the half message at {offset} has state {unit.state}"
        previous = offset
    return ""
