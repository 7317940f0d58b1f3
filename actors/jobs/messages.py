"""Messages of SparkJobs and its runs, and the state of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from actors.engine.messages import Message

DEADLINE_MS = 6 * 3_600_000
"""Default timeout of one try."""

NICE = 10
"""Default niceness of a job relative to the broker, 0 to 19."""

NICE_MAX = 19
"""Niceness at which the job runs on idle processors only."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    """Job to run, with its arguments and timeout."""

    name: str
    arguments: Mapping[str, Any]
    settings: Mapping[str, str]
    """Spark settings that override conf/spark.conf."""

    deadline_ms: float
    nice: int = NICE


@dataclass(frozen=True, slots=True)
class JobState:
    """State of one run."""

    run: str
    name: str
    state: Literal["waiting", "starting", "running", "finished", "failed", "cancelled"] = "waiting"
    done: int = 0
    tasks: int = 0
    """Tasks of the running stage; `done` counts the finished ones."""

    stage: str = ""
    """Description of the running stage."""

    rows_done: int = 0
    rows: int = 0
    """Messages that the stage reads, 0 if unknown; `rows_done` counts those read."""

    remaining_ms: int | None = None
    """Estimate for the stage at the last progress; None if unknown."""

    sentence: str | None = None
    """Reason of the failure."""

    report: Mapping[str, Any] | None = None
    """Result of a finished run."""

    log_path: str | None = None
    tail: tuple[str, ...] = ()
    """Last log lines of a failed run."""

    started_ms: int = 0
    ended_ms: int = 0
    entry: str = ""
    """Entry of conf/jobs.conf, for a scheduled run."""

    @property
    def has_ended(self) -> bool:
        return self.state in ("finished", "failed", "cancelled")


@dataclass(slots=True)
class JobChanged:
    """New state of a run, from its SparkJob."""

    state: JobState


@dataclass(slots=True)
class RunJob(Message):
    """Run a job when a slot is free; `reply` gets the state at the end."""

    name: str
    arguments: Mapping[str, Any]
    reply: Callable[[JobState], None]
    progress: Callable[[JobState], None] | None = None
    """Gets every earlier state; both functions are called on the loop."""

    settings: Mapping[str, str] = field(default_factory=dict)
    deadline_ms: float = DEADLINE_MS
    nice: int = NICE
    entry: str = ""

    def on_undelivered(self, remark: str) -> None:
        self.reply(JobState("", self.name, "failed", sentence=remark))


@dataclass(slots=True)
class Cancel:
    """Cancel this run; without `gently`, skip the request and close the child's input."""

    gently: bool = True


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Figures of SparkJobs."""

    states: Sequence[JobState] = ()
    """All known runs, oldest first."""
