"""Last steps of a follower (index, table) from CatchUp to Reput.

    after a start   far behind       CatchUp reads the log for it, on a thread
    nearly there    small gap        GapCloser reads the rest on the loop, in small steps
    then            no gap           Reput feeds it along with the queues
    damaged         RebuildIndex     Reput drops it and sends FollowerBehind to CatchUp

The owner updates `Lagging.behind` before it messages the other actor. Therefore a restarted actor
knows its followers, even if the message was lost.
"""

from storage.dispatching.dispatch import Dispatcher, Follower
from storage.dispatching.followers import SLICE_RECORDS, Lagging, feed


class GapCloser:
    """Reput's followers that have seen less than the consume queues.

    The dispatcher does not feed them until `step` has closed their gap.
    """

    def __init__(self, lagging: Lagging, dispatcher: Dispatcher) -> None:
        self._lagging = lagging
        self._dispatcher = dispatcher
        self._open: dict[Follower, int] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def owns(self, follower: Follower | None) -> bool:
        """Return whether Reput owns a follower, with a gap or without."""
        return follower is not None and follower.name not in self._lagging.behind

    def begin(self) -> None:
        """Collect Reput's followers after its start."""
        self._open.clear()
        self._dispatcher.followers = ()
        for follower in self._lagging.in_time():
            self.adopt(follower, follower.covered_offset)

    def adopt(self, follower: Follower, position: int) -> None:
        """Add a follower that has read the log up to `position`, unless it is fed already."""
        if not self.owns(follower) or follower in self._dispatcher.followers:
            return
        if position >= self._dispatcher.dispatched_offset:
            self._open.pop(follower, None)
            self._dispatcher.followers += (follower,)
        else:
            self._open.setdefault(follower, position)

    def part_with_those_behind(self, end_offset: int) -> None:
        """Stop feeding followers that missed records below `end_offset`, after a failure."""
        for follower in self._dispatcher.followers:
            if follower.covered_offset < end_offset:
                self._set_apart(follower)
                self._open[follower] = follower.covered_offset

    def give_away(self, follower: Follower) -> None:
        """Make CatchUp the owner of a follower."""
        self._set_apart(follower)
        self._open.pop(follower, None)
        self._lagging.behind.add(follower.name)

    def _set_apart(self, follower: Follower) -> None:
        fed = self._dispatcher.followers
        self._dispatcher.followers = tuple(each for each in fed if each is not follower)

    def step(self) -> None:
        """Read and feed a few records.

        Raises StoreError or OSError, and may then be called again.
        """
        if not self._open:
            return
        position = min(self._open.values())
        part = self._lagging.reader.read(position, SLICE_RECORDS)
        late = [each for each, known in self._open.items() if known <= position]
        feed(late, part)
        for follower in late:
            self._open[follower] = part.next_offset
            self.adopt(follower, part.next_offset)
