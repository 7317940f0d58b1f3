"""Commands about consumer groups and producers: settings, members, progress."""

import click

from protocol import fastjson
from protocol.bodies import MessageQueue, SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.bodies_admin import (
    ConsumerConnection,
    ProducerConnection,
    ProducerTable,
)
from protocol.codes import RequestCode, ResponseCode
from protocol.headers.admin import (
    ConsumerGroupHeader,
    DeleteSubscriptionGroupHeader,
    ProducerGroupHeader,
    TopicHeader,
)
from protocol.headers.client import GetConsumerRunningInfoHeader
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.cli.admin.command import (
    BROKER,
    CLUSTER,
    GROUP,
    TOPIC,
    command,
    flag,
    one_of,
    option,
    parse_bool,
    yes_no,
)
from troupemq.cli.admin.output import Output, Row
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.topics import forget_topic
from troupemq.client.errors import ClientError

SECTION = "Consumer groups"
MEMBERS_OF = option("g", "consumerGroup", "The consumer group.", required=True)
NOBODY_ONLINE = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)


@command(
    "updateSubGroup",
    SECTION,
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("s", "consumeEnable", "Its members may pull.", "true"),
    yes_no("m", "consumeFromMinEnable", "A new member may begin at the first message."),
    yes_no("d", "consumeBroadcastEnable", "Its members may consume in broadcast."),
    option("q", "retryQueueNums", "Queues of its retry topic.", type=click.IntRange(0), default=1),
    option("r", "retryMaxTimes", "Retries before the dead letters.", type=int, default=16),
    option("i", "brokerId", "Which broker of a name it consumes from.", type=int, default=0),
    option(
        "w", "whichBrokerWhenConsumeSlowly", "Which one when it is far behind.", type=int, default=1
    ),
    yes_no("a", "notifyConsumerIdsChanged", "Members are told who joins and leaves.", "true"),
)
def update_sub_group(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    group_name: str,
    consume_enable: str,
    consume_from_min_enable: str,
    consume_broadcast_enable: str,
    retry_queue_nums: int,
    retry_max_times: int,
    broker_id: int,
    which_broker_when_consume_slowly: int,
    notify_consumer_ids_changed: str,
) -> None:
    """Create a consumer group, or change it."""
    one_of(broker_addr, cluster_name)
    config = SubscriptionGroupConfig(
        group_name,
        parse_bool(consume_enable),
        parse_bool(consume_from_min_enable),
        parse_bool(consume_broadcast_enable),
        retry_queue_nums,
        retry_max_times,
        broker_id,
        which_broker_when_consume_slowly,
        parse_bool(notify_consumer_ids_changed),
    )
    for address in session.targets(broker_addr, cluster_name):
        update_group(session, address, config)
        out.done(
            f"The group {group_name} is set at {address}.",
            broker_address=address,
            **config.to_json(),
        )


def update_group(session: Session, address: str, config: SubscriptionGroupConfig) -> None:
    """Creates or changes a consumer group at one broker."""
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    session.ask(address, code, body=config.encode())


@command(
    "deleteSubGroup",
    SECTION,
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("r", "removeOffset", "Its offsets too."),
)
def delete_sub_group(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    group_name: str,
    remove_offset: str,
) -> None:
    """Delete a consumer group; of a whole cluster, with its retry topic and dead letters."""
    one_of(broker_addr, cluster_name)
    header = DeleteSubscriptionGroupHeader(group_name, parse_bool(remove_offset))
    addresses = session.targets(broker_addr, cluster_name)
    for address in addresses:
        session.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        out.done(
            f"The group {group_name} is deleted at {address}.",
            group=group_name,
            deleted_at=address,
        )
    if broker_addr is not None or cluster_name is None:
        return
    for topic in (RETRY_TOPIC_PREFIX + group_name, DLQ_TOPIC_PREFIX + group_name):
        for address in addresses:
            session.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
        forget_topic(session, topic, cluster_name)


