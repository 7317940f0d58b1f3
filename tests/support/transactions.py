"""Transactions in a commit log, as 4.9.7 writes them and as brokers before it did, made short."""

from collections.abc import Callable

from protocol.message import RecordHead
from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.log.commit_log import CommitLog, PutRecord
from storage.queues.dispatch_entry import DispatchEntry
from storage.transactions.table import TransactionTable
from tests.support.puts import HOST, append, put
from troupemq.testing.fake_disk import FakeDisk

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
MAX_TIME = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "producers"
START_MS = 1_700_000_000_000
FILE_UNITS = 5
CONFIG = StoreConfig(
    root="/store", commit_log_file_bytes=8192, consume_queue_file_bytes=FILE_UNITS * 20
)
STATE_TABLE = "/store/transaction/statetable"
REDO_LOG = "/store/transaction/redolog/covered_offset"


class TransactionLog:
    """A commit log of its own, and what a broker puts into it."""

    def __init__(self, disk: FakeDisk, config: StoreConfig, end_offset: int = 0) -> None:
        self.disk, self.config = disk, config
        self.log = CommitLog(config, disk)
        self.log.load()
        self.log.start_at(end_offset, START_MS)
        self.log.store_host = HOST
        self.now_ms = START_MS
        self.next_offsets: dict[str, int] = {}

    def append(self, record: PutRecord) -> DispatchEntry:
        """Puts one record into the log; what is dispatched of it."""
        self.now_ms += 10
        ((offset, _),) = append(self.log, [record], self.now_ms)
        return entry_of(next(self.log.walk(offset)), ())

    def entries(self, wanted: Callable[[RecordHead], bool] = lambda _: True) -> list[DispatchEntry]:
        """Return the dispatch values of all records."""
        heads = self.log.walk(self.log.min_offset())
        return [entry_of(head, ()) for head in heads if wanted(head)]

    def half(self, key: str, *, more: str = "", group: str = GROUP) -> DispatchEntry:
        """A half message."""
        properties = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01{group}{more}"
        return self._put(HALF, f"half of {key}", properties)

    def checked(self, key: str, times: int = 1) -> DispatchEntry:
        """A half message that a check-back puts into the log again."""
        return self.half(key, more=f"\x02TRANSACTION_CHECK_TIMES\x01{times}")

    def commit(self, half: DispatchEntry) -> DispatchEntry:
        """The message of a half message, in its real topic."""
        key = half.keys[0].decode()
        return self._put(
            "Topic", key, f"UNIQ_KEY\x01{key}", sys_flag=8, prepared_offset=half.physical_offset
        )

    def op(self, half: DispatchEntry) -> DispatchEntry:
        """Add the operation message that settles a half message."""
        return self._put(OP, str(half.queue_offset), "TAGS\x01d")

    def discard(self, key: str) -> DispatchEntry:
        """A half message that is given up."""
        return self._put(MAX_TIME, f"half of {key}", f"UNIQ_KEY\x01{key}")

    def prepared(self) -> DispatchEntry:
        """A prepared message of an older broker."""
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}".encode()
        return self.append(put(b"old", sys_flag=4, properties=properties))

    def ended(self, prepared: DispatchEntry, sys_flag: int) -> DispatchEntry:
        """The commit (8) or rollback (12) of one."""
        return self.append(put(b"old", sys_flag=sys_flag, prepared_offset=prepared.physical_offset))

    def plain(self) -> DispatchEntry:
        """A message without a transaction."""
        return self._put("Topic", "plain", "UNIQ_KEY\x01plain")

    def _put(
        self, topic: str, body: str, properties: str, *, sys_flag: int = 0, prepared_offset: int = 0
    ) -> DispatchEntry:
        queue_offset = self.next_offsets.get(topic, 0)
        self.next_offsets[topic] = queue_offset + 1
        return self.append(
            put(
                body.encode(),
                topic=topic,
                queue_offset=queue_offset,
                sys_flag=sys_flag,
                properties=properties.encode(),
                prepared_offset=prepared_offset,
            )
        )


def table_of(log: TransactionLog) -> TransactionTable:
    """A table that has not been loaded."""
    commit_log = log.log
    return TransactionTable(CONFIG, log.disk, commit_log.view, lambda: commit_log.flushed_offset)


def saved(log: TransactionLog, table: TransactionTable) -> None:
    """Everything on disk, the log first."""
    log.log.sync(log.log.end_offset)
    table.sync()


def reopened(log: TransactionLog, reason: str = "") -> TransactionTable:
    """The table as the next start finds it, with that doubt."""
    table = table_of(log)
    assert reason in table.load(log.log.min_offset(), log.log.end_offset)
    return table


def states(table: TransactionTable) -> list[int]:
    """The states of all transactions, oldest first."""
    return [unit.state for unit in table.snapshot()]
