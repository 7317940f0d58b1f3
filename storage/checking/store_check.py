"""Check of a whole store directory without changes: `troupemq store check`.

First the code of the start itself rehearses the next start, on a disk that keeps nothing. This
finds what the start would repair, omit or lose. Then comes what a start does not read: log and
queues against each other in both directions, the index, the transaction table. The same rules hold
for a store that 4.9.7 has written.

No lock is taken. Beside a running broker nothing is rehearsed, because its store will still change,
and parts being written may look unfinished.

The loaders of a start check the JSON tables: what they omit or refuse. Previous versions and
checksums are covered too, which a start reads only after damage.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.bloom import BloomFilter
from protocol.bodies_tables import SubscriptionGroupTable, TopicConfig, TopicConfigTable
from protocol.message import RecordHead
from protocol.topic_names import SCHEDULE_TOPIC
from storage.checking.index_check import checks_of
from storage.checking.store_layout import LogExtent, index_names, log_extent, queue_extents
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms, entry_of
from storage.dispatching.followers import DispatchReader
from storage.errors import Finding, StoreError, store_error
from storage.files.disk import Disk
from storage.files.lock_file import was_stopped_cleanly
from storage.files.overlay_disk import OverlayDisk
from storage.files.read_only_disk import ReadOnlyDisk
from storage.index.index_file import IndexFile
from storage.log.commit_log import CommitLog
from storage.log.damage import Damage
from storage.log.reader import NamedLogReader, walk
from storage.message_store import MessageStore
from storage.queues.dispatch_entry import DispatchEntry
from storage.recovery.clean_stop import read_clean_stop
from storage.recovery.recovery import RecoveryReport
from storage.recovery.start_findings import made_anew
from storage.scrub.round import Scrub
from storage.scrub.units import Findings, QueueKey, ScrubCounts
from storage.tables.consumer_filters import ConsumerFilters
from storage.tables.crc_sidecar import Sidecar
from storage.tables.delay_offsets import parse_delay_offsets
from storage.tables.json_config import Loaded, load, parsed_object
from storage.tables.offset_journal import (
    JournalFault,
    OffsetState,
    journal_directory,
    replay,
)
from storage.tables.offsets import parse_offsets
from storage.tables.store_traces import restored_groups, restored_topics
from storage.tables.table_files import BROKER_TABLES, table_parsers
from storage.tables.topics import always_present
from storage.transactions.table import TransactionTable

T = TypeVar("T")

_NAMES_MAX = 20
"""Maximum number of topics or groups in a finding."""


def _usual_topics() -> dict[str, TopicConfig]:
    return {topic.topic_name: topic for topic in always_present("DefaultCluster", "")}


@dataclass(frozen=True, slots=True)
class TableSettings:
    """Settings of the broker that a start uses; defaults where they are unknown."""

    bloom: BloomFilter = field(default_factory=BloomFilter.of)
    known_topics: Mapping[str, TopicConfig] = field(default_factory=_usual_topics)
    """Topics that the broker always has."""
    are_known: bool = False
    """Whether the settings are those of the broker."""


def table_findings(
    disk: Disk,
    config: StoreConfig,
    settings: TableSettings,
    queues_made: Collection[tuple[str, int]] = (),
) -> Iterator[Finding]:
    """Yield the findings in the order of the files. Raise StoreError like a start.

    `queues_made` are missing queues that exist before a start loads the tables.
    """
    parsers = table_parsers(settings.bloom)
    for name in BROKER_TABLES:
        path = f"{config.config_dir}/{name}"
        loaded = load(disk, path, parsers[name])
        if loaded.findings:
            yield Finding("config", loaded.findings)
        for each in loaded.left_out:
            yield Finding("config", entry_left_out(path, each.entry, each.reason))
        yield from _consequences(disk, path, loaded, settings, queues_made)
        yield from _previous(disk, path, loaded)


def entry_left_out(path: str, entry: str, reason: str) -> str:
    """Return the text for an entry that cannot be used."""
    return f"{path}: {entry} is left out: {reason}"


def found_again(path: str, names: list[str]) -> str:
    """Return the text for topics or groups restored from other parts of the store."""
    shown = ", ".join(names[:_NAMES_MAX])
    if len(names) > _NAMES_MAX:
        shown += f" and {len(names) - _NAMES_MAX} more"
    return f"{path}: restored with default settings, from queues and offsets: {shown}"


def _consequences(
    disk: Disk,
    path: str,
    loaded: Loaded[object],
    settings: TableSettings,
    queues_made: Collection[tuple[str, int]],
) -> Iterator[Finding]:
    """Yield what a start adds to an incomplete table, or omits."""
    name = path.rpartition("/")[2]
    whole = loaded.is_newest, loaded.broken, loaded.findings, loaded.left_out
    found: list[str] = []
    if name == "topics.json":
        topics = Loaded(_as(TopicConfigTable, loaded.value), *whole)
        known = settings.known_topics
        _, found = restored_topics(disk, path, topics, known, {}, 0, queues_made)
    elif name == "subscriptionGroup.json":
        groups = Loaded(_as(SubscriptionGroupTable, loaded.value), *whole)
        _, found = restored_groups(disk, path, groups, (), 0, queues_made)
    elif isinstance(filters := loaded.value, ConsumerFilters):
        count = len(filters) - len(filters.loaded(0))
        if count:
            text = f"{path}: {count} filters are for other bit maps: they are skipped"
            yield Finding("config", text, is_wrong=settings.are_known)
    if found:
        yield Finding("config", found_again(path, found))


def _as(kind: type[T], value: object) -> T | None:
    return value if isinstance(value, kind) else None


def _previous(disk: Disk, path: str, loaded: Loaded[object]) -> Iterator[Finding]:
    """Yield faults of the previous version, if a start does not need it, and of the checksums."""
    backup, sidecar = f"{path}.bak", f"{path}.crc"
    if loaded.value is not None and not loaded.broken and disk.exists(backup):
        if disk.is_dir(backup):
            yield Finding("config", f"{backup} is a directory")
        else:
            try:
                parsed_object(disk.read_bytes(backup).decode("utf-8"))
            except (ValueError, RecursionError) as error:
                yield Finding("config", f"{backup} cannot be used ({error})")
    if disk.exists(sidecar) and (
        disk.is_dir(sidecar) or Sidecar.decode(disk.read_bytes(sidecar)) is None
    ):
        yield Finding("config", f"{sidecar} is damaged: it cannot identify a flipped bit")


KEPT_MAX = 1000
"""Findings of one part with their text; further ones are only counted."""
TABLE_DIRECTORY = "transaction/statetable"
_CHECKPOINT_TIMES_BYTES = 24
_NOT_YET = "units are written some 0.2 s after their records; check again"


@dataclass(slots=True)
class CheckReport:
    findings: list[Finding] = field(default_factory=list)
    wrong_counts: Counter[str] = field(default_factory=Counter)
    """Faults by part, including those without a finding."""
    log_start: int = 0
    log_end: int = 0
    queue_count: int = 0
    index_file_count: int = 0
    counts: ScrubCounts = field(default_factory=ScrubCounts)
    _known: set[Finding] = field(default_factory=set)

    @property
    def is_clean(self) -> bool:
        """Whether the report has no faults; it may have notes."""
        return not self.wrong_counts

    def add(self, findings: Iterable[Finding]) -> None:
        for each in findings:
            if each in self._known:
                continue
            if each.is_wrong:
                self.wrong_counts[each.part] += 1
            if self.wrong_counts[each.part] <= KEPT_MAX:
                self.findings.append(each)
                self._known.add(each)

    def wrong(self, part: str, texts: Iterable[str]) -> None:
        self.add(Finding(part, text) for text in texts)

    def note(self, part: str, text: str) -> None:
        self.add((Finding(part, text, is_wrong=False),))


class StoreCheck:
    """One check of one directory; `config` has the file sizes that it was written with."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        *,
        in_use: bool = False,
        tables: TableSettings | None = None,
    ) -> None:
        """Create a check; `in_use` means that a broker runs on the store."""
        self.report = CheckReport()
        self._disk = ReadOnlyDisk(disk)
        self._in_use = in_use
        self._tables = tables or TableSettings()
        self._next_start = RecoveryReport()
        self._queues_then: set[tuple[str, int]] = set()
        """Queues after the next start following a crash, rebuilt or not."""
        self._config = config
        self._damage = Damage()

    def run(self) -> CheckReport:
        """Run all checks in order. Raise StoreError if the directory cannot be read."""
        report = self.report
        try:
            if not self._in_use:
                self._rehearse()
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
            made = self._queues_made()
            report.add(table_findings(self._disk, self._config, self._tables, made))
            self._offset_journal()
        except OSError as error:
            raise store_error("cannot check the store", error) from error
        return report

    def _rehearse(self) -> None:
        """Report what the next start would report."""
        if not was_stopped_cleanly(self._config, self._disk):
            self.report.note("store", "unclean stop: the next start recovers the store")
        store = MessageStore(self._config, OverlayDisk(self._disk), SystemClock())
        try:
            self._next_start = store.rehearse()
            self.report.add(self._next_start.all_findings())
            if not self._next_start.clean:
                self._queues_then = set(store.consume_queues.names())
        except StoreError as error:
            self.report.wrong("store", (f"a start would fail: {error}",))

    def _queues_made(self) -> set[tuple[str, int]]:
        """Return the queues that the next start creates before it loads the tables."""
        if not self._next_start.all_queues_made:
            return self._next_start.queues_made
        found = self.report.counts.unknown_queues
        return {(topic.decode("utf-8", "surrogateescape"), number) for topic, number in found}

    def _offset_journal(self) -> None:
        """Report damage of the journal of consumer offsets; a start leaves out what is behind it.

        Beside a running broker, the table and the journal are of different moments.
        """
        config, faults = self._config, list[JournalFault]()
        table = load(self._disk, f"{config.config_dir}/consumerOffset.json", parse_offsets).value
        if self._in_use or table is None or table.journal is None:
            return
        directory, state = journal_directory(config), OffsetState(table.offset_table)
        replay(self._disk, directory, table.journal, state, faults)
        is_clean = was_stopped_cleanly(config, self._disk)
        for each in faults:
            text = f"{each.text}: groups consume more messages again"
            self.report.add((Finding("config", text, is_wrong=is_clean or not each.is_at_end),))

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
            report.note("commit log", f"behind its end, {extent.end}, not all is zeros")
        self._sum_up(self._compare(queues.ends))
        self._missing_levels(queues.ends)
        return extent

    def _missing_levels(self, queue_ends: Mapping[QueueKey, int]) -> None:
        """Note the messages in delay levels that messageDelayLevel does not have."""
        path = f"{self._config.config_dir}/delayOffset.json"
        table = load(self._disk, path, parse_delay_offsets).value
        offsets = {} if table is None else table.offset_table
        count = len(delay_levels_ms(self._config.message_delay_level))
        for (topic, queue_id), end in sorted(queue_ends.items()):
            waiting = end - offsets.get(queue_id + 1, 0)
            if topic == SCHEDULE_TOPIC.encode() and queue_id >= count and waiting > 0:
                text = f"{waiting} messages wait in level {queue_id + 1}, which messageDelayLevel"
                text += f" does not have ({count} levels): they are delivered when they are due"
                self.report.note("delayed messages", text)

    def _compare(self, queue_ends: Mapping[QueueKey, int]) -> ScrubCounts:
        """Compare log and queues; report faults and fill the damage."""
        log_end = self.report.log_end
        scrub = Scrub(
            self._disk, self._config, self._damage, log_end=log_end, queue_ends=queue_ends
        )
        for _ in scrub.steps():
            self._take(scrub.pop_findings())
        self._take(scrub.pop_findings())
        scrub.close()
        return scrub.counts

    def _take(self, found: Findings) -> None:
        self.report.wrong(
            "commit log",
            (f"damaged from {start} to {end}: {why}" for start, end, why in found.damaged),
        )
        self.report.wrong("consume queues", found.reasons)
        self.report.add(Finding("commit log", *each) for each in found.unreadable)

    def _sum_up(self, counts: ScrubCounts) -> None:
        report = self.report
        report.counts = counts
        if counts.newer_count:
            text = f"{counts.newer_count} records have no unit behind the end of their queues"
            if self._in_use:
                report.note("consume queues", f"{text}: {_NOT_YET}")
            elif was_stopped_cleanly(self._config, self._disk):
                report.wrong("consume queues", (text,))
            else:
                report.note("consume queues", f"{text}: the next start makes them")
        if counts.unconfirmed_count:
            text = f"{counts.unconfirmed_count} units have no record in the log"
            report.wrong("consume queues", (text,))
        if counts.shifted_count:
            text = f"{counts.shifted_count} units count differently from their records"
            report.note("consume queues", text)
        if counts.stray_count:
            text = f"{counts.stray_count} records are of deleted topics of the same name"
            report.note("commit log", text)
        known = self._topics()
        stop = read_clean_stop(self._config, self._disk) if self._next_start.known else None
        for (topic, queue_id), count in sorted(counts.unknown_queues.items()):
            name = topic.decode("utf-8", "backslashreplace")
            text = f"queue {queue_id} of {name} is missing; the log has {count} messages of it"
            if self._in_use and name in known:
                report.note("consume queues", f"{text}: {_NOT_YET}")
            elif (name, queue_id) in self._queues_then:
                report.note("consume queues", f"{text}: the next start makes it")
            elif name in known and (stop is None or (name, queue_id) in stop.queues):
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
                if self._in_use:
                    report.wrong("index", (f"{file.path}: {fault}",))
                return  # reported by the rehearsed start
            files.append(file)
        report.index_file_count = len(files)
        reader = DispatchReader(log, delay_levels_ms(config.message_delay_level))
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
            return  # the next start rebuilds it
        # a load clears what a killed broker has written behind its saved offset
        disk = OverlayDisk(self._disk)
        table = TransactionTable(self._config, disk, log.view, lambda: 0)
        try:
            fault = table.load(self.report.log_start, self.report.log_end)
            differences = [made_anew(fault)] if fault else table.verify(self._entries())
        except StoreError as error:
            differences = [str(error)]
        finally:
            table.close()
        self.report.wrong("transaction table", differences)

    def _entries(self) -> Iterator[DispatchEntry]:
        reader = NamedLogReader(self._disk, self._config, self.report.log_end)
        levels = delay_levels_ms(self._config.message_delay_level)
        for item in walk(reader, self.report.log_start, self.report.log_end):
            if isinstance(item, RecordHead):
                yield entry_of(item, levels)
        reader.close()

    # -- the small files ------------------------------------------------------------------------

    def _checkpoint(self, extent: LogExtent) -> None:
        path, report = self._config.checkpoint_path, self.report
        data = self._disk.read_bytes(path) if self._disk.exists(path) else b""
        if len(data) < _CHECKPOINT_TIMES_BYTES:
            return  # reported by the rehearsed start
        names = ("commit log", "consume queues", "index")
        for number, name in enumerate(names):
            time_ms = int.from_bytes(data[number * 8 : number * 8 + 8], signed=True)
            if time_ms < 0 or time_ms > extent.last_store_timestamp > 0:
                text = f"its time of the {name}, {time_ms}, is outside the log's range"
                report.wrong("checkpoint", (text,))
