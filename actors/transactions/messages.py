"""Messages of the transaction actors."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.messages import Message
from actors.network.messages import Request, RequestMessage
from actors.sending.messages import AppendResult
from actors.transactions.half_state import HalfState
from protocol.codes import TRANSACTION_COMMIT, ResponseCode
from protocol.headers.transaction import EndTransactionHeader

RESUME_EXCEPTION = "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC."


@dataclass(frozen=True, slots=True)
class OpenHalves:
    """Figures of OpenTransactionView."""

    count: int = 0
    offsets: Sequence[int] = ()
    """Physical offsets of the oldest open transactions."""


@dataclass(slots=True)
class End:
    """A commit or rollback in progress."""

    request: Request
    header: EndTransactionHeader

    @property
    def is_commit(self) -> bool:
        return self.header.commit_or_rollback == TRANSACTION_COMMIT

    def answer(self, code: int, remark: str | None) -> None:
        self.request.answer(code, remark=remark)

    def refuse(self, remark: str) -> None:
        """Reject the end-transaction request."""
        self.request.refuse(remark)


@dataclass(slots=True)
class Resume:
    """Request of an operator to check a half message again."""

    request: Request

    def refuse(self, _remark: str) -> None:
        self.request.answer(ResponseCode.SYSTEM_ERROR, remark=RESUME_EXCEPTION)


@dataclass(slots=True)
class ColdReadOfHalf(Message):
    """Report that the awaited part of the record at `offset` is available: read again."""

    offset: int
    asker: End | Resume
    reads: int
    """Last awaited part: 1 head, 2 record of unknown topic, 3 dispatch, 4 queue unit, 5 record."""

    def on_undelivered(self, remark: str) -> None:
        """Refuse the asker: the disk cannot be read, or the waiting actor has stopped."""
        self.asker.refuse(remark)


@dataclass(slots=True, eq=False)
class EndStored(AppendResult):
    """Result of the append that carries out a commit or rollback."""

    end: End
    standing: HalfState
    topic: str
    stored_ms: int
    """Store time of the half message."""
    before_last: int
    """State of the half message if the last of the records is missing."""

    def on_undelivered(self, remark: str) -> None:
        """Reject the request: the requesting actor has stopped; the records may be stored."""
        self.end.refuse(remark)


@dataclass(slots=True)
class EndsStored(Message):
    """Results of several commits and rollbacks, of one InternalAppendGroup, in order."""

    ends: deque[EndStored]
    """Results not handled yet: the handler removes each, so that a failure refuses the rest."""

    def on_undelivered(self, remark: str) -> None:
        while self.ends:
            self.ends.popleft().on_undelivered(remark)


@dataclass(slots=True, eq=False)
class ResumeStored(AppendResult):
    """Result of the append of a resumed half message."""

    resume: Resume

    def on_undelivered(self, remark: str) -> None:
        self.resume.refuse(remark)


@dataclass(slots=True)
class ListOpen(RequestMessage):
    """Request to answer with the half messages at `offsets`; `count` is the total of open ones."""

    request: Request
    count: int
    offsets: Sequence[int]
