"""The process that reads every n-th stretch of a log ahead and writes its parts to its output.

It is given one argument, JSON: the order's fields, and `first` (offset), `number`, `every`, `nice`.
Its output, for each of its stretches, in order: 8 bytes length, then so many bytes of marshal, None
or a part's fields. It ends when nobody reads any more.
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

from storage.config import StoreConfig
from storage.files.disk import Disk, RealDisk
from storage.log.reader import NamedLogReader
from storage.recovery.key_parts import KEYS, KeyPartReader
from storage.recovery.log_chunks import UNITS, LogChunk, P_co, PartOrder, PartReader, StretchReader

LENGTH_BYTES = 8
READERS: Mapping[str, type[StretchReader[Any]]] = {UNITS: PartReader, KEYS: KeyPartReader}
"""By the kind of parts."""


def argument(order: PartOrder, first: int, number: int, every: int, nice: int = 0) -> str:
    """What worker `number` of `every` is started with; it reads from the stretch at `first` on."""
    fields = {name: getattr(order, name) for name in PartOrder.__slots__}
    where = {"first": first, "number": number, "every": every, "nice": nice}
    return json.dumps({**fields, **where})


def packed(part: LogChunk | None) -> bytes:
    """A part as it goes through the pipe."""
    data = marshal.dumps(None if part is None else part.fields())
    return len(data).to_bytes(LENGTH_BYTES) + data


def read_packed(read: Callable[[int], bytes], part_type: type[P_co]) -> P_co | None:
    """The next part out of a pipe. Raises EOFError where it has ended."""
    head = read(LENGTH_BYTES)
    data = read(int.from_bytes(head))
    if len(head) < LENGTH_BYTES or len(data) < int.from_bytes(head):
        raise EOFError("the worker has ended")
    fields = marshal.loads(data)
    return None if fields is None else part_type.of_fields(fields)


def parts(disk: Disk, given: dict[str, Any]) -> Iterator[LogChunk | None]:
    """What one worker reads."""
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
    """Until all is read or nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    if hasattr(gc, "freeze"):  # only with one that counts references: PyPy would free nothing
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
