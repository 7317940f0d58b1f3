"""Queries of a queue: min and max offset, the offset at a time, the earliest store time.

Owns: nothing; reads the store below the watermark.
Receives: Request from connections; AskAgain from ColdRead.
Sends: ReadCold to ColdRead.

Source: AdminBrokerProcessor (searchOffsetByTimestamp, getMaxOffset, getMinOffset,
getEarliestMsgStoretime).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.network.request import Request, RequestMessage, Responder, serves
from actors.pulling.messages import ReadCold
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.offset import QueueHeader, SearchOffsetHeader
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes

STEPS_MAX = 100
Question: TypeAlias = Callable[[Request, QueueTimes], RemotingCommand]


@dataclass(slots=True)
class AskAgain(RequestMessage):
    """Request to repeat a query after a cold read."""

    request: Request
    question: Question
    step: int


class QueueOffsets(Responder):
    """Actor on the event loop."""

    def __init__(self, store: MessageStore, probe: PageProbe, cold_read: ActorAddress) -> None:
        super().__init__()
        self._store = store
        self._cold_read = cold_read
        self._times = QueueTimes(store.commit_log, store.damage, probe)
        self._patient_times = QueueTimes(store.commit_log, store.damage)

    @serves(RequestCode.GET_MAX_OFFSET)
    def on_max_offset(self, request: Request) -> RemotingCommand:
        """Answer with the offset of the next message; 0 for a missing queue."""
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return _offset(request, 0 if queue is None else queue.max_offset)

    @serves(RequestCode.GET_MIN_OFFSET)
    def on_min_offset(self, request: Request) -> RemotingCommand:
        """Answer with the min offset; 0 for a missing queue."""
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return _offset(request, 0 if queue is None else queue.min_offset)

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def on_search(self, request: Request) -> RemotingCommand | None:
        """Answer with the first message stored at a time or later; the max offset without one."""
        return self._ask(request, self._search, 0)

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def on_earliest(self, request: Request) -> RemotingCommand | None:
        """Answer with the store time of the oldest message, ms; -1 for an empty queue."""
        return self._ask(request, self._earliest, 0)

    @handles(AskAgain, reads_only=True)
    def on_ask_again(self, message: AskAgain) -> None:
        response = self._ask(message.request, message.question, message.step)
        if response is not None:
            message.request.respond(response)

    def _ask(self, request: Request, question: Question, step: int) -> RemotingCommand | None:
        """Return the answer; None if a cold read is needed, after which the query is repeated.

        A search needs some forty steps. After STEPS_MAX cold reads, it waits for the disk itself.
        """
        try:
            return question(request, self._times if step < STEPS_MAX else self._patient_times)
        except ColdPages as cold:
            again = AskAgain(request, question, step + 1)
            self._cold_read.tell(ReadCold(cold.parts, again, self.address))
            return None

    def _search(self, request: Request, times: QueueTimes) -> RemotingCommand:
        header = SearchOffsetHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return _offset(request, times.offset_at(queue, header.timestamp))

    def _earliest(self, request: Request, times: QueueTimes) -> RemotingCommand:
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return request.command.answer(fields={"timestamp": str(times.earliest(queue))})


def _offset(request: Request, offset: int) -> RemotingCommand:
    return request.command.answer(fields={"offset": str(offset)})
