"""Records taken many at a time are what they are one by one, whatever the log holds."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from protocol.message import BLANK_BYTES, BLANK_MAGIC, SIZE_AND_MAGIC, MessageRecord, encode_record
from protocol.topic_names import SCHEDULE_TOPIC
from storage.errors import StoreError
from storage.log.commit_log import CommitLog, prepare_file
from storage.queues.dispatch_entry import DispatchEntry
from storage.replica import replica_log
from storage.replica.replica_log import SHAPES_MAX, RecordScanner, ReplicaLog
from tests.storage.derived import DELAY_LEVELS_MS, config
from troupemq.testing.fake_disk import FakeDisk

FILE_BYTES = config().commit_log_file_bytes
TOPICS = ("T", "Topic", SCHEDULE_TOPIC, "é" * 60, "x" * 127, "\x02UNIQ_KEY\x01", "%RETRY%g", "")
TEXTS = (
    "UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01TagA",
    "UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    "UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01TagB",
    "KEYS\x01{key} b c\x02UNIQ_KEY\x01{key}\x02TAGS\x01TagA",
    "KEYS\x01 \x02UNIQ_KEY\x01{key}\x02TAGS\x01",
    "TAGS\x01é\x02UNIQ_KEY\x01{key}",
    "UNIQ_KEY\x01{key}\x02",
    "UNIQ_KEY\x01\x02TAGS\x01TagA",
    "UNIQ_KEY\x01{key}\x02UNIQ_KEY\x01second\x02TAGS\x01a\x02TAGS\x01{key}\x02TAGS\x01",
    "A\x01UNIQ_KEY\x01{key}\x02TAGS\x01not-TAGS\x01{key}",
    "AUNIQ_KEY\x01{key}\x02ATAGS\x01x\x02AKEYS\x01x",
    "A\x01UNIQ_KEY\x01x\x02UNIQ_KEY\x01{key}\x02B\x01TAGS\x01x",
    "UNIQ_KEY\x01{key}\x02DELAY\x01{level}\x02TAGS\x01-5\x02REAL_TOPIC\x01T",
    "DELAY\x01{level}\x02UNIQ_KEY\x01{key}",
    "TAGS\x01TagA",
    "",
)
FLAGS = (0, 1, 4, 8, 12, 0x10, 0x20, 0x30, 0x34)


def a_record(random: Random, offset: int, number: int) -> bytes:
    """Records of all kinds; some have the text of another record with another key."""
    sys_flag = random.choice(FLAGS)
    key = random.choice((f"{random.getrandbits(64):016X}", str(number), "é\x01"))
    text = random.choice(TEXTS).format(key=key, level=random.choice(("1", "3", "99", "0", "x")))
    return encode_record(
        MessageRecord(
            random.choice(TOPICS),
            random.randbytes(random.choice((0, 1, 128, 700, 9000))),
            text.encode(),
            queue_id=random.choice((0, 7, -1)),
            queue_offset=number,
            physical_offset=offset,
            sys_flag=sys_flag,
            store_timestamp=1_700_000_000_000 + random.randrange(100),
            born_host=bytes(20 if sys_flag & 0x10 else 8),
            store_host=bytes(20 if sys_flag & 0x20 else 8),
        )
    )


def a_log(random: Random, files: int) -> bytes:
    """Records up to nearly the end of each file, a BLANK, and now and then something wrong."""
    log, offset = bytearray(), 0
    while len(log) < files * FILE_BYTES:
        left = FILE_BYTES - len(log) % FILE_BYTES
        record = a_record(random, len(log), offset)
        offset += 1
        if len(record) + BLANK_BYTES > left:
            log += SIZE_AND_MAGIC.pack(left, BLANK_MAGIC) + bytes(left - BLANK_BYTES)
        else:
            log += record
    for _ in range(random.choice((0, 0, 1, 5))):
        place = random.randrange(len(log))
        if random.random() < 0.5:
            log[place] ^= 1 << random.randrange(8)
        else:
            log[place : place + 100] = bytes(len(log[place : place + 100]))
    return bytes(log)


class OneByOne(RecordScanner):
    """Leave every record to the careful path."""

    def take(self, data: bytes, offset: int, entries: list[DispatchEntry]) -> int:
        return 0


def a_replica() -> tuple[CommitLog, ReplicaLog]:
    settings, disk = config(), FakeDisk()
    log = CommitLog(settings, disk)
    log.load()
    log.start_at(0, 0)
    return log, ReplicaLog(log, DELAY_LEVELS_MS)


def published(replica: ReplicaLog) -> list[DispatchEntry]:
    """Publish all that has come, share by share."""
    found = replica.publish()
    while replica.has_more:
        found += replica.publish()
    return found


def taken(
    made: tuple[CommitLog, ReplicaLog], pieces: list[bytes]
) -> Iterator[tuple[int, int, int, int, list[DispatchEntry] | str]]:
    """Return the results after each piece."""
    log, replica = made
    for piece in pieces:
        found: list[DispatchEntry] | str = []
        try:
            while piece:
                piece = piece[replica.write(piece) :]
                if piece:
                    end = log.queue.capacity_end
                    log.adopt(prepare_file(end, log.config, log.queue.disk))
            found = published(replica)
        except StoreError as error:
            found = str(error)
        newest = replica.overlap_start(log.end_offset)
        yield log.end_offset, log.last_store_timestamp, replica.damaged_at, newest, found


@pytest.mark.trial(short=20, long=3000)
def test_the_replica_scan_equals_the_record_by_record_scan(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the log is cut and whatever is wrong with it."""
    random = Random(seed)
    data = a_log(random, random.randint(1, 3))
    longest = random.choice((100, 3000, 40_000, 200_000))
    pieces, at = [], 0
    while at < len(data):
        pieces.append(data[at : at + random.randint(1, longest)])
        at += len(pieces[-1])
    fast = a_replica()
    with monkeypatch.context() as patched:
        patched.setattr(replica_log, "RecordScanner", OneByOne)
        slow = a_replica()
    assert list(taken(fast, pieces)) == list(taken(slow, pieces))


