"""Parts of a broker that exist before any actor runs: settings, open store, tables, counters."""

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from random import Random

from actors.access.access_state import AccessState, new_guard
from actors.access.acl_store import AclStore
from actors.access.refusals import Refusals
from actors.access.rights import BROKER_RIGHTS, administration
from actors.config import BrokerConfig
from actors.dispatching.part_pool import open_parts
from actors.dispatching.recovery_log import log_recovery, log_reserve
from actors.dispatching.reput import DispatchProgress
from actors.engine.histogram import SYNC_BOUNDS_MS, AnswerStats, ClassCounts
from actors.engine.interfaces import SnapshotRef
from actors.engine.system import ActorSystem
from actors.network.hooks import Hook, Hooks
from actors.network.limits import ConnectionSlots
from actors.network.start_access import opened_acl
from actors.network.tls_contexts import tls_contexts
from actors.pulling.held_pulls import HoldTable
from actors.receipts.figures import ReceiptFigures
from actors.receipts.held_receives import WaitTable
from actors.retention.retention_holds import KeepingReport
from actors.scrubbing.scrubber import ScrubFigures
from actors.sending.half_message_cache import HalfMessageCache
from actors.sending.replication_progress import ReplicationProgress
from actors.sending.send_rules import TimerRules
from actors.spans.span_queue import SpanQueue
from actors.statistics.counts import PullStats, PutStats, TimerFigures, TransactionStats
from actors.tables.groups import GroupFinder
from actors.tables.offset_limits import OffsetStats
from actors.tables.old_places import FirstPulls, OldPlaces
from actors.tables.tables import Tables
from protocol.host import pack_host
from protocol.topic_names import REPLY_TOPIC_SUFFIX, TRACE_TOPIC
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from storage.recovery.log_chunks import PartsHere
from storage.replica.queue_generations import QueueGenerations
from storage.replica.replica_log import ReplicaLog
from storage.replica.replica_mark import is_marked, mark_replica, queued_topics
from storage.retention.reserve import require_room, reserve_of
from storage.tables.consumer_filters import FilterBitMaps


@dataclass(frozen=True)
class Ports:
    main: int
    fast: int
    ha: int


class Attachment:
    """Links of a broker to others, for health checks."""

    def __init__(self) -> None:
        self.registered = SnapshotRef(0)
        """Number of name servers that know this broker."""
        self.why_behind = SnapshotRef("it has not reached its master yet")
        """Reason for which a slave does not follow its master; empty while it does."""


