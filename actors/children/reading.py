"""Construction of the actors that answer from the commit log, repair it and clean it."""

from functools import partial

from actors.admin.broker_info import BrokerInfo
from actors.consumers.consume_stats import ConsumeStats
from actors.consumers.consumer_calls import ConsumerCalls
from actors.consumers.offset_reset import OffsetReset
from actors.delays.recalls import Recalls
from actors.dispatching.catch_up import CatchUp
from actors.dispatching.part_pool import open_key_parts
from actors.engine.supervisor import ChildSpec
from actors.network.long_answers import LongAnswers
from actors.parts import Parts, physical_memory_bytes
from actors.pulling.cold_read import ColdRead
from actors.pulling.pull_hold import PullHold
from actors.pulling.pull_message import PullMessage
from actors.pulling.pull_rules import PullCorrection
from actors.pulling.query_message import QueryMessage, RecordChecker
from actors.pulling.queue_view import QueueOffsets, QueueView
from actors.pulling.raw_read import RawRead
from actors.receipts.hand_out import HandOut
from actors.receipts.ledgers import Ledgers
from actors.receipts.neighbours import Neighbours
from actors.receipts.receipts import Receipts
from actors.receipts.receive_rules import ReceiveRules
from actors.retention.clean_files import CleanFiles
from actors.scrubbing.scrubber import Scrubber
from actors.sending.reply_message import ReplyMessage
from actors.sending.send_back import SendBack
from actors.statistics.statistics import Statistics
from actors.transactions.half_messages import HalfMessageList, OpenTransactionView
from actors.transactions.transactions import Transactions
from protocol.host import host_port
from storage.dispatching.dispatch import delay_levels_ms
from storage.files.disk import RealDisk
from storage.reading.get_message import GetLimits
from storage.reading.page_probe import PageProbe
from storage.recovery.part_worker import KeyPartsHere


