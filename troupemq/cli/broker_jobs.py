"""Spark jobs of a running broker: `job schedule`, `status`, `logs`, `cancel`, `run -b`."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Any

import click

from protocol.bodies_own import JobLog, JobRun, Jobs
from protocol.codes import RequestCode
from protocol.headers.own import GetJobsHeader, JobLogHeader, JobRunHeader, RunJobHeader
from troupemq.cli.admin.output import Output
from troupemq.cli.options import Command, json_option, leave
from troupemq.client.admin import Admin, Time
from troupemq.client.admin.answers import Row
from troupemq.client.admin.base import SILENT_S
from troupemq.client.errors import ClientError, understood
from troupemq.interrupts import INTERRUPTED
from troupemq.job_line import job_line
from troupemq.text import escaped, escaped_json, escaped_lines, one_line

BROKER = "127.0.0.1:10911"
LOOK_AGAIN_S = 0.5
ENDED = ("finished", "failed", "cancelled")


def broker_option(default: str | None = BROKER) -> Callable[[Command], Command]:
    def add(function: Command) -> Command:
        return click.option(
            "-b",
            "--broker",
            metavar="HOST:PORT",
            default=default,
            show_default=default is not None,
            help="Address of the running broker.",
        )(function)

    return add


@contextmanager
def asking() -> Iterator[Admin]:
    """Yield an Admin; a ClientError ends the command with one sentence."""
    try:
        with Admin(silent_s=SILENT_S) as admin:
            yield admin
    except ClientError as error:
        leave(one_line(str(error)))


@click.command()
@broker_option()
@json_option
def schedule(broker: str, as_json: bool) -> None:
    """Show the broker's scheduled jobs and when each runs next."""
    with asking() as admin:
        found = admin.read(Jobs, broker, RequestCode.GET_JOBS)
    newest = {run.entry: run for run in found.runs if run.entry}
    rows: list[Row] = [
        {
            "entry": entry.name,
            "job": entry.job,
            "cron": entry.cron,
            "time_zone": entry.time_zone,
            "next_ms": Time(entry.next_ms),
            "last_run": newest[entry.name].run if entry.name in newest else None,
            "last_state": newest[entry.name].state if entry.name in newest else None,
            "due_ms": Time(entry.due_ms),
            "tries": entry.tries,
            "arguments": entry.arguments,
        }
        for entry in found.schedule
    ]
    nothing = "The broker has no scheduled jobs: start it with --jobs FILE (see conf/jobs.conf)."
    Output(as_json=as_json).table(rows, nothing)


@click.command()
@click.argument("run", required=False)
@broker_option()
@json_option
def status(run: str | None, broker: str, as_json: bool) -> None:
    """List the job runs since the broker's start, or show RUN in full with its report."""
    out = Output(as_json=as_json)
    with asking() as admin:
        runs = admin.read(Jobs, broker, RequestCode.GET_JOBS, GetJobsHeader(run)).runs
    if run is None:
        show = _row if as_json else _short
        out.table([show(each) for each in runs], "The broker has run no job since its start.")
        return
    found = next((each for each in runs if each.run == run), None)
    if found is None:
        leave(f"run {run} not found at {broker}: `troupemq job status` lists the known runs.")
    text = found.report.get("text", "")
    further = {"entry": found.entry or None, "log": found.tail}
    if as_json:
        out.fields({**_row(found), **further, "report": found.report})
        return
    out.fields({**_short(found), **further})
    if text:
        click.echo(f"\n{escaped_lines(text)}")


@click.command()
@click.argument("run")
@click.option(
    "--lines",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Print at most N lines.",
    metavar="N",
)
@broker_option()
@json_option
def logs(run: str, lines: int, broker: str, as_json: bool) -> None:
    """Print the last log lines of RUN, and its progress while it runs."""
    header = JobLogHeader(run, lines)
    with asking() as admin:
        found = admin.read(JobLog, broker, RequestCode.GET_JOB_LOG, header)
        runs = admin.read(Jobs, broker, RequestCode.GET_JOBS, GetJobsHeader(run)).runs
    here = next((each for each in runs if each.run == run), None)
    if as_json:
        progress = None if here is None else _progress(here)
        shown = {"run": run, "lines": found.lines, "progress": progress}
        click.echo(escaped_json(json.dumps(shown)))
        return
    for line in found.lines:
        click.echo(escaped(line))
    if here is not None and here.state not in ENDED:
        click.echo(escaped(f"{run}: {job_line(here)}"), err=True)


@click.command()
@click.argument("run")
@broker_option()
@json_option
def cancel(run: str, broker: str, as_json: bool) -> None:
    """Cancel RUN; after a few seconds' grace its process is killed."""
    with asking() as admin:
        admin.ask(broker, RequestCode.CANCEL_JOB, JobRunHeader(run))
    Output(as_json=as_json).done(f"{run} is being cancelled.", run=run)


def run_there(
    broker: str, name: str, arguments: Mapping[str, Any], *, wait: bool, as_json: bool
) -> None:
    """Run a job or a schedule entry at a broker; end the command unless the run finished."""
    with asking() as admin:
        header = RunJobHeader(name, json.dumps(dict(arguments)))
        answer = admin.ask(broker, RequestCode.RUN_JOB, header)
        run = understood(JobRun.decode, answer.body)
        if not wait:
            Output(as_json=as_json).done(f"{run.run} is queued.", run=run.run)
            return
        ended = _wait_for(admin, broker, run.run)
    if ended.state != "finished":
        leave(f"The job {name} {ended.state}: {ended.sentence or 'it was cancelled'}")
    report = ended.report
    text = escaped_lines(str(report.get("text", "")))
    click.echo(escaped_json(json.dumps(report)) if as_json else text)


def _wait_for(admin: Admin, broker: str, run: str) -> JobRun:
    shown = ""
    try:
        while True:
            runs = admin.read(Jobs, broker, RequestCode.GET_JOBS, GetJobsHeader(run)).runs
            found = next((each for each in runs if each.run == run), None)
            if found is None:
                leave(f"run {run} not found: broker {broker} has restarted since; run it again.")
            if found.state in ENDED:
                return found
            if shown != (shown := f"{run}: {job_line(found)}"):
                click.echo(escaped(shown), err=True)
            Event().wait(LOOK_AGAIN_S)
    except KeyboardInterrupt:
        try:
            admin.ask(broker, RequestCode.CANCEL_JOB, JobRunHeader(run))
        except ClientError as error:  # the run has just ended, or the broker is away
            leave(one_line(str(error)), INTERRUPTED)
        click.echo(f"{run} is being cancelled.", err=True)
        sys.exit(INTERRUPTED)


def _short(run: JobRun) -> Row:
    """Return a run as a row of the text output."""
    return {
        "run": run.run,
        "job": run.job,
        "state": job_line(run),
        "started": Time(run.started_ms),
        "ended": Time(run.ended_ms),
        "sentence": run.sentence or None,
    }


def _row(run: JobRun) -> Row:
    return {
        "run": run.run,
        "job": run.job,
        **_progress(run),
        "started_ms": Time(run.started_ms),
        "ended_ms": Time(run.ended_ms),
        "sentence": run.sentence or None,
    }


def _progress(run: JobRun) -> Row:
    return {
        "state": run.state,
        "stage": run.stage or None,
        "done": run.done,
        "tasks": run.tasks,
        "rows_done": run.rows_done,
        "rows": run.rows or None,
        "remaining_ms": run.remaining_ms,
    }
