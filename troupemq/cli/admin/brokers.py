"""Commands about clusters and brokers: state, settings, cleaning."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import sleep, time_ns

from protocol.bodies import KVTable
from protocol.bodies_own import StoreState
from protocol.codes import RequestCode
from troupemq.cli.admin.command import BROKER, CLUSTER, command, flag, one_of, option
from troupemq.cli.admin.output import Output, Row, Time
from troupemq.cli.admin.properties import and_says, check_known, properties_of, setting
from troupemq.cli.admin.session import BrokerPlace, Session
from troupemq.cli.admin.times import SECONDS
from troupemq.client.errors import BrokerError, ClientError
from troupemq.numbers import first_finite

SECTION = "Clusters and brokers"
_HOUR_MS = 3_600_000
ONE_OF = "one_of"
"""In a row of a broker that is one of several under one process: the name of the first."""
_NOT_ADDED = frozenset(("send_wait_ms", "pull_wait_ms", "page_cache_ms", "kept_hours", "disk"))
"""Figures of which a host has the highest of its brokers."""
_Show = Callable[[BrokerPlace, dict[str, str]], Row]
_ITS_CLUSTER = option("c", "cluster", "All masters of this cluster.", metavar="NAME")


@command(
    "clusterList",
    SECTION,
    flag("m", "moreStats", "Messages yesterday and today instead of rates."),
    flag("e", "each", "A line for each of several brokers under one process."),
    option("i", "interval", "Again every so many seconds, until Ctrl-C.", type=SECONDS),
    until_interrupted=True,
)
def cluster_list(
    session: Session, out: Output, *, more_stats: bool, each: bool, interval: float | None
) -> None:
    """List all brokers, how busy they are and how full; several under one process as one."""
    show = _day_row if more_stats else _rate_row
    while True:
        rows = (row for place in session.brokers() for row in _asked(session, out, place, show))
        out.table(rows if each or out.as_json else as_hosts(rows), "No broker has answered.")
        if interval is None:
            return
        sleep(interval)


def runtime_info(session: Session, address: str) -> dict[str, str]:
    """What a broker says of itself."""
    return session.read(KVTable, address, RequestCode.GET_BROKER_RUNTIME_INFO).table


def _asked(session: Session, out: Output, place: BrokerPlace, show: _Show) -> Iterator[Row]:
    try:
        table = runtime_info(session, place.address)
    except BrokerError as error:
        out.fail(f"{place.name} {place.id} refuses to say how it is: {error}")
        return
    except ClientError as error:
        out.fail(f"{place.name} {place.id} does not answer: {error}")
        return
    one_of = {ONE_OF: table["oneOf"]} if "oneOf" in table else {}
    yield {**show(place, table), **one_of}


def first_number(text: str | None) -> float:
    """The first of the averages over 10, 60 and 600 s; 0 where there is none."""
    return first_finite(text) or 0.0


def _rate_row(place: BrokerPlace, table: dict[str, str]) -> Row:
    earliest_ms = int(_number(table, "earliestMessageTimeStamp"))
    now_ms = time_ns() // 1_000_000
    hours = (now_ms - earliest_ms) / _HOUR_MS if earliest_ms > 0 else 0.0
    return {
        "cluster": place.cluster,
        "broker": place.name,
        "id": place.id,
        "address": place.address,
        "version": table.get("brokerVersionDesc"),
        "in_tps": first_number(table.get("putTps")),
        "out_tps": first_number(table.get("getTransferedTps")),
        "waiting_sends": int(_number(table, "sendThreadPoolQueueSize")),
        "send_wait_ms": int(_number(table, "sendThreadPoolQueueHeadWaitTimeMills")),
        "waiting_pulls": int(_number(table, "pullThreadPoolQueueSize")),
        "pull_wait_ms": int(_number(table, "pullThreadPoolQueueHeadWaitTimeMills")),
        "page_cache_ms": int(_number(table, "pageCacheLockTimeMills")),
        "kept_hours": hours,
        "disk": _number(table, "commitLogDiskRatio"),
    }


def _number(table: dict[str, str], name: str) -> float:
    return first_number(table.get(name))


def _day_row(place: BrokerPlace, table: dict[str, str]) -> Row:
    def count(name: str) -> int:
        return int(_number(table, name))

    put_today, get_today = count("msgPutTotalTodayMorning"), count("msgGetTotalTodayMorning")
    return {
        "cluster": place.cluster,
        "broker": place.name,
        "id": place.id,
        "in_yesterday": put_today - count("msgPutTotalYesterdayMorning"),
        "out_yesterday": get_today - count("msgGetTotalYesterdayMorning"),
        "in_today": count("msgPutTotalTodayNow") - put_today,
        "out_today": count("msgGetTotalTodayNow") - get_today,
    }


def as_hosts(rows: Iterable[Row]) -> list[Row]:
    """The same with one row for all brokers that one process runs: what they do together."""
    hosts: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        host = row["cluster"], row.get(ONE_OF, row["broker"]), row["id"]
        hosts.setdefault(host, []).append(row)
    return [_together(each) for each in hosts.values()]


def _together(rows: Sequence[Row]) -> Row:
    first = {key: value for key, value in rows[0].items() if key != ONE_OF}
    if len(rows) == 1:
        return first
    found = dict(first, broker=f"{rows[0][ONE_OF]} ({len(rows)})")
    for key, value in first.items():
        if isinstance(value, int | float) and key != "id":
            numbers = [value for row in rows if isinstance(value := row[key], int | float)]
            found[key] = max(numbers) if key in _NOT_ADDED else sum(numbers)
    return found


@command("brokerStatus", SECTION, BROKER, CLUSTER)
def broker_status(
    session: Session, out: Output, *, broker_addr: str | None, cluster_name: str | None
) -> None:
    """Show what a broker says of itself."""
    one_of(broker_addr, cluster_name)
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            found = dict(sorted(runtime_info(session, address).items()))
            out.fields(
                {"broker_address": address, **found} if out.as_json else found, title=address
            )


@command("storeState", SECTION, BROKER, CLUSTER)
def store_state(
    session: Session, out: Output, *, broker_addr: str | None, cluster_name: str | None
) -> None:
    """Show what a broker's store holds, and what of it is damaged; of our brokers only.

    Exit code 1 if something is damaged.
    """
    one_of(broker_addr, cluster_name)
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            found = session.read(StoreState, address, RequestCode.GET_STORE_STATE)
            row = store_row(found)
            out.fields({"broker_address": address, **row} if out.as_json else row, title=address)
            if found.damaged_places:
                out.fail(
                    f"{found.damaged_places} places of the log of {address} are damaged,"
                    f" {found.damaged_bytes} bytes in all."
                )
            for path in found.damaged_tables:
                out.fail(f"The start of {address} found {path} damaged.")


def store_row(found: StoreState) -> Row:
    """A store under the names that commands and the console show."""
    return {
        "log_start": found.log_start,
        "log_end": found.log_end,
        "log_files": found.log_files,
        "not_flushed": max(0, found.log_end - found.flushed),
        "not_dispatched": max(0, found.log_end - found.dispatched),
        "queues": found.queues,
        "index_files": found.index_files,
        "disk_bytes": found.disk_bytes,
        "disk_free_bytes": found.disk_free_bytes,
        "verified_percent": found.verified_percent,
        "verified_ms": Time(found.verified_ms),
        "damaged_places": found.damaged_places,
        "damaged_bytes": found.damaged_bytes,
        "damage": [f"{each.start} to {each.end}: {each.why}" for each in found.damage],
        "damaged_tables": found.damaged_tables,
        "found_at_start": found.found_at_start,
    }


@command("getBrokerConfig", SECTION, BROKER, CLUSTER)
def get_broker_config(
    session: Session, out: Output, *, broker_addr: str | None, cluster_name: str | None
) -> None:
    """Show a broker's settings."""
    one_of(broker_addr, cluster_name)
    for address in session.targets(broker_addr, cluster_name, masters_only=False):
        with out.attempt():
            found = broker_settings(session, address)
            out.fields(
                {"broker_address": address, **found} if out.as_json else found, title=address
            )


