"""Records become columns: golden stores and stores written here, compared column by column."""

import tracemalloc
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from resource import getpagesize
from typing import Any
from zlib import compress as zlib_compress

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.host import pack_host
from protocol.properties import parse
from spark.decoding import decode as decode_module
from spark.decoding.columns import COLUMNS
from spark.decoding.decode import batches, decode, plain_body
from spark.decoding.log_walk import walk
from spark.decoding.properties import PropertyTexts, as_text, slices
from spark.decoding.records import BATCH_BYTES_MAX, Queue
from spark.decoding.store_files import Store
from spark.source.plan import Selection, plan
from tests.spark.rows import Row, in_order, row_of_record, rows_of_manifest, with_hashed_bodies
from tests.spark.store_writer import HOST_V6, NOVEMBER_ROOT_MS, StoreWriter, patch
from tests.support import golden
from tests.support.by_hand import BY_HAND

DAY_MS = 86_400_000
ALL = tuple(COLUMNS)


def decoded(store: Store, columns: Sequence[str] = ALL) -> list[Row]:
    """Every message of a store, found by its queues."""
    rows: list[Row] = []
    for queue in plan(store, Selection()):
        for part in queue.ranges:
            for records in Queue(store, part.topic, part.queue_id).records(part.first, part.end):
                for batch in batches(records, columns):
                    rows += batch.to_pylist()
    return in_order(rows) if columns is ALL else rows


def decoded_by_file(store: Store) -> list[Row]:
    """Every message of a store, found by walking its log; in its order."""
    rows: list[Row] = []
    for index in range(len(store.log.firsts)):
        for records in walk(store.log.file(index)):
            for batch in batches(records, ALL):
                rows += batch.to_pylist()
    return rows


@pytest.mark.heavy
@pytest.mark.parametrize(
    "name", ["clean", "slave", "ext", "v6", "crashed", "crashed-recovered", BY_HAND]
)
def test_every_message_of_a_golden_store_is_decoded(name: str, tmp_path: Path) -> None:
    store = Store(str(golden.store(name, tmp_path)))
    rows = with_hashed_bodies(decoded(store))
    assert rows == rows_of_manifest(golden.manifest(name))


@pytest.mark.parametrize("name", ["clean", "ext", "v6"])
def test_the_official_client_reads_the_same_bodies_and_properties(
    name: str, tmp_path: Path
) -> None:
    rows = {row["msgId"]: row for row in decoded(Store(str(golden.store(name, tmp_path))))}
    messages = golden.manifest(name)["officialClient"]["messages"]
    assert messages
    for message in messages:
        row = rows[message["msgId"]]
        assert sha256(row["body"]).hexdigest() == message["bodySha256"]
        assert dict(row["properties"]) == message["properties"]
        for column in ("topic", "queueId", "queueOffset", "commitLogOffset", "keys", "tags"):
            assert row[column] == message[column]


@pytest.mark.parametrize("name", ["clean", "v6"])
def test_a_scan_of_the_log_files_finds_all_messages_of_a_golden_store(
    name: str, tmp_path: Path
) -> None:
    store = Store(str(golden.store(name, tmp_path)))
    by_file = decoded_by_file(store)
    recorded = golden.manifest(name)["rawRecords"]
    assert [row["commitLogOffset"] for row in by_file] == [
        record["commitLogOffset"] for record in recorded
    ]
    found = {row["commitLogOffset"]: row for row in by_file}
    for row in decoded(store):
        assert {**found[row["commitLogOffset"]], "tagsCode": row["tagsCode"]} == row


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
    assert rows == in_order(map(row_of_record, writer.records))
    assert decoded_by_file(Store(str(tmp_path))) == list(map(row_of_record, writer.records))
    assert len(list((tmp_path / "commitlog").iterdir())) > 2


hosts = st.sampled_from([HOST_V6, pack_host("10.0.0.1", 80), pack_host("255.255.255.255", 65535)])
numbers_32 = st.integers(-(2**31), 2**31 - 1)
times = st.integers(-62_135_596_800_000, 253_402_300_799_999)
pairs = st.lists(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "\x01", "\x02", "ü", "", "x" * 300]),
    max_size=15,
)
bodies = st.one_of(
    st.tuples(st.just(0), st.binary(max_size=40)),
    st.binary(max_size=40).map(lambda body: (0x301, zlib_compress(body))),
    st.binary(max_size=40).map(lambda body: (0x1, zlib_compress(body))),
)


