"""Records on their way into the commit log."""

from dataclasses import dataclass
from zlib import crc32

from protocol.codes import ResponseCode
from protocol.host import HOST_V4_BYTES
from protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6
from storage.log.append import PutRecord

NO_HOST_FLAGS = ~(BORN_HOST_V6 | STORE_HOST_V6)
"""Removes the flags for the lengths of the hosts in a record; the broker sets them itself."""

_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


@dataclass(slots=True, eq=False)
class Record(PutRecord):
    """One message from the check of its send to its answer; a stored one has a physical offset."""

    tags_code: int
    keys: tuple[bytes, ...]
    """Keys for the index: UNIQ_KEY, then the words of KEYS."""
    delay_ms: int = 0
    """If above 0, the tags code is the due time: the wall clock plus this delay."""
    physical_offset: int = -1
    record_bytes: int = 0
    due_ms: int = 0
    """Due time of a pending timer; 0 for other messages."""


class InternalRecord(Record):
    """One message as it is to be stored, then its result.

    Its physical offset is negative until it is stored. The store host is this broker's.
    """

    __slots__ = ("code", "topic_name")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        tags_code: int = 0,
        keys: tuple[bytes, ...] = (),
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = bytes(HOST_V4_BYTES),
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        delay_ms: int = 0,
        due_ms: int = 0,
    ) -> None:
        """`keys` are the keys for the index: UNIQ_KEY, then the words of KEYS.

        The bits of `sys_flag` that give the lengths of the hosts need not be right.
        """
        # The record itself is appended, not another one made from it: 0.5 µs less.
        self.topic_name = topic
        self.topic = topic.encode()
        self.queue_id = queue_id
        self.queue_offset = 0
        self.flag = flag
        host_flag = 0 if len(born_host) == HOST_V4_BYTES else BORN_HOST_V6
        self.sys_flag = sys_flag & NO_HOST_FLAGS | host_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.body = body
        self.properties = properties
        self.body_crc = crc32(body) & 0x7FFFFFFF
        self.tags_code = tags_code
        self.keys = keys
        self.delay_ms = delay_ms
        self.due_ms = due_ms
        self.physical_offset = -1
        self.record_bytes = 0
        self.code = int(ResponseCode.SUCCESS)

    @property
    def is_stored(self) -> bool:
        """Whether the record is in the log, durable or not; known with the code."""
        return self.code in _STORED
