"""Process that reads every n-th stretch of a log ahead and writes the chunks to its output.

Its one argument is JSON: the fields of the PartOrder, and `first` (offset), `number`, `every` and
`nice`. Its output has, for each of its stretches in order, 8 bytes of length and that many bytes of
marshal data: None or the fields of a chunk. It exits when the reader closes the pipe.

A chunk has the hashed keys of a stretch of whole records, for the index. The broker only writes
them to files.
"""

import gc
import json
import marshal
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from protocol.message import (
    LENGTH_FIELDS_BYTES,
)
from storage.config import StoreConfig
from storage.dispatching.dispatch import index_keys
from storage.files.disk import Disk, RealDisk
from storage.index.key_columns import KeyColumns, KeyPart
from storage.log.reader import LogReader, NamedLogReader, sound_heads
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.log_chunks import (
    UNITS,
    ChunkBuilder,
    LogChunk,
    P_co,
    PartOrder,
    PartReader,
    StretchReader,
    topic_of,
)

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


LENGTH_BYTES = 8
READERS: Mapping[str, type[StretchReader[Any]]] = {UNITS: PartReader, KEYS: KeyPartReader}


def argument(order: PartOrder, first: int, number: int, every: int, nice: int = 0) -> str:
    """Return the argument of worker `number` of `every`; `first` is in the first stretch."""
    fields = {name: getattr(order, name) for name in PartOrder.__slots__}
    where = {"first": first, "number": number, "every": every, "nice": nice}
    return json.dumps({**fields, **where})


def packed(part: LogChunk | None) -> bytes:
    data = marshal.dumps(None if part is None else part.fields())
    return len(data).to_bytes(LENGTH_BYTES) + data


def read_packed(read: Callable[[int], bytes], part_type: type[P_co]) -> P_co | None:
    """Return the next chunk of a pipe. Raises EOFError at its end."""
    head = read(LENGTH_BYTES)
    data = read(int.from_bytes(head))
    if len(head) < LENGTH_BYTES or len(data) < int.from_bytes(head):
        raise EOFError("the worker has ended")
    fields = marshal.loads(data)
    return None if fields is None else part_type.of_fields(fields)


def parts(disk: Disk, given: dict[str, Any]) -> Iterator[LogChunk | None]:
    first, number, every, _ = (given.pop(name) for name in ("first", "number", "every", "nice"))
    order = PartOrder(**given)
    config = StoreConfig(commit_log_dir=order.directory, commit_log_file_bytes=order.file_bytes)
    reader = NamedLogReader(disk, config, order.end)
    try:
        own = READERS[order.kind](order, reader)
        for offset in islice(order.stretches(first), number, None, every):
            yield own.first_in(offset)
    finally:
        reader.close()


def main() -> None:
    """Run until everything is read or the reader has closed the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process stops this one
    if hasattr(gc, "freeze"):  # only with reference counting: PyPy would free nothing
        gc.disable()
    given = json.loads(sys.argv[1])
    os.nice(given["nice"])
    with open(sys.stdout.fileno(), "wb", buffering=0) as out:
        for part in parts(RealDisk(), given):
            data = memoryview(packed(part))
            try:
                while data:
                    data = data[out.write(data) :]
            except BrokenPipeError:
                os._exit(0)


if __name__ == "__main__":
    main()
