"""Message ids: the broker's (place of a record) and the client's (unique in the cluster).

Both are hexadecimal, upper case, big-endian inside.

    offset id   host (8 or 20 bytes, see host.py) | i64 physical_offset        32 or 56 characters
    unique id   ip (4 or 16) | i16 pid | i32 seed | i32 ms of month | i16 count  32 or 56 characters

Source: common/message/MessageDecoder.java (createMessageId), MessageClientIDSetter.java.
"""

from collections.abc import Callable
from datetime import datetime
from itertools import count
from struct import Struct

from protocol.host import HOST_V4_BYTES, HOST_V6_BYTES, unpack_host

_OFFSET = Struct(">q")
_PROCESS = Struct(
    ">H"  # process id, low 16 bits
    "I"  # seed: one per process (RocketMQ's class loader hash)
)
_MOMENT = Struct(
    ">I"  # ms since the month began, local time
    "H"  # count, wraps
)
_PORT_MAX = 0xFFFF
_V4_BYTES = HOST_V4_BYTES + _OFFSET.size
_V6_BYTES = HOST_V6_BYTES + _OFFSET.size
MESSAGE_ID_LENGTHS = (2 * _V4_BYTES, 2 * _V6_BYTES)
assert MESSAGE_ID_LENGTHS == (32, 56)


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` at the broker `host` (packed)."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_message_id(text: str) -> tuple[bytes, int]:
    """Return packed host and physical offset of an offset id. Raises ValueError for other texts."""
    if len(text) not in MESSAGE_ID_LENGTHS:
        raise ValueError(f"a message id has 32 or 56 characters: {text!r}")
    data = bytes.fromhex(text)
    if 2 * len(data) != len(text):
        raise ValueError(f"a message id is hexadecimal without blanks: {text!r}")
    split = len(data) - _OFFSET.size
    return data[:split], _OFFSET.unpack_from(data, split)[0]


def is_offset_message_id(text: str) -> bool:
    """Return whether a text can be an offset id rather than a unique one.

    A port has two zero bytes where unique ids have the process id, which is hardly ever a multiple
    of 65,536.
    """
    try:
        host, offset = parse_message_id(text)
    except ValueError:
        return False
    return 0 < unpack_host(host)[1] <= _PORT_MAX and offset >= 0


class UniqueIds:
    """Generator of UNIQ_KEY values; at most 65,536 in one millisecond are distinct.

    `address` is 4 or 16 packed bytes, `seed` distinguishes processes of one pid, `now_ms` is the
    wall clock. Not thread-safe.
    """

    def __init__(self, address: bytes, pid: int, seed: int, now_ms: Callable[[], int]) -> None:
        self._prefix = (address + _PROCESS.pack(pid & 0xFFFF, seed & 0xFFFFFFFF)).hex().upper()
        self._now_ms = now_ms
        self._count = count()
        self._month_start_ms = 0
        self._next_month_ms = 0

    def next(self) -> str:
        now_ms = self._now_ms()
        if now_ms >= self._next_month_ms:
            self._set_month(now_ms)
        since_ms = max(0, now_ms - self._month_start_ms) & 0xFFFFFFFF  # a clock set back gives 0
        moment = _MOMENT.pack(since_ms, next(self._count) & 0xFFFF)
        return self._prefix + moment.hex().upper()

    def _set_month(self, now_ms: int) -> None:
        today = datetime.fromtimestamp(now_ms / 1000)
        start = datetime(today.year, today.month, 1)
        after = datetime(today.year + today.month // 12, today.month % 12 + 1, 1)
        self._month_start_ms = int(start.timestamp() * 1000)
        self._next_month_ms = int(after.timestamp() * 1000)