@pytest.mark.heavy
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(bodies, pairs, hosts, hosts, numbers_32, times, st.integers(0, 2**62)),
        min_size=1,
        max_size=6,
    )
)
def test_unusual_records_are_decoded_like_single_ones(
    tmp_path_factory: pytest.TempPathFactory, odd: list[tuple[Any, ...]]
) -> None:
    writer = StoreWriter(tmp_path_factory.mktemp("odd"), queue_file_bytes=200)
    for (sys_flag, body), texts, born_host, store_host, number, time, large in odd:
        writer.append(
            "t",
            0,
            body,
            "".join(texts).encode(),
            sys_flag=sys_flag | number & 0x4E,
            store_timestamp=time,
            born_host=born_host,
            store_host=store_host,
            flag=number,
            reconsume_times=-number - 1,
            born_timestamp=time // 2,
            prepared_transaction_offset=large,
        )
    store = Store(str(writer.close().root))
    assert decoded(store) == list(map(row_of_record, writer.records))


def test_only_requested_columns_are_decoded_in_their_order(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    writer.append("t", 0, b"x", {"TAGS": "a"})
    writer.close()
    (records,) = Queue(Store(str(tmp_path)), "t", 0).records(0)
    assert decode(records, ["tags", "queueId"]).to_pylist() == [{"tags": "a", "queueId": 0}]
    assert decode(records, ALL).schema == pa.schema(list(COLUMNS.items()))
    assert decode(records, ["brokerName"], "b").to_pylist() == [{"brokerName": "b"}]


def test_a_column_reads_only_the_bytes_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StoreWriter(tmp_path)
    writer.append("t", 0, b"not zlib at all", {"TAGS": "a"}, sys_flag=0x301)
    writer.close()
    (records,) = Queue(Store(str(tmp_path)), "t", 0).records(0)
    for name in ("plain_body", "PropertyTexts", "crc32", "slices"):
        monkeypatch.delattr(decode_module, name)
    narrow = ["topic", "queueId", "queueOffset", "storeTimestamp", "msgId", "bornHost"]
    (batch,) = batches(records, narrow)
    assert batch.num_rows == 1


def test_a_changed_body_has_a_wrong_crc_and_an_undecodable_one_is_null(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    for body in (b"whole", zlib_compress(b"whole"), b"", b"whole"):
        writer.append("t", 0, body, sys_flag=0x301 if body[:1] == b"x" else 0)
    writer.close()
    for record in writer.records[:2]:
        patch(tmp_path / "commitlog" / f"{0:020}", record.physical_offset + 88, b"#")
    rows = decoded(Store(str(tmp_path)), ["body", "bodyCrcOk", "storedBody"])
    assert [(row["body"], row["bodyCrcOk"]) for row in rows] == [
        (b"#hole", False),
        (None, False),
        (b"", True),
        (b"whole", True),
    ]
    assert rows[1]["storedBody"][1:] == zlib_compress(b"whole")[1:]


@pytest.mark.parametrize(
    ("sys_flag", "compress"),
    [
        (0x001, zlib_compress),
        (0x301, zlib_compress),
        (0x101, lambda body: pa.compress(body, codec="lz4", asbytes=True)),
        (0x201, lambda body: pa.compress(body, codec="zstd", asbytes=True)),
    ],
    ids=["old zlib", "zlib", "lz4", "zstd"],
)
def test_a_compressed_body_is_complete_or_null(
    sys_flag: int, compress: Callable[[bytes], bytes]
) -> None:
    body = bytes(range(256)) * 8
    stored = compress(body)
    assert plain_body(stored, sys_flag) == body
    assert plain_body(stored, sys_flag, len(body)) == body
    assert plain_body(stored, sys_flag, len(body) - 1) is None
    for broken in (b"", stored[:-1], stored[: len(stored) // 2], b"#" + stored[1:]):
        assert plain_body(broken, sys_flag) is None
    assert plain_body(stored, 0x701) is None
    assert plain_body(stored, sys_flag & ~1) == stored


def test_a_small_invalid_body_takes_little_memory() -> None:
    """The body has 134 bytes: the reader allocated as much memory as a body may have."""
    tracemalloc.start()
    try:
        assert plain_body(b"no lz4 frame", 0x101) is None
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_damaged_zstd_bodies_leave_no_memory_behind() -> None:
    """Each of them kept a MiB of addresses, and 8 KiB of memory, for the rest of the process."""

    def address_space_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * getpagesize()

    assert plain_body(b"no zstd frame", 0x201) is None
    before = address_space_bytes()
    for _ in range(200):
        assert plain_body(b"no zstd frame", 0x201) is None
    assert address_space_bytes() - before < 100 << 20


@pytest.mark.heavy
def test_a_batch_ends_at_8_mib_of_decompressed_bodies(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, log_file_bytes=1 << 20)
    sizes = [3, 3, 0, 3, 10, 1, 1]
    for megabytes in sizes:
        writer.append("t", 0, zlib_compress(bytes(megabytes << 20)), sys_flag=0x301)
    writer.append("t", 0, b"last")
    writer.close()
    (records,) = Queue(Store(str(tmp_path)), "t", 0).records(0)
    made = list(batches(records, ["queueOffset", "body"]))
    assert [batch.num_rows for batch in made] == [3, 1, 1, 3]
    assert [len(row["body"]) >> 20 for batch in made for row in batch.to_pylist()] == [*sizes, 0]
    assert [row["queueOffset"] for batch in made for row in batch.to_pylist()] == list(range(8))


def test_a_batch_has_at_most_8_mib_or_one_larger_message(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, log_file_bytes=64 << 20)
    for megabytes in (3, 3, 3, 10, 1, 1):
        writer.append("t", 0, bytes(megabytes << 20))
    writer.close()
    batches = list(Queue(Store(str(tmp_path)), "t", 0).records(0))
    assert [len(batch) for batch in batches] == [2, 1, 1, 2]
    assert all(batch.record_bytes.sum() <= BATCH_BYTES_MAX for batch in batches if len(batch) > 1)


def test_a_store_timestamp_out_of_range_has_the_last_possible_day(tmp_path: Path) -> None:
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


@pytest.mark.heavy
@given(st.lists(texts, max_size=20))
def test_single_properties_are_found_as_by_the_protocol(raw: list[bytes]) -> None:
    found = PropertyTexts(pa.array(raw, pa.binary()))
    for name in ("KEYS", "TAGS", "UNIQ_KEY"):
        assert found.column(name).to_pylist() == [parse(text).get(name) for text in raw]


@pytest.mark.heavy
@given(st.lists(texts, max_size=20))
def test_properties_are_decoded_as_by_the_protocol(raw: list[bytes]) -> None:
    maps = PropertyTexts(pa.array(raw, pa.binary())).maps().to_pylist()
    assert maps == [list(parse(text).items()) for text in raw]


def test_many_property_names_are_distinguished_from_a_duplicate() -> None:
    many = b"\x02".join(b"name%d\x01%d" % (number, number) for number in range(200))
    for raw in ([many, b"a\x01b"], [many + b"\x02name7\x01last", many]):
        maps = PropertyTexts(pa.array(raw, pa.binary())).maps().to_pylist()
        assert maps == [list(parse(text).items()) for text in raw]


def test_slices_may_have_gaps_and_nulls() -> None:
    data = np.frombuffer(b"..one.two...three", np.uint8)
    starts, lengths = np.array([2, 6, 6, 12]), np.array([3, 3, 0, 5])
    assert slices(data, starts, lengths).to_pylist() == [b"one", b"two", b"", b"three"]
    valid = np.array([False, True, False, True])
    assert slices(data, starts, lengths, valid).to_pylist() == [None, b"two", None, b"three"]
    assert slices(data, starts[:0], lengths[:0]).to_pylist() == []


def test_text_that_is_not_utf_8_is_readable() -> None:
    assert as_text(pa.array([b"ok", b"\xff!", None], pa.binary())).to_pylist() == ["ok", "�!", None]
