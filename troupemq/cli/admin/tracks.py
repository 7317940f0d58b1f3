"""The consumers of a message: each group of its topic, and what is known of it."""

from protocol.bodies import SubscriptionData
from protocol.bodies_admin import ConsumeStatsBody
from protocol.codes import RequestCode, ResponseCode
from protocol.headers.admin import GetConsumeStatsHeader
from troupemq.cli.admin.members import members_of
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.topics import consumers_of
from troupemq.client.errors import BrokerError, ClientError, RouteNotFound
from troupemq.client.message import MessageView


def tracks_of(
    session: Session, view: MessageView, failures: list[str] | None = None
) -> dict[str, str]:
    """Consumer group → consumed, filtered, not_yet, offline, pull (nobody knows) or unknown.

    A broker that does not answer is a sentence in `failures`; without them its error is raised.
    """
    try:
        places = session.topic_brokers(view.topic)
    except RouteNotFound:
        return {}
    groups: set[str] = set()
    for place in places:
        try:
            groups.update(consumers_of(session, place, view.topic))
        except ClientError as error:
            if failures is None:
                raise
            failures.append(str(error))
    if not groups:
        return {}
    try:
        _, address = session.listed(view.store_host)
    except RouteNotFound:  # it was stored by a broker that is gone, or has moved
        return dict.fromkeys(sorted(groups), "unknown")
    return {group: _track(session, view, group, address) for group in sorted(groups)}


def _track(session: Session, view: MessageView, group: str, address: str) -> str:
    try:
        members = members_of(session, group)
    except RouteNotFound:
        return "unknown"
    except BrokerError as error:
        return "offline" if error.code == ResponseCode.CONSUMER_NOT_ONLINE else "unknown"
    if members.consume_type == "CONSUME_ACTIVELY":
        return "pull"
    if not _has_passed(session, view, group, address):
        return "not_yet"
    wanted = members.subscription_table.get(view.topic)
    return "consumed" if wanted is None or _wants(wanted, view.tags) else "filtered"


def _wants(subscription: SubscriptionData, tags: str | None) -> bool:
    named = subscription.tags_set
    return not named or "*" in named or tags in named


def _has_passed(session: Session, view: MessageView, group: str, address: str) -> bool:
    stats = session.read(
        ConsumeStatsBody,
        address,
        RequestCode.GET_CONSUME_STATS,
        GetConsumeStatsHeader(group, view.queue.topic),
    )
    return any(
        where.consumer_offset > view.queue_offset
        for queue, where in stats.offset_table.items()
        if queue.topic == view.queue.topic and queue.queue_id == view.queue.queue_id
    )
