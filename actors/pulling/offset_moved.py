"""The message that a broker stores in OFFSET_MOVED_EVENT when a pull's offset is out of range.

Source: PullMessageProcessor.generateOffsetMovedEvent.
"""

from actors.sending.internal_append import InternalRecord
from protocol.bodies import MessageQueue, OffsetMovedEvent
from protocol.headers.pull import PullMessageHeader
from protocol.topic_names import OFFSET_MOVED_TOPIC
from storage.dispatching.dispatch import index_keys, tags_code


def offset_moved_record(
    header: PullMessageHeader, next_offset: int, *, broker_name: str, now_ms: int, host: bytes
) -> InternalRecord:
    """For OFFSET_MOVED_EVENT: who asked for what, and where the broker has sent it."""
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
