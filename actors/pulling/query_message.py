"""Queries of messages by key, and by their physical offset (as in a msgId).

Owns: nothing; reads index and commit log below the watermark.
Receives: Request from connections; IndexWritten from Reput; ViewChecked from RecordChecker.
Sends: WriteOutIndex to Reput, to find keys that are only in memory; CheckRecord to RecordChecker,
because bytes at an offset may be part of a body.

While the index is rebuilt, answers come from its current part. Damaged and deleted records are left
out, and so are records that only share the hash of topic and key; 4.9.7 sends the latter. A hit is
encoded in the server's own serialisation, whatever that of the request, as in RocketMQ.

Source: broker/processor/QueryMessageProcessor.java, DefaultMessageStore.java (queryMessage).

RecordChecker verifies that the record at an offset named by a client is one of its consume queue.

Owns: nothing; reads queue units below the watermark.
Receives: CheckRecord from QueryMessage, SendBack and ConsumerCalls, and again from Reput and
ColdRead.
Sends: AwaitDispatch to Reput, because a new message has no unit yet; ReadCold to ColdRead;
the answer that CheckRecord carries to the requester.

RecordChecker is used only under access control. A body that looks like a record could otherwise
reveal the bytes behind it in the log. Without access control every client may read everything.
"""

from dataclasses import dataclass
from typing import ClassVar

