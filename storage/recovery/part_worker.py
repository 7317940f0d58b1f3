"""The process that reads every n-th stretch of a log ahead and writes its parts to its output.

It is given one argument, JSON: the order's fields, and `first` (offset), `number`, `every`. Its
output, for each of its stretches, in order: 8 bytes length, then so many bytes of marshal, None or
a part's fields. It ends when nobody reads any more.
"""

import gc
import json
import marshal
import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from storage.config import StoreConfig
from storage.files.disk import Disk, RealDisk
from storage.log.reader import NamedLogReader
from storage.queues.queue_units import UnitRun
from storage.recovery.log_parts import PartOrder, PartReader, ReadPart

LENGTH_BYTES = 8


def argument(order: PartOrder, first: int, number: int, every: int) -> str:
    """What worker `number` of `every` is started with; it reads from the stretch at `first` on."""
    fields = {name: getattr(order, name) for name in PartOrder.__slots__}
    return json.dumps({**fields, "first": first, "number": number, "every": every})


def packed(part: ReadPart | None) -> bytes:
    """A part as it goes through the pipe."""
    fields = None if part is None else (*part[:-1], [tuple(run) for run in part.runs])
    data = marshal.dumps(fields)
    return len(data).to_bytes(LENGTH_BYTES) + data


def read_packed(read: Callable[[int], bytes]) -> ReadPart | None:
    """The next part out of a pipe. Raises EOFError where it has ended."""
    head = read(LENGTH_BYTES)
    data = read(int.from_bytes(head))
    if len(head) < LENGTH_BYTES or len(data) < int.from_bytes(head):
        raise EOFError("the worker has ended")
    fields = marshal.loads(data)
    if fields is None:
        return None
    return ReadPart._make((*fields[:-1], [UnitRun(*run) for run in fields[-1]]))


def parts(disk: Disk, given: dict[str, Any]) -> Iterator[ReadPart | None]:
    """What one worker reads."""
    first, number, every = (given.pop(name) for name in ("first", "number", "every"))
    order = PartOrder(**given)
    config = StoreConfig(commit_log_dir=order.directory, commit_log_file_bytes=order.file_bytes)
    reader = NamedLogReader(disk, config, order.end)
    try:
        own = PartReader(order, reader)
        for offset in islice(order.stretches(first), number, None, every):
            yield own.first_in(offset)
    finally:
        reader.close()


def main() -> None:
    """Until all is read or nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    gc.disable()
    with open(sys.stdout.fileno(), "wb", buffering=0) as out:
        for part in parts(RealDisk(), json.loads(sys.argv[1])):
            data = memoryview(packed(part))
            try:
                while data:
                    data = data[out.write(data) :]
            except BrokenPipeError:
                os._exit(0)


if __name__ == "__main__":
    main()
