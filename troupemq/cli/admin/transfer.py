"""`export` and `import`: topics, groups and orders of each broker into a file, and back.

{"brokers": [{"cluster": "DefaultCluster", "broker": "broker-a",
              "topics": [{"topicName": ..., as in topics.json}],
              "groups": [{"groupName": ..., as in subscriptionGroup.json}]}],
 "orders": {"Ordered": "broker-a:4;broker-b:4"}}
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import click

from protocol.bodies import SubscriptionGroupConfig, TopicConfig
from protocol.errors import ProtocolError
from protocol.java_numbers import plain_number
from protocol.table_rules import asked_group_fault, asked_topic_fault
from storage.errors import reason_of
from troupemq.cli.admin.brokers import broker_settings
from troupemq.cli.admin.command import BROKER, CLUSTER, command, flag, option
from troupemq.cli.admin.export import Groups, Topics, user_groups, user_topics, write_file
from troupemq.cli.admin.groups import update_group
from troupemq.cli.admin.output import Output, as_json
from troupemq.cli.admin.session import ORDER_CONFIGURATION, BrokerPlace, Session
from troupemq.cli.admin.times import INT_MAX
from troupemq.cli.admin.topics import create_topic, order_entries, put_order
from troupemq.client.errors import ArgumentIllegal, ClientError

SECTION = "Export and import"


@dataclass
class Kept:
    """What one broker has, or what several have together."""

    topics: Topics = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)


@dataclass
class Contents:
    """A file: what each broker has, by cluster and name, and the name servers' orders."""

    brokers: dict[tuple[str, str], Kept]
    orders: dict[str, str]

    def for_broker(self, place: BrokerPlace) -> Kept:
        """What it had; of a broker that is not in the file, what any of those there has.

        Raises ClientError where those differ.
        """
        own = self.brokers.get((place.cluster, place.name))
        if own is not None:
            return own
        found = Kept()
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
            found.topics |= each.topics
            found.groups |= each.groups
        return found


def _differ(table: Mapping[str, object], name: str, config: object) -> bool:
    return name in table and table[name] != config


@command(
    "export",
    SECTION,
    CLUSTER,
    BROKER,
    option("f", "file", "Into this file; else to stdout.", type=click.Path(path_type=Path)),
)
def export(
    session: Session,
    out: Output,
    *,
    cluster_name: str | None,
    broker_addr: str | None,
    file: Path | None,
) -> None:
    """Write the topics and groups of each broker, of all clusters or of one, for `import`."""
    brokers = []
    orders: dict[str, str] = {}
    for place in _places(session, cluster_name, broker_addr):
        topics = user_topics(session, place.address)
        for name in (each.topic_name for each in topics.values() if each.order):
            order = session.kv(ORDER_CONFIGURATION, name)
            orders |= {} if order is None else {name: order}
        groups = user_groups(session, place.address)
        brokers.append(
            {
                "cluster": place.cluster,
                "broker": place.name,
                "topics": [each.to_json() for each in topics.values()],
                "groups": [each.to_json() for each in groups.values()],
            }
        )
    found = {"brokers": brokers, "orders": orders}
    if file is not None:
        write_file(out, file, found)
    else:
        click.echo(as_json(found, indent=None if out.as_json else 2))


def _places(session: Session, cluster: str | None, address: str | None) -> list[BrokerPlace]:
    """The masters that were named; one by its address says itself who it is."""
    if address is None:
        return session.masters(cluster)
    settings = broker_settings(session, address)
    name, its_cluster = settings.get("brokerName", ""), settings.get("brokerClusterName", "")
    return [BrokerPlace(its_cluster, name, 0, address)]


@command(
    "import",
    SECTION,
    CLUSTER,
    BROKER,
    option(
        "f",
        "file",
        "What `export` has written; - is stdin.",
        type=click.File("rb"),
        required=True,
        to="source",
    ),
    flag("d", "dryRun", "Say what would be changed, and change nothing."),
)
def import_(
    session: Session,
    out: Output,
    *,
    cluster_name: str | None,
    broker_addr: str | None,
    source: BinaryIO,
    dry_run: bool,
) -> None:
    """Set topics and groups as `export` has written them, at the brokers that had them.

    With -c or -b at those; one that is not in the file gets what the brokers there have alike.
    What is not in the file stays as it is.
    """
    contents = parse_export(_read(source))
    places = _places(session, cluster_name, broker_addr)
    if cluster_name is None and broker_addr is None:
        there = {(place.cluster, place.name) for place in places}
        for cluster, name in sorted(contents.brokers.keys() - there):
            out.fail(f"The broker {name} of {cluster} is not registered.")
        places = [place for place in places if (place.cluster, place.name) in contents.brokers]
    wanted = [(place, contents.for_broker(place)) for place in places]
    if not dry_run:
        _import_orders(session, out, wanted, contents.orders)
    for place, kept in wanted:
        with out.attempt():
            _import_at(session, out, place, kept, dry_run)


def _import_orders(
    session: Session, out: Output, wanted: list[tuple[BrokerPlace, Kept]], orders: dict[str, str]
) -> None:
    """Before the topics: a broker hears which are ordered as it registers them."""
    ordered: dict[str, dict[str, int]] = {}
    for place, kept in wanted:
        for topic in (each for each in kept.topics.values() if each.order):
            count = order_entries(orders.get(topic.topic_name)).get(place.name)
            given = plain_number(count or "", INT_MAX)
            number = topic.write_queue_nums if given is None else given
            ordered.setdefault(topic.topic_name, {})[place.name] = number
    for name, counts in sorted(ordered.items()):
        have = order_entries(session.kv(ORDER_CONFIGURATION, name))
        if any(have.get(broker) != str(count) for broker, count in counts.items()):
            put_order(session, out, name, counts, whole=False)


def _import_at(
    session: Session, out: Output, place: BrokerPlace, kept: Kept, dry_run: bool
) -> None:
    have_topics = user_topics(session, place.address)
    have_groups = user_groups(session, place.address)
    topics = [each for name, each in kept.topics.items() if _changes(have_topics.get(name), each)]
    groups = [each for name, each in kept.groups.items() if have_groups.get(name) != each]
    for topic in () if dry_run else topics:
        create_topic(session, place.address, topic)
    for group in () if dry_run else groups:
        update_group(session, place.address, group)
    would = "would be set" if dry_run else "are set"
    out.done(
        f"{len(topics)} topics and {len(groups)} groups {would} at {place.address}.",
        broker_address=place.address,
        topics=[each.topic_name for each in topics],
        groups=[each.group_name for each in groups],
        dry_run=dry_run,
    )


def _changes(before: TopicConfig | None, topic: TopicConfig) -> bool:
    """`order` apart: a broker takes that from the name servers."""
    return before is None or replace(before, order=topic.order) != topic


def _read(source: BinaryIO) -> bytes:
    try:
        return source.read()
    except OSError as error:
        raise ClientError(f"the file cannot be read: {reason_of(error)}") from None


def parse_export(data: bytes) -> Contents:
    """What a file holds. Raises ClientError for one that `export` has not written."""
    try:
        found = json.loads(data)
        brokers = {
            (str(each["cluster"]), str(each["broker"])): Kept(
                {topic.topic_name: topic for topic in _topics(each["topics"])},
                {group.group_name: group for group in _groups(each["groups"])},
            )
            for each in found["brokers"]
        }
        orders = {str(name): str(value) for name, value in found["orders"].items()}
        for value in orders.values():
            if not all(_is_count(count) for count in order_entries(value).values()):
                raise ValueError(f"no order: {value!r}")
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
    return Contents(brokers, orders)


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
