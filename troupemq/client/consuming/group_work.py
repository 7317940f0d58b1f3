"""Base of push and pull consumers: a group, its subscriptions and its rebalances, as flows.

The threaded consumers (group_member.py) and those of an event loop (aio/group_member.py) drive
these flows.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from protocol.bodies import CheckClientRequest, ConsumerData
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import NotifyConsumerIdsChangedHeader
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.arguments import check_flag, check_instance, check_time
from troupemq.client.connection.calls import Blocking, Call, Flow, LookUpRoute
from troupemq.client.connection.client import ClientCore
from troupemq.client.connection.lifecycle import Work
from troupemq.client.consuming.consumer_offsets import (
    ConsumeFrom,
    GroupOffsets,
    Offsets,
    QueueEnds,
)
from troupemq.client.consuming.consumer_statistics import SAMPLE_INTERVAL_MS, ConsumerStatistics
from troupemq.client.consuming.pull import Pulling
from troupemq.client.consuming.rebalance import INCOMPLETE_AGAIN_MS, Rebalancing
from troupemq.client.consuming.subscription import TAG, TopicSubscription
from troupemq.client.errors import ArgumentIllegal, ClientError, RouteNotFound
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, check_topic
from troupemq.client.settings import ConsumerSettings

if TYPE_CHECKING:
    from pathlib import Path

    from troupemq.client.consuming.local_offsets import LocalOffsets

log = client_logger(__name__)

CHECK_TIMEOUT_MS = 3000
UNSUBSCRIBED_AFTER_MS = 5000
"""Time from the start on in which an application has made its subscriptions."""
RESET_AGAIN_MS = 1000
RESET_BYTES_HERE_MAX = 2 << 10
"""Maximum length of a reset that is read where requests arrive, some 20 queues: 1 ms."""
LONG_RESETS_BYTES_MAX = 32 << 20
"""Maximum length of all longer ones that wait to be read."""
RESET_TRIES = 30
CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"

_members: "WeakValueDictionary[tuple[str, str, str], GroupWork]" = WeakValueDictionary()
"""Running consumers of this process, by name servers, group and client id, as brokers know them."""

_members_lock = Lock()


def _offsets_in_files(folder: "Path | None", group: str, ends: QueueEnds) -> "LocalOffsets":
    """Return the offsets of a broadcast consumer. Files are loaded for it alone."""
    from pathlib import Path

    from troupemq.client.consuming.local_offsets import LocalOffsets, default_folder

    return LocalOffsets(default_folder() if folder is None else Path(folder), group, ends)


class GroupTerms(NamedTuple):
    """Arguments of push and pull consumers, as they are given."""

    settings: ConsumerSettings
    begin: ConsumeFrom
    begin_ms: int | None
    broadcast: bool
    offsets_folder: "Path | None"

    def check(self) -> None:
        """Raise ArgumentIllegal for invalid arguments."""
        check_instance(self.settings, ConsumerSettings, "settings are ConsumerSettings")
        check_instance(self.begin, ConsumeFrom, "begin is a ConsumeFrom, such as FIRST_OFFSET")
        if self.begin_ms is not None:
            check_time(self.begin_ms, "begin_ms")
        if self.offsets_folder is not None:
            from pathlib import Path

            check_instance(self.offsets_folder, str | Path, "offsets_folder is a path")
        check_flag(self.broadcast, "broadcast")
        if self.begin_ms is not None and self.begin is not ConsumeFrom.TIMESTAMP:
            raise ArgumentIllegal("begin_ms is for begin=ConsumeFrom.TIMESTAMP")


class GroupWork(ABC):
    """A member of a consumer group; subclasses create `_pulling` and `_rebalancing`."""

    kind = "consumer"
    consume_type: ClassVar[str]
    group: str
    settings: ConsumerSettings
    _core: ClientCore
    _pulling: Pulling
    _rebalancing: Rebalancing

    def _join(self, client: ClientCore, terms: GroupTerms) -> None:
        """Set the state up, after the check of the terms and the creation of the client."""
        self._core, self.settings = client, terms.settings
        self._member: tuple[str, str, str] | None = None
        """Entry in `_members` while this consumer runs."""

        self.message_model = BROADCASTING if terms.broadcast else CLUSTERING
        self._begin_where = terms.begin
        self._subscriptions: dict[str, TopicSubscription] = {}
        self._statistics = ConsumerStatistics()
        self._ends = QueueEnds(client, terms.begin, terms.begin_ms)
        self._local_offsets: LocalOffsets | None = None
        if terms.broadcast:
            self._local_offsets = _offsets_in_files(terms.offsets_folder, self.group, self._ends)
        self._offsets: Offsets = self._local_offsets or GroupOffsets(client, self.group, self._ends)
        self._announced: tuple[TopicSubscription, ...] = ()
        self._again_due_s = inf
        """Monotonic time of the next repeated rebalance."""
        self._notice_waits = False
        self._long_resets: deque[RemotingCommand] = deque()
        self._resets: dict[MessageQueue, int] = {}
        self._resets_lock = Lock()
        client.consumer_data = self._consumer_data
        client.topics = lambda: tuple(self._subscriptions)
        client.serves[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = self._group_changed
        client.serves[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._reset_requested

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it is started and not stopped."""

    def queues(self) -> dict[MessageQueue, int]:
        """Return the assigned queues with their consumer offsets."""
        return {queue: held.committable() for queue, held in self._rebalancing.own.items()}

    # --- subscriptions

    def _subscribing(self, topic: str, expression: str, sql: str | None) -> Flow[None]:
        """Add a subscription. Raises MessageIllegal, and BrokerError for a rejected `sql`."""
        subscription = TopicSubscription.checked(self.group, topic, expression, sql)
        if self.is_running:
            yield from self._check_filter(subscription)
        self._subscriptions[topic] = subscription
        if self.is_running:
            self._core.flows.post(self._rebalance)

    def _unsubscribe(self, topic: str) -> None:
        check_topic(topic)
        self._subscriptions.pop(topic, None)
        if self.is_running:
            self._core.flows.post(self._rebalance)

    def _check_filter(self, subscription: TopicSubscription) -> Flow[None]:
        """Let a broker of the topic check an SQL92 expression. Raises BrokerError."""
        if subscription.expression_type == TAG:
            return
        try:
            route = yield LookUpRoute(subscription.topic)
        except RouteNotFound:
            return
        for broker_name in sorted({queue.broker_name for queue in route.subscribe_queues})[:1]:
            body = CheckClientRequest(self._core.id, self.group, subscription.data())
            command = RemotingCommand(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
            address = self._core.routes.address(broker_name)
            yield Call(address, command, CHECK_TIMEOUT_MS)

    def _consumer_data(self) -> list[ConsumerData]:
        subscriptions = [each.data() for each in list(self._subscriptions.values())]
        begin = self._begin_where.value
        return [
            ConsumerData(self.group, self.consume_type, self.message_model, begin, subscriptions)
        ]

    # --- start and stop

    def _preparing(self) -> Flow[None]:
        """Run the steps of a start that may fail. Raises ClientError."""
        if self._local_offsets is not None:
            yield Blocking(self._local_offsets.load)
        for subscription in tuple(self._subscriptions.values()):
            try:
                yield LookUpRoute(subscription.topic, again=True)
            except RouteNotFound as error:
                self._rebalancing.missing(subscription.topic, error)
            else:
                yield from self._check_filter(subscription)
        member = ";".join(self._core.routes.namesrvs), self.group, self._core.id
        with _members_lock:
            if member in _members:
                raise ClientError(
                    f"a consumer of the group {self.group} with the client id {self._core.id}"
                    " already runs in this process, and both would consume all messages:"
                    " give each an instance_name of its own"
                )
            _members[member] = self
            self._member = member

    def _handlers_running(self) -> Work:
        """Return the counter of running listener calls."""
        own = tuple(self._rebalancing.own.values())
        return {"handlers": lambda: sum(held.running for held in own)}

    def _forget_member(self) -> None:
        with _members_lock:
            if self._member is not None:
                _members.pop(self._member, None)

    def _begin_rounds(self) -> None:
        """Rebalance, count and commit periodically from now on."""
        self._core.remoting.on_lost = self._rebalancing.connection_lost
        every, settings = self._core.flows.every, self.settings
        every(settings.rebalance_interval_ms, self._rebalance)
        commit_ms = settings.commit_interval_ms
        every(commit_ms, self._rebalancing.commit, first_ms=commit_ms)
        self._core.housekeeping.every(SAMPLE_INTERVAL_MS, self._statistics.sample)
        self._core.housekeeping.later(UNSUBSCRIBED_AFTER_MS, self._warn_of_differences)

    # --- rebalances

    @abstractmethod
    def _rebalance_topics(self) -> Sequence[str] | None:
        """Return the topics to rebalance; None if the application assigns the queues."""

    def _rebalance(self) -> Flow[None]:
        wanted = tuple(self._subscriptions.values())
        if wanted != self._announced:
            yield from self._announce()
            self._announced = wanted
        topics = self._rebalance_topics()
        if topics is None:
            return
        again_ms = yield from self._rebalancing.run(topics)
        if again_ms is not None:
            if again_ms == INCOMPLETE_AGAIN_MS:
                self._announced = ()
            due_s = monotonic() + again_ms / 1000
            if due_s < self._again_due_s:  # one at a time: a missing topic would queue up many
                self._again_due_s = due_s
                self._core.flows.later(again_ms, partial(self._rebalance_again, due_s))

    def _rebalance_again(self, due_s: float) -> Flow[None]:
        if due_s == self._again_due_s:  # otherwise an earlier one has taken its place
            self._again_due_s = inf
            yield from self._rebalance()

    def _rebalance_noticed(self) -> Flow[None]:
        self._notice_waits = False
        return self._rebalance()

    def _warn_of_differences(self) -> None:
        """Log members of this process with other subscriptions; brokers keep one for the group."""
        mine, own = _wanted(self), self._member
        with _members_lock:
            wanted = {_wanted(each) for key, each in _members.items() if own and own[:2] == key[:2]}
        if mine and (others := wanted - {mine, ""}):
            hint = "messages that only one of them wants are lost: give each a group of its own"
            said = {"group": self.group, "one": mine, "other": min(others), "hint": hint}
            log.warning("members subscribe differently", **said)

    def _announce(self) -> Flow[None]:
        """Send the subscriptions to the brokers, which answer no pull without them."""
        for topic in tuple(self._subscriptions):
            try:
                yield LookUpRoute(topic)
            except ClientError as error:
                log.debug("topic route not found", topic=topic, error=str(error))
        yield from self._core.heartbeating()

    def _group_changed(self, command: RemotingCommand) -> RemotingCommand | None:
        """Take a broker's notice of changed members, where requests of brokers arrive."""
        header = NotifyConsumerIdsChangedHeader.decode(command.fields)
        if header.consumer_group == self.group and not self._notice_waits:
            self._notice_waits = True
            self._core.flows.post(self._rebalance_noticed)
        return None

    # --- resets of offsets

    def _reset_requested(self, command: RemotingCommand) -> None:
        """Take a reset of the group's offsets, where requests of brokers arrive.

        A long one would delay all answers: it is read elsewhere, in its turn.
        """
        size = len(command.body or b"")
        if size <= RESET_BYTES_HERE_MAX:
            self._reset_all(_requested_offsets(command, self.group))
            return
        waiting = sum(len(each.body or b"") for each in tuple(self._long_resets))
        if size + waiting > LONG_RESETS_BYTES_MAX:
            log.warning("offset reset rejected", reason=f"{waiting} bytes of others wait")
        else:
            self._long_resets.append(command)
            self._core.flows.post(self._read_long_reset)

    def _read_long_reset(self) -> Flow[None]:
        command = self._long_resets[0]
        try:
            self._reset_all((yield Blocking(lambda: _requested_offsets(command, self.group))))
        finally:
            self._long_resets.popleft()

    def _reset_all(self, offsets: Sequence[tuple[MessageQueue, int]]) -> None:
        """Begin a reset of each own queue; one that waits takes the offset of the last request."""
        own = self._rebalancing.own
        for queue, offset in offsets:
            if queue in own:
                with self._resets_lock:
                    is_new = queue not in self._resets
                    self._resets[queue] = offset
                if is_new:
                    self._core.flows.post(partial(self._reset_waiting, queue))

    def _reset_waiting(self, queue: MessageQueue, tries: int = RESET_TRIES) -> Flow[None]:
        """Reset the offset of an own queue to that of the last request."""
        offset, reason = self._resets[queue], ""
        try:
            if not (yield from self._rebalancing.restart_at(queue, offset)):
                reason = "a listener call is still running"
        except ClientError as error:
            reason = str(error)
        with self._resets_lock:
            is_newest = self._resets[queue] == offset
            if is_newest and (not reason or tries <= 1):
                del self._resets[queue]
        if not is_newest:
            self._core.flows.post(partial(self._reset_waiting, queue))
        elif reason and tries > 1:
            log.warning("offset reset postponed", queue=str(queue), offset=offset, reason=reason)
            self._core.flows.later(RESET_AGAIN_MS, partial(self._reset_waiting, queue, tries - 1))
        elif reason:
            hint = "the queue goes on where it was: repeat the reset"
            log.warning(
                "offset reset failed", queue=str(queue), offset=offset, reason=reason, hint=hint
            )


def _wanted(member: GroupWork) -> str:
    """Return the subscriptions of a member, without its retry topic."""
    found = sorted(tuple(member._subscriptions.items()))
    retries = RETRY_TOPIC_PREFIX + member.group
    return ", ".join(f"{topic} {each.expression}" for topic, each in found if topic != retries)


def _requested_offsets(command: RemotingCommand, group: str) -> list[tuple[MessageQueue, int]]:
    # Imported here because few consumers are ever reset.
    from troupemq.client.consuming.consumer_requests import requested_offsets

    return requested_offsets(command, group)
