"""The ledger of transactions: a half message like the one before is taken as any other is."""

from protocol.sysflag import TRANSACTION_ROLLBACK
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
    """Each behind one from which it differs in what the name says, and behind one of its like."""
    found: list[str] = []
    for key in KEYS:
        for queue in QUEUES:
            usual = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01one\x02REAL_QID\x01{queue}"
            plain = "UNIQ_KEY\x01A0\x02TRAN_MSG\x01true\x02PGROUP\x01one\x02REAL_QID\x015"
            found += [plain, usual, usual.replace("one", "two"), f"WAIT\x01true\x02{usual}", usual]
            found += [f"{usual}\x02TAGS\x01A", usual.replace("UNIQ_KEY", "KEYS"), ""]
    return found


def test_half_messages_like_the_one_before_are_pending_as_if_they_were_not(
    log: TransactionLog,
) -> None:
    quick, general = TransactionLedger(log.log.view), TransactionLedger(log.log.view)
    like_count = 0
    for number, text in enumerate(texts()):
        flags = 4 if number % 7 == 0 else TRANSACTION_ROLLBACK if number % 11 == 0 else 0
        half = put(
            b"half", topic=HALF, queue_id=number % 3, queue_offset=number, sys_flag=flags,
            properties=text.encode(), born_host=HOST_V6 if number % 5 == 0 else HOST,
        )  # fmt: skip
        if log.log.end_offset > log.config.commit_log_file_bytes - 500:
            log.log.start_at(0, log.now_ms)
            quick.start_at(0)
            general.start_at(0)
        entry = log.append(half)
        general._like = ledger._NO_LIKE
        like_count += quick._like is not ledger._NO_LIKE
        assert quick.changes_of([entry]) == general.changes_of([entry])
        assert quick.pending == general.pending
        pending, record = (
            quick.pending.get(entry.physical_offset),
            quick.read(entry.physical_offset, entry.record_bytes),
        )
        if pending is not None and record is not None:
            assert pending.key == ledger.identity(record)
    assert like_count > 100