def reading_children(parts: Parts) -> list[ChildSpec]:
    store, config, address = parts.store, parts.config, parts.system.address
    correct_offsets = not config.is_slave or store.config.offset_check_in_slave
    limits = GetLimits.of(store.config, physical_memory_bytes(), correct_offsets)
    probe = PageProbe(store.commit_log, physical_memory_bytes() // 10)
    names = ("consumer_offsets", "consumer_filters", "pull_hold", "cold_read", "scrubber")
    to = {name: address(name) for name in (*names, "put_message")}
    return [
        ChildSpec(
            "pull_message",
            lambda _: PullMessage(
                store,
                config,
                limits,
                probe,
                topics=parts.tables.topics,
                groups=parts.group_finder(),
                consumers=parts.tables.consumers,
                filters=parts.tables.filters,
                hooks=parts.hooks,
                stats=parts.pull_stats,
                held=parts.held,
                correction=_correction(parts),
                addresses=to,
            ),
        ),
        ChildSpec(
            "pull_hold",
            lambda _: PullHold(address("pull_message"), partial(_max_offset, parts), parts.held),
        ),
        ChildSpec("receipts", lambda _: _receipts(parts)),
        ChildSpec(
            "queue_offsets",
            lambda _: QueueOffsets(store, probe, address("cold_read"), parts.first_pulls),
        ),
        ChildSpec(
            "queue_view",
            lambda _: QueueView(
                store, consumers=parts.tables.consumers, filters=parts.tables.filters
            ),
        ),
        ChildSpec(
            "raw_read",
            lambda _: RawRead(
                store, config, probe, topics=parts.tables.topics, cold_read=address("cold_read")
            ),
        ),
        ChildSpec("cold_read", lambda _: ColdRead()),
        *_place_children(parts, probe),
        *_group_children(parts, probe),
        ChildSpec("reply_message", lambda _: _reply_message(parts)),
        ChildSpec("transactions", lambda _: _transactions(parts)),
        ChildSpec("half_message_list", lambda _: HalfMessageList(store)),
        ChildSpec(
            "open_transactions", lambda _: OpenTransactionView(store, address("half_message_list"))
        ),
        *_upkeep_children(parts),
    ]


def _place_children(parts: Parts, probe: PageProbe) -> list[ChildSpec]:
    store, address = parts.store, parts.system.address
    reput, cold_read, checker = map(address, ("reput", "cold_read", "record_checker"))
    return [
        ChildSpec(
            "record_checker",
            lambda _: RecordChecker(store, probe, reput=reput, cold_read=cold_read),
        ),
        ChildSpec("query_message", lambda _: QueryMessage(store, reput, checker)),
        ChildSpec("send_back", lambda _: _send_back(parts)),
        ChildSpec(
            "recalls",
            lambda _: Recalls(store, parts.config, topics=parts.tables.topics, reput=reput),
        ),
    ]


def _upkeep_children(parts: Parts) -> list[ChildSpec]:
    store, address = parts.store, parts.system.address
    return [
        ChildSpec(
            "catch_up",
            lambda _: CatchUp(
                store,
                open_key_parts if isinstance(parts.system.disk, RealDisk) else KeyPartsHere,
                reput=address("reput"),
                flush_real_time=address("flush_real_time"),
            ),
        ),
        ChildSpec("broker_info", lambda _: BrokerInfo(parts)),
        ChildSpec(
            "statistics",
            lambda _: Statistics(
                parts.config.broker_cluster_name,
                parts.put_stats,
                parts.pull_stats,
                queues=store.consume_queues,
                delay_offsets=parts.tables.delay_offsets,
                rates=parts.tables.rates,
            ),
        ),
        ChildSpec("scrubber", lambda _: Scrubber(store, address("reput"), parts.scrubbed)),
        ChildSpec("clean_files", lambda _: _clean_files(parts)),
    ]


def _group_children(parts: Parts, probe: PageProbe) -> list[ChildSpec]:
    store, config, tables = parts.store, parts.config, parts.tables
    names = ("client_calls", "cold_read", "consumer_offsets", "long_answers", "record_checker")
    to = {name: parts.system.address(name) for name in names}
    here = host_port(config.broker_ip1, parts.ports.main)
    return [
        ChildSpec(
            "consumer_calls",
            lambda _: ConsumerCalls(
                store, config, tables.consumers, to["client_calls"], to["record_checker"]
            ),
        ),
        ChildSpec(
            "consume_stats",
            lambda _: ConsumeStats(
                store,
                probe,
                config,
                tables,
                parts.pull_stats,
                receipts=parts.receipts,
                broker_address=here,
                addresses=to,
            ),
        ),
        ChildSpec("offset_reset", lambda _: OffsetReset(store, probe, config, tables, to)),
        ChildSpec("long_answers", lambda _: LongAnswers()),
    ]


def _correction(parts: Parts) -> PullCorrection:
    tables = parts.tables
    return PullCorrection(
        parts.store.consume_queues,
        broker_name=parts.config.broker_name,
        consumers=tables.consumers,
        offsets=tables.live_offsets,
        old_places=parts.old_places,
        first_pulls=parts.first_pulls,
        starts_in_memory=parts.starts_in_memory,
        put_message=parts.system.address("put_message"),
    )


def _send_back(parts: Parts) -> SendBack:
    return SendBack(
        parts.store,
        parts.config,
        topics=parts.tables.topics,
        groups=parts.group_finder(),
        delays_ms=delay_levels_ms(parts.store.config.message_delay_level),
        timers=parts.timer_rules,
        hooks=parts.hooks,
        random=parts.random,
        stats=parts.put_stats,
        put_message=parts.system.address("put_message"),
        record_checker=parts.system.address("record_checker"),
    )


def _reply_message(parts: Parts) -> ReplyMessage:
    names = ("topics", "clients", "put_message")
    return ReplyMessage(
        parts.store,
        parts.config,
        topics=parts.tables.topics,
        delays_ms=delay_levels_ms(parts.store.config.message_delay_level),
        hooks=parts.hooks,
        random=parts.random,
        addresses={name: parts.system.address(name) for name in names},
    )


def _transactions(parts: Parts) -> Transactions:
    names = ("put_message", "cold_read", "reput", "flusher", "topics", "consumer_offsets")
    return Transactions(
        parts.store,
        parts.config,
        PageProbe(parts.store.commit_log, physical_memory_bytes() // 10),
        producers=parts.tables.producers,
        recent_halves=parts.recent_halves,
        stats=parts.transaction_stats,
        timers=parts.timer_rules,
        addresses={name: parts.system.address(name) for name in names},
    )


def _clean_files(parts: Parts) -> CleanFiles:
    log = ("put_message", "reput", "flush_real_time")
    names = (*log, "connections", "slave_sync", "consumer_offsets")
    return CleanFiles(
        parts.store,
        parts.following,
        topics=parts.tables.topics,
        addresses={name: parts.system.address(name) for name in names},
        kept=parts.kept,
    )


def _receipts(parts: Parts) -> Receipts:
    store, tables, config = parts.store, parts.tables, parts.config
    clock = parts.system.clock
    rules = ReceiveRules(
        config, store, tables.topics, parts.group_finder(), lambda: clock.monotonic_ms()
    )
    offsets, ahead = tables.live_offsets, tables.settled_ahead
    ledgers = Ledgers(store, offsets, ahead, parts.starts_in_memory)
    neighbours = Neighbours(tables.consumers, parts.held, parts.pull_stats)
    hand_out = HandOut(
        store,
        ledgers,
        GetLimits.of(store.config, physical_memory_bytes(), True),
        PageProbe(store.commit_log, physical_memory_bytes() // 10),
        read_queues=rules.read_queues,
        is_pulled=neighbours.is_pulled,
    )
    names = (
        "consumer_offsets",
        "consumer_filters",
        "cold_read",
        "scrubber",
        "send_back",
        "table_encoder",
    )
    return Receipts(
        rules,
        ledgers,
        hand_out,
        waits=parts.waits,
        neighbours=neighbours,
        stats=parts.pull_stats,
        published=parts.receipts,
        delays_ms=delay_levels_ms(store.config.message_delay_level),
        addresses={name: parts.system.address(name) for name in names},
    )


def _max_offset(parts: Parts, topic: bytes, queue_id: int) -> int:
    queue = parts.store.consume_queues.get(topic.decode(), queue_id)
    return 0 if queue is None else queue.max_offset
