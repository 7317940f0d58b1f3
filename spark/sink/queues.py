"""Choice of a message's queue: equal in every attempt while the topic has as many queues."""

from zlib import crc32

from protocol.headers.sink import SinkLaneHeader
from protocol.tags import java_hash_code
from spark.sink.rows import Outgoing


def first_queue(lane: SinkLaneHeader) -> int:
    """Return the queue at which a lane begins its turns."""
    return crc32(f"{lane.query}:{lane.partition}".encode())


def queue_of(message: Outgoing, turn: int, queues: int) -> int:
    """Return the queue of a key, as SelectMessageQueueByHash does with a string; else of a turn."""
    if message.queue_key is None:
        return turn % queues
    code = java_hash_code(message.queue_key.decode("utf-8", "replace"))
    return abs(code) % queues
