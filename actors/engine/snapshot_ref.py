"""A table's latest snapshot: one actor publishes it, any thread reads it.

A published snapshot never changes; a newer one replaces it. Reading and replacing an attribute are
single steps of the interpreter, so no thread needs a lock.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class SnapshotRef(Generic[T]):
    """Reference to the latest snapshot. Only the owner of the table sets `value`."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value: T = value
