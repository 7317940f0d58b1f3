"""Progress of the job in this process, as the job reports it; the runner sends it to its parent.

A job runs through stages such as planning and writing. For each stage it reports the messages it
will read, if its plan knows them, and those read so far. A process runs one job, so there is one
`PROGRESS`. The job's thread writes it and the runner's main thread reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

SHARE_MIN = 0.05
ELAPSED_MIN_S = 2.0
"""Minimum time of a stage, in seconds, before its remaining time is estimated."""


@dataclass(frozen=True, slots=True)
class HowFar:
    """Progress of a job at one moment; numbers cover the current stage."""

    stage: str = ""
    done: int = 0
    tasks: int = 0
    rows_done: int = 0
    """Messages read by finished tasks."""

    rows: int = 0
    """Messages to read; 0 if not known in advance."""

    remaining_ms: int | None = None
    """Estimated time to the end of the stage; None while there is no estimate."""


class _Stage:
    def __init__(
        self, name: str, rows: int, tasks: int, counted: Callable[[], int] | None, begun_s: float
    ) -> None:
        self.name = name
        self.rows = rows
        self.tasks = tasks
        self.counted = counted
        self.begun_s = begun_s
        self.done = 0
        self.rows_done = 0
        self.of_spark = (0, 0)
        """Finished and total tasks, as last seen."""


class JobProgress:
    """Progress that the job reports."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._stage = _Stage("", 0, 0, None, now_s())

    def begin(
        self,
        stage: str,
        *,
        rows: int = 0,
        tasks: int = 0,
        counted: Callable[[], int] | None = None,
    ) -> None:
        """Begin the next stage.

        `rows` are the messages to read, `tasks` its parts if Spark runs none. `counted` returns the
        messages read so far. Without it, they are the sum of `add`, or the finished share of
        Spark's tasks.
        """
        self._stage = _Stage(stage, rows, tasks, counted, self._now_s())

    def add(self, rows: int) -> None:
        """Count one finished part of the stage, with its messages."""
        self._stage.done += 1
        self._stage.rows_done += rows

    def now(self, done: int = 0, tasks: int = 0) -> HowFar:
        """Return the progress; `done` of `tasks` are those of Spark's running stages."""
        stage = self._stage
        stage.of_spark = (done, tasks) if tasks else stage.of_spark
        done, tasks = stage.of_spark
        if stage.counted is not None:
            rows_done = stage.counted()
        else:
            rows_done = stage.rows * done // tasks if tasks else stage.rows_done
        if not tasks:
            done, tasks = stage.done, stage.tasks
        share = rows_done / stage.rows if stage.rows else done / tasks if tasks else 0.0
        elapsed_s = self._now_s() - stage.begun_s
        remaining_ms = None
        if share >= SHARE_MIN and elapsed_s >= ELAPSED_MIN_S:
            remaining_ms = max(0, round(1000 * elapsed_s * (1 - share) / share))
        return HowFar(stage.name, done, tasks, rows_done, stage.rows, remaining_ms)


PROGRESS = JobProgress()
