"""Runs of the schedule: starts, retries, ends, and their saved state.

A plain class above the timetable; SparkJobs drives it and owns its file, `jobs.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.jobs.jobs_conf import ScheduledJob
from actors.jobs.messages import JobState
from actors.jobs.timetable import TimetableLine, timetable_from, timetable_json
from protocol.bodies_own import JobEntry
from protocol.fastjson import dumps
from storage.files.disk import Disk
from storage.tables.json_config import load, parsed_object

log = get_logger(__name__)

BACK_OFF_MS = 30_000
BACK_OFF_MAX_MS = 1_800_000
"""Delay of the first retry, doubled each time, and its maximum."""


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """Entries of conf/jobs.conf, the path of their state, and its writer."""

    entries: Sequence[ScheduledJob]
    path: str
    config_writer: ActorAddress


@dataclass(slots=True)
class KeptRuns:
    """State that survives a restart of the actor: timetable lines and running actors."""

    lines: dict[str, TimetableLine] = field(default_factory=dict)
    running: dict[str, ActorAddress] = field(default_factory=dict)


class ScheduledRuns:
    """Entries and their timetable lines."""

    def __init__(self, entries: Sequence[ScheduledJob], lines: dict[str, TimetableLine]) -> None:
        """Create it; `lines` is filled by `load`, or by an earlier instance."""
        self.entries = {entry.name: entry for entry in entries}
        self.lines = lines

    def load(self, disk: Disk, path: str, now_ms: int) -> tuple[str, ...]:
        """Load the saved lines; return the files that are damaged."""
        found = load(disk, path, parsed_object)
        if found.findings:
            log.warning("job schedule damaged", file=path, reason=found.findings)
        occasions = {name: entry.occasions for name, entry in self.entries.items()}
        self.lines.update(timetable_from(found.value, occasions, now_ms))
        return found.broken

    @property
    def text(self) -> str:
        """Text of the state file."""
        return dumps(timetable_json(self.lines)).decode()

    def interrupted(self) -> list[str]:
        """Return the entries with a run that a stop interrupted."""
        return [name for name, line in self.lines.items() if line.open is not None]

    def begin_due(self, now_ms: int) -> list[str]:
        """Mark the runs of due entries as begun; return the entries."""
        begun = []
        for name, line in self.lines.items():
            due_ms = line.due(now_ms)
            if due_ms is not None:
                line.begin(due_ms, now_ms)
                begun.append(name)
        return begun

    def was_ahead_of(self, now_ms: int) -> bool:
        """Return whether the clock was set back since the last check, which must be saved.

        Otherwise a restart would skip repeated occasions that have not run.
        """
        return any(line.open is None and now_ms < line.seen_ms for line in self.lines.values())

    def next_ms(self, now_ms: int) -> int:
        """Return the time of the next due entry; there must be entries."""
        return min(line.next_ms(now_ms) for line in self.lines.values())

    def ended(self, state: JobState) -> float | None:
        """Note the end of a run; return the ms until its retry, or None."""
        line = self.lines.get(state.entry)
        if line is None or line.open is None:
            return None
        retries = self.entries[state.entry].retries
        if state.state == "failed" and line.open.tries <= retries:
            delay_ms = min(BACK_OFF_MS << (line.open.tries - 1), BACK_OFF_MAX_MS)
            line.open.tries += 1
            log.warning("scheduled job retried", entry=state.entry, in_ms=delay_ms)
            return delay_ms
        if state.state == "failed":
            log.error("scheduled job failed", entry=state.entry, sentence=state.sentence)
        line.open = None
        return None

    def bodies(self, now_ms: int) -> list[JobEntry]:
        """Return the entries in their wire format."""
        found = []
        for name, entry in self.entries.items():
            line = self.lines[name]
            body = JobEntry(
                name=name,
                job=entry.job,
                cron=entry.occasions.expression,
                time_zone=entry.occasions.zone.key,
                next_ms=line.next_ms(now_ms),
                arguments=dict(entry.arguments),
            )
            if line.open is not None:
                body.due_ms, body.tries = line.open.due_ms, line.open.tries
            found.append(body)
        return found
