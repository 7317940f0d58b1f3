"""The hand-over of followers (index, transaction table) from one actor to the next.

    at a start      those that are behind    CatchUp reads the log for them, on its thread
    nearly there    FollowersCaughtUp        Reput closes the rest on the loop, in small steps
    afterwards      fed with the queues      Reput
    index damaged   RebuildIndex             Reput drops it; FollowerBehind: CatchUp again

The present owner takes a name out of, or puts it into, `Lagging.behind` before it tells the other
one; so whoever of the two is restarted knows what is its own, whatever became of the message.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.engine.actor_address import ActorAddress
from actors.engine.inbox import Refusable
from actors.network.request import Request
from storage.dispatching.dispatch import Dispatcher, Follower
from storage.dispatching.followers import SLICE_RECORDS, Lagging, feed


@dataclass(slots=True)
class FollowersCaughtUp:
    """Told to Reput: these are its own now, and know the log nearly to its end."""

    followers: Sequence[Follower]
    position: int
    """Reading goes on here."""


@dataclass(slots=True)
class FollowerBehind:
    """Told to CatchUp: a follower whose name is in `Lagging.behind` has to be made anew."""

    paths: Sequence[str]
    """Files to remove first, in this order."""


@dataclass(slots=True)
class RebuildIndex:
    """Told to Reput: this index file is wrong; it and all newer ones are to be made anew."""

    path: str
    reason: str


@dataclass(slots=True)
class RebuildTable:
    """Told to Reput, and by it to CatchUp: the transaction table is wrong; it is made anew."""

    reason: str


@dataclass(slots=True)
class WriteOutIndex:
    """Told to Reput by whoever answers a query: keys in memory alone would not be found."""

    request: Request
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Reput died with it: the query is answered from what is in the files."""
        self.reply_to.tell(IndexWritten(self.request))


@dataclass(slots=True)
class IndexWritten:
    """Every key of what was dispatched before is in a file, unless the disk refused."""

    request: Request

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


@dataclass(slots=True)
class AwaitDispatch:
    """Told to Reput by whoever needs the unit of a record: `reply_to` is told `then` when all below
    `end_offset` has its units, or at the next tick, whatever has come by then."""

    end_offset: int
    then: Refusable
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        """Reput died with it: what there is counts."""
        self.reply_to.tell(self.then)


@dataclass(slots=True)
class LowerIndexTime:
    """Told to FlushRealTime: index files newer than this were dropped; the checkpoint must not
    vouch for those that take their place."""

    index_ms: int
    reply_to: ActorAddress

    def refuse(self, _remark: str) -> None:
        self.reply_to.tell(IndexTimeLowered(False))


@dataclass(slots=True)
class IndexTimeLowered:
    """Whether the checkpoint on the disk says so."""

    done: bool


@dataclass(slots=True)
class IndexSynced:
    """Told to FlushRealTime: full index files up to this store timestamp are on the disk."""

    index_ms: int


class GapCloser:
    """Reput's followers that do not know everything the queues know; they are not fed with them."""

    def __init__(self, lagging: Lagging, dispatcher: Dispatcher) -> None:
        self._lagging = lagging
        self._dispatcher = dispatcher
        self._open: dict[Follower, int] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def owns(self, follower: Follower | None) -> bool:
        """Whether a follower is Reput's at all, with a gap or without."""
        return follower is not None and follower.name not in self._lagging.behind

    def begin(self) -> None:
        """Sorts Reput's own followers; it has just started."""
        self._open.clear()
        self._dispatcher.followers = ()
        for follower in self._lagging.in_time():
            self.adopt(follower, follower.covered_offset)

    def adopt(self, follower: Follower, position: int) -> None:
        """One that knows the log up to `position`; nothing happens if Reput has it already."""
        if not self.owns(follower) or follower in self._dispatcher.followers:
            return
        if position >= self._dispatcher.dispatched_offset:
            self._open.pop(follower, None)
            self._dispatcher.followers += (follower,)
        else:
            self._open.setdefault(follower, position)

    def part_with_those_behind(self, end_offset: int) -> None:
        """After a failure: those that did not take what ends here are not fed any more."""
        for follower in self._dispatcher.followers:
            if follower.covered_offset < end_offset:
                self._set_apart(follower)
                self._open[follower] = follower.covered_offset

    def give_away(self, follower: Follower) -> None:
        """It is the catch-up actor's from now on."""
        self._set_apart(follower)
        self._open.pop(follower, None)
        self._lagging.behind.add(follower.name)

    def _set_apart(self, follower: Follower) -> None:
        fed = self._dispatcher.followers
        self._dispatcher.followers = tuple(each for each in fed if each is not follower)

    def step(self) -> None:
        """Reads and feeds a few records. Raises StoreError or OSError, and may be tried again."""
        if not self._open:
            return
        position = min(self._open.values())
        part = self._lagging.reader.read(position, SLICE_RECORDS)
        late = [each for each, known in self._open.items() if known <= position]
        feed(late, part)
        for follower in late:
            self._open[follower] = part.next_offset
            self.adopt(follower, part.next_offset)
