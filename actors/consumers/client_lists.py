"""Bodies of the admin answers that list connected clients.

Source: AdminBrokerProcessor (getConsumerConnectionList, getProducerConnectionList,
getAllProducerInfo), ProducerManager.getProducerTable.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.consumers.consumer_groups import ConsumerGroup
from actors.tables.consumer_views import Member
from protocol.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from protocol.bodies_own import GroupChange, GroupChanges, SubscriptionMismatch, WantingClients
from protocol.codes import LanguageCode


def consumer_connection(group: ConsumerGroup) -> ConsumerConnection:
    """Return the answer to GET_CONSUMER_CONNECTION_LIST."""
    return ConsumerConnection(
        _connections(group.members.values()),
        dict(group.subscriptions),
        group.consume_type,
        group.message_model,
        group.consume_from_where,
    )


def producer_connection(members: Iterable[Member]) -> ProducerConnection:
    """Return the answer to GET_PRODUCER_CONNECTION_LIST."""
    return ProducerConnection(_connections(members))


@dataclass(frozen=True, slots=True)
class ProducersSeen:
    """All producers at the time of the request: the answer to GET_ALL_PRODUCER_INFO."""

    groups: Mapping[str, Sequence[Member]]
    shift_ms: float
    """Wall clock minus monotonic clock."""

    def encode(self) -> bytes:
        """Return the answer's body. Any thread; 14 µs for each producer of a group."""
        return ProducerTable(
            {
                name: [
                    ProducerInfo(
                        member.client_id,
                        f"/{member.peer.remote}",
                        language_name(member.language),
                        member.version,
                        round(member.updated_ms + self.shift_ms),
                    )
                    for member in members
                ]
                for name, members in self.groups.items()
            }
        ).encode()


def group_changes(
    name: str, changes: Sequence[GroupChange], group: ConsumerGroup | None
) -> GroupChanges:
    """Return the answer to GET_GROUP_CHANGES."""
    mismatches = [
        SubscriptionMismatch(
            each.topic,
            [WantingClients(one.expression, one.count, [*one.client_ids]) for one in each.wanted],
        )
        for each in (() if group is None else group.mismatches)
    ]
    return GroupChanges(name, 0 if group is None else len(group.members), list(changes), mismatches)


def language_name(code: int) -> str:
    """Return RocketMQ's name of a language, OTHER for an unknown code."""
    try:
        return LanguageCode(code).name
    except ValueError:
        return LanguageCode.OTHER.name


def _connections(members: Iterable[Member]) -> list[ClientConnection]:
    return [
        ClientConnection(
            member.client_id, member.peer.remote, language_name(member.language), member.version
        )
        for member in members
    ]
