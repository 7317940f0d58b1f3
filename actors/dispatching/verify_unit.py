"""The finding about one unit of a consume queue that does not agree with the log.

PullMessage finds such a unit when it reads it before the scrubber did; it has the pull held and
asks. Whoever answers has by then repaired the unit or noted the record as damaged.
"""

from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress


@dataclass(slots=True)
class VerifyUnit:
    """Find out which record this unit stands for, now; then tell `reply_to` `UnitVerified`.

    Told to the scrubber. The answer must come behind the repair: units belong to Reput, so
    whoever tells Reput to repair lets the answer follow it.
    """

    topic: str
    queue_id: int
    queue_offset: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Nobody looks: whoever waits is answered when its time is over."""


@dataclass(slots=True)
class UnitVerified:
    """The unit is right now, or its record is known to be damaged, or nothing more can be known.

    Told to PullHold.
    """

    topic: str
    queue_id: int
    queue_offset: int
