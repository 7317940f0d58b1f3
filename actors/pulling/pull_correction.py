"""Correction of pulls with an offset outside of their queue, and its report.

    offset below the min offset               to the min offset, as in 4.9.7
    offset above the max offset, live group    to the group's consumer offset; without one to the
                                               start of a new group in a young queue
    offset above the max offset, others        to the max offset, as in 4.9.7
    offset from before the queue was deleted   to the min offset of the new one (old_places.py)
    offset of a log that has lost its end      to the group's consumer offset (the same)

4.9.7 moves a pull above the max offset to the current max offset, which skips the messages stored
meanwhile.

Source: PullMessageProcessor.generateOffsetMovedEvent.
"""

from collections.abc import Callable, Mapping

from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import System
from actors.engine.snapshot_ref import SnapshotRef
from actors.network.request import Peer
from actors.pulling.pull_rules import BROADCASTING
from actors.sending.messages import InternalAppend
from actors.sending.records import InternalRecord
from actors.tables.consumer_views import ConsumerView
from actors.tables.offset_searches import Offsets
from actors.tables.old_places import FirstPulls, OldPlaces
from protocol.bodies import MessageQueue, OffsetMovedEvent
from protocol.headers.pull import PullMessageHeader
from protocol.topic_names import OFFSET_MOVED_TOPIC
from storage.dispatching.dispatch import index_keys, tags_code
from storage.queues.consume_queues import ConsumeQueues
from storage.reading.get_message import GetResult, GetStatus
from storage.tables.offsets import offset_key


class PullCorrection:
    """Correction of the pulls of a master. Used by PullMessage alone, on the event loop."""

    def __init__(
        self,
        queues: ConsumeQueues,
        *,
        broker_name: str,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        offsets: SnapshotRef[Offsets],
        old_places: OldPlaces,
        first_pulls: FirstPulls,
        starts_in_memory: Callable[[str, int], bool],
        put_message: ActorAddress,
    ) -> None:
        """Initialize the correction.

        `starts_in_memory` returns whether the first message of a queue is still in memory. A new
        group then starts there.
        """
        self._queues, self._broker_name = queues, broker_name
        self._consumers, self._offsets, self._old_places = consumers, offsets, old_places
        self._first_pulls, self._starts_in_memory = first_pulls, starts_in_memory
        self._put_message = put_message

    def old(self, header: PullMessageHeader, peer: Peer, now_ms: float) -> GetResult | None:
        """Return the result for a pull from before a deletion or the start; else None."""
        watches = not self._first_pulls.is_over(now_ms)
        if not watches and not self._old_places.marks:
            return None
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        view = self._consumers.value.get(group)
        member = None if view is None else view.members.get(peer.peer_id)
        if watches and (found := self._before_start(header, is_live=view is not None)):
            return found
        if not self._old_places.is_old_pull(
            topic,
            group,
            queue_id,
            header.queue_offset,
            member=member,
            broadcasts=view is not None and view.message_model == BROADCASTING,
            now_ms=now_ms,
        ):
            return None
        queue = self._queues.get_or_create(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, low, low, high)

    def _before_start(self, header: PullMessageHeader, *, is_live: bool) -> GetResult | None:
        """Return the result for a pull of a live group from before the start; else None.

        A client may pull up to 30 s before its first heartbeat. Such pulls are noted, too.
        """
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        committed = self._offsets.value.get(offset_key(topic, group), {}).get(queue_id)
        end = self._first_pulls.end_passed(topic, group, queue_id, header.queue_offset)
        if end is None or committed is None or committed >= header.queue_offset:
            self._first_pulls.note(topic, group, queue_id)
            return None
        if not is_live:
            return None
        queue = self._queues.get_or_create(topic, queue_id)
        low, high = queue.min_offset, queue.max_offset
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, max(low, min(committed, end)), low, high)

    def aim(self, header: PullMessageHeader, result: GetResult) -> None:
        """Correct the next offset of a pull above the max offset."""
        group, topic = header.consumer_group, header.topic
        is_behind = result.status is GetStatus.OFFSET_OVERFLOW_BADLY
        if not is_behind or group not in self._consumers.value:
            return
        committed = self._offsets.value.get(offset_key(topic, group), {}).get(header.queue_id)
        if committed is None and self._starts_in_memory(topic, header.queue_id):
            committed = 0
        if committed is not None:
            result.next_offset = min(max(committed, result.min_offset), result.max_offset)

    def tell(
        self, header: PullMessageHeader, result: GetResult, system: System, host: bytes
    ) -> None:
        """Warn the operator and store a message in OFFSET_MOVED_EVENT."""
        system.rarely.warn(
            "pull offset moved",
            of=header.topic,
            names=[header.consumer_group],
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            moved_to=result.next_offset,
            reason=result.status.value,
        )
        record = offset_moved_record(
            header,
            result.next_offset,
            broker_name=self._broker_name,
            now_ms=system.clock.now_ms(),
            host=host,
        )
        self._put_message.tell(InternalAppend([record]))


def offset_moved_record(
    header: PullMessageHeader, next_offset: int, *, broker_name: str, now_ms: int, host: bytes
) -> InternalRecord:
    """Return the record for OFFSET_MOVED_EVENT: the pull, and the offset it was moved to."""
    queue = MessageQueue(header.topic, broker_name, header.queue_id)
    event = OffsetMovedEvent(header.consumer_group, queue, next_offset, header.queue_offset)
    group = header.consumer_group.encode()
    properties = b"KEYS\x01%b\x02DELAY\x010\x02TAGS\x01%b" % (group, group)
    return InternalRecord(
        OFFSET_MOVED_TOPIC,
        0,
        event.encode(),
        properties,
        tags_code(group),
        index_keys(properties),
        born_timestamp=now_ms,
        born_host=host,
    )
