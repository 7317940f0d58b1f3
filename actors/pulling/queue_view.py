"""Queries of a queue: its units and a group's filter for operators, and its offsets.

QueueView answers with units.

Owns: nothing; reads the queues below the watermark, and snapshots of the tables.
Receives: Request from connections.

An answer has at most UNITS_MAX units. 4.9.7 continues to the end of the queue's file, up to
300,000, which would block the event loop.

Source: AdminBrokerProcessor.queryConsumeQueue.

QueueOffsets answers queries of a queue: min and max offset, the offset at a time, the earliest
store time.

Owns: nothing; reads the store below the watermark.
Receives: Request from connections; AskAgain from ColdRead.
Sends: ReadCold to ColdRead.

Source: AdminBrokerProcessor (searchOffsetByTimestamp, getMaxOffset, getMinOffset,
getEarliestMsgStoretime).
"""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.messages import Request, RequestMessage
from actors.network.request import Responder, serves
from actors.pulling.messages import ReadCold
from actors.pulling.property_filters import TAG_EXPRESSIONS, registered_filter
from actors.tables.consumer_views import ConsumerView, Subscription
from actors.tables.old_places import FirstPulls
from actors.tables.topics import NO_RESPONSE_CODE
from protocol.bodies_admin import ConsumeQueueData, ConsumeQueueView
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.fastjson import dumps
from protocol.frame import RemotingCommand
from protocol.headers.admin import QueryConsumeQueueHeader
from protocol.headers.client import QueueHeader, SearchOffsetHeader
from storage.access.acl_file import SUB
from storage.message_store import MessageStore
from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.consume_queue_ext import ExtUnit, is_address
from storage.queues.message_filter import MessageFilter
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes
from storage.tables.consumer_filters import ConsumerFilters, fields_of

UNITS_MAX = 2_000
_EXT_HEAD_BYTES = 20
_BYTES_PER_LINE = 8


class QueueView(Responder):
    """Actor on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        *,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        filters: SnapshotRef[ConsumerFilters],
    ) -> None:
        super().__init__()
        self._store = store
        self._consumers, self._filters = consumers, filters

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    def on_query(self, request: Request) -> RemotingCommand:
        """Answer with units of a queue, and with subscription and filter of a named group."""
        header = QueryConsumeQueueHeader.decode(request.command.fields)
        place = f"{header.queue_id}@{header.topic}"
        queue = self._store.consume_queues.get(header.topic or "", header.queue_id)
        if queue is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, f"{place} is not exist!")
        view = ConsumeQueueView(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
        wanted = None
        if header.consumer_group is not None:
            wanted = self._show_group(view, header.topic or "", header.consumer_group, request)
        if not queue.min_offset <= header.index < queue.max_offset:
            return request.command.answer(remark=f"Index {header.index} of {place} is not exist!")
        units = queue.units(header.index, max(0, min(header.count, UNITS_MAX)))
        view.queue_data = [_shown(unit, queue, wanted) for unit in UNIT.iter_unpack(units)]
        return request.command.answer(remark=NO_RESPONSE_CODE, body=view.encode())

    def _show_group(
        self, view: ConsumeQueueView, topic: str, group: str, request: Request
    ) -> MessageFilter | None:
        """Show a group's subscription and filter; return its filter, None for every message.

        Without permission for the group, the answer is the same as for a missing one.
        """
        consumer = self._consumers.value.get(group)
        subscription = None if consumer is None else consumer.subscriptions.get(topic)
        grant = request.grant
        may_look = grant is None or grant.is_admin or grant.may_use_group(group, SUB)
        if subscription is None or not may_look:
            view.filter_data = f"{group}@{topic} is not online!"
            return None
        view.subscription_data = subscription.data
        found = self._filters.value.get(topic, group)
        shown = None if found is None else fields_of(found)
        view.filter_data = dumps(shown, pretty=True).decode()
        return self._filter(subscription, topic, group)

    def _filter(self, subscription: Subscription, topic: str, group: str) -> MessageFilter | None:
        if subscription.data.expression_type in TAG_EXPRESSIONS:
            return None if subscription.codes is None else MessageFilter(subscription.codes)
        found = self._filters.value.get(topic, group)
        return None if found is None else registered_filter(found, self._filters.value)


def _shown(
    unit: tuple[int, int, int], queue: ConsumeQueue, wanted: MessageFilter | None
) -> ConsumeQueueData:
    data = ConsumeQueueData(*unit)
    code = unit[2]
    if not is_address(code):
        return data
    known = queue.ext(code)
    if known is None:
        data.msg = f"Cq extend not exist!addr: {code}"
        return data
    assert isinstance(known, ExtUnit)
    bits = known.bitmap
    data.extend_data_json = dumps(
        {
            "filterBitMap": None if bits is None else b64encode(bits).decode(),
            "msgStoreTime": known.store_timestamp,
            "size": _EXT_HEAD_BYTES + len(bits or b""),
            "tagsCode": known.tags_code,
        }
    ).decode()
    data.bit_map = None if bits is None else bits_text(bits)
    data.eval = wanted is not None and wanted.wants_unit(code, queue)
    return data


def bits_text(bits: bytes) -> str:
    """Return the bits as 4.9.7 prints them: last byte first, a newline after every eighth byte."""
    parts = []
    for position in range(len(bits) - 1, -1, -1):
        parts.append(f"{bits[position]:08b}")
        if position % _BYTES_PER_LINE == 0:
            parts.append("\n")
    return "".join(parts)


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

    def __init__(
        self,
        store: MessageStore,
        probe: PageProbe,
        cold_read: ActorAddress,
        first_pulls: FirstPulls,
    ) -> None:
        """Initialize the actor; `first_pulls` is told where clients ask before they pull."""
        super().__init__()
        self._store = store
        self._cold_read, self._first_pulls = cold_read, first_pulls
        self._times = QueueTimes(store.commit_log, store.damage, probe)
        self._patient_times = QueueTimes(store.commit_log, store.damage)

    @serves(RequestCode.GET_MAX_OFFSET)
    def on_max_offset(self, request: Request) -> RemotingCommand:
        """Answer with the offset of the next message; 0 for a missing queue."""
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        self._note(request, queue)
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
        offset = times.offset_at(queue, header.timestamp)
        self._note(request, queue)
        return _offset(request, offset)

    def _note(self, request: Request, queue: ConsumeQueue | None) -> None:
        """Note that a client has asked for an offset of a queue; any name may be asked for."""
        if queue is not None:
            self._first_pulls.note(queue.topic, request.peer.peer_id, queue.queue_id)

    def _earliest(self, request: Request, times: QueueTimes) -> RemotingCommand:
        header = QueueHeader.decode(request.command.fields)
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        return request.command.answer(fields={"timestamp": str(times.earliest(queue))})


def _offset(request: Request, offset: int) -> RemotingCommand:
    return request.command.answer(fields={"offset": str(offset)})
