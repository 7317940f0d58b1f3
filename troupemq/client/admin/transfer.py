"""Export and import of brokers' tables, also in the form of mqadmin."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import Unpack

from protocol.bodies_admin import BrokerStatsData, TopicList
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig, TopicConfigTable
from protocol.codes import VERSION, RequestCode
from protocol.errors import ProtocolError
from protocol.java_numbers import plain_number
from protocol.table_rules import asked_group_fault, asked_topic_fault
from protocol.topic_names import (
    ALWAYS_PRESENT,
    DLQ_TOPIC_PREFIX,
    HALF_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
)
from troupemq.client.admin.answers import Change, Failures
from troupemq.client.admin.base import INT_MAX, BrokerPlace, Where
from troupemq.client.admin.brokers import first_number
from troupemq.client.admin.messages import MessageAdmin
from troupemq.client.admin.operations import changes, operation
from troupemq.client.admin.topics import order_entries
from troupemq.client.errors import ArgumentIllegal, BrokerError, ClientError
from troupemq.numbers import whole

SYSTEM_GROUPS = frozenset((*ALWAYS_PRESENT, TRANSACTION_GROUP))
"""Groups that every broker creates itself."""

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
Topics = dict[str, TopicConfig]
Groups = dict[str, SubscriptionGroupConfig]


@dataclass(frozen=True)
class BrokerTables:
    """Topics and groups of one broker, or of several together."""

    topics: Topics = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedTables:
    """The tables of brokers, by cluster and name, and the name servers' orders.

    {"brokers": [{"cluster": "DefaultCluster", "broker": "broker-a",
                  "topics": [{"topicName": ..., as in topics.json}],
                  "groups": [{"groupName": ..., as in subscriptionGroup.json}]}],
     "orders": {"Ordered": "broker-a:4;broker-b:4"}}
    """

    brokers: dict[tuple[str, str], BrokerTables]
    orders: dict[str, str]

    def to_json(self) -> dict[str, object]:
        return {
            "brokers": [
                {
                    "cluster": cluster,
                    "broker": name,
                    "topics": [each.to_json() for each in tables.topics.values()],
                    "groups": [each.to_json() for each in tables.groups.values()],
                }
                for (cluster, name), tables in self.brokers.items()
            ],
            "orders": self.orders,
        }

    def for_broker(self, place: BrokerPlace) -> BrokerTables:
        """Return a broker's tables, else those shared by all. Raises ClientError if they differ."""
        own = self.brokers.get((place.cluster, place.name))
        if own is not None:
            return own
        found = BrokerTables()
        for each in self.brokers.values():
            differing = sorted(
                [name for name, topic in each.topics.items() if _differ(found.topics, name, topic)]
                + [
                    name
                    for name, group in each.groups.items()
                    if _differ(found.groups, name, group)
                ]
            )
            if differing:
                raise ClientError(
                    f"{place.name} is not in the file, and the brokers there have different "
                    f"settings of {', '.join(differing)}"
                )
            found.topics.update(each.topics)
            found.groups.update(each.groups)
        return found


def _differ(table: Mapping[str, object], name: str, config: object) -> bool:
    return name in table and table[name] != config


@dataclass(frozen=True, slots=True)
class TablesImported(Change):
    """The topics and groups that were set at one broker, or with `dry_run` would be."""

    broker_address: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    dry_run: bool

    @property
    def sentence(self) -> str:
        counts = f"{len(self.topics)} topics and {len(self.groups)} groups"
        would = "would be set" if self.dry_run else "are set"
        return f"{counts} {would} at {self.broker_address}."


