"""The logic of receiving and settling, as flows (connection/calls.py).

These flows yield an `Ask`, a `Several`, a `LookUpRoute`, a `Blocking` or a `Pause`. The driver
(`waiter.py`) carries it out and sends the result back, or throws the ClientError into the flow. The
driver knows addresses and sockets, and closes a flow that has to end early.

A receive of one topic at one broker is one POP that the broker holds. With more of them, a held POP
would take messages that no caller waits for any more. So a receive asks each of them without
holding, and then waits for the first notification.

Source: broker/processor/PopMessageProcessor.java, NotificationProcessor.java.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.headers.pop import (
    ALL_QUEUES,
    NotificationHeader,
    NotificationResponseHeader,
    PopMessageHeader,
)
from protocol.properties import failure_bytes
from troupemq.client.connection.calls import Blocking, LookUpRoute, Value
from troupemq.client.connection.route import Route
from troupemq.client.consuming.consume import DELAYS_S, FIRST_RETRY_LEVEL
from troupemq.client.consuming.listener import DEAD_LETTER, RISING_DELAY
from troupemq.client.consuming.subscription import TopicSubscription
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    DeliveryExpired,
    NotSupported,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.log import client_logger
from troupemq.client.message import LONG_PULL_BYTES
from troupemq.client.receiving.receipt import (
    Receipt,
    ack_command,
    change_command,
    receipts_of,
)

log = client_logger(__name__)

SETTLE_TIMEOUT_MS = 5000
"""Time of all tries of one settlement, as of the return of a failed message."""
SETTLE_TRY_MS = 2000
ACKS_MAX = 1024
"""Maximum acknowledgements in one request."""
SETTLE_AGAIN_MS = 200
"""Pause before another try of a settlement."""
REST_S, REST_S_MAX = 0.1, 3.0
"""Time for which a broker that failed is not asked; it doubles with each failure in a row."""
NOT_HELD_MS = 10
"""Pause after an answer without messages, of a broker that does not hold receives."""
IN_VAIN_MAX = 6
"""Doublings of that pause after notifications without messages, to 0.6 s."""
NOTIFIED_MS_MAX = 1000
"""Longest wait for a notification: one that no caller waits for may take another one's turn."""

_NOTHING_CODES = frozenset(
    (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)
)
_BUSY_CODES = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.POLLING_FULL,
    )
)
_GONE_CODES = frozenset((ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL))
"""Answers to a settlement of a message that the broker does not hold for this consumer."""


@dataclass(slots=True)
class Ask:
    """Send a request to a broker's master; receive its answer, with any code."""

    topic: str
    """Topic whose route names the broker."""
    broker_name: str
    command: RemotingCommand
    timeout_ms: float
    is_pop: bool = False
    """Whether an answer after the timeout may carry messages, and has to be kept."""


@dataclass(slots=True)
class Several:
    """Send requests at once; receive a list of their answers, ClientErrors, or None for neither.

    It is complete after the first answer, or with `wait_all` after all of them.
    """

    asks: Sequence[Ask]
    timeout_ms: float
    wait_all: bool


@dataclass(slots=True)
class Pause:
    """Receive None after some time."""

    ms: float


Wanted: TypeAlias = Ask | Several | LookUpRoute | Blocking | Pause
Flow: TypeAlias = Generator[Wanted, Any, Value]


@dataclass(frozen=True, slots=True)
class PopSource:
    """One topic at one broker."""

    subscription: TopicSubscription
    broker_name: str

    @property
    def topic(self) -> str:
        return self.subscription.topic


def is_passing(error: ClientError) -> bool:
    """Return whether the same request may succeed later: an unreachable or busy broker."""
    if isinstance(error, BrokerError):
        return error.code in _BUSY_CODES
    return isinstance(error, ConnectionFailed | RequestTimeout | RouteNotFound | BadAnswer)


