"""Offset resets of a consumer group, requested by an administrator.

Owns: nothing.
Receives: Request (connections); OffsetsTold (ConsumerOffsets); QueueWork (ColdRead).
Sends: TellOffsets, then ResetOffsets (ConsumerOffsets); ReadCold (ColdRead); LongAnswer
(LongAnswers). The members of the group get a one-way command with their new offsets.

4.9.7 only tells the members, which commit the new offsets ten seconds later. A member that dies
before then undoes the reset. Here the offsets change at once, and for ten seconds commits of the
old offsets are ignored (offset_limits.py).

Source: Broker2Client.resetOffset.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from actors.config import BrokerConfig
from actors.consumers.consumer_calls import NOT_SET, check_versions
from actors.consumers.queue_work import QueueWork, QueueWorker
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.network.client_calls import next_opaque
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import LongAnswer, Request
from actors.network.request import serves
from actors.tables.consumer_views import Member
from actors.tables.messages import OffsetsTold, ResetOffsets, TellOffsets
from actors.tables.tables import Tables
from protocol.bodies import MessageQueue
from protocol.bodies_client import QueueOffset, ResetOffsetBody, ResetOffsetList
from protocol.codes import LanguageCode, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import ONEWAY_FLAG, RemotingCommand
from protocol.headers.client import ResetOffsetHeader
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import QueueTimes

log = get_logger(__name__)

NOTICED_AT_ONCE = 200
"""Members in a round that get a short command: 10 ms."""
NEWEST = -1
"""Timestamp that means: skip everything stored until now."""


@dataclass(slots=True)
class _Bodies:
    """Bodies of a reset, made where they are encoded: 65,536 queues take 0.5 s."""

    topic: str
    broker_name: str
    goals: Mapping[int, int]
    is_cpp: bool
    """Whether members get a list: C++ clients read no object keys."""
    for_members: bytes = b""

    def encode(self) -> bytes:
        """Return the body of the answer, and note that of the members' commands. Any thread."""
        topic, name = self.topic, self.broker_name
        table = {MessageQueue(topic, name, queue): goal for queue, goal in self.goals.items()}
        body = self.for_members = ResetOffsetBody(table).encode()
        if self.is_cpp:
            listed = [QueueOffset(topic, name, queue, goal) for queue, goal in self.goals.items()]
            self.for_members = ResetOffsetList(listed).encode()
        return body


@dataclass(slots=True, eq=False)
class _Notices:
    """The members that have not got their new offsets yet."""

    header: ResetOffsetHeader
    members: deque[Member]
    bodies: _Bodies
    at_once: int = 1
    """Members in a round; a long command goes to one."""
    then: Callable[[], None] | None = None


