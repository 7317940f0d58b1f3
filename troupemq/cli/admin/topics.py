"""Commands about topics: create, change, delete; where they are, and how full."""

from collections.abc import Iterator, Mapping

import click

from protocol.bodies import BrokerData, TopicConfig, TopicConfigTable
from protocol.bodies_admin import GroupList, TopicStatsTable
from protocol.codes import RequestCode
from protocol.headers.admin import (
    CreateTopicHeader,
    TopicHeader,
)
from protocol.headers.namesrv import DeleteTopicInNamesrvHeader
from protocol.table_rules import asked_topic_fault
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.cli.admin.command import (
    BROKER,
    CLUSTER,
    TOPIC,
    command,
    flag,
    one_of,
    option,
    parse_bool,
    yes_no,
)
from troupemq.cli.admin.output import Output, Row, Time, snake_case
from troupemq.cli.admin.session import ORDER_CONFIGURATION, BrokerPlace, Session
from troupemq.cli.admin.times import COUNT
from troupemq.cli.admin.unread import note_unread, unread_messages
from troupemq.client.connection.route import DEFAULT_TOPIC, route_of
from troupemq.client.consuming.assignment import averagely
from troupemq.client.errors import ArgumentIllegal, RouteNotFound
from troupemq.client.message import check_topic

SECTION = "Topics"
UNIT, UNIT_SUBSCRIPTION = 1, 2
"""Bits of topicSysFlag."""


@command(
    "updateTopic",
    SECTION,
    BROKER,
    CLUSTER,
    TOPIC,
    option("r", "readQueueNums", "Queues that can be read.", type=COUNT, default=8),
    option("w", "writeQueueNums", "Queues that are written.", type=COUNT, default=8),
    option("p", "perm", "4 read, 2 write, 6 both.", type=click.Choice(["2", "4", "6"])),
    yes_no("o", "order", "Ordered across brokers."),
    yes_no("u", "unit", "A topic of a unit."),
    yes_no("s", "hasUnitSub", "A unit subscribes to it."),
)
def update_topic(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    topic: str,
    read_queue_nums: int,
    write_queue_nums: int,
    perm: str | None,
    order: str,
    unit: str,
    has_unit_sub: str,
) -> None:
    """Create a topic, or change it."""
    one_of(broker_addr, cluster_name)
    check_topic(topic)
    flags = UNIT * parse_bool(unit) + UNIT_SUBSCRIPTION * parse_bool(has_unit_sub)
    config = TopicConfig(
        topic, read_queue_nums, write_queue_nums, int(perm or "6"), "SINGLE_TAG", flags
    )
    config.order = parse_bool(order)
    if broker_addr is None:
        places = session.masters(cluster_name)
    elif config.order:
        places = [_place_of(session, broker_addr)]
    else:
        places = [BrokerPlace("", "", 0, broker_addr)]
    counts: dict[str, int] = {}
    for place in places:
        with out.attempt():
            unread = unread_messages(session, place.address, config)
            create_topic(session, place.address, config)
            note_unread(out, place.address, config, unread)
            counts[place.name] = write_queue_nums
            out.done(
                f"{topic} has {read_queue_nums} queues to read and {write_queue_nums} to write "
                f"at {place.address}.",
                broker_address=place.address,
                **snake_case(config.to_json()),
                **({"unread_messages": sum(unread.values())} if unread else {}),
            )
    if config.order and counts:
        put_order(session, out, topic, counts, whole=broker_addr is None)


def _place_of(session: Session, address: str) -> BrokerPlace:
    """The name servers know an ordered topic's brokers by their names."""
    for place in session.masters():
        if place.address == address:
            return place
    raise RouteNotFound(f"no master is registered with the address {address}")


def create_topic(session: Session, address: str, config: TopicConfig) -> None:
    """Creates or changes a topic at one broker. Raises ArgumentIllegal for one that cannot be."""
    if fault := asked_topic_fault(config):
        raise ArgumentIllegal(f"{config.topic_name}: {fault}")
    header = CreateTopicHeader(
        topic=config.topic_name,
        default_topic=DEFAULT_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
    )
    session.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def put_order(
    session: Session, out: Output, topic: str, counts: Mapping[str, int], *, whole: bool
) -> None:
    """Tells the name servers how many queues of an ordered topic each broker has.

    `whole`: no other broker has any; else those of before stay.
    """
    kept = {} if whole else order_entries(session.kv(ORDER_CONFIGURATION, topic))
    table = kept | {name: str(count) for name, count in counts.items()}
    value = ";".join(f"{name}:{count}" for name, count in table.items())
    session.put_kv(out.attempt, ORDER_CONFIGURATION, topic, value)


