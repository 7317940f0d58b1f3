"""Searches of the whole table of consumer offsets, in steps if it is large.

Only the first of several is worked on. It looks at a copy, so that it finds one state of the table.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeAlias

from actors.tables.messages import OffsetsTold, TellOffsets
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR, offset_key

Offsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Offsets by `topic@group`, then by queue."""

KEYS_PER_ROUND = 5_000
"""Entries searched in one round of the loop: up to 5 ms."""


class OffsetSearches:
    """Requests that need a whole table. Used by ConsumerOffsets alone."""

    def __init__(self, copy: Callable[[], Offsets]) -> None:
        """`copy` returns a copy of the present table."""
        self._copy = copy
        self._waiting: deque[TellOffsets] = deque()
        self._rest: Iterator[tuple[str, Mapping[int, int]]] = iter(())
        self._found: dict[tuple[str, str], Mapping[int, int]] = {}

    def answer(self, message: TellOffsets, offsets: Offsets) -> bool:
        """Answer at once if little is to be searched; return whether `step` must be called."""
        group, topic = message.group, message.topic
        if group is not None and topic is not None:
            keys = [(topic, group)]
        elif len(offsets) <= KEYS_PER_ROUND:
            keys = names_of(offsets, group, topic)
        else:
            self._waiting.append(message)
            if len(self._waiting) > 1:
                return False
            self._begin()
            return True
        found = {key: dict(offsets.get(offset_key(*key), {})) for key in keys}
        message.reply_to.tell(OffsetsTold(message.request, found))
        return False

    def _begin(self) -> None:
        self._rest, self._found = iter(self._copy().items()), {}

    def step(self) -> bool:
        """Search the next entries for the first request; return whether another step follows."""
        if not self._waiting:
            return False
        message = self._waiting[0]
        part = dict(islice(self._rest, KEYS_PER_ROUND))
        for key in names_of(part, message.group, message.topic):
            self._found[key] = part[offset_key(*key)]
        if len(part) == KEYS_PER_ROUND:
            return True
        self._waiting.popleft()
        message.reply_to.tell(OffsetsTold(message.request, self._found))
        if self._waiting:
            self._begin()
        return bool(self._waiting)


def names_of(
    keys: Iterable[str], group: str | None = None, topic: str | None = None
) -> list[tuple[str, str]]:
    """Return topic and group of the matching keys; malformed ones match nothing."""
    start = "" if topic is None else offset_key(topic, "")
    end = "" if group is None else offset_key("", group)
    named = keys if topic is None else [key for key in keys if key.startswith(start)]
    if group is not None:
        named = [key for key in named if key.endswith(end)]
    parts = [key.split(TOPIC_GROUP_SEPARATOR) for key in named]
    return [(each[0], each[1]) for each in parts if len(each) == 2]
