"""Progress of this process's job, as it says itself; the runner passes it on to its parent.

A job goes through stages, one after the other: planning, writing, … Of each it tells what it will
read, as far as its plan knows, and what it has read. A process runs one job, so there is one
`PROGRESS`: the job's thread writes it, the runner's main thread reads it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

SHARE_MIN = 0.05
ELAPSED_MIN_S = 2.0
"""Before so much is done, and so long after a stage began, what remains would be a guess."""


@dataclass(frozen=True, slots=True)
class HowFar:
    """A job at one moment; numbers are of its present stage."""

    stage: str = ""
    done: int = 0
    tasks: int = 0
    rows_done: int = 0
    """Messages read by the tasks that are done."""

    rows: int = 0
    """Messages that will be read; 0: not known before."""

    remaining_ms: int | None = None
    """Until the end of the stage, if it goes on like this; None while that means nothing."""


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
        """Tasks done and all, as they were seen last."""


class JobProgress:
    """What the job says."""

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
        """The next stage. `rows`: messages it will read, `tasks`: its parts, if Spark has none.

        `counted` tells the messages read by now. Without it they are what `add` was told, or, where
        Spark has the tasks, their share of all messages.
        """
        self._stage = _Stage(stage, rows, tasks, counted, self._now_s())

    def add(self, rows: int) -> None:
        """One more part of the stage is done, with so many messages."""
        self._stage.done += 1
        self._stage.rows_done += rows

    def now(self, done: int = 0, tasks: int = 0) -> HowFar:
        """How far it is; `done` of `tasks`: those of Spark's stages that are running."""
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
