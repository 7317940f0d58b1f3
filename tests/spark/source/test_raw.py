"""Bulk reads over the network: the rows of the store reader, losses and failures."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.pulling import raw_read as raw_read_module
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.tags import java_hash_code
from remoting.sync_connection import SyncConnection
from spark.decoding.columns import COLUMNS
from spark.decoding.store_files import Store
from spark.source import cluster
from spark.source import raw as raw_module
from spark.source.options import parse_options
from spark.source.plan import QueueRange
from spark.source.reading import range_reader
from spark.source.row_filter import Expression, RowFilter
from spark.source.tasks import NetworkReader
from storage.config import StoreConfig
from storage.errors import StoreError
from tests.spark.store_writer import NOVEMBER_ROOT_MS, UNIT, StoreWriter, patch
from tests.support import golden
from tests.support.by_hand import BY_HAND
from tests.support.golden import REPOSITORY
from tests.support.sockets import HOST, serving_broker

ALL = tuple(COLUMNS)
LOG_FILE_BYTES = 64 << 10
QUEUE_FILE_BYTES = 2000


def config(root: Path) -> StoreConfig:
    """Small files: a queue of a hundred messages has several, and the log, too."""
    return StoreConfig(
        root=str(root),
        commit_log_file_bytes=LOG_FILE_BYTES,
        consume_queue_file_bytes=QUEUE_FILE_BYTES,
        max_hash_slots=2_000,
        max_index_entries=8_000,
    )


@contextmanager
def serving(root: Path, *topics: str) -> Iterator[str]:
    """The address of a broker over a store that has these topics."""
    with serving_broker(root, store=config(root)) as running:
        address = f"{HOST}:{running.ports.main}"
        with SyncConnection(address) as line:
            for topic in topics:
                header = CreateTopicHeader(topic, "TBW102", 4, 4, 6, "SINGLE_TAG")
                line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        yield address


def ranges_of(root: Path) -> list[QueueRange]:
    store = Store(str(root))
    found = []
    for topic, number in store.queue_names():
        files = store.queue(topic, number)
        found.append(QueueRange(topic, number, files.min_offset, files.max_offset()))
    return [part for part in found if part.first < part.end]


def over_network(
    address: str,
    ranges: Sequence[QueueRange],
    columns: tuple[str, ...] = ALL,
    *,
    fails: bool = True,
    wanted: RowFilter | None = None,
) -> list[Any]:
    named = [replace(part, broker="b") for part in ranges]
    reader = NetworkReader({"b": address}, ("b",), columns, wanted or RowFilter(), fails)
    return [row for batch in reader.read(named) for row in batch.to_pylist()]


def from_files(
    root: Path,
    ranges: Sequence[QueueRange],
    columns: tuple[str, ...] = ALL,
    *,
    fails: bool = True,
    **given: str,
) -> list[Any]:
    told = {"store": str(root), "brokerName": "b", "failOnDataLoss": str(fails), **given}
    reader = range_reader(parse_options(told), columns)
    return [row for batch in reader.read(ranges) for row in batch.to_pylist()]


def write(root: Path) -> StoreWriter:
    """A queue that is most of the log for a while, one with large messages, some with few."""
    writer = StoreWriter(root, log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=QUEUE_FILE_BYTES)
    for number in range(900):
        topic, queue_id, size = "dense", 0, 40
        if number % 10 == 3 and number > 300:
            topic, queue_id, size = "large", 1, 3000 + number
        elif number % 7 == 2:
            topic, queue_id, size = "few", number % 4, 10
        tag = "abc"[number % 3]
        writer.append(
            topic,
            queue_id,
            b"%d " % number + b"x" * size,
            {"TAGS": tag, "UNIQ_KEY": f"{number:032X}"},
            store_timestamp=NOVEMBER_ROOT_MS + number,
            tags_code=java_hash_code(tag),
        )
    return writer.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    root = tmp_path_factory.mktemp("raw")
    write(root)
    with serving(root, "dense", "large", "few") as address:
        yield root, address


@pytest.mark.heavy
@pytest.mark.parametrize("answer_bytes", [1 << 20, 20_000, 1])
def test_rows_equal_those_of_the_store_reader(
    served: tuple[Path, str], answer_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_module, "ANSWER_BYTES", answer_bytes)
    root, address = served
    ranges = ranges_of(root)
    if answer_bytes == 1:  # one message an answer: of each queue a part
        ranges = [replace(each, end=min(each.end, each.first + 60)) for each in ranges]
    assert len(Store(str(root)).log.firsts) > 3
    found = over_network(address, ranges)
    assert found == from_files(root, ranges)
    assert len(found) == (
        900 if answer_bytes > 1 else sum(each.end - each.first for each in ranges)
    )
    assert {row["tagsCode"] for row in found} == {97, 98, 99}


def test_rows_are_equal_without_gap_bytes(
    served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account without permission for every topic is answered so."""
    monkeypatch.setattr(raw_read_module, "GAP_BYTES", 0)
    root, address = served
    ranges = [replace(each, end=min(each.end, each.first + 200)) for each in ranges_of(root)]
    assert over_network(address, ranges) == from_files(root, ranges)


