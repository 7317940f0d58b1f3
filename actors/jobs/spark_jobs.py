"""Table of Spark jobs: runs them on request and on a schedule, one at a time.

Owns: the table of runs, the schedule and its file.
Receives: Request from connections; RunJob from the command line; AskFigures from MetricsPort;
JobChanged, Started and Exited from its runs; FileWritten from ConfigWriter.
Sends: Cancel to SparkJob; WriteFile to ConfigWriter; LongAnswer to LongAnswers; states to the
requesters' functions.

Only one job runs at a time, so runs of an entry never overlap. A scheduled run starts after its
start is on disk. Therefore the next start knows it, even after a crash.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from actors.engine.actor import AskFigures, Exited, Started, handles
from actors.engine.actor_address import ActorAddress
from actors.engine.server_log import get_logger
from actors.engine.timer import TimerHandle
from actors.jobs.messages import (
    Cancel,
    JobChanged,
    JobFigures,
    JobOrder,
    JobState,
    RunJob,
)
from actors.jobs.scheduled_runs import JobSchedule, KeptRuns, ScheduledRuns
from actors.jobs.spark_job import MakeCommand, SparkJob, tail_of
from actors.network.messages import LongAnswer, Request
from actors.network.request import Responder, serves
from actors.tables.messages import FileWritten, WriteFile
from protocol.bodies_own import JobLog, JobRun, Jobs
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.fastjson import loads_standard
from protocol.fastjson_limits import SHORT_NODES_MAX
from protocol.frame import RemotingCommand
from protocol.headers.own import GetJobsHeader, JobLogHeader, JobRunHeader, RunJobHeader
from protocol.host import host_of

log = get_logger(__name__)

ENDED_MAX = 100
"""Ended runs to remember."""

RUNNING_MAX = 1
"""Concurrent runs: a local job uses all cores and more than 1 GB."""

WAITING_MAX = 8
"""Waiting runs on request; each entry of the schedule has one more slot."""

LOOK_MS = 60_000
"""Maximum interval between checks of the schedule, as the wall clock may be set."""

LOG_LINES_MAX = 1000
LOG_BYTES_MAX = 256 * 1024
"""Bytes of a log in one answer."""

PATHS = ("store", "commit_log", "output", "archive")
"""Arguments that name files: rejected from other machines and from console users."""

REPORT_HIDDEN = "The report may show messages: it needs read permission for all topics."
SENTENCE_HIDDEN = "hidden: it needs read permission for all topics"
"""Replaces the text of an exception, which may contain a part of a message."""


@dataclass(slots=True)
class _Look:
    """Check the schedule for due entries."""


@dataclass(slots=True)
class _Again:
    """Retry the run of this entry."""

    entry: str


@dataclass(slots=True)
class _LogTail(JobLog):
    """End of a log, read on the thread that writes the answer."""

    path: str | None = None
    count: int = 0

    def encode(self) -> bytes:
        return JobLog(list(tail_of(self.path, self.count, LOG_BYTES_MAX))).encode()


class RunTable:
    """Known runs in the order of their requests: waiting, running, and the last ended ones."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.waiting: deque[str] = deque()

    def new(self, job: str, now_ms: int, entry: str = "") -> JobState:
        """Return a new waiting run; its unique name has the time of the request."""
        while (run := f"{entry or job}-{now_ms}") in self.states:
            now_ms += 1
        self.states[run] = JobState(run, job, entry=entry)
        self.waiting.append(run)
        return self.states[run]

    def put(self, state: JobState) -> None:
        """Set a state, and drop the oldest ended runs past ENDED_MAX."""
        self.states[state.run] = state
        if state.has_ended:
            ended = [run for run, other in self.states.items() if other.has_ended]
            for run in ended[:-ENDED_MAX]:
                del self.states[run]

    def bodies(self, wanted: str | None) -> Sequence[JobRun]:
        """Return all runs for an answer, with the report of run `wanted`."""
        return [body_of(state, state.run == wanted) for state in self.states.values()]


def body_of(state: JobState, with_report: bool = False) -> JobRun:
    """Return a run in its wire format."""
    return JobRun(
        run=state.run,
        job=state.name,
        state=state.state,
        entry=state.entry,
        done=state.done,
        tasks=state.tasks,
        stage=state.stage,
        rows_done=state.rows_done,
        rows=state.rows,
        remaining_ms=state.remaining_ms,
        sentence=state.sentence or "",
        report=dict(state.report or {}) if with_report else {},
        tail=list(state.tail),
        started_ms=state.started_ms,
        ended_ms=state.ended_ms,
    )


