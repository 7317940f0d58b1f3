"""Report the lag of consumer groups, in messages and in time, and its trend.

    argument       meaning                                                   default
    store          storePathRootDir                                          required
    commit_log     storePathCommitLog                                        <store>/commitlog
    output         directory of history and plot                             no history
    groups         list of consumer groups                                   all
    topics         list of topics                                            all
    trend_hours    hours back to the backlog to compare with                 24
    now_ms         end of the time lag, ms since 1970                        the clock's

The job reads only files: the consumer offsets, which the broker saves every 5 s, the ends of the
queues, and one record per queue. The age of that record, the next that a group will get, is the
time lag. With `output`, each run adds a line to history.jsonl there, the source of the trend and of
the plot, backlog.html. A queue without a consumer offset of a group is named, not guessed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import TYPE_CHECKING, Any

from protocol.message import RecordHead
from spark.arguments import OfStore, check_output, checked
from spark.report import Chart, Report, duration, text_table, write_page
from storage.checking.store_layout import queue_extents, with_sizes_of_files
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import RealDisk
from storage.files.read_only_disk import ReadOnlyDisk
from storage.log.reader import NamedLogReader, record_at
from storage.scrub.unit_reader import UnitReader
from storage.tables.json_config import load
from storage.tables.offsets import TOPIC_GROUP_SEPARATOR, parse_offsets
from storage.tables.settings_file import save_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDS_SPARK = False
HISTORY_MAX = 5000
"""Maximum runs in the history: 17 days of one run every five minutes."""

_HISTORY = "history.jsonl"
_HOUR_MS = 3_600_000
_FILLER_BYTES = 0x7FFFFFFF
_HEADINGS = {
    "group": "group",
    "topic": "topic",
    "lag": "messages",
    "waits": "time lag",
    "trend": "change per hour",
    "eta": "time left",
}


@dataclass(frozen=True, slots=True)
class Arguments(OfStore):
    output: str | None = None
    groups: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    trend_hours: float = 24
    now_ms: int | None = None


@dataclass(slots=True)
class QueueLag:
    """Lag of one group in one queue."""

    queue_id: int
    offset: int
    end: int
    lag: int
    next_stored_ms: int | None
    """Store time of the group's next message; None without one."""


@dataclass(slots=True)
class GroupLag:
    """One group and topic; its key in the history is `topic@group`."""

    group: str
    topic: str
    queues: list[QueueLag]
    without_offset: list[int]
    """Queues of the topic without a consumer offset of the group."""

    @property
    def key(self) -> str:
        return f"{self.topic}{TOPIC_GROUP_SEPARATOR}{self.group}"

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    def waits_ms(self, now_ms: int) -> int | None:
        """Return the time lag of the oldest unconsumed message; None without one."""
        times = [queue.next_stored_ms for queue in self.queues]
        known = [each for each in times if each is not None]
        return max(0, now_ms - min(known)) if known else None


def check(given: Mapping[str, Any]) -> Arguments:
    """Raise StoreError for an invalid store, or an output that is not writable."""
    wanted = checked(Arguments, "backlog", given)
    if wanted.output is not None:
        check_output(wanted.output)
    return wanted


def main(spark: "SparkSession | None", given: Mapping[str, Any]) -> Report:
    """Measure the consumer lag once. Raises StoreError."""
    wanted = check(given)
    now_ms = wanted.now_ms or time_ns() // 1_000_000
    found = lags(wanted)
    history = History(wanted.output)
    rates = history.rates({each.key: each.lag for each in found}, now_ms, wanted.trend_hours)
    page = history.add(found, now_ms)
    rows = [row_of(each, now_ms, rates.get(each.key)) for each in found]
    report: Report = {
        "output": None if page is None else str(page),
        "rows": len(rows),
        "bytes": 0 if page is None else page.stat().st_size,
        "groups": rows,
        "messages": sum(each.lag for each in found),
    }
    report["text"] = "\n".join(_text(rows, page))
    print(report["text"], flush=True)
    return report


def lags(wanted: Arguments) -> list[GroupLag]:
    """Return every wanted group and topic, largest backlog first; empty without consumption.

    Raises StoreError if the consumer offsets cannot be read.
    """
    disk = ReadOnlyDisk(RealDisk())
    config = with_sizes_of_files(
        disk, StoreConfig(root=wanted.store, commit_log_dir=wanted.commit_log or "")
    )
    path = f"{config.config_dir}/consumerOffset.json"
    loaded = load(disk, path, parse_offsets)
    if loaded.value is None:
        if loaded.findings:
            raise StoreError(f"{loaded.findings}: restore {path}, or start the broker on it")
        return []  # no group has consumed from this store
    ends = queue_extents(disk, config).ends
    looked = Looks(disk, config)
    found = []
    for key, offsets in loaded.value.offset_table.items():
        topic, _, group = key.rpartition(TOPIC_GROUP_SEPARATOR)
        if topic in (wanted.topics or (topic,)) and group in (wanted.groups or (group,)):
            found.append(_group_lag(group, topic, offsets, ends, looked))
    looked.close()
    return sorted(found, key=lambda each: (-each.lag, each.group, each.topic))


