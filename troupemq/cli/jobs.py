"""Spark jobs over a store directory, run here or by a running broker: `job`.

`job prepare` makes a class-data archive, with which Spark's JVM starts faster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, NoReturn

import click

from actors.jobs.jobs_conf import argument_value
from actors.jobs.messages import JobState, RunJob
from spark.arguments import GIVEN_BY_BROKERS, OfStore, checked
from spark.class_data import MODULE, make_class_data
from spark.jobs import job_names, summary_of
from spark.runner import environment
from storage.child_python import child_command, link_packages
from storage.errors import StoreError
from storage.spelling import did_you_mean
from troupemq.cli.admin.output import Output
from troupemq.cli.broker_jobs import broker_option, cancel, logs, run_there, schedule, status
from troupemq.cli.copying import redrive, restore
from troupemq.cli.options import Command, CommandGroup, FilePath, json_option, leave
from troupemq.daemon import Serving, serve
from troupemq.exit_codes import exit_code_of
from troupemq.interrupts import INTERRUPTED
from troupemq.java import find_java
from troupemq.job_line import job_line
from troupemq.jobs_beside import SPARK_JOBS
from troupemq.jobs_python import NoSpark, find_jobs_python
from troupemq.logs import set_up_logs
from troupemq.servers import Servers
from troupemq.text import escaped, escaped_json, escaped_lines

JOBS_DIRECTORY = "jobs"
WAIT_S = 7 * 86_400.0
"""Longer than any job's own deadline."""


class JobFailed(StoreError):
    """Failure of a job; the text says why."""


def jobs_python_option(function: Command) -> Command:
    """Add --jobs-python, the counterpart of a broker's setting jobsPython."""
    return click.option(
        "--jobs-python",
        default="",
        metavar="PYTHON",
        help="Run Spark with this Python; it needs pyspark, pyarrow, numpy and crcmod. [default:"
        " this command's Python if it has them, else python3]",
    )(function)


@click.command()
@jobs_python_option
@json_option
def prepare(jobs_python: str, as_json: bool) -> None:
    """Speed up the start of Spark jobs with a class-data archive for this Java and Spark.

    Run it once per machine, and again after an update of Java or Spark. It takes up to a minute
    and 200 MB in the user's cache. Jobs then use the archive automatically.
    """
    try:
        directory = _prepared(jobs_python)
    except StoreError as error:
        leave(f"{error}.", exit_code_of(error))
    Output(as_json=as_json).done(f"Spark's JVM now starts from {directory}.", path=directory)


