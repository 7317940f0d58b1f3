"""Commands that write configurations and figures into files, in mqadmin's form."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time_ns

import click

from protocol.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from protocol.bodies_admin import BrokerStatsData, TopicList
from protocol.codes import VERSION, RequestCode
from protocol.topic_names import (
    DLQ_TOPIC_PREFIX,
    HALF_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
)
from storage.errors import reason_of
from storage.tables.groups import ALWAYS_PRESENT, TRANSACTION_GROUP
from troupemq.cli.admin.brokers import broker_settings, first_number, runtime_info
from troupemq.cli.admin.command import BROKER, CLUSTER, command, flag, one_of, option
from troupemq.cli.admin.groups import group_table
from troupemq.cli.admin.members import members_of
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.stats import broker_stats
from troupemq.client.errors import BrokerError, ClientError
from troupemq.numbers import whole

SECTION = "Export and import"
SYSTEM_GROUPS = frozenset((*ALWAYS_PRESENT, TRANSACTION_GROUP))
"""Every broker has these by itself."""

EXPORTED_SETTINGS = (
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
)
_DIRECTORY = option(
    "f",
    "filePath",
    "The directory for the file.",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("export"),
    show_default=True,
)
_WHOLE_CLUSTER = option("c", "clusterName", "The cluster.", required=True)

Topics = dict[str, TopicConfig]
Groups = dict[str, SubscriptionGroupConfig]


def user_topics(session: Session, address: str, *, special: bool = False) -> Topics:
    """The topics of a broker but its own; retry topics and dead letters only if `special`."""
    own = session.read(TopicList, address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    table = session.read(TopicConfigTable, address, RequestCode.GET_ALL_TOPIC_CONFIG)
    return {
        name: config
        for name, config in sorted(table.topic_configs.items())
        if name not in own.topic_list
        and (special or not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)))
    }


def user_groups(session: Session, address: str) -> Groups:
    """The consumer groups of a broker but its own."""
    table = group_table(session, address).subscription_group_table
    return {name: each for name, each in sorted(table.items()) if name not in SYSTEM_GROUPS}


def write_file(out: Output, path: Path, found: Mapping[str, object]) -> None:
    """Writes it as JSON, over what is there. Raises ClientError if it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent="\t", ensure_ascii=False) + "\n")
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {reason_of(error)}") from None
    out.done(f"{path} is written.", file=str(path))


def _plain(table: Mapping[str, TopicConfig] | Mapping[str, SubscriptionGroupConfig]) -> object:
    return {name: config.to_json() for name, config in table.items()}


@command(
    "exportMetadata",
    SECTION,
    CLUSTER,
    BROKER,
    _DIRECTORY,
    flag("t", "topic", "Topics only.", to="only_topics"),
    flag("g", "subscriptionGroup", "Consumer groups only.", to="only_groups"),
    flag("s", "specialTopic", "Retry topics and dead letters too.", to="special"),
)
def export_metadata(
    session: Session,
    out: Output,
    *,
    cluster_name: str | None,
    broker_addr: str | None,
    file_path: Path,
    only_topics: bool,
    only_groups: bool,
    special: bool,
) -> None:
    """Write topics and groups into topic.json, subscriptionGroup.json or metadata.json.

    Of a cluster the queues of its brokers are added up.
    """
    one_of(broker_addr, cluster_name)
    addresses = session.targets(broker_addr, cluster_name)
    topics, groups = _added_up(session, addresses, special=special)
    found: dict[str, object] = {}
    if not only_groups:
        found["topicConfigTable"] = _plain(topics)
    if not only_topics:
        found["subscriptionGroupTable"] = _plain(groups)
    found["exportTime"] = time_ns() // 1_000_000
    name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    write_file(out, file_path / f"{name}.json", found)


def _added_up(
    session: Session, addresses: Iterable[str], *, special: bool
) -> tuple[Topics, Groups]:
    topics: Topics = {}
    groups: Groups = {}
    for address in addresses:
        for name, topic in user_topics(session, address, special=special).items():
            before = topics.get(name)
            if before is not None:
                topic.read_queue_nums += before.read_queue_nums
                topic.write_queue_nums += before.write_queue_nums
            topics[name] = topic
        for name, group in user_groups(session, address).items():
            earlier = groups.get(name)
            if earlier is not None:
                group.retry_queue_nums += earlier.retry_queue_nums
            groups[name] = group
    return topics, groups


