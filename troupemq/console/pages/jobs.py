"""Pages of the Spark jobs that brokers run: schedule, runs, and one run with its log."""

from collections.abc import Sequence
from urllib.parse import urlencode

from protocol.bodies_own import JobLog, JobRun, Jobs
from protocol.codes import RequestCode
from protocol.headers.own import GetJobsHeader, JobLogHeader
from troupemq.client.admin import Time
from troupemq.client.errors import ClientError
from troupemq.console.asking import (
    REASON_HIDDEN,
    NotThere,
    PageRequest,
    failures_of,
    page,
    snapshot_page,
)
from troupemq.console.changes import change_link, change_links
from troupemq.console.given import address as address_rule
from troupemq.console.pages.message import HIDDEN
from troupemq.console.parts import (
    Cells,
    ChartLine,
    Facts,
    Form,
    Input,
    LineChart,
    Link,
    Links,
    LongText,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    Span,
)
from troupemq.console.snapshot import ClusterSnapshot
from troupemq.job_line import job_line

LOG_LINES = 200
LOG_LINES_MAX = 1000
CHARTS_MAX = 4
"""Limit of charts, for the jobs that ran last; the filter shows the chart of any job."""

ENDED = ("finished", "failed", "cancelled")


@page("/jobs")
def jobs(asked: PageRequest) -> Page:
    now = asked.snapshot()
    entries = [
        {
            "entry": each.name,
            "job": each.job,
            "cron": each.cron,
            "time_zone": each.time_zone,
            "next_ms": Time(each.next_ms),
            "tries": each.tries,
            "arguments": each.arguments or None,
            "broker": address,
            "run": change_link(asked, "Run now", "job-run", {"broker": address, "job": each.name}),
        }
        for address, found in now.jobs.items()
        for each in found.schedule
    ]
    wanted = asked.text("job")
    runs = [
        _row(asked, address, run)
        for address, found in now.jobs.items()
        for run in reversed(found.runs)
        if wanted in ("", run.job, run.entry)
    ]
    there = [("Run a job", "job-run", {"broker": address}) for address in now.jobs]
    nothing = "No broker here has a job schedule: start one with --jobs FILE."
    names = _job_names(now)
    inputs = [Input("job", "Job, or entry of the schedule", "choice", wanted, ["", *names])]
    parts: list[Part] = [
        RowTable("schedule", "Schedule", entries, nothing),
        *([Form("Runs", "/jobs", inputs, "Filter")] if names else []),
        *(_chart(name) for name in ([wanted] if wanted in names else names[:CHARTS_MAX])),
        RowTable(
            "runs",
            "" if names else "Runs",
            runs,
            "No job has run since the brokers started: run one.",
        ),
        change_links(asked, there[:1]),
    ]
    return snapshot_page("Spark jobs", now, parts)


def _job_names(now: ClusterSnapshot) -> list[str]:
    """Return the entries and jobs that have run, the latest first."""
    runs = [run for found in now.jobs.values() for run in found.runs]
    runs.sort(key=lambda run: -run.started_ms)
    return list(dict.fromkeys(run.entry or run.job for run in runs))


def _chart(name: str) -> LineChart:
    return LineChart(
        f"chart_{name}",
        f"{name}: duration and rows of its runs",
        f"/api/jobs/history?{urlencode({'job': name})}",
        "history",
        (
            ChartLine("took_s", "seconds", "link"),
            ChartLine("rows", "rows", "fine", (6, 4), on_the_right=True),
        ),
        with_points=True,
    )


@page("/jobs/history")
def history(asked: PageRequest) -> Page:
    """Show the ended runs of one job, the oldest first, as in its chart."""
    name = asked.needed("job")
    now = asked.snapshot()
    runs = [
        (address, run)
        for address, found in now.jobs.items()
        for run in found.runs
        if name in (run.entry or run.job, run.job) and run.state in ENDED and run.started_ms
    ]
    rows = [
        {
            "time_ms": Time(run.started_ms),
            "run": Link(run.run, "/job", {"broker": address, "run": run.run}),
            "state": run.state,
            "took_s": max(0, run.ended_ms - run.started_ms) / 1000,
            "rows": run.rows_done,
            "rows_a_second": run.rows_done * 1000 / max(1, run.ended_ms - run.started_ms),
            "broker": address,
        }
        for address, run in sorted(runs, key=lambda each: each[1].started_ms)
    ]
    nothing = f"No ended run of {name} is recorded: run it first."
    return Page(f"Runs of {name}", [RowTable("history", "", rows, nothing)], now.missing)


def _row(asked: PageRequest, address: str, run: JobRun) -> Cells:
    ends = run.state in ENDED
    given = {"broker": address, "run": run.run}
    return {
        "run": Link(run.run, "/job", given),
        "job": run.job,
        "state": job_line(run),
        "started_ms": Time(run.started_ms),
        "took_ms": Span(run.ended_ms - run.started_ms) if run.started_ms and run.ended_ms else None,
        "rows": run.rows_done or None,
        "sentence": _reason(asked, run),
        "broker": address,
        "cancel": None if ends else change_link(asked, "Cancel", "job-cancel", given),
    }


def _reason(asked: PageRequest, run: JobRun) -> str | None:
    if not run.sentence:
        return None
    return run.sentence if asked.sees_bodies() else REASON_HIDDEN


@page("/job")
def job(asked: PageRequest) -> Page:
    address, name = asked.needed("broker", address_rule), asked.needed("run")
    if address not in asked.snapshot().jobs:
        raise NotThere(f"Broker {address} not found, or it runs no jobs.")
    session = asked.cluster.session
    failures: list[str] = []
    lines: list[str] = []
    sees_bodies = asked.sees_bodies()
    with session.within():
        found = session.read(Jobs, address, RequestCode.GET_JOBS, GetJobsHeader(name)).runs
        run = next((each for each in found if each.run == name), None)
        if run is None:
            raise NotThere(f"Run {name} not found at {address}.")
        try:
            header = JobLogHeader(name, asked.number("lines", LOG_LINES, 1, LOG_LINES_MAX))
            if sees_bodies:
                lines = session.read(JobLog, address, RequestCode.GET_JOB_LOG, header).lines
        except ClientError as error:
            failures.append(str(error))
    parts: list[Part] = [Facts("run", "", _row(asked, address, run))]
    if not sees_bodies:
        parts.append(Notes("hidden", "Report and log", [Note("fine", HIDDEN)]))
    else:
        parts += _said(run, failures, lines)
    if len(lines) == LOG_LINES:
        more = {"broker": address, "run": name, "lines": LOG_LINES_MAX}
        parts.append(Links([Link(f"Last {LOG_LINES_MAX:,} log lines", "/job", more)]))
    return Page(f"Run {name}", parts, refresh_s=0 if run.state in ENDED else 2)


def _said(run: JobRun, failures: Sequence[str], lines: Sequence[str]) -> list[Part]:
    """Return the report and the log, both of which may quote messages."""
    parts: list[Part] = []
    report = {key: value for key, value in run.report.items() if key != "text"}
    if run.report.get("text"):
        parts.append(LongText("text", "Report", str(run.report["text"])))
    if report:
        parts.append(Facts("report", "Report values", report, True))
    parts += failures_of(failures, "log")
    parts.append(LongText("log", "End of the log", "\n".join(lines) or "No output yet."))
    return parts
