"""The archive job and the data source in one real Spark session for all tests of this file."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from protocol.tags import java_hash_code
from spark.archive.files import Archive
from spark.decoding.columns import MESSAGE_COLUMNS, sql_schema
from spark.jobs import load_job
from tests.spark.archive_writer import add_run
from tests.spark.jobs.test_duplicates import WANTED, as_tuples, with_repeats
from tests.spark.ran import (
    ALL_MESSAGES,
    FIRST_MESSAGES,
    QUARTER_DAY_MS,
    Ran,
    archived_rows,
    as_json,
    write_messages,
)
from tests.spark.rows import Row, in_order, message_rows, moment, row_of_record, rows_of_manifest
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter, patch
from tests.spark.test_accounts import OWN, ROWS, SECRET, guarded_servers
from tests.spark.writes import check_page, check_written, over_the_network
from tests.support import golden

pytestmark = pytest.mark.slow(seconds=2)  # each test of the one session

GOLDEN = ["clean", "ext", "v6"]
EVERY = {"includeSystemTopics": "true", "brokerName": "broker-a"}
OF_A_QUEUE = "topic = '123' and queueId = 0 and queueOffset >= 10 and queueOffset < 17"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run everything that needs Spark at once, as a session starts slower than all of it runs."""
    ran = Ran(tmp_path_factory.mktemp("spark"))
    ran.archive("first run", ran.first.root, "archive", range_bytes=60_000)
    ran.archive("same again", ran.first.root, "archive")
    ran.archive("second run", ran.all.root, "archive")
    ran.steps["read"] = {"do": "read", "path": str(ran.directory / "archive")}
    other = StoreWriter(ran.directory / "other")
    other.append("orders", 0, b"not the same")
    other.close()
    ran.archive("another store", other.root, "archive")
    end = ran.all.records[499].physical_offset
    ran.archive("chosen", ran.all.root, "chosen", topics=["%RETRY%group"], published_offset=end)
    add_run(Archive(str(ran.directory / "mixed")), ran.first.root, is_old=True)
    ran.archive("beside an old run", ran.all.root, "mixed")
    paths = {name: str(ran.directory / name) for name in ("mixed", "compacted")}
    ran.steps["copied"] = {"do": "copy", "from": paths["mixed"], "to": paths["compacted"]}
    ran.archive("compacted", ran.all.root, "compacted", compact=True)
    ran.steps["read compacted"] = {"do": "read", "path": paths["compacted"]}
    ran.steps["frame"] = {"do": "frame", "path": str(ran.directory / "compacted")}
    ran.steps["old frame"] = {"do": "frame", "path": str(ran.directory / "mixed")}
    ran.damage()
    ran.archive("damaged", ran.damaged.root, "damaged-archive")
    ran.steps["audit"] = {
        "do": "job",
        "job": "audit",
        "arguments": {"store": str(ran.damaged.root), "with_spark": True},
    }
    dead = ("%DLQ%billing", 0, {"UNIQ_KEY": "U4"})
    store = with_repeats(ran.directory / "repeats", dead, dead)
    repeats = {"store": str(store), "with_spark": True}
    for job in ("traffic", "duplicates"):
        ran.steps[job] = {"do": "job", "job": job, "arguments": repeats}
    ran.archive("nothing there", ran.directory / "nowhere", "nowhere")
    ran.rows("every row", options=EVERY)
    ran.rows("unasked", schema="topic string")
    small = {"maxBytesPerPartition": "40000", **EVERY}
    ran.rows("narrow", schema="queueOffset bigint, topic string", options=small)
    ran.rows("one queue", where=OF_A_QUEUE)
    ran.rows("one queue, filtered by Spark", where=OF_A_QUEUE, conf=[PUSHDOWN, "false"])
    ran.rows("no queue", where="topic = 'unheard of'")
    ran.rows("not exact", where="topic = 'orders' and (queueId = 1 or keys = 'key0')")
    ran.rows("a moment", where="storeTimestamp >= '2026-11-20 18:00:00' and tags = 'a'")
    plan_streams(ran)
    ran.rows("wrong option", options={"startingOffset": "earliest"})
    ran.rows("wrong column", schema="topic string, color string")
    gone = ["orders", 0, 0, 5000, 1]
    ran.rows("too far", options={"ranges": json.dumps([gone])})
    plan_golden(ran)
    with over_the_network(ran), guarded_servers(tmp_path_factory.mktemp("guarded")) as guarded:
        ran.steps["account"] = {
            "do": "account",
            "options": guarded.given(accessKey=OWN["accessKey"]),
            "denied": "denied",
            "checkpoint": str(ran.directory / "account checkpoint"),
        }
        ran.run(SECRET)
    return ran