def _prepared(named: str) -> str:
    """Make the archive and return its path. Raises StoreError."""
    python = find_jobs_python(named)
    java = find_java(os.environ, package=python.java_package)
    if python.is_this:
        return str(make_class_data(environment(os.environ, java)))
    with TemporaryDirectory() as folder:
        link_packages(folder, python.packages)
        done = subprocess.run(
            child_command(MODULE, python=python.path),
            env=environment(os.environ, java, python.code(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
    said = done.stdout.strip()
    if done.returncode:
        raise StoreError(said or f"{python.path} failed to make a class-data archive")
    return said


@click.group(cls=CommandGroup)
def job() -> None:
    """Run Spark jobs over stored messages. `run` and `list` need no broker."""


for command in (schedule, status, logs, cancel, redrive, restore, prepare):
    job.add_command(command)


@job.command("list")
@json_option
def list_jobs(as_json: bool) -> None:
    """List the jobs and what each does."""
    rows = [{"job": name, "does": summary_of(name)} for name in job_names()]
    Output(as_json=as_json).table(rows, "There is no job.")


@job.command("run")
@click.argument("name")
@click.option(
    "--store",
    type=FilePath(path_type=Path),
    help="The broker's storePathRootDir; the broker may be running. [default: data/store]",
)
@click.option(
    "--output",
    type=FilePath(path_type=Path),
    help="Write the result to this folder. [default: beside the store, named after the job]",
)
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="Read only this topic; repeatable."
)
@click.option(
    "-a",
    "--argument",
    "further",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a parameter of the job, JSON or text; repeatable.",
)
@click.option(
    "--spark-conf",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
    help="Read Spark's settings from this file. [default: conf/spark.conf, if present]",
)
@click.option(
    "--master",
    metavar="URL",
    help="Run the tasks there: local[*], spark://HOST:7077, yarn, k8s://…; overrides spark.master.",
)
@jobs_python_option
@broker_option(None)
@click.option(
    "--verify", is_flag=True, help="With archive: compare the archive with the log; write nothing."
)
@click.option("--no-wait", is_flag=True, help="With -b: return as soon as the job is queued.")
@json_option
def run_job(
    name: str,
    store: Path | None,
    output: Path | None,
    topics: tuple[str, ...],
    further: tuple[str, ...],
    spark_conf: Path | None,
    master: str | None,
    jobs_python: str,
    broker: str | None,
    no_wait: bool,
    verify: bool,
    as_json: bool,
) -> None:
    """Run the job NAME and print its report. Ctrl-C cancels it, with exit code 130.

    A run that fails or is cancelled leaves no result. With -b a running broker runs the job over
    its own store. NAME may then be an entry of its schedule, and paths are on its machine.
    """
    arguments: dict[str, Any] = dict(_argument(text) for text in further)
    if topics:
        arguments["topics"] = list(topics)
    if verify:
        arguments["verify"] = True
    if broker is not None:
        if master is not None:
            raise click.UsageError(
                "--master does not work with -b: set spark.master in the broker's conf/spark.conf."
            )
        if jobs_python:
            raise click.UsageError(
                "--jobs-python does not work with -b: set the broker's jobsPython."
            )
        paths = {"store": store, "output": output}
        named = {key: str(path) for key, path in paths.items() if path is not None}
        run_there(broker, name, {**named, **arguments}, wait=not no_wait, as_json=as_json)
        return
    if name not in job_names():
        known = f"the jobs are {', '.join(job_names())}"
        hint = did_you_mean(name, job_names(), known)
        raise click.UsageError(f"job {name!r} not found: {hint}")
    store = store or Path("data", "store")
    output = (output or store.parent / name).absolute()
    arguments = {"store": str(store.absolute()), "output": str(output), **arguments}
    settings = {} if master is None else {"spark.master": master}
    folder = output.parent / JOBS_DIRECTORY
    _run_here(name, arguments, folder, spark_conf, settings, jobs_python, as_json=as_json)


def _run_here(
    name: str,
    arguments: dict[str, Any],
    folder: Path,
    spark_conf: Path | None,
    settings: dict[str, str],
    python: str,
    *,
    as_json: bool,
) -> NoReturn:
    """Run a job without a broker and end the process; its log goes to `folder`."""
    try:
        of_store = {each: arguments[each] for each in GIVEN_BY_BROKERS if each in arguments}
        checked(OfStore, name, of_store)
    except StoreError as error:
        leave(str(error), exit_code_of(error))
    set_up_logs(level=30)
    finished: list[JobState] = []
    started: list[Servers] = []

    def start(on_give_up: Callable[[str], None]) -> Serving:
        servers = Servers(on_give_up)
        servers.start_spark_jobs(folder, spark_conf, settings, python)
        started.append(servers)
        return servers.serving()

    def work(_: Event) -> None:
        state = _run_to_end(started[0], name, arguments)
        if state.state != "finished" or state.report is None:
            with suppress(NoSpark):  # a missing Java is the real reason, with its own exit code
                find_java(os.environ, package=find_jobs_python(python).java_package)
            has_log = state.log_path is not None and os.path.isfile(state.log_path)
            where = f" (log: {state.log_path})" if has_log else ""
            raise JobFailed(f"The job {name} {state.state}: {state.sentence}{where}")
        finished.append(state)
        report = dict(state.report)
        text = escaped_json(json.dumps(report)) if as_json else escaped_lines(report["text"])
        click.echo(text)

    cancelled = f"The job {name} was cancelled; nothing was written."
    code = serve(start, work=work, once=True, cancelled=cancelled)
    if code == 0 and not finished:
        leave(cancelled, INTERRUPTED)
    sys.exit(code)


def _run_to_end(servers: Servers, name: str, arguments: dict[str, Any]) -> JobState:
    shown: list[str] = []

    def progress(state: JobState) -> None:
        text = f"{name}: {job_line(state)}"
        if text not in shown[-1:]:
            shown.append(text)
            click.echo(escaped(text), err=True)

    system = servers.system
    future = system.ask(
        system.address(SPARK_JOBS), lambda reply: RunJob(name, arguments, reply, progress)
    )
    state: JobState = future.result(WAIT_S)
    return state


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--argument")
    return name, argument_value(value)