def order_entries(text: str | None) -> dict[str, str]:
    """Broker name → count of queues, of `broker-a:4;broker-b:4`."""
    pairs = (entry.split(":") for entry in (text or "").split(";"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


@command(
    "deleteTopic",
    SECTION,
    TOPIC,
    option("c", "clusterName", "From this cluster.", required=True),
)
def delete_topic(session: Session, out: Output, *, topic: str, cluster_name: str) -> None:
    """Delete a topic from a cluster and from the name servers."""
    for place in session.masters(cluster_name):
        with out.attempt():
            session.ask(place.address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
            out.done(
                f"{topic} is deleted at {place.address}.", topic=topic, deleted_at=place.address
            )
    for address in forget_topic(session, out, topic, cluster_name):
        out.done(f"{topic} is forgotten by {address}.", topic=topic, forgotten_by=address)


def forget_topic(session: Session, out: Output, topic: str, cluster: str) -> list[str]:
    """Takes a topic out of the name servers' routes and order table; gives those that did."""
    header = DeleteTopicInNamesrvHeader(topic, cluster)
    code = RequestCode.DELETE_TOPIC_IN_NAMESRV
    answers = session.ask_all_namesrvs(out.attempt, code, header)
    session.delete_kv(out.attempt, ORDER_CONFIGURATION, topic)
    return [address for address, _ in answers]


@command(
    "updateTopicPerm",
    SECTION,
    BROKER,
    CLUSTER,
    TOPIC,
    option(
        "p", "perm", "4 read, 2 write, 6 both.", type=click.Choice(["2", "4", "6"]), required=True
    ),
)
def update_topic_perm(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    topic: str,
    perm: str,
) -> None:
    """Change what clients may do with a topic."""
    one_of(broker_addr, cluster_name)
    wanted = set(session.targets(broker_addr, cluster_name))
    for address in sorted(wanted):
        with out.attempt():
            table = session.read(TopicConfigTable, address, RequestCode.GET_ALL_TOPIC_CONFIG)
            config = table.topic_configs.get(topic)
            if config is None:
                out.fail(f"{address} does not have the topic {topic}.")
                continue
            before, config.perm = config.perm, int(perm)
            create_topic(session, address, config)
            out.done(
                f"{topic} at {address}: permission {before} is now {perm}.",
                broker_address=address,
                topic=topic,
                perm_before=before,
                perm=config.perm,
            )


@command("topicRoute", SECTION, TOPIC, flag("l", "list", "As a table.", to="as_table"))
def topic_route(session: Session, out: Output, *, topic: str, as_table: bool) -> None:
    """Show which brokers have a topic, and how many of its queues."""
    route = session.route(topic)
    if not as_table:
        out.fields(
            {
                "queues": [
                    {
                        "broker": each.broker_name,
                        "read_queues": each.read_queue_nums,
                        "write_queues": each.write_queue_nums,
                        "perm": each.perm,
                        "sys_flag": each.topic_sys_flag,
                    }
                    for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
                ],
                "brokers": [
                    {
                        "cluster": each.cluster,
                        "broker": each.broker_name,
                        "addresses": _addresses(each),
                    }
                    for each in sorted(route.broker_datas, key=lambda each: each.broker_name)
                ],
                "order": route.order_topic_conf,
            }
        )
        return
    brokers = {each.broker_name: each for each in route.broker_datas}
    out.table(
        (
            {
                "cluster": brokers[each.broker_name].cluster,
                "broker": each.broker_name,
                "addresses": _addresses(brokers[each.broker_name]),
                "read_queues": each.read_queue_nums,
                "write_queues": each.write_queue_nums,
                "perm": each.perm,
            }
            for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
            if each.broker_name in brokers
        ),
        f"No broker has the topic {topic}.",
    )


def _addresses(data: BrokerData) -> dict[str, str]:
    return {str(broker_id): address for broker_id, address in sorted(data.broker_addrs.items())}


@command("topicStatus", SECTION, TOPIC)
def topic_status(session: Session, out: Output, *, topic: str) -> None:
    """Show the first and the last offset of each queue, and when it last grew."""
    out.table(_queue_ends(session, out, topic), f"The topic {topic} has no queues.")


def _queue_ends(session: Session, out: Output, topic: str) -> Iterator[Row]:
    code = RequestCode.GET_TOPIC_STATS_INFO
    for place in session.topic_brokers(topic):
        stats = TopicStatsTable()
        with out.attempt():
            stats = session.read(TopicStatsTable, place.address, code, TopicHeader(topic))
        for queue, ends in sorted(stats.offset_table.items(), key=lambda item: item[0].queue_id):
            yield {
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "min_offset": ends.min_offset,
                "max_offset": ends.max_offset,
                "last_updated_ms": Time(ends.last_update_timestamp),
            }


@command("topicClusterList", SECTION, TOPIC)
def topic_cluster_list(session: Session, out: Output, *, topic: str) -> None:
    """Show the clusters that have a topic."""
    names = sorted({each.cluster for each in session.route(topic).broker_datas})
    out.table(({"cluster": name} for name in names), f"No cluster has the topic {topic}.")


@command(
    "topicList",
    SECTION,
    flag("c", "clusterModel", "With clusters and consumer groups.", to="with_groups"),
)
def topic_list(session: Session, out: Output, *, with_groups: bool) -> None:
    """List all topics."""
    topics = session.topics()
    if not with_groups:
        out.table(({"topic": topic} for topic in topics), "There are no topics.")
        return
    rows = (row for topic in topics for row in _groups_of(session, topic))
    out.table(rows, "There are no topics.")


def _groups_of(session: Session, topic: str) -> Iterator[Row]:
    if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        return
    try:
        places = session.topic_brokers(topic)
        clusters = sorted({place.cluster for place in places})
        groups = sorted(
            {group for place in places for group in consumers_of(session, place, topic)}
        )
    except RouteNotFound:
        return
    for cluster in clusters:
        for group in groups or [""]:
            yield {"cluster": cluster, "topic": topic, "group": group}


def consumers_of(session: Session, place: BrokerPlace, topic: str) -> list[str]:
    """The groups that consume a topic at one broker, or once did."""
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    return session.read(GroupList, place.address, code, TopicHeader(topic)).group_list


@command(
    "updateOrderConf",
    SECTION,
    TOPIC,
    option("v", "orderConf", "broker-a:4;broker-b:4", metavar="BROKER:QUEUES;…"),
    option(
        "m", "method", "What to do.", type=click.Choice(["get", "put", "delete"]), required=True
    ),
)
def update_order_conf(
    session: Session, out: Output, *, topic: str, order_conf: str | None, method: str
) -> None:
    """Get, put or delete how many queues of an ordered topic each broker has."""
    if method == "get":
        value = session.kv(ORDER_CONFIGURATION, topic)
        out.fields({"topic": topic, "order": value})
    elif method == "delete":
        for address in session.delete_kv(out.attempt, ORDER_CONFIGURATION, topic):
            out.done(
                f"The order of {topic} is deleted at {address}.",
                namesrv=address,
                topic=topic,
                order=None,
            )
    else:
        if not order_conf or not order_entries(order_conf):
            raise click.UsageError("Say with -v which order: broker-a:4;broker-b:4.")
        for address in session.put_kv(out.attempt, ORDER_CONFIGURATION, topic, order_conf):
            out.done(
                f"The order of {topic} is {order_conf} at {address}.",
                namesrv=address,
                topic=topic,
                order=order_conf,
            )


@command(
    "allocateMQ",
    SECTION,
    TOPIC,
    option("i", "ipList", "The members.", required=True, metavar="ADDRESS,ADDRESS…"),
)
def allocate_mq(session: Session, out: Output, *, topic: str, ip_list: str) -> None:
    """Show which queues each of these members of a group would get, by the default allocation."""
    queues = sorted(route_of(topic, session.route(topic)).subscribe_queues)
    members = sorted({each.strip() for each in ip_list.split(",") if each.strip()})
    rows = (
        {"member": member, "broker": queue.broker_name, "queue_id": queue.queue_id}
        for member in members
        for queue in averagely(member, members, queues)
    )
    out.table(rows, f"The topic {topic} has no queues.")
