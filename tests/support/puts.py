"""Messages for the commit log, made short, and the appending of them without a broker."""

from collections.abc import Sequence

from protocol.message import body_crc
from storage.log.commit_log import CommitLog, Placed, PutBatch, PutRecord, prepare_file

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


def batch(*records: PutRecord) -> PutBatch:
    """Messages of one queue, with numbers that follow each other, as one send has them."""
    first = records[0]
    return PutBatch(
        first.topic,
        first.queue_id,
        first.queue_offset,
        first.sys_flag,
        first.born_timestamp,
        first.born_host,
        first.reconsume_times,
        [(each.flag, each.body_crc, each.body, each.properties, b"") for each in records],
        sum(len(each.body) + len(each.properties) for each in records),
        [0] * len(records),
        [()] * len(records),
    )


def append(log: CommitLog, records: Sequence[PutRecord], now_ms: int) -> list[Placed]:
    """Appends them; the log gets its next file where it needs one."""
    placed = log.append(records, now_ms)
    while len(placed) < len(records):
        needed = log.next_file_offset_to_prepare()
        assert needed is not None
        log.adopt(prepare_file(needed, log.config, log.queue.disk))
        placed += log.append(records[len(placed) :], now_ms)
    return placed
