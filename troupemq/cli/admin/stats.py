"""`statsAll`: what goes into and out of each topic; and one counter of a broker."""

from collections.abc import Iterator
from contextlib import suppress

from protocol.bodies_admin import BrokerStatsData, ConsumeStatsBody
from protocol.codes import RequestCode, ResponseCode
from protocol.headers.admin import GetConsumeStatsHeader, ViewBrokerStatsHeader
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.cli.admin.command import command, flag, option
from troupemq.cli.admin.output import Output, Row
from troupemq.cli.admin.session import BrokerPlace, Session
from troupemq.cli.admin.topics import consumers_of
from troupemq.client.errors import BrokerError, RouteNotFound

SECTION = "Topics"


@command(
    "statsAll",
    SECTION,
    flag("a", "activeTopic", "Only topics with traffic in the last 24 hours.", to="active_only"),
    option("t", "topic", "This topic only."),
)
def stats_all(session: Session, out: Output, *, active_only: bool, topic: str | None) -> None:
    """Show what goes into and out of each topic, and how far its groups are behind."""
    if topic is not None:
        session.route(topic)  # one that does not exist is an error
    topics = [topic] if topic is not None else session.topics()
    rows = (row for each in topics for row in _traffic(session, out, each))
    if active_only:
        rows = (row for row in rows if row["in_day"] or row["out_day"])
    out.table(rows, "No topic has traffic." if active_only else "There are no topics.")


def _traffic(session: Session, out: Output, topic: str) -> Iterator[Row]:
    if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        return
    places: list[BrokerPlace] = []
    names: set[str] = set()
    with suppress(RouteNotFound):
        for place in session.topic_brokers(topic):
            with out.attempt():
                names |= {*consumers_of(session, place, topic)}
                places.append(place)
    if not places:
        return
    came = [_stats(session, place, "TOPIC_PUT_NUMS", topic) for place in places]
    for group in sorted(names) or [""]:
        went = [_stats(session, place, "GROUP_GET_NUMS", f"{topic}@{group}") for place in places]
        lags = [_lag(session, place, topic, group) for place in places] if group else [0]
        yield {
            "topic": topic,
            "group": group,
            "lag": sum(lags),
            "in_tps": sum(each.stats_minute.tps for each in came),
            "out_tps": sum(each.stats_minute.tps for each in went),
            "in_day": sum(_day(each) for each in came),
            "out_day": sum(_day(each) for each in went),
        }


def _stats(session: Session, place: BrokerPlace, name: str, key: str) -> BrokerStatsData:
    """One counter of a broker; zeros where it never counted that."""
    try:
        return broker_stats(session, place.address, name, key)
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        return BrokerStatsData()


def broker_stats(session: Session, address: str, name: str, key: str) -> BrokerStatsData:
    """One counter of a broker. Raises BrokerError(SYSTEM_ERROR) where it never counted that."""
    header = ViewBrokerStatsHeader(name, key)
    return session.read(BrokerStatsData, address, RequestCode.VIEW_BROKER_STATS_DATA, header)


def _day(data: BrokerStatsData) -> int:
    """The widest span that has counted anything: a young broker has no day behind it yet."""
    return data.stats_day.sum or data.stats_hour.sum or data.stats_minute.sum


def _lag(session: Session, place: BrokerPlace, topic: str, group: str) -> int:
    header = GetConsumeStatsHeader(group, topic)
    stats = session.read(ConsumeStatsBody, place.address, RequestCode.GET_CONSUME_STATS, header)
    return sum(each.lag for each in stats.offset_table.values())
