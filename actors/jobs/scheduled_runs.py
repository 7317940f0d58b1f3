"""Runs of a schedule: begun, tried again, ended; and what is saved of them.

A plain class above the timetable; SparkJobs drives it and owns its file, `jobs.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from structlog import get_logger

from actors.engine.actor_address import ActorAddress
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
"""Before the first and before any later try of a run that failed: doubled each time."""


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """The entries of conf/jobs.conf, where their state is kept, and who writes it."""

    entries: Sequence[ScheduledJob]
    path: str
    config_writer: ActorAddress


@dataclass(slots=True)
class KeptRuns:
    """What outlives an actor that fails and is made anew: the lines, the runs that go on."""

    lines: dict[str, TimetableLine] = field(default_factory=dict)
    running: dict[str, ActorAddress] = field(default_factory=dict)


class ScheduledRuns:
    """The entries and their lines."""

    def __init__(self, entries: Sequence[ScheduledJob], lines: dict[str, TimetableLine]) -> None:
        """`lines`: filled by `load`, unless they are there already."""
        self.entries = {entry.name: entry for entry in entries}
        self.lines = lines

    def load(self, disk: Disk, path: str, now_ms: int) -> tuple[str, ...]:
        """Takes what was saved; gives the files that cannot be used."""
        found = load(disk, path, parsed_object)
        if found.findings:
            log.warning("schedule of jobs damaged", file=path, reason=found.findings)
        occasions = {name: entry.occasions for name, entry in self.entries.items()}
        self.lines.update(timetable_from(found.value, occasions, now_ms))
        return found.broken

    @property
    def text(self) -> str:
        """What is saved."""
        return dumps(timetable_json(self.lines)).decode()

    def interrupted(self) -> list[str]:
        """Entries whose run a stop has interrupted."""
        return [name for name, line in self.lines.items() if line.open is not None]

    def begin_due(self, now_ms: int) -> list[str]:
        """Entries that have come due: their runs count as begun from now on."""
        begun = []
        for name, line in self.lines.items():
            due_ms = line.due(now_ms)
            if due_ms is not None:
                line.begin(due_ms, now_ms)
                begun.append(name)
        return begun

    def was_ahead_of(self, now_ms: int) -> bool:
        """Whether the clock has been set back since the last look: also that must be saved.

        Else what comes again, and has had no run, would be passed over by a restart.
        """
        return any(line.open is None and now_ms < line.seen_ms for line in self.lines.values())

    def next_ms(self, now_ms: int) -> int:
        """When the next one comes due; only with entries."""
        return min(line.next_ms(now_ms) for line in self.lines.values())

    def ended(self, state: JobState) -> float | None:
        """A run has ended. How many ms from now it is tried again, None if it is not."""
        line = self.lines.get(state.entry)
        if line is None or line.open is None:
            return None
        retries = self.entries[state.entry].retries
        if state.state == "failed" and line.open.tries <= retries:
            delay_ms = min(BACK_OFF_MS << (line.open.tries - 1), BACK_OFF_MAX_MS)
            line.open.tries += 1
            log.warning("scheduled job tried again", entry=state.entry, in_ms=delay_ms)
            return delay_ms
        if state.state == "failed":
            log.error("scheduled job failed", entry=state.entry, sentence=state.sentence)
        line.open = None
        return None

    def bodies(self, now_ms: int) -> list[JobEntry]:
        """For who asks over the network."""
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
