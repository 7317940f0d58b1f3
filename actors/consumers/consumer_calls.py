"""Administrators' requests that only a consumer can answer.

Owns: nothing; the state of a request travels with its call.
Receives: Request (connections); CallDone (ClientCalls); _Directly (RecordChecker).
Sends: CallClient (ClientCalls); CheckRecord (RecordChecker), because a message id may point into
the body of a message.

The requests: how a consumer runs, the result of consuming one message now, and the offsets of a
group's members. For the last, all members are asked at once. 4.9.7 asks one after the other, and
its administrator may time out before the answer.

Source: AdminBrokerProcessor (callConsumer, consumeMessageDirectly), Broker2Client.getConsumeStatus.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from actors.config import BrokerConfig
from actors.consumers.queue_work import QUEUES_MAX
from actors.dispatching.messages import CheckRecord, RecordChecked
from actors.engine.actor import Where, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.messages import Message
from actors.engine.server_log import get_logger
from actors.network.messages import (
    AnswerRoom,
    CallClient,
    CallDone,
    CallEnd,
    Request,
    RequestMessage,
)
from actors.network.request import Responder, serves, short_body
from actors.tables.consumer_views import ConsumerView, Member
from protocol.bodies import MessageQueue
from protocol.bodies_client import ConsumerStatusBody
from protocol.codes import V3_0_7_SNAPSHOT, V3_1_8_SNAPSHOT, RequestCode, ResponseCode, version_name
from protocol.errors import RemoteError
from protocol.frame import RESPONSE_FLAG, RemotingCommand
from protocol.headers.client import (
    ConsumeMessageDirectlyHeader,
    GetConsumerRunningInfoHeader,
    GetConsumerStatusHeader,
)
from protocol.message import decode_record
from protocol.message_id import parse_message_id
from protocol.signature import CREDENTIALS
from storage.message_store import MessageStore
from storage.reading.record_place import place_of

log = get_logger(__name__)

STATUS_MS = 5000
"""Timeout of a member's answer, as in 4.9.7."""

WAITING_BYTES_MAX = 32 << 20
"""Bytes of answers that wait to be read or passed on. Clients send faster than a thread reads."""

NOT_SET = "not set any response code"
"""Meaningless remark that 4.9.7 leaves in these answers."""

_NOTHING_AT = "can not find message by the offset, %d"
_TIMEOUT = "org.apache.rocketmq.remoting.exception.RemotingTimeoutException"
_NOT_SENT = "org.apache.rocketmq.remoting.exception.RemotingSendRequestException"


@dataclass(slots=True)
class _PassedOn(RequestMessage):
    request: Request
    group: str
    client_id: str | None


@dataclass(slots=True)
class _Directly(RecordChecked):
    """A message to be consumed once RecordChecker has confirmed it."""

    request: Request
    header: ConsumeMessageDirectlyHeader
    offset: int
    data: bytes

    def on_undelivered(self, remark: str) -> None:
        self.request.refuse(remark)


@dataclass(slots=True)
class _Status:
    """A request for the offsets of all members; `owed` answers are missing."""

    request: Request
    owed: int = 0
    found: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)
    left: int = field(default_factory=lambda: QUEUES_MAX)
    """Queues for which the answer has room."""

    def refuse(self, remark: str) -> None:
        self.request.refuse(remark)


@dataclass(slots=True)
class _Asked(Message):
    """The call to one member, for `status`."""

    status: _Status
    client_id: str

    def on_undelivered(self, remark: str) -> None:
        if self.status.owed > 0:  # the other answers no longer count
            self.status.owed = 0
            self.status.refuse(remark)