@command("getConsumerConfig", SECTION, GROUP)
def get_consumer_config(session: Session, out: Output, *, group_name: str) -> None:
    """Show a group's settings at each broker."""
    found = False
    for place in session.masters():
        table = group_table(session, place.address)
        config = table.subscription_group_table.get(group_name)
        if config is not None:
            found = True
            out.fields(
                {"cluster": place.cluster, "broker": place.name, **config.to_json()},
                title=f"{place.cluster}:{place.name}",
            )
    if not found:
        out.fail(f"No broker has settings of the group {group_name}.")


def group_table(session: Session, address: str) -> SubscriptionGroupTable:
    """All consumer groups that a broker has settings of."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    return session.read(SubscriptionGroupTable, address, code)


# --- who is there


@command(
    "producerConnection",
    SECTION,
    option("g", "producerGroup", "The producer group.", required=True),
    TOPIC,
)
def producer_connection(session: Session, out: Output, *, producer_group: str, topic: str) -> None:
    """List the producers of a group at the brokers of a topic."""
    rows: list[Row] = []
    for place in session.topic_brokers(topic):
        found = session.read(
            ProducerConnection,
            place.address,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            ProducerGroupHeader(producer_group),
        )
        rows += ({"broker": place.name, **each.to_json()} for each in found.connection_set)
    out.table(rows, f"The producer group {producer_group} is not connected.")


@command(
    "producer",
    SECTION,
    option("b", "broker", "The broker.", required=True, metavar="HOST:PORT"),
)
def producer(session: Session, out: Output, *, broker: str) -> None:
    """List all producers of a broker, by group."""
    table = session.read(ProducerTable, broker, RequestCode.GET_ALL_PRODUCER_INFO)
    rows = (
        {"group": group, **each.to_json()}
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
            "members": [each.to_json() for each in found.connection_set],
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
    if address is None:
        address = session.group_brokers(group)[0].address
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    return session.read(ConsumerConnection, address, code, ConsumerGroupHeader(group))


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
    address = broker_addr or session.group_brokers(consumer_group)[0].address
    if client_id is not None:
        out.fields(_running_info(session, address, consumer_group, client_id, jstack))
        return
    rows: list[Row] = []
    subscriptions: dict[str, set[str]] = {}
    for member in members_of(session, consumer_group, address).connection_set:
        row: dict[str, object] = {"client": member.client_id, "version": member.version}
        try:
            info = _running_info(session, address, consumer_group, member.client_id, jstack)
        except ClientError as error:
            out.fail(f"{member.client_id} says nothing: {error}")
            continue
        wanted = sorted(map(_subscription, _items(info.get("subscriptionSet"))))
        queues = info.get("mqTable")
        row["subscriptions"] = wanted
        row["queues"] = len(queues) if isinstance(queues, dict) else 0
        rows.append(row)
        subscriptions.setdefault("; ".join(wanted), set()).add(member.client_id)
    out.table(rows, f"The group {consumer_group} has no members.")
    if len(subscriptions) > 1:
        out.fail(f"The members of {consumer_group} subscribe differently: messages get lost.")


def _running_info(
    session: Session, address: str, group: str, client_id: str, jstack: bool
) -> dict[str, object]:
    header = GetConsumerRunningInfoHeader(group, client_id, jstack)
    answer = session.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    found = fastjson.loads_object(answer.body)
    return {str(key): _plain(value) for key, value in found.items()}


def _plain(value: object) -> object:
    """For JSON: keys that are queues become texts."""
    if isinstance(value, dict):
        return {_key(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _key(key: object) -> str:
    if isinstance(key, int | str):
        return str(key)
    queue = MessageQueue.from_json(dict(key) if isinstance(key, tuple | frozenset) else key)
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _subscription(found: object) -> str:
    table = found if isinstance(found, dict) else {}
    return f"{table.get('topic')}: {table.get('subString')}"
