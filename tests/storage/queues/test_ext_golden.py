"""The extension beside the original's: every unit read, and made again byte by byte."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from storage.queues.consume_queue_ext import ExtUnit, is_address
from storage.queues.consume_queues import ConsumeQueues
from storage.queues.dispatch_entry import DispatchEntry
from tests.storage.derived import DELAY_LEVELS_MS, config, golden_heads
from tests.support.clock import ManualClock
from tests.support.golden import manifest, store

BITMAP_BYTES = 14


def settings(root: Path) -> StoreConfig:
    return replace(
        config(str(root)), enable_consume_queue_ext=True, consume_queue_ext_file_bytes=8192
    )


def units_of(queues: ConsumeQueues) -> dict[tuple[bytes, int, int], ExtUnit | None]:
    """Topic, queue id and queue offset of each message, and what the extension says of it."""
    found = {}
    for queue in queues:
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            assert unit is not None and is_address(unit[2])
            found[queue.topic.encode(), queue.queue_id, offset] = queue.ext(unit[2])
    return found


def test_every_unit_agrees_with_its_record(tmp_path: Path) -> None:
    root = store("ext", tmp_path)
    queues = ConsumeQueues(settings(root), RealDisk())
    queues.load()
    assert not queues.misfits()
    found = units_of(queues)
    entries = [entry_of(head, DELAY_LEVELS_MS) for head in golden_heads(root)]
    assert found.keys() == {(entry.topic, entry.queue_id, entry.queue_offset) for entry in entries}
    assert len(found) == sum(map(len, manifest("ext")["consumeQueues"].values())) == 172
    bitmaps = set()
    for entry in entries:
        unit = found[(entry.topic, entry.queue_id, entry.queue_offset)]
        assert unit is not None
        assert (unit.tags_code, unit.store_timestamp) == (entry.tags_code, entry.store_timestamp)
        if entry.topic == b"GS_Sql":
            assert unit.bitmap is not None and len(unit.bitmap) == BITMAP_BYTES
            bitmaps.add(unit.bitmap)
        else:
            assert unit.bitmap is None
    assert len(bitmaps) > 2
    queues.close()


@pytest.mark.parametrize("batch", [1, 7, 1000])
@pytest.mark.parametrize("with_bits", [True, False])
def test_a_log_dispatched_again_gives_the_same_files(
    batch: int, with_bits: bool, tmp_path: Path
) -> None:
    """With other bits all the rest is equal."""
    root, ours = store("ext", tmp_path / "theirs"), tmp_path / "ours"
    theirs = ConsumeQueues(settings(root), RealDisk())
    theirs.load()
    known = units_of(theirs)
    theirs.close()

    def bits(entry: DispatchEntry) -> bytes | None:
        unit = known[(entry.topic, entry.queue_id, entry.queue_offset)]
        assert unit is not None
        if unit.bitmap is None or with_bits:
            return unit.bitmap
        return bytes(len(unit.bitmap))

    queues = ConsumeQueues(settings(ours), RealDisk())
    queues.bit_maps = bits
    entries = [entry_of(head, DELAY_LEVELS_MS) for head in golden_heads(root)]
    for start in range(0, len(entries), batch):
        queues.append(entries[start : start + batch])
        queues.write_out_all()
    queues.close()
    assert _files(ours / "consumequeue") == _files(root / "consumequeue")
    blank = (lambda data: data) if with_bits else without_bits
    assert _files(ours / "consumequeue_ext", blank) == _files(root / "consumequeue_ext", blank)


def without_bits(data: bytes) -> bytes:
    """Copy a file with its bitmaps set to zeros."""
    result, position = bytearray(data), 0
    while size := int.from_bytes(data[position : position + 2]):
        result[position + 20 : position + size] = bytes(size - 20)
        position += size
    return bytes(result)


def _files(
    directory: Path, changed: Callable[[bytes], bytes] = lambda data: data
) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): changed(path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("extended", [True, False])
def test_a_golden_store_opens_with_and_without_extensions_unchanged(
    extended: bool, tmp_path: Path
) -> None:
    root = store("ext", tmp_path)
    before = _files(root / "consumequeue"), _files(root / "consumequeue_ext")
    chosen = settings(root) if extended else config(str(root))
    for _ in range(2):
        opened = MessageStore(chosen, RealDisk(), ManualClock())
        assert not [line for line in opened.open().findings if "queue" in line.text]
        opened.close()
    assert (_files(root / "consumequeue"), _files(root / "consumequeue_ext")) == before


def test_a_queue_without_its_extension_is_rebuilt(tmp_path: Path) -> None:
    root = store("ext", tmp_path)
    path = root / "consumequeue_ext" / "GS_Sql" / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.unlink()
    opened = MessageStore(settings(root), RealDisk(), ManualClock())
    report = opened.open()
    assert len([line for line in report.findings if "GS_Sql" in line.text]) == 1
    found = units_of(opened.consume_queues)
    wanted = {key: 120 for key in found if key[0] == b"GS_Sql"}
    assert len(wanted) == 120 and None not in found.values()
    opened.close()
    assert len(path.read_bytes()) == len(data)
