"""Messages for the commit log, made short, and the appending of them without a broker."""

from collections.abc import Sequence

from protocol.checksum import body_crc
from storage.log.append import Placed, PutRecord
from storage.log.commit_log import CommitLog, prepare_file

HOST = bytes((127, 0, 0, 1, 0, 0, 0x27, 0x76))
HOST_V6 = bytes(15) + bytes((1, 0, 0, 0x27, 0x76))


def put(
    body: bytes = b"body",
    *,
    topic: str = "Topic",
    queue_id: int = 0,
    queue_offset: int = 0,
    sys_flag: int = 0,
    born_host: bytes = HOST,
    properties: bytes = b"",
    prepared_offset: int = 0,
) -> PutRecord:
    """One message on its way into the log."""
    return PutRecord(
        topic.encode(),
        queue_id,
        queue_offset,
        7,
        sys_flag,
        1_600_000_000_000,
        born_host,
        0,
        prepared_offset,
        body,
        properties,
        body_crc(body),
    )


def append(log: CommitLog, records: Sequence[PutRecord], now_ms: int) -> list[Placed]:
    """Appends them side by side; the log gets its next file where it needs one."""
    while not (placed := log.append([[*records]], now_ms)):
        needed = log.next_file_offset_to_prepare()
        assert needed is not None
        log.adopt(prepare_file(needed, log.config, log.queue.disk))
    return placed
