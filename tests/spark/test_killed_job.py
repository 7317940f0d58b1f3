"""The archive job under its actor, its JVM killed while it writes, and the next run."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import pytest

from actors.engine.messages import AskFigures
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.jobs.messages import JobFigures, JobOrder, RunJob
from actors.jobs.spark_job import JobCommand
from actors.jobs.spark_jobs import SparkJobs
from spark.archive.files import Archive
from spark.runner import command, environment
from tests.compat.patience import wait_until
from tests.spark.probe import QUICK
from tests.spark.store_writer import StoreWriter
from tests.support.actors import WAIT_S, Arrivals
from troupemq.java import find_java, packaged_java

pytestmark = pytest.mark.slow(seconds=40)

MESSAGES = 2_500
BODY_BYTES = 16_384
RANGE_BYTES = 4 * BODY_BYTES
FILES = MESSAGES * BODY_BYTES // RANGE_BYTES
JOB_TIMEOUT_S = 240
SHARE_MAX = 0.3
"""Maximum share of the files written before a kill, which leaves a second of work."""


class Jobs:
    """A SparkJobs that starts real jobs with the current Java."""

    def __init__(self, system: ActorSystem, directory: Path) -> None:
        self.system = system
        self.environment: Mapping[str, str] = os.environ
        self.directory = directory
        self.address = system.address("spark_jobs")
        spec = ChildSpec(
            "spark_jobs", lambda system: SparkJobs(self.command, str(directory / "jobs"))
        )
        (directory / "jobs").mkdir()
        system.start(spec)

    def command(self, order: JobOrder, work_directory: str) -> JobCommand:
        name, arguments = order.name, order.arguments
        line = command(name, arguments, work_directory=work_directory, settings=QUICK)
        java_home = find_java(self.environment, self.directory / "cache")
        return JobCommand(line, environment(os.environ, java_home))

    def start(self, **arguments: Any) -> tuple[Arrivals, Arrivals]:
        """Run a job; return (its progress, its last state)."""
        progress, ended = Arrivals(), Arrivals()
        given = {
            "store": str(self.directory / "store"),
            "output": str(self.directory / "archive"),
            **arguments,
        }
        self.address.tell(RunJob("archive", given, ended, progress))
        return progress, ended


def processes_of(run: str) -> dict[int, str]:
    """Return process ids and names of all processes of a run.

    The child and its JVM have it on their command lines. Python workers have it in their
    environment, as the folder for temporary files.
    """
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            about = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
            if run.encode() in about:
                found[int(path.name)] = (path / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def child_of(run: str) -> int:
    """Return the process id of the child, which leads its group.

    Workers lead theirs, with another command.
    """
    (child,) = [
        pid
        for pid in processes_of(run)
        if os.getpgid(pid) == pid and run in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return child


def are_gone(run: str, processes: Iterable[int]) -> bool:
    """Return whether these processes have ended, and all others that name the run."""
    return not processes_of(run) and not any(Path(f"/proc/{pid}/exe").exists() for pid in processes)


def wait_until_writing(archive: Archive, share: float) -> None:
    """Wait until more than this share of the files of MESSAGES exists, but many are missing.

    The job's own progress comes only twice a second, and a fast job may have finished by then.
    """
    wanted = share * FILES

    def is_writing() -> bool:
        found = sum(1 for _ in archive.output.rglob("*.parquet"))
        assert found < FILES
        return found > wanted

    wait_until(is_writing, f"{share:.0%} of the files", JOB_TIMEOUT_S)


@pytest.mark.trial(short=0, long=30, every=3, turn=1)
def test_a_killed_jvm_leaves_no_files_and_the_next_run_is_complete(
    real_system: ActorSystem, tmp_path: Path, seed: int
) -> None:
    writer = StoreWriter(tmp_path / "store", log_file_bytes=8 << 20, queue_file_bytes=60_000)
    for number in range(MESSAGES):
        writer.append("t", 0, number.to_bytes(BODY_BYTES, "big"))
    writer.close()
    jobs = Jobs(real_system, tmp_path)
    archive = Archive(str(tmp_path / "archive"))

    progress, ended = jobs.start(range_bytes=RANGE_BYTES)
    wait_until_writing(archive, Random(seed).random() * SHARE_MAX)
    state = progress.get_nowait()
    processes = processes_of(state.run)
    (java,) = [pid for pid, name in processes.items() if name == "java"]
    assert len(processes) > 2, "no Python worker"
    os.kill(java, SIGKILL)
    failed = ended.get(timeout=JOB_TIMEOUT_S)
    assert failed.state == "failed"
    assert failed.sentence == "Spark's Java process ended before the job did; see its log"
    assert archive.runs() == []
    assert [path.name[0] for path in archive.output.iterdir()] == ["_", "_"]
    wait_until(lambda: are_gone(failed.run, processes), "the job's processes are gone")
    assert real_system.ask(jobs.address, AskFigures).result(WAIT_S) == JobFigures([failed])

    if packaged_java() is not None:
        jobs.environment = {"PATH": ""}  # the next job takes the Java that pip installs
    _, ended = jobs.start()
    finished = ended.get(timeout=JOB_TIMEOUT_S)
    assert (finished.state, finished.sentence) == ("finished", None)
    assert finished.report["rows"] == MESSAGES
    assert archive.runs() == [1]
    archive.check(1)
    (queue,) = archive.manifest(1).queues
    assert (queue.first, queue.last, queue.rows) == (0, MESSAGES - 1, MESSAGES)
    assert sorted(path.name for path in archive.output.iterdir()) == ["_lock", "run=00000001"]
