"""Commands about consumer groups and producers: settings, members, progress."""

from protocol.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from protocol.codes import RequestCode
from protocol.headers.admin import (
    DeleteSubscriptionGroupHeader,
    TopicHeader,
)
from protocol.table_rules import asked_group_fault
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.cli.admin.command import (
    BROKER,
    CLUSTER,
    GROUP,
    command,
    one_of,
    option,
    parse_bool,
    yes_no,
)
from troupemq.cli.admin.output import Output, snake_case
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.times import INT_MAX, NUMBER, OFFSET, WholeNumber
from troupemq.cli.admin.topics import forget_topic
from troupemq.client.errors import ArgumentIllegal

SECTION, PRODUCERS = "Consumer groups", "Producers"
RETRIES = WholeNumber(-1, INT_MAX)


@command(
    "updateSubGroup",
    SECTION,
    BROKER,
    CLUSTER,
    GROUP,
    yes_no("s", "consumeEnable", "Its members may pull.", "true"),
    yes_no("m", "consumeFromMinEnable", "A new member may begin at the first message."),
    yes_no("d", "consumeBroadcastEnable", "Its members may consume in broadcast."),
    option("q", "retryQueueNums", "Queues of its retry topic.", type=NUMBER, default=1),
    option("r", "retryMaxTimes", "Retries before the dead letters.", type=RETRIES, default=16),
    option("i", "brokerId", "Which broker of a name it consumes from.", type=OFFSET, default=0),
    option(
        "w",
        "whichBrokerWhenConsumeSlowly",
        "Which one when it is far behind.",
        type=OFFSET,
        default=1,
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
        with out.attempt():
            update_group(session, address, config)
            out.done(
                f"The group {group_name} is set at {address}.",
                broker_address=address,
                **snake_case(config.to_json()),
            )


def update_group(session: Session, address: str, config: SubscriptionGroupConfig) -> None:
    """Creates or changes a group at one broker. Raises ArgumentIllegal for one that cannot be."""
    if fault := asked_group_fault(config):
        raise ArgumentIllegal(f"{config.group_name}: {fault}")
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
        with out.attempt():
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
            with out.attempt():
                session.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
        forget_topic(session, out, topic, cluster_name)


@command("getConsumerConfig", SECTION, GROUP)
def get_consumer_config(session: Session, out: Output, *, group_name: str) -> None:
    """Show a group's settings at each broker."""
    found = False
    for place in session.masters():
        with out.attempt():
            config = group_table(session, place.address).subscription_group_table.get(group_name)
            if config is not None:
                found = True
                where = {"cluster": place.cluster, "broker": place.name}
                out.fields({**where, **snake_case(config.to_json())})
    if not found:
        out.fail(f"No broker has settings of the group {group_name}.")


def group_table(session: Session, address: str) -> SubscriptionGroupTable:
    """All consumer groups that a broker has settings of."""
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    return session.read(SubscriptionGroupTable, address, code)
