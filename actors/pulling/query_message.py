"""Answers questions for messages by key, and by their place in the log (the offset in a msgId).

Owns: nothing; reads index and log below the watermark.
Told by: connections (`Request`), Reput (`IndexWritten`).
Tells: Reput (`WriteOutIndex`: keys that are in its memory alone would not be found).

While the index is made anew behind the log, answers come from what there is of it so far. Records
that are damaged or gone are left out. A hit is encoded in the server's own serialisation, whatever
the request's was, as in RocketMQ.

Source: broker/processor/QueryMessageProcessor.java, DefaultMessageStore.java (queryMessage).
"""

from typing import ClassVar

from structlog import get_logger

from actors.access.real_topic import real_topic
from actors.dispatching.hand_over import IndexWritten, WriteOutIndex
from actors.engine.actor import Where, handles
from actors.engine.address import Address
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
from storage.message_store import MessageStore

log = get_logger(__name__)

BODY_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)
"""Of one answer: no client takes a longer frame. The newest messages are in it."""
NOT_FOUND = "can not find message, maybe time range not correct"


class QueryMessage(Responder):
    """Runs on a thread: it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(self, store: MessageStore, reput: Address) -> None:
        super().__init__()
        self._store = store
        self._reput = reput

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def on_view(self, request: Request) -> RemotingCommand:
        """One record by its offset."""
        offset = ViewMessageHeader.decode(request.command.fields).offset
        record = self._store.commit_log.read_whole(offset, self._store.damage)
        if record is None:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
            )
        if request.grant is not None:
            request.grant.require_topic(request.command.code, _topic_of(record), SUB)
        return _hit(request, None, record)

    @serves(RequestCode.QUERY_MESSAGE)
    def on_query(self, request: Request) -> RemotingCommand | None:
        """Records by key; Reput is asked first to put what it has in memory into the files."""
        QueryMessageHeader.decode(request.command.fields)
        self._reput.tell(WriteOutIndex(request, self.address))
        return None

    @handles(IndexWritten)
    def on_index_written(self, message: IndexWritten) -> None:
        """Now everything that was dispatched before the question can be found."""
        message.request.respond(self._found(message.request))

    def _found(self, request: Request) -> RemotingCommand:
        fields = request.command.fields or {}
        header = QueryMessageHeader.decode(fields)
        count = header.max_num
        if fields.get(UNIQUE_KEY_QUERY) == "true":
            count = self._store.config.default_query_max_num
        answer = QueryMessageResponseHeader(0, 0)
        records: list[tuple[int, bytes]] = []
        for offset, last_timestamp, last_offset in self._offsets(header, count):
            answer = QueryMessageResponseHeader(last_timestamp, last_offset)
            record = self._store.commit_log.read_whole(offset, self._store.damage)
            if record is None:
                continue
            if request.grant and not request.grant.may_use_topic(_topic_of(record), SUB):
                continue  # the index knows only the hash of a topic and a key
            if sum(len(each) for _, each in records) + len(record) > BODY_BYTES_MAX:
                break
            records.append((offset, record))
        if not records:
            remark = NOT_FOUND
            return request.command.answer(
                ResponseCode.QUERY_NOT_FOUND, answer.encode(), remark=remark
            )
        body = b"".join(record for _, record in sorted(records))
        return _hit(request, answer.encode(), body)

    def _offsets(self, header: QueryMessageHeader, count: int) -> list[tuple[int, int, int]]:
        """Where the records are, newest first and each once, with how far the index had come."""
        index = self._store.index
        if index is None:
            return []
        try:
            found = index.query(
                header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
            )
        except OSError as error:
            log.error("index not read", reason=str(error))
            return []
        last = found.last_timestamp, found.last_physical_offset
        return [(offset, *last) for offset in dict.fromkeys(found.physical_offsets)]


def _topic_of(data: bytes) -> str:
    record = decode_record(data, check_crc=False)
    return real_topic(record.topic, record.properties)


def _hit(request: Request, fields: dict[str, str] | None, body: bytes) -> RemotingCommand:
    answer = request.command.answer(fields=fields, body=body)
    answer.serialize_type = SerializeType.JSON
    return answer
