"""Answers pulls: checks them, joins queue units with the log, or has them held.

Owns: nothing; it reads the published tables and, below the watermark, the store.
Told by: connections (`Request`), PullHold (`Woken`, `SayWhenAnswered`).
Tells: the connection (header and views of the log, uncopied), PullHold (`Hold`, when there is
nothing yet; `LastAnswered`), ConsumerOffsets (`CommitOffset`, piggybacked on a pull).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from structlog import get_logger

from actors.actor import handles
from actors.address import Address
from actors.config import BrokerConfig
from actors.consumer_groups import ConsumerView
from actors.consumer_offsets import CommitOffset
from actors.groups import GroupFinder
from actors.published import Published
from actors.pull_hold import Hold, LastAnswered, SayWhenAnswered, Woken
from actors.pull_rules import PullRules
from actors.request import Request, Responder, serves
from actors.sends import StreamPeer
from protocol.bodies import SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.frame import encode_head
from protocol.headers.pull import PullMessageHeader
from protocol.sysflag import PULL_COMMIT_OFFSET, PULL_SUSPEND
from storage.get_message import GetLimits, GetResult, GetStatus, get_message
from storage.message_store import MessageStore

log = get_logger(__name__)

_CODE_OF_STATUS = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY_QUEUE = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


@dataclass(slots=True)
class PullStats:
    """Counters since the start; written by PullMessage, read by whoever reports."""

    get_count: int = 0
    get_bytes: int = 0
    pull_count: int = 0
    held_count: int = 0


class PullMessage(Responder):
    """Lives on the loop."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        limits: GetLimits,
        *,
        topics: Published[Mapping[str, TopicConfig]],
        groups: GroupFinder,
        consumers: Published[Mapping[str, ConsumerView]],
        stats: PullStats,
        addresses: Mapping[str, Address],
    ) -> None:
        super().__init__()
        self._store = store
        self._config = config
        self._limits = limits
        self._topics, self._groups, self._consumers = topics, groups, consumers
        self.stats = stats
        self._to = addresses
        self._rules = PullRules(config)

    @serves(RequestCode.PULL_MESSAGE)
    def on_pull(self, request: Request) -> RemotingCommand | None:
        """A pull as it came; it may be held."""
        self._pull(request, may_hold=True)
        return None

    @handles(Woken)
    def on_woken(self, message: Woken) -> None:
        """A held pull again; it is answered now, whatever there is."""
        try:
            self._pull(message.request, may_hold=False)
        except RemoteError as error:
            message.request.answer(error.code, {}, remark=error.remark)

    @handles(SayWhenAnswered)
    def on_say_when_answered(self, _: SayWhenAnswered) -> None:
        """The pulls woken before this are answered."""
        self._to["pull_hold"].tell(LastAnswered())

    def _pull(self, request: Request, *, may_hold: bool) -> None:
        header = PullMessageHeader.decode(request.command.fields)
        try:
            self._rules.check_readable()
            group = self._rules.check_group(
                header.consumer_group, self._groups.find(header.consumer_group)
            )
            self._answer(request, header, group, may_hold)
        except RemoteError as error:
            request.answer(error.code, {}, remark=error.remark)

    def _answer(
        self,
        request: Request,
        header: PullMessageHeader,
        group: SubscriptionGroupConfig,
        may_hold: bool,
    ) -> None:
        rules = self._rules
        rules.check_queue(header, self._topics.value.get(header.topic), request.peer.remote)
        codes = rules.tag_codes(header, group, self._consumers.value)
        result = get_message(
            self._store.consume_queues.get_or_create(header.topic, header.queue_id),
            self._store.commit_log,
            header.queue_offset,
            header.max_msg_nums,
            codes,
            self._limits,
        )
        if may_hold and header.sys_flag & PULL_COMMIT_OFFSET and not self._config.is_slave:
            self._to["consumer_offsets"].tell(
                CommitOffset(
                    header.consumer_group,
                    header.topic,
                    header.queue_id,
                    header.commit_offset,
                )
            )
        code = self._code(header, result)
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and header.sys_flag & PULL_SUSPEND:
            self._hold(request, header, codes)
        else:
            self._send(request, group, result, code)

    def _code(self, header: PullMessageHeader, result: GetResult) -> int:
        if result.status in _EMPTY_QUEUE:
            moved = header.queue_offset != 0
            code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODE_OF_STATUS[result.status]
        if code == ResponseCode.PULL_OFFSET_MOVED:
            if self._config.is_slave and not self._limits.correct_offsets:
                return ResponseCode.PULL_RETRY_IMMEDIATELY
            log.info(
                "pull offset moved",
                group=header.consumer_group,
                topic=header.topic,
                queue_id=header.queue_id,
                asked=header.queue_offset,
                corrected=result.next_offset,
                status=result.status.value,
            )
        return code

    def _hold(
        self, request: Request, header: PullMessageHeader, codes: frozenset[int] | None
    ) -> None:
        polling_ms = header.suspend_timeout_ms
        if not self._config.long_polling_enable:
            polling_ms = self._config.short_polling_ms
        self.stats.held_count += 1
        self._to["pull_hold"].tell(
            Hold(
                request,
                header.topic.encode(),
                header.queue_id,
                header.queue_offset,
                codes,
                polling_ms,
            )
        )

    def _send(
        self, request: Request, group: SubscriptionGroupConfig, result: GetResult, code: int
    ) -> None:
        """Header and views go out as they are; nothing of the log is copied here."""
        suggested = 0
        if self._config.slave_read_enable:
            far = result.is_far_behind
            suggested = group.which_broker_when_consume_slowly if far else group.broker_id
        answer = request.command.answer(
            code,
            {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(result.next_offset),
                "minOffset": str(result.min_offset),
                "maxOffset": str(result.max_offset),
            },
            remark=result.status.value,
        )
        stats = self.stats
        stats.pull_count += 1
        if not result.views:
            request.respond(answer)
            return
        stats.get_count += result.count
        stats.get_bytes += result.body_bytes
        peer: StreamPeer = request.peer  # type: ignore[assignment]
        if not request.command.is_oneway:
            peer.write((encode_head(answer, result.body_bytes), *result.views))