@pytest.mark.trial(short=30, long=1000)
def test_replicated_records_seen_before_change_nothing(seed: int) -> None:
    """Cached shapes do not change the result for a record."""
    random = Random(seed)
    used, offset = RecordScanner(DELAY_LEVELS_MS), 0
    for number in range(300):
        record = a_record(random, offset, number)
        if random.random() < 0.1:
            place = random.randrange(88, len(record))
            record = record[:place] + random.randbytes(1) + record[place + 1 :]
        results = []
        for taker in (used, used, RecordScanner(DELAY_LEVELS_MS)):
            entries: list[DispatchEntry] = []
            results.append((taker.scan(record, offset, entries), entries))
        assert results[0] == results[1] == results[2]
        offset += len(record)


def test_all_valid_records_are_taken_at_once() -> None:
    """So the careful way is not the usual one, and hides no fault of the fast one."""
    random, data, numbers = Random(1), b"", range(2 * SHAPES_MAX)
    for number in numbers:
        record = a_record(random, len(data), number)
        data += record
    entries: list[DispatchEntry] = []
    assert RecordScanner(DELAY_LEVELS_MS).scan(data, 0, entries) == len(data)
    assert [entry.queue_offset for entry in entries] == list(numbers)


def test_a_chunk_cut_anywhere_omits_the_last_record() -> None:
    """Nothing is read behind what has come."""
    whole = MessageRecord("T", b"body", b"UNIQ_KEY\x01k\x02TAGS\x01t", sys_flag=0x30)
    whole = replace(whole, born_host=bytes(20), store_host=bytes(20))
    first = encode_record(whole)
    second = encode_record(replace(whole, physical_offset=len(first)))
    taker = RecordScanner(DELAY_LEVELS_MS)
    for cut in range(len(second)):
        entries: list[DispatchEntry] = []
        assert taker.scan(first + second[:cut], 0, entries) == len(first)
        assert len(entries) == 1


@pytest.mark.parametrize(
    ("place", "value"),
    (
        (0, "000000ad"),  # one byte less than it has
        (0, "000000af"),
        (0, "0000005a"),
        (0, "80000000"),
        (4, "cbd43194"),
        (28, "0000000000000000"),  # the place of the one before it
        (84, "ffffffff"),
        (84, "00000005"),
        (84, "7fffffff"),
        (92, "80"),
        (92, "7f"),
        (94, "004f"),
        (94, "004d"),
        (94, "ffff"),
    ),
)
def test_invalid_records_are_not_taken(place: int, value: str) -> None:
    """Though one like it was: of what is remembered nothing vouches for the next."""
    text = b"UNIQ_KEY\x01k\x02TAGS\x01tag" + b"\x02W\x01" + bytes(56)
    plain = MessageRecord("T", b"body", text)
    first = encode_record(plain)
    second = encode_record(replace(plain, physical_offset=len(first)))
    assert len(second) == 0xAE and text[:1] == second[96:97]
    wrong = second[:place] + bytes.fromhex(value) + second[place + len(value) // 2 :]
    taker = RecordScanner(DELAY_LEVELS_MS)
    for data, count in ((second, 2), (wrong, 1)):
        entries: list[DispatchEntry] = []
        assert taker.scan(first + data + first, 0, entries) == count * len(first)
        assert len(entries) == count


def test_a_separator_is_not_a_key() -> None:
    """Two texts of one length, with the same before and behind the key."""
    taker = RecordScanner(DELAY_LEVELS_MS)
    for text, keys in ((b"UNIQ_KEY\x01v", (b"v",)), (b"UNIQ_KEY\x01\x02", ())) * 2:
        entries: list[DispatchEntry] = []
        taker.scan(encode_record(MessageRecord("T", b"", text)), 0, entries)
        assert entries[0].keys == keys
