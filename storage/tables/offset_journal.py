"""Journal of consumer offsets: what has changed since consumerOffset.json was saved.

consumerOffset.json names a generation. `<root>/troupemq/offsets/<generation>` has the changes since
that save; files with higher generations may follow. All integers are big-endian:

    offset  size  type  field
    0       8     bytes magic        "TRPOFF01"
    8       8     i64   generation   also the name of the file
    16      4     u32   follows      last checksum of the file before; 0 if changes are missing
    20      4     u32   crc          CRC-32 of the bytes above

One entry follows for each batch of changes:

    0       4     u32   payload_bytes
    4       4     u32   crc          CRC-32 of the payload, continued from the checksum before
    8             bytes payload      changes, each with its kind in the first byte

    kind           fields behind it
    1  key         u32 bytes, text `topic@group`: the file's next key, counted from 0
    2  moved       u32 key, i32 queue_id, i64 offset: nothing at or above it is settled
    3  advanced    u32 key, i32 queue_id, i64 offset, u32 count, u32 each: settled, above it
    4  settled     u32 key, i32 queue_id, i64 base, u32 bytes, bits (ahead_set.py): all settled ones
    5  gone        u32 key: no offsets any more
    6  cleared     nothing: no settled ones in any queue, at the beginning of a file

Entries are written without a sync: they survive the process, not the machine. After a power cut the
first wrong checksum ends the replay, so that it restores the table as of an earlier moment. A
consumerOffset.json without a generation, such as one that 4.9.7 has written, makes all files void.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from errno import EBADMSG, EIO, EISDIR, ENOENT
from struct import Struct, pack
from struct import error as StructError
from typing import Final
from zlib import crc32

from protocol.java_numbers import plain_number
from protocol.table_rules import queue_id_fault
from storage.config import StoreConfig
from storage.files.disk import Disk
from storage.tables.ahead_set import AheadSet

FILE_BYTES_MAX = 16 << 20
"""Length past which the table is saved, so that a new file begins."""
AHEAD_SPAN_MAX = 1 << 16
"""Offsets from a consumer offset up to which settled ones are kept."""
AHEAD_BYTES_OF_ALL = 8 << 20
"""Bits of all queues if their spans are alike, so that the beginning of a file takes 10 ms."""

_DAMAGE = {EBADMSG, EIO, EISDIR, ENOENT}
"""Errors of a read that are the file's fault, not that of this process or its permissions."""

JOURNAL_MAGIC: Final = b"TRPOFF01"
_HEAD: Final = Struct(
    ">8s"  # magic
    "q"  # generation
    "I"  # follows
)
_CRC: Final = Struct(">I")
_ENTRY: Final = Struct(
    ">I"  # payload_bytes
    "I"  # crc
)
_KEY: Final = Struct(
    ">B"  # kind
    "I"  # text bytes
)
_MOVED: Final = Struct(
    ">B"  # kind
    "I"  # key
    "i"  # queue_id
    "q"  # offset
)
_LISTED: Final = Struct(
    ">B"  # kind
    "I"  # key
    "i"  # queue_id
    "q"  # offset, or base of the bits
    "I"  # count of offsets, or bytes of bits
)
_GONE: Final = Struct(
    ">B"  # kind
    "I"  # key
)
_IS_KEY, _IS_MOVED, _IS_ADVANCED, _IS_SETTLED, _IS_GONE, _IS_CLEARED = range(1, 7)
HEAD_BYTES: Final = _HEAD.size + _CRC.size
ENTRY_HEAD_BYTES: Final = _ENTRY.size
assert HEAD_BYTES == 24
_FILE_BYTES_READ = 4 * FILE_BYTES_MAX
KINDS: Final = {
    _IS_MOVED: "moved",
    _IS_ADVANCED: "advanced",
    _IS_SETTLED: "settled",
    _IS_GONE: "gone",
    _IS_CLEARED: "cleared",
}
"""Names of the changes that `changes` yields."""

Queue = tuple[str, int]
"""Key `topic@group` and queue id."""


class JournalError(ValueError):
    """An entry that no journal has."""


BROKEN_ENTRY: Final = (IndexError, JournalError, StructError, UnicodeDecodeError)
"""Errors of `changes`."""


