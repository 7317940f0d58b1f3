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
    """What it may raise; anything else is a finding."""
    seeds: Callable[[], Sequence[bytes]]
    covers: tuple[str, ...] = ()
    """The readers of `protocol/` that it tries, by their names behind `protocol.`."""
    bytes_max: int = 32 << 10
    """Of the inputs that are tried: what its callers give it, if that is less than a frame. What is
    read off the loop may take longer than 50 ms for a megabyte."""
    forget: Callable[[], None] = lambda: None
    """Drops what it keeps of former inputs, so that each takes as long as the first time."""
