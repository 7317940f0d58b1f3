"""Sends to brokers without TroupeMQ extensions, such as official ones: at least once.

Each message has the UNIQ_KEY and the TROUPE_SINK that a TroupeMQ broker would give it, equal in
every attempt, so that readers recognise repeats. Messages of one queue are sent as batches. Delayed
ones are sent singly, since no batch may have any.

The choice of a message's queue is equal in every attempt while the topic has as many queues.
"""

from time import time_ns
from zlib import crc32

from protocol.batch import BatchMessage, encode_batch
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import SinkLaneHeader
from protocol.headers.send import SendMessageHeader
from protocol.properties import DELAY
from protocol.sink import CHAIN_START, SinkMark
from protocol.tags import java_hash_code
from protocol.topic_names import AUTO_CREATE_TOPIC
from remoting.sync_connection import Refused
from spark.sink.brokers import Brokers, NotNowError, Target
from spark.sink.options import SinkOptions
from spark.sink.rows import Outgoing
from storage.errors import StoreError


def first_queue(lane: SinkLaneHeader) -> int:
    """Return the queue at which a lane begins its turns."""
    return crc32(f"{lane.query}:{lane.partition}".encode())


def queue_of(message: Outgoing, turn: int, queues: int) -> int:
    """Return the queue of a key, as SelectMessageQueueByHash does with a string; else of a turn."""
    if message.queue_key is None:
        return turn % queues
    code = java_hash_code(message.queue_key.decode("utf-8", "replace"))
    return abs(code) % queues


PRODUCER_GROUP = "TROUPE_SINK"
REQUEST_BYTES = 512 << 10
"""Bodies of one request; one message may be longer."""
_DELAYED = (f"{DELAY}\x01".encode(), f"\x02{DELAY}\x01".encode())


class PlainLane:
    """One topic of one task."""

    def __init__(
        self,
        brokers: Brokers,
        target: Target,
        header: SinkLaneHeader,
        batch: int,
        options: SinkOptions,
    ) -> None:
        self._brokers, self._target = brokers, target
        self._topic = header.topic
        self._mark = SinkMark(header.query, header.partition, batch, 0, CHAIN_START)
        self._messages_max = options.messages_per_request
        self._first_queue = first_queue(header)
        self._waiting: dict[int, list[BatchMessage]] = {}
        self._waiting_bytes = 0
        self._waiting_count = 0
        self.sent = self.found = 0

    def add(self, message: Outgoing) -> None:
        """Add the next row. Raises StoreError."""
        mark = self._mark._replace(chain=message.chained(self._mark.chain))
        properties = mark.properties(message.properties, self._topic)
        queue = queue_of(message, self._first_queue + mark.sequence, self._target.queues)
        one = BatchMessage(message.body, properties, message.flag)
        self._mark = mark._replace(sequence=mark.sequence + 1)
        if message.properties.startswith(_DELAYED[0]) or _DELAYED[1] in message.properties:
            self.end()  # what comes before it in its queue has to be sent before it
            self._send(queue, [one])
            return
        self._waiting.setdefault(queue, []).append(one)
        self._waiting_bytes += len(message.body)
        self._waiting_count += 1
        if self._waiting_count >= self._messages_max or self._waiting_bytes >= REQUEST_BYTES:
            self.end()

    def end(self) -> None:
        """Send the waiting messages. Raises StoreError."""
        for queue, messages in self._waiting.items():
            self._send(queue, messages)
        self._waiting, self._waiting_bytes, self._waiting_count = {}, 0, 0

    def _send(self, queue: int, messages: list[BatchMessage]) -> None:
        is_batch = len(messages) > 1
        first = messages[0]
        header = SendMessageHeader(
            PRODUCER_GROUP,
            self._topic,
            AUTO_CREATE_TOPIC,
            self._target.queues,
            queue,
            0,
            time_ns() // 1_000_000,
            0 if is_batch else first.flag,
            "" if is_batch else first.properties.decode(),
            0,
            batch=is_batch,
        )
        code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
        body = encode_batch(messages) if is_batch else first.body

        def attempt() -> None:
            command = RemotingCommand(code, header.encode_v2(), body=body)
            try:
                self._brokers.ask(self._target.line, command)
            except Refused as error:
                if error.code == ResponseCode.SYSTEM_ERROR and not error.is_denial:
                    raise NotNowError(str(error)) from None
                raise StoreError(str(error)) from None

        self._brokers.patiently(attempt)
        self.sent += len(messages)
