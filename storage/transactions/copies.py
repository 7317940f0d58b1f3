"""Search for later copies of a half message in the transaction table, without reading the log.

Every check-back appends the half message to the log again. All copies share the birth time and the
producer group. They also have the same length, except for the properties that count checks.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from protocol.message import MessageRecord
from protocol.properties import PGROUP, TRANSACTION_CHECK_TIMES
from storage.dispatching.dispatch import property_of
from storage.index.key_hash import java_hash
from storage.transactions.units import UNIT, UNIT_BYTES, TransactionFiles, TransactionUnit

_MARKS = Struct(">Ii")
"""Birth time in seconds and hash of the group, as in a unit."""
_MARKS_POSITION = 12
_UNSIGNED_MASK = 0xFFFFFFFF
_PGROUP, _CHECK_TIMES = (f"\x02{name}\x01".encode() for name in (PGROUP, TRANSACTION_CHECK_TIMES))
_COUNT_BYTES_MIN = len(_CHECK_TIMES) + 1
_GROWTH_BYTES_MAX = 128
_CANDIDATES_MAX = 1000


def copies_behind(
    half: MessageRecord, files: TransactionFiles, in_memory: Sequence[bytes]
) -> Iterator[TransactionUnit]:
    """Units that may be later copies of `half`, newest first; their states may be old.

    `in_memory` has the units behind those of the files, in order.
    """
    raw = b"\x02" + half.properties
    marks = _MARKS.pack(
        half.born_timestamp // 1000 & _UNSIGNED_MASK, java_hash(property_of(raw, _PGROUP))
    )
    least = 0 if property_of(raw, _CHECK_TIMES) else _COUNT_BYTES_MIN
    sizes = range(half.record_bytes + least, half.record_bytes + _GROWTH_BYTES_MAX)
    found: list[TransactionUnit] = []
    for data in _newest_first(half.physical_offset, files, b"".join(in_memory)):
        position = len(data)
        while (position := data.rfind(marks, 0, position + _MARKS.size - 1)) >= 0:
            start = position - _MARKS_POSITION
            if start >= 0 and start % UNIT_BYTES == 0:
                unit = TransactionUnit._make(UNIT.unpack_from(data, start))
                if unit.physical_offset > half.physical_offset and unit.record_bytes in sizes:
                    found.append(unit)
                    yield unit
            if len(found) >= _CANDIDATES_MAX:
                return


def _newest_first(
    physical_offset: int, files: TransactionFiles, in_memory: bytes
) -> Iterator[bytes]:
    """Yield the units behind a log offset, a file at a time, newest first."""
    yield in_memory
    first = files.search(physical_offset)
    end = files.end
    while end > first:
        start = max(first, files.file_start(end - 1))
        yield files.read(start, end - start)
        end = start