from actors.dispatching.messages import (
    AwaitDispatch,
    CheckRecord,
    IndexWritten,
    RecordChecked,
    WriteOutIndex,
)
from actors.engine.actor import Actor, Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.network.messages import Request
from actors.network.request import Responder, serves
from actors.pulling.messages import ReadCold
from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.errors import RemoteError
from protocol.frame import FRAME_BYTES_MAX, RemotingCommand
from protocol.headers.client import (
    UNIQUE_KEY_QUERY,
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from protocol.message import decode_record
from protocol.properties import real_topic
from storage.access.acl_file import SUB
from storage.dispatching.dispatch import index_keys
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.record_place import UnitsOfRecords, place_of

log = get_logger(__name__)

BODY_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
"""Maximum bytes of an answer, because no client accepts a longer frame; the newest messages fit."""
CANDIDATES_MAX = 10_000
"""Maximum records read for one query: any number of records can have the same hash."""
NOT_FOUND = "can not find message, maybe time range not correct"
_NOTHING_AT = "can not find message by the offset, %d"


@dataclass(slots=True)
class ViewChecked(RecordChecked):
    """Answer about a record that is sent if its queue confirms it, and is read again then.

    So thousands of queries at a time do not keep their records in memory.
    """

    request: Request
    offset: int

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


class QueryMessage(Responder):
    """Actor on a thread, because it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self, store: MessageStore, reput: ActorAddress, record_checker: ActorAddress
    ) -> None:
        super().__init__()
        self._store = store
        self._reput, self._record_checker = reput, record_checker

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def on_view(self, request: Request) -> RemotingCommand | None:
        offset = ViewMessageHeader.decode(request.command.fields).offset
        data = self._read(offset)
        grant = request.grant
        if grant is None or grant.passes_all:
            return _hit(request, None, data)
        record = decode_record(data, check_crc=False)
        grant.require_topic(request.command.code, real_topic(record.topic, record.properties), SUB)
        asked = CheckRecord(place_of(record), ViewChecked(request, offset), self.address)
        self._record_checker.tell(asked)
        return None

    def _read(self, offset: int) -> bytes:
        data = self._store.commit_log.read_whole(offset, self._store.damage)
        if data is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % offset)
        return data

    @handles(ViewChecked, reads_only=True)
    def on_view_checked(self, viewed: ViewChecked) -> None:
        """Answer with the record if its queue confirms it."""
        try:
            if not viewed.is_own:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % viewed.offset)
            viewed.request.respond(_hit(viewed.request, None, self._read(viewed.offset)))
        except RemoteError as error:
            viewed.request.answer(error.code, remark=error.remark)

    @serves(RequestCode.QUERY_MESSAGE)
    def on_query(self, request: Request) -> RemotingCommand | None:
        """Request that Reput writes out its index entries, then find records by key."""
        QueryMessageHeader.decode(request.command.fields)
        self._reput.tell(WriteOutIndex(request, self.address))
        return None

    @handles(IndexWritten, reads_only=True)
    def on_index_written(self, message: IndexWritten) -> None:
        """Answer the query: everything dispatched before it can be found."""
        message.request.respond(self._found(message.request))

    def _found(self, request: Request) -> RemotingCommand:
        fields = request.command.fields or {}
        header = QueryMessageHeader.decode(fields)
        count = header.max_num
        if fields.get(UNIQUE_KEY_QUERY) == "true":
            count = self._store.config.default_query_max_num
        index, wanted = self._store.index, _Wanted(self._store, request, header)
        answer = QueryMessageResponseHeader(0, 0)
        times = header.begin_timestamp, header.end_timestamp
        try:
            if index is not None:
                found = index.query(header.topic, header.key, count, *times, wanted.accepts)
                if found.physical_offsets:
                    last = found.last_timestamp, found.last_physical_offset
                    answer = QueryMessageResponseHeader(*last)
        except OSError as error:
            log.error("index not read", reason=str(error))
        if wanted.is_cut:
            self.system.rarely.warn("key query cut short", topic=header.topic, read=CANDIDATES_MAX)
        if not wanted.records:
            remark = NOT_FOUND
            return request.command.answer(
                ResponseCode.QUERY_NOT_FOUND, answer.encode(), remark=remark
            )
        body = b"".join(record for _, record in sorted(wanted.records.items()))
        return _hit(request, answer.encode(), body)


class _Wanted:
    """Records that match a key query, among those that the index names.

    The index knows only the hash of topic and key, and the time in seconds.
    """

    def __init__(self, store: MessageStore, request: Request, header: QueryMessageHeader) -> None:
        self._store, self._grant, self._header = store, request.grant, header
        self._key = header.key.encode()
        self._seen: set[int] = set()
        self._body_bytes = 0
        self.records: dict[int, bytes] = {}
        """Record bytes, by physical offset."""
        self.is_cut = False
        """Whether a limit has been reached, so that there may be more."""

    def accepts(self, offset: int) -> bool | None:
        """Return whether the record at this offset matches, and keep it; each counts once.

        None ends the search: millions of records may have the key.
        """
        if self.is_cut:
            return None
        if offset in self._seen:
            return False
        self._seen.add(offset)
        self.is_cut = len(self._seen) >= CANDIDATES_MAX
        data = self._store.commit_log.read_whole(offset, self._store.damage)
        if data is None or not self._is_wanted(data):
            return False
        self._body_bytes += len(data)
        if self._body_bytes > BODY_BYTES_MAX:
            self.is_cut = True
            return False
        self.records[offset] = data
        return True

    def _is_wanted(self, data: bytes) -> bool:
        record, header, grant = decode_record(data, check_crc=False), self._header, self._grant
        return (
            record.topic == header.topic
            and header.begin_timestamp <= record.store_timestamp <= header.end_timestamp
            and self._key in index_keys(record.properties)
            and (not grant or grant.may_use_topic(real_topic(record.topic, record.properties), SUB))
        )


def _hit(request: Request, fields: dict[str, str] | None, body: bytes) -> RemotingCommand:
    answer = request.command.answer(fields=fields, body=body)
    answer.serialize_type = SerializeType.JSON
    return answer


_DISPATCHED, _READ = 1, 2


class RecordChecker(Actor):
    """Actor on the event loop."""

    def __init__(
        self, store: MessageStore, probe: PageProbe, *, reput: ActorAddress, cold_read: ActorAddress
    ) -> None:
        super().__init__()
        self._units = UnitsOfRecords(store.consume_queues, store.dispatcher, probe)
        self._reput, self._cold_read = reput, cold_read

    @handles(CheckRecord, reads_only=True)
    def on_check(self, message: CheckRecord) -> None:
        """Check the record, after at most one wait for its dispatch and one for the disk."""
        units, place = self._units, message.place
        if message.reads < _DISPATCHED and not units.is_dispatched(place):
            message.reads = _DISPATCHED
            self._reput.tell(AwaitDispatch(place.end_offset, message, self.address))
        elif message.reads < _READ and (parts := units.cold(place)):
            message.reads = _READ
            self._cold_read.tell(ReadCold(parts, message, self.address))
        else:
            message.answer.is_own = units.agree(place)
            message.reply_to.tell(message.answer)
