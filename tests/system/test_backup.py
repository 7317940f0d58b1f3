"""A backup of a broker under load, killed in the middle and repeated; kill -9; a start on the copy.

Real processes, sockets and files, ASYNC_FLUSH. What was acknowledged before a run of the backup
began is in what is restored from it; what is there is a beginning of what the broker had. One run
for each seed; ten in the trials.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from click.testing import CliRunner

from actors.sending.admission import BUSY
from protocol.codes import ResponseCode
from tests.compat.patience import wait_until
from tests.compat.servers import OurBroker, OurNameServer
from tests.support.brokers import send_command
from tests.support.wire import Wire
from troupemq.cli import cli

PRODUCERS = 3
QUEUES = 4
TOPIC = "Topic"
DEADLINE_S = 60.0
PAUSE_S = 0.001
SETTINGS = {
    "mappedFileSizeCommitLog": str(1 << 18),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
}


class Producer(Thread):
    """Sends until the broker is gone; keeps what was acknowledged."""

    def __init__(self, address: str, number: int, over: Event) -> None:
        super().__init__()
        self._address, self._number, self._over = address, number, over
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        with Wire(self._address) as wire:
            while not self._over.is_set():
                body = b"%d/%d/" % (self._number, len(self.acknowledged)) + b"x" * 700
                try:
                    answer = wire.ask(
                        send_command(body, topic=TOPIC, queue_id=self._number % QUEUES)
                    )
                except OSError:
                    return
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body)
                else:  # a disk that is slow for a second: what producers try again
                    assert BUSY in (answer.remark or ""), answer
                self._over.wait(PAUSE_S)


def told(*words: object, code: int = 0) -> str:
    """Run `troupemq store` and return its output."""
    result = CliRunner().invoke(cli, ["store", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def kill_a_backup(store: Path, copy: Path, after_s: float) -> None:
    """While it copies."""
    program = [sys.executable, "-m", "troupemq", "store", "backup"]
    with subprocess.Popen([*program, str(store), str(copy), "--rate", "0.5"]) as process:
        mark = copy / "troupemq" / "backup.running.json"
        wait_until(mark.exists, "a run under way", DEADLINE_S)
        Event().wait(after_s)
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow(seconds=5)
@pytest.mark.trial(short=1, long=10)
def test_a_backup_contains_all_messages_acknowledged_before(seed: int, tmp_path: Path) -> None:
    random, over = Random(seed), Event()
    copy, restored = tmp_path / "copy", tmp_path / "restored"
    with OurNameServer(tmp_path / "names") as names:
        broker = OurBroker(tmp_path / "broker", names, SETTINGS).start()
        producers = [Producer(broker.address, number, over) for number in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        try:
            log = broker.store / "commitlog"
            wait_until(lambda: len(list(log.iterdir())) > 3, "some files of the log", DEADLINE_S)
            kill_a_backup(broker.store, copy, random.uniform(0, 0.5))
            assert "not finished" in told("restore", copy, restored, code=1)
            sets = [before(producers)]
            told("backup", broker.store, copy, "--rate", 0)
            sets.append(before(producers))
            told("backup", broker.store, copy, "--rate", 0)
        finally:
            os.kill(broker.pid, signal.SIGKILL)
            over.set()
            for producer in producers:
                producer.join()
            broker.child.wait(10)
            broker.stop()
        assert "as of 2" in told("restore", copy, restored)
        with (
            OurBroker(tmp_path / "again", names, SETTINGS, restored) as again,
            Wire(again.address) as wire,
        ):
            found = [[each.body for each in wire.messages(TOPIC, queue)] for queue in range(QUEUES)]
    assert set().union(*sets) <= {body for bodies in found for body in bodies}
    for producer, bodies in zip(producers, found, strict=False):
        sent = producer.acknowledged
        assert bodies[: len(sent)] == sent[: len(bodies)], "no gap, nothing twice"
        assert len(bodies) <= len(sent) + 1


def before(producers: list[Producer]) -> set[bytes]:
    """Return the messages acknowledged so far."""
    return {body for producer in producers for body in list(producer.acknowledged)}
