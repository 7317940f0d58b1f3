"""Cancellation of pending timers (RECALL_MESSAGE of RocketMQ 5.x).

Owns: the recalls in progress.
Receives: Request from connections; IndexWritten from Reput; TimerCancelled from Schedule.
Sends: WriteOutIndex to Reput, so that new messages are found; CancelTimer to Schedule.

The timer is found in the index by its unique key: a timer that has moved through delay levels has
several records, of which the newest waits. The answer follows when the cancellation is on the disk.
5.x answers before it looks for the timer; this broker refuses if no timer with this handle waits.

Source: broker/processor/RecallMessageProcessor.java.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from actors.config import BrokerConfig
from actors.delays.messages import CancelTimer, TimerCancelled
from actors.delays.schedule import schedule_name
from actors.dispatching.messages import IndexWritten, WriteOutIndex
from actors.engine.actor import Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from actors.network.messages import Request
from actors.network.request import Responder, check_waiting, serves
from protocol.bodies_tables import TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.send import RecallMessageHeader, RecallMessageResponseHeader
from protocol.message import MessageRecord
from protocol.properties import pairs_of
from protocol.timers import RecallHandle, due_of
from protocol.topic_names import SCHEDULE_TOPIC
from storage.message_store import MessageStore

log = get_logger(__name__)

_FORBIDDEN = "recall failed, operation is forbidden"
_NOT_AVAILABLE = "recall failed, broker service not available"
_NO_TOPIC = "recall failed, the topic[{}] not exist"
_OTHER_TOPIC = "recall failed, topic not match"
_WRONG_TIME = "recall failed, timestamp invalid"
_FAILED = "recall failed, execute error"

CANDIDATES_MAX = 1_000
"""Records read for one recall; a timer of a year has 4,400, of which the newest come first."""
_FOUND_MAX = 8
"""Records to cancel: one waits, and after a crash perhaps a copy of it."""
_TRIES_MAX = 3
_AGAIN_MS = 200.0
"""Pause between tries: the timer may be on its way between two levels, or not in the index yet."""


@dataclass(slots=True)
class _Recall:
    request: Request
    handle: RecallHandle
    tries: int = 0
    waits_for: int = 0
    """Number of delay levels that have not answered."""
    is_done: bool = False
    found: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Again:
    """Timer tick: look for the timer again."""

    recall: _Recall


class Recalls(Responder):
    """Actor on a thread, because it waits for cold pages."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        reput: ActorAddress,
    ) -> None:
        super().__init__()
        self._store, self._config = store, config
        self._topics, self._reput = topics, reput
        self._recalls: dict[int, _Recall] = {}

    @serves(RequestCode.RECALL_MESSAGE)
    def on_recall(self, request: Request) -> RemotingCommand | None:
        """Look for the timer; the answer follows."""
        header = RecallMessageHeader.decode(request.command.fields)
        try:
            handle = self._checked(header)
        except RemoteError as error:
            return self._answer(request, error.code, error.remark)
        check_waiting(len(self._recalls), request.command)
        self.begin_change()
        self._recalls[id(request)] = _Recall(request, handle)
        self._reput.tell(WriteOutIndex(request, self.address))
        return None

    def _checked(self, header: RecallMessageHeader) -> RecallHandle:
        """Return the handle of a valid request. Raises RemoteError, in the order of 5.x."""
        config, now_ms = self._config, self.system.clock.now_ms()
        if not config.recall_message_enable:
            raise RemoteError(ResponseCode.NO_PERMISSION, _FORBIDDEN)
        if config.is_slave:
            raise RemoteError(ResponseCode.SLAVE_NOT_AVAILABLE, _NOT_AVAILABLE)
        if now_ms < config.start_accept_send_request_timestamp_ms:
            raise RemoteError(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE)
        if header.topic not in self._topics.value:
            raise RemoteError(ResponseCode.TOPIC_NOT_EXIST, _NO_TOPIC.format(header.topic))
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ValueError as error:
            raise RemoteError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != header.topic:
            raise RemoteError(ResponseCode.ILLEGAL_OPERATION, _OTHER_TOPIC)
        if handle.broker_name != config.broker_name:
            raise RemoteError(ResponseCode.ILLEGAL_OPERATION, _NOT_AVAILABLE)
        left_ms = handle.due_ms - now_ms
        if not 0 < left_ms <= self._store.config.timer_max_delay_sec * 1000:
            raise RemoteError(ResponseCode.ILLEGAL_OPERATION, _WRONG_TIME)
        return handle

    @handles(IndexWritten)
    def on_index_written(self, message: IndexWritten) -> None:
        recall = self._recalls.get(id(message.request))
        if recall is not None:
            self._look(recall)

    @handles(_Again)
    def on_again(self, message: _Again) -> None:
        self._reput.tell(WriteOutIndex(message.recall.request, self.address))

    def _look(self, recall: _Recall) -> None:
        recall.tries += 1
        recall.found = self._find(recall.handle)
        recall.waits_for = len(recall.found)
        if not recall.found:
            self._end_of_try(recall)
        for level, offset in recall.found:
            cancel = CancelTimer(offset, id(recall.request), self.address)
            self.system.address(schedule_name(level)).tell(cancel)

    def _find(self, handle: RecallHandle) -> list[tuple[int, int]]:
        """Return delay level and queue offset of the timer's records, the newest first."""
        index, log_ = self._store.index, self._store.commit_log
        found: list[tuple[int, int]] = []
        seen: set[int] = set()

        def accepts(offset: int) -> bool | None:
            if len(seen) >= CANDIDATES_MAX:
                return None
            if offset in seen:
                return False
            seen.add(offset)
            record = log_.read_record(offset, self._store.damage)
            if record is None or not _is_named(record, handle):
                return False
            found.append((record.queue_id + 1, record.queue_offset))
            return True

        if index is not None:
            now_ms = self.system.clock.now_ms()
            try:
                index.query(SCHEDULE_TOPIC, handle.unique_key, _FOUND_MAX, 0, 2 * now_ms, accepts)
            except OSError as error:
                log.error("index not read", reason=str(error))
        return found

    @handles(TimerCancelled)
    def on_timer_cancelled(self, message: TimerCancelled) -> None:
        """Answer when all levels have."""
        recall = self._recalls.get(message.token)
        if recall is None:
            return
        recall.is_done = recall.is_done or message.is_cancelled
        recall.waits_for -= 1
        if recall.waits_for <= 0:
            self._end_of_try(recall)

    def _end_of_try(self, recall: _Recall) -> None:
        request = recall.request
        if not recall.is_done and recall.tries < _TRIES_MAX:
            self.after(_AGAIN_MS, _Again(recall))
            return
        del self._recalls[id(request)]
        if recall.is_done:
            request.respond(self._answer(request, key=recall.handle.unique_key))
        else:
            request.respond(self._answer(request, ResponseCode.SYSTEM_ERROR, _FAILED))

    def _answer(
        self,
        request: Request,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        key: str = "",
    ) -> RemotingCommand:
        fields = RecallMessageResponseHeader(key).encode() if key else {}
        fields["MSG_REGION"] = self._config.region_id
        return request.command.answer(code, fields, remark=remark)

    def can_stop(self) -> bool:
        return not self._recalls

    def on_failure(self, *_: object) -> None:
        for recall in self._recalls.values():
            recall.request.refuse("the recall was interrupted: try again")


def _is_named(record: MessageRecord, handle: RecallHandle) -> bool:
    if record.topic != SCHEDULE_TOPIC or due_of(record.properties) != handle.due_ms:
        return False
    pairs = pairs_of(record.properties)
    named = handle.topic.encode(), handle.unique_key.encode()
    return (pairs.get(b"REAL_TOPIC"), pairs.get(b"UNIQ_KEY")) == named
