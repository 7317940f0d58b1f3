"""The question about a record at a place that a client named, whether its queue has it there.

Apart from the actor that answers it (pulling/record_checker.py): rooms below that one ask, too.
"""

from dataclasses import dataclass

from actors.engine.actor import Refusable
from actors.engine.actor_address import ActorAddress
from storage.reading.record_place import RecordPlace


@dataclass(slots=True)
class CheckRecord:
    """Told to RecordChecker: tell `reply_to` whether a record is what its queue has there."""

    place: RecordPlace
    token: Refusable
    """Comes back with the answer."""
    reply_to: ActorAddress
    reads: int = 0
    """How often something was waited for."""

    def refuse(self, remark: str) -> None:
        """Nobody can say."""
        self.token.refuse(remark)


@dataclass(slots=True)
class RecordChecked:
    """The answer."""

    token: Refusable
    is_own: bool
    """It is no part of a body."""

    def refuse(self, remark: str) -> None:
        """Who asked is gone."""
        self.token.refuse(remark)
