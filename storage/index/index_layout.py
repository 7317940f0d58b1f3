"""The layout of an index file, and its consistency rules.

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

Source: store/index/IndexFile.java, IndexHeader.java.
"""

from array import array
from struct import Struct
from sys import byteorder
from typing import Final, NamedTuple

from storage.files.disk import DiskFile

HEADER: Final = Struct(
    ">q"  # begin_timestamp, ms
    "q"  # end_timestamp, ms
    "q"  # begin_physical_offset
    "q"  # end_physical_offset
    "i"  # used_slots
    "i"  # next_entry
)
ENTRY: Final = Struct(
    ">i"  # key_hash
    "q"  # physical_offset
    "i"  # seconds since begin_timestamp
    "i"  # previous entry
)
SLOT: Final = Struct(">i")
HEADER_BYTES: Final = HEADER.size
ENTRY_BYTES: Final = ENTRY.size
SLOT_BYTES: Final = SLOT.size
assert (HEADER_BYTES, ENTRY_BYTES, SLOT_BYTES) == (40, 20, 4)
SECONDS_MAX: Final = 0x7FFFFFFF
_BLOCK_ENTRIES = 64
"""Entries that a search reads at a time: neighbours in a chain are often close."""


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    used_slots: int
    next_entry: int

    @classmethod
    def of(cls, data: bytes) -> "IndexHeader":
        """Return the header in the bytes of the file."""
        return cls(*HEADER.unpack(data))


def fault_of(file: DiskFile, header: IndexHeader, slot_count: int, entry_count: int) -> str:
    """Return the contradiction in header, first and last entry, or "".

    Raise OSError.
    """
    last = header.next_entry - 1
    fault = _impossible(header, last, slot_count, entry_count)
    if fault or not last:
        return fault
    start = HEADER_BYTES + slot_count * SLOT_BYTES
    first_data = file.pread(ENTRY_BYTES, start + ENTRY_BYTES)
    last_data = file.pread(ENTRY_BYTES, start + last * ENTRY_BYTES)
    if len(first_data) < ENTRY_BYTES or len(last_data) < ENTRY_BYTES:
        return "its last entries are missing"
    key_hash, last_offset, seconds, previous = ENTRY.unpack(last_data)
    begin = ENTRY.unpack(first_data)[1]
    if (begin, last_offset) != (header.begin_physical_offset, header.end_physical_offset):
        return "its first or last entry is not the one that its header names"
    age_ms = header.end_timestamp - header.begin_timestamp  # negative if the clock was set back
    age_s = min(max(age_ms // 1000, 0), SECONDS_MAX)
    if last > 1 and seconds != (age_s if header.begin_timestamp > 0 else 0):
        return "its last entry does not have the time that its header names"
    slot = file.pread(SLOT_BYTES, HEADER_BYTES + key_hash % slot_count * SLOT_BYTES)
    if key_hash < 0 or not 0 <= previous < last or SLOT.unpack(slot)[0] != last:
        return "no slot leads to its last entry"
    return ""


def _impossible(header: IndexHeader, last: int, slot_count: int, entry_count: int) -> str:
    if not 0 <= last <= max(entry_count - 1, 0):
        return f"its header has an invalid count of {last} entries"
    if not min(last, 1) <= header.used_slots <= min(last, slot_count):
        return f"its header says that {last} entries use {header.used_slots} slots"
    if not 0 <= header.begin_physical_offset <= header.end_physical_offset:
        return "its header says that it ends at a lower offset than it begins"
    if min(header.begin_timestamp, header.end_timestamp) < 0:
        return "its header says that it begins or ends before 1970"
    return ""


def slots_of(data: bytes) -> "array[int]":
    """Return the entry numbers in the bytes of slots."""
    slots = array("I", data)
    if byteorder == "little":
        slots.byteswap()
    return slots


class EntryReader:
    """Reads single entries; adjacent ones with one system call.

    It uses no map, because a read of an uncached entry then waits without the interpreter lock.
    """

    def __init__(self, file: DiskFile, entries_start: int) -> None:
        self._file = file
        self._start = entries_start
        self._block = b""
        self._block_number = -1

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return (key hash, physical offset, seconds, previous); zeros past the end of the file."""
        block_number, place = divmod(number, _BLOCK_ENTRIES)
        if block_number != self._block_number:
            size = _BLOCK_ENTRIES * ENTRY_BYTES
            self._block = self._file.pread(size, self._start + block_number * size).ljust(
                size, b"\0"
            )
            self._block_number = block_number
        key_hash, offset, seconds, previous = ENTRY.unpack_from(self._block, place * ENTRY_BYTES)
        return key_hash, offset, seconds, previous
