"""Messages to SparkJobs and from its runs, and the state of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DEADLINE_MS = 6 * 3_600_000
"""For one try of a job, unless somebody says otherwise."""

NICE = 10
"""How far a job stands back behind the broker for a processor, 0 to 19, as `nice` counts."""

NICE_MAX = 19
"""It runs where nobody else wants the processor, and whoever wakes up takes it away at once."""


@dataclass(frozen=True, slots=True)
class JobOrder:
    """What to run, with what, and for how long at the most."""

    name: str
    arguments: Mapping[str, Any]
    settings: Mapping[str, str]
    """Of Spark, over those of conf/spark.conf."""

    deadline_ms: float
    nice: int = NICE


@dataclass(frozen=True, slots=True)
class JobState:
    """What is known of one run."""

    run: str
    name: str
    state: Literal["waiting", "starting", "running", "finished", "failed", "cancelled"] = "waiting"
    done: int = 0
    tasks: int = 0
    """Tasks of the stage that is running, and how many of them are done."""

    stage: str = ""
    """What the job is doing."""

    rows_done: int = 0
    rows: int = 0
    """Messages that the stage will read, 0 if that is not known, and how many it has read."""

    remaining_ms: int | None = None
    """Of the stage, as was estimated with the last progress; None: not known."""

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
    nice: int = NICE
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
