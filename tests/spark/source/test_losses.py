"""Messages that are damaged or gone: an error, or exactly these are missing."""

from pathlib import Path

import pytest

from spark.decoding.store_files import Store
from spark.source import reading as reading_module
from spark.source.reading import range_reader
from storage.errors import StoreError
from tests.spark.planned import numbers, options, planned
from tests.spark.store_writer import UNIT, StoreWriter, patch


class Damaged:
    """A store of 300 messages in one queue, a few of them damaged."""

    def __init__(self, root: Path) -> None:
        self.writer = StoreWriter(root)
        for number in range(300):
            self.writer.append("t", 0, b"%d" % number)
        self.writer.close()
        self.log = root / "commitlog" / f"{0:020}"
        self.units = root / "consumequeue/t/0" / f"{0:020}"

    def damage(self) -> list[int]:
        """Damages some, each in another way; which ones."""
        at = [record.physical_offset for record in self.writer.records]
        patch(self.log, at[7] + 4, b"####")  # magic
        patch(self.log, at[100] + 12, b"#")  # queue id
        patch(self.log, at[101] + 84, b"#")  # length of the body
        patch(self.units, 200 * UNIT.size, UNIT.pack(10**15, 100, 0))
        patch(self.units, 201 * UNIT.size, UNIT.pack(at[7], 100, 0))
        patch(self.units, 202 * UNIT.size, bytes(UNIT.size))
        return [7, 100, 101, 200, 201, 202]


def test_damage_is_a_loss_of_exactly_the_damaged_messages(tmp_path: Path) -> None:
    store = Damaged(tmp_path)
    damaged = store.damage()
    with pytest.raises(
        StoreError, match=r"^message 7 in queue 0 of t is damaged or gone \(3 of 200"
    ):
        numbers(options(store.writer))
    found = numbers(options(store.writer, failOnDataLoss="false"))
    assert found == [number for number in range(300) if number not in damaged]


def test_files_deleted_during_the_read_are_a_loss(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, log_file_bytes=8192)
    for number in range(300):
        writer.append("t", 0, b"%d" % number)
    writer.close()
    given = options(writer)
    tasks_before = planned(given)
    gone = [record.queue_offset for record in writer.records if record.physical_offset < 8192]
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    with pytest.raises(StoreError, match=r"message 0 in queue 0 of t is damaged or gone"):
        list(range_reader(given, ("body",)).read(tasks_before[0]))
    accepted = range_reader(options(writer, failOnDataLoss="false"), ("queueOffset",))
    found = [r["queueOffset"] for b in accepted.read(tasks_before[0]) for r in b.to_pylist()]
    assert found == list(range(len(gone), 300))
    assert numbers(given) == found, "what has expired before is no loss"
    told = options(writer, startingOffsets='{"t":{"0":0}}')
    with pytest.raises(StoreError, match=f"begins at {len(gone)}, not at 0: messages are gone"):
        planned(told)


def test_a_file_deleted_in_the_middle_of_a_task_costs_its_own_messages(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, log_file_bytes=8192)
    for number in range(600):
        writer.append("t", 0, b"%d" % number)
    writer.close()
    path = tmp_path / "commitlog" / f"{5 * 8192:020}"
    in_it = {r.queue_offset for r in writer.records if r.physical_offset // 8192 == 5}
    assert in_it
    for accepted in ("false", "true"):
        given = options(writer, failOnDataLoss=accepted)
        (task,) = planned(given)
        content = path.read_bytes()
        reading = range_reader(given, ("queueOffset",)).read(task)
        found = next(reading).to_pydict()["queueOffset"]
        path.unlink()
        if accepted == "true":
            with pytest.raises(StoreError, match=f"{path.name} was deleted or cut while it was"):
                list(reading)
            break
        for batch in reading:
            found += batch.to_pydict()["queueOffset"]
        assert found == sorted(set(range(600)) - in_it)
        path.write_bytes(content)


def test_a_task_lists_the_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StoreWriter(tmp_path)
    for number in range(40):
        writer.append("t", number % 20, b"")
    given = options(writer.close())
    (task,) = planned(given)
    assert len(task) == 20
    opened: list[str] = []

    def open_store(root: str, commit_log: str | None) -> Store:
        opened.append(root)
        return Store(root, commit_log)

    monkeypatch.setattr(reading_module, "Store", open_store)
    list(range_reader(given, ("queueId",)).read(task))
    assert len(opened) == 1


def test_record_bytes_inside_a_body_are_not_a_record(tmp_path: Path) -> None:
    """A unit that points to it is damage, however right the record looks."""
    writer = StoreWriter(tmp_path)
    writer.append("t", 0, b"0")
    inner = StoreWriter(
        tmp_path / "inner", log_first_offset=writer.end_offset + 88, log_file_bytes=200
    )
    inner.queue_firsts["t", 0] = 2
    forged = inner.append("t", 0, b"666")
    content = (inner.close().root / "commitlog" / f"{forged.physical_offset:020}").read_bytes()
    writer.append("t", 0, content)
    writer.queues["t", 0] += UNIT.pack(forged.physical_offset, forged.record_bytes, 0)
    writer.close()
    given = options(writer, failOnDataLoss="false")
    reader = range_reader(given, ("queueOffset",))
    rows = [row for task in planned(given) for b in reader.read(task) for row in b.to_pylist()]
    assert [row["queueOffset"] for row in rows] == [0, 1]
