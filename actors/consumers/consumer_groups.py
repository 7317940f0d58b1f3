"""Registry of connected producers and consumers by group.

A connection identifies a client, and may be in many groups. Times are monotonic.

Source: broker/client/ConsumerManager.java, ConsumerGroupInfo.java, ProducerManager.java.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from actors.consumers.heartbeat_rules import (
    PLACES_MAX,
    PRODUCERS_MAX,
    check_groups_of,
    check_places,
    check_share,
    places_of,
)
from actors.consumers.mismatches import alike, mismatches_of
from actors.engine.server_log import RateLimitedLog, shown_names
from actors.network.messages import Peer
from actors.tables.consumer_views import ConsumerView, Member, Mismatch, Producing, Subscription
from protocol.bodies import ConsumerData, SubscriptionData
from protocol.tags import java_hash_code

View = TypeVar("View")
CLIENT_EXPIRES_MS = 120_000
SUBSCRIBE_ALL = "*"
LONG_MAX = (1 << 63) - 1
COMPARED_MAX = 100_000
"""Subscriptions of a group compared with each other, newest members first; 0.2 µs each."""
COMPARED_PER_ROUND = 2500
"""Members and subscriptions compared in one round of the loop; the last group may exceed it."""


@dataclass(slots=True)
class ConsumerGroup:
    """Members of a consumer group by connection, and the group's subscriptions."""

    members: dict[int, Member] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    mismatches: Sequence[Mismatch] = ()
    places: int = 0
    """Number of members plus their subscriptions; a long one counts more."""
    _seen: dict[str, Subscription] = field(default_factory=dict)
    """Subscriptions of the last view, with the hash codes of their tags."""

    def view(self) -> ConsumerView:
        seen = self._seen
        self._seen = {
            topic: found
            if (found := seen.get(topic)) is not None and found.data is data
            else Subscription(data, _codes(data))
            for topic, data in self.subscriptions.items()
        }
        return ConsumerView(
            self.message_model,
            self._seen,
            dict(self.members),
            self.consume_type,
            self.consume_from_where,
            self.mismatches,
        )

    def compare(self) -> bool:
        """Compare the members' subscriptions; return whether the mismatches have changed."""
        wanted: dict[str, Mapping[str, SubscriptionData]] = {}
        count = 0
        for each in sorted(self.members.values(), key=lambda each: each.updated_ms)[::-1]:
            if each.client_id not in wanted:
                wanted[each.client_id] = each.wants
                count += len(each.wants)
                if count > COMPARED_MAX and len(wanted) > 1:
                    break
        found = mismatches_of(wanted)
        changed = found != self.mismatches
        self.mismatches = found
        return changed

    def peers(self) -> list[Peer]:
        return [member.peer for member in self.members.values()]

    def subscribe(self, wanted: list[SubscriptionData], known: Member | None) -> "Subscribed":
        """Merge a member's subscriptions; `known` is the same client before this heartbeat.

        Members are expected to subscribe alike; the newest version counts. A subscription
        that its client has changed is newer than the group's, even with an older version:
        that client's clock went back. `wanted` then gets a new version, so that another
        member's heartbeat does not undo the change. A repetition of the client's earlier
        subscription is only late.
        """
        done = Subscribed()
        for number, data in enumerate(wanted):
            old = self.subscriptions.get(data.topic)
            if old is None:
                done.came_or_went = True
            elif data.sub_version > old.sub_version:
                done.newer = True
            elif known is not None and _has_changed(known, data) and not alike(old, data):
                done.newer = True
                done.late.append(data.topic)
                version = min(old.sub_version + 1, LONG_MAX)
                data = wanted[number] = replace(data, sub_version=version)
            else:
                continue
            self.subscriptions[data.topic] = data
        for topic in self.subscriptions.keys() - {data.topic for data in wanted}:
            del self.subscriptions[topic]
            done.came_or_went = True
        return done

    def known(self, member: Member) -> Member | None:
        """Return the same client, over this connection or another one."""
        found = self.members.get(member.peer.peer_id)
        if found is None:
            same = (each for each in self.members.values() if each.client_id == member.client_id)
            found = next(same, None)
        return found


def _has_changed(known: Member, data: SubscriptionData) -> bool:
    """Return whether a client's subscription differs from its last and its earlier one."""
    own, earlier = known.wants.get(data.topic), known.wanted.get(data.topic)
    is_late = earlier is not None and earlier.sub_version == data.sub_version
    return own is not None and not is_late and not alike(own, data)


