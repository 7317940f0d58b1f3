"""An archive's runs, manifests and their publication, without Spark."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyarrow import parquet

from spark.archive.check import compare, damages_in, describe_files
from spark.archive.files import Archive, DamagedMessage, Manifest, Table
from spark.decoding.records import Queue
from spark.decoding.store_files import Store
from spark.source.plan import QueuePlan, QueueRange
from storage.errors import StoreError
from storage.files.below import OutsideFolder
from storage.files.disk import RealDisk
from storage.retention.archive_manifest import MANIFEST, ArchiveEnds, LastMessage, checksum
from tests.spark.store_writer import StoreWriter, patch
from tests.support.odd_values import odd_documents


def write_part(directory: Path, topic: str, rows: list[tuple[int, int]], name: str = "a") -> None:
    """Write a Parquet file with these (queue id, queue offset) rows."""
    path = directory / f"topic={topic}" / "day=2026-11-20"
    path.mkdir(parents=True, exist_ok=True)
    ids, offsets = zip(*rows, strict=True)
    table = pa.table({"queueId": pa.array(ids, pa.int32()), "queueOffset": list(offsets)})
    parquet.write_table(table, path / f"{name}.parquet")


def planned(topic: str, queue_id: int, first: int, end: int) -> QueuePlan:
    ranges = (QueueRange(topic, queue_id, first, end, 100),)
    return QueuePlan(topic, queue_id, first, 2, ranges, LastMessage(end - 1, 900, 1))


def none_damaged(plan: QueuePlan, first: int, end: int) -> list[DamagedMessage]:
    return []


def manifest_of(archive: Archive, staged: Path, run: int = 1) -> Manifest:
    files = describe_files(staged)
    return Manifest(
        run=run,
        run_id="abc",
        store="/store",
        published_offset=None,
        finished_ms=5,
        files=tuple(files),
        queues=tuple(compare(files, [planned("%DLQ%t", 0, 3, 5)], none_damaged)[0]),
        ends={("%DLQ%t", 0): LastMessage(4, 900, 1)},
    )


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"))


@pytest.fixture
def staged(archive: Archive) -> Path:
    path = archive.stage("abc") / "data"
    write_part(path, "%25DLQ%25t", [(0, 3), (0, 4)])
    return path


def test_a_published_run_agrees_with_its_manifest(archive: Archive, staged: Path) -> None:
    manifest = manifest_of(archive, staged)
    directory = archive.publish(staged, manifest)
    assert directory.name == "run=00000001"
    assert archive.runs() == [1]
    assert archive.manifest(1) == manifest
    (file,) = manifest.files
    assert (file.topic, file.day, file.rows) == ("%DLQ%t", "2026-11-20", 2)
    archive.check(1)


def test_an_unpublished_run_is_invisible(archive: Archive, staged: Path) -> None:
    assert staged.is_dir()
    assert archive.runs() == []
    assert [path.name[0] for path in archive.output.iterdir()] == ["_"]


def test_a_run_number_is_used_once(archive: Archive, staged: Path) -> None:
    archive.publish(staged, manifest_of(archive, staged))
    again = archive.stage("def") / "data"
    write_part(again, "t", [(0, 3), (0, 4)])
    with pytest.raises(StoreError, match="cannot publish"):
        archive.publish(again, archive.manifest(1))
    assert archive.manifest(1).run_id == "abc"


def test_next_run_removes_the_files_of_a_killed_run(archive: Archive, staged: Path) -> None:
    archive.stage("next")
    assert not staged.exists()


@pytest.mark.parametrize("damage", ["bytes", "missing", "longer"])
def test_a_damaged_file_is_found_by_its_manifest(
    archive: Archive, staged: Path, damage: str
) -> None:
    directory = archive.publish(staged, manifest_of(archive, staged))
    (path,) = directory.rglob("*.parquet")
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "longer":
        path.write_bytes(content + b"\0")
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(StoreError, match=r"is missing|differs from what was archived"):
        archive.check(1)


def test_a_damaged_manifest_is_ignored(archive: Archive, staged: Path) -> None:
    directory = archive.publish(staged, manifest_of(archive, staged))
    path = directory / MANIFEST
    document = json.loads(path.read_text())
    document["manifest"]["ends"][0]["queue_offset"] = 5
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match="is damaged"):
        archive.manifest(1)
    path.write_text("")
    with pytest.raises(StoreError, match="is damaged"):
        archive.manifest(1)
    path.unlink()
    with pytest.raises(StoreError, match="is missing"):
        archive.manifest(1)


def test_a_manifest_with_values_of_wrong_types_is_damaged(archive: Archive, staged: Path) -> None:
    """Regression: a manifest with a valid checksum failed the broker's actor with a traceback."""
    path = archive.publish(staged, manifest_of(archive, staged)) / MANIFEST
    text = path.read_bytes()
    ends = ArchiveEnds(RealDisk(), str(archive.output))
    for content in odd_documents(json.loads(text)["manifest"]):
        document = {"manifest": content, "crc32c": checksum(content)}
        path.write_bytes(json.dumps(document).encode())
        with suppress(StoreError):
            archive.runs()
            archive.check(1)
        with suppress(StoreError):
            ends.read()
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(StoreError, match="is damaged"):
        archive.manifest(1)


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/hostname", "topic=T/../../x", "", "a\0b", "{../x,y}", "topic=*/x"],
)
def test_a_manifest_with_files_outside_its_run_is_refused(
    archive: Archive, staged: Path, path: str
) -> None:
    """The checksum is valid, as any writer of the file can compute it."""
    manifest = manifest_of(archive, staged)
    directory = archive.publish(staged, manifest)
    forged = replace(manifest, files=(replace(manifest.files[0], path=path),))
    (directory / MANIFEST).write_bytes(forged.encode())
    with pytest.raises(OutsideFolder):
        archive.manifest(1)


