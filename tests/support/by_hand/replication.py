"""A replication stream by hand, in the shape of the recorded ones.

Slave to master: int64 offset. Master to slave: int64 offset | int32 body bytes | body, where no
body is a sign of life.
"""

from struct import pack
from typing import Any

from tests.support.by_hand.records import in_place

TO_MASTER, TO_SLAVE = "slave->master", "master->slave"


def stream() -> list[dict[str, Any]]:
    """Two parts of a log, the first one cut inside a record, and a sign of life after each."""
    log = b"".join(record.encoded() for record in in_place(1 << 20)[:6])
    lines: list[dict[str, Any]] = []
    for begin, end in ((0, 700), (700, len(log))):
        lines += [*_report(begin), *_transfer(begin, log[begin:end]), *_report(end)]
        lines += _transfer(end, b"")
    return lines


def _report(offset: int) -> list[dict[str, Any]]:
    frame = {"type": "frame", "dir": TO_MASTER, "reportOffset": offset}
    return [{"type": "bytes", "dir": TO_MASTER, "hex": pack(">q", offset).hex()}, frame]


def _transfer(offset: int, body: bytes) -> list[dict[str, Any]]:
    data = pack(">qi", offset, len(body)) + body
    frame = {"type": "frame", "dir": TO_SLAVE, "phyOffset": offset, "bodySize": len(body)}
    return [{"type": "bytes", "dir": TO_SLAVE, "hex": data.hex()}, frame]
