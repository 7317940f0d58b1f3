"""Chunks yield the same as single records, whatever the state of the log."""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from protocol.codes import BORN_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from protocol.topic_names import SCHEDULE_TOPIC
from storage.dispatching.dispatch import delay_levels_ms, entry_of
from storage.log.reader import LogReader
from storage.message_store import MessageStore
from storage.queues.consume_queue import UNIT
from storage.recovery.log_chunks import OpenParts, PartOrder, PartsHere, ReadPart
from tests.support.clock import ManualClock
from tests.support.puts import HOST, HOST_V6, append, put
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

TOPICS = ("Orders", "Payments", SCHEDULE_TOPIC)
TAGS = (
    "",
    "TAGS\x01A",
    "TAGS\x01A\x02TAGS\x01B\x02X\x011",
    "MYTAGS\x01no",
    "A\x01TAGS\x02TAGS\x01é",
)
DELAYS = delay_levels_ms(CONFIG.message_delay_level)


class NoParts(PartsHere):
    """Open no chunks, so that every record is read by itself."""

    def at(self, offset: int) -> None:
        return None


class Counted(PartsHere):
    """Counts what it gives."""

    def __init__(self, order: PartOrder, reader: LogReader, tally: Counter[str]) -> None:
        super().__init__(order, reader)
        self._tally = tally

    def at(self, offset: int) -> ReadPart | None:
        part = super().at(offset)
        self._tally["parts"] += part is not None
        return part


def in_parts_of(part_bytes: int, tally: Counter[str]) -> OpenParts:
    return lambda order, reader: Counted(replace(order, part_bytes=part_bytes), reader, tally)


@cache
def filled(seed: int) -> FakeDisk:
    """The disk of a store with messages of all kinds, some of them not synced."""
    random = Random(seed)
    small = SmallStore()
    numbers: Counter[tuple[str, int]] = Counter()
    for round_number in range(30):
        small.clock.advance(random.randrange(2000))
        start = small.log.end_offset
        for _ in range(random.randrange(12)):
            topic, queue = random.choice(TOPICS), random.randrange(2)
            flag = random.choice(
                (0, 0, 0, BORN_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
            )
            is_plain = not flag & TRANSACTION_PREPARED
            text = "\x02".join(
                filter(None, (f"UNIQ_KEY\x01{numbers.total()}", random.choice(TAGS)))
            )
            delay = f"\x02DELAY\x01{random.randrange(20)}" if topic == SCHEDULE_TOPIC else ""
            record = put(
                random.randbytes(random.randrange(300)),
                topic=topic,
                queue_id=queue,
                queue_offset=numbers[topic, queue] if is_plain else 0,
                sys_flag=flag,
                born_host=HOST_V6 if flag & BORN_HOST_V6 else HOST,
                properties=b"" if random.random() < 0.05 else (text + delay).encode(),
            )
            append(small.log, [record], small.clock.now_ms())
            numbers[topic, queue] += is_plain
        heads = list(small.log.walk(start))
        small.store.dispatcher.dispatch([entry_of(head, DELAYS) for head in heads])
        if round_number == 15 and seed % 2:
            small.store.flush()
    return small.disk


def opened(disk: FakeDisk, open_parts: OpenParts) -> tuple[MessageStore, object]:
    store = MessageStore(CONFIG, disk, ManualClock(), open_parts)
    report = store.open()
    units = {
        (queue.topic, queue.queue_id): (
            queue.min_offset,
            queue.max_physical_offset,
            list(UNIT.iter_unpack(queue.units(queue.min_offset, queue.max_offset))),
        )
        for queue in store.consume_queues
    }
    log, queues = store.commit_log, store.consume_queues
    ends = log.end_offset, log.last_store_timestamp, queues.covered_offset
    return store, (report, units, ends, store.damage.ranges, queues.last_store_timestamp)


@pytest.mark.trial(short=60, long=5000)
def test_parts_yield_the_same_results_as_single_records(seed: int, tally: Counter[str]) -> None:
    random = Random(seed)
    disk = filled(seed % 8)
    disk = disk.crashed(seed) if random.random() < 0.3 else disk.killed()
    logs = [path for path in disk.paths() if "/commitlog/" in path]
    for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
        path = random.choice(logs)
        used = len(disk.read_bytes(path).rstrip(b"\0"))
        if used:
            disk.flip_bit(path, random.randrange(used), random.randrange(8))
    if random.random() < 0.3:
        disk.remove_tree("/store/consumequeue" + random.choice(("", "/Orders", "/Payments/1")))
    one_by_one = opened(disk.killed(), NoParts)[1]
    size = random.randrange(200, 4000)
    assert opened(disk.killed(), in_parts_of(size, tally))[1] == one_by_one


def test_most_of_a_valid_log_is_read_in_parts() -> None:
    small = SmallStore()
    small.send(400)
    tally: Counter[str] = Counter()
    taken: list[int] = []

    class Seen(Counted):
        def at(self, offset: int) -> ReadPart | None:
            part = super().at(offset)
            taken.append(part.record_count if part is not None else 0)
            return part

    store = MessageStore(
        CONFIG,
        small.disk.killed(),
        ManualClock(),
        lambda order, reader: Seen(replace(order, part_bytes=1024), reader, tally),
    )
    assert store.open().record_count == 400
    assert sum(taken) > 350


def test_a_record_longer_than_a_window_is_part_of_a_part() -> None:
    small = SmallStore(config=replace(CONFIG, commit_log_file_bytes=8 << 20))
    bodies = [b"x", b"y", b"z" * (2 << 20), b"last"]
    for number, body in enumerate(bodies):
        append(small.log, [put(body, queue_offset=number + 1, properties=b"A\x01b")], 1)
    queue = small.log.queue
    order = PartOrder("/store/commitlog", 8 << 20, 0, queue.capacity_end, True, 0)
    part = PartsHere(order, LogReader(queue.find, queue.capacity_end)).at(0)
    assert part is not None
    assert (part.record_count, part.end) == (4, small.log.end_offset)
