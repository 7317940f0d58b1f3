"""One record by its place in the log, for whoever may wait for the disk: read, checked, copied.

Through `pread` and not through the map: a page that is not cached is then waited for without the
interpreter lock. So it belongs on a thread, not on the loop.
"""

from protocol.message import SIZE_AND_MAGIC, RecordError, decode_record
from storage.commit_log import CommitLog
from storage.damage import Damage

_FIRST_READ_BYTES = 4096
"""Most records are shorter; one that is not takes a second read."""


def read_whole(log: CommitLog, damage: Damage, offset: int) -> bytes | None:
    """The bytes of the record at `offset`; None if no whole record begins there (any more).

    Damaged ones do not count: those that are known to be, and those whose CRC is wrong. Any thread;
    a file that is deleted meanwhile has nothing.
    """
    end = log.end_offset
    file = log.queue.find(offset) if 0 <= offset < end else None
    if file is None:
        return None
    position = offset - file.first_offset
    limit = min(end, file.end_offset) - offset
    try:
        data = file.file.pread(min(_FIRST_READ_BYTES, limit), position)
        if len(data) < SIZE_AND_MAGIC.size:
            return None
        size = SIZE_AND_MAGIC.unpack_from(data)[0]
        if not 0 < size <= limit or damage.overlaps(offset, offset + size):
            return None
        data = data[:size] if size <= len(data) else file.file.pread(size, position)
        record = decode_record(data)
    except (OSError, RecordError):
        return None
    return data if record.physical_offset == offset and len(data) == size else None
