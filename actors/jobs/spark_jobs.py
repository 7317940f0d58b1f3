"""Runs Spark jobs on request and on a schedule, some at a time.

Owns: the table of runs, the schedule.   Told by: the console, the daemon and the command line
(`RunJob`, `CancelJob`, `JobStates`), its runs (`JobChanged`).   Tells: SparkJob; whoever asked.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from structlog import get_logger

from actors.engine.actor import Actor, Exited, Started, handles
from actors.engine.address import Address
from actors.jobs.spark_job import Cancel, JobChanged, JobState, MakeCommand, SparkJob

log = get_logger(__name__)

RUNNING_MAX = 1
"""A local job takes all cores and more than 1 GB."""

WAITING_MAX = 8
ENDED_MAX = 100
"""Runs that are remembered after their end."""

DEADLINE_MS = 6 * 3_600_000


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """Run `name` every `interval_ms`, the first time after one interval."""

    name: str
    interval_ms: float
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RunJob:
    """Run a job when there is room; `reply` gets its state once, when it has ended."""

    name: str
    arguments: Mapping[str, Any]
    reply: Callable[[JobState], None]
    progress: Callable[[JobState], None] | None = None
    """Gets every state before that. Both are called on the loop."""

    def refuse(self, remark: str) -> None:
        self.reply(JobState("", self.name, "failed", sentence=remark))


@dataclass(slots=True)
class CancelJob:
    """End a run; `reply` says whether there was one to end."""

    run: str
    reply: Callable[[bool], None]


@dataclass(slots=True)
class JobStates:
    """`reply` gets all runs that are known, the oldest first."""

    reply: Callable[[list[JobState]], None]


@dataclass(slots=True)
class _Due:
    job: ScheduledJob


class RunTable:
    """The runs, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.waiting: deque[str] = deque()

    def new(self, name: str, now_ms: int) -> JobState:
        """A run that waits; its name tells when it was asked for, and is new."""
        while (run := f"{name}-{now_ms}") in self.states:
            now_ms += 1
        self.states[run] = JobState(run, name)
        self.waiting.append(run)
        return self.states[run]

    def put(self, state: JobState) -> None:
        """Keeps a state; forgets the oldest runs that have ended."""
        self.states[state.run] = state
        if state.has_ended:
            ended = [run for run, other in self.states.items() if other.has_ended]
            for run in ended[:-ENDED_MAX]:
                del self.states[run]

    def has_open(self, name: str) -> bool:
        """Whether a run of this job waits or runs."""
        return any(state.name == name and not state.has_ended for state in self.states.values())


class SparkJobs(Actor):
    """The table and the schedule. Lives on the loop: it only starts others."""

    def __init__(
        self,
        make_command: MakeCommand,
        directory: str,
        *,
        schedule: Sequence[ScheduledJob] = (),
        known_arguments: Callable[[str], Mapping[str, Any]] = lambda name: {},
        deadline_ms: float = DEADLINE_MS,
        make_job: Callable[..., Actor] = SparkJob,
    ) -> None:
        """`directory`: for logs and work directories. `known_arguments` gives what a live broker
        knows (its store, its published offset); it is called on the loop when a run starts, and
        what the run was asked with comes before it. Relative paths are those of this process.
        """
        super().__init__()
        self._make_command = make_command
        self._directory = Path(directory).absolute()
        self._schedule = schedule
        self._known_arguments = known_arguments
        self._deadline_ms = deadline_ms
        self._make_job = make_job
        self._table = RunTable()
        self._asked: dict[str, RunJob] = {}
        self._running: dict[str, Address] = {}
        self._draining = False

    def on_start(self) -> None:
        for job in self._schedule:
            self.every(job.interval_ms, _Due(job))

    def on_drain(self) -> None:
        self._draining = True
        while self._table.waiting:
            self._refuse(self._table.waiting.popleft(), "the broker is stopping")
        for address in self._running.values():
            address.tell(Cancel(gently=False))

    def can_stop(self) -> bool:
        if not self._draining:
            self.on_drain()
        return not self._running

    def on_failure(self, *_: object) -> None:
        for asked in self._asked.values():
            asked.refuse(self.remark())
        for address in self._running.values():
            address.tell(Cancel(gently=False))

    @handles(RunJob)
    def run_job(self, message: RunJob) -> None:
        if self._draining:
            message.refuse("the broker is stopping")
        elif len(self._table.waiting) >= WAITING_MAX:
            message.refuse(f"{WAITING_MAX} jobs are waiting already")
        else:
            state = self._table.new(message.name, self.system.clock.now_ms())
            self._asked[state.run] = message
            self._start_next()

    @handles(_Due)
    def due(self, message: _Due) -> None:
        job = message.job
        if self._table.has_open(job.name):
            log.info("job skipped", job=job.name, reason="the last run has not ended")
        else:
            self.run_job(RunJob(job.name, job.arguments, lambda state: None))

    @handles(CancelJob)
    def cancel_job(self, message: CancelJob) -> None:
        if message.run in self._table.waiting:
            self._table.waiting.remove(message.run)
            self._changed(replace(self._table.states[message.run], state="cancelled"))
        elif message.run in self._running:
            self._running[message.run].tell(Cancel())
        else:
            message.reply(False)
            return
        message.reply(True)

    @handles(JobStates)
    def job_states(self, message: JobStates) -> None:
        message.reply(list(self._table.states.values()))

    @handles(JobChanged)
    def job_changed(self, message: JobChanged) -> None:
        self._changed(message.state)

    @handles(Started)
    def job_started(self, _: Started) -> None:
        pass  # what it says itself comes as JobChanged

    @handles(Exited)
    def job_exited(self, message: Exited) -> None:
        """Also of runs that were started before this actor was restarted."""
        self._running.pop(message.name, None)
        state = self._table.states.get(message.name)
        if state is not None and not state.has_ended:
            self._refuse(state.run, f"its actor failed: {message.failure}")
        self._start_next()

    def _start_next(self) -> None:
        while self._table.waiting and len(self._running) < RUNNING_MAX and not self._draining:
            state = self._table.states[self._table.waiting.popleft()]
            asked = self._asked[state.run]
            job = self._make_job(
                state,
                {**self._known_arguments(state.name), **asked.arguments},
                self._make_command,
                self._directory,
                self._deadline_ms,
                self.address.tell,
            )
            self._running[state.run] = self.system.spawn(job, state.run, parent=self.address)

    def _refuse(self, run: str, sentence: str) -> None:
        now_ms = self.system.clock.now_ms()
        state = self._table.states[run]
        self._changed(replace(state, state="failed", sentence=sentence, ended_ms=now_ms))

    def _changed(self, state: JobState) -> None:
        self._table.put(state)
        asked = self._asked.get(state.run)
        if not state.has_ended:
            if asked is not None and asked.progress is not None:
                asked.progress(state)
            return
        log.info("job ended", run=state.run, state=state.state, sentence=state.sentence)
        self._asked.pop(state.run, None)
        if asked is not None:
            asked.reply(state)
