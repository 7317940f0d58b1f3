"""Any file of a store for a human: against the manifests of the golden stores, and on damage."""

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage.dump.any_file import dump
from storage.dump.item import DumpError, Item, lines_of, plain, shortened, utc
from storage.files.disk import RealDisk
from storage.index.index_file import IndexFile
from storage.recovery.checkpoint import Checkpoint
from storage.tables.json_config import save
from storage.tables.offset_journal import JournalFile
from storage.tables.skipped_entry import SkippedEntry
from storage.transactions.redo_log import Covered, TransactionRedoLog
from storage.transactions.units import COMMITTED, PREPARED
from storage.transactions.units import UNIT as STATE_UNIT
from tests.support.by_hand import BY_HAND
from tests.support.golden import manifest, store
from tests.support.store import SmallStore


def items(path: Path | str, **options: Any) -> list[Item]:
    return list(dump(RealDisk(), str(path), **options))


def of_kind(kind: str, found: list[Item]) -> list[dict[str, Any]]:
    return [dict(item.fields) for item in found if item.kind == kind]


def text(path: Path | str, **options: Any) -> str:
    return "\n".join(lines_of(items(path, **options)))


@pytest.mark.parametrize("name", ["clean", "ext", "v6", "crashed", "torn", BY_HAND])
def test_every_record_of_a_golden_log_is_shown(name: str, tmp_path: Path) -> None:
    root = store(name, tmp_path)
    found: list[Item] = []
    for path in sorted((root / "commitlog").iterdir()):
        found += items(path)
    shown = {fields["offset"]: fields for fields in of_kind("record", found)}
    theirs = {each["commitLogOffset"]: each for each in manifest(name)["rawRecords"]}
    assert theirs.keys() <= shown.keys()
    for offset, record in theirs.items():
        own = shown[offset]
        assert (own["topic"], own["queue_id"]) == (record["topic"], record["queueId"])
        assert own["queue_offset"] == record["queueOffset"]
        assert own["stored"] == utc(record["storeTimestamp"])
        assert own["crc"] == "ok"
    blanks = of_kind("blank", found)
    assert len(blanks) == {"clean": 2, "crashed": 1, "torn": 1, BY_HAND: 2}.get(name, 0)


