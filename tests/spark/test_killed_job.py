"""The archive job under its actor, its JVM killed in the middle of writing, and the run after."""

import os
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.jobs.messages import JobOrder, JobState, JobStates, RunJob
from actors.jobs.spark_job import JobCommand
from actors.jobs.spark_jobs import SparkJobs
from spark.archive_files import Archive
from spark.runner import command, environment
from tests.spark.probe import QUICK
from tests.spark.store_writer import StoreWriter
from tests.support.actors import WAIT_S, Arrivals
from troupemq.java import find_java, packaged_java

pytestmark = pytest.mark.slow

MESSAGES = 2_500
JOB_TIMEOUT_S = 120


class Jobs:
    """A SparkJobs that starts real jobs, with the Java of the moment."""

    def __init__(self, system: ActorSystem, directory: Path) -> None:
        self.system = system
        self.environment: Mapping[str, str] = os.environ
        self.directory = directory
        scratch = directory / "scratch"
        scratch.mkdir()
        options = f"{QUICK['spark.driver.extraJavaOptions']} -Djava.io.tmpdir={scratch}"
        self.settings = {
            **QUICK,
            "spark.local.dir": str(scratch),
            "spark.driver.extraJavaOptions": options,
        }
        """A JVM that is killed leaves its scratch files where they are."""
        self.address = system.address("spark_jobs")
        spec = ChildSpec(
            "spark_jobs", lambda system: SparkJobs(self.command, str(directory / "jobs"))
        )
        (directory / "jobs").mkdir()
        system.start(spec)

    def command(self, order: JobOrder, work_directory: str) -> JobCommand:
        name, arguments = order.name, order.arguments
        line = command(name, arguments, work_directory=work_directory, settings=self.settings)
        java_home = find_java(self.environment, self.directory / "cache")
        return JobCommand(line, environment(os.environ, java_home))

    def start(self, **arguments: Any) -> tuple[Arrivals, Arrivals]:
        """(what it says on its way, its last state)."""
        progress, ended = Arrivals(), Arrivals()
        given = {
            "store": str(self.directory / "store"),
            "output": str(self.directory / "archive"),
            **arguments,
        }
        self.address.tell(RunJob("archive", given, ended, progress))
        return progress, ended


def processes_of(run: str) -> dict[int, str]:
    """Process ids and names of everything that has this run on its command line."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if run in (path / "cmdline").read_text():
                found[int(path.name)] = (path / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def take_until_writing(progress: Arrivals) -> JobState:
    """The first state in which some tasks are done and many are not."""
    while True:
        state: JobState = progress.get(timeout=JOB_TIMEOUT_S)
        if state.done:
            assert state.done < state.tasks
            return state


def test_a_killed_jvm_leaves_nothing_behind_and_the_next_run_is_whole(
    real_system: ActorSystem, tmp_path: Path
) -> None:
    writer = StoreWriter(tmp_path / "store", log_file_bytes=8 << 20, queue_file_bytes=60_000)
    for number in range(MESSAGES):
        writer.append("t", 0, number.to_bytes(16_384, "big"))
    writer.close()
    jobs = Jobs(real_system, tmp_path)
    archive = Archive(str(tmp_path / "archive"))

    progress, ended = jobs.start(range_bytes=65_536)
    state = take_until_writing(progress)
    assert list(archive.output.rglob("*.parquet"))
    (java,) = [pid for pid, name in processes_of(state.run).items() if name == "java"]
    os.kill(java, SIGKILL)
    failed = ended.get(timeout=JOB_TIMEOUT_S)
    assert failed.state == "failed"
    assert failed.sentence == "Spark's Java process ended before the job did; its log says more"
    assert archive.runs() == []
    assert [path.name[0] for path in archive.output.iterdir()] == ["_", "_"]
    assert processes_of(failed.run) == {}
    assert real_system.ask(jobs.address, JobStates).result(WAIT_S) == [failed]

    if packaged_java() is not None:
        jobs.environment = {"PATH": ""}  # the next one takes the Java that pip installs
    _, ended = jobs.start()
    finished = ended.get(timeout=JOB_TIMEOUT_S)
    assert (finished.state, finished.sentence) == ("finished", None)
    assert finished.report["rows"] == MESSAGES
    assert archive.runs() == [1]
    archive.check(1)
    (queue,) = archive.manifest(1).queues
    assert (queue.first, queue.last, queue.rows) == (0, MESSAGES - 1, MESSAGES)
    assert sorted(path.name for path in archive.output.iterdir()) == ["_lock", "run=00000001"]
