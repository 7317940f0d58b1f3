"""Checking a directory: whole is called whole, what is damaged is found, nothing changes."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from storage.checking.store_check import CheckReport, StoreCheck
from storage.checking.store_layout import log_extent, queue_extents, with_sizes_of_files
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from storage.queues.consume_queue import UNIT
from storage.retention.trimming import RemovedQueues, remove_queues
from storage.tables.json_config import save
from tests.storage.derived import config as golden_config
from tests.support.by_hand import BY_HAND
from tests.support.golden import manifest, store
from tests.support.puts import put
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

SENT = 250
LOG_FILE = f"/store/commitlog/{0:020d}"
QUEUE_FILE = f"/store/consumequeue/Topic/0/{0:020d}"
TOPICS = "/store/config/topics.json"
TOPICS_TEXT = '{"dataVersion":{"counter":7},"topicConfigTable":{"Topic":{"perm":6}}}'


def stopped(count: int = SENT) -> FakeDisk:
    """A store that was stopped cleanly, with an index, a config file and its previous version."""
    small = SmallStore()
    small.send(count)
    save(small.disk, TOPICS, TOPICS_TEXT.replace("7", "1"))
    save(small.disk, TOPICS, TOPICS_TEXT)
    small.store.flush()
    small.store.close()
    return small.disk


def checked(disk: FakeDisk, config: StoreConfig = CONFIG) -> CheckReport:
    before = contents(disk)
    report = StoreCheck(disk, config).run()
    assert contents(disk) == before
    return report


def contents(disk: FakeDisk) -> dict[str, bytes]:
    return {path: bytes(inode.data) for path, inode in disk._files.items()}


def flip(disk: FakeDisk, path: str, position: int, bit: int = 0) -> None:
    file = disk.open(path)
    file.pwrite(bytes((file.pread(1, position)[0] ^ 1 << bit,)), position)
    file.close()


def parts(report: CheckReport) -> set[str]:
    return {part for part, count in report.wrong_counts.items() if count}


def test_a_cleanly_stopped_store_has_no_findings() -> None:
    report = checked(stopped())
    assert report.findings == [] and report.is_clean
    assert (report.counts.record_count, report.counts.unit_count) == (SENT, SENT)
    assert report.queue_count == 2 and report.index_file_count > 1


def test_a_new_store_has_no_findings() -> None:
    assert checked(stopped(0)).findings == []


def test_a_store_without_a_clean_stop_gets_a_note() -> None:
    small = SmallStore()
    small.send(20)
    save(small.disk, TOPICS, TOPICS_TEXT)
    small.store.flush()
    report = checked(small.disk.killed())
    assert [(each.part, each.is_wrong) for each in report.findings] == [("store", False)]
    assert report.is_clean
    small.store.close()


@pytest.mark.parametrize(
    "name", ["clean", "ext", "v6", "slave", "crashed", "crashed-recovered", BY_HAND]
)
def test_a_store_of_the_original_is_clean_and_shows_its_file_sizes(
    name: str, tmp_path: Path
) -> None:
    root = str(store(name, tmp_path))
    config = with_sizes_of_files(RealDisk(), StoreConfig(root=root))
    expected = golden_config(root)
    if name == "ext":
        expected = replace(
            expected, enable_consume_queue_ext=True, consume_queue_ext_file_bytes=8192
        )
    assert config == expected
    report = StoreCheck(RealDisk(), config).run()
    assert [each for each in report.findings if each.is_wrong] == []
    assert report.log_end == manifest(name)["commitLogEnd"]
    assert report.counts.record_count == len(manifest(name)["rawRecords"])
    assert (report.findings == []) is (name != "crashed")


def test_two_damaged_records_of_the_torn_store_are_found(tmp_path: Path) -> None:
    root = str(store("torn", tmp_path))
    report = StoreCheck(RealDisk(), golden_config(root)).run()
    wrong = [each.text for each in report.findings if each.is_wrong]
    assert [text.partition(":")[0] for text in wrong] == [
        "damaged from 86977 to 87184",
        "damaged from 87391 to 87598",
    ]


@pytest.mark.trial(short=20, long=500)
def test_a_flipped_bit_is_found_in_each_part_of_the_store(seed: int) -> None:
    random, disk = Random(seed), stopped()
    index = f"/store/index/{disk.listdir('/store/index')[0]}"
    config_text = len(TOPICS_TEXT.encode())
    part, path, position = random.choice(
        [
            ("commit log", LOG_FILE, random.choice([*range(16), *range(28, 36), *range(84, 92)])),
            ("consume queues", QUEUE_FILE, random.randrange(30 * UNIT.size)),
            ("index", index, 40 + 16 * 4 + 40 + random.randrange(40 * 20)),
            ("config", TOPICS, random.randrange(config_text)),
        ]
    )
    flip(disk, path, position, random.randrange(8))
    assert parts(checked(disk)) == {part}


@pytest.mark.parametrize("last", [False, True])
def test_a_damaged_body_is_one_range_even_at_the_end_of_the_log(last: bool) -> None:
    small = SmallStore()
    save(small.disk, TOPICS, TOPICS_TEXT)
    start, size = small.send(60)[59 if last else 20]
    small.store.close()
    end = log_extent(small.disk, CONFIG).end
    flip(small.disk, LOG_FILE, start + 88)
    report = checked(small.disk)
    (found,) = report.findings
    assert found.text.startswith(f"damaged from {start} to {start + size}: the body of the record")
    assert report.log_end == end


def test_records_without_units_and_units_without_records_are_found() -> None:
    disk = stopped()
    file = disk.open(f"/store/consumequeue/Topic/0/{2400:020d}")
    file.pwrite(bytes(600), 0)
    file.close()
    report = checked(disk)
    assert parts(report) == {"consume queues"}
    assert "records have no unit" in report.findings[0].text
    disk = stopped()
    end = log_extent(disk, CONFIG).end
    file = disk.open(f"/store/consumequeue/Topic/0/{2400:020d}")
    file.pwrite(UNIT.pack(end + (1 << 20), 100, 0), 100)
    file.close()
    assert "consume queues" in parts(checked(disk))


def test_a_missing_queue_is_an_error_for_a_known_topic_and_else_a_note() -> None:
    disk = stopped()
    disk.remove_tree("/store/consumequeue/Topic/1")
    report = checked(disk)
    assert parts(report) == {"consume queues"}
    save(disk, TOPICS, TOPICS_TEXT.replace('Topic"', 'Other"'))
    disk.unlink(CONFIG.clean_stop_path)
    report = checked(disk)
    assert report.is_clean
    assert {each.part for each in report.findings} == {"store", "consume queues"}


def test_units_that_a_running_broker_has_not_written_yet_are_a_note() -> None:
    small = SmallStore()
    save(small.disk, TOPICS, TOPICS_TEXT)
    for text in ("is missing", "have no unit"):
        small.send(10)
        report = StoreCheck(small.disk, CONFIG, in_use=True).run()
        assert report.is_clean
        notes = [each.text for each in report.findings if each.part == "consume queues"]
        assert notes and all(text in each and "check again" in each for each in notes)
        small.store.flush()
    assert not StoreCheck(small.disk, CONFIG, in_use=True).run().findings


def test_missing_files_of_log_and_queues_are_found() -> None:
    disk = stopped()
    disk.unlink(f"/store/commitlog/{8192:020d}")
    assert "commit log" in parts(checked(disk))
    disk = stopped()
    disk.unlink(f"/store/consumequeue/Topic/0/{600:020d}")
    assert parts(checked(disk)) == {"consume queues"}


def test_bytes_after_the_log_end_are_a_note() -> None:
    disk = stopped(60)
    file = disk.open(LOG_FILE)
    file.pwrite(b"stale", 8000)
    file.close()
    report = checked(disk)
    assert report.is_clean
    assert any(found.text.startswith("behind its end") for found in report.findings)


@pytest.mark.parametrize("damage", ["missing", "short", "runs ahead"])
def test_a_wrong_checkpoint_is_found(damage: str) -> None:
    disk = stopped()
    path = CONFIG.checkpoint_path
    if damage == "runs ahead":
        flip(disk, path, 2, bit=1)
    else:
        disk.unlink(path)
        if damage == "short":
            disk.open(path, create=True).close()
    assert parts(checked(disk)) == {"checkpoint"}


def test_an_index_file_of_another_size_is_found() -> None:
    disk = stopped()
    name = disk.listdir("/store/index")[1]
    file = disk.open(f"/store/index/{name}", create=True)
    file.set_size(100)
    file.close()
    assert parts(checked(disk)) == {"index"}


def test_an_unusable_previous_table_file_is_found() -> None:
    disk = stopped()
    disk.unlink(f"{TOPICS}.crc")
    file = disk.open(f"{TOPICS}.bak")
    file.pwrite(b"\0\0\0\0", 0)
    file.close()
    report = checked(disk)
    assert parts(report) == {"config"}
    assert f"{TOPICS}.bak" in report.findings[0].text


def test_queue_ends_are_found_before_zero_filled_files() -> None:
    disk = stopped()
    ends = queue_extents(disk, CONFIG)
    assert ends.ends == {(b"Topic", 0): SENT // 2, (b"Topic", 1): SENT // 2}
    file = disk.open(f"/store/consumequeue/Topic/0/{3000:020d}", create=True)
    file.set_size(CONFIG.consume_queue_file_bytes)
    file.close()
    assert queue_extents(disk, CONFIG) == ends
    (found,) = checked(disk).findings
    assert found.text.endswith(f"{3000:020d} is empty")  # a start rebuilds this queue


def test_a_flipped_unit_of_the_transaction_table_is_found(tmp_path: Path) -> None:
    config = golden_config(str(store(BY_HAND, tmp_path)))
    made = MessageStore(config, RealDisk(), SystemClock())
    made.open()
    made.catch_up()
    made.close()
    assert StoreCheck(RealDisk(), config).run().findings == []
    with (Path(config.root) / "transaction" / "statetable" / ("0" * 20)).open("r+b") as file:
        file.seek(24 + 23)
        state = file.read(1)[0]
        file.seek(24 + 23)
        file.write(bytes((state ^ 12,)))
    assert parts(StoreCheck(RealDisk(), config).run()) == {"transaction table"}


def test_a_topic_deleted_and_made_again_with_fewer_messages_is_no_fault() -> None:
    small = SmallStore()
    small.send(60)
    small.store.consume_queues.write_out_all()
    remove_queues(small.store, None, RemovedQueues(), only="Topic")
    small._next_offsets.clear()
    small.send(1)  # queue 1 is not made again
    save(small.disk, TOPICS, TOPICS_TEXT)
    small.store.flush()
    small.store.close()
    report = checked(small.disk)
    assert report.is_clean
    assert [each.text for each in report.findings] == [
        "30 records are of deleted topics of the same name",
        "queue 1 of Topic is missing; the log has 30 messages of it, and the topic was deleted",
    ]


def test_transactions_behind_the_saved_offset_of_a_killed_broker_are_no_fault() -> None:
    small = SmallStore()
    small.send(4)
    half = put(topic="RMQ_SYS_TRANS_HALF_TOPIC", properties=b"UNIQ_KEY\x01K")
    small.log.append([half], small.clock.now_ms())
    small.store.catch_up()
    small.store.flush()
    checked_back = replace(half, properties=b"UNIQ_KEY\x01K\x02TRANSACTION_CHECK_TIMES\x011")
    small.log.append([replace(checked_back, queue_offset=1)], small.clock.now_ms())
    small.store.catch_up()
    small.log.sync(small.log.end_offset)
    small.store.transaction_table.write_out()
    report = checked(small.disk.killed())
    assert [each.text for each in report.findings if each.part == "transaction table"] == []
    small.store.close()


@pytest.mark.parametrize(
    ("topic", "properties", "effect"),
    [
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x01 2\x02REAL_QID\x010", "DELAY is ' 2'"),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x012\x02REAL_QID\x01x", "REAL_QID is 'x'"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", b"a\x01b\x02DELAY\x011_0", "DELAY is '1_0'"),
        ("Topic", b"DELAY\x01 2", "ignores it there"),
    ],
)
def test_a_stored_number_that_java_cannot_parse_is_found_and_named(
    topic: str, properties: bytes, effect: str
) -> None:
    small = SmallStore()
    small.send(4)
    offset = small.log.end_offset
    small.log.append([put(topic=topic, properties=properties)], small.clock.now_ms())
    small.store.catch_up()
    small.store.flush()
    small.store.close()
    report = checked(small.disk)
    (found,) = [each for each in report.findings if "not a number in Java" in each.text]
    assert found.text.startswith(f"record at {offset} of {topic}: ") and effect in found.text
    assert found.is_wrong == (topic != "Topic") and found.part == "commit log"


def test_a_unit_from_a_delay_level_that_java_cannot_parse_is_not_damage() -> None:
    """Earlier versions took ` 2` for level 2: the unit has that due time."""
    small = SmallStore()
    record = put(topic="SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x01 2\x02REAL_QID\x010")
    small.log.append([record], small.clock.now_ms())
    small.store.catch_up()
    due = (small.log.last_store_timestamp + 5000).to_bytes(8)
    small.store.flush()
    small.store.close()
    flip_to(small.disk, f"/store/consumequeue/SCHEDULE_TOPIC_XXXX/0/{0:020d}", 12, due)
    report = checked(small.disk)
    assert [each.text for each in report.findings if "not a number in Java" not in each.text] == []


def flip_to(disk: FakeDisk, path: str, position: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(data, position)
    file.close()


def test_an_index_with_every_word_of_a_message_is_correct() -> None:
    """4.9.7 and earlier versions index each word of KEYS."""
    config = replace(CONFIG, max_index_entries=300)  # a record lies in two files at most
    small = SmallStore(config=config)
    words = [b"%d" % number for number in range(200)]
    record = put(properties=b"UNIQ_KEY\x01u\x02KEYS\x01" + b" ".join(words))
    for _ in range(2):
        small.log.append([record], small.clock.now_ms())
    index = small.store.index
    assert index is not None
    heads = list(small.log.walk(0))
    entries = [entry_of(head, ()) for head in heads]
    small.store.consume_queues.append(entries)
    index.dispatch([replace(each, keys=(b"u", *words)) for each in entries])
    index.write_out()
    small.store.flush()
    small.store.close()
    assert [each for each in checked(small.disk, config).findings if each.part == "index"] == []
