"""A place to wait for topics that are being made: in order, and each topic is asked for once."""

from collections.abc import Sequence
from itertools import chain
from typing import Generic, TypeVar

from actors.engine.actor_address import ActorAddress
from actors.tables.messages import CreateSystemTopic, CreateTopicOnSend

T = TypeVar("T")


class TopicWaitList(Generic[T]):
    """What one actor keeps until its topic is there. The topic table tells it `TopicReady`."""

    def __init__(self, topics: ActorAddress, count_max: int | None = None) -> None:
        """At most `count_max` may wait for one topic."""
        self._topics = topics
        self._count_max = count_max
        self._waiting: dict[str, list[T]] = {}

    def __contains__(self, topic: str) -> bool:
        """Whether somebody waits for it: who comes now waits behind them."""
        return topic in self._waiting

    def park(self, item: T, create: CreateTopicOnSend | CreateSystemTopic) -> bool:
        """Keeps it, and has the topic made if it is the first; False when too many wait."""
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
        """Those that waited for this topic."""
        return self._waiting.pop(topic, ())

    def release_all(self) -> Sequence[T]:
        """Everything: the topics will not be waited for any more."""
        waiting = [*chain.from_iterable(self._waiting.values())]
        self._waiting.clear()
        return waiting
