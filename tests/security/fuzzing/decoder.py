"""One target of the fuzz runs: a reader of bytes from outside.

This module imports nothing of the product: what is imported before a run begins is not watched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """One target of the fuzz run."""

    name: str
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    """Errors that the decoder may raise; any other is a finding."""
    seeds: Callable[[], Sequence[bytes]]
    covers: tuple[str, ...] = ()
    """The readers of `protocol/` that it tries, by their names behind `protocol.`."""
    bytes_max: int = 32 << 10
    """Length limit of its inputs: that of its callers, if it is less than a frame.

    Input that is read on a thread may take longer than 50 ms a megabyte.
    """
    forget: Callable[[], None] = lambda: None
    """Drops what it keeps of former inputs, so that each takes as long as the first time."""