class TransferAdmin(MessageAdmin):
    @operation
    async def user_topics(self, address: str, *, special: bool = False) -> Topics:
        """Return a broker's topics without system topics; `special`: with retries, dead letters."""
        own = await self._read(TopicList, address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        table = await self._read(TopicConfigTable, address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return {
            name: config
            for name, config in sorted(table.topic_configs.items())
            if name not in own.topic_list
            and (special or not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)))
        }

    @operation
    async def user_groups(self, address: str) -> Groups:
        """Return the consumer groups of a broker without system groups."""
        table = await self._group_table(address)
        return {name: each for name, each in sorted(table.items()) if name not in SYSTEM_GROUPS}

    @operation
    async def export_tables(self, **where: Unpack[Where]) -> ExportedTables:
        """Return the topics and groups of one broker, or of the masters of a cluster or of all."""
        found = ExportedTables({}, {})
        for place in await self._places(**where):
            topics = await self.user_topics(place.address)
            for name in (each.topic_name for each in topics.values() if each.order):
                order = await self.order_of(name)
                found.orders.update({} if order is None else {name: order})
            tables = BrokerTables(topics, await self.user_groups(place.address))
            found.brokers[place.cluster, place.name] = tables
        return found

    async def _places(
        self, broker: str | None = None, cluster: str | None = None
    ) -> list[BrokerPlace]:
        """Return the selected masters; a broker given by its address is asked for its name."""
        if broker is None:
            return await self.masters(cluster)
        settings = await self.settings_at(broker)
        name, its_cluster = settings.get("brokerName", ""), settings.get("brokerClusterName", "")
        return [BrokerPlace(its_cluster, name, 0, broker)]

    @changes
    async def import_tables(
        self,
        failures: Failures,
        contents: ExportedTables,
        *,
        dry_run: bool = False,
        **where: Unpack[Where],
    ) -> AsyncIterator[TablesImported]:
        """Set topics and groups at the brokers that had them, or at the named ones.

        Topics and groups that are not in `contents` do not change. `dry_run`: change nothing.
        """
        places = await self._places(**where)
        if where.get("cluster") is None and where.get("broker") is None:
            there = {(place.cluster, place.name) for place in places}
            for its_cluster, name in sorted(contents.brokers.keys() - there):
                failures.add(f"The broker {name} of {its_cluster} is not registered.")
            places = [place for place in places if (place.cluster, place.name) in contents.brokers]
        wanted = [(place, contents.for_broker(place)) for place in places]
        if not dry_run:
            await self._import_orders(failures, wanted, contents.orders)
        for place, tables in wanted:
            with failures.attempt():
                yield await self._import_at(place, tables, dry_run)

    async def _import_orders(
        self,
        failures: Failures,
        wanted: list[tuple[BrokerPlace, BrokerTables]],
        orders: dict[str, str],
    ) -> None:
        """Set orders before topics: a broker reads the order of a topic as it registers it."""
        ordered: dict[str, dict[str, int]] = {}
        for place, tables in wanted:
            for topic in (each for each in tables.topics.values() if each.order):
                count = order_entries(orders.get(topic.topic_name)).get(place.name)
                given = plain_number(count or "", INT_MAX)
                number = topic.write_queue_nums if given is None else given
                ordered.setdefault(topic.topic_name, {})[place.name] = number
        for name, counts in sorted(ordered.items()):
            have = order_entries(await self.order_of(name))
            if any(have.get(broker) != str(count) for broker, count in counts.items()):
                await self._put_order(failures, name, counts, whole=False)

    async def _import_at(
        self, place: BrokerPlace, tables: BrokerTables, dry_run: bool
    ) -> TablesImported:
        have, had = await self.user_topics(place.address), await self.user_groups(place.address)
        topics = [each for name, each in tables.topics.items() if _changes(have.get(name), each)]
        groups = [each for name, each in tables.groups.items() if had.get(name) != each]
        for topic in () if dry_run else topics:
            await self._set_topic(place.address, topic)
        for group in () if dry_run else groups:
            await self._set_group(place.address, group)
        return TablesImported(
            place.address,
            tuple(each.topic_name for each in topics),
            tuple(each.group_name for each in groups),
            dry_run,
        )

    # --- files of mqadmin

    @operation
    async def export_metadata(
        self,
        *,
        with_topics: bool = True,
        with_groups: bool = True,
        special: bool = False,
        **where: Unpack[Where],
    ) -> dict[str, object]:
        """Return topics and groups in mqadmin's form, with queues summed over brokers."""
        topics, groups = await self._added_up(await self.targets(**where), special)
        found: dict[str, object] = {}
        if with_topics:
            found["topicConfigTable"] = {name: each.to_json() for name, each in topics.items()}
        if with_groups:
            table = {name: each.to_json() for name, each in groups.items()}
            found["subscriptionGroupTable"] = table
        found["exportTime"] = time_ns() // 1_000_000
        return found

    async def _added_up(self, addresses: Iterable[str], special: bool) -> tuple[Topics, Groups]:
        topics: Topics = {}
        groups: Groups = {}
        for address in addresses:
            for name, topic in (await self.user_topics(address, special=special)).items():
                if (before := topics.get(name)) is not None:
                    topic.read_queue_nums += before.read_queue_nums
                    topic.write_queue_nums += before.write_queue_nums
                topics[name] = topic
            for name, group in (await self.user_groups(address)).items():
                if (earlier := groups.get(name)) is not None:
                    group.retry_queue_nums += earlier.retry_queue_nums
                groups[name] = group
        return topics, groups

    @operation
    async def export_configs(self, cluster: str) -> dict[str, object]:
        """Return the settings of a cluster's brokers in mqadmin's form."""
        places = await self.brokers(cluster)
        masters = [place for place in places if place.is_master]
        settings = {place.name: await self.settings_at(place.address) for place in masters}
        return {
            "brokerConfigs": {
                name: {key: table[key] for key in EXPORTED_SETTINGS if key in table}
                for name, table in settings.items()
            },
            "clusterScale": {
                "namesrvSize": len(self.namesrvs),
                "masterBrokerSize": len(masters),
                "slaveBrokerSize": len(places) - len(masters),
            },
        }

    @operation
    async def export_metrics(self, cluster: str) -> dict[str, object]:
        """Return the figures of a cluster's brokers in mqadmin's form."""
        reports = {}
        rates: dict[str, float] = {}
        counts: dict[str, int] = {}
        for place in await self.masters(cluster):
            table = await self.runtime_info(place.address)
            rate, count = await self._rates(place.address, table)
            threads = (await self.settings_at(place.address)).get("clientCallbackExecutorThreads")
            quota = await self._quota(place.address, table)
            reports[place.name] = {
                "runtimeEnv": {"cpuNum": threads, "totalMemKBytes": table.get("totalMemKBytes")},
                "runtimeQuota": quota | {"tps": rate, "oneDayNum": count},
                "runtimeVersion": {
                    "rocketmqVersion": table.get("brokerVersionDesc", str(VERSION)),
                    "clientInfo": await self._clients(place.address),
                },
            }
            for name, tps in rate.items():
                rates[_total(name)] = rates.get(_total(name), 0.0) + tps
            for name, number in count.items():
                counts[_total(name)] = counts.get(_total(name), 0) + number
        totals = {"totalTps": rates, "totalOneDayNum": counts}
        return {"evaluateReport": reports, "totalData": totals}

    async def _quota(self, address: str, table: Mapping[str, str]) -> dict[str, object]:
        return {
            "diskRatio": {
                name: table.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
            },
            "messageAverageSize": table.get("putMessageAverageSize"),
            "topicSize": len(await self.user_topics(address)),
            "groupSize": len(await self.user_groups(address)),
        }

    async def _rates(
        self, address: str, table: Mapping[str, str]
    ) -> tuple[dict[str, float], dict[str, int]]:
        half, delayed = (
            await self._stats(address, HALF_TOPIC),
            await self._stats(address, SCHEDULE_TOPIC),
        )

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

    async def _stats(self, address: str, topic: str) -> BrokerStatsData:
        try:
            return await self.counter(address, "TOPIC_PUT_NUMS", topic)
        except BrokerError:  # it never counted that topic
            return BrokerStatsData()

    async def _clients(self, address: str) -> list[str]:
        found = set()
        for group in await self.user_groups(address):
            try:
                members = await self.members_of(group, address)
            except BrokerError:
                continue
            found |= {f"{each.language}%{each.version}" for each in members.connection_set}
        return sorted(found)


