"""Mark of a store that belonged to a slave: tables may lack topics of the log.

A slave copies the log continuously, but the tables only every few seconds. A master that starts on
a slave's store may therefore find messages of unknown topics. A slave's start creates the mark,
`<root>/troupemq/replica`; it is removed once a master's tables are complete.

Without the mark, queues without a topic prove nothing: an interrupted deletion of a topic leaves
them, too.
"""

from protocol.topic_names import RETRY_TOPIC_PREFIX, is_legal_name
from storage.config import StoreConfig
from storage.errors import store_error
from storage.files.disk import Disk
from storage.message_store import MessageStore
from storage.retention.trimming import KEPT_TOPICS


def mark_replica(config: StoreConfig, disk: Disk) -> None:
    """Mark the store as a slave's. Raises StoreError."""
    path = config.replica_mark_path
    directory = path.rpartition("/")[0]
    try:
        if not disk.exists(path):
            disk.make_dirs(directory)
            disk.open(path, create=True).close()
            disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot create {path}", error) from error


def is_marked(config: StoreConfig, disk: Disk) -> bool:
    """Return whether the last owner of the store was a slave."""
    return disk.exists(config.replica_mark_path)


def unmark(config: StoreConfig, disk: Disk) -> None:
    """Remove the mark, because the tables are complete. Raises OSError."""
    path = config.replica_mark_path
    if disk.exists(path):
        if disk.is_dir(path):
            disk.remove_tree(path)
        else:
            disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])


def queued_topics(store: MessageStore) -> dict[str, int]:
    """Return the topics with consumable messages in the log, and the number of queues they need.

    System topics that are created on demand are left out.
    """
    numbers: dict[str, int] = {}
    begins = store.commit_log.min_offset()
    for queue in store.consume_queues:
        topic = queue.topic
        if queue.max_physical_offset > begins and topic not in KEPT_TOPICS and is_legal_name(topic):
            numbers[topic] = max(numbers.get(topic, 0), queue.queue_id + 1)
    return numbers


def retried_groups(topics: dict[str, int]) -> set[str]:
    """Return the consumer groups of the retry topics in `topics`."""
    prefix = RETRY_TOPIC_PREFIX
    return {topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix)}
