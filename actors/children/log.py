"""Who writes the log, who flushes it, who follows it."""

from actors.allocate_file import AllocateFile
from actors.delay_offsets import DelayOffsets
from actors.flush_real_time import FlushRealTime
from actors.flusher import Flusher
from actors.group_commit import GroupCommit
from actors.parts import Parts
from actors.put_answers import PutAnswers, waited_code
from actors.put_message import PutMessage
from actors.reput import Reput
from actors.send_prepare import Preparer
from actors.supervisor import ChildSpec
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
    delays_ms = delay_levels_ms(store.config.message_delay_level)
    names = ("topics", "group_commit", "allocate_file", "reput")
    to = {name: address(name) for name in names}
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
                parts.following,
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
                topics=parts.tables.topics,
                groups=parts.group_finder(),
                preparer=Preparer(config.broker_cluster_name, delays_ms),
                answers=answers,
                hooks=parts.hooks,
                stats=parts.put_stats,
                random=parts.random,
                addresses=to,
            ),
            group=LOG_GROUP,
        ),
    ]


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
