"""Redrive of dead letters to their original topics: rate-limited, resumable, no duplicates.

The progress is the consumer offset of the group `REDRIVE_<group>` in the dead-letter topic. A
discard moves it over dead letters that shall not be sent; they stay in the topic. Each copy has an
additional key, `redrive:<broker's id of the dead letter>`, by which troupemq/copier.py avoids
duplicates.

A dead letter names its original topic itself, so its sender can forge that name. With access
control, a dead letter is only redriven if its original exists in that topic with the same body.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from protocol.compression import CompressionError
from protocol.properties import NOT_COPIED, RETRY_TOPIC
from protocol.topic_names import DLQ_TOPIC_PREFIX
from troupemq.client.admin import Admin, Change
from troupemq.client.admin.life import REDRIVE_MARK
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import ClientError, MessageIllegal, RouteNotFound
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import RoundRobin
from troupemq.copier import Copier

GROUP_PREFIX = "REDRIVE_"
POLL_MS = 1000.0
SILENT_POLLS_MAX = 30
"""Maximum empty polls in a row below the end of the queue; beyond it, the redrive fails."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """Counts of dead letters by outcome."""

    sent: int = 0
    found: int = 0
    """Copies already present, from an interrupted run."""

    without_origin: int = 0
    """Not sent, because they name no original topic."""

    without_original: int = 0
    """Not sent, because no broker has the original message."""

    def plus(self, other: "Redriven") -> "Redriven":
        return Redriven(
            self.sent + other.sent,
            self.found + other.found,
            self.without_origin + other.without_origin,
            self.without_original + other.without_original,
        )


class Redrive:
    def __init__(
        self,
        group: str,
        namesrv: str | None,
        *,
        rate: float,
        count_max: int | None = None,
        believes: bool = False,
        wait: Callable[[float], object],
    ) -> None:
        """Initialize the redrive.

        `rate`: messages a second. `wait`: sleeps for a number of seconds.
        """
        self.topic = DLQ_TOPIC_PREFIX + group
        self._namesrv = namesrv
        self._group = GROUP_PREFIX + group
        self._count_max = count_max
        self._copier = Copier(rate, wait, doubts_all=True)  # some may have been sent by id
        self._choose = RoundRobin()
        self._believes = believes
        self._has_accounts = False
        self._without_origin = self._without_original = 0

    @property
    def done(self) -> Redriven:
        copied = self._copier.sent, self._copier.found
        return Redriven(*copied, self._without_origin, self._without_original)

    def run(self) -> Redriven:
        """Redrive all dead letters that exist at the start.

        Raises ClientError; another run continues from the committed progress.
        """
        with (
            Admin(self._namesrv) as admin,
            Producer(self._group, self._namesrv) as producer,
            PullConsumer(
                self._group, self._namesrv, auto_commit=False, begin=ConsumeFrom.FIRST_OFFSET
            ) as consumer,
        ):
            try:
                queues = consumer.fetch_queues(self.topic)
            except RouteNotFound:
                raise RouteNotFound(
                    f"topic {self.topic} not found: the group has no dead letters"
                ) from None
            self._has_accounts = admin.has_accounts(self.topic)
            for queue in queues:
                self._queue(queue, admin, producer, consumer)
        return self.done

    def _queue(
        self, queue: MessageQueue, admin: Admin, producer: Producer, consumer: PullConsumer
    ) -> None:
        first, end = admin.offsets(queue)
        if max(first, consumer.committed(queue) or 0) >= end:
            return  # done, or all of them have expired
        self._copier.begin()
        consumer.assign([queue])
        for view in _views(consumer, queue, end):
            if self._count_max is not None and self._copier.sent >= self._count_max:
                return
            topic = view.properties.get(RETRY_TOPIC)
            believes = self._believes or not self._has_accounts
            source = view if believes else admin.original_of(view)
            if topic and source:
                mark = REDRIVE_MARK + view.offset_message_id
                self._copier.copy(_copy(source, topic, mark), mark, self._choose, admin, producer)
            elif topic:
                self._without_original += 1
            else:
                self._without_origin += 1
            consumer.commit({queue: view.queue_offset + 1})


def redrive_some(
    group: str, namesrv: str | None, ids: Iterable[str], *, believes: bool = False
) -> Iterator[Redriven | ClientError]:
    """Send dead letters, named by the broker's ids, without changing the committed progress.

    Yield the result of each; MessageIllegal for a message that is not a dead letter of the group.
    Raises ClientError if no broker can be asked.
    """
    topic = DLQ_TOPIC_PREFIX + group
    with Admin(namesrv) as admin, Producer(GROUP_PREFIX + group, namesrv) as producer:
        copier = Copier(1.0, lambda seconds: None, doubts_all=True)
        choose = RoundRobin()
        trusts: bool | None = believes or None
        for each in ids:
            try:
                view = _letter(admin, topic, each)
                if trusts is None:
                    trusts = not admin.has_accounts(topic)
                origin = view.properties.get(RETRY_TOPIC)
                source = view if trusts or not origin else admin.original_of(view)
                if not origin or source is None:
                    yield Redriven(without_origin=not origin, without_original=bool(origin))
                    continue
                mark, sent = REDRIVE_MARK + view.offset_message_id, copier.sent
                copier.copy(_copy(source, origin, mark), mark, choose, admin, producer)
                yield Redriven(sent=copier.sent - sent, found=1 - (copier.sent - sent))
            except ClientError as error:
                yield error


def _letter(admin: Admin, topic: str, offset_message_id: str) -> MessageView:
    """Return a dead letter. Raises MessageIllegal for a message of another topic, ClientError."""
    view = admin.view_message(offset_message_id)
    if view.queue.topic != topic:
        group = topic.removeprefix(DLQ_TOPIC_PREFIX)
        raise MessageIllegal(f"{offset_message_id} is not a dead letter of {group}")
    return view


@dataclass(frozen=True, slots=True)
class Discarded(Change):
    """Progress of the redrive in one queue, moved over dead letters that it then never sends."""

    SENTENCE = "{0.discarded} dead letters of {0.group} in {0.broker}:{0.queue_id} are discarded."
    group: str
    broker: str
    queue_id: int
    offset_before: int
    offset: int
    discarded: int


def to_discard(admin: Admin, group: str, ids: Sequence[str] = ()) -> list[Discarded]:
    """Return what a discard would do: pass over the dead letters up to the last id of each queue.

    Without ids, all that exist. Raises ClientError, MessageIllegal as `redrive_some`.
    """
    topic = DLQ_TOPIC_PREFIX + group
    ends: dict[MessageQueue, int] = {}
    for each in ids:
        view = _letter(admin, topic, each)
        ends[view.queue] = max(ends.get(view.queue, 0), view.queue_offset + 1)
    found = []
    for queue in sorted(ends) if ids else admin.queues(topic):
        first, last = admin.offsets(queue)
        before = max(first, admin.stored_offset(GROUP_PREFIX + group, queue) or 0)
        end = max(before, ends[queue] if ids else last)
        place = queue.broker_name, queue.queue_id
        found.append(Discarded(group, *place, before, end, end - before))
    return found


def discard(admin: Admin, group: str, ids: Sequence[str] = ()) -> Iterator[Discarded]:
    """Do what `to_discard` returns; yield it queue by queue. Raises ClientError."""
    for each in to_discard(admin, group, ids):
        if each.discarded:
            queue = MessageQueue(DLQ_TOPIC_PREFIX + group, each.broker, each.queue_id)
            admin.store_offset(GROUP_PREFIX + group, queue, each.offset)
        yield each


def _views(consumer: PullConsumer, queue: MessageQueue, end: int) -> Iterator[MessageView]:
    silent = 0
    while silent < SILENT_POLLS_MAX:
        views = consumer.poll(POLL_MS)
        silent = 0 if views else silent + 1
        for view in views:
            if view.queue_offset >= end:
                return
            yield view
            if view.queue_offset == end - 1:
                return
    raise ClientError(f"{queue} returned no messages, though its max offset is {end}")


def _copy(view: MessageView, topic: str, mark: str) -> Message:
    """Return the message to send. Raises MessageIllegal for an unreadable body."""
    properties = {name: value for name, value in view.properties.items() if name not in NOT_COPIED}
    try:
        body = view.body
    except CompressionError as error:
        raise MessageIllegal(f"{view.offset_message_id} cannot be sent again: {error}") from error
    return Message(topic, body, view.tags, (*view.keys, mark), properties, view.flag)
