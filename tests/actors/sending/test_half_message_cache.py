"""Half messages that are kept are those of the log, few enough, and gone with their files."""

import pytest

from actors.sending import half_message_cache
from actors.sending.half_message_cache import HalfMessageCache, with_owner, without_owner
from actors.sending.half_message_cache import HalfRecord as Record
from protocol.codes import BORN_HOST_V6
from protocol.frame import RemotingCommand
from protocol.message import body_crc
from protocol.send_values import send_of
from protocol.sink import owner_of
from storage.config import StoreConfig
from storage.log.commit_log import CommitLog, prepare_file
from tests.support.brokers import send_command
from tests.support.guarded import signed
from tests.support.puts import HOST, HOST_V6
from troupemq.testing.fake_disk import FakeDisk

HALF = b"RMQ_SYS_TRANS_HALF_TOPIC"
CONFIG = StoreConfig(root="/store", commit_log_file_bytes=4096)
PLAIN = b"TRAN_MSG\x01true\x02PGROUP\x01p"
TEXT = b"UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02REAL_TOPIC\x01Topic\x02REAL_QID\x013"


def log_of(store_host: bytes = HOST) -> CommitLog:
    log = CommitLog(CONFIG, FakeDisk())
    log.load()
    log.start_at(0, 0)
    log.store_host = store_host
    return log


def half(number: int = 0, born_host: bytes = HOST, body: bytes = b"body") -> Record:
    v6 = BORN_HOST_V6 if len(born_host) > len(HOST) else 0
    return Record(
        HALF, 0, number, 7, 1 | v6, 1_600_000_000_000, born_host, 2, 0, body, TEXT,
        body_crc(body), 5, (b"K",),
    )  # fmt: skip


def put(log: CommitLog, recent: HalfMessageCache, record: Record, now_ms: int = 1000) -> int:
    """Append as PutMessage does; return the physical offset."""
    recent.expected.append(record)
    placed = log.append([record], now_ms)
    if placed:
        record.physical_offset, record.record_bytes = placed[0]
    recent.stored()
    return record.physical_offset


@pytest.mark.parametrize("store_host", [HOST, HOST_V6], ids=["v4", "v6"])
@pytest.mark.parametrize("born_host", [HOST, HOST_V6], ids=["v4", "v6"])
def test_a_cached_record_equals_that_of_the_log_and_is_taken_once(
    store_host: bytes, born_host: bytes
) -> None:
    log = log_of(store_host)
    recent = HalfMessageCache(log)
    for number, body in enumerate((b"body", b"", bytes(300))):
        offset = put(log, recent, half(number, born_host, body), 1000 + number)
        found = recent.take(offset)
        assert found is not None and found == log.read_record(offset)
        assert recent.take(offset) is None


def test_a_half_message_that_did_not_fit_is_not_cached() -> None:
    log = log_of()
    recent = HalfMessageCache(log)
    while put(log, recent, half()) >= 0:
        pass
    assert recent.take(-1) is None and recent.expected == []


def test_at_most_two_generations_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_message_cache, "GENERATION_COUNT_MAX", 3)
    log = log_of()
    recent = HalfMessageCache(log)
    offsets = [put(log, recent, half(number)) for number in range(8)]
    assert [recent.take(offset) is not None for offset in offsets] == [False] * 3 + [True] * 5


def test_the_cached_bytes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_message_cache, "GENERATION_BYTES_MAX", 900)
    log = log_of()
    recent = HalfMessageCache(log)
    offsets = [put(log, recent, half(number, body=bytes(300))) for number in range(5)]
    assert sum(recent.take(offset) is not None for offset in offsets) <= 2


def test_a_half_message_in_a_deleted_file_is_not_found() -> None:
    log = log_of()
    recent = HalfMessageCache(log)
    first = put(log, recent, half())
    log.adopt(prepare_file(4096, CONFIG, log.queue.disk))
    while log.end_offset < 4096:
        put(log, recent, half())
    log.drop_before(4096)
    assert recent.take(first) is None


# --- the owner


def sent(command: RemotingCommand) -> bytes:
    return with_owner(PLAIN, send_of(command))


def test_the_account_that_signed_a_send_is_the_owner() -> None:
    owner = owner_of("shop-account").encode()
    text = sent(signed(send_command(b"b"), "shop-account"))
    assert text == PLAIN + b"\x02TROUPE_OWNER\x01" + owner
    assert without_owner(text) == PLAIN


def test_a_send_without_an_account_has_no_owner() -> None:
    assert sent(send_command(b"b")) == PLAIN


def test_no_sender_names_the_owner() -> None:
    forged = b"TROUPE_OWNER\x01mine\x02" + PLAIN + b"\x02TROUPE_OWNER\x01mine"
    text = with_owner(forged, send_of(signed(send_command(b"b"), "shop-account")))
    assert text.count(b"TROUPE_OWNER") == 1 and b"mine" not in text


def test_similar_names_and_values_are_kept() -> None:
    text = b"a\x01TROUPE_OWNER\x02TROUPE_OWNERS\x01b"
    assert without_owner(text) == text
