"""Commands about how far consumer groups are behind."""

from collections.abc import Iterator, Sequence
from time import sleep

from protocol.bodies import MessageQueue
from protocol.bodies_admin import (
    ConsumeStatsBody,
    ConsumeStatsList,
)
from protocol.codes import RequestCode
from protocol.headers.admin import (
    GetBrokerConsumeStatsHeader,
    GetConsumeStatsHeader,
)
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.cli.admin.command import (
    command,
    option,
    parse_bool,
    yes_no,
)
from troupemq.cli.admin.members import members_of, queues_of, running_info
from troupemq.cli.admin.output import Output, Row, Time
from troupemq.cli.admin.session import BrokerPlace, Session
from troupemq.cli.admin.times import COUNT, SECONDS
from troupemq.client.errors import BrokerError, ClientError, RouteNotFound

SECTION = "Consumer groups"


@command(
    "consumerProgress",
    SECTION,
    option("g", "groupName", "This group, queue by queue."),
    yes_no("s", "showClientIP", "Who has each queue."),
)
def consumer_progress(
    session: Session, out: Output, *, group_name: str | None, show_client_ip: str
) -> None:
    """Show how far a group is behind, or all groups."""
    if group_name is None:
        names = sorted(
            topic.removeprefix(RETRY_TOPIC_PREFIX)
            for topic in session.topics()
            if topic.startswith(RETRY_TOPIC_PREFIX)
        )
        rows = (row for name in names for row in _summary(session, out, name))
        out.table(rows, "No group has consumed here.")
        return
    found = _stats_of(session, out, group_name)
    owners = _owners(session, group_name) if parse_bool(show_client_ip) else None
    if out.table(_progress(found, owners), f"The group {group_name} has consumed nothing."):
        tps = sum(each.consume_tps for each in found)
        out.footer(f"{_lag(found)} behind in all; {tps:.2f} consumed a second.")


def _stats_of(session: Session, out: Output, group: str) -> list[ConsumeStatsBody]:
    """What each broker says of a group. Raises RouteNotFound for one that nobody knows."""
    try:
        return list(_asked(session, out, group, session.group_brokers(group)))
    except RouteNotFound:  # offsets may be set or cloned before anybody consumes
        asked = _asked(session, out, group, session.masters())
        found = [stats for stats in asked if stats.offset_table]
        if not found:
            raise
        return found


def _asked(
    session: Session, out: Output, group: str, places: Sequence[BrokerPlace]
) -> Iterator[ConsumeStatsBody]:
    code, header = RequestCode.GET_CONSUME_STATS, GetConsumeStatsHeader(group)
    for place in places:
        with out.attempt():
            yield session.read(ConsumeStatsBody, place.address, code, header)


def _lag(found: Sequence[ConsumeStatsBody]) -> int:
    return sum(where.lag for each in found for where in each.offset_table.values())


def _progress(
    found: Sequence[ConsumeStatsBody], owners: dict[MessageQueue, str] | None
) -> Iterator[Row]:
    offsets = [item for stats in found for item in stats.offset_table.items()]
    for queue, where in sorted(offsets, key=lambda item: _order(item[0])):
        row: dict[str, object] = {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "broker_offset": where.broker_offset,
            "consumer_offset": where.consumer_offset,
        }
        if owners is not None:
            row["client"] = owners.get(queue)
        row["lag"] = where.lag
        row["last_consumed_ms"] = Time(where.last_timestamp)
        yield row


def _order(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def _owners(session: Session, group: str) -> dict[MessageQueue, str]:
    """Who has which queue, as far as the members answer; for a pull consumer nobody knows."""
    found: dict[MessageQueue, str] = {}
    try:
        members = members_of(session, group).connection_set
    except BrokerError:  # nobody is there
        return found
    for member in members:
        try:
            info = running_info(session, group, member.client_id)
        except ClientError:
            continue
        for queue in queues_of(info):
            found[queue] = member.client_id.split("@")[0]
    return found


def _summary(session: Session, out: Output, group: str) -> Iterator[Row]:
    """A row, but for a group that was deleted meanwhile."""
    try:
        stats = _stats_of(session, out, group)
    except RouteNotFound:
        return
    members: Sequence[object] = ()
    version, kind, model = None, None, None
    try:
        found = members_of(session, group)
    except ClientError:
        pass
    else:
        members = found.connection_set
        version = min((each.version for each in found.connection_set), default=None)
        kind, model = found.consume_type, found.message_model
    yield {
        "group": group,
        "members": len(members),
        "version": version,
        "type": {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}.get(kind or "", kind),
        "model": model,
        "tps": sum(each.consume_tps for each in stats),
        "lag": _lag(stats),
    }


@command(
    "brokerConsumeStats",
    SECTION,
    option("b", "brokerAddr", "The broker.", required=True, metavar="HOST:PORT"),
    option(
        "t", "timeoutMillis", "How long to wait.", type=COUNT, default=50_000, show_default=True
    ),
    option("l", "level", "Only queues at least that far behind.", type=int, default=0),
    yes_no("o", "order", "Only ordered topics."),
)
def broker_consume_stats(
    session: Session, out: Output, *, broker_addr: str, timeout_millis: int, level: int, order: str
) -> None:
    """Show how far all groups of a broker are behind."""
    header = GetBrokerConsumeStatsHeader(parse_bool(order))
    code = RequestCode.GET_BROKER_CONSUME_STATS
    found = session.read(ConsumeStatsList, broker_addr, code, header, timeout_millis)
    rows = (
        {
            "topic": queue.topic,
            "group": group,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "broker_offset": where.broker_offset,
            "consumer_offset": where.consumer_offset,
            "lag": where.lag,
            "last_consumed_ms": Time(where.last_timestamp),
        }
        for table in found.consume_stats_list
        for group, several in table.items()
        for stats in several
        for queue, where in sorted(stats.offset_table.items(), key=lambda item: _order(item[0]))
        if where.lag >= level
    )
    out.table(rows, f"No group has consumed from {broker_addr}.")


@command(
    "startMonitoring",
    SECTION,
    option("i", "intervalS", "Seconds between two rounds.", type=SECONDS, default=60),
    option("r", "rounds", "End after that many.", type=COUNT),
    option("l", "level", "Groups at least that far behind.", type=int, default=100_000),
    until_interrupted=True,
)
def start_monitoring(
    session: Session, out: Output, *, interval_s: float, rounds: int | None, level: int
) -> None:
    """Watch all groups: who is far behind, and who is behind with nobody there. Ends at Ctrl-C."""
    done = 0
    while rounds is None or done < rounds:
        if done:
            sleep(interval_s)
        done += 1
        with out.attempt():  # a name server that is gone may come back
            out.table(_worries(session, out, level), "Nothing to worry about.")


def _worries(session: Session, out: Output, level: int) -> Iterator[Row]:
    for topic in session.topics():
        if topic.startswith(RETRY_TOPIC_PREFIX):
            for row in _summary(session, out, topic.removeprefix(RETRY_TOPIC_PREFIX)):
                lag = row["lag"]
                assert isinstance(lag, int)
                if lag >= level or (lag > 0 and not row["members"]):
                    yield row
