"""Restore of archived messages to a topic: rate-limited, resumable, no duplicates.

Archived queues are sent one after the other, each in order, each into one queue of the topic. The
progress is the consumer offsets of the group `RESTORE_<checksum of the request>` at a broker of the
topic, under the ids of the archived queues.

A copy's message id (UNIQ_KEY) is the broker's id of the archived message. By it
troupemq/copier.py avoids duplicates, even after a kill, or if another range or another archive of
the same messages was restored before.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.settings.extras import install_command
from protocol.message import crc32c
from protocol.properties import KEYS, NOT_COPIED, TAGS, UNIQ_KEY
from storage.errors import StoreError
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import MessageIllegal, RouteNotFound
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.queue_choice import QueueChoice
from troupemq.copier import Copier

if TYPE_CHECKING:
    from spark.archive.messages import ArchivedMessage, WantedMessages

GROUP_PREFIX = "RESTORE_"
_KEPT = (KEYS, TAGS)
NAMED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Restored:
    """Counts of messages by outcome."""

    sent: int
    found: int
    """Copies already present, from an interrupted run or another range."""

    left_out: tuple[str, ...]
    """A sentence for each message that cannot be sent; at most NAMED_MAX."""

    left_out_count: int


class Restore:
    def __init__(
        self,
        archive: str,
        wanted: "WantedMessages",
        to: str,
        namesrv: str | None,
        *,
        rate: float,
        wait: Callable[[float], object],
    ) -> None:
        """Initialize the restore.

        `rate`: messages a second. `wait`: sleeps for a number of seconds.
        """
        self._archive = str(Path(archive).absolute())
        self._wanted = wanted
        self._to = to
        self._namesrv = namesrv
        asked = json.dumps([self._archive, asdict(wanted), to])
        self.group = f"{GROUP_PREFIX}{crc32c(asked.encode()):08x}"
        self._copier = Copier(rate, wait, doubts_all=True)
        self._left_out: list[str] = []
        self._left_out_count = 0

    @property
    def done(self) -> Restored:
        copier = self._copier
        return Restored(copier.sent, copier.found, tuple(self._left_out), self._left_out_count)

    def run(self) -> Restored:
        """Send all wanted messages.

        Raises ClientError and StoreError; another run continues from the committed progress.
        """
        from spark.archive.messages import queue_ids

        ids = queue_ids(self._archive, self._wanted)
        with (
            Admin(self._namesrv) as admin,
            Producer(self.group, self._namesrv) as producer,
            PullConsumer(
                self.group, self._namesrv, auto_commit=False, begin=ConsumeFrom.FIRST_OFFSET
            ) as consumer,
        ):
            try:
                queues = consumer.fetch_queues(self._to)
            except RouteNotFound:
                raise RouteNotFound(f"topic {self._to} not found: create it first") from None
            for queue_id in ids:
                place = MessageQueue(self._to, queues[0].broker_name, queue_id)
                self._queue(place, admin, producer, consumer)
        return self.done

    def _queue(
        self, place: MessageQueue, admin: Admin, producer: Producer, consumer: PullConsumer
    ) -> None:
        """Restore one archived queue; `place` is the queue that holds its progress."""
        from spark.archive.messages import messages

        self._copier.begin()
        committed = consumer.committed(place) or 0
        choose = _always(place.queue_id)
        for message in messages(self._archive, self._wanted, place.queue_id, committed):
            try:
                copy = copy_of(message, self._to)
                self._copier.copy(copy, message.msg_id, choose, admin, producer)
            except MessageIllegal as error:
                self._left_out_count += 1
                if len(self._left_out) < NAMED_MAX:
                    self._left_out.append(
                        f"message {message.queue_offset} in queue {message.queue_id}: {error}"
                    )
            consumer.commit({place: message.queue_offset + 1})


def copy_of(message: "ArchivedMessage", topic: str) -> Message:
    """Return a message with the same content; raise MessageIllegal for a damaged one."""
    if message.body is None or not message.is_intact:
        raise MessageIllegal("its body is damaged in the archive")
    kept = {name: message.properties[name] for name in _KEPT if name in message.properties}
    return Message(
        topic,
        message.body,
        properties={
            name: value for name, value in message.properties.items() if name not in NOT_COPIED
        },
        flag=message.flag,
        system_properties={**kept, UNIQ_KEY: message.msg_id},
    )


def wanted_of(
    topic: str,
    queue_id: int | None = None,
    first: int = 0,
    end: int | None = None,
    from_ms: int | None = None,
    until_ms: int | None = None,
) -> "WantedMessages":
    """Return a range of one topic.

    Raises StoreError for an end before the start, and if pyarrow or numpy is missing.
    """
    for name, start, stop in (("offset", first, end), ("time", from_ms, until_ms)):
        if start is not None and stop is not None and stop < start:
            raise StoreError(f"--to-{name} {stop} is before --from-{name} {start}: exchange them")
    try:
        from spark.archive.messages import WantedMessages
    except ModuleNotFoundError as error:
        cure = install_command("spark")
        if sys.implementation.name != "cpython":
            there = install_command("spark", python="PYTHON")
            cure = f"run this command with a CPython that has them: {there}"
        raise StoreError(f"reading an archive needs pyarrow and numpy: {cure}") from error
    return WantedMessages(topic, queue_id, first, end, from_ms, until_ms)


def _always(queue_id: int) -> QueueChoice:
    """Choose one queue for a whole archived queue, to keep the order."""
    return lambda queues, message: queues[queue_id % len(queues)]