@dataclass(slots=True)
class Subscribed:
    """Effect of a member's subscriptions on those of its group."""

    came_or_went: bool = False
    """Topics were added or removed."""
    newer: bool = False
    late: list[str] = field(default_factory=list)
    """Topics with a new subscription of an older version."""


def _codes(data: SubscriptionData) -> frozenset[int] | None:
    """Return the hash codes of a subscription's tags, None for all messages.

    The tags themselves count as well: rocketmq-client-rust 1.0.0 sends codes that are not Java's.
    """
    if data.sub_string == SUBSCRIBE_ALL or data.class_filter_mode:
        return None
    return frozenset((*data.code_set, *map(java_hash_code, data.tags_set)))


@dataclass(slots=True)
class HeartbeatResult:
    """Effect of one heartbeat on one consumer group."""

    rebalance: bool
    """Members or topics were added or removed: notify all members."""
    published: bool
    """The published view has changed."""
    joined: bool
    mismatched: bool
    """The mismatches of its members have changed."""
    late: Sequence[str] = ()
    """Topics with a new subscription of an older version."""

    def warn_of_late(self, rarely: RateLimitedLog, group: str, member: Member) -> None:
        if self.late:
            rarely.warn(
                "subscription changed with an older version",
                names=[group],
                group=group,
                client=member.client_id,
                topics=shown_names(self.late),
                hint="the clock of the client went back; the change counts",
            )


@dataclass(slots=True)
class Left:
    group: str
    member: Member
    is_gone: bool
    """The member was the last one, and the group is removed."""
    mismatched: bool
    """The mismatches of the remaining members have changed."""


class Consumers:
    """All consumer groups. Owned by one actor."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[int, dict[str, None]] = {}
        """Group names by connection, in the order of registration."""
        self._places = 0
        self._compare_left = COMPARED_PER_ROUND
        self._uncompared: OrderedDict[str, None] = OrderedDict()
        """Groups changed since the last comparison of their members."""

    def check(self, peer_id: int, said: Sequence[ConsumerData]) -> None:
        """Raise RemoteError if the connection exceeds its groups or all groups their places."""
        check_groups_of(self._groups_of.get(peer_id, {}), (each.group_name for each in said))
        added = sum(places_of(each.subscription_data_set) for each in said)
        if self._places + added > PLACES_MAX:
            for name in {each.group_name for each in said}:
                group = self.groups.get(name)
                known = None if group is None else group.members.get(peer_id)
                added -= 0 if known is None else known.places
            check_places(self._places, added, PLACES_MAX)

    def register(self, data: ConsumerData, member: Member) -> HeartbeatResult:
        """Register a consumer or renew its registration."""
        group = self.groups.get(data.group_name)
        is_new = group is None
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup()
        said = data.consume_type, data.message_model, data.consume_from_where
        changed = said != (group.consume_type, group.message_model, group.consume_from_where)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(member.peer.peer_id)
        wants = {each.topic: each for each in data.subscription_data_set}
        joined_ms = member.updated_ms if known is None else known.joined_ms
        same = group.known(member)
        wanted: Mapping[str, SubscriptionData] = {}
        is_changed = same is None or same.wants != wants
        if same is not None:
            wanted = same.wants if is_changed else same.wanted
        places = places_of(wants.values())
        self._count(group, places, known)
        group.members[member.peer.peer_id] = replace(
            member, joined_ms=joined_ms, wants=wants, wanted=wanted, places=places
        )
        self._groups_of.setdefault(member.peer.peer_id, {})[data.group_name] = None
        done = group.subscribe(data.subscription_data_set, same)
        renamed = known is not None and known.client_id != member.client_id
        mismatched = (known is None or renamed or is_changed) and self._compare(
            data.group_name, group
        )
        joined = known is None
        return HeartbeatResult(
            rebalance=joined or done.came_or_went,
            published=is_new
            or joined
            or renamed
            or changed
            or done.came_or_went
            or done.newer
            or mismatched,
            joined=joined,
            mismatched=mismatched,
            late=done.late,
        )

    def unregister(self, group_name: str, peer_id: int) -> Left | None:
        """Remove a consumer from one group; None if it is not a member."""
        group = self.groups.get(group_name)
        member = group.members.pop(peer_id, None) if group is not None else None
        if group is None or member is None:
            return None
        own = self._groups_of[peer_id]
        del own[group_name]
        if not own:
            del self._groups_of[peer_id]
        self._count(group, 0, member)
        mismatched = self._compare(group_name, group)
        if not group.members:
            del self.groups[group_name]
        return Left(group_name, member, not group.members, mismatched)

    def _count(self, group: ConsumerGroup, places: int, before: Member | None) -> None:
        added = places - (0 if before is None else before.places)
        group.places += added
        self._places += added

    @property
    def is_used(self) -> bool:
        """Whether this round has compared members, or groups wait for a comparison."""
        return self._compare_left < COMPARED_PER_ROUND or bool(self._uncompared)

    def begin_round(self) -> None:
        """Reset the number of comparisons that a round allows."""
        self._compare_left = COMPARED_PER_ROUND

    def compare_more(self) -> list[str]:
        """Compare members of waiting groups; return the groups with changed mismatches."""
        changed = []
        while self._uncompared and self._compare_left > 0:
            name, _ = self._uncompared.popitem(last=False)
            group = self.groups.get(name)
            self._compare_left -= 1 if group is None else group.places
            if group is not None and group.compare():
                changed.append(name)
        return changed

    def _compare(self, name: str, group: ConsumerGroup) -> bool:
        """Compare the members of a group, or defer that if the round's allowance is spent."""
        if self._compare_left < group.places:
            self._compare_left = 0
            self._uncompared[name] = None
            return False
        self._compare_left -= group.places
        self._uncompared.pop(name, None)
        return group.compare()

    def groups_of(self, peer_id: int) -> Sequence[str]:
        """Return the names of a connection's groups."""
        return (*self._groups_of.get(peer_id, ()),)

    def silent(self, now_ms: float) -> list[tuple[str, int]]:
        """Return group and connection of members without a heartbeat for two minutes."""
        return _silent_of(((name, group.members) for name, group in self.groups.items()), now_ms)

    def expire(self, name: str, peer_id: int, now_ms: float) -> Left | None:
        """Remove such a member, unless its heartbeat has come meanwhile."""
        group = self.groups.get(name)
        member = None if group is None else group.members.get(peer_id)
        if member is None or not _silent((member,), now_ms):
            return None
        return self.unregister(name, peer_id)

    def client_ids(self, group_name: str) -> list[str]:
        """Return the client ids of a group, each once; empty for an unknown group.

        A client with two connections, one of them half-open, has one share of the queues. 4.9.7
        names it twice, and its second share has no consumer.
        """
        group = self.groups.get(group_name)
        return [*dict.fromkeys(each.client_id for each in group.members.values())] if group else []


