"""Who writes the log, who flushes it, who follows it."""

from functools import partial

from actors.config import BrokerConfig
from actors.delays.delay_offsets import DelayOffsets
from actors.engine.supervisor import ChildSpec
from actors.following.reput import Reput
from actors.parts import Parts
from actors.replication.put_replica import PutReplica
from actors.replication.replicas import ReplicaWait, Slaves
from actors.sending.allocate_file import AllocateFile
from actors.sending.flush_real_time import FlushRealTime
from actors.sending.flusher import Flusher
from actors.sending.group_commit import GroupCommit
from actors.sending.put_answers import PutAnswers
from actors.sending.put_message import PutMessage
from actors.sending.send_prepare import Preparer
from protocol.codes import LanguageCode
from protocol.send_reply import SendReplies
from storage.dispatch import delay_levels_ms

LOG_GROUP = "log"
"""PutMessage restarts together with who answers for its writes and who follows them."""


def log_children(parts: Parts) -> list[ChildSpec]:
    """From the flusher up to the one who appends."""
    store, config, address = parts.store, parts.config, parts.system.address
    replies = SendReplies(
        store.commit_log.store_host,
        config.region_id,
        trace_on=config.trace_on,
        language=LanguageCode.PYTHON,
    )
    answers = PutAnswers(replies, parts.hooks)
    slaves = Slaves(parts.replicas, address("ha_master"), store.config.is_sync_flush)
    return [
        ChildSpec("flusher", lambda _: Flusher(store.commit_log)),
        ChildSpec("delay_offsets", lambda _: _delay_offsets(parts)),
        ChildSpec("flush_real_time", lambda _: FlushRealTime(store, address("reput"))),
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
                generations=parts.generations,
            ),
            group=LOG_GROUP,
        ),
        ChildSpec(
            "put_message",
            lambda _: _put_message(parts, answers, slaves),
            group=LOG_GROUP,
        ),
    ]


def _put_message(parts: Parts, answers: PutAnswers, slaves: Slaves) -> PutMessage:
    """The one who appends: for producers, or on a slave for the master."""
    config, store_config, address = parts.config, parts.store.config, parts.system.address
    delays_ms = delay_levels_ms(store_config.message_delay_level)
    names = ("topics", "group_commit", "allocate_file", "reput", "slave_sync")
    make = partial(PutReplica, parts.replica_log) if config.is_slave else PutMessage
    return make(
        store=parts.store,
        config=config,
        topics=parts.tables.topics,
        groups=parts.group_finder(),
        preparer=Preparer(config.broker_cluster_name, delays_ms),
        answers=answers,
        hooks=parts.hooks,
        stats=parts.put_stats,
        slaves=slaves,
        random=parts.random,
        addresses={name: address(name) for name in names},
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
        offsets=parts.tables.delay_offsets,
    )
