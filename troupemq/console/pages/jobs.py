"""The pages of the Spark jobs that brokers run: the schedule, the runs, and one with its log."""

from protocol.bodies_own import JobLog, JobRun, Jobs
from protocol.codes import RequestCode
from protocol.headers.jobs import GetJobsHeader, JobLogHeader
from troupemq.cli.admin.output import Time
from troupemq.client.errors import ClientError
from troupemq.console.asking import NotThere, PageRequest, failures_of, page
from troupemq.console.changes import change_link, change_links
from troupemq.console.parts import Cells, Facts, Link, LongText, Page, Part, RowTable, Span
from troupemq.job_line import job_line

LOG_LINES = 200
ENDED = ("finished", "failed", "cancelled")


@page("/jobs")
def jobs(asked: PageRequest) -> Page:
    """The schedule and the runs of all brokers that run jobs."""
    now = asked.snapshot()
    entries = [
        {
            "entry": each.name,
            "job": each.job,
            "cron": each.cron,
            "time_zone": each.time_zone,
            "next_ms": Time(each.next_ms),
            "tries": each.tries,
            "broker": address,
            "run": change_link(asked, "Run now", "job-run", {"broker": address, "job": each.name}),
        }
        for address, found in now.jobs.items()
        for each in found.schedule
    ]
    runs = [
        _row(asked, address, run)
        for address, found in now.jobs.items()
        for run in reversed(found.runs)
    ]
    there = [("Run a job", "job-run", {"broker": address}) for address in now.jobs]
    nothing = "No broker here runs jobs by itself: start one with --jobs FILE."
    return Page(
        "Spark jobs",
        [
            RowTable("schedule", "Schedule", entries, nothing),
            RowTable("runs", "Runs", runs, "No job has run since the brokers were started."),
            change_links(asked, there[:1]),
        ],
        now.missing,
        taken_ms=now.taken_ms,
    )


def _row(asked: PageRequest, address: str, run: JobRun) -> Cells:
    ends = run.state in ENDED
    given = {"broker": address, "run": run.run}
    return {
        "run": Link(run.run, "/job", given),
        "job": run.job,
        "state": job_line(run),
        "started_ms": Time(run.started_ms),
        "took_ms": Span(run.ended_ms - run.started_ms) if run.ended_ms else None,
        "sentence": run.sentence or None,
        "broker": address,
        "cancel": None if ends else change_link(asked, "End it", "job-cancel", given),
    }


@page("/job")
def job(asked: PageRequest) -> Page:
    """One run: how far it is, its report, the end of its log."""
    address, name = asked.needed("broker"), asked.needed("run")
    if address not in asked.snapshot().jobs:
        raise NotThere(f"No broker that runs jobs has the address {address}.")
    session = asked.cluster.session
    failures: list[str] = []
    lines: list[str] = []
    with session.within():
        found = session.read(Jobs, address, RequestCode.GET_JOBS, GetJobsHeader(name)).runs
        run = next((each for each in found if each.run == name), None)
        if run is None:
            raise NotThere(f"{address} remembers no run {name}.")
        try:
            header = JobLogHeader(name, LOG_LINES)
            lines = session.read(JobLog, address, RequestCode.GET_JOB_LOG, header).lines
        except ClientError as error:
            failures.append(str(error))
    report = {key: value for key, value in run.report.items() if key != "text"}
    parts: list[Part] = [Facts("run", "", _row(asked, address, run))]
    if run.report.get("text"):
        parts.append(LongText("text", "Report", str(run.report["text"])))
    if report:
        parts.append(Facts("report", "Figures of the report", report, True))
    parts += failures_of(failures, "log")
    parts.append(LongText("log", "The end of its log", "\n".join(lines) or "Nothing yet."))
    return Page(f"Run {name}", parts, refresh_s=0 if run.state in ENDED else 2)