def _total(name: str) -> str:
    return f"total{name[0].upper()}{name[1:]}"


def _changes(before: TopicConfig | None, topic: TopicConfig) -> bool:
    """Return whether a topic differs, without `order`, which brokers take from name servers."""
    return before is None or replace(before, order=topic.order) != topic


def parse_export(data: bytes) -> ExportedTables:
    """Return the tables in an exported file. Raises ClientError for an invalid file."""
    try:
        found = json.loads(data)
        brokers = {
            (str(each["cluster"]), str(each["broker"])): BrokerTables(
                {topic.topic_name: topic for topic in _topics(each["topics"])},
                {group.group_name: group for group in _groups(each["groups"])},
            )
            for each in found["brokers"]
        }
        orders = {str(name): str(value) for name, value in found["orders"].items()}
        for value in orders.values():
            if not all(_is_count(count) for count in order_entries(value).values()):
                raise ValueError(f"invalid order {value!r}")
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        ProtocolError,
        ClientError,
    ) as error:
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ClientError(f"the file is not what `troupemq admin export` writes: {said}") from None
    return ExportedTables(brokers, orders)


def _topics(found: list[object]) -> Iterator[TopicConfig]:
    for each in found:
        topic = TopicConfig.from_json(each)
        if fault := asked_topic_fault(topic):
            raise ArgumentIllegal(f"{topic.topic_name}: {fault}")
        if topic.perm not in range(8):
            raise ArgumentIllegal(f"{topic.topic_name} has no permission {topic.perm}")
        yield topic


def _groups(found: list[object]) -> Iterator[SubscriptionGroupConfig]:
    for each in found:
        group = SubscriptionGroupConfig.from_json(each)
        if fault := asked_group_fault(group):
            raise ArgumentIllegal(f"{group.group_name}: {fault}")
        yield group


def _is_count(text: str) -> bool:
    return plain_number(text, INT_MAX) is not None
