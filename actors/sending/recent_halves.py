"""Half messages of the last moments, as they were put into the log: most are ended soon.

What ends one needs the whole record; from here it comes without a read, a check of its CRC and its
taking apart.  Whoever finds nothing here reads the log: what was taken, came before the start or is
too old.  Two generations of limited size, of which the older one goes as a whole.

Written by PutMessage, read by Transactions.  Lives on the loop.
"""

from actors.sending.appender import Record
from protocol.host import HOST_V4_BYTES
from protocol.message import MessageRecord
from protocol.sysflag import STORE_HOST_V6
from protocol.topic_names import HALF_TOPIC
from storage.log.commit_log import CommitLog

GENERATION_COUNT_MAX = 4096
GENERATION_BYTES_MAX = 4 << 20
"""Of records; what Python adds to each is below 1 KiB."""


class RecentHalves:
    """Those of one broker."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self.expected: list[Record] = []
        """Admitted, and not in the log yet, as far as is known."""
        self._young: dict[int, tuple[Record, int]] = {}
        """By offset in the log: a record and its store timestamp."""
        self._old: dict[int, tuple[Record, int]] = {}
        self._young_bytes = 0

    def stored(self) -> None:
        """The last append had the expected ones in it; one that found no room is not kept."""
        stored_ms = self._log.last_store_timestamp
        for record in self.expected:
            if record.physical_offset < 0:
                continue
            full = len(self._young) >= GENERATION_COUNT_MAX
            if full or self._young_bytes + record.record_bytes > GENERATION_BYTES_MAX:
                self._old, self._young, self._young_bytes = self._young, {}, 0
            self._young[record.physical_offset] = record, stored_ms
            self._young_bytes += record.record_bytes
        self.expected = []

    def take(self, offset: int) -> MessageRecord | None:
        """The half message at an offset of the log, as it would be read there; None: not here, or
        not there any more. It is given once."""
        found = self._young.pop(offset, None)
        if found is not None:
            self._young_bytes -= found[0].record_bytes
        else:
            found = self._old.pop(offset, None)
            if found is None:
                return None
        if offset < self._log.min_offset():
            return None
        record, stored_ms = found
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
            stored_ms,
            store_host,
            record.reconsume_times,
            record.prepared_offset,
            record.body_crc,
            record.record_bytes,
        )
