"""Receives through kill -9: a real broker process, real sockets, real files.

Producers send, and members of a group receive, until the process is killed, life after life.
Members hold one message in ten and settle the others, one by one or many at once, some after a
retry through a delay level. What was acknowledged to a producer is received in the end. Nothing is
handed out again whose settlement was confirmed, so that a kill repeats no more than what was in
flight.
"""

import os
import signal
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from protocol.codes import ResponseCode
from tests.compat.servers import OurBroker, OurNameServer
from tests.support.brokers import send_command
from tests.support.receiving import (
    Received,
    ack_command,
    batch_ack_command,
    change_command,
    receive_command,
    received,
)
from tests.support.wire import Wire

TOPIC, QUEUES, MEMBERS = "Topic", 2, 3
LIVES = 5
HELD = 0.1
"""Share of messages that a member keeps until the kill."""
SETTINGS = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "2000",
    "maxIndexNum": "8000",
}


class Producer(Thread):
    """Sends until the broker is gone; keeps what was acknowledged."""

    def __init__(self, address: str, number: int, life: int) -> None:
        super().__init__()
        self._address, self._number, self._life = address, number, life
        self.acknowledged: set[bytes] = set()

    def run(self) -> None:
        with Wire(self._address) as wire:
            for count in range(1_000_000):
                body = b"%d/%d/%d" % (self._life, self._number, count)
                try:
                    answer = wire.ask(send_command(body, topic=TOPIC, queue_id=self._number))
                except OSError:
                    return
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.add(body)
                Event().wait(0.001)


class Member(Thread):
    """Receives and settles until the broker is gone, or until it has nothing more to do."""

    def __init__(self, address: str, seed: str, *, settles_all: bool = False) -> None:
        super().__init__()
        self._address, self._random, self._settles_all = address, Random(seed), settles_all
        self.came: list[tuple[bytes, int]] = []
        """Bodies, and their tries before."""
        self.confirmed: set[bytes] = set()

    def run(self) -> None:
        with Wire(self._address) as wire:
            try:
                self._work(wire)
            except OSError:
                return

    def _work(self, wire: Wire) -> None:
        command = receive_command(topic=TOPIC, wait_ms=1_000, invisible_ms=600_000)
        while True:
            messages = received(wire.ask(command), TOPIC)
            if not messages and self._settles_all:
                return
            self.came += [(each.body, each.tries) for each in messages]
            if not self._settles_all:
                messages = [each for each in messages if self._random.random() > HELD]
            while messages:
                count = self._random.choice((1, 1, 2, 32))
                self._settle(wire, messages[:count])
                messages = messages[count:]

    def _settle(self, wire: Wire, messages: list[Received]) -> None:
        if len(messages) == 1 and messages[0].tries < self._random.choice((0, 0, 1)):
            code = wire.ask(change_command(messages[0], 0, retry_delay_level=1)).code
            assert code == ResponseCode.SUCCESS
            return
        if len(messages) == 1:
            code = wire.ask(ack_command(messages[0])).code
        else:
            code = wire.ask(batch_ack_command(messages)).code
        assert code == ResponseCode.SUCCESS
        self.confirmed |= {each.body for each in messages}


@pytest.mark.slow(seconds=12)
@pytest.mark.trial(short=0, long=120, every=3, turn=0)
def test_kill_repeats_only_what_was_in_flight(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    acknowledged, confirmed, came = set[bytes](), set[bytes](), set[bytes]()
    with OurNameServer(tmp_path / "namesrv") as name_server:
        for life in range(LIVES):
            broker = broker_on(tmp_path, name_server, life).start()
            producers = [Producer(broker.address, each, life) for each in range(QUEUES)]
            members = [Member(broker.address, f"{seed} {life} {n}") for n in range(MEMBERS)]
            for thread in (*producers, *members):
                thread.start()
            Event().wait(random.uniform(0.2, 2))
            os.kill(broker.pid, signal.SIGKILL)
            for thread in (*producers, *members):
                thread.join()
            assert broker.child.wait(10) == -signal.SIGKILL
            broker.stop()
            acknowledged.update(*(each.acknowledged for each in producers))
            tell(seed, life, members, confirmed, came)
        with broker_on(tmp_path, name_server, LIVES) as broker:
            last = Member(broker.address, "", settles_all=True)
            last.start()
            last.join()
            tell(seed, LIVES, [last], confirmed, came)
    missing = acknowledged - came
    assert not missing, f"{len(missing)} of {len(acknowledged)} are lost"
    print(f"seed {seed}: {len(acknowledged)} acknowledged in {LIVES} lives, none lost")


def tell(
    seed: int, life: int, members: list[Member], confirmed: set[bytes], came: set[bytes]
) -> None:
    """Check and print what a life has repeated; add what it has received and settled."""
    given = [each for member in members for each in member.came]
    assert len(given) == len({*given}), "nothing comes twice within a life"
    found = {body for body, _ in given}
    again = found & came
    in_flight = len(came - confirmed)
    repeated = again & confirmed
    print(
        f"seed {seed} life {life}: {len(given)} received, {in_flight} in flight at the kill,"
        f" {len(again)} again, {len(repeated)} of them settled before"
    )
    assert not repeated, sorted(repeated)[:5]
    assert len(again) <= in_flight
    came |= found
    confirmed.update(*(each.confirmed for each in members))


def broker_on(scratch: Path, name_server: OurNameServer, life: int) -> OurBroker:
    return OurBroker(scratch / f"broker{life}", name_server, SETTINGS, scratch / "store")
