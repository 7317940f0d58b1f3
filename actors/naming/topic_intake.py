"""Topics of one registration, and whether they are the broker's whole table; a plain class.

A registration does not tell that it is partial. After an update of one topic, a broker registers
that topic alone, with its table's version. 4.9.7 takes it for the whole table. After a restart of
the name server, it then ignores the other topics for good.

Here a version is whole in three cases:
    * Its topics include the broker's own name, which is a topic of every broker.
    * It has one topic and directly follows a whole version.
    * Several topics came twice, and no others.

Until then, new topics of the version are added, and the broker is asked to register again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.bodies import QueueData
from protocol.bodies_tables import DataVersion


@dataclass(slots=True)
class KnownTopics:
    """Topics of a broker's table received at one version."""

    version: DataVersion
    count: int = 0
    names: set[str] | None = field(default_factory=set)
    """None if the table is whole."""

    @property
    def is_whole(self) -> bool:
        return self.names is None


class TopicIntake:
    """Selection of the topics to add from one registration, slice by slice."""

    def __init__(
        self, own_name: str, version: DataVersion, count: int, before: KnownTopics | None
    ) -> None:
        """Begin with `count` topics of broker `own_name`; `before` was received earlier."""
        self._own_name = own_name
        self._version = version
        self._count = count
        self._before = before
        self._is_same = before is not None and before.version == version
        self._names = set[str]()
        if before is not None and self._is_same and before.names is not None:
            self._names = before.names
        self._has_own_name = self._has_new = self._is_full = False

    def choose(self, queues: Mapping[str, QueueData]) -> Mapping[str, QueueData]:
        """Return the topics to add."""
        self._has_own_name |= self._own_name in queues
        before = self._before
        if before is not None and self._is_same and before.is_whole:
            return queues if self._count > before.count else {}
        names = self._names
        new = {topic: queue for topic, queue in queues.items() if topic not in names}
        self._has_new |= bool(new)
        names.update(new)
        return new

    def no_room(self, topics: Iterable[str]) -> None:
        """Note topics that exceeded a limit; the next registration tries them again."""
        for topic in topics:
            self._is_full = True
            self._names.discard(topic)

    def result(self) -> KnownTopics:
        """Return the known topics after all slices."""
        before, count = self._before, self._count
        if before is not None and self._is_same:
            count = max(count, before.count)
        elif before is not None and self._follows(before):
            count = before.count + 1
        return KnownTopics(self._version, count, None if self._is_whole() else self._names)

    def _is_whole(self) -> bool:
        if self._is_full:
            return False
        if self._has_own_name or self._before is None:
            return self._has_own_name
        if self._is_same:
            return self._before.is_whole or (self._count > 1 and not self._has_new)
        return self._follows(self._before)

    def _follows(self, before: KnownTopics) -> bool:
        """Return whether this is the only change since a whole table."""
        is_next = self._version.counter == before.version.counter + 1
        return before.is_whole and is_next and self._count == 1
