"""The golden stores written again from their messages: the same bytes as the original's."""

import hashlib
from pathlib import Path

import pytest

from protocol.codes import BORN_HOST_V6, STORE_HOST_V6
from protocol.message import BLANK_MAGIC, HEADS, MessageRecord, decode_record, scan_head
from storage.dispatching.dispatch import entry_of
from storage.files.disk import RealDisk
from storage.log.commit_log import PutRecord
from storage.message_store import MessageStore
from tests.storage.derived import DELAY_LEVELS_MS, config
from tests.support.by_hand import BY_HAND
from tests.support.clock import ManualClock
from tests.support.golden import store
from tests.support.puts import append

FILE_BYTES = 65_536


@pytest.mark.parametrize("name", ["clean", "slave", "v6", "crashed-recovered", BY_HAND])
def test_equal_messages_give_equal_files(name: str, tmp_path: Path) -> None:
    theirs, ours = store(name, tmp_path / "theirs"), tmp_path / "ours"
    records = read(theirs)
    write(ours, records)
    for part in ("commitlog", "consumequeue"):
        assert files(ours / part) == files(theirs / part)
    if name != "crashed-recovered":  # where the original has one key twice
        wanted = [path.read_bytes() for path in sorted((theirs / "index").iterdir())]
        assert [path.read_bytes() for path in sorted((ours / "index").iterdir())] == wanted


def read(root: Path) -> list[MessageRecord]:
    """Every message of a log, in order."""
    found: list[MessageRecord] = []
    for path in sorted((root / "commitlog").iterdir()):
        data, position = path.read_bytes(), 0
        while position < len(data) - HEADS[0].size and any(data[position : position + 8]):
            head = scan_head(data, position)
            if head.magic == BLANK_MAGIC:
                break
            found.append(decode_record(data, position))
            position += head.record_bytes
    assert found
    return found


def write(root: Path, records: list[MessageRecord]) -> None:
    """One append for each message, at the recorded time."""
    clock = ManualClock()
    messages = MessageStore(config(str(root)), RealDisk(), clock)
    messages.open()
    log = messages.commit_log
    for record in records:
        log.store_host = record.store_host
        clock.set_wall(record.store_timestamp)
        append(log, [put_of(record)], record.store_timestamp)
        head = scan_head(log.view(record.physical_offset, record.record_bytes), 0)
        messages.dispatcher.dispatch([entry_of(head, DELAY_LEVELS_MS)])
    messages.close()


def put_of(record: MessageRecord) -> PutRecord:
    return PutRecord(
        record.topic.encode(),
        record.queue_id,
        record.queue_offset,
        record.flag,
        record.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        record.body,
        record.properties,
        record.body_crc,
    )


def files(directory: Path) -> dict[str, str]:
    """Contents by path; a file of nothing but zeros, made ahead, does not count."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and any(path.read_bytes())
    }