class SparkJobs(Responder):
    """Actor on the loop: it only starts other actors."""

    def __init__(
        self,
        make_command: MakeCommand,
        directory: str,
        *,
        job_names: Sequence[str] = (),
        schedule: JobSchedule | None = None,
        known_arguments: Callable[[str], Mapping[str, Any]] = lambda name: {},
        long_answers: ActorAddress | None = None,
        kept: KeptRuns | None = None,
        make_job: Callable[..., Any] = SparkJob,
    ) -> None:
        """Create the actor; `directory` has logs and work directories.

        `known_arguments` returns what a live broker knows: its store, its published offset. It is
        called on the loop when a run starts, and the run's own arguments override it. Relative
        paths are relative to this process.
        """
        super().__init__()
        self._make_command = make_command
        self._directory = Path(directory).absolute()
        self._job_names = job_names
        self._schedule = schedule
        self._known_arguments = known_arguments
        self._long_answers = long_answers
        self._make_job = make_job
        kept = kept or KeptRuns()
        self._scheduled = ScheduledRuns(schedule.entries if schedule else (), kept.lines)
        self._running = kept.running
        self._table = RunTable()
        self._asked: dict[str, RunJob] = {}
        self._serial = 0
        self._unsaved: list[tuple[int, str]] = []
        """(serial of the text that has its start, entry)."""
        self._broken: tuple[str, ...] = ()
        self._timer: TimerHandle | None = None
        self._draining = False

    def on_start(self) -> None:
        if self._schedule is None or not self._schedule.entries:
            return
        if not self._scheduled.lines:
            path, now_ms = self._schedule.path, self.system.clock.now_ms()
            self._broken = self._scheduled.load(self.system.disk, path, now_ms)
            self._save()  # a new entry counts from now on, even if a stop precedes its first time
        for name in self._scheduled.interrupted():
            self._run_entry(name)
        self._look()

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
            asked.on_undelivered(self.remark())
        for address in self._running.values():
            address.tell(Cancel(gently=False))

    # --- runs

    @handles(RunJob)
    def run_job(self, message: RunJob) -> None:
        try:
            self._put(self._resolved(message))
        except RemoteError as error:
            message.on_undelivered(error.remark)

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        message.reply(JobFigures([*self._table.states.values()]))

    @handles(JobChanged)
    def job_changed(self, message: JobChanged) -> None:
        self._changed(message.state)

    @handles(Started)
    def job_started(self, _: Started) -> None:
        pass  # JobChanged follows

    @handles(Exited)
    def job_exited(self, message: Exited) -> None:
        """Note the end of a run, also of one from before this actor's restart."""
        self._running.pop(message.name, None)
        state = self._table.states.get(message.name)
        if state is not None and not state.has_ended:
            self._refuse(state.run, f"its actor failed: {message.failure}")
        self._start_next()

    def _resolved(self, message: RunJob) -> RunJob:
        """Return a request for an entry as one for its job, with the entry's arguments."""
        entry = self._scheduled.entries.get(message.name)
        if entry is None or message.entry:
            return message
        return replace(
            message,
            name=entry.job,
            arguments={**entry.arguments, **message.arguments},
            settings={**entry.settings, **message.settings},
            deadline_ms=entry.deadline_ms,
            nice=entry.nice,
        )

    def _put(self, message: RunJob) -> JobState:
        """Add a waiting run. Raises RemoteError if it is rejected."""
        if self._draining:
            raise RemoteError(ResponseCode.SYSTEM_ERROR, "the broker is stopping")
        if not message.entry and len(self._table.waiting) >= WAITING_MAX:
            remark = f"limit of {WAITING_MAX} waiting jobs reached: retry later"
            raise RemoteError(ResponseCode.SYSTEM_BUSY, remark)
        state = self._table.new(message.name, self.system.clock.now_ms(), message.entry)
        self._asked[state.run] = message
        self._start_next()
        return state

    def _cancel(self, run: str) -> bool:
        if run in self._table.waiting:
            self._table.waiting.remove(run)
            now_ms = self.system.clock.now_ms()
            self._changed(replace(self._table.states[run], state="cancelled", ended_ms=now_ms))
        elif run in self._running:
            self._running[run].tell(Cancel())
        else:
            return False
        return True

    def _start_next(self) -> None:
        while self._table.waiting and len(self._running) < RUNNING_MAX and not self._draining:
            state = self._table.states[self._table.waiting.popleft()]
            asked = self._asked[state.run]
            arguments = {**self._known_arguments(state.name), **asked.arguments}
            job = self._make_job(
                state,
                JobOrder(state.name, arguments, asked.settings, asked.deadline_ms, asked.nice),
                self._make_command,
                self._directory,
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
        if state.entry and not self._draining:  # a run that a stop interrupts stays open
            self._entry_ended(state)

    # --- schedule

    @handles(_Look)
    def on_look(self, _: _Look) -> None:
        self._look()

    @handles(_Again)
    def on_again(self, message: _Again) -> None:
        self._run_entry(message.entry)

    @handles(FileWritten)
    def on_written(self, message: FileWritten) -> None:
        """Start the saved runs, even after a disk error, which must not stop an archive."""
        if message.refusal:
            log.error("job schedule not saved", file=message.path, reason=message.refusal)
        ready = [name for serial, name in self._unsaved if serial <= message.serial]
        self._unsaved = [each for each in self._unsaved if each[0] > message.serial]
        for name in ready:
            self._run_entry(name)

    def _look(self) -> None:
        if self._draining or not self._scheduled.lines:
            return
        now_ms = self.system.clock.now_ms()
        was_ahead = self._scheduled.was_ahead_of(now_ms)
        begun = self._scheduled.begin_due(now_ms)
        if begun or was_ahead:
            self._unsaved += [(self._serial + 1, name) for name in begun]
            self._save()
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = self._scheduled.next_ms(now_ms) - now_ms
        self._timer = self.after(max(1, min(wait_ms, LOOK_MS)), _Look())

    def _save(self) -> None:
        assert self._schedule is not None
        self._serial += 1
        message = WriteFile(
            self._schedule.path, self._scheduled.text, self._serial, self.address, self._broken
        )
        self._schedule.config_writer.tell(message)

    def _run_entry(self, name: str) -> None:
        entry = self._scheduled.entries[name]
        if not self._draining:
            self._put(
                RunJob(
                    entry.job,
                    entry.arguments,
                    lambda state: None,
                    settings=entry.settings,
                    deadline_ms=entry.deadline_ms,
                    nice=entry.nice,
                    entry=name,
                )
            )

    def _entry_ended(self, state: JobState) -> None:
        again_ms = self._scheduled.ended(state)
        self._save()
        if again_ms is not None:
            self.after(again_ms, _Again(state.entry))
        self._look()

    # --- requests

    @serves(RequestCode.RUN_JOB)
    def on_run(self, request: Request) -> RemotingCommand:
        """Start a job or an entry; the answer does not wait for its end."""
        header = RunJobHeader.decode(request.command.fields)
        arguments = _arguments(header.arguments, request.peer.remote)
        known = [*self._job_names, *self._scheduled.entries]
        if header.name not in known:
            remark = f"there is no job {header.name}; there is {', '.join(known)}"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        job = self._resolved(RunJob(header.name, arguments, lambda state: None))
        self.begin_change()
        state = self._put(job)
        return request.command.answer(body=body_of(state).encode())

    @serves(RequestCode.CANCEL_JOB)
    def on_cancel(self, request: Request) -> RemotingCommand:
        header = JobRunHeader.decode(request.command.fields)
        self.begin_change()
        if not self._cancel(header.run):
            remark = f"there is no run {header.run} that waits or runs"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        return request.command.answer()

    @serves(RequestCode.GET_JOBS)
    def on_jobs(self, request: Request) -> RemotingCommand | None:
        header = GetJobsHeader.decode(request.command.fields)
        schedule = self._scheduled.bodies(self.system.clock.now_ms())
        runs = list(self._table.bodies(header.run))
        if request.grant is not None and not request.grant.may_read_all:
            for each in runs:
                each.report, each.tail = {"text": REPORT_HIDDEN} if each.report else {}, []
                each.sentence = SENTENCE_HIDDEN if each.sentence else ""
        return self._answer_long(request, Jobs(list(self._job_names), runs, schedule))

    @serves(RequestCode.GET_JOB_LOG)
    def on_log(self, request: Request) -> RemotingCommand | None:
        header = JobLogHeader.decode(request.command.fields)
        if request.grant is not None and not request.grant.may_read_all:
            request.grant.refuse_administration(request.command.code)
        state = self._table.states.get(header.run)
        if state is None:
            remark = f"there is no run {header.run}; GET_JOBS returns the known ones"
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
        count = min(max(header.lines, 0), LOG_LINES_MAX)
        return self._answer_long(request, _LogTail(path=state.log_path, count=count))

    def _answer_long(self, request: Request, body: Jobs | JobLog) -> RemotingCommand | None:
        if self._long_answers is None:
            return request.command.answer(body=body.encode())
        self._long_answers.tell(LongAnswer(request, body))
        return None


def _arguments(text: str, remote: str) -> dict[str, Any]:
    """Return the arguments of a requested run. Raises RemoteError."""
    try:
        found = loads_standard(text.encode(), SHORT_NODES_MAX)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RemoteError(ResponseCode.SYSTEM_ERROR, "arguments is not a JSON object")
    named = [name for name in PATHS if name in found]
    if named and not _is_here(remote):
        remark = f"{named[0]} is permitted on the broker's machine only: leave it out"
        raise RemoteError(ResponseCode.NO_PERMISSION, remark)
    return found


def _is_here(remote: str) -> bool:
    """Return whether a peer `ip:port` is on this machine."""
    try:
        return ip_address(host_of(remote)).is_loopback
    except ValueError:
        return False