def test_a_middle_range_has_only_its_messages(served: tuple[Path, str]) -> None:
    root, address = served
    ranges = [QueueRange("dense", 0, 50, 333), QueueRange("few", 1, 7, 8)]
    found = over_network(address, ranges)
    assert found == from_files(root, ranges)
    assert len(found) == 284


def test_tag_codes_of_the_units_select_rows(served: tuple[Path, str]) -> None:
    root, address = served
    ranges = ranges_of(root)
    wanted = RowFilter(Expression.parse("a || c"))
    found = over_network(address, ranges, ("tags", "queueOffset"), wanted=wanted)
    assert found == from_files(root, ranges, ("tags", "queueOffset"), subExpression="a || c")
    assert {row["tags"] for row in found} == {"a", "c"}


@pytest.mark.parametrize("name", [BY_HAND, "clean", "crashed-recovered", "v6", "ext"])
def test_a_golden_store_has_the_same_rows_from_a_broker(name: str, tmp_path: Path) -> None:
    root = golden.store(name, tmp_path)
    sizes = StoreConfig(
        root=str(root),
        commit_log_file_bytes=65_536,
        consume_queue_file_bytes=6_000,
        max_hash_slots=64,
        max_index_entries=200,
        enable_consume_queue_ext=name == "ext",
        consume_queue_ext_file_bytes=8192,
    )
    with serving_broker(root, store=sizes) as running:
        address = f"{HOST}:{running.ports.main}"
        with SyncConnection(address) as line:
            answer = line.ask(RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG, {}))
        known = bytes(answer.body or b"").decode()
        ranges = [part for part in ranges_of(root) if f'"{part.topic}"' in known]
        found = over_network(address, ranges, fails=False)
        assert found == from_files(root, ranges, fails=False)
        assert found


def damage(root: Path, writer: StoreWriter) -> list[int]:
    """Some records and units of the queue `t`, each in another way; which ones."""
    log = root / "commitlog" / f"{0:020}"
    at = [record.physical_offset for record in writer.records]
    patch(log, at[7] + 4, b"####")  # magic
    patch(log, at[30] + 12, b"#")  # queue id
    patch(log, at[31] + 84, b"#")  # length of the body
    patch(log, at[60] + 90, b"#")  # the body: its CRC tells
    units = root / "consumequeue/t/0" / f"{0:020}"
    patch(units, 40 * UNIT.size, UNIT.pack(10**15, 100, 0))
    patch(units, 41 * UNIT.size, UNIT.pack(at[7], 100, 0))
    patch(units, 42 * UNIT.size, bytes(UNIT.size))
    patch(units, 43 * UNIT.size, UNIT.pack(at[90], 100, 0))
    return [7, 30, 31, 40, 41, 42, 43]


@pytest.mark.parametrize("gap", [0, 3000])
def test_damage_is_a_loss_of_exactly_the_damaged_messages(tmp_path: Path, gap: int) -> None:
    """Done under the running broker, or its start would have mended what can be."""
    writer = StoreWriter(tmp_path, log_file_bytes=1 << 20, queue_file_bytes=QUEUE_FILE_BYTES)
    for number in range(100):
        writer.keep_records = True
        writer.append("t", 0, b"%d" % number + b"x" * 50)
        writer.keep_records = False
        if gap:
            writer.append("other", 0, b"-" * gap)
    writer.close()
    sizes = replace(config(tmp_path), commit_log_file_bytes=1 << 20)
    part = [QueueRange("t", 0, 0, 100)]
    with serving_broker(tmp_path, store=sizes) as running:
        address = f"{HOST}:{running.ports.main}"
        with SyncConnection(address) as line:
            header = CreateTopicHeader("t", "TBW102", 4, 4, 6, "SINGLE_TAG")
            line.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode()))
        assert over_network(address, part) == from_files(tmp_path, part)
        damaged = damage(tmp_path, writer)
        found = over_network(address, part, fails=False)
        assert found == from_files(tmp_path, part, fails=False)
        assert {row["queueOffset"] for row in found} == set(range(100)) - {*damaged}
        assert [row["queueOffset"] for row in found if not row["bodyCrcOk"]] == [60]
        with pytest.raises(StoreError, match="message 7 in queue 0 of t at b is damaged or gone"):
            over_network(address, part)


@pytest.mark.slow
def test_a_task_needs_no_package_but_pyarrow_and_numpy(served: tuple[Path, str]) -> None:
    """In a process that can import none of ours: it plans, reads in bulk, and pulls."""
    root, address = served
    (part, *_) = ranges_of(root)
    program = (
        "import sys\n"
        "for name in ('orjson', 'structlog', 'pykka', 'crcmod', 'lark', 'click'):\n"
        "    sys.modules[name] = None\n"
        f"from {NetworkReader.__module__} import NetworkReader\n"
        f"from {QueueRange.__module__} import QueueRange\n"
        f"from {RowFilter.__module__} import RowFilter\n"
        f"import {cluster.__name__}\n"
        f"part = QueueRange({part.topic!r}, {part.queue_id}, 0, {part.end}, 0, 'b')\n"
        "for bulk in (('b',), ()):\n"
        f"    reader = NetworkReader({{'b': {address!r}}}, bulk, ('body',), RowFilter(), True)\n"
        "    print(sum(batch.num_rows for batch in reader.read([part])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split() == [str(part.end)] * 2
