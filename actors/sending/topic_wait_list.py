"""List of items that wait, in order, for topics that are being made."""

from collections.abc import Sequence
from itertools import chain
from typing import Generic, TypeVar

from actors.engine.actor_address import ActorAddress
from actors.tables.messages import CreateSystemTopic, CreateTopicOnSend

T = TypeVar("T")


class TopicWaitList(Generic[T]):
    """Items of one actor, by the topic they wait for.

    Each topic is requested once; the topic table answers the actor with `TopicReady`.
    """

    def __init__(self, topics: ActorAddress, count_max: int | None = None) -> None:
        """Initialize the list, in which at most `count_max` items wait for one topic."""
        self._topics = topics
        self._count_max = count_max
        self._waiting: dict[str, list[T]] = {}

    def __contains__(self, topic: str) -> bool:
        """Return whether items wait for the topic, so that later ones must wait behind them."""
        return topic in self._waiting

    def park(self, item: T, create: CreateTopicOnSend | CreateSystemTopic) -> bool:
        """Keep the item, and request the topic if it is the first.

        Return False when too many wait.
        """
        waiting = self._waiting.get(create.topic)
        if waiting is None:
            self._waiting[create.topic] = [item]
            self._topics.tell(create)
        elif self._count_max is not None and len(waiting) >= self._count_max:
            return False
        else:
            waiting.append(item)
        return True

    def release(self, topic: str) -> Sequence[T]:
        """Remove and return the items that waited for this topic."""
        return self._waiting.pop(topic, ())

    def release_all(self) -> Sequence[T]:
        """Remove and return all items."""
        waiting = [*chain.from_iterable(self._waiting.values())]
        self._waiting.clear()
        return waiting
