"""Broker metrics that are TroupeMQ extensions: actors, disk, replication, delays, jobs."""

from collections.abc import Mapping, Sequence

from actors.jobs.messages import JobFigures, JobState
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.broker_page import names_of
from actors.metrics.page import MetricsPage, labels
from actors.metrics.selection import MetricsSelection, Row, column
from actors.metrics.server_page import write_connections, write_tls
from actors.metrics.sources import BrokerSources, FigureSet
from actors.naming.messages import RegistrationFigures
from actors.network.messages import ConnectionFigures
from actors.pulling.messages import HoldFigures
from actors.sending.messages import CommitFigures
from actors.sending.replication_progress import FollowFigures, SlaveFigures
from actors.statistics.counts import PUT_BOUNDS_MS
from actors.tables.consumer_views import ClientCounts
from actors.transactions.messages import OpenHalves
from protocol.delay_levels import delay_levels_ms
from protocol.topic_names import SCHEDULE_TOPIC

HOUR_S = 3600
_ENDED = {"finished", "failed", "cancelled"}
_STATES = ("waiting", "starting", "running", "finished", "failed", "cancelled")


class OwnPage:
    """Families of one broker; owned by one thread."""

    def __init__(
        self, sources: BrokerSources, selection: MetricsSelection, actors: ActorFamilies
    ) -> None:
        self._from, self._selection, self._families = sources, selection, actors

    def write(
        self,
        page: MetricsPage,
        lags: Sequence[Row],
        oldest_half_ms: int,
        reading: FigureSet,
    ) -> None:
        """Write all families; `oldest_half_ms` is the oldest open transaction's store time."""
        self._families.write(page)
        self._lags(page, lags)
        self._waits(page, reading.of(CommitFigures).waiting)
        self._network(page, reading)
        self._store(page)
        self._replication(page, reading)
        self._later(page, reading.of(OpenHalves).count, oldest_half_ms)
        self._groups(page, reading.of(ClientCounts).changes)
        page.gauge(
            "troupemq_registered",
            "1 if the name server accepted the last registration",
            [
                (labels({"namesrv": name}), int(known))
                for name, known in reading.of(RegistrationFigures).known.items()
            ],
        )
        self._spans(page)
        self._jobs(page, reading.of(JobFigures).states)

    def _spans(self, page: MetricsPage) -> None:
        spans = self._from.spans
        page.counter(
            "troupemq_spans_total",
            "Spans by result of their export",
            []
            if spans is None
            else [
                (labels({"result": "sent"}), spans.sent_count),
                (labels({"result": "lost"}), spans.lost_count),
            ],
        )
        page.counter(
            "troupemq_span_notes_dropped_total",
            "Sends and pulls without spans because the queue was full",
            [] if spans is None else [("", spans.dropped_count)],
        )

    def _lags(self, page: MetricsPage, rows: Sequence[Row]) -> None:
        page.gauge(
            "troupemq_lag_seconds",
            "Age of the oldest message that is not consumed",
            ((row.text, row.values[3] / 1000) for row in rows),
        )
        page.counter("troupemq_consumed_total", "Sum of the consumer offsets", column(rows, 5))
        page.gauge(
            "troupemq_stuck_queues",
            "Queues in which messages wait and none was consumed for stuckAfterSeconds",
            column(rows, 6),
        )
        page.gauge(
            "troupemq_stalled_seconds",
            "Longest time in which messages waited in a queue and none was consumed",
            ((row.text, row.values[7] / 1000) for row in rows),
        )
        page.gauge(
            "troupemq_last_consumed_timestamp_seconds",
            "Time when a consumer offset last changed, since the start",
            ((row.text, row.values[8] / 1000) for row in rows if row.values[8]),
        )

    def _waits(self, page: MetricsPage, commits: int) -> None:
        puts, syncs = self._from.put_stats, self._from.sync_ms
        page.histogram(
            "troupemq_put_batch_seconds",
            "Sends by write time of their batch",
            _seconds(PUT_BOUNDS_MS),
            [("", list(puts.durations), puts.total_ms / 1000)],
        )
        page.histogram(
            "troupemq_sync_seconds",
            "Time of each fdatasync of the commit log",
            _seconds(syncs.bounds),
            [("", list(syncs.counts), syncs.total / 1000)],
        )
        page.value(
            "troupemq_group_commit_waiting",
            "Batches that wait for a sync or a slave",
            commits,
        )
        page.counter("troupemq_puts_failed_total", "Sends refused", [("", puts.failed_count)])

    def _network(self, page: MetricsPage, reading: FigureSet) -> None:
        connections = reading.of(ConnectionFigures)
        page.counter(
            "troupemq_connections_refused_total",
            "Connections rejected by a limit, by setting",
            [(labels({"reason": name}), count) for name, count in connections.refused.items()],
        )
        write_connections(page, connections, "Open client connections")
        write_tls(page, self._from.tls)
        page.value(
            "troupemq_unsent_bytes",
            "Response bytes that clients have not read",
            connections.unsent_bytes,
        )
        page.value("troupemq_held_pulls", "Held pulls", reading.of(HoldFigures).held)
        page.counter(
            "troupemq_frames_bad_total",
            "Connections closed because of an invalid frame",
            [
                (labels({"reason": reason}), count)
                for reason, count in self._from.answer_stats.bad_frames.copy().items()
            ],
        )
        refused = self._from.refusals.by_code.copy()
        page.counter(
            "troupemq_auth_failures_total",
            "Requests refused by access control, by request code",
            [(labels({"reason": names_of(code, 0)[0]}), n) for code, n in refused.items()]
            or [(labels({"reason": ""}), 0)],
        )

    def _store(self, page: MetricsPage) -> None:
        store, system = self._from.store, self._from.system
        scrubbed, damaged = self._from.scrubbed.value, self._from.tables.damaged_files.value
        log, config = store.commit_log, store.config
        first, end = log.min_offset(), log.end_offset
        queue_units = sum(queue.max_offset - queue.min_offset for queue in store.consume_queues)
        index_files = 0 if store.index is None else len(store.index.files)
        page.gauge(
            "troupemq_store_bytes",
            "Used bytes of the store",
            [
                (labels({"part": "commitlog"}), end - first),
                (labels({"part": "consumequeue"}), queue_units * 20),
            ],
        )
        page.value("troupemq_index_files", "Index files", index_files)
        try:
            total, free = system.disk.capacity(config.commit_log_dir)
        except OSError:
            total, free = 0, 0
        page.value("troupemq_disk_bytes", "Size of the commit log's file system", total)
        page.value("troupemq_disk_free_bytes", "Free bytes of the commit log's file system", free)
        page.value(
            "troupemq_retention_seconds",
            "Age at which commit log files are deleted",
            config.file_reserved_hours * HOUR_S,
        )
        record = log.read_record(first) if end > first else None
        page.value(
            "troupemq_earliest_message_timestamp_seconds",
            "Store time of the oldest message; 0 for an empty log",
            0 if record is None else record.store_timestamp / 1000,
        )
        page.value(
            "troupemq_damaged_ranges", "Damaged ranges of the commit log", len(store.damage.ranges)
        )
        page.value(
            "troupemq_scrub_progress_ratio",
            "Progress of the scrubber through the commit log",
            scrubbed.progress,
        )
        page.value(
            "troupemq_scrub_last_end_timestamp_seconds",
            "Time of the last complete scrub; 0 if none since the start",
            scrubbed.last_end_ms / 1000,
        )
        page.counter(
            "troupemq_config_files_damaged_total",
            "Damaged settings and table files found at the start",
            [("", sum(damaged.values()))],
        )
        page.value(
            "troupemq_log_leases",
            "Leases that retain old commit log files",
            len(self._from.kept.value.leases),
        )

    def _replication(self, page: MetricsPage, reading: FigureSet) -> None:
        end, slaves = self._from.store.commit_log.end_offset, reading.of(SlaveFigures).slaves
        page.gauge(
            "troupemq_replica_lag_bytes",
            "Bytes that a slave has not acknowledged",
            [(labels({"slave": host}), max(0, end - acked)) for host, acked, _ in _by_host(slaves)],
        )
        page.gauge(
            "troupemq_replica_last_ack_seconds",
            "Seconds since the slave's last acknowledgement",
            [(labels({"slave": host}), ms / 1000) for host, _, ms in _by_host(slaves)],
        )
        follows = reading.of(FollowFigures).follows
        page.gauge(
            "troupemq_slave_follows",
            "1 if this slave replicates from its master",
            [] if follows is None else [("", int(follows))],
        )

    def _later(self, page: MetricsPage, half_count: int, oldest_half_ms: int) -> None:
        now_ms, store = self._from.system.clock.now_ms(), self._from.store
        age_ms = max(0, now_ms - oldest_half_ms) if oldest_half_ms else 0
        page.value("troupemq_transactions_open", "Open transactions", half_count)
        page.value(
            "troupemq_transaction_oldest_seconds",
            "Age of the oldest open transaction",
            age_ms / 1000,
        )
        waiting: list[tuple[str, float]] = []
        late: list[tuple[str, float]] = []
        offsets = self._from.tables.delay_offsets.value
        configured = range(1, len(delay_levels_ms(store.config.message_delay_level)) + 1)
        for level in sorted({*configured, *offsets}):
            queue = store.consume_queues.get(SCHEDULE_TOPIC, level - 1)
            if queue is None:
                continue
            offset = max(offsets.get(level, 0), queue.min_offset)
            text = labels({"level": str(level)})
            waiting.append((text, max(0, queue.max_offset - offset)))
            unit = queue.unit(offset) if offset < queue.max_offset else None
            late.append((text, max(0, now_ms - unit[2]) / 1000 if unit is not None else 0))
        page.gauge("troupemq_delayed_messages", "Delayed messages that are not delivered", waiting)
        page.gauge(
            "troupemq_delay_late_seconds",
            "Seconds past the due time of the oldest delayed message",
            late,
        )

        self._timers(page, now_ms)

    def _timers(self, page: MetricsPage, now_ms: int) -> None:
        figures = self._from.timer_figures
        levels = sorted(figures.levels.copy().items())
        texts = [
            (labels({"level": str(level)}), timers) for level, timers in levels if timers.is_used
        ]
        page.gauge(
            "troupemq_timers_pending",
            "Timers that are not delivered, in each delay level",
            [(text, timers.pending) for text, timers in texts],
        )
        page.gauge(
            "troupemq_timer_late_max_seconds",
            "Greatest lateness of a delivered timer since the start",
            [(text, timers.late_max_ms / 1000) for text, timers in texts],
        )
        page.counter(
            "troupemq_timers_moved_total",
            "Timers stored again because they outlast their delay level",
            [(text, timers.moved_count) for text, timers in texts],
        )
        page.value(
            "rocketmq_timer_dequeue_latency",
            "Milliseconds past the due time of the earliest timer",
            figures.late_ms(now_ms),
        )
        page.counter(
            "rocketmq_timer_enqueue_total", "Timers accepted", [("", figures.stored_count)]
        )
        page.counter(
            "rocketmq_timer_dequeue_total", "Timers delivered", [("", figures.delivered_count)]
        )

    def _groups(self, page: MetricsPage, changes: Mapping[str, int]) -> None:
        views = self._from.tables.consumers.value
        page.value(
            "troupemq_groups_subscribing_differently",
            "Groups with members that subscribe differently",
            sum(bool(view.mismatches) for view in views.values()),
        )
        rows = [
            Row("", group, count, (count,))
            for group, count in changes.items()
            if group in self._from.tables.groups.value and self._selection.shows_group(group)
        ]
        rows = self._selection.limited(rows, write=_group)
        page.counter("troupemq_rebalances_total", "Membership changes of a group", column(rows, 0))
        page.counter(
            "troupemq_offset_commits_ignored_total",
            "Stale offset commits ignored",
            [("", self._from.offset_stats.ignored_count)],
        )

    def _jobs(self, page: MetricsPage, states: Sequence[JobState]) -> None:
        newest = {state.entry or state.name: state for state in states}
        ended = {state.entry or state.name: state for state in states if state.state == "finished"}
        page.gauge(
            "troupemq_spark_job_state",
            "1 for the state of the job's last run",
            [
                (labels({"spark_job": name, "state": each}), int(state.state == each))
                for name, state in newest.items()
                for each in _STATES
            ],
        )
        page.gauge(
            "troupemq_spark_job_last_success_timestamp_seconds",
            "End of the job's last successful run",
            [(labels({"spark_job": name}), state.ended_ms / 1000) for name, state in ended.items()],
        )
        page.gauge(
            "troupemq_spark_job_duration_seconds",
            "Duration of the job's last finished run",
            [
                (labels({"spark_job": name}), (state.ended_ms - state.started_ms) / 1000)
                for name, state in newest.items()
                if state.state in _ENDED and state.started_ms
            ],
        )


def _group(row: Row) -> str:
    return labels({"consumer_group": row.group})


def _seconds(bounds_ms: Sequence[float]) -> list[float]:
    return [bound / 1000 for bound in bounds_ms]


def _by_host(slaves: Sequence[tuple[str, int, float]]) -> list[tuple[str, int, float]]:
    """Return one slave per host: the one with the highest offset."""
    found: dict[str, tuple[str, int, float]] = {}
    for each in sorted(slaves, key=lambda slave: slave[1]):
        found[each[0]] = each
    return list(found.values())
