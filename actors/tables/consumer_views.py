"""Consumer groups as others may see them: snapshots that Clients publishes.

Source: broker/client/ConsumerManager.java, ConsumerGroupInfo.java.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from actors.access.grant import Grant
from actors.network.request import Peer
from protocol.bodies import SubscriptionData
from protocol.sink import owner_of

NOT_SUBSCRIBED = ""
"""Stands for a member that does not want a topic at all."""


@dataclass(frozen=True, slots=True)
class Wanting:
    """The members that want one expression of a topic."""

    expression: str
    """`*`, tags sorted and joined with ` || `, `SQL92: a > 1`; NOT_SUBSCRIBED."""
    count: int
    client_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A topic of which the members of a group want different things."""

    topic: str
    wanted: Sequence[Wanting]

    def sentence(self) -> str:
        """For logs: what is wanted, by whom."""
        return "; ".join(
            f"{each.expression or 'not subscribed'} by {each.count}:"
            f" {', '.join(each.client_ids)}{', …' if each.count > len(each.client_ids) else ''}"
            for each in self.wanted
        )


@dataclass(slots=True)
class Member:
    """One client in one group."""

    peer: Peer
    client_id: str
    language: int
    version: int
    updated_ms: float
    joined_ms: float = 0.0
    """When this connection came into the group; heartbeats later than that do not change it."""
    wants: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """What this client alone said last, by topic; for a producer nothing."""
    wanted: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """What it said before it said something else."""
    grant: Grant | None = None
    """What it said so with; None where there is no access control."""

    @property
    def account(self) -> tuple[str, str] | None:
        """Its name, and the address where that is a white one: with the same go the same rights.
        None where there is no access control."""
        grant = self.grant
        if grant is None:
            return None
        return grant.account.access_key, grant.address if grant.is_white else ""


class Producing(NamedTuple):
    """Those of a producer group that have the same rights: a few of them, however many peers."""

    peers: Sequence[Peer]
    grant: Grant | None = None
    """Of one of them; None where there is no access control."""

    def is_of(self, owner: str | None) -> bool:
        """Whether theirs is the account with this checksum (protocol/sink.py)."""
        return self.grant is not None and owner == owner_of(self.grant.account.access_key)

    def may_send(self, topic: str) -> bool:
        """Whether they could have sent to this topic, as accounts are now."""
        if self.grant is None:
            return True
        now = self.grant.current()
        if now.is_white and not self.grant.is_white:  # the others are elsewhere
            now = replace(now, is_white=False)
        return now.may_send(topic)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of a topic; `codes` are its tags' hash codes, None: every message."""

    data: SubscriptionData
    codes: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer group as others may see it."""

    message_model: str | None
    subscriptions: Mapping[str, Subscription]
    members: Mapping[int, Member] = field(default_factory=dict)
    """By connection. `updated_ms` and `wants` are those of the time of publishing."""
    consume_type: str | None = None
    consume_from_where: str | None = None
    mismatches: Sequence[Mismatch] = ()
    """Topics that its members do not subscribe alike."""

    def member_of(self, client_id: str | None) -> Member | None:
        """The member of that name, of several connections the first; None without one."""
        return next((each for each in self.members.values() if each.client_id == client_id), None)
