"""kill -9 under load: a real broker process with SYNC_FLUSH, real sockets, real files.

Eight producers send as fast as they are answered; the process is killed after a random number of
answers and started again on its store, round after round.  Whatever was acknowledged, in any round,
is there at the end.  Four kills for each seed; thirteen seeds in the trials.
"""

import os
import signal
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from protocol.codes import ResponseCode
from tests.compat.servers import OurBroker, OurNameServer
from tests.support.brokers import send_command
from tests.support.wire import Wire

LIVES = 4
PRODUCERS = 8
QUEUES = 4
TOPIC = "Topic"
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
}


class Producer(Thread):
    """Sends until the broker is gone; keeps what was acknowledged."""

    def __init__(self, address: str, number: int, round_: int, kill_after: int, pid: int) -> None:
        super().__init__()
        self._address = address
        self._number, self._round = number, round_
        self._kill_after, self._pid = kill_after, pid
        self.acknowledged: list[bytes] = []
        self.unexpected: list[str] = []

    def run(self) -> None:
        with Wire(self._address) as wire:
            count = 0
            while True:
                body = b"%d/%d/%d/" % (self._round, self._number, count) + b"x" * (count % 900)
                try:
                    queue_id = self._number % QUEUES
                    answer = wire.ask(send_command(body, topic=TOPIC, queue_id=queue_id))
                except OSError:
                    return
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body)
                else:
                    self.unexpected.append(f"{answer.code} {answer.remark}")
                count += 1
                if self._number == 0 and count == self._kill_after:
                    os.kill(self._pid, signal.SIGKILL)


@pytest.mark.slow(seconds=10)
@pytest.mark.trial(short=1, long=13)
def test_every_acknowledged_message_survives_kill_9(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    acknowledged: list[bytes] = []
    with OurNameServer(tmp_path / "namesrv") as name_server:
        for round_ in range(LIVES):
            broker = broker_on(tmp_path, name_server, round_).start()
            kill_after = random.randrange(20, 400)
            producers = [
                Producer(broker.address, number, round_, kill_after, broker.pid)
                for number in range(PRODUCERS)
            ]
            for producer in producers:
                producer.start()
            for producer in producers:
                producer.join()
            assert broker.child.wait(10) == -signal.SIGKILL
            broker.stop()
            assert not [text for producer in producers for text in producer.unexpected]
            acknowledged += [body for producer in producers for body in producer.acknowledged]
        with broker_on(tmp_path, name_server, LIVES) as broker, Wire(broker.address) as wire:
            found = [r.body for queue in range(QUEUES) for r in wire.messages(TOPIC, queue)]
    missing = set(acknowledged) - set(found)
    assert not missing, f"{len(missing)} of {len(acknowledged)} acknowledged messages are gone"
    assert len(found) == len(set(found))
    print(f"{len(acknowledged)} acknowledged in {LIVES} lives, {len(found)} found")


def broker_on(scratch: Path, name_server: OurNameServer, life: int) -> OurBroker:
    return OurBroker(scratch / f"broker{life}", name_server, SETTINGS, scratch / "store")
