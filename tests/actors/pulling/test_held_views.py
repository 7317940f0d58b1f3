"""Answers that are parts of a log file, deleted before their peer takes them: on real files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.network import connection as connection_module
from actors.network.connections import COPY_OUT_AGAIN_MS
from actors.retention import clean_files
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.message import decode_records
from storage.files.disk import RealDisk
from tests.support.brokers import SimulatedBroker, pull_command, store_in
from tests.support.runtimes import end_views
from tests.support.sockets import PairedLine, connection_of, paired_lines

HOUR_MS = 3_600_000
LATER_MS = 30_000
UNSENT_BYTES = 3 << 20
"""More than one try to send takes, which copies what is left of it anyway."""


class Held:
    """A broker on real files with old messages, a peer that takes nothing, and one that asks."""

    def __init__(self, root: Path, made: SimulatedBroker, slow: PairedLine) -> None:
        self.root, self.made, self.slow = root, made, slow
        made.make_topic()
        self.bodies = [bytes((number,)) * 6000 for number in range(60)]
        for body in self.bodies:
            assert made.send(body).code == ResponseCode.SUCCESS
        made.system.advance(3000)  # flushed, and the checkpoint says so
        self.connection = connection_of(made.system, slow)
        self.pulls = 0
        while self.connection.unsent_bytes < UNSENT_BYTES:
            slow.send(pull_command())
            self.pulls += 1

    @property
    def log_files(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())

    def start_deleting(self) -> None:
        """All files but the last are old, and are to go."""
        old_s = (self.made.system.clock.now_ms() - 80 * HOUR_MS) / 1000
        for file in self.log_files:
            os.utime(file, (old_s, old_s))
        command = RemotingCommand(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert self.made.ask(command).code == ResponseCode.SUCCESS

    def delete(self) -> None:
        """All files but the last are old, and go."""
        self.start_deleting()
        self.made.system.advance(LATER_MS)

    def deleted_maps(self) -> list[str]:
        """Log files that are gone and still mapped."""
        end_views()
        lines = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in lines if str(self.root) in line and "(deleted)" in line]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(clean_files, "FIRST_ROUND_MS", 5000)
    store = store_in(tmp_path / "store", flush_queue_thorough_interval_ms=1000)
    made = SimulatedBroker(1, RealDisk(), store_config=store)
    with paired_lines(made, lines=1) as (slow,):
        yield Held(tmp_path / "store", made, slow)


def test_unsent_answers_stay_intact_and_release_deleted_files(held: Held) -> None:
    before = len(held.log_files)
    unsent_bytes = held.connection.unsent_bytes
    with capture_logs() as lines:
        held.delete()
    assert len(held.log_files) < before - 2
    assert held.made.broker.store.commit_log.min_offset() > 0
    assert held.connection.unsent_bytes == unsent_bytes
    assert held.deleted_maps() == []
    assert "answers copied out of a deleted log file" in {line["event"] for line in lines}
    answers = held.slow.receive_now()
    assert len(answers) == held.pulls
    for answer in answers:
        assert answer.body is not None
        found = [record.body for record in decode_records(bytes(answer.body))]
        assert found == held.bodies[: len(found)] and found


def test_an_answer_in_transit_is_copied_a_little_later(held: Held) -> None:
    system, log = held.made.system, held.made.broker.store.commit_log
    view = log.view(0, 1000)
    held.start_deleting()
    system.run_until(lambda: log.min_offset() > 0, LATER_MS)
    system.advance(10)
    assert not held.log_files[0].name.endswith("0" * 20)
    held.connection.write([view])
    del view
    system.advance(1)
    assert held.deleted_maps() != []
    system.advance(COPY_OUT_AGAIN_MS)
    assert [line for line in held.deleted_maps() if "0" * 20 in line] == []
    assert held.connection.unsent_bytes > UNSENT_BYTES


def test_a_peer_with_too_many_unsent_file_bytes_is_closed(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "COPIED_BYTES_MAX", 10_000)
    with capture_logs() as lines:
        held.delete()
    closed = [line for line in lines if line["event"] == "connection closed"]
    assert [line["peer"] for line in closed] == [held.slow.local]
    assert "answers not taken" in closed[0]["reason"]
    assert held.deleted_maps() == []
    assert held.made.send(b"the others notice nothing").code == ResponseCode.SUCCESS
