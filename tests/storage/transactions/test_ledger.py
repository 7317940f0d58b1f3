"""The ledger of transactions: half messages with usual and with odd properties."""

from time import thread_time
from types import SimpleNamespace
from typing import Any

from protocol.codes import TRANSACTION_ROLLBACK
from storage.transactions import ledger
from storage.transactions.ledger import TransactionLedger
from tests.support.puts import HOST, HOST_V6, put
from tests.support.transactions import HALF, TransactionLog

KEYS = (
    "A1", "A2", "B", "A3", "A\x02PGROUP\x01other", "é4", "", "A5\x02", "A6\x02UNIQ_KEY\x01A7",
    "A8", "A8", "A9\x02TRANSACTION_CHECK_TIMES\x012", "AB",
)  # fmt: skip
QUEUES = ("3", "12", "3\x02UNIQ_KEY\x01C", "3\x02TRAN_PREPARED_QUEUE_OFFSET\x011", "x", "", "4")


def texts() -> list[str]:
    """Return texts with odd keys and queue ids, in usual and other places."""
    found: list[str] = []
    for key in KEYS:
        for queue in QUEUES:
            usual = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01one\x02REAL_QID\x01{queue}"
            plain = "UNIQ_KEY\x01A0\x02TRAN_MSG\x01true\x02PGROUP\x01one\x02REAL_QID\x015"
            found += [plain, usual, usual.replace("one", "two"), f"WAIT\x01true\x02{usual}", usual]
            found += [f"{usual}\x02TAGS\x01A", usual.replace("UNIQ_KEY", "KEYS"), ""]
    return found


def test_key_of_a_pending_half_message_is_the_identity_of_its_record(log: TransactionLog) -> None:
    made, count = TransactionLedger(log.log.view), 0
    for number, text in enumerate(texts()):
        flags = 4 if number % 7 == 0 else TRANSACTION_ROLLBACK if number % 11 == 0 else 0
        half = put(
            b"half", topic=HALF, queue_id=number % 3, queue_offset=number, sys_flag=flags,
            properties=text.encode(), born_host=HOST_V6 if number % 5 == 0 else HOST,
        )  # fmt: skip
        if log.log.end_offset > log.config.commit_log_file_bytes - 500:
            log.log.start_at(0, log.now_ms)
            made.start_at(0)
        entry = log.append(half)
        made.changes_of([entry])
        pending = made.pending.get(entry.physical_offset)
        record = made.read(entry.physical_offset, entry.record_bytes)
        if pending is not None and record is not None:
            assert pending.key == ledger.identity(record)
            count += 1
    assert count > 100


def test_open_transactions_of_deleted_files_are_forgotten_in_linear_time(
    log: TransactionLog,
) -> None:
    """100,000 took 2.8 s, 200,000 eleven."""
    made = TransactionLedger(log.log.view)
    pending: dict[int, Any] = {
        offset: SimpleNamespace(physical_offset=offset, is_half=False) for offset in range(60_000)
    }
    made.pending = pending
    began_s = thread_time()
    made.forget_before(59_000)
    assert thread_time() - began_s < 0.4
    assert [*made.pending] == [*range(59_000, 60_000)]
