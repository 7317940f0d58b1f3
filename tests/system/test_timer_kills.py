"""Timers through kill -9: a real broker process with SYNC_FLUSH, real sockets, real files.

Two producers send timers until the process is killed, life after life. What was acknowledged in any
life is delivered in the end, nothing before its time, and nothing twice.
"""

import os
import signal
from collections import Counter
from pathlib import Path
from random import Random
from threading import Event, Thread
from time import time

import pytest

from protocol.codes import ResponseCode
from protocol.properties import parse
from tests.compat.patience import wait_until
from tests.compat.servers import OurBroker, OurNameServer
from tests.support.brokers import send_command
from tests.support.wire import Wire

TOPIC, QUEUES = "Topic", 2
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
    "messageDelayLevel": "1s 2s 3s",
}


class Producer(Thread):
    """Sends timers until the broker is gone; keeps what was acknowledged."""

    def __init__(self, address: str, number: int, life: int, seed: int) -> None:
        super().__init__()
        self._address, self._number, self._life = address, number, life
        self._random = Random(f"{seed} {life} {number}")
        self.acknowledged: list[bytes] = []
        self.unexpected: list[str] = []

    def run(self) -> None:
        with Wire(self._address) as wire:
            for count in range(1_000_000):
                body = b"%d/%d/%d" % (self._life, self._number, count)
                text = f"TIMER_DELAY_MS\x01{self._random.randrange(1, 6_000)}"
                command = send_command(body, queue_id=self._number, properties=text)
                try:
                    answer = wire.ask(command)
                except OSError:
                    return
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body)
                else:
                    self.unexpected.append(f"{answer.code} {answer.remark}")
                Event().wait(self._random.random() / 500)


@pytest.mark.slow(seconds=12)
@pytest.mark.trial(short=0, long=40)
def test_acknowledged_timers_survive_kill_9_and_are_never_early(seed: int, tmp_path: Path) -> None:
    random, acknowledged, lives = Random(seed), list[bytes](), 5
    with OurNameServer(tmp_path / "namesrv") as name_server:
        for life in range(lives):
            broker = broker_on(tmp_path, name_server, life).start()
            producers = [Producer(broker.address, each, life, seed) for each in range(QUEUES)]
            for producer in producers:
                producer.start()
            Event().wait(random.uniform(0.3, 3))
            os.kill(broker.pid, signal.SIGKILL)
            for producer in producers:
                producer.join()
            assert broker.child.wait(10) == -signal.SIGKILL
            broker.stop()
            assert not [text for producer in producers for text in producer.unexpected]
            acknowledged += [body for producer in producers for body in producer.acknowledged]
        with broker_on(tmp_path, name_server, lives) as broker, Wire(broker.address) as wire:
            ended_s = time()

            def bodies() -> Counter[bytes]:
                return Counter(
                    record.body for queue in range(QUEUES) for record in wire.messages(TOPIC, queue)
                )

            wait_until(lambda: bodies().keys() >= {*acknowledged}, "all timers are delivered", 60)
            Event().wait(max(0.0, ended_s + 7 - time()))
            found = bodies()
            for queue in range(QUEUES):
                for record in wire.messages(TOPIC, queue):
                    due_ms = int(parse(record.properties).get("TIMER_OUT_MS", "0"))
                    assert record.store_timestamp >= due_ms, "early"
    repeated = sum(found.values()) - len(found)
    assert not repeated, repeated
    print(f"seed {seed}: {len(acknowledged)} acknowledged in {lives} lives")


def broker_on(scratch: Path, name_server: OurNameServer, life: int) -> OurBroker:
    return OurBroker(scratch / f"broker{life}", name_server, SETTINGS, scratch / "store")
