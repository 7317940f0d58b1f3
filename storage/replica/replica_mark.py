"""The mark of a store that was a slave's: its tables may lack what its log has.

A slave takes the log as it is written and the tables every few seconds; so who starts as a master
on what a slave has left may find messages of topics that no table names. The mark,
`<root>/troupemq/replica`, is made by a slave's start and taken away once the tables of a master
are complete. Without it nothing may be concluded from queues without a topic: they are what the
deletion of a topic leaves when it is interrupted.
"""

from protocol.topic_names import RETRY_TOPIC_PREFIX, is_legal_name
from storage.config import StoreConfig
from storage.errors import store_error
from storage.files.disk import Disk
from storage.message_store import MessageStore
from storage.retention.trimming import KEPT_TOPICS


def mark_replica(config: StoreConfig, disk: Disk) -> None:
    """Says that a slave has this store. Raises StoreError."""
    path = config.replica_mark_path
    directory = path.rpartition("/")[0]
    try:
        if not disk.exists(path):
            disk.make_dirs(directory)
            disk.open(path, create=True).close()
            disk.sync_directory(directory)
    except OSError as error:
        raise store_error(f"cannot make {path}", error) from error


def is_marked(config: StoreConfig, disk: Disk) -> bool:
    """Whether the last who had this store was a slave."""
    return disk.exists(config.replica_mark_path)


def unmark(config: StoreConfig, disk: Disk) -> None:
    """The tables are complete. Raises OSError."""
    path = config.replica_mark_path
    if disk.exists(path):
        if disk.is_dir(path):
            disk.remove_tree(path)
        else:
            disk.unlink(path)
        disk.sync_directory(path.rpartition("/")[0])


def queued_topics(store: MessageStore) -> dict[str, int]:
    """The topics of which the log has messages that can be pulled, and how many queues they need.

    Not those that are in no table for as long as nobody asks.
    """
    numbers: dict[str, int] = {}
    begins = store.commit_log.min_offset()
    for queue in store.consume_queues:
        topic = queue.topic
        if queue.max_physical_offset > begins and topic not in KEPT_TOPICS and is_legal_name(topic):
            numbers[topic] = max(numbers.get(topic, 0), queue.queue_id + 1)
    return numbers


def retried_groups(topics: dict[str, int]) -> set[str]:
    """The groups whose retry topics are among these."""
    prefix = RETRY_TOPIC_PREFIX
    return {topic.removeprefix(prefix) for topic in topics if topic.startswith(prefix)}
