"""Records become columns: golden stores and stores written here, compared column by column."""

from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.host import pack_host
from protocol.properties import parse
from spark.decode import COLUMNS, decode
from spark.plan import Selection, plan
from spark.properties import PropertyTexts, as_text, slices
from spark.records import BATCH_BYTES_MAX, Queue
from spark.store_files import Store
from tests.spark.rows import Row, in_order, row_of_record, rows_of_manifest, with_hashed_bodies
from tests.spark.store_writer import HOST_V6, NOVEMBER_ROOT_MS, StoreWriter
from tests.support import golden
from tests.support.by_hand import BY_HAND

DAY_MS = 86_400_000


def decoded(store: Store) -> list[Row]:
    """Every message of a store."""
    rows: list[Row] = []
    for queue in plan(store, Selection()):
        for part in queue.ranges:
            for records in Queue(store, part.topic, part.queue_id).records(part.first, part.end):
                rows += decode(records).to_pylist()
    return in_order(rows)


def without_body_crc(rows: Iterable[Row]) -> list[Row]:
    return [{name: row[name] for name in row if name != "body_crc"} for row in rows]


@pytest.mark.parametrize(
    "name", ["clean", "slave", "ext", "v6", "crashed", "crashed-recovered", BY_HAND]
)
def test_every_message_of_a_golden_store_is_decoded(name: str, tmp_path: Path) -> None:
    store = Store(str(golden.store(name, tmp_path)))
    rows = with_hashed_bodies(decoded(store))
    assert rows == rows_of_manifest(golden.manifest(name))


def test_every_column_of_a_written_store_is_decoded(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    for number in range(700):
        writer.append(
            f"topic-{number % 3}",
            number % 2,
            bytes([number % 256]) * (number % 300),
            {"KEYS": f"a{number} b", "n": str(number), "TAGS": "t"} if number % 5 else {},
            store_timestamp=NOVEMBER_ROOT_MS + number * DAY_MS // 100,
            born_host=HOST_V6 if number % 7 == 0 else pack_host("10.0.0.1", number),
            store_host=HOST_V6 if number % 11 == 0 else pack_host("10.0.0.2", 10911),
        )
    writer.close()
    rows = decoded(Store(str(tmp_path)))
    assert without_body_crc(rows) == in_order(map(row_of_record, writer.records))
    assert all(row["body_crc"] == crc32(row["body"]) & 0x7FFFFFFF for row in rows)
    assert len(list((tmp_path / "commitlog").iterdir())) > 2


def test_only_the_columns_that_are_asked_for_are_made_in_their_order(tmp_path: Path) -> None:
    StoreWriter(tmp_path).append("t", 0, b"x")
    writer = StoreWriter(tmp_path)
    writer.append("t", 0, b"x", {"TAGS": "a"})
    writer.close()
    (records,) = Queue(Store(str(tmp_path)), "t", 0).records(0)
    batch = decode(records, ["tags", "queue_id"])
    assert batch.to_pylist() == [{"tags": "a", "queue_id": 0}]
    assert decode(records).schema == pa.schema(list(COLUMNS.items()))


def test_a_batch_has_8_mib_and_a_larger_message_one_of_its_own(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, log_file_bytes=64 << 20)
    for megabytes in (3, 3, 3, 10, 1, 1):
        writer.append("t", 0, bytes(megabytes << 20))
    writer.close()
    batches = list(Queue(Store(str(tmp_path)), "t", 0).records(0))
    assert [len(batch) for batch in batches] == [2, 1, 1, 2]
    assert all(batch.record_bytes.sum() <= BATCH_BYTES_MAX for batch in batches if len(batch) > 1)


def test_a_store_timestamp_far_away_has_the_last_day_there_is(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.append("t", 0, b"", store_timestamp=2**62)
    writer.append("t", 0, b"", store_timestamp=-(2**62))
    writer.close()
    assert [row["day"].isoformat() for row in decoded(Store(str(tmp_path)))] == [
        "9999-12-31",
        "0001-01-01",
    ]


texts = st.lists(
    st.sampled_from(
        [
            b"KEYS",
            b"TAGS",
            b"UNIQ_KEY",
            b"XKEYS",
            b"",
            b"\x01",
            b"\x02",
            b"a",
            b"\xff",
            "ü".encode(),
        ]
    ),
    max_size=12,
).map(b"".join)


@given(st.lists(texts, max_size=20))
def test_properties_are_found_as_the_protocol_finds_them(raw: list[bytes]) -> None:
    found = PropertyTexts(pa.array(raw, pa.binary()))
    for name in ("KEYS", "TAGS", "UNIQ_KEY"):
        assert found.column(name).to_pylist() == [parse(text).get(name) for text in raw]


def test_slices_may_have_gaps_and_nulls() -> None:
    data = np.frombuffer(b"..one.two...three", np.uint8)
    starts, lengths = np.array([2, 6, 6, 12]), np.array([3, 3, 0, 5])
    assert slices(data, starts, lengths).to_pylist() == [b"one", b"two", b"", b"three"]
    valid = np.array([False, True, False, True])
    assert slices(data, starts, lengths, valid).to_pylist() == [None, b"two", None, b"three"]
    assert slices(data, starts[:0], lengths[:0]).to_pylist() == []


def test_text_that_is_not_utf_8_is_readable_nevertheless() -> None:
    assert as_text(pa.array([b"ok", b"\xff!", None], pa.binary())).to_pylist() == ["ok", "�!", None]