def checked(answer: RemotingCommand, broker_name: str) -> None:
    """Raise BrokerError unless the answer is a success; NotSupported for an unknown code."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotSupported(
            f"broker {broker_name} cannot settle messages one by one:"
            " a SimpleConsumer needs TroupeMQ or RocketMQ 5,"
            " use a PushConsumer or a PullConsumer"
        )
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark, broker_name)


@dataclass(frozen=True)
class ReceiveTerms:
    """ReceiveTerms of a consumer for each receive."""

    group: str
    invisible_ms: int
    with_connection: bool
    order: bool
    init_mode: int
    retries_max: int
    highest_queue_first: bool = False


class Flows:
    """The flows of one consumer, and what it remembers between them.

    Any number of flows may be driven at once.
    """

    def __init__(self, terms: ReceiveTerms, clock: Callable[[], float]) -> None:
        """Take the terms, and a monotonic clock in seconds."""
        self.terms = terms
        self._clock = clock
        self._turn = 0
        self._rests: dict[tuple[str, str], tuple[float, float]] = {}
        """End and length of each rest, in seconds, by topic and broker; until the next success."""

        self._missing: set[str] = set()
        self._told: set[str] = set()
        self.served = False
        """Whether any broker has understood a POP."""

        self.goes_on: Callable[[Receipt], bool] = lambda receipt: False
        """Return whether a received message belongs to a delivery that is open already."""

    # --- receiving

    def receive(
        self, subscriptions: Mapping[str, TopicSubscription], count_max: int, wait_ms: float
    ) -> Flow[list[Receipt]]:
        """Return up to `count_max` messages, none after `wait_ms` without any.

        Raises the BrokerError of a refusal if no topic at any broker can be received.
        """
        deadline_s = self._clock() + wait_ms / 1000
        in_vain = 0
        while True:
            sources = yield from self._sources(subscriptions)
            awake = [each for each in sources if self._is_awake(each)]
            left_ms = max(0.0, (deadline_s - self._clock()) * 1000)
            hold_ms = left_ms if len(sources) == 1 else 0
            found: list[Receipt] = []
            refused: list[ClientError] = []
            for source in awake:
                try:
                    found += yield from self._pop(source, count_max - len(found), hold_ms)
                except ClientClosed:
                    if found:
                        return found
                    raise
                except ClientError as error:
                    self._failed(source, error)
                    if not is_passing(error):
                        refused.append(error)
                if len(found) >= count_max:
                    return found
            if not found and refused and len(refused) == len(sources):
                raise refused[0]
            left_ms = (deadline_s - self._clock()) * 1000
            if found or left_ms <= 0:
                return found
            if in_vain > 1:  # notified of messages that others get, or that are filtered out
                yield Pause(min(left_ms, NOT_HELD_MS << min(in_vain, IN_VAIN_MAX)))
            in_vain += yield from self._wait(sources, min(left_ms, NOTIFIED_MS_MAX))

    def _sources(self, subscriptions: Mapping[str, TopicSubscription]) -> Flow[list[PopSource]]:
        """Return all topics at all their brokers, beginning at another one each time."""
        found = []
        for subscription in tuple(subscriptions.values()):
            topic = subscription.topic
            try:
                route: Route = yield LookUpRoute(topic)
            except ClientError as error:
                if not is_passing(error):
                    raise
                if topic not in self._missing:
                    self._missing.add(topic)
                    log.warning(
                        "topic not found", group=self.terms.group, topic=topic, error=str(error)
                    )
                continue
            self._missing.discard(topic)
            names = sorted({queue.broker_name for queue in route.subscribe_queues})
            found += [PopSource(subscription, name) for name in names]
        self._turn += 1
        start = self._turn % max(1, len(found))
        return found[start:] + found[:start]

    def _is_awake(self, source: PopSource) -> bool:
        return self._rest_of(source)[0] <= self._clock()

    def _rest_of(self, source: PopSource) -> tuple[float, float]:
        """Return the end and the length of a rest, in seconds."""
        return self._rests.get((source.topic, source.broker_name), (0.0, REST_S / 2))

    def _failed(self, source: PopSource, error: ClientError) -> None:
        _, last_s = self._rest_of(source)
        rest_s = min(2 * last_s, REST_S_MAX)
        self._rests[source.topic, source.broker_name] = self._clock() + rest_s, rest_s
        log.warning(
            "receive failed",
            group=self.terms.group,
            topic=source.topic,
            broker=source.broker_name,
            error=str(error),
        )

    def _pop(self, source: PopSource, count_max: int, hold_ms: float) -> Flow[list[Receipt]]:
        terms, subscription = self.terms, source.subscription
        header = PopMessageHeader(
            consumer_group=terms.group,
            topic=source.topic,
            queue_id=ALL_QUEUES,
            max_msg_nums=count_max,
            invisible_time_ms=terms.invisible_ms,
            poll_time_ms=round(hold_ms),
            init_mode=terms.init_mode,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            order=terms.order,
            hold_with_connection=terms.with_connection,
            highest_queue_first=terms.highest_queue_first,
            broker_name=source.broker_name,
        )
        command = RemotingCommand(RequestCode.POP_MESSAGE, header.encode())
        answer: RemotingCommand
        answer = yield Ask(source.topic, source.broker_name, command, hold_ms, is_pop=True)
        if hold_ms and answer.code == ResponseCode.POLLING_FULL:
            self.served = True
            raise BrokerError(answer.code, "too many receives wait", source.broker_name)
        if answer.code in _NOTHING_CODES:
            self._served(source)
            return []
        checked(answer, source.broker_name)
        self._served(source)
        parts = answer, source.topic, source.broker_name
        read = partial(receipts_of, *parts, order=terms.order, now_s=self._clock())
        is_long = len(answer.body or b"") > LONG_PULL_BYTES
        receipts = (yield Blocking(read)) if is_long else read()
        self._tell_of_hold(receipts)
        return (yield from self._kept(source, receipts))

    def _served(self, source: PopSource) -> None:
        self.served = True
        self._rests.pop((source.topic, source.broker_name), None)

    def _tell_of_hold(self, receipts: Sequence[Receipt]) -> None:
        if not receipts or not self.terms.with_connection:
            return
        name = receipts[0].broker_name
        if receipts[0].expires_s is not None and name not in self._told:
            self._told.add(name)
            log.info(
                "broker holds messages for a time only",
                group=self.terms.group,
                broker=name,
                invisible_ms=self.terms.invisible_ms,
                hint="use auto_extend for work that takes longer",
            )

    def _kept(self, source: PopSource, receipts: Sequence[Receipt]) -> Flow[list[Receipt]]:
        """Return the messages that the application gets.

        Brokers compare only hashes of tags. RocketMQ 5 never makes a dead letter by itself.
        """
        kept, unwanted = [], []
        for receipt in receipts:
            view = receipt.message
            if self.goes_on(receipt):
                continue
            if not source.subscription.wants(view):
                unwanted.append(receipt)
            elif view.reconsume_times > self.terms.retries_max:
                again = self.retry(receipt, DEAD_LETTER, reason=view.failure or "")
                yield from self._settled(again)
            else:
                kept.append(receipt)
        if unwanted:
            yield from self._settled(self.ack(unwanted))
        return kept

    def _settled(self, flow: Flow[Any]) -> Flow[None]:
        try:
            yield from flow
        except ClientError as error:  # the message is delivered again
            log.warning("settlement failed", group=self.terms.group, error=str(error))

    def _wait(self, sources: Sequence[PopSource], wait_ms: float) -> Flow[bool]:
        """Wait for `wait_ms`, or until a broker notifies of messages; return whether one has."""
        awake = [each for each in sources if self._is_awake(each)]
        if not awake:
            yield self._pause(sources, wait_ms)
            return False
        if len(sources) == 1:
            yield Pause(min(wait_ms, NOT_HELD_MS))
            return False
        answers = yield from self._notifications(awake, wait_ms)
        return any(isinstance(each, RemotingCommand) for each in answers)

    def _pause(self, sources: Sequence[PopSource], wait_ms: float) -> Pause:
        """Return a pause until one of these resting brokers is asked again, `wait_ms` at most."""
        ends_s = [self._rest_of(each)[0] for each in sources]
        left_ms = [(end_s - self._clock()) * 1000 for end_s in ends_s]
        return Pause(max(0.0, min(wait_ms, *left_ms)) if left_ms else wait_ms)

    def wait(self, subscriptions: Mapping[str, TopicSubscription], wait_ms: float) -> Flow[bool]:
        """Return whether a broker has messages, waiting for `wait_ms`, a second at most."""
        sources = yield from self._sources(subscriptions)
        awake = [each for each in sources if self._is_awake(each)]
        if not awake:
            yield self._pause(sources, min(wait_ms, NOTIFIED_MS_MAX))
            return False
        answers = yield from self._notifications(awake, min(wait_ms, NOTIFIED_MS_MAX))
        found = [_notification(each) for each in answers if isinstance(each, RemotingCommand)]
        if any(each.polling_full for each in found):
            yield Pause(min(wait_ms, REST_S * 1000))
            return True  # only a receive tells
        return any(each.has_msg for each in found)

    def _notifications(
        self, awake: Sequence[PopSource], wait_ms: float
    ) -> Flow[list[RemotingCommand | ClientError | None]]:
        asks = []
        for source in awake:
            header = NotificationHeader(
                consumer_group=self.terms.group,
                topic=source.topic,
                queue_id=ALL_QUEUES,
                poll_time_ms=round(wait_ms),
                order=self.terms.order,
                broker_name=source.broker_name,
            )
            command = RemotingCommand(RequestCode.NOTIFICATION, header.encode())
            asks.append(Ask(source.topic, source.broker_name, command, wait_ms))
        answers: list[RemotingCommand | ClientError | None]
        answers = yield Several(asks, wait_ms, wait_all=False)
        for source, answer in zip(awake, answers, strict=True):
            if isinstance(answer, ClientClosed):
                raise answer
            if isinstance(answer, ClientError):
                self._failed(source, answer)
        return answers

    # --- settling

    def ack(self, receipts: Sequence[Receipt]) -> Flow[list[Receipt]]:
        """Settle messages of one broker as consumed.

        Return those that the broker does not hold for this consumer.
        """
        try:
            yield from self._settle(receipts[0], ack_command(self.terms.group, receipts))
        except DeliveryExpired:
            if len(receipts) == 1:
                return list(receipts)
        else:
            return []
        gone: list[Receipt] = []
        for receipt in receipts:
            gone += yield from self.ack([receipt])
        return gone

    def ack_all(self, receipts: Sequence[Receipt]) -> Flow[list[Receipt]]:
        """Settle any number of messages of one broker, as `ack`, in requests that it takes."""
        gone: list[Receipt] = []
        for start in range(0, len(receipts), ACKS_MAX):
            gone += yield from self.ack(receipts[start : start + ACKS_MAX])
        return gone

    def retry(
        self,
        receipt: Receipt,
        delay_level: int = RISING_DELAY,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> Flow[None]:
        """Have a message delivered again after a delay level, or `delay_ms`, with a reason.

        At the limit of retries, and for DEAD_LETTER, it becomes a dead letter.
        """
        tries = receipt.message.reconsume_times
        if delay_level == DEAD_LETTER or (tries >= self.terms.retries_max and not self.terms.order):
            yield from self._dead_letter(receipt, reason)
            return
        if delay_ms is not None:
            yield from self.change(receipt, delay_ms, reason=reason)
            return
        level = max(1, delay_level or FIRST_RETRY_LEVEL + tries)  # a producer may set the tries
        level_ms = DELAYS_S[min(level, len(DELAYS_S)) - 1] * 1000
        yield from self.change(receipt, level_ms, delay_level, reason)

    def _dead_letter(self, receipt: Receipt, reason: str) -> Flow[None]:
        """Copy a message to the dead-letter queue, then settle it."""
        view = receipt.message
        header = ConsumerSendMsgBackHeader(
            offset=view.physical_offset,
            group=self.terms.group,
            delay_level=DEAD_LETTER,
            origin_msg_id=view.message_id,
            origin_topic=view.topic,
            max_reconsume_times=self.terms.retries_max,
            broker_name=receipt.broker_name,
            failure=failure_bytes(reason).decode() or None,
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        yield from self._settle(receipt, command)
        if (yield from self.ack([receipt])):
            raise expired([receipt])

    def change(
        self,
        receipt: Receipt,
        invisible_ms: int,
        delay_level: int | None = None,
        reason: str = "",
    ) -> Flow[None]:
        """Let a message stay invisible from now for `invisible_ms`, then be delivered again.

        Brokers that know retries by `delay_level` store it for that instead.
        """
        command = change_command(self.terms.group, receipt, invisible_ms, delay_level, reason)
        answer = yield from self._settle(receipt, command)
        self._changed(receipt, answer)

    def change_all(
        self, receipts: Sequence[Receipt], invisible_ms: int, timeout_ms: float
    ) -> Flow[list[Receipt]]:
        """Change the invisible time of messages at once.

        Return those that the broker does not hold for this consumer. Other failures are logged.
        """
        asks = [
            Ask(
                each.topic,
                each.broker_name,
                change_command(self.terms.group, each, invisible_ms, None),
                timeout_ms,
            )
            for each in receipts
        ]
        answers = yield Several(asks, timeout_ms, wait_all=True)
        gone = []
        for receipt, answer in zip(receipts, answers, strict=True):
            try:
                if isinstance(answer, ClientError):
                    raise answer
                if answer is None:
                    raise RequestTimeout(f"{receipt.broker_name} did not answer in time")
                if answer.code in _GONE_CODES:
                    gone.append(receipt)
                    continue
                checked(answer, receipt.broker_name)
                self._changed(receipt, answer)
            except ClientError as error:
                log.warning(
                    "invisible time not changed",
                    group=self.terms.group,
                    id=receipt.message.message_id,
                    error=str(error),
                )
        return gone

    def _changed(self, receipt: Receipt, answer: RemotingCommand) -> None:
        try:
            receipt.changed(answer.fields, self._clock())
        except RemoteError as error:
            raise BadAnswer(f"an answer that cannot be understood: {error.remark}") from None

    def _settle(self, receipt: Receipt, command: RemotingCommand) -> Flow[RemotingCommand]:
        """Return a successful answer; try again while the broker is unreachable or busy."""
        deadline_s = self._clock() + SETTLE_TIMEOUT_MS / 1000
        while True:
            left_ms = (deadline_s - self._clock()) * 1000
            try:
                answer: RemotingCommand
                timeout_ms = min(left_ms, SETTLE_TRY_MS)
                answer = yield Ask(receipt.topic, receipt.broker_name, command, timeout_ms)
                if answer.code in _GONE_CODES:
                    raise expired([receipt])
                checked(answer, receipt.broker_name)
                return answer
            except ClientError as error:
                left_ms = (deadline_s - self._clock()) * 1000
                if not is_passing(error) or left_ms <= SETTLE_AGAIN_MS:
                    raise
            yield Pause(SETTLE_AGAIN_MS)


def _notification(answer: RemotingCommand) -> NotificationResponseHeader:
    try:
        return NotificationResponseHeader.decode(answer.fields)
    except RemoteError:
        return NotificationResponseHeader(polling_full=True)


def expired(receipts: Iterable[Receipt]) -> DeliveryExpired:
    """Return the error for messages that their broker does not hold for this consumer."""
    named = ", ".join(receipt.message.message_id for receipt in receipts)
    return DeliveryExpired(
        f"the broker no longer holds {named} for this consumer:"
        " it was settled, or is delivered again"
    )
