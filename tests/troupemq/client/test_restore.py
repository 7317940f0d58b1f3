"""An archive's messages come back into a topic once, through kills at any moment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import compress

import pytest
from click.testing import CliRunner

from protocol.codes import COMPRESSED
from spark.archive.compact import compact
from spark.archive.files import Archive
from storage.errors import StoreError
from tests.spark.archive_writer import add_run
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter
from tests.troupemq.client.copies import (
    BEFORE_A_COMMIT,
    BEFORE_A_SEND,
    TOPIC,
    Killed,
    copies,
    kill_runs,
    killed_after,
    lose_answers,
)
from troupemq.cli.copying import restore as restore_command
from troupemq.client.errors import RouteNotFound
from troupemq.restore import Restore, wanted_of
from troupemq.testing import LocalBroker

MESSAGES, HOUR_MS = 12, 3_600_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twelve messages in the queues 0 and 5, one every ten hours; an empty one is the thirteenth.

    Half of them are in a run with the column names of the first format.
    """
    directory = tmp_path_factory.mktemp("archive")
    writer = StoreWriter(directory / "store")
    for number in range(MESSAGES):
        body = b"%d" % number
        writer.append(
            "Orders",
            5 * (number % 2),
            compress(body) if number % 3 == 0 else body,
            {"own": "x", "KEYS": f"a{number} b", "TAGS": "new", "UNIQ_KEY": f"{number:032X}"},
            store_timestamp=NOVEMBER_ROOT_MS + number * 10 * HOUR_MS,
            sys_flag=COMPRESSED * (number % 3 == 0),
            flag=number,
        )
    writer.append("Orders", 0, b"", store_timestamp=NOVEMBER_ROOT_MS + 200 * HOUR_MS)
    made = Archive(str(directory / "archive"))
    add_run(made, writer.close().root, writer.records[MESSAGES // 2].physical_offset, is_old=True)
    add_run(made, writer.root)
    return str(made.output)


@pytest.fixture
def namesrv(local_broker: LocalBroker) -> str:
    local_broker.admin.create_topic(TOPIC, 2)
    return local_broker.namesrv


def restore(
    namesrv: str, archive: str, wait: Callable[[float], object] = bool, **wanted: Any
) -> Restore:
    given = wanted_of("Orders", **wanted)
    return Restore(archive, given, "Orders", namesrv, rate=10_000, wait=wait)


def numbers(namesrv: str) -> list[int]:
    return [int(view.body) for view in copies(namesrv)]


EVERY = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
"""Queue 5 goes to queue 1 of the two, each in its order."""


@pytest.mark.heavy
def test_restored_messages_keep_every_property(namesrv: str, archive: str) -> None:
    run = restore(namesrv, archive)
    done = run.run()
    assert (done.sent, done.found, done.left_out_count) == (MESSAGES, 0, 1)
    assert done.left_out == ("message 6 in queue 0: the message body length is zero",)
    found = copies(namesrv)
    assert [int(view.body) for view in found] == EVERY
    for view in found:
        number = int(view.body)
        assert view.properties["KEYS"] == f"a{number} b"
        assert (view.tags, view.properties["own"], view.flag) == ("new", "x", number)
    again = restore(namesrv, archive).run()
    assert (again.sent, again.found) == (0, 0)


@pytest.mark.heavy
@pytest.mark.parametrize("where", [BEFORE_A_SEND, BEFORE_A_COMMIT])
def test_a_killed_run_continues_and_sends_nothing_twice(
    namesrv: str, archive: str, where: str
) -> None:
    kill_runs(lambda wait: restore(namesrv, archive, wait).run(), where)
    done = restore(namesrv, archive).run()
    assert done.found == (1 if where == BEFORE_A_COMMIT else 0)
    assert numbers(namesrv) == EVERY


@pytest.mark.heavy
def test_overlapping_ranges_send_each_message_once(namesrv: str, archive: str) -> None:
    assert restore(namesrv, archive, queue_id=5, first=1, end=4).run().sent == 3
    begin, end = (NOVEMBER_ROOT_MS + hours * HOUR_MS for hours in (40, 80))
    with pytest.raises(Killed):  # of 4, 6 and 5, 7, which are there already
        restore(namesrv, archive, killed_after(1), from_ms=begin, until_ms=end).run()
    done = restore(namesrv, archive).run()
    assert (done.sent, done.found) == (MESSAGES - 4, 4)
    assert sorted(numbers(namesrv)) == list(range(MESSAGES))


def test_an_unanswered_send_is_looked_up_before_a_retry(
    namesrv: str, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_answers(monkeypatch)
    assert restore(namesrv, archive).run().sent == MESSAGES
    assert numbers(namesrv) == EVERY


def test_a_range_is_chosen_by_queue_offsets_and_times(namesrv: str, archive: str) -> None:
    assert restore(namesrv, archive, queue_id=5, first=1, end=3).run().sent == 2
    assert numbers(namesrv) == [3, 5]
    begin, end = (NOVEMBER_ROOT_MS + hours * HOUR_MS for hours in (70, 90))
    assert restore(namesrv, archive, from_ms=begin, until_ms=end).run().sent == 2
    assert numbers(namesrv) == [8, 3, 5, 7]


@pytest.mark.heavy
def test_a_restore_continues_in_a_compacted_archive(
    namesrv: str, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    Path(archive).rename(own)
    try:
        with pytest.raises(Killed):
            restore(namesrv, str(own), killed_after(7)).run()
        compact(None, str(own))
        assert restore(namesrv, str(own)).run().sent == MESSAGES - 7
    finally:
        own.rename(archive)
    assert numbers(namesrv) == EVERY


def test_a_missing_archive_or_topic_is_a_one_sentence_error(
    namesrv: str, archive: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=r"topic Bills not found in .*: it has Orders"):
        Restore(archive, wanted_of("Bills"), "Orders", namesrv, rate=1, wait=bool).run()
    with pytest.raises(StoreError, match=r"queue 3 of Orders not found in .*: it has 0, 5"):
        restore(namesrv, archive, queue_id=3).run()
    with pytest.raises(StoreError, match="there is no archive at"):
        restore(namesrv, str(tmp_path)).run()
    with pytest.raises(RouteNotFound, match="topic Bills not found: create it first"):
        Restore(archive, wanted_of("Orders"), "Bills", namesrv, rate=1, wait=bool).run()


@pytest.mark.parametrize("name", ["offset", "time"])
def test_turned_range_restored_nothing_without_a_word(name: str, archive: str) -> None:
    ends = (f"--from-{name}", "9", f"--to-{name}", "8")
    result = CliRunner().invoke(restore_command, [archive, "Orders", *ends])
    said = f"troupemq: --to-{name} 8 is before --from-{name} 9: exchange them\n"
    assert (result.exit_code, result.stderr) == (1, said)


def test_the_command_reports_the_results(namesrv: str, archive: str) -> None:
    line = [archive, "Orders", "-n", namesrv, "--rate", "10000", "--json"]
    done = CliRunner().invoke(restore_command, [*line, "--to-time", "2026-11-20T15:00:00+00:00"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "sent": 2,
        "found": 0,
        "left_out": 0,
        "reasons": [],
    }
    refused = CliRunner().invoke(restore_command, [archive, "Bills", "-n", namesrv])
    assert refused.exit_code == 1
    assert refused.output.rstrip().endswith(": it has Orders")
