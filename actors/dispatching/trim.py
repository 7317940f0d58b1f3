"""Requests of CleanFiles to Reput, who owns what is derived of the log, and their answers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.snapshot_ref import SnapshotRef
from protocol.bodies import TopicConfig
from storage.queues.consume_queues import ConsumeQueues
from storage.retention.trimming import RemovedQueues, Trimming
from storage.tables.committed import highest_offsets
from storage.tables.offsets import topic_of


@dataclass(slots=True)
class TrimBefore:
    """The log begins at `offset` now: take out of use what is derived from records before it."""

    offset: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Reput died with it."""
        self.reply_to.tell(Trimmed([], is_complete=False))


@dataclass(slots=True)
class Trimmed:
    """Files that nobody uses any more, of each directory the oldest first."""

    paths: Sequence[str]
    is_complete: bool = True


@dataclass(slots=True)
class TrimSome:
    """Go on with the queues that are left; Reput tells itself."""

    trimming: Trimming
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Reput died with it; what is out of use already is to be deleted all the same."""
        self.reply_to.tell(Trimmed(self.trimming.paths, is_complete=False))


@dataclass(slots=True)
class RemoveQueues:
    """Remove the queues of topics that are not among `topics`; None: those without a message."""

    topics: frozenset[str] | None
    reply_to: ActorAddress
    only: str | None = None
    """Just those of this topic, whatever they hold, unless `known` has the topic again."""
    known: SnapshotRef[Mapping[str, TopicConfig]] | None = None
    before: int | None = None
    """And just those without a message behind this place of the log."""
    queue_ids: Collection[int] | None = None
    """And just these."""
    offsets: SnapshotRef[Mapping[str, Mapping[int, int]]] | None = None
    """Not None: their topics stay, so their numbers go on at the highest of these."""

    def refuse(self, remark: str) -> None:
        """Reput died with it."""
        self.reply_to.tell(QueuesRemoved(RemovedQueues(), refused=remark))


@dataclass(slots=True)
class QueuesRemoved:
    """They are out of use; their files lie in a folder of their own, to be deleted."""

    removed: RemovedQueues
    refused: str | None = None
    """Why some or all of them could not be removed."""


@dataclass(slots=True)
class QueuesBegunAnew:
    """Of a slave: its master numbers these queues from 0 again; what they had is out of use."""

    removed: RemovedQueues
    topics: Mapping[str, int]
    """Their topics, and where in the log the newest record with number 0 lies."""


@dataclass(slots=True)
class QueuesEmptied:
    """Told to PullHold: these queues, by topic and id, are out of use; pulls at them are late."""

    queues: Sequence[tuple[str, int]]


def begin_again(
    queues: ConsumeQueues,
    removed: RemovedQueues,
    offsets: Mapping[str, Mapping[int, int]],
) -> None:
    """Let queues whose messages are gone, not their topics, go on at the highest consumer offset.

    4.9.7 numbers them from 0, and groups skip what comes until the number is their offset.
    """
    topics = {topic for topic, _, _ in removed.queues}
    highest = highest_offsets({key: offsets[key] for key in offsets if topic_of(key) in topics})
    for topic, queue_id, _ in removed.queues:
        if offset := highest.get((topic, queue_id)):
            queues.begin_at(topic, queue_id, offset)
