"""Recent half messages as they were appended, most of which are settled soon, and their owners.

Settling a half message needs the whole record. The cache provides it without a read, a CRC check
and parsing, together with values of its send. A miss (taken, older than the start, or too old) is
read from the log. The cache has two generations of limited size; the older one is dropped as a
whole. PutMessage writes it, Transactions reads it, both on the event loop.

On a broker with access control a half message names the account that sent it:

    TROUPE_OWNER    behind its other properties: a checksum of the account, 16 hexadecimal digits

Only the owner, or a producer that the broker has checked back with, can end the transaction. The
committed message and the check-back do not carry the property; copies among the half messages do.
"""

from dataclasses import dataclass

from actors.sending.appender import Record
from protocol.codes import STORE_HOST_V6
from protocol.host import HOST_V4_BYTES
from protocol.message import MessageRecord
from protocol.properties import TROUPE_OWNER
from protocol.send_values import Send
from protocol.sink import owner_of
from protocol.topic_names import HALF_TOPIC
from storage.log.commit_log import CommitLog

GENERATION_COUNT_MAX = 4096
GENERATION_BYTES_MAX = 4 << 20
"""Maximum bytes of records; the overhead of Python is below 1 KiB each."""

OWNER = TROUPE_OWNER.encode()
_BEHIND = b"\x02%b\x01" % OWNER


@dataclass(slots=True, eq=False)
class HalfRecord(Record):
    """A half message on its way into the log. Its property names are unique."""

    real_name: str = ""
    """Topic of the message after a commit."""
    real_topic: bytes = b""
    """`real_name` in bytes."""
    real_queue_id: int = 0
    waits: bool = True
    """Whether its answer waits for flush and replica."""
    stored_ms: int = 0


class HalfMessageCache:
    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self.expected: list[HalfRecord] = []
        """Admitted half messages with an append that is not known yet."""
        self._young: dict[int, HalfRecord] = {}
        """Half messages, by physical offset."""
        self._old: dict[int, HalfRecord] = {}
        self._young_bytes = 0

    def stored(self) -> None:
        """Cache the expected half messages after an append, except those that found no room."""
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
        """Return the half message at a physical offset.

        Return None if it is not cached, or no longer in the log.
        """
        found = self._young.get(offset) or self._old.get(offset)
        return None if found is None or offset < self._log.min_offset() else found

    def drop(self, offset: int) -> None:
        found = self._young.pop(offset, None)
        if found is None:
            self._old.pop(offset, None)
        else:
            self._young_bytes -= found.record_bytes

    def take(self, offset: int) -> MessageRecord | None:
        """Return the record as the log would give it, and drop it."""
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


def with_owner(properties: bytes, send: Send) -> bytes:
    """Return the stored properties of a half message; a TROUPE_OWNER from the sender is removed."""
    properties = without_owner(properties)
    if send.signature is None or not send.signature.access_key:
        return properties
    return b"%b%b%b" % (properties, _BEHIND, owner_of(send.signature.access_key).encode())


def without_owner(properties: bytes) -> bytes:
    """Return the properties without the owner, for records that leave the half topic."""
    if OWNER not in properties:
        return properties
    pairs = properties.split(b"\x02")
    return b"\x02".join(each for each in pairs if not each.startswith(OWNER + b"\x01"))
