"""Headers of requests about Spark jobs, TroupeMQ extensions (protocol/bodies_own.py)."""

from protocol.headers.fields import Header, wire
from protocol.values import value


@value
class RunJobHeader(Header):
    """A job, or an entry of the schedule, to run when a slot is free: RUN_JOB."""

    name: str = wire("name")
    arguments: str = wire("arguments", default="{}")
    """A JSON object whose values override those of broker and entry."""


@value
class GetJobsHeader(Header):
    """Query for jobs, runs and schedule: GET_JOBS. Only the report of `run` is included."""

    run: str | None = wire("run", default=None)


@value
class JobRunHeader(Header):
    """Request about one run of a job: CANCEL_JOB."""

    run: str = wire("run")


@value
class JobLogHeader(Header):
    """Query for the end of one run's log: GET_JOB_LOG."""

    run: str = wire("run")
    lines: int = wire("lines", default=100)
