"""From a record's properties to its unit and its keys."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codes import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from protocol.message import RECORD_MAGIC, RecordHead
from protocol.properties import format, parse
from protocol.topic_names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
)
from storage.dispatching.dispatch import (
    FED_TOGETHER,
    Dispatcher,
    cut_behind,
    delay_levels_ms,
    entry_of,
    extended,
    index_keys,
    property_of,
    tags_code,
)
from storage.errors import DiskFull
from storage.index.index import Index
from storage.queues.consume_queues import NEW_QUEUE, ConsumeQueues
from storage.queues.dispatch_entry import (
    Dispatched,
    DispatchEntry,
    EntryRun,
    MixedEntries,
    single_entries,
)
from tests.storage.derived import DELAY_LEVELS_MS, RECORD_BYTES, config, entry, run_of
from tests.support.clock import ManualClock
from troupemq.testing.fake_disk import FakeDisk

STORED_MS = 1_700_000_000_000


def head(properties: bytes, topic: bytes = b"T", sys_flag: int = 0) -> RecordHead:
    return RecordHead(250, RECORD_MAGIC, 3, 17, 9000, sys_flag, STORED_MS, 0, topic, properties)


def test_an_entry_has_all_fields_that_queue_and_index_need() -> None:
    properties = b"KEYS\x01a  b\x02UNIQ_KEY\x01U1\x02CLUSTER\x01C\x02TAGS\x01TagA"
    assert entry_of(head(properties, sys_flag=8), DELAY_LEVELS_MS) == DispatchEntry(
        b"T",
        3,
        17,
        9000,
        250,
        2598919,
        STORED_MS,
        8,
        (b"U1", b"a", b"b"),
    )


@pytest.mark.parametrize(
    "properties, keys",
    [
        (b"", ()),
        (b"UNIQ_KEY\x01U", (b"U",)),
        (b"KEYS\x01k\x02", (b"k",)),
        (b"KEYS\x01 k  l ", (b"k", b"l")),
        (b"KEYS\x01\x02UNIQ_KEY\x01", ()),
        (b"KEYS\x01 ", ()),
        (b"UNIQ_KEY\x01own\x02UNIQ_KEY\x01batch", (b"batch",)),
        (b"UNIQ_KEY\x01own\x02UNIQ_KEY\x01\x02x\x01y", (b"own",)),
        (b"MY_KEYS\x01no\x02x\x01UNIQ_KEY\x01no", ()),
        ("KEYS\x01schlüssel".encode(), ("schlüssel".encode(),)),
    ],
)
def test_indexed_keys_are_the_unique_key_and_each_word_of_keys(
    properties: bytes, keys: tuple[bytes, ...]
) -> None:
    assert index_keys(properties) == keys


names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "DELAY", "XKEYS", "K", "a"])
values = st.text("ab KEYSTAG\x01", max_size=8)


@pytest.mark.heavy
@settings(deadline=None, database=None, max_examples=300)
@given(st.lists(st.tuples(names, values), max_size=8), st.booleans())
def test_a_single_property_read_agrees_with_the_full_parser(
    pairs: list[tuple[str, str]], trailing: bool
) -> None:
    raw = b"\x02".join(format({name: value}) for name, value in pairs)
    raw += b"\x02" if trailing else b""
    parsed = parse(raw)
    for name in ("KEYS", "TAGS", "UNIQ_KEY", "DELAY"):
        found = property_of(b"\x02" + raw, b"\x02%s\x01" % name.encode())
        assert found.decode() == parsed.get(name, "")


def test_colliding_tags_share_one_code() -> None:
    assert tags_code(b"AaAa") == tags_code(b"BBBB") == 2031744
    assert tags_code(b"") == 0
    assert tags_code(b"hash below zero") < 0 or tags_code(b"polygenelubricants") < 0


@pytest.mark.parametrize(
    "delay, code",
    [
        (b"1", STORED_MS + 1000),
        (b"18", STORED_MS + 7_200_000),
        (b"30", STORED_MS + 7_200_000),
        (b"0", 65),
        (b"-1", 65),
        (b"x", 65),
    ],
)
def test_a_delayed_messages_tag_code_is_its_due_time(delay: bytes, code: int) -> None:
    properties = b"DELAY\x01" + delay + b"\x02TAGS\x01A"
    assert entry_of(head(properties, SCHEDULE_TOPIC.encode()), DELAY_LEVELS_MS).tags_code == code
    assert entry_of(head(properties), DELAY_LEVELS_MS).tags_code == 65


def test_delay_levels_are_read_from_their_setting() -> None:
    text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert delay_levels_ms(text) == DELAY_LEVELS_MS
    assert delay_levels_ms("2d") == (172_800_000,)


def test_dispatch_fills_queues_and_index() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    index = Index(config(), FakeDisk(), ManualClock())
    dispatcher = Dispatcher(queues, [index])
    dispatcher.dispatch([entry(n, keys=(b"k%d" % n,)) for n in range(5)])
    dispatcher.write_out()
    assert queues.next_offsets() == {("T", 0): 5}
    assert index.query("T", "k3", 9, 0, 1 << 62).physical_offsets == [300]


def test_queues_are_written_in_turn_and_new_ones_wait_for_the_next_round() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    dispatcher = Dispatcher(queues, [])
    for queue_id in range(5):
        dispatcher.dispatch([entry(queue_id, queue_id=queue_id)])
    two = 2 * NEW_QUEUE  # each of them has a file to make, which took 1 ms and more
    assert dispatcher.write_out(two)
    dispatcher.dispatch([entry(5, queue_id=7)])
    assert dispatcher.write_out(two)
    assert not dispatcher.write_out(two)
    assert queues.unwritten_count == 1
    assert not dispatcher.write_out(two)
    assert queues.unwritten_count == 0
    dispatcher.dispatch([entry(6 + queue_id, queue_id=queue_id) for queue_id in range(5)])
    assert dispatcher.write_out(2) and queues.unwritten_count == 3


class Full:
    """A follower on a full disk."""

    name = "full"
    covered_offset = 0

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        raise DiskFull("no room for it")

    def write_out(self) -> None:
        raise DiskFull("no room for it")

    def trim_before(self, min_physical: int) -> list[str]:
        return []


def test_a_dispatch_target_on_a_full_disk_does_not_delay_the_others() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    index = Index(config(), FakeDisk(), ManualClock())
    dispatcher = Dispatcher(queues, [Full(), index])
    with pytest.raises(DiskFull, match="no room for it"):
        dispatcher.dispatch([entry(0, keys=(b"k",))])
    with pytest.raises(DiskFull, match="no room for it"):
        dispatcher.write_out()
    assert dispatcher.dispatched_offset == index.covered_offset == RECORD_BYTES
    assert index.query("T", "k", 9, 0, 1 << 62).physical_offsets == [0]


class Told(Full):
    """A follower that notes what it is told, and how many together."""

    def __init__(self) -> None:
        self.entries: list[DispatchEntry] = []
        self.sizes: list[int] = []

    def dispatch(self, entries: Sequence[Dispatched]) -> None:
        self.entries += single_entries(entries)
        self.sizes.append(len(entries))


SINK_KEY = b"0" * 32
AT_ONCE = [
    entry(0, sys_flag=TRANSACTION_PREPARED),
    entry(0, sys_flag=TRANSACTION_COMMIT),
    entry(0, sys_flag=TRANSACTION_ROLLBACK),
    *(
        entry(0, topic=topic.encode())
        for topic in (HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
    ),
    entry(0, keys=(SINK_KEY,)),
]


@pytest.mark.parametrize("awaited", AT_ONCE)
def test_transaction_and_sink_targets_get_each_batch_at_once(awaited: DispatchEntry) -> None:
    told = Told()
    dispatcher = Dispatcher(ConsumeQueues(config(), FakeDisk()), [told])
    of_ipv6 = b"0" * 56
    dispatcher.dispatch_to_queues([entry(0, keys=(of_ipv6,)), entry(1, keys=(b"k",))])
    assert not told.entries
    dispatcher.dispatch_to_queues(
        [replace(awaited, queue_offset=2, physical_offset=2 * RECORD_BYTES), entry(3)]
    )
    assert [each.physical_offset for each in told.entries] == [0, 100, 200, 300]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 2 * FED_TOGETHER), max_size=8), st.integers(0, 3))
def test_dispatch_targets_get_every_record_once_and_in_order(turns: list[int], every: int) -> None:
    told, number = Told(), 0
    queues = ConsumeQueues(config(), FakeDisk())
    dispatcher = Dispatcher(queues, [told])
    for turn, count in enumerate(turns):
        dispatcher.dispatch_to_queues([entry(number + n) for n in range(count)])
        number += count
        assert number - len(told.entries) < FED_TOGETHER
        assert dispatcher.dispatched_offset == number * RECORD_BYTES
        assert queues.next_offsets().get(("T", 0), 0) == number
        if every and turn % every == 0:
            dispatcher.feed()
            assert len(told.entries) == number
    dispatcher.feed()
    assert told.entries == [entry(n) for n in range(number)]
    assert all(told.sizes)


def test_a_target_on_a_full_disk_does_not_get_accepted_records_again() -> None:
    told = Told()
    dispatcher = Dispatcher(ConsumeQueues(config(), FakeDisk()), [Full(), told])
    dispatcher.dispatch_to_queues([entry(0)])
    with pytest.raises(DiskFull, match="no room for it"):
        dispatcher.feed()
    dispatcher.feed()
    assert told.sizes == [1]


def test_dispatch_works_without_an_index() -> None:
    queues = ConsumeQueues(config(), FakeDisk())
    dispatcher = Dispatcher(queues)
    dispatcher.dispatch([entry(0, keys=(b"k",))])
    dispatcher.write_out()
    assert all(queue.written_offset == queue.max_offset for queue in queues)


def run(number: int, count: int, queue_offset: int) -> EntryRun:
    stored = entry(number).store_timestamp
    return run_of(
        [
            replace(
                entry(
                    number + n,
                    queue_offset=queue_offset + n,
                    tags_code=n,
                    keys=(b"key%04d" % (number + n), b"word")[: 1 + number // 6 * n],
                ),
                store_timestamp=stored,
            )
            for n in range(count)
        ]
    )


@pytest.mark.parametrize("begun", [0, 1, 4, 9])
def test_entry_runs_yield_the_units_and_keys_of_their_records(begun: int) -> None:
    """Whatever of them is there already."""
    entries = MixedEntries(
        (
            run(0, 3, 0),
            run(3, 1, 3),
            entry(4, keys=(b"own",)),
            entry(5, queue_id=1),
            run(6, 2, 5),
            run(8, 2, 9),  # its number does not continue the queue
        )
    )
    files: list[dict[str, bytes]] = []
    for told in (entries, single_entries(entries)):
        disk = FakeDisk()
        queues, index = ConsumeQueues(config(), disk), Index(config(), disk, ManualClock())
        dispatcher = Dispatcher(queues, (index,))
        for _ in range(2):
            dispatcher.dispatch(single_entries(entries)[:begun])
            dispatcher.dispatch(told)
        assert dispatcher.dispatched_offset == index.covered_offset == 10 * RECORD_BYTES
        dispatcher.write_out()
        found = {}
        for path in disk.paths():
            file = disk.open(path, read_only=True)
            found[path] = file.pread(file.size(), 0)
            file.close()
        files.append(found)
    assert files[0] == files[1]
    assert len(files[0]) == 3


def test_a_batch_reaches_targets_after_all_earlier_records() -> None:
    told = Told()
    queues = ConsumeQueues(config(), FakeDisk())
    dispatcher = Dispatcher(queues, [told])
    dispatcher.dispatch_to_queues([entry(0)])
    assert not told.entries
    dispatcher.dispatch_to_queues(MixedEntries([run(1, 2, 1)]))
    assert (dispatcher.dispatched_offset, len(told.entries)) == (3 * RECORD_BYTES, 3)
    dispatcher.dispatch_to_queues([entry(3)])
    dispatcher.feed()
    assert (told.sizes, queues.next_offsets()[("T", 0)]) == ([2, 1], 4)


RUN = run_of([entry(number, keys=(b"k",)) for number in range(3, 6)])


def test_extending_an_entry_list_with_runs_makes_a_mixed_list() -> None:
    entries: list[Dispatched] = [entry(0)]
    assert extended(entries, [entry(1)]) is entries
    mixed = extended(entries, MixedEntries([RUN]))
    assert (type(mixed), mixed) == (MixedEntries, [entry(0), entry(1), RUN])
    assert extended(mixed, [entry(9)]) is mixed


def test_an_entry_list_is_split_by_record_count_and_never_inside_a_run() -> None:
    entries = MixedEntries([entry(0), RUN, entry(6), RUN])
    pairs = [cut_behind(entries, count, 100) for count in range(1, 10)]
    assert [len(first) for first, _ in pairs] == [1, 2, 2, 2, 3, 4, 4, 4, 4]
    for first, rest in pairs:
        assert [*first, *rest] == entries and isinstance(first, MixedEntries)
    assert [len(part) for part in cut_behind(entries, 100, 4)] == [4, 0]
    assert [len(part) for part in cut_behind(entries, 100, 3)] == [2, 2]


def test_an_entry_list_without_runs_is_split_by_exact_record_count() -> None:
    entries: list[Dispatched] = [entry(number) for number in range(9)]
    assert cut_behind(entries, 8, 1) == (entries[:8], entries[8:])
    assert [len(cut_behind(entries, count, 1)[0]) for count in (1, 8, 9, 10)] == [1, 8, 9, 9]
    assert cut_behind(entries, 9, 1)[0] is entries, "nothing is copied where nothing is cut"


def test_an_entry_list_is_split_by_approximate_key_count() -> None:
    keys = tuple(b"%d" % number for number in range(129))
    entries: list[Dispatched] = [entry(number, keys=keys) for number in range(64)]
    first, rest = cut_behind(entries, 2000, 6000)
    assert len(first) == 47 and first + rest == entries
    assert cut_behind(first, 2000, 6100) == (first, [])
    assert cut_behind(entries[:1], 2000, 10) == (entries[:1], []), "a record is not cut"
