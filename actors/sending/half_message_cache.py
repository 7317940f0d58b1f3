"""Half messages of the last moments, as they were put into the log: most are ended soon.

What ends one needs the whole record; from here it comes without a read, a check of its CRC and its
taking apart, and with what its send said of it.  Whoever finds nothing here reads the log: what was
taken, came before the start or is too old.  Two generations of limited size, of which the older one
goes as a whole.

Written by PutMessage, read by Transactions.  Lives on the loop.
"""

from dataclasses import dataclass

from actors.sending.appender import Record
from protocol.host import HOST_V4_BYTES
from protocol.message import MessageRecord
from protocol.sysflag import STORE_HOST_V6
from protocol.topic_names import HALF_TOPIC
from storage.log.commit_log import CommitLog

GENERATION_COUNT_MAX = 4096
GENERATION_BYTES_MAX = 4 << 20
"""Of records; what Python adds to each is below 1 KiB."""


@dataclass(slots=True, eq=False)
class HalfRecord(Record):
    """A half message on its way into the log. No name stands twice among its properties."""

    real_name: str = ""
    """The topic that it is for."""
    real_topic: bytes = b""
    """The same name, in bytes."""
    real_queue_id: int = 0
    waits: bool = True
    """Its producer wants it to be on the disk when it is answered."""
    stored_ms: int = 0


class HalfMessageCache:
    """Those of one broker."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self.expected: list[HalfRecord] = []
        """Admitted, and not in the log yet, as far as is known."""
        self._young: dict[int, HalfRecord] = {}
        """By offset in the log."""
        self._old: dict[int, HalfRecord] = {}
        self._young_bytes = 0

    def stored(self) -> None:
        """The last append had the expected ones in it; one that found no room is not kept."""
        stored_ms = self._log.last_clock_ms
        for record in self.expected:
            if record.physical_offset < 0:
                continue
            full = len(self._young) >= GENERATION_COUNT_MAX
            if full or self._young_bytes + record.record_bytes > GENERATION_BYTES_MAX:
                self._old, self._young, self._young_bytes = self._young, {}, 0
            record.stored_ms = stored_ms
            self._young[record.physical_offset] = record
            self._young_bytes += record.record_bytes
        self.expected = []

    def find(self, offset: int) -> HalfRecord | None:
        """The half message at an offset of the log; None: not here, or not there any more."""
        found = self._young.get(offset) or self._old.get(offset)
        return None if found is None or offset < self._log.min_offset() else found

    def drop(self, offset: int) -> None:
        """It is not asked for again."""
        found = self._young.pop(offset, None)
        if found is None:
            self._old.pop(offset, None)
        else:
            self._young_bytes -= found.record_bytes

    def take(self, offset: int) -> MessageRecord | None:
        """The same as it would be read there. It is given once."""
        record = self.find(offset)
        self.drop(offset)
        if record is None:
            return None
        store_host = self._log.store_host
        host_flag = 0 if len(store_host) == HOST_V4_BYTES else STORE_HOST_V6
        return MessageRecord(
            HALF_TOPIC,
            record.body,
            record.properties,
            record.queue_id,
            record.queue_offset,
            record.physical_offset,
            record.flag,
            record.sys_flag | host_flag,
            record.born_timestamp,
            record.born_host,
            record.stored_ms,
            store_host,
            record.reconsume_times,
            record.prepared_offset,
            record.body_crc,
            record.record_bytes,
        )
