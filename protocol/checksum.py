"""Checksums: CRC-32 of message bodies, CRC-32C of manifests.

The stored CRC is masked to 31 bits because RocketMQ keeps it in a signed int and never wants a
negative one (common/UtilAll.java, crc32). CRC-32C (Castagnoli) is for files of our own.
"""

from collections.abc import Callable
from functools import cache
from zlib import crc32

_31_BITS = 0x7FFFFFFF


def body_crc(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32 of a stored body, compressed or not, without its highest bit."""
    return crc32(data) & _31_BITS


def crc32c(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """Return the unsigned CRC-32C of `data`, continuing from `previous`."""
    return _castagnoli()(bytes(data), previous)


@cache
def _castagnoli() -> Callable[[bytes, int], int]:
    # Imported here, since readers of records, such as Spark workers, may lack the package.
    from crcmod.predefined import mkPredefinedCrcFun  # type: ignore[import-untyped]

    function: Callable[[bytes, int], int] = mkPredefinedCrcFun("crc-32c")
    return function