class Looks:
    """Lookup of single records."""

    def __init__(self, disk: ReadOnlyDisk, config: StoreConfig) -> None:
        names = [int(name) for name in disk.listdir(config.commit_log_dir) if name.isdecimal()]
        end = max(names, default=-config.commit_log_file_bytes) + config.commit_log_file_bytes
        self._min_offset = min(names, default=0)
        self._log = NamedLogReader(disk, config, end)
        self._units = UnitReader(disk, config)

    def close(self) -> None:
        self._log.close()
        self._units.close()

    def first_there(self, topic: str, queue_id: int, offset: int, end: int) -> int:
        """Return the first queue offset in [offset, end] with a record that has not expired."""
        low, high = offset, end
        while low < high:  # the oldest records expire first
            middle = (low + high) // 2
            unit = self._units.unit(topic.encode(), queue_id, middle)
            if unit is None or unit[1] in (0, _FILLER_BYTES) or unit[0] < self._min_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def stored_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """Return the store time of a message; None if its record is damaged or missing."""
        unit = self._units.unit(topic.encode(), queue_id, queue_offset)
        head = None if unit is None else record_at(self._log, unit[0])
        return head.store_timestamp if isinstance(head, RecordHead) else None


def _group_lag(
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    ends: Mapping[tuple[bytes, int], int],
    looked: Looks,
) -> GroupLag:
    mine = {queue_id: end for (name, queue_id), end in ends.items() if name == topic.encode()}
    queues = []
    for queue_id, offset in sorted(offsets.items()):
        end = mine.get(queue_id, 0)
        if queue_id not in mine:
            continue
        at = looked.first_there(topic, queue_id, max(offset, 0), end)
        stored_ms = looked.stored_ms(topic, queue_id, at) if at < end else None
        queues.append(QueueLag(queue_id, offset, end, max(0, end - at), stored_ms))
    return GroupLag(group, topic, queues, sorted(mine.keys() - offsets.keys()))


class History:
    """Earlier runs, one per line: {"ms": …, "lags": {"topic@group": …}}."""

    def __init__(self, output: str | None) -> None:
        self._directory = None if output is None else Path(output)
        self.runs = list(self._read())

    def _read(self) -> Iterator[dict[str, Any]]:
        if self._directory is None:
            return
        try:
            lines = (self._directory / _HISTORY).read_text("utf-8", "replace").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                run = json.loads(line)
                yield {"ms": int(run["ms"]), "lags": dict(run["lags"])}
            except (ValueError, KeyError, TypeError):
                continue  # truncated by a power failure: skip one sample

    def rates(self, lags: Mapping[str, int], now_ms: int, hours: float) -> dict[str, float]:
        """Return each backlog's change in messages per hour, without backlogs seen only now."""
        since_ms = now_ms - hours * _HOUR_MS
        found: dict[str, float] = {}
        for run in self.runs:
            if since_ms <= run["ms"] < now_ms:
                for key, lag in run["lags"].items():
                    if key in lags and key not in found:  # the oldest run in that time
                        found[key] = (lags[key] - lag) * _HOUR_MS / (now_ms - run["ms"])
        return found

    def add(self, found: Sequence[GroupLag], now_ms: int) -> Path | None:
        """Save this run and plot all runs; return the page, or None without an output."""
        if self._directory is None:
            return None
        self.runs.append({"ms": now_ms, "lags": {each.key: each.lag for each in found}})
        self.runs = sorted(self.runs, key=lambda run: run["ms"])[-HISTORY_MAX:]
        lines = "".join(json.dumps(run) + "\n" for run in self.runs)
        save_settings(RealDisk(), str(self._directory / _HISTORY), lines)
        series: dict[str, list[tuple[float, float]]] = {}
        for run in self.runs:
            for key, lag in run["lags"].items():
                series.setdefault(key, []).append((run["ms"], lag))
        page = self._directory / "backlog.html"
        write_page(page, "Lag of consumer groups", [Chart("Consumer lag (messages)", series)])
        return page


def row_of(each: GroupLag, now_ms: int, rate: float | None) -> dict[str, Any]:
    """Return the report's row of a group and topic."""
    return {
        "group": each.group,
        "topic": each.topic,
        "lag": each.lag,
        "waits_ms": each.waits_ms(now_ms),
        "an_hour": None if rate is None else round(rate, 1),
        "hours_left": round(each.lag / -rate, 2) if rate is not None and rate < 0 else None,
        "queues": [
            {
                "queue_id": queue.queue_id,
                "offset": queue.offset,
                "end": queue.end,
                "lag": queue.lag,
                "next_stored_ms": queue.next_stored_ms,
            }
            for queue in each.queues
        ],
        "without_offset": each.without_offset,
    }


def _text(rows: Sequence[Mapping[str, Any]], page: Path | None) -> Iterator[str]:
    if not rows:
        yield "No group has consumed from this store."
        return
    shown = []
    for row in rows:
        waits, rate, left = row["waits_ms"], row["an_hour"], row["hours_left"]
        shown.append(
            {
                **row,
                "waits": None if waits is None else duration(waits),
                "trend": None if rate is None else f"{rate:+,.0f}",
                "eta": None if left is None or not row["lag"] else duration(left * _HOUR_MS),
            }
        )
    yield from text_table(shown, _HEADINGS)
    for row in rows:
        if row["without_offset"]:
            ids = ", ".join(map(str, row["without_offset"]))
            yield f"{row['group']} has no offset of queue {ids} of {row['topic']}: not counted"
    if page is not None:
        yield f"Plot: {page}"
