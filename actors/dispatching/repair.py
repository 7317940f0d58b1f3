"""Repairs that the scrubber asks of Reput, who owns the queues: units to write or to verify."""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.dispatching.verify_unit import UnitVerified
from actors.engine.actor_address import ActorAddress
from storage.errors import StoreError
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queues import ConsumeQueues
from storage.scrub.units import UnitRepair


@dataclass(slots=True)
class RepairUnits:
    """Write these units; if that went well, take note of how far queues are verified; then tell.

    Nothing is done to a queue that is not the one that was read: its topic was deleted meanwhile.
    """

    repairs: Sequence[tuple[ConsumeQueue, UnitRepair]]
    verified: Sequence[tuple[ConsumeQueue, int]]
    """(queue, queue offset): units from here on need not be checked when they are read."""
    scrubber: ActorAddress
    answers: Sequence[tuple[ActorAddress, UnitVerified]] = ()

    def refuse(self, remark: str) -> None:
        """Reput died with it: the round has to begin again."""
        self.scrubber.tell(RepairsRefused(remark))
        self.tell_answers()

    def tell_answers(self) -> None:
        """Tells those who wait for a unit."""
        for address, answer in self.answers:
            address.tell(answer)


@dataclass(slots=True)
class RepairsRefused:
    """Units that were to be repaired are not; told to the scrubber."""

    reason: str


def repair_units(queues: ConsumeQueues, message: RepairUnits) -> None:
    """Does what the message says; by the owner of the queues."""
    try:
        for queue, repair in message.repairs:
            if _is_there(queues, queue) and repair.queue_offset < queue.max_offset:
                queue.repair(
                    repair.queue_offset,
                    repair.physical_offset,
                    repair.record_bytes,
                    repair.tags_code,
                )
    except StoreError as error:
        message.scrubber.tell(RepairsRefused(str(error)))
    else:
        for queue, start in message.verified:
            if _is_there(queues, queue):
                queue.verified_from = min(queue.verified_from, start)
    message.tell_answers()


def _is_there(queues: ConsumeQueues, queue: ConsumeQueue) -> bool:
    return queues.get(queue.topic, queue.queue_id) is queue