def plan_golden(ran: Ran) -> None:
    """Plan steps over the recorded stores, if they are available."""
    try:
        for name in GOLDEN:
            store = golden.store(name, ran.directory / "golden")
            ran.archive(f"golden {name}", store, f"golden-{name}", system_topics=True)
            ran.rows(
                f"golden rows {name}",
                store=str(store),
                options=EVERY,
                schema=sql_schema(tuple(rows_of_manifest(golden.manifest(name))[0])),
            )
    except pytest.skip.Exception:
        ran.has_golden = False


def plan_streams(ran: Ran) -> None:
    """Plan a stream over a growing store that fails once and restarts from its checkpoint."""
    growing = ran.directory / "growing"
    step = {
        "do": "stream",
        "store": str(growing),
        "options": {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"},
        "checkpoint": str(ran.directory / "checkpoint"),
    }
    ran.steps["grow"] = {"do": "copy", "from": str(ran.first.root), "to": str(growing)}
    ran.steps["stream fails"] = {**step, "fail_at": 2}
    ran.grown.append("new", 0, b"")
    ran.grown.append("orders", 5, b"")
    ran.steps["grow more"] = {"do": "copy", "from": str(ran.grown.close().root), "to": str(growing)}
    ran.steps["stream goes on"] = step
    ran.steps["nothing new"] = step
    ran.steps["stream with an end"] = {
        **step,
        "options": {"endingOffsets": "latest"},
        "checkpoint": str(ran.directory / "other checkpoint"),
    }


def expected(writer: StoreWriter) -> list[Row]:
    rows = [row_of_record(record, java_hash_code("a")) for record in writer.records]
    return in_order(rows)


def user_rows(writer: StoreWriter) -> list[Row]:
    """Return the rows that an archive should hold."""
    rows = [row for row in expected(writer) if row["topic"] != "%RETRY%group"]
    return archived_rows(rows)


def test_every_stored_message_is_archived_once(ran: Ran) -> None:
    assert ran.archived("archive") == user_rows(ran.all)


def test_a_run_continues_at_the_end_of_the_last_one(ran: Ran) -> None:
    assert ran.archived("archive", run=1) == user_rows(ran.first)
    old = {(row["topic"], row["queueId"], row["queueOffset"]) for row in user_rows(ran.first)}
    new = ran.archived("archive", run=2)
    assert len(new) == (ALL_MESSAGES - FIRST_MESSAGES) * 3 // 4
    assert not old & {(row["topic"], row["queueId"], row["queueOffset"]) for row in new}


def test_a_run_continues_after_a_first_format_run(ran: Ran) -> None:
    assert len(ran.archived("mixed", run=2)) == (ALL_MESSAGES - FIRST_MESSAGES) * 3 // 4
    assert ran.archived("mixed") == user_rows(ran.all)


def test_files_compacted_in_tasks_equal_the_jobs_table(ran: Ran) -> None:
    report = ran.results["compacted"]
    assert report["rows"] == ALL_MESSAGES * 3 // 4
    assert report["files"] < report["files_before"]
    assert ran.archived("compacted", run=3) == user_rows(ran.all)


def test_without_new_messages_no_run_is_published(ran: Ran) -> None:
    report = ran.results["same again"]
    assert (report["output"], report["rows"]) == (None, 0)
    assert report["text"] == "Nothing new to archive."
    assert Archive(str(ran.directory / "archive")).runs() == [1, 2]


def test_a_report_has_rows_bytes_and_speed_of_each_topic(ran: Ran) -> None:
    report = ran.results["first run"]
    assert report["rows"] == FIRST_MESSAGES * 3 // 4
    assert [topic["topic"] for topic in report["topics"]] == ["%DLQ%group", "123", "orders"]
    for topic in report["topics"]:
        assert topic["rows"] == FIRST_MESSAGES // 4
        assert topic["log_bytes"] == sum(
            record.record_bytes for record in ran.first.records if record.topic == topic["topic"]
        )
        assert topic["bytes"] > 0
        assert topic["rows_per_second"] > 0
        assert topic["topic"] in report["text"]


def test_the_directory_itself_can_be_read_as_parquet(ran: Ran) -> None:
    read = ran.results["read"]
    assert read["count"] == ALL_MESSAGES * 3 // 4
    assert read["columns"][-3:] == ["run", "topic", "day"]


def test_a_compacted_archive_is_read_by_its_manifests(ran: Ran) -> None:
    assert ran.results["read compacted"]["count"] == 2 * ran.results["read"]["count"], "for an hour"
    rows = in_order(ran.results["frame"])
    assert {row.pop("run") for row in rows} == {3}
    wanted = [{**as_json(row), "day": row["day"]} for row in user_rows(ran.all)]
    assert rows == [{name: row[name] for name in rows[0]} for row in wanted]
    assert ran.results["old frame"]["error"].startswith("run 1 of ")


def test_another_store_is_distinguished_from_the_archived_one(ran: Ran) -> None:
    assert "this is another store, or it lost messages" in ran.results["another store"]["error"]


def test_topics_can_be_selected_and_the_run_ends_at_the_published_offset(ran: Ran) -> None:
    assert ran.results["chosen"]["rows"] == 499 // 4
    assert {row["topic"] for row in ran.archived("chosen")} == {"%RETRY%group"}


def test_a_missing_store_is_a_one_sentence_error_without_an_archive(ran: Ran) -> None:
    assert "is no store directory" in ran.results["nothing there"]["error"]
    assert not (ran.directory / "nowhere").exists()


def test_damaged_messages_are_omitted_counted_and_named(ran: Ran) -> None:
    report = ran.results["damaged"]
    lost = {(each.topic, each.queue_id, each.queue_offset) for each in ran.wrong.values()}
    assert {
        (each["topic"], each["queue_id"], each["queue_offset"])
        for each in report["damaged_messages"]
    } == lost
    assert report["damaged"] == 2
    assert report["rows"] == FIRST_MESSAGES * 3 // 4 - 2
    wanted = [
        row
        for row in user_rows(ran.damaged)
        if (row["topic"], row["queueId"], row["queueOffset"]) not in lost
    ]
    assert ran.archived("damaged-archive") == wanted
    manifest = Archive(str(ran.directory / "damaged-archive")).manifest(1)
    assert {each.why for each in manifest.damaged} == {
        "the body does not have its CRC",
        "the record is not its own",
    }
    assert "left out: message " in report["text"]


def test_an_audit_in_spark_tasks_names_the_damaged_messages(ran: Ran) -> None:
    report = ran.results["audit"]
    assert report["rows"] == FIRST_MESSAGES - 1
    assert {each["physical_offset"] for each in report["messages"]} == {
        each.physical_offset for each in ran.wrong.values()
    }


def test_jobs_give_equal_results_with_and_without_spark(ran: Ran) -> None:
    dead = ("uniqKey", "%DLQ%billing", "U4", 2, (0, 0), (0, 1))
    assert as_tuples(ran.results["duplicates"]) == [WANTED[0], dead, *WANTED[1:]]
    arguments = {"store": str(ran.directory / "repeats")}
    for name in ("traffic", "duplicates"):
        alone = load_job(name).main(None, arguments)
        assert ran.results[name] == json.loads(json.dumps(alone)), name


@pytest.mark.parametrize("output", ["archive", "damaged-archive", "mixed", "compacted"])
def test_an_archive_equals_the_log(ran: Ran, output: str) -> None:
    store = ran.damaged.root if output == "damaged-archive" else ran.all.root
    given = {"store": str(store), "output": str(ran.directory / output), "verify": True}
    assert not load_job("archive").needs_spark(given)
    report = load_job("archive").main(None, given)
    rows = len(ran.archived(output))
    assert (report["clean"], report["compared"], report["expired"]) == (True, rows, 0)
    assert report["damaged"] == (2 if output == "damaged-archive" else 0)


def test_differences_from_the_log_are_reported(ran: Ran, tmp_path: Path) -> None:
    store = write_messages(StoreWriter(tmp_path / "other"), FIRST_MESSAGES)
    other = store.records[401]  # of 123: another body, with a valid CRC
    start, size = other.physical_offset % 65_536 + 88, len(other.body)
    path = store.root / "commitlog" / f"{other.physical_offset // 65_536 * 65_536:020}"
    patch(path, start, bytes([7]) * size)
    patch(path, start - 80, (crc32(bytes([7]) * size) & 0x7FFFFFFF).to_bytes(4))
    given = {"store": str(store.root), "output": str(ran.directory / "archive"), "verify": True}
    report = load_job("archive").main(None, given)
    where = f"message {other.queue_offset} in queue {other.queue_id} of 123"
    assert report["differences"] == [f"{where}: bodyCrc differs", f"{where}: body differs"]
    assert report["expired"] == (ALL_MESSAGES - FIRST_MESSAGES) * 3 // 4  # in the second run


def test_the_staging_folder_is_empty_afterwards(ran: Ran) -> None:
    assert not (ran.directory / "archive" / "_staging").exists()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_data_frame_of_a_golden_store_has_every_column(ran: Ran, name: str) -> None:
    if not ran.has_golden:
        golden.golden_root()
    found = [
        {**row, "storedBody": sha256(bytes.fromhex(row["storedBody"])).hexdigest()}
        for row in in_order(ran.results[f"golden rows {name}"])
    ]
    assert found == [as_json(row) for row in rows_of_manifest(golden.manifest(name))]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_store_is_archived_with_every_column(ran: Ran, name: str) -> None:
    if not ran.has_golden:
        golden.golden_root()
    wanted = archived_rows(rows_of_manifest(golden.manifest(name)))
    archived = ran.archived(f"golden-{name}")
    assert [{name: row[name] for name in row if name != "body"} for row in archived] == wanted


def test_the_data_source_returns_every_column_of_every_message(ran: Ran) -> None:
    rows = in_order(ran.results["every row"])
    assert list(rows[0]) == list(MESSAGE_COLUMNS)
    assert rows == [as_json(row) for row in message_rows(expected(ran.all))]


def test_retries_and_dead_letters_are_read_only_on_request(ran: Ran) -> None:
    assert {row["topic"] for row in ran.results["unasked"]} == {"orders", "123"}
    assert len(ran.results["unasked"]) == ALL_MESSAGES // 2


def test_a_narrow_schema_reads_only_these_columns_of_small_ranges(ran: Ran) -> None:
    rows = ran.results["narrow"]
    assert len(rows) == ALL_MESSAGES
    assert set(rows[0]) == {"queueOffset", "topic"}


@pytest.mark.parametrize("step", ["one queue", "one queue, filtered by Spark"])
def test_filters_select_queues_and_ranges(ran: Ran, step: str) -> None:
    rows: list[Mapping[str, Any]] = ran.results[step]
    assert sorted(row["queueOffset"] for row in rows) == list(range(10, 17))
    assert {(row["topic"], row["queueId"]) for row in rows} == {("123", 0)}
    assert ran.results["no queue"] == []


def test_other_filters_are_left_to_spark(ran: Ran) -> None:
    wanted = [
        row
        for row in expected(ran.all)
        if row["topic"] == "orders" and (row["queueId"] == 1 or row["keys"] == "key0")
    ]
    assert len(ran.results["not exact"]) == len(wanted) > 1
    since = moment(NOVEMBER_ROOT_MS + 3 * QUARTER_DAY_MS)
    late = [row for row in expected(ran.all) if row["storeTimestamp"] >= since]
    late = [row for row in late if row["topic"] in ("orders", "123")]
    assert len(ran.results["a moment"]) == len(late) > 1


def test_a_failed_stream_continues_without_gap_or_duplicate(ran: Ran) -> None:
    failed, went_on = ran.results["stream fails"], ran.results["stream goes on"]
    assert [number for number, _ in failed["batches"]] == [0, 1, 2], failed["error"]
    assert failed["error"].startswith("StreamingQueryException")
    assert went_on["error"] is None
    assert [number for number, _ in went_on["batches"]] == [2, 3, 4, 5]
    assert sorted(failed["batches"][2][1]) == sorted(went_on["batches"][0][1])
    assert all(len(rows) <= 100 for _, rows in failed["batches"] + went_on["batches"])
    read = [row for _, rows in failed["batches"][:2] + went_on["batches"] for row in rows]
    wanted = [
        [record.topic, record.queue_id, record.queue_offset]
        for record in ran.grown.records
        if record.topic[0] != "%"
    ]
    assert sorted(read) == sorted(wanted)
    assert ran.results["nothing new"]["batches"] == []


def test_a_batch_and_a_stream_are_read_over_the_network(ran: Ran) -> None:
    rows = in_order(ran.results["over the network"])
    wanted = [row for row in expected(ran.all) if row["topic"] in ("orders", "123")]
    batch = [row for row in wanted if row["queueId"] == 1 and row["queueOffset"] < 25]
    assert [row["body"] for row in rows] == [row["body"].hex() for row in batch]
    assert {row["brokerName"] for row in rows} == {"broker-a"}
    stream = ran.results["stream over the network"]
    assert stream["error"] is None
    assert [len(rows) for _, rows in stream["batches"]] == [60, 40]
    read = sorted(row for _, rows in stream["batches"] for row in rows)
    names = [[row["topic"], row["queueId"], row["queueOffset"]] for row in wanted]
    assert read == sorted(name for name in names if name[2] < 25)
    assert stream["lags"][-1]["orders"] == {"broker-a": {"0": 0, "1": 0}}


def test_written_messages_are_stored_once(ran: Ran) -> None:
    """A versioned batch is written twice, and the last batch of a stream is repeated."""
    check_written(ran)


def test_the_programs_of_the_page_do_what_it_describes(ran: Ran) -> None:
    check_page(ran)


def test_a_streams_progress_reports_its_lag(ran: Ran) -> None:
    again, *lags = ran.results["stream goes on"]["lags"]
    rows = [len(rows) for _, rows in ran.results["stream goes on"]["batches"]]
    assert again == {}, "Spark asks for no end when it reads a batch again"
    found = [sum(count for queues in lag.values() for count in queues.values()) for lag in lags]
    assert found[: len(rows) - 1] == [sum(rows[done:]) for done in range(2, len(rows) + 1)]


def test_unsupported_reads_fail_with_one_sentence(ran: Ran) -> None:
    assert ran.results["wrong option"]["error"] == (
        "troupemq has no option startingoffset: did you mean startingOffsets?"
    )
    assert ran.results["stream with an end"]["error"].startswith("endingOffsets is for reads with")
    assert ran.results["wrong column"]["error"].startswith("a message has no column color")
    assert ran.results["too far"]["error"].startswith("message 125 in queue 0 of orders")


def test_a_session_shows_the_secret_in_no_plan_log_event_or_checkpoint(ran: Ran) -> None:
    assert ran.results["account"] == len(ROWS)
    said = (ran.directory / "log").read_text()
    assert " INFO " in said and "Physical Plan" in said and "failed as it should" in said
    kept = [path for path in ran.directory.rglob("*") if path.is_file()]
    events = [path for path in kept if "events" in path.parts]
    assert any(b"Physical Plan" in path.read_bytes() for path in events)
    assert any("account checkpoint" in path.parts for path in kept)
    assert [str(path) for path in kept if SECRET.encode() in path.read_bytes()] == []
