"""Commands about who is there: members of consumer groups, producers, what they say."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from time import time_ns

from protocol.bodies import MessageQueue
from protocol.bodies_admin import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerTable,
)
from protocol.bodies_own import AclRefusal, AclRefusals, GroupChanges
from protocol.codes import RequestCode
from protocol.errors import RemoteError
from protocol.fastjson import Key
from protocol.headers.admin import ConsumerGroupHeader, ProducerGroupHeader
from protocol.headers.client import GetConsumerRunningInfoHeader
from protocol.java_numbers import plain_number
from troupemq.cli.admin.command import BROKER, TOPIC, command, flag, option
from troupemq.cli.admin.output import Output, Row, Time
from troupemq.cli.admin.session import Session, json_object
from troupemq.cli.admin.times import INT_MAX
from troupemq.client.errors import ClientError, RouteNotFound, understood
from troupemq.numbers import odd_number, whole

SECTION, PRODUCERS = "Consumer groups", "Producers"
MEMBERS_OF = option("g", "consumerGroup", "The consumer group.", required=True)
_CACHED = "cachedMsgCount"
_KEY_CHARS_MAX, _ODD_CHARS_MAX, _ODDITIES_MAX = 100, 40, 5


@command(
    "producerConnection",
    PRODUCERS,
    option("g", "producerGroup", "The producer group.", required=True),
    TOPIC,
)
def producer_connection(session: Session, out: Output, *, producer_group: str, topic: str) -> None:
    """List the producers of a group at the brokers of a topic."""
    rows: list[Row] = []
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    for place in session.topic_brokers(topic):
        with out.attempt():
            header = ProducerGroupHeader(producer_group)
            found = session.read(ProducerConnection, place.address, code, header)
            rows += ({"broker": place.name, **_client(each)} for each in found.connection_set)
    out.table(rows, f"The producer group {producer_group} is not connected.")


def _client(connection: ClientConnection) -> Row:
    """A connected client, under the same names wherever one is shown."""
    return {
        "client": connection.client_id,
        "address": connection.client_addr,
        "language": connection.language,
        "version": connection.version,
    }


@command(
    "producer",
    PRODUCERS,
    option("b", "broker", "The broker.", required=True, metavar="HOST:PORT"),
)
def producer(session: Session, out: Output, *, broker: str) -> None:
    """List all producers of a broker, by group."""
    table = session.read(ProducerTable, broker, RequestCode.GET_ALL_PRODUCER_INFO)
    rows = (
        {
            "group": group,
            "client": each.client_id,
            "address": each.remote_ip.removeprefix("/"),
            "language": each.language,
            "version": each.version,
            "last_seen_ms": Time(each.last_update_timestamp),
        }
        for group, members in sorted(table.data.items())
        for each in members
    )
    out.table(rows, f"No producer is connected to {broker}.")


@command("consumerConnection", SECTION, MEMBERS_OF, BROKER)
def consumer_connection(
    session: Session, out: Output, *, consumer_group: str, broker_addr: str | None
) -> None:
    """List the members of a consumer group, and what they subscribe to."""
    found = members_of(session, consumer_group, broker_addr)
    out.fields(
        {
            "members": [_client(each) for each in found.connection_set],
            "subscriptions": {
                topic: each.sub_string for topic, each in found.subscription_table.items()
            },
            "consume_type": found.consume_type,
            "message_model": found.message_model,
            "consume_from_where": found.consume_from_where,
        }
    )


def members_of(session: Session, group: str, address: str | None = None) -> ConsumerConnection:
    """The members of a group at one broker: all members are at every broker.

    Raises BrokerError(CONSUMER_NOT_ONLINE) for a group without members.
    """
    if address is not None:
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        return session.read(ConsumerConnection, address, code, ConsumerGroupHeader(group))
    *others, last = session.group_brokers(group)
    for place in others:
        with suppress(ClientError):
            return members_of(session, group, place.address)
    return members_of(session, group, last.address)


DENIED_MS = 600_000
"""A consumer tries again every 30 s: older refusals are of one that has been helped, or is gone."""

DENIED_SHOWN_MAX = 10
"""Of those that asked a name server, the newest ones: any of them may be the one looked for."""


@command(
    "consumerStatus",
    SECTION,
    MEMBERS_OF,
    option("i", "clientId", "This member only, with all it says of itself."),
    BROKER,
    flag("s", "jstack", "With the stacks of its threads."),
)
def consumer_status(
    session: Session,
    out: Output,
    *,
    consumer_group: str,
    client_id: str | None,
    broker_addr: str | None,
    jstack: bool,
) -> None:
    """Show what the members of a group say of themselves, and whether they agree."""
    if client_id is not None:
        out.fields(running_info(session, consumer_group, client_id, broker_addr, jstack))
        return
    for sentence in denied(session, consumer_group, broker_addr):
        out.fail(sentence)
    rows: list[Row] = []
    stacks: dict[str, object] = {}
    try:
        members = members_of(session, consumer_group, broker_addr).connection_set
    except RouteNotFound:
        for sentence in denied_routes(session):
            out.fail(sentence)
        raise
    for member in members:
        client = member.client_id
        try:
            info = running_info(session, consumer_group, client, broker_addr, jstack)
        except ClientError as error:
            out.fail(f"{client} says nothing: {error}")
            continue
        rows.append({"client": client, "version": member.version, **_said_by(info)})
        for sentence in _oddities(info):
            out.fail(f"{client} says {sentence}.")
        stacks[client] = info.get("jstack")
    if out.as_json:
        more = ({"jstack": stacks[str(row["client"])]} if jstack else {} for row in rows)
        out.table(({**row, **each} for row, each in zip(rows, more, strict=True)), "")
    else:
        shown = [{name: row[name] for name in row if name != "queue_names"} for row in rows]
        some = out.table(shown, f"The group {consumer_group} has no members.")
        out.fields(stacks if some and jstack else {})
    if len({str(row["subscriptions"]) for row in rows}) > 1:
        out.fail(f"The members of {consumer_group} subscribe differently: messages get lost.")
    shared = Counter(queue for row in rows for queue in _items(row["queue_names"]))
    twice = sorted(str(queue) for queue, count in shared.items() if count > 1)
    if twice and all(row["model"] == "CLUSTERING" for row in rows):
        out.fail(f"Several members have the same queues at the moment: {', '.join(twice)}.")


def denied(session: Session, group: str, broker_addr: str | None) -> list[str]:
    """Members that access control turns away: they start, and are silent. Of our brokers only."""
    found = []
    for address in session.targets(broker_addr, None):
        try:
            header = ConsumerGroupHeader(group)
            seen = session.read(GroupChanges, address, RequestCode.GET_GROUP_CHANGES, header)
        except ClientError:
            continue  # an official broker, or one that is gone: others say so
        found += [_refused(address, each) for each in seen.refusals if _is_recent(each)]
    return found


def denied_routes(session: Session) -> list[str]:
    """Who asked name servers for a route and got none: he reaches no broker, which knows his group.

    Of our name servers only, and for who may ask them.
    """
    found: list[tuple[int, str]] = []
    for address in session.namesrvs:
        try:
            seen = session.read(AclRefusals, address, RequestCode.GET_ACL_REFUSALS)
        except ClientError:
            continue
        found += (
            (each.last_timestamp, _refused(address, each))
            for each in seen.refusals
            if each.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and _is_recent(each)
        )
    newest = sorted(found, reverse=True)[:DENIED_SHOWN_MAX]
    return [sentence for _, sentence in newest]


def _is_recent(refusal: AclRefusal) -> bool:
    return time_ns() // 1_000_000 - refusal.last_timestamp < DENIED_MS


def _refused(address: str, refusal: AclRefusal) -> str:
    who = f"the account {refusal.account}" if refusal.account else "a stranger"
    return (
        f"{address} refused {who} from {refusal.address} {refusal.count} times, the last time with"
        f" code {refusal.code} at {Time(refusal.last_timestamp)}: {refusal.remark}."
    )


def _said_by(info: Mapping[str, object]) -> dict[str, object]:
    """What a table shows of it: the queues, and what waits in the client to be consumed."""
    queues, settings = info.get("mqTable"), info.get("properties")
    table = queues if isinstance(queues, dict) else {}
    return {
        "model": settings.get("messageModel") if isinstance(settings, dict) else None,
        "subscriptions": sorted(map(_subscription, _items(info.get("subscriptionSet")))),
        "queues": len(table),
        "cached": sum(
            whole(each.get(_CACHED)) or 0 for each in table.values() if isinstance(each, dict)
        ),
        "queue_names": sorted(table),
    }


def _oddities(info: Mapping[str, object]) -> list[str]:
    """What of it cannot be, in words: it is left out of the sum."""
    queues = info.get("mqTable")
    found = []
    for name, each in queues.items() if isinstance(queues, dict) else ():
        if not isinstance(each, dict):
            found.append(f"nothing that can be understood of the queue {name}")
        elif each.get(_CACHED) is not None and whole(each[_CACHED]) is None:
            odd = (odd_number(each[_CACHED]) or str(each[_CACHED]))[:_ODD_CHARS_MAX]
            found.append(f"{odd!r} where the number of messages of the queue {name} should be")
    return found[:_ODDITIES_MAX]


def running_info(
    session: Session, group: str, client_id: str, address: str | None = None, jstack: bool = False
) -> dict[str, object]:
    """What a member says of itself, asked by one broker, or by any that it is connected to."""
    header = GetConsumerRunningInfoHeader(group, client_id, jstack)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    if address is not None:
        answer = session.ask(address, code, header)
        found = json_object(answer.body)
        return understood(_plain_names, found)
    *others, last = session.group_brokers(group)
    for place in others:
        with suppress(ClientError):
            return running_info(session, group, client_id, place.address, jstack)
    return running_info(session, group, client_id, last.address, jstack)


def queues_of(info: Mapping[str, object]) -> list[MessageQueue]:
    """The queues that a member has, of what it says of itself."""
    table = info.get("mqTable")
    keys = table if isinstance(table, dict) else {}
    queues = map(_queue_named, map(str, keys))
    return [queue for queue in queues if queue is not None]


def _queue_named(text: str) -> MessageQueue | None:
    """The queue of a text `topic@broker:number`; None for other texts."""
    names, colon, number = text.rpartition(":")
    topic, at, broker = names.rpartition("@")
    queue_id = plain_number(number, INT_MAX)
    if not colon or not at or queue_id is None:
        return None
    return MessageQueue(topic, broker, queue_id)


def _plain_names(found: Mapping[Key, object]) -> dict[str, object]:
    return {str(key): _plain(value) for key, value in found.items()}


def _plain(value: object) -> object:
    """For JSON: keys that are queues become texts."""
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _key(key: object) -> str:
    if isinstance(key, int | str):
        return str(key)
    try:
        queue = MessageQueue.from_json(dict(key) if isinstance(key, tuple | frozenset) else key)
    except (RemoteError, TypeError, ValueError):
        return str(key)[:_KEY_CHARS_MAX]
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _subscription(found: object) -> str:
    table = found if isinstance(found, dict) else {}
    return f"{table.get('topic')}: {table.get('subString')}"
