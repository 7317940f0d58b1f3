"""Stores of earlier versions, one packed for each format: all can be opened.

`format-0.tar.xz` was written by the broker itself: 200 messages with tags, keys and properties, 5
with a delay of two hours, 3 open transactions, a group that has read all; `stopped` cleanly, and
`killed` beside it. A later format adds a file here; files are never removed or regenerated.
"""

import tarfile
from pathlib import Path
from typing import Any

import pytest

from protocol.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from storage.checking.store_layout import with_sizes_of_files
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from storage.recovery.store_format import STORE_FORMAT, format_of
from storage.tables.offsets import parse_offsets
from tests.support.clock import ManualClock

KEPT = Path(__file__).with_name("kept")
PACKED_BYTES_MAX = 200 << 10

# Debian's Python 3.11.2 has no filters yet.
WITHIN: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpacked(tmp_path: Path, number: int, name: str) -> StoreConfig:
    with tarfile.open(KEPT / f"format-{number}.tar.xz") as packed:
        packed.extractall(tmp_path, **WITHIN)
    return with_sizes_of_files(RealDisk(), StoreConfig(root=str(tmp_path / name)))


def test_every_earlier_store_format_has_a_small_kept_store() -> None:
    kept = {path.name: path.stat().st_size for path in KEPT.iterdir()}
    assert kept.keys() >= {f"format-{number}.tar.xz" for number in range(STORE_FORMAT)}
    assert max(kept.values()) <= PACKED_BYTES_MAX


@pytest.mark.parametrize("name", ["stopped", "killed"])
def test_a_format_0_store_opens_without_loss(tmp_path: Path, name: str) -> None:
    config, disk = unpacked(tmp_path, 0, name), RealDisk()
    assert format_of(config, disk) == 0
    store = MessageStore(config, disk, ManualClock(1_900_000_000_000))
    report = store.open()
    try:
        assert report.clean == (name == "stopped")
        assert not store.damage.ranges
        counts = {
            topic: sum(queue.max_offset for queue in store.consume_queues if queue.topic == topic)
            for topic in ("Orders", SCHEDULE_TOPIC, HALF_TOPIC)
        }
        assert counts == {"Orders": 200, SCHEDULE_TOPIC: 5, HALF_TOPIC: 3}
        store.catch_up()
        assert store.index is not None
        assert store.transaction_table.pending_count == 3
    finally:
        store.close()
    assert format_of(config, disk) == STORE_FORMAT
    text = (tmp_path / name / "config" / "consumerOffset.json").read_text("utf-8")
    assert sum(parse_offsets(text).offset_table["Orders@billing"].values()) == 200
