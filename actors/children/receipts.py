"""Construction of the actor that hands out messages one by one."""

from actors.parts import Parts, physical_memory_bytes
from actors.receipts.hand_out import HandOut
from actors.receipts.ledgers import Ledgers
from actors.receipts.neighbours import Neighbours
from actors.receipts.receipts import Receipts
from actors.receipts.receive_rules import ReceiveRules
from storage.dispatching.dispatch import delay_levels_ms
from storage.reading.get_message import GetLimits
from storage.reading.page_probe import PageProbe


def receipts(parts: Parts) -> Receipts:
    store, tables, config = parts.store, parts.tables, parts.config
    clock = parts.system.clock
    rules = ReceiveRules(
        config, store, tables.topics, parts.group_finder(), lambda: clock.monotonic_ms()
    )
    ledgers = Ledgers(store, tables.live_offsets, parts.starts_in_memory)
    neighbours = Neighbours(tables.consumers, parts.held, parts.pull_stats)
    hand_out = HandOut(
        store,
        ledgers,
        GetLimits.of(store.config, physical_memory_bytes(), True),
        PageProbe(store.commit_log, physical_memory_bytes() // 10),
        read_queues=rules.read_queues,
        is_pulled=neighbours.is_pulled,
    )
    names = ("consumer_offsets", "consumer_filters", "cold_read", "scrubber", "send_back")
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
