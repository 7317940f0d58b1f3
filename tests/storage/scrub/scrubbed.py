"""A store that was filled and stopped, to be damaged and scrubbed."""

from protocol.message import RecordHead
from storage.files.disk import Disk
from storage.log.damage import Damage
from storage.queues.consume_queue import UNIT
from storage.scrub.round import Scrub
from storage.scrub.units import QueueKey, UnitRepair
from tests.support.store import CONFIG, SmallStore
from troupemq.testing.fake_disk import FakeDisk

SENT = 250
PAGE_BYTES = 4096
LOG = "/store/commitlog"
QUEUES = "/store/consumequeue/Topic"


class Stopped:
    """A store that was filled and stopped, and what is known of it."""

    def __init__(self, count: int = SENT) -> None:
        small = SmallStore()
        small.send(count)
        self.heads = list(small.log.walk(0))
        self.log_end = small.log.end_offset
        self.units = small.units()
        self.ends: dict[QueueKey, int] = {
            (topic.encode(), queue_id): len(units)
            for (topic, queue_id), units in self.units.items()
        }
        small.store.close()
        self.disk: FakeDisk = small.disk
        self.damage = Damage()
        self.repairs: list[UnitRepair] = []
        self.verified: dict[QueueKey, int] = {}

    def scrub(self) -> Scrub:
        """A whole round, its repairs written."""
        scrub = self.open()
        for _ in scrub.steps():
            pass
        return self.end(scrub)

    def verify_unit(self, queue_id: int, queue_offset: int) -> Scrub:
        """One unit alone."""
        scrub = self.open()
        for _ in scrub.verify_unit(b"Topic", queue_id, queue_offset):
            pass
        return self.end(scrub)

    def open(self) -> Scrub:
        return Scrub(self.disk, CONFIG, self.damage, log_end=self.log_end, queue_ends=self.ends)

    def end(self, scrub: Scrub) -> Scrub:
        found = scrub.pop_findings()
        self.repairs, self.verified = found.repairs, found.verified
        for repair in found.repairs:
            path, position = unit_at(repair.queue_id, repair.queue_offset)
            write(self.disk, path, position, UNIT.pack(*repair[3:]))
        scrub.close()
        return scrub

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Turns one bit around."""
        byte = self.disk.read_bytes(path)[position] ^ 1 << bit
        write(self.disk, path, position, bytes((byte,)))

    def flip_record(self, number: int, position: int, bit: int = 0) -> RecordHead:
        """Turns a bit of a record around; returns what the record was."""
        head = self.heads[number]
        path, at = log_at(head.physical_offset + position)
        self.flip(path, at, bit)
        return head

    def is_as_sent(self) -> bool:
        """Whether every unit is what it was before anything was damaged."""
        return all(
            self.unit(queue_id, number) == unit
            for (_, queue_id), units in self.units.items()
            for number, unit in enumerate(units)
        )

    def unit(self, queue_id: int, queue_offset: int) -> tuple[int, int, int]:
        path, position = unit_at(queue_id, queue_offset)
        return UNIT.unpack(self.disk.read_bytes(path)[position : position + UNIT.size])


def unit_at(queue_id: int, queue_offset: int) -> tuple[str, int]:
    position = queue_offset * UNIT.size
    size = CONFIG.consume_queue_file_bytes
    return f"{QUEUES}/{queue_id}/{position - position % size:020d}", position % size


def log_at(offset: int) -> tuple[str, int]:
    size = CONFIG.commit_log_file_bytes
    return f"{LOG}/{offset - offset % size:020d}", offset % size


def write(disk: Disk, path: str, position: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(data, position)
    file.close()
