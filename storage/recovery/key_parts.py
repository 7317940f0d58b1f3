"""Log chunks for the index: hashed keys of a stretch of whole records.

Other processes read them (part_worker.py); the broker only writes the keys to files.
"""

from protocol.message import (
    LENGTH_FIELDS_BYTES,
)
from storage.dispatching.dispatch import index_keys
from storage.index.key_columns import KeyColumns, KeyPart
from storage.log.reader import LogReader, sound_heads
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.log_chunks import ChunkBuilder, PartOrder, StretchReader, topic_of

KEYS = "keys"
KEY_PART_BYTES = 1 << 20
"""Bytes of a stretch; adding a larger chunk would block other work for too long."""


class KeyPartReader(StretchReader[KeyPart]):
    part_type = KeyPart

    def begun(self, start: int) -> ChunkBuilder[KeyPart]:
        return _GrowingKeys(start)


class KeyPartsHere:
    """Source that reads each chunk on request. A ChunkSource."""

    def __init__(self, order: PartOrder, reader: LogReader) -> None:
        self.order = order
        self._reader = KeyPartReader(order, reader)

    def at(self, offset: int) -> KeyPart | None:
        return self._reader.read(offset)

    def close(self) -> None:
        pass


class _GrowingKeys:
    """Index chunk under construction. A ChunkBuilder."""

    def __init__(self, start: int) -> None:
        self.wants_care = False
        self._start = self._end = start
        self._count = 0
        self._columns = KeyColumns()
        self._topics: dict[bytes, tuple[bytes, int]] = {}
        """Topic and properties length by the bytes that encode both and the topic length."""

    def part(self) -> KeyPart | None:
        if not self._count:
            return None
        return self._columns.part(self._start, self._end, self._count)

    def take(self, data: bytes, shift: int, border: int) -> int:
        # Unlike in log_chunks.py, a body may be damaged: such records are indexed, too.
        topics, position = self._topics, 0
        entries: list[DispatchEntry] = []
        for at, size, _, _, _, flag, time_ms, _, topic_at in sound_heads(
            data, 0, border - shift, shift
        ):
            end = at + size
            text_at = topic_at + LENGTH_FIELDS_BYTES + data[topic_at]
            lengths = data[topic_at:text_at]
            known = topics.get(lengths)
            if known is None:
                known = topics[lengths] = topic_of(lengths)
            topic, text_bytes = known
            if end - text_at != text_bytes:
                break
            keys = index_keys(data[text_at:end])
            entries.append(DispatchEntry(topic, 0, 0, shift + at, size, 0, time_ms, flag, keys))
            position = end
        self._columns.add(entries, 0)
        self._count += len(entries)
        self._end = shift + position
        return self._end