@dataclass(slots=True)
class OffsetState:
    """Consumer offsets, and settled offsets above them. One owner."""

    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    """Offsets by `topic@group`, then by queue."""
    ahead: dict[Queue, AheadSet] = field(default_factory=dict)

    def move(self, key: str, queue_id: int, offset: int) -> None:
        self.offsets.setdefault(key, {})[queue_id] = offset
        self.ahead.pop((key, queue_id), None)

    def settle(self, key: str, queue_id: int, offset: int, settled: Iterable[int]) -> None:
        """Note `offset` as the consumer offset, and settled ones not too far above.

        The more queues have such, the shorter are their spans.
        """
        span = min(AHEAD_SPAN_MAX, (AHEAD_BYTES_OF_ALL << 3) // (len(self.ahead) + 1))
        self.offsets.setdefault(key, {})[queue_id] = offset
        found = self.ahead.get((key, queue_id))
        if found is not None:
            found.forget_below(offset)
            found.forget_from(offset + AHEAD_SPAN_MAX)
        for each in settled:
            if offset < each < offset + span:
                if found is None:
                    found = self.ahead[key, queue_id] = AheadSet()
                found.add(each)
        if found is not None and found.last < offset:
            del self.ahead[key, queue_id]

    def remove(self, key: str) -> None:
        for queue_id in self.offsets.pop(key, ()):
            self.ahead.pop((key, queue_id), None)


class JournalFile:
    """One file being written. One owner."""

    def __init__(self, disk: Disk, directory: str, generation: int, follows: int) -> None:
        """Create the file; `follows` is the checksum of the file before. Raise OSError."""
        self.generation, self.path = generation, f"{directory}/{generation}"
        self.keys: dict[str, int] = {}
        """Keys with a change in this file, and their numbers."""
        self._changes = bytearray()
        """Changes that are not in the file yet."""
        head = _HEAD.pack(JOURNAL_MAGIC, generation, follows)
        self.chain = crc32(head)
        """Checksum of the last entry."""
        disk.make_dirs(directory, durable=False)
        self._file = disk.open(self.path, create=True)
        self._file.set_size(0)
        self._file.pwrite(head + _CRC.pack(self.chain), 0)
        self.size = HEAD_BYTES

    def move(self, key: str, queue_id: int, offset: int) -> None:
        number = self._number(key)
        self._changes += _MOVED.pack(_IS_MOVED, number, queue_id, offset)

    def settle(self, key: str, queue_id: int, offset: int, settled: Sequence[int]) -> None:
        """Note an advanced offset; `settled` are at most AHEAD_SPAN_MAX above it."""
        number, count = self._number(key), len(settled)
        self._changes += _LISTED.pack(_IS_ADVANCED, number, queue_id, offset, count)
        if count:
            self._changes += pack(f">{count}I", *[each - offset for each in settled])

    def settled(self, ahead: Mapping[Queue, AheadSet]) -> None:
        """Note all settled offsets, at the beginning of a file."""
        self._changes.append(_IS_CLEARED)
        for (key, queue_id), found in ahead.items():
            number = self._number(key)
            base, bits = found.parts()
            self._changes += _LISTED.pack(_IS_SETTLED, number, queue_id, base, len(bits)) + bits

    def remove(self, key: str) -> None:
        number = self._number(key)
        self._changes += _GONE.pack(_IS_GONE, number)

    def _number(self, key: str) -> int:
        number = self.keys.get(key)
        if number is None:
            number = self.keys[key] = len(self.keys)
            text = key.encode("utf-8", "surrogateescape")
            self._changes += _KEY.pack(_IS_KEY, len(text)) + text
        return number

    def write(self) -> None:
        """Write one entry with the changes since the last call. Raise OSError."""
        if not (changes := self._changes):
            return
        chain = crc32(changes, self.chain)
        self._file.pwrite(_ENTRY.pack(len(changes), chain) + changes, self.size)
        self.size += _ENTRY.size + len(changes)
        self.chain = chain
        self._changes = bytearray()

    def close(self) -> None:
        self._file.close()


def journal_directory(config: StoreConfig) -> str:
    return f"{config.root}/troupemq/offsets"


def generations(disk: Disk, directory: str) -> list[int]:
    """Return the generations of the files, in order."""
    found = (plain_number(name) for name in disk.listdir(directory))
    return sorted(each for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class JournalFault:
    """Damage that ends a replay."""

    text: str
    is_at_end: bool = False
    """Whether it is in the last entry, as after a power cut."""


def replay(
    disk: Disk,
    directory: str,
    generation: int,
    state: OffsetState,
    faults: list[JournalFault] | None = None,
) -> tuple[int, int]:
    """Apply the journal behind a saved table to `state`; add what is damaged to `faults`.

    Return the number of entries and the checksum behind the last one, 0 without a file.
    `generation` is the one that the saved table names. What is damaged ends the replay: without
    the journal, more messages are consumed again. Raise OSError if this process may not read it.
    """
    count, chain = 0, 0
    faults = [] if faults is None else faults
    for each in generations(disk, directory):
        if each < generation or (not chain and each != generation):
            continue
        data = _read(disk, f"{directory}/{each}")
        head = read_head(data)
        if head is None or head[0] != each or (chain and head[1] != chain):
            continue
        chain = head[2]
        keys: list[str] = []
        at = HEAD_BYTES
        with suppress(JournalError):
            for payload, end in entries(data, chain):
                apply(payload, keys, state)
                count, chain, at = count + 1, end, at + _ENTRY.size + len(payload)
        if at < (through := len(data.rstrip(b"\0"))):
            size = _ENTRY.unpack_from(data, at)[0] if at + _ENTRY.size <= len(data) else 0
            is_at_end = not size or at + _ENTRY.size + size >= through
            faults.append(JournalFault(f"{directory}/{each}: damaged from byte {at} on", is_at_end))
    if not chain:
        faults.append(JournalFault(f"{directory}/{generation}: missing, or no journal"))
    return count, chain


def _read(disk: Disk, path: str) -> bytes:
    """Return the content of a file, empty for a damaged one. Raise OSError."""
    try:
        file = disk.open(path, read_only=True)
        try:
            return file.pread(_FILE_BYTES_READ, 0)
        finally:
            file.close()
    except OSError as error:
        if error.errno in _DAMAGE:
            return b""
        raise


def read_head(data: bytes) -> tuple[int, int, int] | None:
    """Return generation, `follows` and checksum of a file; None if it is no journal."""
    if len(data) < HEAD_BYTES:
        return None
    magic, generation, follows = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if magic != JOURNAL_MAGIC or crc != crc32(data[: _HEAD.size]):
        return None
    return generation, follows, crc


def entries(data: bytes, chain: int) -> Iterator[tuple[bytes, int]]:
    """Yield the payload and checksum of each valid entry; `chain` is the checksum of the head."""
    at = HEAD_BYTES
    while at + _ENTRY.size <= len(data):
        size, crc = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        payload = data[at : at + size]
        chain = crc32(payload, chain)
        if not size or len(payload) < size or chain != crc:
            return
        at += size
        yield payload, chain


def apply(payload: bytes, keys: list[str], state: OffsetState) -> None:
    """Apply an entry to `state`; `keys` are those of the file so far.

    Raise JournalError for one that no journal has; `state` then has the changes before it.
    """
    try:
        for kind, key, queue_id, offset, rest in changes(payload, keys):
            if kind == _IS_GONE:
                state.remove(key)
            elif kind == _IS_CLEARED:
                state.ahead.clear()
            elif kind == _IS_MOVED:
                state.move(key, queue_id, offset)
            elif kind == _IS_ADVANCED:
                numbers = Struct(f">{len(rest) >> 2}I").unpack(rest)
                state.settle(key, queue_id, offset, (offset + each for each in numbers))
            elif queue_id in state.offsets.get(key, ()):
                state.ahead[key, queue_id] = AheadSet(offset, rest)
    except BROKEN_ENTRY as error:
        raise JournalError(str(error)) from None


def changes(payload: bytes, keys: list[str]) -> Iterator[tuple[int, str, int, int, bytes]]:
    """Yield kind, key, queue id, offset and the bytes behind them of each change.

    Raise one of BROKEN_ENTRY.
    """
    at = 0
    while at < len(payload):
        kind = payload[at]
        if kind == _IS_KEY:
            _, size = _KEY.unpack_from(payload, at)
            at += _KEY.size
            if at + size > len(payload):
                raise JournalError("a key is cut off")
            keys.append(payload[at : at + size].decode("utf-8", "surrogateescape"))
            at += size
        elif kind == _IS_CLEARED:
            at += 1
            yield kind, "", 0, 0, b""
        elif kind == _IS_GONE:
            _, number = _GONE.unpack_from(payload, at)
            at += _GONE.size
            yield kind, keys[number], 0, 0, b""
        elif kind in (_IS_MOVED, _IS_ADVANCED, _IS_SETTLED):
            layout = _MOVED if kind == _IS_MOVED else _LISTED
            _, number, queue_id, offset, *more = layout.unpack_from(payload, at)
            at += layout.size
            size = more[0] * (4 if kind == _IS_ADVANCED else 1) if more else 0
            if at + size > len(payload) or size > 4 * AHEAD_SPAN_MAX:
                raise JournalError("a list of offsets is cut off")
            if fault := queue_id_fault(queue_id):
                raise JournalError(fault)
            if kind == _IS_SETTLED and offset & 7:
                raise JournalError(f"invalid offset {offset} of settled messages")
            yield kind, keys[number], queue_id, offset, payload[at : at + size]
            at += size
        else:
            raise JournalError(f"unknown kind {kind}")
