"""Checks a whole store directory without changing it: what `troupemq store check` says.

The log and the queues against each other in both directions, the index, the checkpoint, the config
files and the transaction table. A store that was written by 4.9.7 is checked by the same rules.

No lock is taken: beside a running broker, what is being written may be found unfinished.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from protocol.message import RecordHead
from storage.commit_log import CommitLog
from storage.config import StoreConfig
from storage.damage import Damage
from storage.disk import Disk
from storage.dispatch import DispatchEntry, delay_levels_ms, entry_of
from storage.errors import StoreError
from storage.followers import LogReader as EntriesReader
from storage.index_check import checks_of
from storage.index_file import IndexFile
from storage.json_config import load, parsed_object
from storage.lock_file import was_stopped_cleanly
from storage.read_only_disk import ReadOnlyDisk
from storage.scrub.files import LogReader
from storage.scrub.round import Scrub
from storage.scrub.units import Findings, QueueKey, ScrubCounts
from storage.scrub.walk import Gap, walk
from storage.store_layout import LogExtent, index_names, log_extent, queue_extents
from storage.transactions.table import TransactionTable

KEPT_MAX = 1000
"""Findings of one part that are kept in words; what comes after is only counted."""
TABLE_DIRECTORY = "transaction/statetable"
_CHECKPOINT_TIMES_BYTES = 24


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or (a note) that an operator may want to know."""

    part: str
    """commit log, consume queues, index, checkpoint, config, transaction table, store."""
    text: str
    is_wrong: bool = True


