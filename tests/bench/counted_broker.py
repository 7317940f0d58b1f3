"""`troupemq broker`, counting its calls and sampling itself: `… counted_broker FILE LIBRARY …`.

The counts lie in FILE, which others may read while it runs: 8 bytes each, in the order of COUNTED,
in the machine's byte order.  To count one costs 0.1 to 0.2 µs.  Only calls of the path of a message
are there: file maps and locks are not.  The samples (samples.py) lie beside FILE.
"""

import mmap
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from select import epoll
from typing import Any

from tests.bench.samples import sample_into

COUNTED = ("epoll_wait", "recv", "sendmsg", "send", "pwrite", "pread", "preadv", "fdatasync")
_CELL = struct.Struct("=Q")


def counts_in(path: Path) -> dict[str, int]:
    """Return the counts that the broker with that file has so far."""
    data = path.read_bytes()
    return {name: _CELL.unpack_from(data, 8 * n)[0] for n, name in enumerate(COUNTED)}


def counting(call: Callable[..., Any], cells: memoryview, number: int) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        cells[number] += 1
        return call(*arguments)

    name = f"system call {COUNTED[number]}"  # by which profilers know it
    counted.__code__ = counted.__code__.replace(co_name=name, co_qualname=name)
    return counted


class CountedEpoll:
    """An epoll whose waits are counted; select's own class cannot be changed."""

    def __init__(self, cells: memoryview) -> None:
        own = epoll()
        self.poll = counting(own.poll, cells, COUNTED.index("epoll_wait"))
        self.register, self.modify = own.register, own.modify
        self.unregister, self.close = own.unregister, own.close


def count_in(path: Path) -> None:
    """Begins to count, before the broker is imported."""
    path.write_bytes(bytes(_CELL.size * len(COUNTED)))
    with path.open("r+b") as file:
        cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    for number, name in enumerate(COUNTED):
        if name == "epoll_wait":
            continue
        owner: Any = socket.socket if name in ("recv", "sendmsg", "send") else os
        setattr(owner, name, counting(getattr(owner, name), cells, number))
    import select

    setattr(select, "epoll", lambda: CountedEpoll(cells))  # noqa: B010  mypy knows it as a class


def main(arguments: Sequence[str]) -> None:
    path, library, *others = arguments
    count_in(Path(path))
    sample_into(Path(f"{path}.samples"), Path(library))
    from troupemq.cli import cli

    cli(others, prog_name="troupemq")


if __name__ == "__main__":
    main(sys.argv[1:])
