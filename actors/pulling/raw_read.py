"""Bulk reads of queues: units, and the pieces of the commit log with their records.

Owns: nothing; reads the store below the watermark.
Receives: Request from connections; ReadAgain from ColdRead.
Sends: header, units and views of the log to the connection; ReadCold to ColdRead.

An account without all permissions gets only the bytes of the queue's own records.

The log is not copied and no record is parsed: the reader compares each with its unit. An answer of
1 MiB takes some tenths of a millisecond of the event loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.network.messages import Request, RequestMessage, StreamPeer
from actors.network.request import Responder, serves
from actors.pulling.messages import ReadCold
from actors.pulling.pull_rules import PullRules
from protocol.bodies_tables import TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import encode_head
from protocol.headers.own import RawResponseHeader, ReadRecordsHeader, ReadUnitsHeader
from protocol.raw_records import ANSWER_BYTES_MAX, PIECE, RECORD_BYTES_MAX
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.reading.page_probe import PageProbe
from storage.reading.raw_get import GAP_BYTES, RawPart, raw_records, raw_units


@dataclass(slots=True)
class ReadAgain(RequestMessage):
    """Request to answer after a cold read."""

    request: Request
    header: ReadRecordsHeader | ReadUnitsHeader
    tries: int


TRIES_MAX = 3
"""Cold reads of a request: units, then records; later cold pages are touched."""


class RawRead(Responder):
    """Actor on the event loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        probe: PageProbe,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        cold_read: ActorAddress,
    ) -> None:
        super().__init__()
        self._store = store
        self._probe = probe
        self._topics = topics
        self._cold_read = cold_read
        self._rules = PullRules(config)

    @serves(RequestCode.READ_RECORDS)
    def on_records(self, request: Request) -> None:
        header = ReadRecordsHeader.decode(request.command.fields)
        if header.max_bytes < 1:
            raise _wrong(f"maxBytes is {header.max_bytes}: it must be 1 or more")
        self._read(request, header, TRIES_MAX)

    @serves(RequestCode.READ_UNITS)
    def on_units(self, request: Request) -> None:
        """Answer with units only: offsets and sizes of records."""
        self._read(request, ReadUnitsHeader.decode(request.command.fields), TRIES_MAX)

    @handles(ReadAgain, reads_only=True)
    def on_again(self, message: ReadAgain) -> None:
        try:
            self._read(message.request, message.header, message.tries)
        except RemoteError as error:
            message.request.answer(error.code, remark=error.remark)

    def _read(
        self, request: Request, header: ReadRecordsHeader | ReadUnitsHeader, tries: int
    ) -> None:
        rules, first, end = self._rules, header.queue_offset, header.end_offset
        rules.check_readable()
        rules.check_queue(header, self._topics.value.get(header.topic), request.peer.remote)
        if end <= first:
            raise _wrong(f"endOffset is {end}: it must be above queueOffset, {first}")
        queue = self._store.consume_queues.get(header.topic, header.queue_id)
        if queue is None or not queue.min_offset <= first < queue.max_offset:
            self._answer_moved(request, header, queue)
            return
        grant = request.grant
        gap_bytes = GAP_BYTES if grant is None or grant.passes_all else 0
        part = self._part(queue, header, min(end, queue.max_offset), tries, gap_bytes)
        if part.cold:
            again = ReadAgain(request, header, tries - 1)
            self._cold_read.tell(ReadCold(part.cold, again, self.address))
        elif part.record_bytes > max(RECORD_BYTES_MAX, ANSWER_BYTES_MAX):
            raise _wrong(f"message {first} has {part.record_bytes} bytes: no frame can hold it")
        else:
            self._send(request, queue, part)

    def _part(
        self,
        queue: ConsumeQueue,
        header: ReadRecordsHeader | ReadUnitsHeader,
        end: int,
        tries: int,
        gap_bytes: int,
    ) -> RawPart:
        probe = self._probe if tries else None
        if isinstance(header, ReadUnitsHeader):
            return raw_units(queue, header.queue_offset, end, probe)
        return raw_records(
            queue,
            self._store.commit_log,
            header.queue_offset,
            end,
            min(header.max_bytes, ANSWER_BYTES_MAX),
            self._store.config.commit_log_file_bytes,
            probe,
            gap_bytes=gap_bytes,
        )

    def _answer_moved(
        self,
        request: Request,
        header: ReadRecordsHeader | ReadUnitsHeader,
        queue: ConsumeQueue | None,
    ) -> None:
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        following = min(max(header.queue_offset, low), high)
        fields = self._header(following, low, high, RawPart(following)).encode()
        remark = (
            f"offset {header.queue_offset} is outside of queue {header.queue_id} of "
            f"{header.topic}: min offset {low}, max offset {high}"
        )
        request.answer(ResponseCode.PULL_OFFSET_MOVED, fields, remark=remark)

    def _send(self, request: Request, queue: ConsumeQueue, part: RawPart) -> None:
        """Send header, units and views without copying the log."""
        command = request.command
        if command.is_oneway:
            return
        header = self._header(part.next_offset, queue.min_offset, queue.max_offset, part)
        answer = command.answer(fields=header.encode())
        body_bytes = len(part.units) + len(part.table) + part.record_bytes
        peer: StreamPeer = request.peer  # type: ignore[assignment]
        head = b"".join((encode_head(answer, body_bytes), part.units, part.table, part.joined))
        peer.write((head, *part.views))

    def _header(self, following: int, low: int, high: int, part: RawPart) -> RawResponseHeader:
        log = self._store.commit_log
        return RawResponseHeader(
            next_offset=following,
            min_offset=low,
            max_offset=high,
            log_min_offset=log.min_offset(),
            log_end_offset=log.end_offset,
            unit_count=part.unit_count,
            piece_count=len(part.table) // PIECE.size,
        )


def _wrong(remark: str) -> RemoteError:
    return RemoteError(ResponseCode.SYSTEM_ERROR, remark)
