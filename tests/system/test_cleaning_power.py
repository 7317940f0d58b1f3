"""The power fails while old files are deleted: seed by seed, on a disk that forgets.

Producers send all the time, every file is old enough to go, and the log is cleaned as fast as it
grows. Whatever was acknowledged and is not before the beginning of the log that is found is there.
To repeat one: make trials ROUNDS=1 SEED=<it> ARGS='-k cleaning_power'.
"""

from dataclasses import replace
from random import Random

import pytest

from actors.retention.clean_files import FIRST_ROUND_MS
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from storage.errors import StoreError
from tests.support.brokers import STORE, SimulatedBroker, send_command
from troupemq.testing.fake_disk import FakeDisk

LIVES = 3
TOPICS = ("Topic", "Other")
QUEUES = 2
LONG_AGO_MS = 100 * 3_600_000
CONFIG = replace(
    STORE,
    flush_disk_type="SYNC_FLUSH",
    commit_log_file_bytes=8192,
    consume_queue_file_bytes=100,
    max_index_entries=20,
    delete_when=";".join(map(str, range(24))),
    clean_interval_ms=500,
)


class Life:
    """One broker, what it acknowledged, and where the log began at its latest."""

    def __init__(self, seed: int, *, with_sync: bool = True) -> None:
        self.random = Random(seed)
        self.with_sync = with_sync
        self.disk = FakeDisk(without_sync=not with_sync)
        self.made = SimulatedBroker(seed, self.disk, store_config=CONFIG)
        self.disk.now_ms = self.made.system.clock.now_ms() - LONG_AGO_MS
        for topic in TOPICS:
            self.made.make_topic(topic, queues=QUEUES)
        self.acknowledged: dict[int, bytes] = {}
        self.count = 0
        self.deleted_until = 0

    def send(self) -> None:
        """One message, not waited for."""
        body = b"%d:" % self.count + self.random.randbytes(self.random.randrange(900))
        self.count += 1

        def taken(answer: RemotingCommand) -> None:
            if answer.code == ResponseCode.SUCCESS:
                self.acknowledged[int((answer.fields or {})["msgId"][-16:], 16)] = body

        # one queue gets few messages, so that all of them go before the next one comes
        queue_id = 0 if self.random.random() < 0.95 else 1
        command = send_command(body, topic=self.random.choice(TOPICS), queue_id=queue_id)
        self.made.client.start(command, taken)

    def produce(self) -> None:
        """Send and clean for some seconds, up to a random moment."""
        for _ in range(self.random.randrange(1, 60)):
            for _ in range(self.random.choice((0, 1, 4, 12))):
                self.send()
            if self.random.random() < 0.03:
                code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
                self.made.client.start(RemotingCommand(code))
            self.made.system.advance(self.random.choice((0.1, 1, 10, 60, 300)))
        self.deleted_until = self.made.broker.store.commit_log.min_offset()

    def lose_power(self) -> None:
        """Starts again on what is left, and looks at it."""
        self.made.crash()
        self.made.disk = self.disk = self.disk.crashed(self.random.randrange(1 << 30))
        self.disk.without_sync = not self.with_sync
        self.made.start()
        self.check()

    def check(self) -> None:
        """Nothing of the log that is left is missing, and the queues say so too."""
        log = self.made.broker.store.commit_log
        assert log.min_offset() <= self.deleted_until, "the log begins behind what was deleted"
        records = self.made.records()
        found = {record.physical_offset: record.body for record in records}
        for offset, body in self.acknowledged.items():
            if offset >= log.min_offset():
                assert found.get(offset) == body, "an acknowledged message is lost"
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                wanted = [r for r in records if (r.topic, r.queue_id) == (topic, queue_id)]
                pulled = self.made.messages(topic, queue_id)
                assert [r.body for r in pulled] == [r.body for r in wanted], (topic, queue_id)
                if wanted:
                    first = self.made.offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)
                    assert first == wanted[0].queue_offset, "min offset"


def live(seed: int, *, with_sync: bool = True) -> int:
    """Some lives of one broker; how far the log was deleted."""
    life = Life(seed, with_sync=with_sync)
    for _ in range(LIVES):
        life.made.system.advance(FIRST_ROUND_MS)
        life.produce()
        life.lose_power()
    life.made.stop()
    return life.deleted_until


@pytest.mark.trial(short=1, long=400)
def test_a_power_cut_during_deletion_loses_no_retained_message(seed: int) -> None:
    live(seed)


@pytest.mark.heavy
def test_the_trial_really_deletes_log_files() -> None:
    assert all(live(seed) > 3 * CONFIG.commit_log_file_bytes for seed in range(1000, 1003))


@pytest.mark.heavy
def test_without_fdatasync_the_trial_fails() -> None:
    losses = 0
    for seed in range(6):
        try:
            live(seed, with_sync=False)
        except (AssertionError, StoreError):
            losses += 1
    assert losses > 3
