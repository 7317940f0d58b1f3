"""Process that reads every n-th stretch of a log ahead and writes the chunks to its output.

Its one argument is JSON: the fields of the PartOrder, and `first` (offset), `number`, `every` and
`nice`. Its output has, for each of its stretches in order, 8 bytes of length and that many bytes of
marshal data: None or the fields of a chunk. It exits when the reader closes the pipe.
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