@pytest.mark.parametrize("name", ["clean", "ext", BY_HAND])
def test_every_unit_and_entry_of_a_golden_store_is_shown(name: str, tmp_path: Path) -> None:
    root, said = store(name, tmp_path), manifest(name)
    units: list[Item] = []
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        units += items(path)
    found = sorted(
        (each["queue_offset"], each["physical_offset"], each["bytes"], each["tags_code"])
        for each in of_kind("unit", units)
    )
    queues = said["consumeQueues"]
    theirs = sorted(tuple(unit) for queue in queues.values() for unit in queue)
    assert found == theirs
    for path in sorted((root / "index").iterdir()):
        (header,) = of_kind("index file", items(path))
        assert (header["slots"], header["entries_max"]) == (64, 200)
        entries = of_kind("entry", items(path))
        assert len(entries) == header["next_entry"] - 1
        assert entries[-1]["physical_offset"] == header["end_offset"]
    for path in sorted((root / "consumequeue_ext").glob("*/*/*")):
        (end,) = of_kind("end", items(path))
        assert end["units"] > 0
        assert end["reason"] == "zeros follow"


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("commitlog/00000000000000000000", "commit log file"),
        ("commitlog/00000000000000065536", "commit log file"),
        ("consumequeue/GS_T1/0/00000000000000000000", "consume queue file"),
        ("index/*", "index file"),
        ("checkpoint", "checkpoint"),
        ("config/topics.json", "config file"),
    ],
)
def test_a_copied_file_is_recognized_by_its_content(place: str, kind: str, tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    source = sorted(root.glob(place))[0]
    target = tmp_path / "saved.bin"
    shutil.copyfile(source, target)
    assert items(target)[0].kind == kind
    assert [each.fields for each in items(target)[1:]] == [
        each.fields for each in items(source)[1:]
    ]


def test_an_extension_file_is_recognized_by_its_content(tmp_path: Path) -> None:
    source = store("ext", tmp_path) / "consumequeue_ext/GS_Sql/0/00000000000000000000"
    shutil.copyfile(source, tmp_path / "saved.bin")
    assert items(tmp_path / "saved.bin")[0].kind == "consume queue extension file"


def test_damage_is_shown_with_the_items_after_it(tmp_path: Path) -> None:
    path = store("clean", tmp_path) / "commitlog" / "00000000000000000000"
    whole = of_kind("record", items(path))
    data = bytearray(path.read_bytes())
    second, fifth, ninth = (whole[number]["offset"] for number in (1, 4, 8))
    data[second + 1] ^= 0x40  # the length
    data[fifth + 90] ^= 1  # the body
    data[ninth + 35] ^= 1  # its own offset
    path.write_bytes(data)
    found = items(path)
    shown = {fields["offset"]: fields for fields in of_kind("record", found)}
    assert len(shown) == len(whole) - 1
    assert shown[fifth]["crc"] == "wrong"
    assert shown[ninth]["says_offset"] == ninth ^ 1
    (damage,) = of_kind("damage", found)
    assert (damage["offset"], damage["end_offset"]) == (second, whole[2]["offset"])
    assert "damaged: its own offset is" in text(path)
    assert "CRC wrong" in text(path)


def test_a_part_of_a_file_is_shown(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    log = root / "commitlog" / "00000000000000065536"
    records = of_kind("record", items(log))
    for begin in (records[5]["offset"], records[4]["offset"] + 1):
        found = of_kind("record", items(log, from_number=begin, limit=3))
        assert found == records[5:8]
    assert of_kind("more", items(log, limit=3))
    assert not of_kind("more", items(log))
    queue = root / "consumequeue" / "GS_T1" / "0" / "00000000000000006000"
    found = of_kind("unit", items(queue, from_number=310, limit=2))
    assert [each["queue_offset"] for each in found] == [310, 311]
    index = sorted((root / "index").iterdir())[0]
    found = of_kind("entry", items(index, from_number=7, limit=2))
    assert [each["number"] for each in found] == [7, 8]


def test_the_first_entry_of_a_later_index_file_is_shown_at_its_time(tmp_path: Path) -> None:
    path, before_ms, begin_ms = tmp_path / "index" / "20231114221320000", 1000, 61_000
    path.parent.mkdir()
    file = IndexFile(RealDisk(), str(path), 64, 200)
    file.create(500, before_ms)
    file.put([1, 1], [600, 700], [begin_ms, begin_ms + 2000])
    file.close()
    found = [each["stored_about"] for each in of_kind("entry", items(path))]
    assert found == [utc(begin_ms), utc(begin_ms + 2000)]


def test_long_runs_of_zeros_are_one_item(tmp_path: Path) -> None:
    path = store("clean", tmp_path) / "consumequeue" / "GS_Tx" / "0" / "00000000000000000000"
    found = items(path)
    assert [item.kind for item in found] == [
        "consume queue file", "unit", "unit", "empty units", "end"
    ]  # fmt: skip
    assert of_kind("empty units", found) == [{"queue_offset": 2, "count": 298}]


def test_due_times_and_extension_addresses_are_shown_apart_from_tag_codes(tmp_path: Path) -> None:
    root = store("clean", tmp_path) / "consumequeue"
    assert "due 2026-11-20" in text(root / "SCHEDULE_TOPIC_XXXX/0/00000000000000000000")
    assert "meaning" not in text(root / "GS_Tx/0/00000000000000000000")
    root = store("ext", tmp_path) / "consumequeue"
    assert "extension at 34" in text(root / "GS_Sql/0/00000000000000000000")


def test_a_checkpoint_is_shown_with_the_durable_offset(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(RealDisk(), str(path))
    checkpoint.load()
    checkpoint.advance(physic_ms=1_795_189_509_189, logics_ms=1_795_189_509_188)
    checkpoint.advance(durable_offset=4711)
    checkpoint.save()
    checkpoint.close()
    (fields,) = of_kind("checkpoint", items(path))
    assert (fields["durable_offset"], fields["full_index_files"]) == (4711, "0")
    assert fields["commit_log"] == "2026-11-20 15:45:09.189Z"
    data = path.read_bytes()
    path.write_bytes(data[:20])
    assert "nothing is known" in text(path)
    path.write_bytes(data[:4095])
    assert "durable" not in text(path)
    assert path.read_bytes() == data[:4095], "nothing is repaired"


def test_a_transaction_table_and_its_redo_log_are_shown(tmp_path: Path) -> None:
    directory = tmp_path / "transaction" / "statetable"
    directory.mkdir(parents=True)
    units = STATE_UNIT.pack(100, 300, 1_795_189_509, -5, PREPARED)
    units += STATE_UNIT.pack(400, 300, 1_795_189_510, 7, COMMITTED)
    path = directory / f"{240:020d}"
    path.write_bytes(units + bytes(2400))
    found = of_kind("transaction", items(path))
    assert [(each["number"], each["state"]) for each in found] == [
        (10, "prepared"),
        (11, "committed"),
    ]
    assert found[0]["born"] == "2026-11-20 15:45:09.000Z"
    shutil.copyfile(path, tmp_path / "saved.bin")
    assert items(tmp_path / "saved.bin")[0].kind == "transaction table file"
    log = TransactionRedoLog(RealDisk(), str(tmp_path))
    log.save(Covered(700, 400, 1_795_189_510_000, 12, 10))
    (fields,) = of_kind("transaction redo log", items(log.path))
    assert (fields["covered_offset"], fields["crc"]) == (700, "ok")
    data = bytearray(Path(log.path).read_bytes())
    data[9] ^= 1
    Path(log.path).write_bytes(data)
    assert "crc: wrong" in text(log.path)


def test_journal_of_offsets_is_shown_up_to_its_damage(tmp_path: Path) -> None:
    file = JournalFile(RealDisk(), str(tmp_path), 1_795_189_509_000, 0)
    file.settle("T@G", 1, 5, [7])
    file.write()
    file.remove("T@G")
    file.write()
    found = items(file.path)
    (head,) = of_kind("offset journal", found)
    assert head["begun"] == "2026-11-20 15:45:09.000Z"
    assert [each["change"] for each in of_kind("change", found)] == ["advanced", "gone"]
    assert of_kind("end", found)[0]["ignored_bytes"] == 0
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:-1])
    found = items(file.path)
    assert [each["change"] for each in of_kind("change", found)] == ["advanced"]
    assert of_kind("end", found)[0]["ignored_bytes"] == 12


def test_config_files_are_shown_with_their_checksum_state(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    disk = RealDisk()
    for number in (1, 2):
        save(disk, str(path), f'{{"offsetTable":{{"T@G":{{0:{number}}}}}}}')
    assert "the last saved version" in text(path)
    assert '"T@G":{0:2' in text(path)
    assert "the previous version" in text(f"{path}.bak")
    assert "newest: 29 bytes" in text(f"{path}.crc") or "newest 29 bytes" in text(f"{path}.crc")
    path.write_text('{"offsetTable":{"T@G":{0:3}}}')
    assert "one flipped bit" in text(path)
    path.write_text('{"offsetTable":{"T@G":{0:77}}}')
    assert "written by another broker" in text(path)
    path.write_text('{"offsetTable":{"T@G":{0:"x"}}}')
    assert "left out: T@G, 0" in text(path)
    path.write_text('{"offsets":{}}')
    assert "cannot be used" in text(path)
    path.write_text("")
    assert "empty" in text(path)
    Path(f"{path}.crc").write_text("nonsense")
    assert "without effect" in text(f"{path}.crc")


def test_the_record_of_a_clean_stop_is_shown(tmp_path: Path) -> None:
    small = SmallStore()
    small.send(4)
    small.store.close()
    path = small.config.clean_stop_path
    found = list(dump(small.disk, path))
    assert of_kind("record of a clean stop", found)[0]["crc"] == "ok"
    queues = of_kind("queue", found)
    assert [(each["topic"], each["queue_id"]) for each in queues] == [
        ("Topic", "0"),
        ("Topic", "1"),
    ]
    small.disk.flip_bit(path, 20, 0)
    assert "wrong" in "\n".join(lines_of(dump(small.disk, path)))


def test_an_open_store_is_summarized() -> None:
    small = SmallStore()
    small.send(30)
    small.store.consume_queues.sync_all()
    found = list(dump(small.disk, "/store"))
    (log,) = of_kind("commit log", found)
    assert log["bytes"] == log["files"] * small.config.commit_log_file_bytes
    (queues,) = of_kind("consume queues", found)
    assert (queues["queues"], queues["units"]) == (2, 30)
    assert "there" in str(found[0].fields["abort"])
    kinds = [item.kind for item in dump(small.disk, "/store/consumequeue")]
    assert kinds == ["directory"]


def test_every_file_of_a_broker_is_shown_by_its_kind() -> None:
    small = SmallStore()
    small.send(30)
    for name in ("replica", "rebuild"):
        small.disk.make_dirs("/store/troupemq")
        small.disk.open(f"/store/troupemq/{name}", create=True).close()
    entry = SkippedEntry(("topicConfigTable", "Bad"), "it has -4 queues", {"readQueueNums": -4})
    for number in (1, 2):
        topics = f'{{"topicConfigTable":{{"T":{{"perm":{number}}},"Bad":{{"perm":-1}}}}}}'
        save(small.disk, "/store/config/topics.json", topics, left_out=[entry])
    small.store.close()
    listed = {str(item.fields.get("path")) for item in dump(small.disk, "/store")}
    shown = {}
    for path in small.disk.paths():
        items = list(dump(small.disk, path))
        shown[path.removeprefix("/store/")] = items[0].kind
        assert "damaged" not in "\n".join(lines_of(items)), path
        assert path in listed or path.split("/")[2] in ("commitlog", "consumequeue", "index")
    del shown[next(name for name in shown if name.startswith("index/"))]
    assert {name: kind for name, kind in shown.items() if "queue/" not in name} == {
        "checkpoint": "checkpoint",
        "commitlog/00000000000000000000": "commit log file",
        "config/topics.json": "config file",
        "config/topics.json.bak": "config file",
        "config/topics.json.crc": "checksums",
        "config/topics.json.left-out": "entries left out",
        "lock": "lock",
        "transaction/redolog/covered_offset": "transaction redo log",
        "troupemq/clean_stop.json": "record of a clean stop",
        "troupemq/format.json": "format",
        "troupemq/queues.json": "list of queues",
        "troupemq/rebuild": "rebuild",
        "troupemq/replica": "replica",
        "troupemq/sinks.json": "sinks",
    }
    queues = of_kind("queue", list(dump(small.disk, "/store/troupemq/queues.json")))
    assert queues == [{"topic": "Topic", "queue_ids": [0, 1]}]
    (left_out,) = of_kind("entry", list(dump(small.disk, "/store/config/topics.json.left-out")))
    assert left_out["entry"] == "Bad"
    (topics_file,) = of_kind("config file", list(dump(small.disk, "/store/config/topics.json")))
    assert "Bad" in topics_file["left_out"][0]


@pytest.mark.parametrize(
    ("place", "last"),
    [
        ("commitlog/00000000000000065536", 100_000),
        ("consumequeue/GS_Tx/0/00000000000000000000", 1),
        ("index/*", 2),
    ],
)
def test_a_start_beyond_the_file_end_is_a_one_sentence_error(
    place: str, last: int, tmp_path: Path
) -> None:
    path = sorted(store("clean", tmp_path).glob(place))[0]
    assert items(path, from_number=last)
    for beyond in (200_000, 138_373, 1 << 40):
        with pytest.raises(DumpError, match=rf"ends before {beyond}.*\.$"):
            items(path, from_number=beyond)


def test_a_range_of_an_indivisible_file_is_refused(tmp_path: Path) -> None:
    root = store("clean", tmp_path)
    for path in (root, root / "checkpoint", root / "config" / "topics.json"):
        with pytest.raises(DumpError, match=r"as a whole.*\.$"):
            items(path, from_number=1)


@pytest.mark.parametrize("data", [b"", b"hello", b"\0" * 10_000, b"\x7fELF" + bytes(range(200))])
def test_a_foreign_file_is_a_one_sentence_error(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "something"
    path.write_bytes(data)
    with pytest.raises(DumpError, match=r"is not a file of a store.*\.$"):
        items(path)


@pytest.mark.trial(short=5, long=300)
def test_no_damage_makes_a_dump_fail(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    root = store(random.choice(["clean", "ext", BY_HAND]), tmp_path)
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        data = bytearray(path.read_bytes())
        for _ in range(random.randint(0, 20)):
            if data:
                data[random.randrange(min(len(data), 600))] = random.randrange(256)
        path.write_bytes(data[: random.randint(0, len(data))] if random.random() < 0.3 else data)
        for _ in lines_of(items(path)):
            pass
    assert text(root)


def test_terminal_control_characters_are_not_printed() -> None:
    assert plain("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
    assert shortened(b"\x1b[2J") == "0x1b5b324a"
    assert shortened("ä\nö".encode()) == "ä\\nö"
    assert shortened(b"x" * 500).endswith("… 100 characters more")
    assert shortened(bytes(100)).endswith("… 36 bytes more")
    assert shortened(b"") == ""
    assert utc(0) == "0"
    assert utc(1 << 62) == str(1 << 62)
