"""Parts of the log for the index: the keys of a stretch of whole records, hashed already.

Other processes read them (part_worker.py), so that the broker only has to put the keys into files.
"""

from struct import error as StructError

from protocol.message import (
    HOST_BITS,
    LENGTH_FIELDS_BYTES,
    RECORD_BYTES_MIN,
    RECORD_MAGIC,
    SCAN_HEADS,
)
from storage.dispatching.dispatch import index_keys
from storage.index.key_columns import KeyColumns, KeyPart
from storage.log.reader import LogReader
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.log_parts import Growing, PartOrder, StretchReader, topic_of

KEYS = "keys"
"""Parts for the index."""
KEY_PART_BYTES = 1 << 20
"""The log's files are cut into stretches of so many bytes: who takes a part blocks others."""


class KeyPartReader(StretchReader[KeyPart]):
    """Reads what the index wants."""

    part_type = KeyPart

    def begun(self, start: int) -> Growing[KeyPart]:
        return _GrowingKeys(start)


class KeyPartsHere:
    """Reads each part when it is asked for. A PartSource."""

    def __init__(self, order: PartOrder, reader: LogReader) -> None:
        self.order = order
        self._reader = KeyPartReader(order, reader)

    def at(self, offset: int) -> KeyPart | None:
        return self._reader.read(offset)

    def close(self) -> None:
        pass


class _GrowingKeys:
    """See Growing."""

    def __init__(self, start: int) -> None:
        self.wants_care = False
        self._start = self._end = start
        self._count = 0
        self._columns = KeyColumns()
        self._topics: dict[bytes, tuple[bytes, int]] = {}
        """By topic length, topic and properties length: the topic, the latter length."""

    def part(self) -> KeyPart | None:
        if not self._count:
            return None
        return self._columns.part(self._start, self._end, self._count)

    def take(self, data: bytes, shift: int, border: int) -> int:
        # As its like of log_parts.py, but that a body may be damaged: the index has such records.
        unpack, head_bytes = SCAN_HEADS[0].unpack_from, SCAN_HEADS[0].size
        topics, data_bytes, position = self._topics, len(data), 0
        entries: list[DispatchEntry] = []
        stop = min(border - shift, data_bytes - RECORD_BYTES_MIN + 1)
        while position < stop:
            size, magic, _, _, _, physical, flag, time_ms, body_bytes = unpack(data, position)
            body_at = position + head_bytes
            if flag & HOST_BITS:
                head = SCAN_HEADS[flag >> 4 & 3]
                try:
                    size, magic, _, _, _, physical, flag, time_ms, body_bytes = head.unpack_from(
                        data, position
                    )
                except StructError:
                    break
                body_at = position + head.size
            topic_at, end = body_at + body_bytes, position + size
            if (
                magic != RECORD_MAGIC
                or physical != shift + position
                or body_bytes < 0
                or topic_at + LENGTH_FIELDS_BYTES > end
                or end > data_bytes
            ):
                break
            text_at = topic_at + LENGTH_FIELDS_BYTES + data[topic_at]
            lengths = data[topic_at:text_at]
            known = topics.get(lengths)
            if known is None:
                known = topics[lengths] = topic_of(lengths)
            topic, text_bytes = known
            if end - text_at != text_bytes:
                break
            keys = index_keys(data[text_at:end])
            entries.append(DispatchEntry(topic, 0, 0, physical, size, 0, time_ms, flag, keys))
            position = end
        self._columns.add(entries, 0)
        self._count += len(entries)
        self._end = shift + position
        return self._end