@command("exportConfigs", SECTION, _WHOLE_CLUSTER, _DIRECTORY)
def export_configs(session: Session, out: Output, *, cluster_name: str, file_path: Path) -> None:
    """Write the settings of a cluster's brokers into configs.json."""
    places = session.brokers(cluster_name)
    masters = [place for place in places if place.is_master]
    settings = {place.name: broker_settings(session, place.address) for place in masters}
    found = {
        "brokerConfigs": {
            name: {key: table[key] for key in EXPORTED_SETTINGS if key in table}
            for name, table in settings.items()
        },
        "clusterScale": {
            "namesrvSize": len(session.namesrvs),
            "masterBrokerSize": len(masters),
            "slaveBrokerSize": len(places) - len(masters),
        },
    }
    write_file(out, file_path / "configs.json", found)


@command("exportMetrics", SECTION, _WHOLE_CLUSTER, _DIRECTORY)
def export_metrics(session: Session, out: Output, *, cluster_name: str, file_path: Path) -> None:
    """Write the figures of a cluster's brokers into metrics.json."""
    reports = {}
    rates: dict[str, float] = {}
    counts: dict[str, int] = {}
    for place in session.masters(cluster_name):
        table = runtime_info(session, place.address)
        rate, count = _rates(session, place.address, table)
        reports[place.name] = {
            "runtimeEnv": {
                "cpuNum": broker_settings(session, place.address).get(
                    "clientCallbackExecutorThreads"
                ),
                "totalMemKBytes": table.get("totalMemKBytes"),
            },
            "runtimeQuota": _quota(session, place.address, table)
            | {
                "tps": rate,
                "oneDayNum": count,
            },
            "runtimeVersion": {
                "rocketmqVersion": table.get("brokerVersionDesc", str(VERSION)),
                "clientInfo": _clients(session, place.address),
            },
        }
        for name, tps in rate.items():
            rates[_total(name)] = rates.get(_total(name), 0.0) + tps
        for name, number in count.items():
            counts[_total(name)] = counts.get(_total(name), 0) + number
    totals = {"totalTps": rates, "totalOneDayNum": counts}
    write_file(out, file_path / "metrics.json", {"evaluateReport": reports, "totalData": totals})


def _total(name: str) -> str:
    return f"total{name[0].upper()}{name[1:]}"


def _quota(session: Session, address: str, table: Mapping[str, str]) -> dict[str, object]:
    return {
        "diskRatio": {
            name: table.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
        },
        "messageAverageSize": table.get("putMessageAverageSize"),
        "topicSize": len(user_topics(session, address)),
        "groupSize": len(user_groups(session, address)),
    }


def _rates(
    session: Session, address: str, table: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, int]]:
    half = _stats(session, address, HALF_TOPIC)
    delayed = _stats(session, address, SCHEDULE_TOPIC)

    def yesterday(kind: str) -> int:
        today = whole(table.get(f"msg{kind}TotalTodayMorning")) or 0
        return today - (whole(table.get(f"msg{kind}TotalYesterdayMorning")) or 0)

    rates = {
        "normalInTps": first_number(table.get("putTps")),
        "normalOutTps": first_number(table.get("getTransferedTps")),
        "transInTps": half.stats_minute.tps,
        "scheduleInTps": delayed.stats_minute.tps,
    }
    counts = {
        "normalOneDayInNum": yesterday("Put"),
        "normalOneDayOutNum": yesterday("Get"),
        "transOneDayInNum": half.stats_day.sum,
        "scheduleOneDayInNum": delayed.stats_day.sum,
    }
    return rates, counts


def _stats(session: Session, address: str, topic: str) -> BrokerStatsData:
    try:
        return broker_stats(session, address, "TOPIC_PUT_NUMS", topic)
    except BrokerError:  # it never counted that topic
        return BrokerStatsData()


def _clients(session: Session, address: str) -> list[str]:
    """Language and version of all consumers that are there."""
    found = set()
    for group in user_groups(session, address):
        try:
            members = members_of(session, group, address)
        except BrokerError:
            continue
        found |= {f"{each.language}%{each.version}" for each in members.connection_set}
    return sorted(found)
