"""Queues that live with their connection, read from the topics of their exchanges.

Such a queue is auto-delete or exclusive: replies, events, remote control. It has no group, and it
leaves nothing behind. It begins at the max offset that the topic had when the queue was bound.
"""

from collections import deque
from collections.abc import Callable
from threading import Lock

from troupemq.client.connection.pending import Answer
from troupemq.client.errors import ClientClosed, ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, MessageView, word_of
from troupemq.kombu.envelope import Payload, decode, step_of
from troupemq.kombu.link import BrokerLink, pulled
from troupemq.kombu.places import KombuPlace

log = client_logger(__name__)

AGAIN_MS = 1000
"""Pause after a failed pull."""
BRIEF_MS = 50
"""Pause after a pull that was answered without messages, and while there is no room."""
READ_HERE_BYTES_MAX = 32 << 10
"""Maximum answer that is read on the I/O thread; bodies unfold to a thousand times of that."""
WAITING_MAX = 10_000
"""Messages that wait for a slow consumer in memory; the broker keeps the others."""

Offsets = dict[MessageQueue, int]
Read = tuple[Payload, MessageView]
Found = tuple[list[Read], bool, int]
"""The wanted messages of an answer, whether it had any, and the next offset."""
Accepts = Callable[[str], bool]
"""Function that returns whether a routing key belongs to a queue."""


_by_name: dict[tuple[KombuPlace, str], Offsets] = {}
"""Next offsets of the queues that get messages by their name, for all connections of this process.

Celery declares the queue of its `rpc://` results on one connection and reads it on another.
"""


def begin_by_name(link: BrokerLink, name: str) -> None:
    """Note where a queue begins that gets messages by its name. Raises ClientError."""
    if (link.place, name) not in _by_name:
        topic = link.place.exchange("")
        link.ensure_topic(topic, 1)
        _by_name[link.place, name] = link.ends(topic)


def forget_name(place: KombuPlace, name: str) -> None:
    """Forget where a queue of that name begins."""
    _by_name.pop((place, name), None)


class Reading:
    """Held pulls of one exchange's topic, on the I/O thread of a link."""

    def __init__(
        self,
        link: BrokerLink,
        offsets: Offsets,
        take: Callable[[list[Read]], None],
        has_room: Callable[[], bool],
    ) -> None:
        """Take the offsets to begin at. Without room the broker keeps the messages."""
        self._link, self._take, self._has_room = link, take, has_room
        self._offsets = offsets
        self._accepts: list[Accepts] = []
        self._words: list[str | None] = []
        """Routing keys if all are exact words, which the broker can filter by."""
        self._turn = 0
        """Number of the latest start; pulls of earlier ones end."""
        self._lock = Lock()

    def add(self, accepts: Accepts, exact_key: str | None) -> None:
        self._accepts.append(accepts)
        self._words.append(word_of(exact_key))

    def start(self) -> None:
        self._turn += 1
        for queue in self._offsets:
            self._pull(queue, self._turn)

    def stop(self) -> None:
        self._turn += 1

    def _pull(self, queue: MessageQueue, turn: int) -> None:
        words = self._words
        tags = "*" if None in words else " || ".join(dict.fromkeys(map(str, words)))
        answer = self._link.pull(queue, self._offsets[queue], tags)
        answer.add_done_callback(lambda done: self._came(done, queue, turn))

    def _came(self, answer: Answer, queue: MessageQueue, turn: int) -> None:
        """Read an answer where it arrives, on the I/O thread, unless that takes long."""
        if answer.exception() or len(answer.result().body or b"") <= READ_HERE_BYTES_MAX:
            self._answered(self._read(answer, queue), queue, turn)
            return

        def read() -> None:
            found = self._read(answer, queue)
            self._link.later(0, lambda: self._answered(found, queue, turn))

        self._link.apart(read)

    def _read(self, answer: Answer, queue: MessageQueue) -> Found | ClientError:
        try:
            views, following = pulled(answer, queue)
        except ClientError as error:
            return error
        wanted = [each for view in views if (each := self._wanted(view)) is not None]
        return wanted, bool(views), following

    def _answered(self, found: Found | ClientError, queue: MessageQueue, turn: int) -> None:
        if turn != self._turn or isinstance(found, ClientClosed):
            return
        if isinstance(found, ClientError):
            log.warning("exchange not read", topic=queue.topic, error=str(found))
            self._link.route_in_doubt(queue.topic)
            self._link.later(AGAIN_MS, lambda: self._again(queue, turn))
            return
        wanted, has_any, following = found
        self._take(wanted)
        is_new = has_any or following != self._offsets[queue]
        self._offsets[queue] = following
        if is_new and self._has_room():
            self._pull(queue, turn)
        else:
            self._link.later(BRIEF_MS, lambda: self._again(queue, turn))

    def _again(self, queue: MessageQueue, turn: int) -> None:
        if turn != self._turn or not self._link.is_running:
            return
        if self._has_room():
            self._pull(queue, turn)
        else:
            self._link.later(BRIEF_MS, lambda: self._again(queue, turn))

    def _wanted(self, view: MessageView) -> Read | None:
        try:
            payload = decode(view.body)
            key = payload["properties"]["delivery_info"].get("routing_key")
        except ValueError as error:
            log.warning("message not understood", id=view.message_id, error=str(error))
            return None
        accepted = any(accepts(str(key)) for accepts in self._accepts)
        return (payload, view) if accepted else None


class ReadQueue:
    """A queue that lives with its connection."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[Read] = deque()
        """Messages that were read before a consumer took them."""
        self.on_ready: Callable[[], None] = lambda: None
        self.taken: Callable[[], int] = lambda: 0
        """Number of messages that a consumer has taken and not processed."""
        self.ttl_ms: float | None = None
        self._readings: dict[str, Reading] = {}
        self._is_started = False

    @property
    def is_bound(self) -> bool:
        return bool(self._readings)

    def bind(
        self, link: BrokerLink, exchange: str, accepts: Accepts, exact_key: str | None
    ) -> None:
        """Read an exchange from its end on. Raises ClientError."""
        reading = self._readings.get(exchange)
        if reading is None:
            topic = link.place.exchange(exchange)
            link.ensure_topic(topic, 1)
            reading = Reading(link, link.ends(topic), self._take, self._has_room)
            reading.add(accepts, exact_key)
            self._readings[exchange] = reading
            if self._is_started:
                reading.start()
        else:
            reading.add(accepts, exact_key)

    def read_by_name(self, link: BrokerLink) -> None:
        """Get the messages that are sent to the queue's name. Raises ClientError."""
        begin_by_name(link, self.name)
        reading = Reading(link, _by_name[link.place, self.name], self._take, self._has_room)
        reading.add(lambda key: key == self.name, self.name)
        self._readings[""] = reading

    def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            for reading in self._readings.values():
                reading.start()

    def stop(self) -> None:
        self._is_started = False
        for reading in self._readings.values():
            reading.stop()

    def _has_room(self) -> bool:
        return len(self.ready) + self.taken() < WAITING_MAX

    def _take(self, found: list[Read]) -> None:
        """Keep messages of one pull; those of a high priority come first."""
        self.ready.extend(sorted(found, key=lambda each: -step_of(each[0])))
        self.on_ready()
