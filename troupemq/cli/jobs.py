"""`job`: Spark jobs over a store directory, with or without a broker on it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import click

from actors.jobs.spark_job import JobState
from actors.jobs.spark_jobs import RunJob
from spark.jobs import job_names
from storage.errors import StoreError
from troupemq.cli.options import json_option
from troupemq.daemon import Serving, serve
from troupemq.logs import set_up_logs
from troupemq.servers import SPARK_JOBS, Servers

JOBS_DIRECTORY = "jobs"
WAIT_S = 7 * 86_400.0
"""The job has a deadline of its own."""


class JobFailed(StoreError):
    """The job did not finish; the text says why."""


@click.group()
def job() -> None:
    """Spark jobs: what the stored log says, in bulk. They need no broker."""


@job.command("list")
def list_jobs() -> None:
    """Names the jobs there are."""
    for name in job_names():
        click.echo(name)


@job.command("run")
@click.argument("name", type=click.Choice(job_names()))
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    default=Path("data", "store"),
    show_default=True,
    help="storePathRootDir of the broker; it may be running.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Where the result goes. [default: beside the store, named like the job]",
)
@click.option("--topic", "topics", multiple=True, help="Only these; repeatable.")
@click.option(
    "-a",
    "--argument",
    "further",
    multiple=True,
    metavar="NAME=VALUE",
    help="JSON or text.",
)
@click.option(
    "--spark-conf",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings of Spark. [default: conf/spark.conf, if it is there]",
)
@json_option
def run_job(
    name: str,
    store: Path,
    output: Path | None,
    topics: tuple[str, ...],
    further: tuple[str, ...],
    spark_conf: Path | None,
    as_json: bool,
) -> None:
    """Runs the job NAME to its end; prints its report. Ctrl-C cancels it.

    Nothing of a run that fails or is cancelled becomes visible.
    """
    output = (output or store.parent / name).absolute()
    arguments: dict[str, Any] = {"store": str(store.absolute()), "output": str(output)}
    if topics:
        arguments["topics"] = list(topics)
    arguments.update(_argument(text) for text in further)
    set_up_logs(level=30)
    started: list[Servers] = []

    def start(on_give_up: Callable[[str], None]) -> Serving:
        servers = Servers(on_give_up)
        servers.start_spark_jobs(output.with_name(JOBS_DIRECTORY), spark_conf)
        started.append(servers)
        return servers.serving()

    def work(_: Event) -> None:
        state = _run_to_end(started[0], name, arguments)
        if state.state != "finished" or state.report is None:
            where = f" (log: {state.log_path})" if state.log_path else ""
            raise JobFailed(f"The job {name} {state.state}: {state.sentence}{where}")
        click.echo(json.dumps(dict(state.report)) if as_json else state.report["text"])

    sys.exit(serve(start, work=work, once=True))


def _run_to_end(servers: Servers, name: str, arguments: dict[str, Any]) -> JobState:
    shown: list[str] = []

    def progress(state: JobState) -> None:
        text = f"{name}: {state.state}"
        if state.tasks:
            text += f", {state.done} of {state.tasks} tasks"
        if text not in shown[-1:]:
            shown.append(text)
            click.echo(text, err=True)

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
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
