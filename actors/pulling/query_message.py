"""Answers questions for messages by key, and by their place in the log (the offset in a msgId).

Owns: nothing; reads index and log below the watermark.
Told by: connections (`Request`), Reput (`IndexWritten`), RecordChecker (`RecordChecked`).
Tells: Reput (`WriteOutIndex`: keys that are in its memory alone would not be found), RecordChecker
(`CheckRecord`: what lies at an offset may be a part of a body).

While the index is made anew behind the log, answers come from what there is of it so far. Records
that are damaged or gone are left out, and so are those that have only the hash of topic and key;
4.9.7 sends them. A hit is encoded in the server's own serialisation, whatever
the request's was, as in RocketMQ.

Source: broker/processor/QueryMessageProcessor.java, DefaultMessageStore.java (queryMessage).
"""

from dataclasses import dataclass
from typing import ClassVar

from structlog import get_logger

from actors.access.real_topic import real_topic
from actors.dispatching.messages import CheckRecord, IndexWritten, RecordChecked, WriteOutIndex
from actors.engine.actor import Where, handles
from actors.engine.actor_address import ActorAddress
from actors.network.request import Request, Responder, serves
from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.frame import FRAME_BYTES_MAX
from protocol.headers.pull import (
    UNIQUE_KEY_QUERY,
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
)
from protocol.message import decode_record
from storage.access.acl_file import SUB
from storage.dispatching.dispatch import index_keys
from storage.message_store import MessageStore
from storage.reading.record_place import place_of

log = get_logger(__name__)

BODY_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
"""Of one answer: no client takes a longer frame. The newest messages are in it."""
CANDIDATES_MAX = 10_000
"""Records read for one question: any number of records can have the same hash."""
NOT_FOUND = "can not find message, maybe time range not correct"
_NOTHING_AT = "can not find message by the offset, %d"


@dataclass(slots=True)
class _Viewed:
    """A record that is shown as soon as its queue vouches for it; it is read again then.

    Whoever asks for thousands at a time would have all of them kept in memory.
    """

    request: Request
    offset: int

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


class QueryMessage(Responder):
    """Runs on a thread: it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self, store: MessageStore, reput: ActorAddress, record_checker: ActorAddress
    ) -> None:
        super().__init__()
        self._store = store
        self._reput, self._record_checker = reput, record_checker

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def on_view(self, request: Request) -> RemotingCommand | None:
        """One record by its offset."""
        offset = ViewMessageHeader.decode(request.command.fields).offset
        data = self._read(offset)
        grant = request.grant
        if grant is None or grant.passes_all:
            return _hit(request, None, data)
        record = decode_record(data, check_crc=False)
        grant.require_topic(request.command.code, real_topic(record.topic, record.properties), SUB)
        asked = CheckRecord(place_of(record), _Viewed(request, offset), self.address)
        self._record_checker.tell(asked)
        return None

    def _read(self, offset: int) -> bytes:
        data = self._store.commit_log.read_whole(offset, self._store.damage)
        if data is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % offset)
        return data

    @handles(RecordChecked, reads_only=True)
    def on_checked(self, message: RecordChecked) -> None:
        """It is known whether it is a message at all."""
        viewed = message.token
        assert isinstance(viewed, _Viewed)
        try:
            if not message.is_own:
                raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % viewed.offset)
            viewed.request.respond(_hit(viewed.request, None, self._read(viewed.offset)))
        except RemoteError as error:
            viewed.request.answer(error.code, remark=error.remark)

    @serves(RequestCode.QUERY_MESSAGE)
    def on_query(self, request: Request) -> RemotingCommand | None:
        """Records by key; Reput is asked first to put what it has in memory into the files."""
        QueryMessageHeader.decode(request.command.fields)
        self._reput.tell(WriteOutIndex(request, self.address))
        return None

    @handles(IndexWritten, reads_only=True)
    def on_index_written(self, message: IndexWritten) -> None:
        """Now everything that was dispatched before the question can be found."""
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
    """The records that a key query is about, out of those that the index names: it knows only the
    hash of topic and key, and the second."""

    def __init__(self, store: MessageStore, request: Request, header: QueryMessageHeader) -> None:
        self._store, self._grant, self._header = store, request.grant, header
        self._key = header.key.encode()
        self._seen: set[int] = set()
        self._body_bytes = 0
        self.records: dict[int, bytes] = {}
        """By physical offset."""
        self.is_cut = False
        """There may be more of them."""

    def accepts(self, offset: int) -> bool:
        """Take the record at this offset if it is wanted; each once."""
        if offset in self._seen or self.is_cut:
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
