"""The files of a broadcasting consumer, as either client writes them."""

from collections import Counter
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from types import SimpleNamespace
from typing import Any, cast

import pytest

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.troupemq.client.hand_tasks import carry_out_here, run_here
from troupemq.client.connection.calls import Call, Flow, LookUpRoute, drive
from troupemq.client.connection.route import Route
from troupemq.client.consuming.consumer_offsets import QueueEnds
from troupemq.client.consuming.local_offsets import LocalOffsets
from troupemq.client.consuming.rebalance import Rebalancing
from troupemq.client.errors import ClientError, RouteNotFound
from troupemq.client.message import MessageQueue
from troupemq.client.settings import ConsumerSettings

QUEUES = [MessageQueue("T", "b", number) for number in range(3)]
JAVA = """{
\t"offsetTable":{{
\t\t\t"brokerName":"b",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:17,{
\t\t\t"brokerName":"b",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:4
\t}
}"""
"""File in the form of the Java client 4.9.7."""


class Ends:
    asked = 0

    def first_position(self, queue: MessageQueue, _since_ms: int | None = None) -> Flow[int]:
        yield from ()
        self.asked += 1
        return 100 + queue.queue_id


def offsets(folder: Path, ends: Ends | None = None) -> LocalOffsets:
    made = LocalOffsets(folder, "g", cast(QueueEnds, ends or Ends()))
    made.locate("10.0.0.1@DEFAULT")
    made.load()
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    path.parent.mkdir(parents=True)
    return path


def test_offsets_of_a_java_client_are_continued(tmp_path: Path, path: Path) -> None:
    path.write_text(JAVA)
    ends = Ends()
    found = offsets(tmp_path, ends)
    assert [run_here(found.start_of(queue)) for queue in QUEUES] == [4, 17, 102]
    assert ends.asked == 1


@pytest.mark.parametrize("text", ["", "{", None])
def test_an_invalid_file_falls_back_to_the_previous_one(
    tmp_path: Path, path: Path, text: str | None
) -> None:
    path.with_name("offsets.json.bak").write_text(JAVA)
    if text is not None:
        path.write_text(text)
    assert run_here(offsets(tmp_path).stored(QUEUES[1])) == 17


def test_two_broken_files_stop_the_start(tmp_path: Path, path: Path) -> None:
    path.write_text("{")
    path.with_name("offsets.json.bak").write_text("[")
    with pytest.raises(ClientError, match="cannot be understood"):
        offsets(tmp_path)


def test_offsets_and_the_previous_file_survive_a_restart(tmp_path: Path) -> None:
    first = offsets(tmp_path)
    run_here(first.commit(QUEUES[0], 5))
    run_here(first.commit_all({QUEUES[1]: 6}))
    run_here(first.commit_all({QUEUES[1]: 7}))
    again = offsets(tmp_path)
    assert [run_here(again.stored(queue)) for queue in QUEUES] == [5, 7, None]
    backup = first.path.with_name("offsets.json.bak").read_text()
    assert '"queueId":1' in backup and ":6" in backup
    assert sorted(each.name for each in first.path.parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
    ]


def test_the_file_has_the_java_clients_form(tmp_path: Path, path: Path) -> None:
    written = offsets(tmp_path)
    run_here(written.commit_all({QUEUES[1]: 17}))
    text = path.read_text()
    assert text.startswith('{\n\t"offsetTable":{{') and text.endswith("}:17\n\t}\n}")


def test_offsets_that_no_file_takes_are_not_counted_as_stored(tmp_path: Path) -> None:
    assert run_here(offsets(tmp_path).commit_last({QUEUES[0]: 1, QUEUES[1]: 2}, 1.0)) == 2
    refused = offsets(tmp_path / "taken")
    (tmp_path / "taken").write_text("a file where a folder should be")
    assert run_here(refused.commit_last({QUEUES[0]: 1}, 1.0)) == 0


def test_offsets_refused_by_a_full_disk_are_saved_when_it_has_space_again(tmp_path: Path) -> None:
    kept = offsets(tmp_path)
    assert run_here(kept.commit_all({QUEUES[0]: 5})) == 1
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (1, before[1]))
    try:
        assert [run_here(kept.commit_all({QUEUES[0]: 9})) for _ in range(2)] == [0, 0]
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    assert run_here(kept.commit_all({QUEUES[0]: 9})) == 1
    assert run_here(offsets(tmp_path).stored(QUEUES[0])) == 9


def test_queues_that_appear_later_are_begun_with_the_messages_since_the_first_round(
    tmp_path: Path,
) -> None:
    """With LAST_OFFSET, messages sent before such a queue was taken were skipped."""
    client: Any = SimpleNamespace(id="me", routes=SimpleNamespace(address=str, master=str))
    asked = Counter[tuple[str, int, str]]()
    routes = {"T": QUEUES[:2]}

    def carry_out(wanted: Any) -> object:
        if isinstance(wanted, LookUpRoute):
            if wanted.topic not in routes:
                raise RouteNotFound(wanted.topic)
            queues = tuple(routes[wanted.topic])
            return Route(queues, queues, {})
        if not isinstance(wanted, Call):
            return carry_out_here(wanted)
        fields = wanted.command.fields or {}
        code = RequestCode(wanted.command.code).name
        asked[fields["topic"], int(fields["queueId"]), code] += 1
        assert int(fields.get("timestamp", began_ms)) >= began_ms
        return RemotingCommand(0, {"offset": "7"})

    ends = QueueEnds(client)
    began_ms = ends.begin_ms + 1_800_000
    found = LocalOffsets(tmp_path, "g", ends)
    found.locate("me")
    rounds = Rebalancing(client, "g", found, None, ConsumerSettings(), lambda held: None)
    drive(rounds._run(("T", "N")), carry_out)
    routes |= {"T": QUEUES, "N": [MessageQueue("N", "b", 0)]}
    drive(rounds._run(("T", "N")), carry_out)
    ended, searched = "GET_MAX_OFFSET", "SEARCH_OFFSET_BY_TIMESTAMP"
    first = [("T", 0, ended), ("T", 1, ended)]
    assert asked == Counter([*first, ("T", 2, searched), ("N", 0, searched)])