@dataclass(slots=True)
class _Named:
    """A connection that uses a client id."""

    member: Member
    """The one of its last heartbeat."""
    groups: int = 0
    """Groups in which it uses the client id."""


class Producers:
    """All producer groups. Owned by one actor."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[int, Member]] = {}
        self._named: dict[str, dict[int, _Named]] = {}
        """Connections by client id."""
        self._holders: dict[str, int] = {}
        """Connection that gets what is sent to a client id.

        Another account takes over a client id only when the holder's account has left.
        """
        self._groups_of: dict[int, dict[str, None]] = {}
        """Group names by connection."""
        self._view: Mapping[str, Sequence[Producing]] = {}
        self._stale: set[str] = set()
        self.places = 0
        """Members of all groups."""
        self._places_of: Counter[tuple[str, str] | None] = Counter()
        """Members by account."""

    def check(self, member: Member, groups: Sequence[str]) -> None:
        """Raise RemoteError if the connection exceeds its groups or all groups their places.

        Of an account there are at most as many members as there is room for others: it needs no
        permission to register them.
        """
        own = self._groups_of.get(member.peer.peer_id, {})
        check_groups_of(own, groups)
        added = len({*groups} - own.keys())
        check_places(self.places, added, PRODUCERS_MAX)
        if member.account is not None:
            check_share(self.places + self._places_of[member.account], added)

    @property
    def view(self) -> Mapping[str, Sequence[Producing]]:
        """Members of each group, as other actors read them; replaced, never changed."""
        if self._stale:
            found = {name: self.groups.get(name, {}).values() for name in self._stale}
            new = {name: _by_account(found[name]) for name in found if found[name]}
            self._view = renewed(self._view, self._stale, new)
            self._stale.clear()
        return self._view

    def register(self, group_name: str, member: Member) -> bool:
        """Register a producer; return whether it is new."""
        members = self.groups.setdefault(group_name, {})
        peer_id = member.peer.peer_id
        known = members.get(peer_id)
        members[peer_id] = member
        self._claim(member, known)
        self._places_of[member.account] += 1
        if known is not None:
            self._count_out(known)
        else:
            self.places += 1
            self._groups_of.setdefault(peer_id, {})[group_name] = None
        if known is None or known.account != member.account:
            self._stale.add(group_name)
        return known is None

    def _count_out(self, member: Member) -> None:
        self._places_of[member.account] -= 1
        if not self._places_of[member.account]:
            del self._places_of[member.account]

    def _claim(self, member: Member, known: Member | None) -> None:
        """Note the holder of a client id; a member of another account keeps it.

        Otherwise another account could take over replies by using the client's id.
        """
        client_id, peer_id = member.client_id, member.peer.peer_id
        if known is not None and known.client_id != client_id:
            self._give_up(known)
            known = None
        named = self._named.setdefault(client_id, {})
        own = named.setdefault(peer_id, _Named(member))
        own.member, own.groups = member, own.groups + (known is None)
        holder = named.get(self._holders.get(client_id, peer_id), own)
        if holder is own or _name(holder.member) == _name(member):
            self._holders[client_id] = peer_id

    def _give_up(self, member: Member) -> None:
        """Note that a member has left a group; perhaps another one gets its client id."""
        client_id, peer_id = member.client_id, member.peer.peer_id
        named = self._named[client_id]
        own = named[peer_id]
        own.groups -= 1
        if own.groups:
            return
        del named[peer_id]
        if not named:
            del self._named[client_id], self._holders[client_id]
        elif self._holders[client_id] == peer_id:
            account, others = _name(own.member), [*named]
            same = (each for each in reversed(others) if _name(named[each].member) == account)
            self._holders[client_id] = next(same, others[0])

    def kinds(self) -> Counter[tuple[int, int]]:
        """Return the number of producer connections by language and version."""
        groups = self.groups.values()
        return Counter([(one.language, one.version) for group in groups for one in group.values()])

    def find(self, client_id: str) -> Peer | None:
        """Return the connection of the producer with this client id; None if it has left."""
        peer_id = self._holders.get(client_id)
        return None if peer_id is None else self._named[client_id][peer_id].member.peer

    def unregister(self, group_name: str, peer_id: int) -> None:
        members = self.groups.get(group_name, {})
        member = members.pop(peer_id, None)
        if member is None:
            return
        self._give_up(member)
        self._count_out(member)
        self.places -= 1
        if not members:
            del self.groups[group_name]
        own = self._groups_of[peer_id]
        del own[group_name]
        if not own:
            del self._groups_of[peer_id]
        self._stale.add(group_name)

    def peer_closed(self, peer_id: int) -> None:
        for name in (*self._groups_of.get(peer_id, ()),):
            self.unregister(name, peer_id)

    def silent(self, now_ms: float) -> list[tuple[str, int]]:
        """Return group and connection of members without a heartbeat for two minutes."""
        return _silent_of(self.groups.items(), now_ms)

    def expire(self, name: str, peer_id: int, now_ms: float) -> None:
        """Remove such a member, unless its heartbeat has come meanwhile."""
        member = self.groups.get(name, {}).get(peer_id)
        if member is not None and _silent((member,), now_ms):
            self.unregister(name, peer_id)


def renewed(old: Mapping[str, View], stale: Set[str], new: Mapping[str, View]) -> dict[str, View]:
    """Return `old` with all stale entries replaced at once, as one copy per entry would add up."""
    return {**{name: view for name, view in old.items() if name not in stale}, **new}


def _by_account(members: Iterable[Member]) -> tuple[Producing, ...]:
    members = [*members]
    if members[0].grant is None:  # access control is off
        return (Producing(tuple(each.peer for each in members)),)
    found: dict[tuple[str, str] | None, list[Member]] = {}
    for each in members:
        found.setdefault(each.account, []).append(each)
    return tuple(
        Producing(tuple(each.peer for each in same), same[0].grant) for same in found.values()
    )


def _name(member: Member) -> str | None:
    return None if member.account is None else member.account[0]


def _silent_of(
    groups: Iterable[tuple[str, Mapping[int, Member]]], now_ms: float
) -> list[tuple[str, int]]:
    return [
        (name, peer_id) for name, members in groups for peer_id in _silent(members.values(), now_ms)
    ]


def _silent(members: Iterable[Member], now_ms: float) -> list[int]:
    oldest_ms = now_ms - CLIENT_EXPIRES_MS
    return [member.peer.peer_id for member in members if member.updated_ms < oldest_ms]
