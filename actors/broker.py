"""The broker on one page: its store, its children in start order, and how it is started.

store        opened and recovered before any actor starts
children     tables → flushing → the log → reading → talking; stopped in reverse
ports        listenPort, two below it the fast one (no pulls), one above it HA's
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from socket import socket

from structlog import get_logger

from actors.allocate_file import AllocateFile
from actors.broker_info import BrokerInfo
from actors.catch_up import CatchUp
from actors.clean_files import CleanFiles
from actors.clients import Clients
from actors.cold_read import ColdRead
from actors.config import BrokerConfig
from actors.config_writer import ConfigWriter
from actors.connection import Service
from actors.connections import Acceptor, Connections, Listener
from actors.consumer_filters import FilterTable
from actors.consumer_offsets import ConsumerOffsets
from actors.delay_offsets import DelayOffsets
from actors.flush_real_time import FlushRealTime
from actors.flusher import Flusher
from actors.group_commit import GroupCommit
from actors.groups import GroupFinder, GroupTable
from actors.hooks import Hooks, SendHook
from actors.pull_hold import PullHold
from actors.pull_message import PullMessage, PullStats
from actors.put_answers import PutAnswers, waited_code
from actors.put_message import PutMessage
from actors.put_stats import PutStats
from actors.query_message import QueryMessage
from actors.queue_offsets import QueueOffsets
from actors.recovery_log import log_recovery
from actors.registration import Listening, Registration
from actors.reput import Following, Reput
from actors.request import codes_of
from actors.schedule import schedule_children
from actors.scrubber import Scrubber
from actors.send_back import SendBack
from actors.send_prepare import Preparer
from actors.supervisor import ChildSpec
from actors.system import ActorSystem
from actors.tables import Tables
from actors.topics import TopicTable
from protocol.codes import LanguageCode, RequestCode
from protocol.host import pack_host
from protocol.send_reply import SendReplies
from storage.config import StoreConfig
from storage.consumer_filters import FilterBitMaps
from storage.dispatch import delay_levels_ms
from storage.get_message import GetLimits
from storage.message_store import MessageStore
from storage.page_probe import PageProbe

log = get_logger(__name__)

LOG_GROUP = "log"
"""PutMessage restarts together with who answers for its writes and who follows them."""

RESPONDERS = (
    ("topics", TopicTable),
    ("groups", GroupTable),
    ("consumer_offsets", ConsumerOffsets),
    ("delay_offsets", DelayOffsets),
    ("clients", Clients),
    ("pull_message", PullMessage),
    ("queue_offsets", QueueOffsets),
    ("query_message", QueryMessage),
    ("send_back", SendBack),
    ("broker_info", BrokerInfo),
    ("clean_files", CleanFiles),
)
"""Which address serves which request codes: those its class declares."""

TOLD_OF_CLOSED_PEERS = ("clients", "pull_hold")


@dataclass(frozen=True)
class Ports:
    """Where a broker listens."""

    main: int
    fast: int
    ha: int


class Broker:
    """A broker whose store is open; `children` is what its supervisor starts.

    Raises StoreError (locked, unusable) from the constructor; `close` comes after the system has
    stopped.
    """

    def __init__(
        self,
        system: ActorSystem,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        ports: Ports,
        hooks: Sequence[SendHook] = (),
        random: Random | None = None,
    ) -> None:
        self.system = system
        self.config = config
        self.ports = ports
        self.tables = Tables(config.bloom)
        self.put_stats, self.pull_stats = PutStats(), PullStats()
        self._hooks = Hooks(hooks)
        self._random = random or Random()
        self.store = MessageStore(store_config, system.disk, system.clock)
        self.recovery = self.store.open()
        log_recovery(self.recovery)
        if config.broker_role != "ASYNC_MASTER":
            log.warning("there is no replication yet", broker_role=config.broker_role)
        self.store.commit_log.store_host = pack_host(config.broker_ip1, ports.main)
        end_offset = self.store.commit_log.end_offset
        self.following = Following(end_offset)
        if config.calc_filter_bit_map_enable:
            filters = self.tables.filters
            view = self.store.commit_log.view
            self.store.consume_queues.bit_maps = FilterBitMaps(lambda: filters.value, view)

    # --- what connections need to know

    def service(self, *, fast: bool = False) -> Service:
        """What a port serves; the fast one does not serve pulls."""
        routes = {code: self.system.address(name) for code, name in codes_of(RESPONDERS).items()}
        if fast:
            del routes[RequestCode.PULL_MESSAGE]
        return Service(
            routes,
            self.system.address("put_message"),
            tell_closed=[self.system.address(name) for name in TOLD_OF_CLOSED_PEERS],
        )

    # --- the children, in start order

    def children(self) -> list[ChildSpec]:
        """Everything but what listens, so that tests can do without sockets."""
        found = [*self._table_children(), *self._log_children(), *self._reading_children()]
        if self.config.is_slave:  # it gets what its master has delivered
            return found
        recent_bytes = physical_memory_bytes() // 10
        return found + schedule_children(self.store, recent_bytes, self.system.address)

    def _table_children(self) -> list[ChildSpec]:
        config, tables, address = self.config, self.tables, self.system.address
        directory = self.store.config.config_dir
        writer = address("config_writer")
        return [
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec(
                "topics",
                lambda _: TopicTable(
                    config,
                    f"{directory}/topics.json",
                    topics=tables.topics,
                    table=tables.topic_table,
                    config_writer=writer,
                    registration=address("registration"),
                ),
            ),
            ChildSpec(
                "groups",
                lambda _: GroupTable(
                    config,
                    f"{directory}/subscriptionGroup.json",
                    groups=tables.groups,
                    config_writer=writer,
                ),
            ),
            ChildSpec(
                "consumer_offsets",
                lambda _: ConsumerOffsets(
                    f"{directory}/consumerOffset.json",
                    interval_ms=config.flush_consumer_offset_interval_ms,
                    starts_in_memory=self._starts_in_memory,
                    offsets=tables.offsets,
                    config_writer=writer,
                ),
            ),
            ChildSpec("consumer_filters", lambda _: self._filter_table()),
            ChildSpec(
                "clients",
                lambda _: Clients(
                    config,
                    topics=tables.topics,
                    groups=tables.groups,
                    consumers=tables.consumers,
                    filters=tables.filters,
                    topic_table=address("topics"),
                    group_table=address("groups"),
                    filter_table=address("consumer_filters"),
                ),
            ),
        ]

    def _filter_table(self) -> FilterTable:
        return FilterTable(
            self.config,
            f"{self.store.config.config_dir}/consumerFilter.json",
            filters=self.tables.filters,
            was_stopped_cleanly=self.recovery.clean,
            config_writer=self.system.address("config_writer"),
        )

    def _log_children(self) -> list[ChildSpec]:
        store, config, address = self.store, self.config, self.system.address
        replies = SendReplies(
            store.commit_log.store_host,
            config.region_id,
            trace_on=config.trace_on,
            language=LanguageCode.PYTHON,
        )
        answers = PutAnswers(replies, self._hooks)
        delays_ms = delay_levels_ms(store.config.message_delay_level)
        names = ("topics", "group_commit", "allocate_file", "reput")
        to = {name: address(name) for name in names}
        return [
            ChildSpec("flusher", lambda _: Flusher(store.commit_log)),
            ChildSpec("delay_offsets", lambda _: self._delay_offsets()),
            ChildSpec("flush_real_time", lambda _: FlushRealTime(store, address("reput"))),
            ChildSpec("allocate_file", lambda _: AllocateFile(store.config)),
            ChildSpec(
                "group_commit",
                lambda _: GroupCommit(
                    store.commit_log,
                    answers,
                    timeout_ms=store.config.sync_flush_timeout_ms,
                    flushed_code=waited_code(config),
                    flusher=address("flusher"),
                    put_message=address("put_message"),
                ),
                group=LOG_GROUP,
            ),
            ChildSpec(
                "reput",
                lambda _: Reput(
                    store,
                    self.following,
                    pull_hold=address("pull_hold"),
                    put_message=address("put_message"),
                    catch_up=address("catch_up"),
                ),
                group=LOG_GROUP,
            ),
            ChildSpec(
                "put_message",
                lambda _: PutMessage(
                    store,
                    config,
                    topics=self.tables.topics,
                    groups=self._group_finder(),
                    preparer=Preparer(config.broker_cluster_name, delays_ms),
                    answers=answers,
                    hooks=self._hooks,
                    stats=self.put_stats,
                    random=self._random,
                    addresses=to,
                ),
                group=LOG_GROUP,
            ),
        ]

    def _reading_children(self) -> list[ChildSpec]:
        store, config, address = self.store, self.config, self.system.address
        correct_offsets = not config.is_slave or store.config.offset_check_in_slave
        limits = GetLimits.of(store.config, physical_memory_bytes(), correct_offsets)
        probe = PageProbe(store.commit_log, physical_memory_bytes() // 10)
        names = ("consumer_offsets", "pull_hold", "cold_read", "scrubber", "put_message")
        to = {name: address(name) for name in names}
        return [
            ChildSpec(
                "pull_message",
                lambda _: PullMessage(
                    store,
                    config,
                    limits,
                    probe,
                    topics=self.tables.topics,
                    groups=self._group_finder(),
                    consumers=self.tables.consumers,
                    filters=self.tables.filters,
                    stats=self.pull_stats,
                    addresses=to,
                ),
            ),
            ChildSpec(
                "pull_hold",
                lambda _: PullHold(
                    address("pull_message"), self._max_offset, store.commit_log.view
                ),
            ),
            ChildSpec("queue_offsets", lambda _: QueueOffsets(store, probe, address("cold_read"))),
            ChildSpec("cold_read", lambda _: ColdRead()),
            ChildSpec("query_message", lambda _: QueryMessage(store, address("reput"))),
            ChildSpec("send_back", lambda _: self._send_back()),
            ChildSpec(
                "catch_up",
                lambda _: CatchUp(
                    store, reput=address("reput"), flush_real_time=address("flush_real_time")
                ),
            ),
            ChildSpec("broker_info", lambda _: BrokerInfo(self)),
            ChildSpec("scrubber", lambda _: Scrubber(store, address("reput"))),
            ChildSpec("clean_files", lambda _: self._clean_files()),
        ]

    def _delay_offsets(self) -> DelayOffsets:
        store, address = self.store, self.system.address
        return DelayOffsets(
            f"{store.config.config_dir}/delayOffset.json",
            store.commit_log,
            interval_ms=store.config.flush_delay_offset_interval_ms,
            config_writer=address("config_writer"),
            flusher=address("flusher"),
        )

    def _send_back(self) -> SendBack:
        return SendBack(
            self.store,
            self.config,
            topics=self.tables.topics,
            groups=self._group_finder(),
            delays_ms=delay_levels_ms(self.store.config.message_delay_level),
            hooks=self._hooks,
            random=self._random,
            put_message=self.system.address("put_message"),
        )

    def _clean_files(self) -> CleanFiles:
        names = ("put_message", "reput", "flush_real_time", "connections")
        return CleanFiles(
            self.store,
            self.following,
            topics=self.tables.topics,
            addresses={name: self.system.address(name) for name in names},
        )

    def talking_children(self, listeners: Sequence[tuple[Listener, socket]]) -> list[ChildSpec]:
        """What needs sockets: stopped first, except that connections may send what is left."""
        address = self.system.address
        return [
            ChildSpec("acceptor", lambda _: Acceptor(listeners, address("connections"))),
            ChildSpec("registration", lambda _: self._registration()),
        ]

    def connections_child(self) -> ChildSpec:
        """Started before everything else, stopped after it."""
        idle_ms = self.config.channel_max_idle_seconds * 1000
        return ChildSpec("connections", lambda _: Connections(idle_ms))

    def _registration(self) -> Registration:
        address = self.system.address("registration")
        address.tell(Listening(self.ports.main, self.ports.ha))
        return Registration(
            self.config, table=self.tables.topic_table, topics=self.system.address("topics")
        )

    def _group_finder(self) -> GroupFinder:
        return GroupFinder(self.tables.groups, self.system.address("groups"), self.config)

    def _max_offset(self, topic: bytes, queue_id: int) -> int:
        queue = self.store.consume_queues.get(topic.decode(), queue_id)
        return 0 if queue is None else queue.max_offset

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a queue still begins at 0 with a message that is likely to be cached."""
        queue = self.store.consume_queues.get(topic, queue_id)
        if queue is None:
            return True
        if queue.min_offset > 0:
            return False
        unit = queue.unit(0)
        cached_bytes = physical_memory_bytes() * self.store.config.access_in_memory_max_ratio // 100
        return unit is None or self.store.commit_log.end_offset - unit[0] <= cached_bytes

    def close(self) -> None:
        """Flushes and closes the store; call it when the system has stopped. Raises StoreError."""
        self.store.close()


def physical_memory_bytes() -> int:
    """How much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
