"""Writer of a store directory byte by byte, to test jobs without a broker.

It writes commit log and consume queues only, of any file sizes; jobs read nothing else.
"""

import os
from dataclasses import replace
from pathlib import Path
from struct import Struct

from protocol.codes import BORN_HOST_V6, STORE_HOST_V6
from protocol.host import pack_host
from protocol.message import BLANK_MAGIC, MessageRecord, encode_record
from protocol.properties import format as format_properties

UNIT = Struct(">qiq")
BLANK = Struct(">iI")
GAP_FILLER = UNIT.pack(0, 0x7FFFFFFF, 0)
HOST_V4 = pack_host("127.0.0.1", 10911)
HOST_V6 = pack_host("::1", 10911)
NOVEMBER_ROOT_MS = 1_795_132_800_000
"""The time 2026-11-20T00:00:00Z."""


class StoreWriter:
    """Appends messages as a broker would; `close` leaves the directory as after a clean stop."""

    def __init__(
        self,
        root: Path,
        *,
        log_file_bytes: int = 65_536,
        queue_file_bytes: int = 6_000,
        log_first_offset: int = 0,
    ) -> None:
        self.root = root
        self._log_file_bytes = log_file_bytes
        self._queue_file_bytes = queue_file_bytes
        self._log = bytearray()
        self._log_file_first = log_first_offset
        self.queues: dict[tuple[str, int], bytearray] = {}
        self.queue_firsts: dict[tuple[str, int], int] = {}
        self.records: list[MessageRecord] = []
        self.keep_records = True

    @property
    def end_offset(self) -> int:
        return self._log_file_first + len(self._log)

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str] | bytes = b"",
        *,
        store_timestamp: int = NOVEMBER_ROOT_MS,
        born_host: bytes = HOST_V4,
        store_host: bytes = HOST_V4,
        tags_code: int = 0,
        sys_flag: int = 0,
        **others: int,
    ) -> MessageRecord:
        """Append a message to log and queue; `others` are fields of its record."""
        units = self.queues.setdefault((topic, queue_id), bytearray())
        sys_flag |= BORN_HOST_V6 * (len(born_host) == 20) | STORE_HOST_V6 * (len(store_host) == 20)
        first = self.queue_firsts.setdefault((topic, queue_id), 0)
        record = MessageRecord(
            topic=topic,
            body=body,
            properties=properties
            if isinstance(properties, bytes)
            else format_properties(properties),
            queue_id=queue_id,
            queue_offset=first + len(units) // UNIT.size,
            sys_flag=sys_flag,
            born_host=born_host,
            store_timestamp=store_timestamp,
            store_host=store_host,
            **{"born_timestamp": store_timestamp - 3, **others},
        )
        encoded = encode_record(record)
        room = self._log_file_bytes - len(self._log)
        if len(encoded) + BLANK.size > room:
            self._log += BLANK.pack(room, BLANK_MAGIC)
            self._write_log_file()
        record = replace(record, physical_offset=self.end_offset, record_bytes=len(encoded))
        units += UNIT.pack(record.physical_offset, len(encoded), tags_code)
        self._log += encode_record(record)
        if self.keep_records:
            self.records.append(record)
        return record

    def start_queue_at(self, topic: str, queue_id: int, queue_offset: int) -> None:
        """Expire the queue's older messages: fill its first file with filler up to here."""
        in_file = queue_offset * UNIT.size % self._queue_file_bytes
        self.queues[topic, queue_id] = bytearray(GAP_FILLER * (in_file // UNIT.size))
        self.queue_firsts[topic, queue_id] = queue_offset - in_file // UNIT.size

    def close(self) -> "StoreWriter":
        """Write pending data to the disk; may be called again after more appends."""
        self._write_log_file(roll=False)
        for (topic, queue_id), units in self.queues.items():
            directory = self.root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True, exist_ok=True)
            first = self.queue_firsts[topic, queue_id] * UNIT.size
            for at in range(0, len(units), self._queue_file_bytes):
                part = bytes(units[at : at + self._queue_file_bytes])
                _write_sized(directory / f"{first + at:020}", part, self._queue_file_bytes)
        return self

    def _write_log_file(self, *, roll: bool = True) -> None:
        directory = self.root / "commitlog"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self._log_file_first:020}"
        _write_sized(path, bytes(self._log), self._log_file_bytes)
        if roll:
            self._log_file_first += self._log_file_bytes
            self._log = bytearray()


def _write_sized(path: Path, content: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(content)
        os.ftruncate(file.fileno(), size)


def patch(path: Path, position: int, content: bytes) -> None:
    """Overwrite bytes inside a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)
