"""What is told to SparkJobs and by its runs, and what is known of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DEADLINE_MS = 6 * 3_600_000
"""For one try of a job, unless somebody says otherwise."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What to run, with what, and for how long at the most."""

    name: str
    arguments: Mapping[str, Any]
    settings: Mapping[str, str]
    """Of Spark, over those of conf/spark.conf."""

    deadline_ms: float


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known of one run."""

    run: str
    name: str
    state: Literal["waiting", "starting", "running", "finished", "failed", "cancelled"] = "waiting"
    done: int = 0
    tasks: int = 0
    """Tasks of the Spark stages that are running, and how many of them are done."""

    sentence: str | None = None
    """Why it failed."""

    report: Mapping[str, Any] | None = None
    """What a finished job returned."""

    log_path: str | None = None
    tail: tuple[str, ...] = ()
    """The last lines of the log of one that failed."""

    started_ms: int = 0
    ended_ms: int = 0
    entry: str = ""
    """Of conf/jobs.conf, for a run of the schedule's."""

    @property
    def has_ended(self) -> bool:
        return self.state in ("finished", "failed", "cancelled")


@dataclass(slots=True)
class JobChanged:
    """News of a run, from its SparkJob."""

    state: JobState


@dataclass(slots=True)
class RunJob:
    """Run a job when there is room; `reply` gets its state once, when it has ended."""

    name: str
    arguments: Mapping[str, Any]
    reply: Callable[[JobState], None]
    progress: Callable[[JobState], None] | None = None
    """Gets every state before that. Both are called on the loop."""

    settings: Mapping[str, str] = field(default_factory=dict)
    deadline_ms: float = DEADLINE_MS
    entry: str = ""

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
