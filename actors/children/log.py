"""Construction of the actors that write, flush and dispatch the commit log."""

from actors.config import BrokerConfig
from actors.delays.delay_offsets import DelayOffsets
from actors.delays.schedule import schedule_name
from actors.dispatching.reput import Reput
from actors.engine.supervisor import ChildSpec
from actors.parts import Parts
from actors.replication.put_replica import PutReplica
from actors.sending.admission import Admission
from actors.sending.allocate_file import AllocateFile
from actors.sending.appender import Appender
from actors.sending.flush_real_time import Flusher, FlushRealTime
from actors.sending.group_commit import GroupCommit
from actors.sending.internal_append import InternalAppends
from actors.sending.property_rewriter import PropertyRewriter
from actors.sending.put_answers import PutAnswers
from actors.sending.put_message import LogTail, PutMessage
from actors.sending.replication_progress import ReplicaWait, SlaveNotifier
from actors.sending.sink import Sink
from protocol.codes import LanguageCode
from protocol.send_wire import SendReplies
from storage.dispatching.dispatch import delay_levels_ms

LOG_GROUP = "log"
"""Group that restarts with PutMessage: actors that answer or dispatch its writes."""


def log_children(parts: Parts) -> list[ChildSpec]:
    store, config, address = parts.store, parts.config, parts.system.address
    replies = SendReplies(
        store.commit_log.store_host,
        config.region_id,
        trace_on=config.trace_on,
        language=LanguageCode.PYTHON,
    )
    answers = PutAnswers(replies, parts.hooks, parts.put_stats, config.broker_name)
    slaves = SlaveNotifier(parts.replicas, address("ha_master"), store.config.is_sync_flush)
    return [
        ChildSpec("flusher", lambda _: Flusher(store.commit_log, parts.sync_ms)),
        ChildSpec("delay_offsets", lambda _: _delay_offsets(parts)),
        ChildSpec(
            "flush_real_time", lambda _: FlushRealTime(store, address("reput"), parts.sync_ms)
        ),
        ChildSpec("allocate_file", lambda _: AllocateFile(store.config)),
        ChildSpec(
            "group_commit",
            lambda _: GroupCommit(
                store.commit_log,
                answers,
                is_sync_flush=store.config.is_sync_flush,
                flush_timeout_ms=store.config.sync_flush_timeout_ms,
                slaves=slaves,
                replica_wait=_replica_wait(config),
                flusher=address("flusher"),
                put_message=address("put_message"),
            ),
            group=LOG_GROUP,
        ),
        ChildSpec(
            "reput",
            lambda _: Reput(
                store,
                parts.following,
                pull_hold=address("pull_hold"),
                put_message=address("put_message"),
                catch_up=address("catch_up"),
                clean_files=address("clean_files"),
                held=parts.held,
                receipts=address("receipts"),
                waiting=parts.waits,
                generations=parts.generations,
            ),
            group=LOG_GROUP,
        ),
        ChildSpec(
            "put_message",
            lambda _: _put_message(parts, answers, slaves),
            group=LOG_GROUP,
        ),
        ChildSpec("sink", lambda _: _sink(parts), group=LOG_GROUP),
    ]


def _put_message(
    parts: Parts, answers: PutAnswers, slaves: SlaveNotifier
) -> PutMessage | PutReplica:
    store, config, topics = parts.store, parts.config, parts.tables.topics
    address = parts.system.address
    owner, names = address("put_message"), ("allocate_file", "reput", "slave_sync")
    addresses = {name: address(name) for name in names}
    appender = Appender(store.commit_log, topics, parts.put_stats)
    admission = Admission(
        config,
        store.config,
        topics=topics,
        groups=parts.group_finder(),
        preparer=PropertyRewriter(
            config.broker_cluster_name,
            delay_levels_ms(store.config.message_delay_level),
            parts.timer_rules,
        ),
        appender=appender,
        answers=answers,
        random=parts.random,
        clock=parts.system.clock,
        recent_halves=parts.recent_halves,
        transactions=store.transaction_table,
        topic_table=address("topics"),
        owner=owner,
    )
    internal_appends = InternalAppends(appender, address("topics"), owner)
    log_end = LogTail(
        store.commit_log, store.config, parts.system.disk, addresses=addresses, owner=owner
    )
    if config.is_slave:
        return PutReplica(
            parts.replica_log,
            store.commit_log,
            topics=topics,
            admission=admission,
            internal_appends=internal_appends,
            log_end=log_end,
            stats=parts.put_stats,
            addresses=addresses,
        )
    return PutMessage(
        store,
        config,
        topics=topics,
        appender=appender,
        admission=admission,
        internal_appends=internal_appends,
        log_end=log_end,
        answers=answers,
        recent_halves=parts.recent_halves,
        stats=parts.put_stats,
        slaves=slaves,
        group_commit=address("group_commit"),
        schedule=lambda level: address(schedule_name(level)),
    )


def _sink(parts: Parts) -> Sink:
    delays_ms = delay_levels_ms(parts.store.config.message_delay_level)
    return Sink(
        parts.store,
        parts.config,
        topics=parts.tables.topics,
        preparer=PropertyRewriter(parts.config.broker_cluster_name, delays_ms, parts.timer_rules),
        random=parts.random,
        put_message=parts.system.address("put_message"),
    )


def _replica_wait(config: BrokerConfig) -> ReplicaWait | None:
    if not config.is_sync_master:
        return None
    return ReplicaWait(config.slave_timeout_ms, config.ha_fall_behind_max_bytes)


def _delay_offsets(parts: Parts) -> DelayOffsets:
    store, address = parts.store, parts.system.address
    return DelayOffsets(
        f"{store.config.config_dir}/delayOffset.json",
        store.commit_log,
        interval_ms=store.config.flush_delay_offset_interval_ms,
        config_writer=address("config_writer"),
        flusher=address("flusher"),
        encoder=address("table_encoder"),
        offsets=parts.tables.delay_offsets,
        queues=None if parts.config.is_slave else store.consume_queues,
    )
