"""Trimming: removal of queue units, index entries and queues of deleted log files.

The owner of the queues and dispatch targets does it, a few queues at a time. The caller deletes the
unused files, the oldest of each directory first.
"""

from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, field

from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.errors import store_error
from storage.files.mapped_file import first_offset_of
from storage.message_store import MessageStore
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.queue_files import UNIT_BYTES

QUEUES_PER_STEP = 32
"""Queues per step: one or two milliseconds of search."""
KEPT_TOPICS = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC))
"""Topics with queues in use that no table has before a client asks for them."""


@dataclass
class Trimming:
    """One pass over all queues and dispatch targets; call `step` until it returns True."""

    store: MessageStore
    min_physical: int
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queues: Iterator[ConsumeQueue] = iter(self.store.consume_queues)

    def step(self) -> bool:
        """Trim some queues, or finally the dispatch targets; return True at the end.

        Raises StoreError.
        """
        for _ in range(QUEUES_PER_STEP):
            queue = next(self._queues, None)
            if queue is None:
                for follower in self.store.dispatcher.followers:
                    self.paths += follower.trim_before(self.min_physical)
                return True
            self.paths += queue.trim_before(self.min_physical)
            if 0 <= queue.max_physical_offset <= self.min_physical:
                queue.min_offset = queue.max_offset  # all its messages are deleted
        return False


@dataclass
class RemovedQueues:
    """Queues removed with all their files."""

    queues: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, queue id, and the queue offset of the next message."""
    directories: set[str] = field(default_factory=set)
    """Directories to sync; until then, a power failure may restore the queues."""


def removed_dir(config: StoreConfig) -> str:
    """Return the directory of removed queues' files until their deletion."""
    return f"{config.root}/troupemq/removed"


def take_out(store: MessageStore, queue: ConsumeQueue, removed: RemovedQueues) -> None:
    """Remove a queue with all its files and add it to `removed`. Raises StoreError."""
    next_offset = queue.max_offset
    try:
        store.disk.make_dirs(removed_dir(store.config))
        removed.directories |= store.consume_queues.take_out(queue, removed_dir(store.config))
    except OSError as error:
        raise store_error(f"cannot remove queue {queue.directory}", error) from error
    removed.queues.append((queue.topic, queue.queue_id, next_offset))


def remove_queues(
    store: MessageStore,
    topics: Container[str] | None,
    removed: RemovedQueues,
    *,
    only: str | None = None,
    before: int | None = None,
    queue_ids: Collection[int] | None = None,
) -> None:
    """Remove the queues of topics outside `topics` and add them to `removed`.

    With None, remove the queues with only deleted messages. With `only`, remove the queues of that
    topic, limited to `queue_ids`, and to queues without a message behind `before` in the log.
    Raises StoreError when the disk fails; `removed` then holds the queues removed so far.
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
    """Return files before the beginning of the log or of their queue, oldest first.

    They are unused, but their deletion was interrupted. Any thread may call it.
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
