"""A table's latest snapshot: one actor publishes it, anybody reads it without asking.

What is published is never changed afterwards; a newer snapshot takes its place.  Reading and
replacing an attribute are single steps of the interpreter, so no lock is needed in any thread.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class SnapshotRef(Generic[T]):
    """Holds the snapshot. Only the owner of the table sets `value`."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value: T = value