class Parts:
    """A broker's settings, its open store, and the snapshots and counters of its actors.

    The constructor raises StoreError (locked, unusable).
    """

    def __init__(
        self,
        system: ActorSystem,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        ports: Ports,
        hooks: Sequence[Hook] = (),
        random: Random | None = None,
    ) -> None:
        config, store_config = copy(config), copy(store_config)  # some settings may change
        self.system, self.config, self.ports = system, config, ports
        self.tables = Tables(config.bloom)
        self.put_stats, self.pull_stats, self.old_places = PutStats(), PullStats(), OldPlaces()
        self.offset_stats, self.timer_figures = OffsetStats(), TimerFigures()
        self.transaction_stats, self.answer_stats = TransactionStats(), AnswerStats()
        self.spans, self.sync_ms = _span_queue(config), ClassCounts(SYNC_BOUNDS_MS)
        self.hooks = Hooks(hooks if self.spans is None else [*hooks, self.spans])
        self.random, now_ms = random or Random(), system.clock.now_ms
        self.refusals = Refusals(now_ms, system.rarely)
        self.acl: AclStore | None = None
        self.guard: AccessState | None = None
        self.administration = administration(BROKER_RIGHTS, config.admin_allowed, system.rarely)
        if config.acl_enable:
            self.acl = opened_acl(system, config, config.config_path)
            self.guard = self._new_guard(self.acl)
        self.tls = tls_contexts(config)  # None: this broker uses no TLS
        store_address = config.store_address()  # before the store is opened, because it may fail
        reserve = require_room(store_config, system.disk)  # measured before any file is made
        self.store = _new_store(store_config, system)
        self.recovery = self.store.open()
        log_recovery(self.recovery)
        if reserve is None:
            is_next_missing = self.store.commit_log.next_file_offset_to_prepare() is not None
            reserve = reserve_of(store_config, system.disk, int(is_next_missing))
        self.reserve = reserve
        log_reserve(store_config, self.reserve)
        self.store.commit_log.store_host = pack_host(store_address, ports.main)
        self.recent_halves = HalfMessageCache(self.store.commit_log)
        self.following = DispatchProgress(self.store.commit_log.end_offset)
        self.kept, self.attachment = SnapshotRef(KeepingReport()), Attachment()
        self.scrubbed = SnapshotRef(ScrubFigures())
        self.replicas, self.held = ReplicationProgress(), HoldTable(self.store.commit_log.view)
        delays_ms = delay_levels_ms(store_config.message_delay_level)
        self.timer_rules = TimerRules(store_config, delays_ms, now_ms)
        queues = self.store.consume_queues if config.is_slave else ()
        self.replica_log = ReplicaLog(self.store.commit_log, delays_ms, queues)
        """Log as a slave writes it; a master does not use it."""
        self.generations = QueueGenerations(self.store) if config.is_slave else None
        """Restarts of queues that a slave takes over from its master; None on a master."""
        self.queued_topics: dict[str, int] = {}
        """Topics of messages that the tables may lack, on a master that was a slave."""
        if self.generations is not None:
            self.store.dispatcher.feeder = self.generations
            mark_replica(store_config, system.disk)
        elif is_marked(store_config, system.disk):
            self.queued_topics = queued_topics(self.store)
        if config.calc_filter_bit_map_enable:
            filters, view = self.tables.filters, self.store.commit_log.view
            self.store.consume_queues.bit_maps = FilterBitMaps(lambda: filters.value, view)

    @cached_property
    def waits(self) -> WaitTable:
        """Receives that wait for messages."""
        return WaitTable()

    @cached_property
    def receipts(self) -> SnapshotRef[ReceiptFigures]:
        """Figures of messages that are settled one by one."""
        return SnapshotRef(ReceiptFigures())

    @cached_property
    def places(self) -> ConnectionSlots:
        """Connection slots; TlsNegotiators take them on ports with TLS."""
        config = self.config
        return ConnectionSlots(config.connections_max, config.connections_of_address_max)

    def _new_guard(self, acl: AclStore) -> AccessState:
        return new_guard(
            acl.published,
            BROKER_RIGHTS,
            self.system.clock.now_ms,
            self.refusals,
            is_white_admin=self.config.is_white_admin,
            reply_topic=self.config.broker_cluster_name + REPLY_TOPIC_SUFFIX,
            trace_topic=TRACE_TOPIC,
        )

    @cached_property
    def first_pulls(self) -> FirstPulls:
        """Detector of offsets beyond the queues' max offsets at the start; unused on a slave."""
        ends = {} if self.config.is_slave else self.store.consume_queues.next_offsets()
        return FirstPulls(ends, self.system.clock.monotonic_ms())

    def starts_in_memory(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue still begins at 0 with a message that is probably cached."""
        queue = self.store.consume_queues.get(topic, queue_id)
        if queue is None:
            return True
        if queue.min_offset > 0:
            return False
        unit = queue.unit(0)
        cached_bytes = physical_memory_bytes() * self.store.config.access_in_memory_max_ratio // 100
        return unit is None or self.store.commit_log.end_offset - unit[0] <= cached_bytes

    def group_finder(self) -> GroupFinder:
        return GroupFinder(self.tables.groups, self.system.address("groups"), self.config)


def physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _span_queue(config: BrokerConfig) -> SpanQueue | None:
    if not config.otel_traces:
        return None
    return SpanQueue(config.otel_sample_ratio, config.otel_queue_max)


def _new_store(config: StoreConfig, system: ActorSystem) -> MessageStore:
    """Make a store that is not opened yet.

    On a real disk, all processors read its log after a crash.
    """
    parts = open_parts if isinstance(system.disk, RealDisk) else PartsHere
    return MessageStore(config, system.disk, system.clock, parts)
