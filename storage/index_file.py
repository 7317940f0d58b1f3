"""One index file: from the hash of a key to the records that have it.

All integers big-endian.  S = hash slots, N = entries (5,000,000 and 20,000,000 by default).

    offset    size  type  field
    0         8     i64   begin_timestamp         store timestamp of the first entry, ms
    8         8     i64   end_timestamp           of the last one
    16        8     i64   begin_physical_offset   of the first entry's record
    24        8     i64   end_physical_offset     of the last one's
    32        4     i32   used_slots
    36        4     i32   next_entry              number of the next entry; 1 in an empty file
    40        4·S   i32   slots                   newest entry of the chain, 0 = none
    40+4·S    20·N  -     entries                 entry 0 is never used

    entry: 0  4     i32   key_hash                (slot = key_hash mod S)
           4  8     i64   physical_offset
           12 4     i32   seconds since begin_timestamp
           16 4     i32   previous entry of the chain, 0 = none

Header and slots have real blocks and are mapped for writing; entries lie in a sparse region and
are written with one pwrite per call.  The words of slots and entries are handled as they lie in the
file, byte order included, and swapped in bulk: 0.3 µs an entry instead of 1.1 with struct calls.

Source: store/index/IndexFile.java, IndexHeader.java.
"""

from array import array
from collections.abc import Sequence
from struct import Struct
from sys import byteorder
from typing import Final

from storage.disk import Disk, DiskFile
from storage.errors import StoreError, store_error

_HEADER: Final = Struct(
    ">q"  # begin_timestamp, ms
    "q"  # end_timestamp, ms
    "q"  # begin_physical_offset
    "q"  # end_physical_offset
    "i"  # used_slots
    "i"  # next_entry
)
_ENTRY: Final = Struct(
    ">i"  # key_hash
    "q"  # physical_offset
    "i"  # seconds since begin_timestamp
    "i"  # previous entry
)
_SLOT: Final = Struct(">i")
HEADER_BYTES: Final = _HEADER.size
ENTRY_BYTES: Final = _ENTRY.size
SLOT_BYTES: Final = _SLOT.size
assert (HEADER_BYTES, ENTRY_BYTES, SLOT_BYTES) == (40, 20, 4)
_ENTRY_WORDS = ENTRY_BYTES // 4
_SECONDS_MAX = 0x7FFFFFFF
_MUST_SWAP = byteorder == "little"
assert array("I").itemsize == 4 and array("Q").itemsize == 8


def _in_file_order(words: "array[int]") -> "array[int]":
    """The same numbers as big-endian words, ready to be copied into the file (or back)."""
    if _MUST_SWAP:
        words.byteswap()
    return words