@dataclass(slots=True)
class CheckReport:
    """What a check found."""

    findings: list[Finding] = field(default_factory=list)
    wrong_counts: Counter[str] = field(default_factory=Counter)
    """By part; also of what is not among the findings any more."""
    log_start: int = 0
    log_end: int = 0
    queue_count: int = 0
    index_file_count: int = 0
    counts: ScrubCounts = field(default_factory=ScrubCounts)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong; there may be notes."""
        return not self.wrong_counts

    def wrong(self, part: str, texts: Iterable[str]) -> None:
        """Notes what is wrong."""
        for text in texts:
            self.wrong_counts[part] += 1
            if self.wrong_counts[part] <= KEPT_MAX:
                self.findings.append(Finding(part, text))

    def note(self, part: str, text: str) -> None:
        """Notes what is not wrong."""
        self.findings.append(Finding(part, text, is_wrong=False))


class StoreCheck:
    """One check of one directory; `config` has the sizes that its files were made with."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self.report = CheckReport()
        self._disk = ReadOnlyDisk(disk)
        self._config = config
        self._damage = Damage()

    def run(self) -> CheckReport:
        """Everything, in order. Raises StoreError when the directory cannot be read."""
        report = self.report
        try:
            if not was_stopped_cleanly(self._config, self._disk):
                report.note("store", "it was not stopped cleanly: the next start recovers it")
            extent = self._log_and_queues()
            with_log = CommitLog(self._config, self._disk)
            try:
                with_log.load()
                with_log.end_offset = with_log.flushed_offset = report.log_end
                self._index(with_log)
                self._transaction_table(with_log)
            except StoreError as error:
                report.wrong("commit log", () if extent.problems else (str(error),))
            finally:
                with_log.close()
            self._checkpoint(extent)
            self._config_files()
        except OSError as error:
            raise StoreError(f"cannot check the store ({error})") from error
        return report

    # -- log and queues -------------------------------------------------------------------------

    def _log_and_queues(self) -> LogExtent:
        config, report = self._config, self.report
        extent, queues = log_extent(self._disk, config), queue_extents(self._disk, config)
        report.wrong("commit log", extent.problems)
        report.wrong("consume queues", queues.problems)
        report.log_start, report.log_end = extent.start, extent.end
        report.queue_count = len(queues.ends)
        if extent.end < queues.physical_end <= extent.capacity_end:
            # The last record may be the damaged one.
            report.log_end = queues.physical_end
        elif queues.physical_end > extent.end:
            text = f"units point behind the end of the log, up to {queues.physical_end}"
            report.wrong("consume queues", (text,))
        if extent.stale_bytes and report.log_end == extent.end:
            text = f"{extent.stale_bytes} bytes behind its end, {extent.end}, are not zeros"
            report.note("commit log", text)
        self._sum_up(self._compare(queues.ends))
        return extent

    def _compare(self, queue_ends: Mapping[QueueKey, int]) -> ScrubCounts:
        """Log and queues against each other; notes what is wrong, fills the damage."""
        log_end = self.report.log_end
        scrub = Scrub(
            self._disk, self._config, self._damage, log_end=log_end, queue_ends=queue_ends
        )
        for _ in scrub.steps():
            self._take(scrub.take())
        self._take(scrub.take())
        scrub.close()
        return scrub.counts

    def _take(self, found: Findings) -> None:
        self.report.wrong(
            "commit log",
            (f"damaged from {start} to {end}: {why}" for start, end, why in found.damaged),
        )
        self.report.wrong("consume queues", found.reasons)

    def _sum_up(self, counts: ScrubCounts) -> None:
        report = self.report
        report.counts = counts
        if counts.newer_count:
            text = f"{counts.newer_count} records have no unit behind the end of their queues"
            report.wrong("consume queues", (text,))
        if counts.unsettled_count:
            text = f"{counts.unsettled_count} units have no record in the log"
            report.wrong("consume queues", (text,))
        if counts.shifted_count:
            text = f"{counts.shifted_count} units count otherwise than their records"
            report.note("consume queues", text)
        if counts.stray_count:
            text = f"{counts.stray_count} records are of older lives of their topics"
            report.note("commit log", text)
        known = self._topics()
        for (topic, queue_id), count in sorted(counts.unknown_queues.items()):
            name = topic.decode("utf-8", "backslashreplace")
            text = f"queue {queue_id} of {name} is missing; the log has {count} messages of it"
            if name in known:
                report.wrong("consume queues", (text,))
            else:
                report.note("consume queues", f"{text}, and the topic was deleted")

    def _topics(self) -> set[str]:
        path = f"{self._config.config_dir}/topics.json"
        table = (load(self._disk, path, parsed_object).value or {}).get("topicConfigTable")
        return {str(name) for name in table} if isinstance(table, dict) else set()

    # -- what follows the log -------------------------------------------------------------------

    def _index(self, log: CommitLog) -> None:
        config, report = self._config, self.report
        files: list[IndexFile] = []
        for name in index_names(self._disk, config):
            file = IndexFile(
                self._disk,
                f"{config.index_dir}/{name}",
                config.max_hash_slots,
                config.max_index_entries,
            )
            if fault := file.load():
                report.wrong("index", (f"{file.path}: {fault}",))
                return
            files.append(file)
        report.index_file_count = len(files)
        reader = EntriesReader(log, self._damage, delay_levels_ms(config.message_delay_level))
        for check in checks_of(config, self._disk, log, self._damage, reader, tuple(files)):
            try:
                while not check.step():
                    pass
            finally:
                check.close()
            if check.reason:
                report.wrong("index", (f"{check.path}: {check.reason}",))

    def _transaction_table(self, log: CommitLog) -> None:
        if not self._disk.listdir(f"{self._config.root}/{TABLE_DIRECTORY}"):
            return  # made at the next start
        table = TransactionTable(self._config, self._disk, log.view, lambda: 0)
        try:
            fault = table.load(self.report.log_start, self.report.log_end)
            differences = [fault] if fault else table.verify(self._entries())
        except StoreError as error:
            differences = [str(error)]
        finally:
            table.close()
        self.report.wrong("transaction table", differences)

    def _entries(self) -> Iterator[DispatchEntry]:
        reader = LogReader(self._disk, self._config, self.report.log_end)
        levels = delay_levels_ms(self._config.message_delay_level)
        for item in walk(reader, self.report.log_start, self.report.log_end):
            if isinstance(item, RecordHead) and not isinstance(item, Gap):
                yield entry_of(item, levels)
        reader.close()

    # -- the small files ------------------------------------------------------------------------

    def _checkpoint(self, extent: LogExtent) -> None:
        path, report = self._config.checkpoint_path, self.report
        if not self._disk.exists(path):
            if extent.end > extent.start:
                report.wrong("checkpoint", ("it is missing",))
            return
        data = self._disk.read_bytes(path)
        if len(data) < _CHECKPOINT_TIMES_BYTES:
            report.wrong("checkpoint", (f"it has {len(data)} bytes",))
            return
        names = ("commit log", "consume queues", "index")
        for number, name in enumerate(names):
            time_ms = int.from_bytes(data[number * 8 : number * 8 + 8], signed=True)
            if time_ms < 0 or time_ms > extent.last_store_timestamp > 0:
                text = f"its time of the {name}, {time_ms}, is not one of the log's"
                report.wrong("checkpoint", (text,))

    def _config_files(self) -> None:
        directory = self._config.config_dir
        names = self._disk.listdir(directory)
        for name in sorted({each.removesuffix(".bak") for each in names}):
            if not name.endswith(".json"):
                continue
            path = f"{directory}/{name}"
            if found := load(self._disk, path, parsed_object).findings:
                self.report.wrong("config", (found,))
            elif f"{name}.bak" in names and (fault := self._fault_of(f"{path}.bak")):
                self.report.wrong("config", (fault,))

    def _fault_of(self, path: str) -> str:
        try:
            parsed_object(self._disk.read_bytes(path).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            return f"{path} cannot be used ({error})"
        return ""
