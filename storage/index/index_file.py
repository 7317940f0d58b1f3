"""One index file: from the hash of a key to its records.

Its layout is in index_layout.py. Header and slots have real blocks and are mapped for writing.
Entries are in a sparse region, written with one pwrite per call. Slots and entries are handled as
words in the byte order of the file and swapped in bulk. An entry takes 0.3 µs instead of 1.1 with
struct calls.

Source: store/index/IndexFile.java, IndexHeader.java.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from sys import byteorder

from storage.errors import store_error
from storage.files.disk import Disk, DiskFile
from storage.index.index_layout import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SECONDS_MAX,
    SLOT,
    SLOT_BYTES,
    EntryReader,
    IndexHeader,
    fault_of,
)

_ENTRY_WORDS = ENTRY_BYTES // 4
_MUST_SWAP = byteorder == "little"
assert array("I").itemsize == 4 and array("Q").itemsize == 8
OTHERS_MAX = 100_000
"""Entries with other hashes in the slot of a query before it ends: 0.3 s.

A slot has four on average; only keys made for that have more.
"""
CLOCK_STEP_MS = 600_000
"""Tolerated setback of the clock: entries may be older than their predecessor by that much."""


def _in_file_order(words: "array[int]") -> "array[int]":
    """Return the numbers as big-endian words of the file, or convert them back."""
    if _MUST_SWAP:
        words.byteswap()
    return words


def _second(since_ms: int) -> int:
    return min(max(since_ms // 1000, 0), SECONDS_MAX)


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
        self.found_bytes = 0
        """Size of the file when it was loaded."""
        self.is_dirty = False
        self._disk = disk
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_start = HEADER_BYTES + slot_count * SLOT_BYTES
        self.size_bytes = self._entries_start + entry_count * ENTRY_BYTES
        self._file: DiskFile | None = None
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
        return max(0, self._entry_count - self.next_entry)

    # -- opening and closing ------------------------------------------------------------------

    def create(self, end_physical_offset: int, end_timestamp: int) -> None:
        """Create the file, and its folder, and open it for writing.

        The two values are the end of the last file.

        Raise DiskFull or StoreError, and leave no file then.
        """
        self.begin_physical_offset = self.end_physical_offset = end_physical_offset
        self.begin_timestamp = self.end_timestamp = end_timestamp
        try:
            self._disk.make_dirs(self.path.rpartition("/")[0])
            self._file = self._disk.open(self.path, create=True)
            try:
                self._file.set_size(self.size_bytes)
                self._map_for_writing(self._file)
            except OSError:
                self.close()
                self._disk.unlink(self.path)
                raise
        except OSError as error:
            raise store_error("cannot create an index file", error) from error
        self._write_header()

    def load(self) -> str:
        """Read the header; return why the file is untrusted, or "".

        It also checks size, first and last entry, and the slot of the last one.
        """
        try:
            file = self._disk.open(self.path, read_only=True)
            try:
                self.found_bytes = file.size()
                data = file.pread(HEADER_BYTES, 0)
                if len(data) < HEADER_BYTES:
                    return f"it has {self.found_bytes} bytes"
                self._take_header(data)
                if self.found_bytes != self.size_bytes:
                    return f"it has {self.found_bytes} bytes instead of {self.size_bytes}"
                return fault_of(file, self._header_values(), self._slot_count, self._entry_count)
            finally:
                file.close()
        except OSError as error:
            return f"it cannot be read ({error.strerror or error})"

    def has_other_layout(self) -> bool:
        """Return whether the file is whole, but made with another maxHashSlotNum or maxIndexNum.

        For a file that `load` found to have another size.
        """
        rest = self.found_bytes - HEADER_BYTES
        slots_bytes = rest - self._entry_count * ENTRY_BYTES
        entries_bytes = rest - self._slot_count * SLOT_BYTES
        layouts = []
        if slots_bytes > 0 and slots_bytes % SLOT_BYTES == 0:
            layouts.append((slots_bytes // SLOT_BYTES, self._entry_count))
        if entries_bytes > 0 and entries_bytes % ENTRY_BYTES == 0:
            layouts.append((self._slot_count, entries_bytes // ENTRY_BYTES))
        if self.next_entry <= 1 or not layouts:
            return False
        try:
            file = self._disk.open(self.path, read_only=True)
            try:
                header = self._header_values()
                return any(not fault_of(file, header, *layout) for layout in layouts)
            finally:
                file.close()
        except OSError:
            return False

    def _take_header(self, data: bytes) -> None:
        header = IndexHeader.of(data)
        self.begin_timestamp, self.end_timestamp = header.begin_timestamp, header.end_timestamp
        self.begin_physical_offset = header.begin_physical_offset
        self.end_physical_offset = header.end_physical_offset
        self.used_slots, self.next_entry = header.used_slots, max(1, header.next_entry)

    def _header_values(self) -> IndexHeader:
        return IndexHeader(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.next_entry,
        )

    def open_for_writing(self) -> None:
        """Map header and slots. Raise DiskFull or StoreError."""
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
        """Bring everything put so far to disk. Raise StoreError."""
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
        """Release maps and descriptor; queries are still possible."""
        self._slots = self._header = None
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # -- adding (hot) -------------------------------------------------------------------------

    def put(
        self, hashes: Sequence[int], physical_offsets: Sequence[int], timestamps: Sequence[int]
    ) -> None:
        """Add entries, at least one and at most `room`; the file must be open for writing.

        Raise DiskFull or StoreError, and add nothing then.
        """
        slots, file, first = self._slots, self._file, self.next_entry
        assert slots is not None and file is not None and 0 < len(hashes) <= self.room
        numbers = _in_file_order(array("I", range(first, first + len(hashes))))
        slot_count = self._slot_count
        places = [key_hash % slot_count for key_hash in hashes]
        previous = [slots[slot] for slot in places]
        if len(set(places)) < len(places):  # entries of one slot form a chain
            newest: dict[int, int] = {}
            for place, (slot, number) in enumerate(zip(places, numbers, strict=True)):
                previous[place] = newest.get(slot, previous[place])
                newest[slot] = number
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
            raise store_error("cannot write to an index file", error) from error
        if first == 1:
            self.begin_physical_offset, self.begin_timestamp = physical_offsets[0], timestamps[0]
        self.end_physical_offset, self.end_timestamp = physical_offsets[-1], timestamps[-1]
        self.used_slots += previous.count(0)
        self.next_entry = first + len(hashes)  # readers on other threads depend on it
        # Write slots last, so that none points to an unwritten entry; the newest entry of a slot
        # stays.
        for slot, number in zip(places, numbers, strict=True):
            slots[slot] = number
        self._write_header()

    def _seconds(self, timestamps: Sequence[int], first_in_file: bool) -> list[int]:
        """Return seconds since the file's begin; the first entry counts from the file before."""
        begin = timestamps[0] if first_in_file else self.begin_timestamp
        if begin <= 0:
            seconds = [0] * len(timestamps)
        elif (max(timestamps) - begin) // 1000 == (
            min(timestamps) - begin
        ) // 1000:  # the usual case
            seconds = [_second(timestamps[0] - begin)] * len(timestamps)
        else:
            seconds = [_second(each - begin) for each in timestamps]
        if first_in_file and self.begin_timestamp > 0:
            seconds[0] = _second(timestamps[0] - self.begin_timestamp)
        return seconds

    def _write_header(self) -> None:
        assert self._header is not None
        self.is_dirty = True
        HEADER.pack_into(self._header, 0, *self._header_values())

    # -- searching ----------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may have entries of that time (both ends included).

        It ends earlier than it begins after the clock was set back.
        """
        first_ms, last_ms = sorted((self.begin_timestamp, self.end_timestamp))
        return begin_ms <= last_ms and end_ms >= first_ms

    def find(
        self,
        key_hash: int,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        accepts: Callable[[int], bool | None] = lambda _: True,
    ) -> list[int]:
        """Return offsets of up to `max_count` records with this hash and time, newest first.

        Times are stored in seconds, so records up to a second before `begin_ms` are found, too.
        Other keys may have the same hash: `accepts` filters them, and ends the search by None. Any
        thread: it reads through a descriptor of its own. A file that is deleted meanwhile yields
        nothing.
        """
        next_entry = self.next_entry
        if next_entry <= 1 or max_count <= 0:
            return []
        try:
            file = self._disk.open(self.path, read_only=True)
        except FileNotFoundError:
            return []
        try:
            slot = HEADER_BYTES + key_hash % self._slot_count * SLOT_BYTES
            (number,) = SLOT.unpack(file.pread(SLOT_BYTES, slot))
            if number >= next_entry:  # put meanwhile, or damaged
                next_entry = self.next_entry
            chain = self._chain(EntryReader(file, self._entries_start), number, next_entry)
            found: list[int] = []
            others = 0
            for entry_hash, physical_offset, stored_ms in chain:
                others += entry_hash != key_hash
                if stored_ms < begin_ms - CLOCK_STEP_MS or others > OTHERS_MAX:
                    break
                is_meant = entry_hash == key_hash and begin_ms - 1000 < stored_ms <= end_ms
                verdict = is_meant and accepts(physical_offset)
                if verdict:
                    found.append(physical_offset)
                if verdict is None or len(found) == max_count:
                    break
            return found
        finally:
            file.close()

    def _chain(
        self, entries: EntryReader, number: int, limit: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield hash, physical offset and time of the entries of one slot, newest first."""
        while 0 < number < limit:
            entry_hash, physical_offset, seconds, previous = entries.entry(number)
            if seconds < 0:
                break
            if number == 1:  # it counts from the file before, and begins this one
                seconds = 0
            yield entry_hash, physical_offset, self.begin_timestamp + seconds * 1000
            number, limit = previous, number  # a chain only leads back: no loop in a broken file

    def last_of_record(self) -> tuple[int, int]:
        """Return the record of the last entry, and its number of entries at the end.

        Raise OSError.
        """
        file = self._disk.open(self.path, read_only=True)
        try:
            entries = EntryReader(file, self._entries_start)
            number, offset = self.next_entry - 1, self.end_physical_offset
            while number > 0 and entries.entry(number)[1] == offset:
                number -= 1
            return offset, self.next_entry - 1 - number
        finally:
            file.close()

    def entries(self) -> list[tuple[int, int, int, int]]:
        """Return all entries as (key hash, physical offset, seconds, previous), oldest first."""
        file = self._disk.open(self.path, read_only=True)
        try:
            data = file.pread(
                (self.next_entry - 1) * ENTRY_BYTES, self._entries_start + ENTRY_BYTES
            )
        finally:
            file.close()
        return list(ENTRY.iter_unpack(data))