class IndexFile:
    """One file of the index. Its header is kept in memory; the file is open only when needed."""

    def __init__(self, disk: Disk, path: str, slot_count: int, entry_count: int) -> None:
        self.path = path
        self.begin_timestamp = 0
        self.end_timestamp = 0
        self.begin_physical_offset = 0
        self.end_physical_offset = 0
        self.used_slots = 0
        self.next_entry = 1
        self.is_dirty = False
        """Has changes that may not be on disk."""
        self._disk = disk
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_start = HEADER_BYTES + slot_count * SLOT_BYTES
        self.size_bytes = self._entries_start + entry_count * ENTRY_BYTES
        self._file: DiskFile | None = None
        self._view: memoryview | None = None
        self._header: memoryview | None = None
        self._slots: memoryview | None = None

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self._entry_count

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def room(self) -> int:
        """How many entries still fit."""
        return max(0, self._entry_count - self.next_entry)

    # -- beginning and end of its use ---------------------------------------------------------

    def create(self, end_physical_offset: int, end_timestamp: int) -> None:
        """Makes the file and opens it for writing; the two values are where the last one ended.

        Raises DiskFull or StoreError, and leaves nothing behind then.
        """
        self.begin_physical_offset = self.end_physical_offset = end_physical_offset
        self.begin_timestamp = self.end_timestamp = end_timestamp
        try:
            self._file = self._disk.open(self.path, create=True)
            try:
                self._file.set_size(self.size_bytes)
                self._map_for_writing(self._file)
            except OSError:
                self.close()
                self._disk.unlink(self.path)
                raise
        except OSError as error:
            raise store_error("cannot make an index file", error) from error
        self._write_header()

    def load(self) -> None:
        """Reads the header. Raises StoreError if the file does not have the configured size."""
        file = self._disk.open(self.path)
        try:
            if file.size() != self.size_bytes:
                raise StoreError(
                    f"{self.path} has {file.size()} bytes, but maxHashSlotNum and maxIndexNum make "
                    f"{self.size_bytes}: set them to what the file was made with, or remove it."
                )
            fields = _HEADER.unpack(file.pread(HEADER_BYTES, 0))
        finally:
            file.close()
        self.begin_timestamp, self.end_timestamp, begin, end, used, next_entry = fields
        self.begin_physical_offset, self.end_physical_offset = begin, end
        self.used_slots, self.next_entry = used, max(1, next_entry)

    def open_for_writing(self) -> None:
        """Maps header and slots. Raises DiskFull or StoreError."""
        try:
            self._file = self._disk.open(self.path)
            self._map_for_writing(self._file)
        except OSError as error:
            self.close()
            raise store_error("cannot open an index file for writing", error) from error

    def _map_for_writing(self, file: DiskFile) -> None:
        file.allocate(self._entries_start)
        view = file.writable_view()
        self._header = view[:HEADER_BYTES]
        self._slots = view[HEADER_BYTES : self._entries_start].cast("I")

    def sync(self) -> None:
        """Everything put so far is on disk when this returns. Raises StoreError."""
        file = self._file or self._disk.open(self.path)
        try:
            file.sync()
        except OSError as error:
            raise store_error("cannot flush an index file", error) from error
        finally:
            if self._file is None:
                file.close()
        self.is_dirty = False

    def close(self) -> None:
        """Lets go of maps and descriptor; the file can be queried all the same."""
        self._slots = self._header = self._view = None
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # -- adding (hot) -------------------------------------------------------------------------

    def put(
        self, hashes: Sequence[int], physical_offsets: Sequence[int], timestamps: Sequence[int]
    ) -> None:
        """Adds entries, at least one and at most `room`; the file must be open for writing.

        Raises DiskFull or StoreError, and nothing is added then.
        """
        slots, file, first = self._slots, self._file, self.next_entry
        assert slots is not None and file is not None and 0 < len(hashes) <= self.room
        numbers = _in_file_order(array("I", range(first, first + len(hashes))))
        slot_count = self._slot_count
        previous: list[int] = []
        for key_hash, number in zip(hashes, numbers, strict=True):
            slot = key_hash % slot_count
            previous.append(slots[slot])
            slots[slot] = number
        words = array("I", bytes(ENTRY_BYTES * len(hashes)))
        words[0::_ENTRY_WORDS] = array("I", hashes)
        words[3::_ENTRY_WORDS] = array("I", self._seconds(timestamps, first == 1))
        _in_file_order(words)
        offsets = _in_file_order(array("Q", physical_offsets))
        offset_words = array("I", offsets.tobytes())
        words[1::_ENTRY_WORDS] = offset_words[0::2]
        words[2::_ENTRY_WORDS] = offset_words[1::2]
        words[4::_ENTRY_WORDS] = array("I", previous)
        try:
            file.pwrite(words.tobytes(), self._entries_start + first * ENTRY_BYTES)
        except OSError as error:
            for key_hash, value in zip(reversed(hashes), reversed(previous), strict=True):
                slots[key_hash % slot_count] = value
            raise store_error("cannot write to an index file", error) from error
        if first == 1:
            self.begin_physical_offset, self.begin_timestamp = physical_offsets[0], timestamps[0]
        self.end_physical_offset, self.end_timestamp = physical_offsets[-1], timestamps[-1]
        self.used_slots += previous.count(0)
        self.next_entry = first + len(hashes)
        self._write_header()

    def _seconds(self, timestamps: Sequence[int], first_in_file: bool) -> list[int]:
        """Seconds since the file's begin; the very first entry counts from the file before."""
        begin = timestamps[0] if first_in_file else self.begin_timestamp
        seconds = (
            [min(max((each - begin) // 1000, 0), _SECONDS_MAX) for each in timestamps]
            if min(timestamps) < begin or max(timestamps) - begin > _SECONDS_MAX
            else [(each - begin) // 1000 for each in timestamps]
        )
        if begin <= 0:
            seconds = [0] * len(timestamps)
        if first_in_file and self.begin_timestamp > 0:
            gap = (timestamps[0] - self.begin_timestamp) // 1000
            seconds[0] = min(max(gap, 0), _SECONDS_MAX)
        return seconds

    def end_at(self, physical_end: int) -> None:
        """Forgets that it covers records behind the log's end, whose place others will take.

        Their entries stay, as false hits; the header is changed, which needs an open file.
        """
        if self.end_physical_offset >= physical_end:
            self.end_physical_offset = max(physical_end - 1, 0)
            self.begin_physical_offset = min(self.begin_physical_offset, self.end_physical_offset)
            self._write_header()

    def _write_header(self) -> None:
        assert self._header is not None
        self.is_dirty = True
        _HEADER.pack_into(
            self._header,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.next_entry,
        )

    # -- searching ----------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have entries of that time (both ends included)."""
        return begin_ms <= self.end_timestamp and end_ms >= self.begin_timestamp

    def find(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets of up to `max_count` records with this hash and time, newest first.

        Times are exact to a second only, and other keys may have the same hash.
        """
        if self.next_entry <= 1:
            return []
        file = self._file
        if file is None:
            file = self._disk.open(self.path, read_only=True)
            try:
                return self._walk(file.view(), key_hash, max_count, begin_ms, end_ms)
            finally:
                file.close()
        if self._view is None:
            self._view = file.view()
        return self._walk(self._view, key_hash, max_count, begin_ms, end_ms)

    def _walk(
        self, view: memoryview, key_hash: int, max_count: int, begin_ms: int, end_ms: int
    ) -> list[int]:
        found: list[int] = []
        number = _SLOT.unpack_from(view, HEADER_BYTES + key_hash % self._slot_count * SLOT_BYTES)[0]
        limit = self.next_entry + 1
        while 0 < number < limit and len(found) < max_count:
            position = self._entries_start + number * ENTRY_BYTES
            entry_hash, physical_offset, seconds, previous = _ENTRY.unpack_from(view, position)
            stored_ms = self.begin_timestamp + seconds * 1000
            if seconds < 0:
                break
            if entry_hash == key_hash and begin_ms <= stored_ms <= end_ms:
                found.append(physical_offset)
            if stored_ms < begin_ms:
                break
            number, limit = previous, number  # a chain only leads back: no loop in a broken file
        return found

    def entries(self) -> list[tuple[int, int, int, int]]:
        """All entries as (key hash, physical offset, seconds, previous), oldest first."""
        file = self._disk.open(self.path, read_only=True)
        try:
            data = file.pread(
                (self.next_entry - 1) * ENTRY_BYTES, self._entries_start + ENTRY_BYTES
            )
        finally:
            file.close()
        return list(_ENTRY.iter_unpack(data))
