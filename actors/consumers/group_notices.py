"""Notices to the members of changed consumer groups, a limited number in a round of the loop.

Each change of a group is told to all its members. A client in 1,000 groups that comes or goes
causes a thousand times as many notices as a group has members; they go out in the next rounds, and
a group that has changed again meanwhile is told once.
"""

from collections.abc import Iterable, Iterator, Mapping

from actors.consumers.consumer_groups import ConsumerGroup
from actors.network.client_calls import next_opaque
from actors.network.request import Peer
from protocol.codes import RequestCode
from protocol.command import ONEWAY_FLAG, RemotingCommand
from protocol.headers.client import NotifyConsumerIdsChangedHeader

NOTICES_PER_ROUND = 500
"""Each takes 8 µs, and as much again to write."""


class GroupNotices:
    """Owned by one actor."""

    def __init__(self, groups: Mapping[str, ConsumerGroup]) -> None:
        self._groups = groups
        self._left = NOTICES_PER_ROUND
        self._untold: dict[str, None] = {}
        self._fields: dict[str, str] = {}
        self._peers: Iterator[Peer] = iter(())

    @property
    def is_used(self) -> bool:
        """Whether this round has sent any."""
        return self._left < NOTICES_PER_ROUND

    def begin_round(self) -> None:
        """Allow as many notices again."""
        self._left = NOTICES_PER_ROUND

    def send(self, groups: Iterable[str] = ()) -> None:
        """Notify the members of these groups, behind earlier ones, as far as the round goes."""
        self._untold.update(dict.fromkeys(groups))
        while self._left > 0:
            peer = next(self._peers, None)
            if peer is not None:
                self._left -= 1
                code, opaque = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, next_opaque()
                peer.send(RemotingCommand(code, self._fields, opaque=opaque, flag=ONEWAY_FLAG))
            elif self._untold:
                name = next(iter(self._untold))
                del self._untold[name]
                group = self._groups.get(name)
                self._fields = NotifyConsumerIdsChangedHeader(name).encode()
                self._peers = iter(() if group is None else group.peers())
            else:
                return
