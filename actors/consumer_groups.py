"""Which clients are there: producers and consumers by group, as plain classes.

A client is known by its connection; one connection may be in many groups.  Times are monotonic.

Source: broker/client/ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from actors.request import Peer
from protocol.bodies import ConsumerData, SubscriptionData

CLIENT_EXPIRES_MS = 120_000
SUBSCRIBE_ALL = "*"


@dataclass(slots=True)
class Member:
    """One client in one group."""

    peer: Peer
    client_id: str
    language: int
    version: int
    updated_ms: float


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


@dataclass(slots=True)
class ConsumerGroup:
    """Its members, by connection, and what they subscribe to."""

    members: dict[int, Member] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    def view(self) -> ConsumerView:
        """A snapshot."""
        return ConsumerView(
            self.message_model,
            {topic: Subscription(data, _codes(data)) for topic, data in self.subscriptions.items()},
        )

    def peers(self) -> list[Peer]:
        return [member.peer for member in self.members.values()]

    def subscribe(self, wanted: Sequence[SubscriptionData]) -> tuple[bool, bool]:
        """Takes over a member's subscriptions: whether topics came or went, whether any is newer.

        Every member is expected to want the same; the last heartbeat counts.
        """
        came_or_went, newer = False, False
        for data in wanted:
            old = self.subscriptions.get(data.topic)
            if old is None:
                came_or_went = True
            elif data.sub_version > old.sub_version:
                newer = True
            else:
                continue
            self.subscriptions[data.topic] = data
        for topic in self.subscriptions.keys() - {data.topic for data in wanted}:
            del self.subscriptions[topic]
            came_or_went = True
        return came_or_went, newer


def _codes(data: SubscriptionData) -> frozenset[int] | None:
    if data.sub_string == SUBSCRIBE_ALL or data.class_filter_mode:
        return None
    return frozenset(data.code_set)


@dataclass(slots=True)
class Registered:
    """What one heartbeat did to one consumer group."""

    rebalance: bool
    """Members or topics have come or gone: everybody is told."""
    published: bool
    """Others see the group differently now."""


class Consumers:
    """All consumer groups. Owned by one actor."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}

    def register(self, data: ConsumerData, member: Member) -> Registered:
        """A consumer says that it is there."""
        group = self.groups.get(data.group_name)
        is_new = group is None
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup()
        model_changed = group.message_model != data.message_model
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        joined = member.peer.peer_id not in group.members
        group.members[member.peer.peer_id] = member
        came_or_went, newer = group.subscribe(data.subscription_data_set)
        return Registered(
            rebalance=joined or came_or_went,
            published=is_new or model_changed or came_or_went or newer,
        )

    def unregister(self, group_name: str, peer_id: int) -> bool:
        """A consumer leaves one group; whether the group is gone with it."""
        group = self.groups.get(group_name)
        if group is None:
            return False
        group.members.pop(peer_id, None)
        return self._forget_if_empty(group_name)

    def peer_closed(self, peer_id: int) -> list[str]:
        """The groups that the connection was in; those without a member left are gone."""
        left = [name for name, group in self.groups.items() if peer_id in group.members]
        for name in left:
            self.unregister(name, peer_id)
        return left

    def expire(self, now_ms: float) -> list[str]:
        """Removes members without a heartbeat for two minutes; returns the groups they left."""
        left = []
        for name, group in list(self.groups.items()):
            silent = _silent(group.members.values(), now_ms)
            for peer_id in silent:
                del group.members[peer_id]
            if silent:
                left.append(name)
                self._forget_if_empty(name)
        return left

    def client_ids(self, group_name: str) -> list[str]:
        """Who is in a group; empty for an unknown one."""
        group = self.groups.get(group_name)
        return [member.client_id for member in group.members.values()] if group else []

    def _forget_if_empty(self, name: str) -> bool:
        if self.groups[name].members:
            return False
        del self.groups[name]
        return True


class Producers:
    """All producer groups. Owned by one actor."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[int, Member]] = {}
        self.view: Mapping[str, Sequence[Peer]] = {}
        """Who is in each group, as others may see it: replaced, never changed."""

    def register(self, group_name: str, member: Member) -> bool:
        """A producer says that it is there; whether that is new."""
        members = self.groups.setdefault(group_name, {})
        is_new = member.peer.peer_id not in members
        members[member.peer.peer_id] = member
        if is_new:
            self._changed(group_name)
        return is_new

    def unregister(self, group_name: str, peer_id: int) -> None:
        members = self.groups.get(group_name, {})
        if members.pop(peer_id, None) is None:
            return
        if not members:
            del self.groups[group_name]
        self._changed(group_name)

    def peer_closed(self, peer_id: int) -> None:
        for name in [name for name, members in self.groups.items() if peer_id in members]:
            self.unregister(name, peer_id)

    def expire(self, now_ms: float) -> None:
        for name, members in list(self.groups.items()):
            for peer_id in _silent(members.values(), now_ms):
                self.unregister(name, peer_id)

    def _changed(self, name: str) -> None:
        peers = tuple(member.peer for member in self.groups.get(name, {}).values())
        others = {own: view for own, view in self.view.items() if own != name}
        self.view = {**others, name: peers} if peers else others


def _silent(members: Iterable[Member], now_ms: float) -> list[int]:
    oldest_ms = now_ms - CLIENT_EXPIRES_MS
    return [member.peer.peer_id for member in members if member.updated_ms < oldest_ms]
