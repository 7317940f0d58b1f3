"""The runs of Spark jobs that are known: waiting, running, and the last that have ended."""

from collections import deque
from collections.abc import Sequence

from actors.jobs.messages import JobState
from protocol.bodies_own import JobRun

ENDED_MAX = 100
"""Runs that are remembered after their end."""


class RunTable:
    """The runs, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.states: dict[str, JobState] = {}
        self.waiting: deque[str] = deque()

    def new(self, job: str, now_ms: int, entry: str = "") -> JobState:
        """A run that waits; its name tells when it was asked for, and is new."""
        while (run := f"{entry or job}-{now_ms}") in self.states:
            now_ms += 1
        self.states[run] = JobState(run, job, entry=entry)
        self.waiting.append(run)
        return self.states[run]

    def put(self, state: JobState) -> None:
        """Keeps a state; forgets the oldest runs that have ended."""
        self.states[state.run] = state
        if state.has_ended:
            ended = [run for run, other in self.states.items() if other.has_ended]
            for run in ended[:-ENDED_MAX]:
                del self.states[run]

    def bodies(self, wanted: str | None) -> Sequence[JobRun]:
        """For who asks over the network; with the report of one of them."""
        return [body_of(state, state.run == wanted) for state in self.states.values()]


def body_of(state: JobState, with_report: bool = False) -> JobRun:
    """A run as it is answered."""
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