class ConsumerCalls(Responder):
    """Calls to consumers. Runs on a thread, because it reads the message to be consumed."""

    where: ClassVar[Where] = "thread"

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        consumers: SnapshotRef[Mapping[str, ConsumerView]],
        client_calls: ActorAddress,
        record_checker: ActorAddress,
    ) -> None:
        super().__init__()
        self._store = store
        self._config = config
        self._consumers = consumers
        self._client_calls, self._record_checker = client_calls, record_checker
        self._room = AnswerRoom(WAITING_BYTES_MAX)

    # --- requests passed on to one consumer

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, request: Request) -> None:
        """Pass on the request for a consumer's state; with jstackEnable, its stack traces."""
        header = GetConsumerRunningInfoHeader.decode(request.command.fields)
        self._pass_on(request, header.consumer_group, header.client_id, request.command.body)

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, request: Request) -> None:
        """Have a consumer consume one stored message now; its queue and offsets do not change."""
        header = ConsumeMessageDirectlyHeader.decode(request.command.fields)
        try:
            _, offset = parse_message_id(header.msg_id or "")
        except ValueError as error:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        data = self._store.commit_log.read_whole(offset, self._store.damage)
        if data is None:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, _NOTHING_AT % offset)
        found = _Directly(request, header, offset, data)
        if request.grant is None:
            self._have_consumed(found)
            return
        # A crafted message id must not make a consumer receive a message that was never sent.
        place = place_of(decode_record(data, check_crc=False))
        self._record_checker.tell(CheckRecord(place, found, self.address))

    @handles(_Directly, reads_only=True)
    def on_checked(self, found: _Directly) -> None:
        """Send the message to the consumer, or refuse a message that no queue names."""
        if found.is_own:
            self._have_consumed(found)
        else:
            found.request.refuse(_NOTHING_AT % found.offset)

    def _have_consumed(self, found: _Directly) -> None:
        header, more = found.header, {"brokerName": self._config.broker_name}
        self._pass_on(found.request, header.consumer_group, header.client_id, found.data, more)

    def _pass_on(
        self,
        request: Request,
        group: str,
        client_id: str | None,
        body: bytes | memoryview | None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Call the consumer with all ext fields except the credentials of the administrator."""
        view = self._consumers.value.get(group)
        member = None if view is None else view.member_of(client_id)
        if member is None:
            shown = "null" if client_id is None else client_id
            remark = f"The Consumer <{group}> <{shown}> not online"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        if member.version < V3_1_8_SNAPSHOT:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{version_name(member.version)}> too low to"
                " finish, please upgrade it to V3_1_8_SNAPSHOT",
            )
        given = (request.command.fields or {}).items()
        fields = {name: value for name, value in given if name not in CREDENTIALS}
        fields.update(more or {})
        command = RemotingCommand(request.command.code, fields, body)
        context = _PassedOn(request, group, client_id)
        call = CallClient(member.peer, command, self.address, context, room=self._room)
        self._client_calls.tell(call)

    # --- requests to every member

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def consumer_status(self, request: Request) -> None:
        """Ask the members of a group for their offsets; only one if the request names it."""
        header = GetConsumerStatusHeader.decode(request.command.fields)
        if self.system.rarely.may_tell("many consumer status requests", group=header.group):
            log.info(
                "consumer status requested",
                topic=header.topic,
                group=header.group,
                peer=request.peer.remote,
            )
        view = self._consumers.value.get(header.group)
        if view is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        members = [*view.members.values()]
        check_versions(members)
        only = (header.client_address or "").strip()
        asked = [each for each in members if not only or each.client_id == only]
        asked = asked[:1] if only else asked
        status = _Status(request, len(asked))
        for member in asked:
            fields = {"topic": header.topic, "group": header.group}
            command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)
            context = _Asked(status, member.client_id)
            call = CallClient(member.peer, command, self.address, context, STATUS_MS, self._room)
            self._client_calls.tell(call)
        if not asked:
            _answer_status(status)

    # --- answers

    @handles(CallDone, reads_only=True)
    def on_done(self, done: CallDone) -> None:
        """Answer the request, or note one member's offsets."""
        try:
            if isinstance(done.context, _PassedOn):
                _bring_back(done.context, done)
            else:
                self._note_status(done.context, done)
        finally:
            if done.answer is not None:
                self._room.read_bytes += len(done.answer.body or b"")

    def _note_status(self, asked: _Asked, done: CallDone) -> None:
        """Note one member's offsets; the last one answers. Leave out failed members."""
        status, warn = asked.status, self.system.rarely.warn
        if status.owed <= 0:
            return
        status.owed -= 1
        answer = done.answer
        if answer is None or answer.code != ResponseCode.SUCCESS or not answer.body:
            warn("consumer status missing", client=asked.client_id, why=done.why)
        else:
            try:
                body = ConsumerStatusBody.decode(short_body(answer))
            except RemoteError as error:
                warn("consumer status rejected", client=asked.client_id, why=error.remark)
            else:
                status.left -= len(body.message_queue_table)
                if status.left >= 0:
                    status.found[asked.client_id] = body.message_queue_table
        if not status.owed:
            _answer_status(status)


def check_versions(members: Iterable[Member]) -> None:
    """Raise RemoteError if a member is too old to report or reset offsets."""
    for member in members:
        if member.version < V3_0_7_SNAPSHOT:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                f"the client does not support this feature. version={version_name(member.version)}",
            )


def _bring_back(passed_on: _PassedOn, done: CallDone) -> None:
    answer, asked = done.answer, passed_on.request.command
    who = f"<{passed_on.group}> <{passed_on.client_id}>"
    if answer is not None:
        passed_on.request.respond(
            RemotingCommand(
                answer.code,
                answer.fields,
                answer.body,
                opaque=asked.opaque,
                flag=RESPONSE_FLAG,
                remark=answer.remark,
                language=answer.language,
                version=answer.version,
                serialize_type=asked.serialize_type,
            )
        )
    elif done.end is CallEnd.TIMED_OUT:
        remark = f"consumer {who} Timeout: {_TIMEOUT}: {done.why}"
        passed_on.request.answer(ResponseCode.CONSUME_MSG_TIMEOUT, remark=remark)
    else:
        remark = f"invoke consumer {who} Exception: {_NOT_SENT}: {done.why}"
        passed_on.request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)


def _answer_status(status: _Status) -> None:
    body = ConsumerStatusBody(consumer_table=status.found)
    status.request.answer(remark=NOT_SET, body=body.encode())
