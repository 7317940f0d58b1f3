"""Replication: the frames between a master and its slaves, on the port above listenPort.

All integers big-endian. A slave writes only reports, a master only transfers.

    report (slave to master)
    offset  size  type   field
    0       8     i64    offset           end of the slave's log; first: where to start

    transfer (master to slave)
    offset  size  type   field
    0       8     i64    physical offset  place of the body in the log
    8       4     i32    body length      0: heartbeat, or the place at which the slave starts
    12      n     bytes  body             of the log, as it is; may cut records, stays in one file

Source: store/ha/HAService.java (HAClient), HAConnection.java.
"""

from struct import Struct

from protocol.codes import ResponseCode
from protocol.errors import FrameError

TRANSFER_BYTES_MAX = 4 << 20
"""Maximum body of a transfer; with its head it fits the buffer of an official slave."""

LOG_OFFSET_MAX = 1 << 62
"""Limit of physical offsets. A log near 2⁶³ could not be reported, nor have a next file."""

_REPORT = Struct(
    ">q"  # offset
)
_TRANSFER = Struct(
    ">q"  # physical offset
    "i"  # body length
)
REPORT_BYTES = _REPORT.size
TRANSFER_HEAD_BYTES = _TRANSFER.size
assert (REPORT_BYTES, TRANSFER_HEAD_BYTES) == (8, 12)

Transfer = tuple[int, bytes]
"""physical offset, body"""


def encode_report(offset: int) -> bytes:
    """Return a slave's report."""
    return _REPORT.pack(offset)


def encode_transfer_head(physical_offset: int, body_bytes: int) -> bytes:
    """Return the head of a transfer of so many bytes."""
    return _TRANSFER.pack(physical_offset, body_bytes)


class ReportBuffer:
    """Buffer of the reports of one slave."""

    def __init__(self) -> None:
        self._waiting = b""

    def receive(self, data: bytes) -> int | None:
        """Add `data`; return the newest whole report, or None.

        Older reports are dropped, as in RocketMQ.
        """
        data = self._waiting + data
        end = len(data) - len(data) % REPORT_BYTES
        self._waiting = data[end:]
        return _REPORT.unpack_from(data, end - REPORT_BYTES)[0] if end else None


class TransferBuffer:
    """Buffer of a master's bytes that yields whole transfers."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._needed_bytes = 0
        """Total bytes of the incomplete transfer, as far as known."""

    def receive(self, data: bytes) -> list[Transfer]:
        """Add `data`; return the whole transfers in order.

        Raises FrameError for an impossible length or offset.
        """
        waiting = self._waiting
        if waiting:
            waiting += data
            if len(waiting) < self._needed_bytes:
                return []
            data = bytes(waiting)
            waiting.clear()
        found: list[Transfer] = []
        start, data_bytes = 0, len(data)
        while data_bytes - start >= TRANSFER_HEAD_BYTES:
            offset, body_bytes = _TRANSFER.unpack_from(data, start)
            is_length = 0 <= body_bytes <= TRANSFER_BYTES_MAX - TRANSFER_HEAD_BYTES
            if not is_length or not 0 <= offset <= LOG_OFFSET_MAX:
                raise FrameError(
                    ResponseCode.SYSTEM_ERROR, f"a transfer of {body_bytes} bytes at {offset}"
                )
            body_start = start + TRANSFER_HEAD_BYTES
            end = body_start + body_bytes
            if end > data_bytes:
                self._needed_bytes = end - start
                break
            found.append((offset, data[body_start:end]))
            start = end
        else:
            self._needed_bytes = TRANSFER_HEAD_BYTES
        if start < data_bytes:
            waiting += data[start:]
        return found
