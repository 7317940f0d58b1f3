"""A broker with several log files of old messages, for tests of deletion."""

from dataclasses import replace

from actors.retention.clean_files import FIRST_ROUND_MS
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from storage.config import StoreConfig
from tests.support.brokers import STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
FILE_BYTES = 16_384
CONFIG = replace(STORE, commit_log_file_bytes=FILE_BYTES, consume_queue_file_bytes=400)
CLEAN_MS = CONFIG.clean_interval_ms
LATER_MS = FIRST_ROUND_MS + 3 * CLEAN_MS
LOG_DIR = CONFIG.commit_log_dir
BODY = b"x" * 1000


class Cleaned:
    """A broker with several log files, written `age_hours` ago."""

    def __init__(
        self,
        count: int = 100,
        *,
        age_hours: float = 80,
        queues: int = 2,
        config: StoreConfig = CONFIG,
    ) -> None:
        self.disk = FakeDisk()
        self.disk.now_ms = int(START_MS - age_hours * HOUR_MS)
        self.made = SimulatedBroker(1, self.disk, store_config=config)
        self.made.make_topic(queues=queues)
        for number in range(count):
            assert self.made.send(b"%d:" % number + BODY, queue_id=number % queues).code == 0
        self.made.system.advance(20_000)  # everything is flushed

    @property
    def log_files(self) -> list[str]:
        return self.disk.listdir(LOG_DIR)

    def ask(self, code: RequestCode) -> RemotingCommand:
        return self.made.ask(RemotingCommand(code))

    def delete(self) -> None:
        """Delete expired files, as an administrator does."""
        assert self.ask(RequestCode.DELETE_EXPIRED_COMMITLOG).code == ResponseCode.SUCCESS
        self.made.system.advance(LATER_MS)

    def min_offset(self, queue_id: int = 0, topic: str = "Topic") -> int:
        return self.made.offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)

    def max_offset(self, queue_id: int = 0, topic: str = "Topic") -> int:
        return self.made.offset(RequestCode.GET_MAX_OFFSET, topic, queue_id)

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.made.messages(queue_id=queue_id)]
