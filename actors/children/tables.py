"""Construction of the actors that own tables: topics, groups, offsets, filters, modes, clients."""

from actors.admin.access_control import AccessControl
from actors.admin.settings import BrokerSettings
from actors.consumers.assignments import Assignments
from actors.consumers.clients import Clients
from actors.engine.actor_address import ActorAddress
from actors.engine.supervisor import ChildSpec
from actors.network.client_calls import ClientCalls, Waiting
from actors.parts import Parts
from actors.tables.config_writer import ConfigWriter, TableEncoder
from actors.tables.consumer_filters import FilterTable
from actors.tables.consumer_offsets import ConsumerOffsets
from actors.tables.groups import GroupTable
from actors.tables.offset_journal import OffsetJournal
from actors.tables.offset_limits import OffsetBounds, OffsetCeiling
from actors.tables.request_modes import RequestModes
from actors.tables.topics import TopicTable
from protocol.host import host_port
from storage.replica.replica_mark import retried_groups
from storage.tables.offset_journal import journal_directory


def table_children(parts: Parts) -> list[ChildSpec]:
    """Return the children for tables, which start first: all others read their snapshots."""
    config, tables, address = parts.config, parts.tables, parts.system.address
    directory, writer = parts.store.config.config_dir, address("config_writer")
    calls: Waiting = {}
    return [
        ChildSpec("config_writer", lambda _: ConfigWriter(tables.damaged_files)),
        ChildSpec("table_encoder", lambda _: TableEncoder()),
        ChildSpec(
            "topics",
            lambda _: TopicTable(
                config,
                f"{directory}/topics.json",
                topics=tables.topics,
                table=tables.topic_table,
                config_writer=writer,
                registration=address("registration"),
                clean_files=address("clean_files"),
                consumer_offsets=address("consumer_offsets"),
                encoder=address("table_encoder"),
                queued=parts.queued_topics,
            ),
        ),
        ChildSpec("groups", lambda _: _groups(parts)),
        ChildSpec("consumer_offsets", lambda _: _offset_table(parts, writer)),
        ChildSpec("consumer_filters", lambda _: _filter_table(parts)),
        ChildSpec("client_calls", lambda _: ClientCalls(calls)),
        ChildSpec(
            "settings", lambda _: BrokerSettings(config, parts.store.config, address("topics"))
        ),
        ChildSpec("access_control", lambda _: _access_control(parts)),
        ChildSpec("request_modes", lambda _: _request_modes(parts)),
        ChildSpec("clients", lambda _: _clients(parts)),
        ChildSpec(
            "assignments",
            lambda _: Assignments(
                consumers=tables.consumers,
                modes=tables.request_modes,
                registration=address("registration"),
                encoder=address("table_encoder"),
            ),
        ),
    ]


def _request_modes(parts: Parts) -> RequestModes:
    return RequestModes(
        parts.config,
        f"{parts.store.config.config_dir}/messageRequestMode.json",
        modes=parts.tables.request_modes,
        topics=parts.tables.topics,
        groups=parts.group_finder(),
        config_writer=parts.system.address("config_writer"),
        encoder=parts.system.address("table_encoder"),
    )


def _groups(parts: Parts) -> GroupTable:
    address = parts.system.address
    return GroupTable(
        parts.config,
        f"{parts.store.config.config_dir}/subscriptionGroup.json",
        groups=parts.tables.groups,
        config_writer=address("config_writer"),
        consumer_offsets=address("consumer_offsets"),
        encoder=address("table_encoder"),
        retried=retried_groups(parts.queued_topics),
    )


def _access_control(parts: Parts) -> AccessControl:
    config = parts.config
    return AccessControl(
        parts.acl,
        parts.refusals,
        broker_name=config.broker_name,
        broker_address=host_port(config.broker_ip1, parts.ports.main),
        cluster_name=config.broker_cluster_name,
    )


def _clients(parts: Parts) -> Clients:
    tables, address = parts.tables, parts.system.address
    return Clients(
        parts.config,
        topics=tables.topics,
        groups=tables.groups,
        consumers=tables.consumers,
        producers=tables.producers,
        filters=tables.filters,
        topic_table=address("topics"),
        group_table=address("groups"),
        filter_table=address("consumer_filters"),
        client_calls=address("client_calls"),
        encoder=address("table_encoder"),
        receipts=address("receipts"),
        refusals=parts.refusals,
    )


def _filter_table(parts: Parts) -> FilterTable:
    return FilterTable(
        parts.config,
        f"{parts.store.config.config_dir}/consumerFilter.json",
        filters=parts.tables.filters,
        was_stopped_cleanly=parts.recovery.clean,
        config_writer=parts.system.address("config_writer"),
    )


def _offset_table(parts: Parts, writer: ActorAddress) -> ConsumerOffsets:
    config, tables = parts.config, parts.tables
    return ConsumerOffsets(
        f"{parts.store.config.config_dir}/consumerOffset.json",
        interval_ms=config.flush_consumer_offset_interval_ms,
        starts_in_memory=parts.starts_in_memory,
        offsets=tables.offsets,
        live_offsets=tables.live_offsets,
        moves=tables.offset_moves,
        config_writer=writer,
        encoder=parts.system.address("table_encoder"),
        consumers=tables.consumers,
        topics=tables.topics,
        guards=config.consumer_offset_guard_enable,
        stats=parts.offset_stats,
        ceiling=OffsetCeiling(tables.groups, tables.topics, config.auto_groups_max),
        bounds=None if config.is_slave else OffsetBounds(parts.store.consume_queues),
        old_places=parts.old_places,
        first_pulls=parts.first_pulls,
        journal=OffsetJournal(journal_directory(parts.store.config), tables.settled_ahead),
    )
