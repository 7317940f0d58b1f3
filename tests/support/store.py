"""A store on a fake disk, with a broker's part played by a few lines."""

from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.log.commit_log import Placed
from storage.message_store import MessageStore
from storage.queues.consume_queue import UNIT
from storage.recovery.recovery import RecoveryReport
from tests.support.clock import ManualClock
from tests.support.puts import HOST, append, put
from troupemq.testing.fake_disk import FakeDisk

CONFIG = StoreConfig(
    root="/store",
    commit_log_file_bytes=8192,
    consume_queue_file_bytes=600,
    max_hash_slots=16,
    max_index_entries=60,
)


class SmallStore:
    """Opens, fills and reads a MessageStore."""

    def __init__(
        self,
        disk: FakeDisk | None = None,
        clock: ManualClock | None = None,
        config: StoreConfig = CONFIG,
    ) -> None:
        self.disk = disk or FakeDisk()
        self.clock = clock or ManualClock()
        self.config = config
        self.store = MessageStore(config, self.disk, self.clock)
        self.report: RecoveryReport = self.store.open()
        self.log = self.store.commit_log
        self.log.store_host = HOST
        self._next_offsets = self.store.consume_queues.next_offsets()

    def send(self, count: int, topic: str = "Topic", *, dispatch: bool = True) -> list[Placed]:
        """Appends messages to queues 0 and 1 in turn, each with a key of its own."""
        placed: list[Placed] = []
        for number in range(count):
            queue = topic, number % 2
            offset = self._next_offsets.get(queue, 0)
            self._next_offsets[queue] = offset + 1
            key = f"UNIQ_KEY\x01{topic}-{queue[1]}-{offset}".encode()
            record = put(topic=topic, queue_id=queue[1], queue_offset=offset, properties=key)
            placed += append(self.log, [record], self.clock.now_ms())
        if dispatch and placed:
            heads = list(self.log.walk(placed[0][0]))
            self.store.dispatcher.dispatch([entry_of(head, ()) for head in heads])
        return placed

    def units(self) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
        """Every unit of every queue."""
        found: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for queue in self.store.consume_queues:
            units = found.setdefault((queue.topic, queue.queue_id), [])
            while len(units) < queue.max_offset - queue.min_offset:
                part = queue.units(queue.min_offset + len(units), queue.max_offset)
                units += UNIT.iter_unpack(part)
        return found

    def found_by_key(self, topic: str = "Topic") -> int:
        """Return the number of a topic's messages that the index finds by their keys."""
        index = self.store.index
        assert index is not None
        self.store.catch_up()
        index.write_out()
        count = 0
        for head in self.log.walk(self.log.min_offset()):
            key = head.properties.partition(b"\x01")[2].decode()
            hits = index.query(topic, key, 64, 0, 1 << 62).physical_offsets
            count += head.physical_offset in hits
        return count

    def killed(self) -> "SmallStore":
        """The store as it is opened after the process died."""
        return SmallStore(self.disk.killed(), self.clock, self.config)

    def restarted(self) -> "SmallStore":
        """The store as it is opened after a clean stop."""
        self.store.close()
        return SmallStore(self.disk, self.clock, self.config)
