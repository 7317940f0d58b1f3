"""Snapshots of consumer groups, published by Clients.

Source: broker/client/ConsumerManager.java, ConsumerGroupInfo.java.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from actors.access.grant import Grant
from actors.network.messages import Peer
from protocol.bodies import SubscriptionData
from protocol.sink import owner_of

NOT_SUBSCRIBED = ""
"""Expression of a member that does not subscribe to the topic."""


@dataclass(frozen=True, slots=True)
class Wanting:
    """The members of a group with the same expression for a topic."""

    expression: str
    """`*`, tags sorted and joined with ` || `, `SQL92: a > 1`, or NOT_SUBSCRIBED."""
    count: int
    client_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A topic to which the members of a group subscribe differently."""

    topic: str
    wanted: Sequence[Wanting]

    def sentence(self) -> str:
        """Return the expressions and their clients, for logs."""
        return "; ".join(
            f"{each.expression or 'not subscribed'} by {each.count}:"
            f" {', '.join(each.client_ids)}{', …' if each.count > len(each.client_ids) else ''}"
            for each in self.wanted
        )


@dataclass(frozen=True, slots=True)
class ClientCounts:
    """Figures of Clients."""

    producers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Producer connections by language and version."""
    changes: Mapping[str, int] = field(default_factory=dict)
    """Membership changes since the start, by consumer group."""


@dataclass(slots=True)
class Member:
    peer: Peer
    client_id: str
    language: int
    version: int
    updated_ms: float
    joined_ms: float = 0.0
    """Time at which this connection joined the group; later heartbeats do not change it."""
    wants: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """Last subscriptions of this client by topic; empty for a producer."""
    wanted: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """Subscriptions before the last change."""
    places: int = 1
    """Number of places among the members and subscriptions of all groups."""
    grant: Grant | None = None
    """Permissions of its last heartbeat; None without access control."""

    @property
    def account(self) -> tuple[str, str] | None:
        """Access key and allowlisted address, which determine the permissions.

        The address is empty unless it is allowlisted. None without access control.
        """
        grant = self.grant
        if grant is None:
            return None
        return grant.account.access_key, grant.address if grant.is_white else ""


class Producing(NamedTuple):
    """The members of a producer group with the same permissions."""

    peers: Sequence[Peer]
    grant: Grant | None = None
    """Permissions of one of them; None without access control."""

    def is_of(self, owner: str | None) -> bool:
        """Return whether their account has this checksum (protocol/sink.py)."""
        return self.grant is not None and owner == owner_of(self.grant.account.access_key)

    def may_send(self, topic: str) -> bool:
        """Return whether their account, as it is now, may send to this topic."""
        if self.grant is None:
            return True
        now = self.grant.current()
        if now.is_white and not self.grant.is_white:  # the other members have other addresses
            now = replace(now, is_white=False)
        return now.may_send(topic)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic; `codes` are hash codes of tags, None for all messages."""

    data: SubscriptionData
    codes: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class ConsumerView:
    message_model: str | None
    subscriptions: Mapping[str, Subscription]
    members: Mapping[int, Member] = field(default_factory=dict)
    """Members by connection. `updated_ms` and `wants` are those of the time of publishing."""
    consume_type: str | None = None
    consume_from_where: str | None = None
    mismatches: Sequence[Mismatch] = ()
    """Topics to which the members subscribe differently."""

    def member_of(self, client_id: str | None) -> Member | None:
        return next((each for each in self.members.values() if each.client_id == client_id), None)
