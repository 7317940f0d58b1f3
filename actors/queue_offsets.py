"""Answers questions about a queue: its ends, the offset at a time, its first store time.

Owns: nothing; reads the store below the watermark.   Told by: connections (`Request`).

Source: AdminBrokerProcessor (searchOffsetByTimestamp, getMaxOffset, getMinOffset,
getEarliestMsgStoretime).
"""

from actors.request import Request, Responder, serves
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.offset import QueueHeader, SearchOffsetHeader
from storage.message_store import MessageStore


class QueueOffsets(Responder):
    """Lives on the loop."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__()
        self._store = store

    @serves(RequestCode.GET_MAX_OFFSET)
    def on_max_offset(self, request: Request) -> RemotingCommand:
        """The offset that the next message gets; 0 for a queue that is not there."""
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return _offset(request, 0 if queue is None else queue.max_offset)

    @serves(RequestCode.GET_MIN_OFFSET)
    def on_min_offset(self, request: Request) -> RemotingCommand:
        """The first offset that is still there; 0 for a queue that is not."""
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return _offset(request, 0 if queue is None else queue.min_offset)

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def on_search(self, request: Request) -> RemotingCommand:
        """The offset of the message stored nearest to a time."""
        header = SearchOffsetHeader.decode(request.command.fields)
        store = self._store
        return _offset(
            request, store.offset_by_time(header.topic, header.queue_id, header.timestamp)
        )

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def on_earliest(self, request: Request) -> RemotingCommand:
        """When the first message that is still there was stored, ms; -1 for none."""
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        unit = None if queue is None else queue.unit(queue.min_offset)
        stored = -1 if unit is None else self._store.store_time(unit[0], unit[1])
        return request.command.answer(fields={"timestamp": str(stored)})


def _offset(request: Request, offset: int) -> RemotingCommand:
    return request.command.answer(fields={"offset": str(offset)})
