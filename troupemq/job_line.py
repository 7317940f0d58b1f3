"""Progress of a job run as one line of text."""

from typing import Protocol

from spark.report import duration


class KnownRun(Protocol):
    """State of a run, as the actor or a network answer has it."""

    @property
    def state(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def tasks(self) -> int: ...
    @property
    def rows_done(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def remaining_ms(self) -> int | None:
        """Estimated remaining time; None if it is unknown yet."""


def job_line(run: KnownRun) -> str:
    """Return one line about a run: state, progress, messages and remaining time.

    Example: `running, writing: 3 of 80 tasks, 40,000 of 900,000 messages, about 2.0 min left`.
    """
    if run.state != "running" or not run.stage:
        return run.state
    parts = []
    if run.tasks:
        parts.append(f"{run.done:,} of {run.tasks:,} tasks")
    if run.rows:
        parts.append(f"{run.rows_done:,} of {run.rows:,} messages")
    if run.remaining_ms is not None:
        parts.append(f"about {duration(run.remaining_ms)} left")
    said = f"{run.state}, {run.stage}"
    return f"{said}: {', '.join(parts)}" if parts else said
