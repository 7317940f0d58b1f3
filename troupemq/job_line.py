"""One line that says how far a run of a job is, for people."""

from typing import Protocol

from spark.report import duration


class KnownRun(Protocol):
    """What is known of a run, from the actor or over the network."""

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
        """None if it cannot be told yet."""


def job_line(run: KnownRun) -> str:
    """`running, writing: 3 of 80 tasks, 40,000 of 900,000 messages, some 2.0 min left`."""
    if run.state != "running" or not run.stage:
        return run.state
    parts = []
    if run.tasks:
        parts.append(f"{run.done:,} of {run.tasks:,} tasks")
    if run.rows:
        parts.append(f"{run.rows_done:,} of {run.rows:,} messages")
    if run.remaining_ms is not None:
        parts.append(f"some {duration(run.remaining_ms)} left")
    said = f"{run.state}, {run.stage}"
    return f"{said}: {', '.join(parts)}" if parts else said
