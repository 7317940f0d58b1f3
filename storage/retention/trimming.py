"""Trimming: queue units, index and tables of messages whose log files are gone, taken out of use.

The owner of queues and followers does it, a few queues at a time; the files that nobody uses any
more are for somebody else to delete, of each directory the oldest first.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.errors import store_error
from storage.files.mapped_file import first_offset_of
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.queue_files import UNIT_BYTES

QUEUES_PER_STEP = 32
"""A millisecond or two of searching."""
KEPT_TOPICS = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC))
"""In no table as long as nobody has asked for them, and still in use."""


@dataclass
class Trimming:
    """One pass over all queues and followers; `step` until it says that it is through."""

    store: MessageStore
    min_physical: int
    paths: list[str] = field(default_factory=list)
    """Files out of use."""

    def __post_init__(self) -> None:
        self._queues: Iterator[ConsumeQueue] = iter(self.store.consume_queues)

    def step(self) -> bool:
        """Some queues, at last the followers; True when that was all. Raises StoreError."""
        for _ in range(QUEUES_PER_STEP):
            queue = next(self._queues, None)
            if queue is None:
                for follower in self.store.dispatcher.followers:
                    self.paths += follower.trim_before(self.min_physical)
                return True
            self.paths += queue.trim_before(self.min_physical)
            if 0 <= queue.max_physical_offset <= self.min_physical:
                queue.min_offset = queue.max_offset  # of its messages none is left
        return False


@dataclass
class RemovedQueues:
    """Queues that are out of use, with all they had."""

    queues: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, queue id, and the offset that the next message would have had."""
    directories: set[str] = field(default_factory=set)
    """Until these are synced, a power cut may bring the queues back."""


def removed_dir(config: StoreConfig) -> str:
    """Where the files of removed queues lie until they are deleted."""
    return f"{config.root}/troupemq/removed"


def take_out(store: MessageStore, queue: ConsumeQueue, removed: RemovedQueues) -> None:
    """Takes a queue with all it has out of use, into `removed`. Raises StoreError."""
    next_offset = queue.max_offset
    try:
        store.disk.make_dirs(removed_dir(store.config))
        removed.directories |= store.consume_queues.take_out(queue, removed_dir(store.config))
    except OSError as error:
        raise store_error(f"cannot remove queue {queue.directory}", error) from error
    removed.queues.append((queue.topic, queue.queue_id, next_offset))


def remove_queues(
    store: MessageStore,
    topics: frozenset[str] | None,
    removed: RemovedQueues,
    *,
    only: str | None = None,
    before: int | None = None,
    queue_ids: Collection[int] | None = None,
) -> None:
    """Removes the queues of topics that are not among `topics`, into `removed`.

    With None those all of whose messages are gone from the log; with `only` those of that topic,
    and of these only `queue_ids`, and those without a message that lies behind `before` in the log.
    Raises StoreError when the disk refuses; `removed` then holds what was done until there.
    """
    log_begins = store.commit_log.min_offset()
    for queue in store.consume_queues:
        if only is not None:
            is_wanted = queue.topic != only
            is_wanted = is_wanted or (before is not None and queue.max_physical_offset > before)
            is_wanted = is_wanted or (queue_ids is not None and queue.queue_id not in queue_ids)
        elif topics is not None:
            is_wanted = queue.topic in topics or queue.topic in KEPT_TOPICS
        elif queue.topic == SCHEDULE_TOPIC:
            is_wanted = True
        else:
            is_wanted = queue.max_physical_offset >= log_begins or queue.max_physical_offset < 0
        if not is_wanted:
            take_out(store, queue, removed)


def unused_files(store: MessageStore) -> list[str]:
    """Files that lie before the beginning of the log or of their queue, the oldest first.

    They were taken out of use, and who was to delete them did not come to it. Any thread.
    """
    found = _before(store, store.commit_log.queue.directory, store.commit_log.min_offset())
    for queue in store.consume_queues:
        firsts = queue.file_firsts()
        if firsts:
            found += _before(store, queue.directory, firsts[0] * UNIT_BYTES)
    return found


def _before(store: MessageStore, directory: str, offset: int) -> list[str]:
    found = []
    for name in store.disk.listdir(directory):
        first_offset = first_offset_of(name)
        if first_offset is not None and first_offset < offset:
            found.append(f"{directory}/{name}")
    return found