class OffsetReset(QueueWorker):
    """Runs on the loop."""

    def __init__(
        self,
        store: MessageStore,
        probe: PageProbe,
        config: BrokerConfig,
        tables: Tables,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__(store, probe, addresses["cold_read"])
        self._store = store
        self._config = config
        self._tables = tables
        self._consumer_offsets = addresses["consumer_offsets"]
        self._long_answers = addresses["long_answers"]
        self._telling: deque[_Notices] = deque()
        """Resets whose members are told, one after the other."""

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def on_reset(self, request: Request) -> None:
        """Request the present offsets of the group."""
        header = ResetOffsetHeader.decode(request.command.fields)
        log.info(
            "offset reset requested",
            topic=header.topic,
            group=header.group,
            timestamp=header.timestamp,
            force=header.is_force,
            peer=request.peer.remote,
        )
        if header.topic not in self._tables.topics.value:
            raise RemoteError(
                ResponseCode.SYSTEM_ERROR,
                "[reset-offset] reset offset failed, no topic in this broker."
                f" topic={header.topic}",
            )
        ask = TellOffsets(request, self.address, header.group, header.topic)
        self._consumer_offsets.tell(ask)

    @handles(OffsetsTold, reads_only=True)
    def on_offsets(self, message: OffsetsTold) -> None:
        """Find the new offset of each queue, now that the present ones are known."""
        request = message.request
        header = ResetOffsetHeader.decode(request.command.fields)
        offsets = message.offsets.get((header.topic, header.group), {})
        config = self._tables.topics.value.get(header.topic)
        written = 0 if config is None else config.write_queue_nums
        read = 0 if config is None else config.read_queue_nums
        goals: dict[int, int] = {}
        if any(offsets.get(queue_id, -1) == -1 for queue_id in range(written)):
            remark = f"THe consumer group <{header.group}> not exist"
            request.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        # 4.9.7 omits read-only queues, which remain after a topic is shrunk
        queue_ids = [*range(written), *(id_ for id_ in range(written, read) if id_ in offsets)]
        jobs = (
            partial(self._look, header, offsets[queue_id], goals, queue_id)
            for queue_id in queue_ids
        )
        finish = partial(self._reset, request, header, offsets, goals)
        self.work_on(QueueWork(request, jobs, finish))

    def _look(
        self,
        header: ResetOffsetHeader,
        offset: int,
        goals: dict[int, int],
        queue_id: int,
        times: QueueTimes,
    ) -> None:
        """Note the group's new offset in one queue; without force never forward."""
        queue = self._store.consume_queues.get(header.topic, queue_id)
        if header.timestamp == NEWEST:
            goal = 0 if queue is None else queue.max_offset
        else:
            goal = max(times.offset_at(queue, header.timestamp), 0)
        goals[queue_id] = goal if header.is_force or goal < offset else offset

    def _reset(
        self,
        request: Request,
        header: ResetOffsetHeader,
        offsets: Mapping[int, int],
        goals: Mapping[int, int],
    ) -> RemotingCommand | None:
        view = self._tables.consumers.value.get(header.group)
        if view is None:
            raise RemoteError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                "Consumer not online, so can not reset offset,"
                f" Group: {header.group} Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        members = deque(view.members.values())
        check_versions(members)  # before any change, unlike 4.9.7
        moved = {queue: goal for queue, goal in goals.items() if goal != offsets[queue]}
        self._consumer_offsets.tell(ResetOffsets(header.group, header.topic, moved))
        is_cpp = request.command.language == LanguageCode.CPP
        body = _Bodies(header.topic, self._config.broker_name, goals, is_cpp)
        notices = _Notices(header, members, body)
        if len(goals) <= ENCODED_HERE_MAX:
            answer = request.command.answer(remark=NOT_SET, body=body.encode())
            notices.at_once = NOTICED_AT_ONCE
            self.on_notices(notices)
            return answer
        notices.then = self.answered(request)
        done = partial(self.address.tell, notices)
        self._long_answers.tell(LongAnswer(request, body, done, NOT_SET))
        return None

    @handles(_Notices)
    def on_notices(self, notices: _Notices) -> None:
        """Send the command to some members, and to the others in the next rounds."""
        telling = self._telling
        if notices not in telling:
            telling.append(notices)
        if telling[0] is not notices:
            return
        if notices.members:
            for _ in range(min(notices.at_once, len(notices.members))):
                self._send(notices)
            self.system.loop.tell_in_next_round(self.address, notices)
            return
        telling.popleft()
        if notices.then is not None:
            notices.then()
        if telling:
            self.system.loop.tell_in_next_round(self.address, telling[0])

    def _send(self, notices: _Notices) -> None:
        header, member = notices.header, notices.members.popleft()
        member.peer.send(
            RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                ResetOffsetHeader(header.topic, header.group, header.timestamp).encode(),
                notices.bodies.for_members,
                opaque=next_opaque(),
                flag=ONEWAY_FLAG,
            )
        )
        if self.system.rarely.may_tell("many offset resets sent", group=header.group):
            log.info(
                "offset reset sent",
                topic=header.topic,
                group=header.group,
                client=member.client_id,
            )
