"""Headers of the requests about Spark jobs: ours alone, see protocol/bodies_own.py."""

from dataclasses import dataclass

from protocol.headers.fields import Header, wire


@dataclass(slots=True)
class RunJobHeader(Header):
    """A job, or an entry of the schedule, to run when there is room: RUN_JOB."""

    name: str = wire("name")
    arguments: str = wire("arguments", default="{}")
    """A JSON object, over what the broker knows and what the entry says."""


@dataclass(slots=True)
class GetJobsHeader(Header):
    """Everything about jobs: GET_JOBS. Reports may be long: only that of `run` comes along."""

    run: str | None = wire("run", default=None)


@dataclass(slots=True)
class JobRunHeader(Header):
    """One run: CANCEL_JOB."""

    run: str = wire("run")


@dataclass(slots=True)
class JobLogHeader(Header):
    """The end of one run's log: GET_JOB_LOG."""

    run: str = wire("run")
    lines: int = wire("lines", default=100)