def test_a_file_of_an_archive_that_links_outside_its_run_is_refused(
    archive: Archive, staged: Path, tmp_path: Path
) -> None:
    manifest = manifest_of(archive, staged)
    path = archive.publish(staged, manifest) / manifest.files[0].path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutsideFolder):
        archive.check(1)


def test_the_table_of_an_archive_is_always_below_it(archive: Archive, staged: Path) -> None:
    manifest = replace(manifest_of(archive, staged), table=Table("delta", "/elsewhere", "app"))
    archive.publish(staged, manifest)
    found = archive.manifest(1).table
    assert found is not None and found.path == f"{archive.output}/table"


def test_a_file_beside_an_archive_is_not_emptied_through_its_lock(
    archive: Archive, tmp_path: Path
) -> None:
    """Regression: the lock was opened for writing through a link, which emptied the target."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    archive.output.mkdir()
    (archive.output / "_lock").symlink_to(outside)
    with pytest.raises(OutsideFolder), archive.writing():
        pass
    assert outside.read_bytes() == b"mine"


def test_nothing_is_staged_or_removed_behind_a_link_out_of_an_archive(
    archive: Archive, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    archive.output.mkdir()
    (archive.output / "_staging").symlink_to(elsewhere)
    with archive.writing(), pytest.raises(OutsideFolder):
        archive.stage("run")
    assert not [*elsewhere.iterdir()]


def test_a_table_of_an_archive_must_not_link_outside(
    archive: Archive, staged: Path, tmp_path: Path
) -> None:
    """Regression: messages went to the target of the link, despite the ignored manifest path."""
    manifest = replace(manifest_of(archive, staged), table=Table("delta", "/elsewhere", "app"))
    archive.publish(staged, manifest)
    (archive.output / "table").symlink_to(tmp_path)
    with pytest.raises(OutsideFolder):
        archive.manifest(1)


def test_a_linked_run_is_removed_as_a_link(archive: Archive, staged: Path, tmp_path: Path) -> None:
    """Regression: removing it failed with a traceback, and so did every later run."""
    manifest = manifest_of(archive, staged)
    moved = archive.publish(staged, manifest).rename(tmp_path / "moved")
    archive.run_directory(1).symlink_to(moved)
    later = archive.stage("later")
    archive.publish(later, replace(manifest, run=2, files=(), replaces=(1,)))
    archive.remove_replaced()
    assert archive.runs() == [2] and moved.is_dir()


def test_two_runs_do_not_write_at_once(archive: Archive) -> None:
    with (
        archive.writing(),
        pytest.raises(StoreError, match="another run is writing"),
        Archive(str(archive.output)).writing(),
    ):
        pass
    with archive.writing():
        pass


def test_an_unwritable_output_is_a_one_sentence_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StoreError, match="cannot write to"),
        Archive(str(tmp_path / "file" / "archive")).writing(),
    ):
        pass


def test_files_that_hold_the_plan_are_accepted(tmp_path: Path) -> None:
    write_part(tmp_path, "t", [(1, 7), (0, 4), (0, 3)])
    write_part(tmp_path, "t", [(0, 5)], "b")
    plans = [planned("t", 0, 3, 6), planned("t", 1, 7, 8)]
    (zero, one), damaged = compare(describe_files(tmp_path), plans, none_damaged)
    assert damaged == []
    assert (zero.first, zero.last, zero.rows, zero.missed) == (3, 5, 3, 2)
    assert (one.first, one.last, one.rows) == (7, 7, 1)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 3), (0, 4)],
        [(0, 3), (0, 5)],
        [(0, 3), (0, 4), (0, 4), (0, 5)],
        [(0, 3), (0, 4), (0, 5), (0, 6)],
        [(0, 2), (0, 3), (0, 4), (0, 5)],
        [(0, 3), (0, 4), (0, 5), (1, 0)],
        [(1, 3), (1, 4), (1, 5)],
    ],
    ids=["short", "hole", "twice", "longer", "earlier", "another_too", "another"],
)
def test_files_that_differ_from_the_plan_are_refused(
    tmp_path: Path, rows: list[tuple[int, int]]
) -> None:
    write_part(tmp_path, "t", rows)
    with pytest.raises(StoreError, match="nothing was published"):
        compare(describe_files(tmp_path), [planned("t", 0, 3, 6)], none_damaged)


def test_queue_without_planned_rows_needs_no_files(tmp_path: Path) -> None:
    empty = replace(planned("t", 0, 3, 6), ranges=(), last=None)
    assert compare(describe_files(tmp_path), [empty], none_damaged) == ([], [])


def test_missing_messages_must_be_damaged_in_the_log(tmp_path: Path) -> None:
    write_part(tmp_path, "t", [(0, 3), (0, 6), (0, 7)])
    asked: list[tuple[int, int]] = []

    def damages(plan: QueuePlan, first: int, end: int) -> list[DamagedMessage]:
        asked.append((first, end))
        return [DamagedMessage("t", 0, at, at * 100, "why") for at in range(first, min(end, 6))]

    (queue,), damaged = compare(describe_files(tmp_path), [planned("t", 0, 3, 8)], damages)
    assert asked == [(4, 6)]
    assert [each.queue_offset for each in damaged] == [4, 5]
    assert (queue.first, queue.last, queue.rows, queue.damaged) == (3, 7, 3, 2)
    with pytest.raises(StoreError, match="nothing was published"):
        compare(describe_files(tmp_path), [planned("t", 0, 3, 9)], damages)


def test_damaged_messages_are_named_with_the_reason(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    records = [writer.append("t", 0, b"%050d" % number) for number in range(9)]
    writer.close()
    log = tmp_path / "commitlog" / f"{0:020}"
    patch(log, records[2].physical_offset + 90, b"!")  # its body
    patch(log, records[5].physical_offset + 12, b"\7")  # its queue id
    found = damages_in(Queue(Store(str(tmp_path)), "t", 0), 0, 9)
    assert [(each.queue_offset, each.physical_offset, each.why) for each in found] == [
        (2, records[2].physical_offset, "the body does not have its CRC"),
        (5, records[5].physical_offset, "the record is not its own"),
    ]


def test_a_manifest_lists_omitted_messages(archive: Archive, staged: Path) -> None:
    damaged = (DamagedMessage("t", 0, 4, 400, "why"),)
    manifest = replace(manifest_of(archive, staged), damaged=damaged)
    archive.publish(staged, manifest)
    assert archive.manifest(1).damaged == damaged
