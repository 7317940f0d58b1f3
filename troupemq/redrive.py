"""Redrive of dead letters to their original topics: rate-limited, resumable, no duplicates.

The progress is the consumer offset of the group `REDRIVE_<group>` in the dead-letter topic. Each
copy has an additional key, `redrive:<broker's id of the dead letter>`, by which
troupemq/copier.py avoids duplicates.

A dead letter names its original topic itself, so its sender can forge that name. With access
control, a dead letter is only redriven if its original exists in that topic with the same body.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protocol.properties import RESERVED_NAMES, RETRY_TOPIC
from protocol.topic_names import DLQ_TOPIC_PREFIX
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import ClientError, MessageIllegal, RouteNotFound
from troupemq.client.message import Message, MessageQueue, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import RoundRobin
from troupemq.copier import Copier

MARK = "redrive:"
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
        self._copier = Copier(rate, wait)
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
        end = admin.offsets(queue)[1]
        if (consumer.committed(queue) or 0) >= end:
            return
        self._copier.begin()
        consumer.assign([queue])
        for view in _views(consumer, queue, end):
            if self._count_max is not None and self._copier.sent >= self._count_max:
                return
            topic = view.properties.get(RETRY_TOPIC)
            believes = self._believes or not self._has_accounts
            source = view if believes else admin.original_of(view)
            if topic and source:
                mark = MARK + view.offset_message_id
                self._copier.copy(_copy(source, topic, mark), mark, self._choose, admin, producer)
            elif topic:
                self._without_original += 1
            else:
                self._without_origin += 1
            consumer.commit({queue: view.queue_offset + 1})


def redrive_one(
    group: str, namesrv: str | None, offset_message_id: str, *, believes: bool = False
) -> Redriven:
    """Send one dead letter, named by the broker's id, without changing the committed progress.

    Raises ClientError; MessageIllegal for a message that is not a dead letter of the group.
    """
    with Admin(namesrv) as admin, Producer(GROUP_PREFIX + group, namesrv) as producer:
        view = admin.view_message(offset_message_id)
        if view.queue.topic != DLQ_TOPIC_PREFIX + group:
            raise MessageIllegal(f"{offset_message_id} is not a dead letter of {group}")
        topic = view.properties.get(RETRY_TOPIC)
        if not topic:
            return Redriven(without_origin=1)
        believes = believes or not admin.has_accounts(view.queue.topic)
        source = view if believes else admin.original_of(view)
        if source is None:
            return Redriven(without_original=1)
        mark = MARK + view.offset_message_id
        copier = Copier(1.0, lambda seconds: None, doubts_all=True)
        copier.copy(_copy(source, topic, mark), mark, RoundRobin(), admin, producer)
        return Redriven(copier.sent, copier.found)


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
    properties = {
        name: value for name, value in view.properties.items() if name not in RESERVED_NAMES
    }
    return Message(topic, view.body, view.tags, (*view.keys, mark), properties, view.flag)
