"""Messages of the transaction actors."""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.inbox import Refusable
from actors.network.request import Request


@dataclass(slots=True)
class ColdReadOfHalf:
    """Report that the awaited part of the record at `offset` is available: read again."""

    offset: int
    asker: Refusable
    reads: int
    """Last of the awaited parts: 1 head, 2 rest of a long record, 3 dispatch, 4 queue unit."""

    def refuse(self, remark: str) -> None:
        """Refuse the asker: the disk cannot be read, or the waiting actor has stopped."""
        self.asker.refuse(remark)


@dataclass(slots=True)
class ListOpen:
    """Request to answer with the half messages at `offsets`; `count` is the total of open ones."""

    request: Request
    count: int
    offsets: Sequence[int]

    def refuse(self, remark: str) -> None:
        self.request.refuse(remark)