def broker_settings(session: Session, address: str) -> dict[str, str]:
    """All settings of a broker, by name."""
    return properties_of(session.ask(address, RequestCode.GET_BROKER_CONFIG).body)


@command(
    "updateBrokerConfig",
    SECTION,
    BROKER,
    CLUSTER,
    option("k", "key", "The setting.", required=True),
    option("v", "value", "Its value.", required=True),
)
def update_broker_config(
    session: Session,
    out: Output,
    *,
    broker_addr: str | None,
    cluster_name: str | None,
    key: str,
    value: str,
) -> None:
    """Change a broker's setting, while it runs and in its file."""
    one_of(broker_addr, cluster_name)
    body = setting(key, value)
    for address in session.targets(broker_addr, cluster_name):
        with out.attempt():
            check_known(session, address, RequestCode.GET_BROKER_CONFIG, key)
            remark = session.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body).remark
            out.done(
                f"{key} is {value} at {address}." + and_says(remark),
                broker_address=address,
                key=key,
                value=value,
                remark=remark,
            )


def _clean(
    session: Session, out: Output, code: RequestCode, address: str | None, cluster: str | None
) -> None:
    """Tells one broker, those of a cluster, or all: the answer says that it has begun."""
    for each in session.targets(address, cluster):
        with out.attempt():
            session.ask(each, code)
            out.done(f"{each} cleans.", broker_address=each, cleans=True)


@command("cleanExpiredCQ", SECTION, BROKER, _ITS_CLUSTER)
def clean_expired_cq(
    session: Session, out: Output, *, broker_addr: str | None, cluster: str | None
) -> None:
    """Have consume queue files deleted whose messages are gone."""
    _clean(session, out, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, broker_addr, cluster)


@command("deleteExpiredCommitLog", SECTION, BROKER, _ITS_CLUSTER)
def delete_expired_commit_log(
    session: Session, out: Output, *, broker_addr: str | None, cluster: str | None
) -> None:
    """Have expired files of the commit log deleted now."""
    _clean(session, out, RequestCode.DELETE_EXPIRED_COMMITLOG, broker_addr, cluster)


@command("cleanUnusedTopic", SECTION, BROKER, _ITS_CLUSTER)
def clean_unused_topic(
    session: Session, out: Output, *, broker_addr: str | None, cluster: str | None
) -> None:
    """Have the consume queues of topics deleted that no longer exist."""
    _clean(session, out, RequestCode.CLEAN_UNUSED_TOPIC, broker_addr, cluster)
