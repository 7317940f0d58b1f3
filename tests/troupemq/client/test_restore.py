"""An archive's messages come back into a topic once, through kills at any moment."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import compress

import pytest
from click.testing import CliRunner

from protocol.sysflag import COMPRESSED
from spark.archive_compact import compact
from spark.archive_files import Archive
from storage.errors import StoreError
from tests.spark.archive_writer import add_run
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter
from troupemq.cli.restore import restore as restore_command
from troupemq.client.admin import Admin
from troupemq.client.errors import ClientError, RouteNotFound
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.producer import Producer
from troupemq.client.pull_consumer import PullConsumer
from troupemq.restore import Restore, wanted_of
from troupemq.servers import Servers

MESSAGES, HOUR_MS = 12, 3_600_000
COMMIT = PullConsumer.commit


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
def namesrv(servers: Servers) -> str:
    address = f"127.0.0.1:{servers.ports['namesrv']}"
    with Admin(address) as admin:
        registered = False
        while not registered:  # the broker does that in its own time
            with suppress(RouteNotFound):
                admin.create_topic("Orders", 2)
                registered = True
    return address


class Killed(BaseException):
    """In the place of a kill: nothing below may catch it."""


def restore(
    namesrv: str, archive: str, wait: Callable[[float], object] = bool, **wanted: Any
) -> Restore:
    given = wanted_of("Orders", **wanted)
    return Restore(archive, given, "Orders", namesrv, rate=10_000, wait=wait)


def orders(namesrv: str) -> list[MessageView]:
    """In the order of the queues."""
    found: list[MessageView] = []
    with Admin(namesrv) as admin:
        ends = {queue: admin.offsets(queue)[1] for queue in admin.queues("Orders")}
        with PullConsumer("readers", namesrv, auto_commit=False) as consumer:
            consumer.assign(ends)
            for queue in ends:
                consumer.seek_to_begin(queue)
            while len(found) < sum(ends.values()):
                found += consumer.poll(5000)
    return sorted(found, key=lambda view: (view.queue.queue_id, view.queue_offset))


def numbers(namesrv: str) -> list[int]:
    return [int(view.body) for view in orders(namesrv)]


EVERY = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
"""Queue 5 goes to queue 1 of the two, each in its order."""


def test_messages_come_back_with_all_that_their_producers_gave_them(
    namesrv: str, archive: str
) -> None:
    run = restore(namesrv, archive)
    done = run.run()
    assert (done.sent, done.found, done.left_out_count) == (MESSAGES, 0, 1)
    assert done.left_out == ("message 6 in queue 0: the message body length is zero",)
    found = orders(namesrv)
    assert [int(view.body) for view in found] == EVERY
    for view in found:
        number = int(view.body)
        assert view.properties["KEYS"] == f"a{number} b"
        assert (view.tags, view.properties["own"], view.flag) == ("new", "x", number)
    again = restore(namesrv, archive).run()
    assert (again.sent, again.found) == (0, 0)


@pytest.mark.parametrize("where", ["before a send", "before a commit"])
def test_a_run_that_is_killed_goes_on_and_sends_nothing_twice(
    namesrv: str, archive: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kill_at in (1, 4, 2):
        count = 0

        def kill(*given: object, at: int = kill_at) -> None:
            nonlocal count
            count += 1
            if count > at:
                raise Killed

        with monkeypatch.context() as patch, pytest.raises(Killed):
            if where == "before a send":
                restore(namesrv, archive, kill).run()
            else:

                def slain(
                    self: PullConsumer, offsets: dict[MessageQueue, int], dies: Any = kill
                ) -> None:
                    dies()
                    COMMIT(self, offsets)

                patch.setattr(PullConsumer, "commit", slain)
                restore(namesrv, archive).run()
    done = restore(namesrv, archive).run()
    assert done.found == (1 if where == "before a commit" else 0)
    assert numbers(namesrv) == EVERY


def test_a_send_without_an_answer_is_looked_up_before_it_is_tried_again(
    namesrv: str, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = Producer.send, [True, False, True]

    def loses_answers(self: Producer, *given: object, **more: object) -> object:
        result = send(self, *given, **more)  # type: ignore[arg-type]
        if failures and failures.pop():
            raise ClientError("no answer")
        return result

    monkeypatch.setattr(Producer, "send", loses_answers)
    assert restore(namesrv, archive).run().sent == MESSAGES
    assert numbers(namesrv) == EVERY


def test_a_range_is_chosen_by_queue_offsets_and_times(namesrv: str, archive: str) -> None:
    assert restore(namesrv, archive, queue_id=5, first=1, end=3).run().sent == 2
    assert numbers(namesrv) == [3, 5]
    begin, end = (NOVEMBER_ROOT_MS + hours * HOUR_MS for hours in (70, 90))
    assert restore(namesrv, archive, from_ms=begin, until_ms=end).run().sent == 2
    assert numbers(namesrv) == [8, 3, 5, 7]


def test_a_compacted_archive_goes_on_where_the_runs_were(
    namesrv: str, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    Path(archive).rename(own)
    try:
        count = 0

        def kill(*given: object) -> None:
            nonlocal count
            count += 1
            if count > 7:
                raise Killed

        with pytest.raises(Killed):
            restore(namesrv, str(own), kill).run()
        compact(None, str(own))
        assert restore(namesrv, str(own)).run().sent == MESSAGES - 7
    finally:
        own.rename(archive)
    assert numbers(namesrv) == EVERY


def test_what_is_not_there_is_one_sentence(namesrv: str, archive: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no topic Bills in .*; there is Orders"):
        Restore(archive, wanted_of("Bills"), "Orders", namesrv, rate=1, wait=bool).run()
    with pytest.raises(StoreError, match=r"there is no queue 3 of Orders in .*; there is 0, 5"):
        restore(namesrv, archive, queue_id=3).run()
    with pytest.raises(StoreError, match="there is no archive at"):
        restore(namesrv, str(tmp_path)).run()
    with pytest.raises(RouteNotFound, match="there is no topic Bills: create it first"):
        Restore(archive, wanted_of("Orders"), "Bills", namesrv, rate=1, wait=bool).run()


def test_the_command_says_what_became_of_them(namesrv: str, archive: str) -> None:
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
    assert refused.output.rstrip().endswith("; there is Orders")
