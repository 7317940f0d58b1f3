"""Spark jobs beside a broker or without one: actor, schedule and commands."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.broker import Broker
from actors.engine.supervisor import ChildSpec
from actors.jobs.jobs_conf import ScheduledJob, load_jobs
from actors.jobs.messages import JobOrder
from actors.jobs.scheduled_runs import JobSchedule, KeptRuns
from actors.jobs.spark_job import JobCommand, MakeCommand
from actors.jobs.spark_jobs import SparkJobs
from spark.jobs import job_names
from spark.runner import command, environment
from troupemq.java import find_java
from troupemq.jobs_python import find_jobs_python

SPARK_JOBS = "spark_jobs"
LOCAL_SPARK_CONF = Path("conf", "spark.conf")
LOCAL_JOBS_CONF = Path("conf", "jobs.conf")


@dataclass(frozen=True)
class JobsPlace:
    directory: Path
    schedule: Path | None = None
    """None: conf/jobs.conf, if present."""


def scheduled_jobs(path: Path | None) -> list[ScheduledJob]:
    """Return the entries of this file, by default of conf/jobs.conf. Raises StoreError."""
    if path is None and not LOCAL_JOBS_CONF.is_file():
        return []
    return load_jobs(path or LOCAL_JOBS_CONF, job_names())


def jobs_child(jobs: JobsPlace, broker: Broker, entries: Sequence[ScheduledJob]) -> ChildSpec:
    """Return the actor that runs jobs beside a broker, with the broker's store as arguments."""
    kept, store, address = KeptRuns(), broker.store, broker.system.address
    schedule = JobSchedule(
        entries, f"{store.config.root}/troupemq/jobs.json", address("config_writer")
    )

    def known(name: str) -> Mapping[str, Any]:
        return {
            "store": store.config.root,
            "commit_log": store.config.commit_log_dir,
            "published_offset": store.commit_log.end_offset,
            "output": str(Path(store.config.root).absolute().parent / name),
        }

    return ChildSpec(
        SPARK_JOBS,
        lambda _: SparkJobs(
            job_commands(None, python=broker.config.jobs_python),
            str(jobs.directory),
            job_names=job_names(),
            schedule=schedule,
            known_arguments=known,
            long_answers=address("long_answers"),
            kept=kept,
        ),
    )


def job_commands(
    spark_conf: Path | None, settings: Mapping[str, str] | None = None, python: str = ""
) -> MakeCommand:
    """Return a function that makes the command of a job's child process.

    `settings` are Spark's and override the file's; `python` is the setting `jobsPython`. The
    function looks for Python and Java at each call. It raises NoSpark or NoJava if one is missing.
    """
    conf = spark_conf
    if conf is None and LOCAL_SPARK_CONF.is_file():
        conf = LOCAL_SPARK_CONF

    def make(order: JobOrder, work_directory: str) -> JobCommand:
        found = find_jobs_python(python)
        java = find_java(os.environ, package=found.java_package)
        return JobCommand(
            command(
                order.name,
                order.arguments,
                work_directory=work_directory,
                settings={**(settings or {}), **order.settings},
                conf=None if conf is None else str(conf.absolute()),
                python=found.path,
            ),
            environment(os.environ, java, found.code(work_directory)),
            found.packages,
        )

    return make
