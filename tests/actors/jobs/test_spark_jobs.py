"""The schedule of Spark jobs and their child processes, with small children that start no JVM."""

import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from actors.engine.messages import AskFigures
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.jobs import spark_job, spark_jobs
from actors.jobs.messages import JobFigures, JobOrder, JobState, RunJob
from actors.jobs.spark_job import LOGS_MAX, SCHED_IDLE, JobCommand, claimed
from actors.jobs.spark_jobs import SparkJobs
from actors.network.messages import Request
from protocol.codes import RequestCode, ResponseCode
from storage.child_python import process_descriptor
from storage.errors import StoreError
from tests.support.actors import WAIT_S, Arrivals
from tests.support.peers import RecordingPeer, request

pytestmark = pytest.mark.slow

SPEAK = """
import json, os, sys, time
def say(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
"""

FINISHES = """
say("starting", pid=os.getpid()); say("running"); say("progress", done=1, tasks=4)
print("said to the log", file=sys.stderr)
code = os.path.join(sys.argv[2], "code")
links = {name: os.readlink(os.path.join(code, name)) for name in os.listdir(code)}
say("finished", report={"rows": 7, "work": sys.argv[2], "arguments": sys.argv[1], "links": links})
"""
FAILS = """
print("\\n".join(map(str, range(50))), file=sys.stderr)
say("running"); say("failed", sentence="no store there"); sys.exit(1)
"""
VANISHES = 'say("running"); os._exit(9)'
TALKS_NONSENSE = 'print("JVM says hello", flush=True); time.sleep(60)'
WAITS_FOR_CANCEL = """
say("running"); say("progress", done=0, tasks=os.getpid())
if sys.stdin.readline() == "cancel\\n":
    say("cancelled"); sys.exit(4)
"""
WAITS_FOR_THE_END = """
say("running"); say("progress", done=0, tasks=os.getpid())
sys.stdin.read(); sys.exit(3)
"""
IGNORES_EVERYTHING = """
say("running"); say("progress", done=0, tasks=os.getpid())
time.sleep(60)
"""
HAS_A_CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
say("running"); say("progress", done=0, tasks=child.pid)
time.sleep(60)
"""
SCRIPTS = {
    "finishes": FINISHES,
    "fails": FAILS,
    "vanishes": VANISHES,
    "talks nonsense": TALKS_NONSENSE,
    "waits for cancel": WAITS_FOR_CANCEL,
    "waits for the end": WAITS_FOR_THE_END,
    "ignores everything": IGNORES_EVERYTHING,
    "has a child": HAS_A_CHILD,
}


def make_command(order: JobOrder, work_directory: str) -> JobCommand:
    if order.name not in SCRIPTS:
        raise StoreError(f"there is no job {order.name}")
    script = SPEAK + SCRIPTS[order.name]
    return JobCommand(
        [sys.executable, "-I", "-S", "-c", script, str(dict(order.arguments)), work_directory],
        dict(os.environ),
        {"ours": Path(__file__).parent},
    )


class Jobs:
    """A SparkJobs on real threads, and what it answered."""

    def __init__(self, system: ActorSystem, directory: Path, **settings: Any) -> None:
        self.system = system
        self.directory = directory
        self.address = system.address("spark_jobs")
        self.progress = Arrivals()
        spec = ChildSpec(
            "spark_jobs", lambda system: SparkJobs(make_command, str(directory), **settings)
        )
        system.start(spec)

    def start(
        self, name: str, arguments: Mapping[str, Any] | None = None, **limits: Any
    ) -> Arrivals:
        """Asks for a run; its last state arrives."""
        ended = Arrivals()
        self.address.tell(RunJob(name, arguments or {}, ended, self.progress, **limits))
        return ended

    def running(self) -> JobState:
        """The state in which a waiting child has told its process id as `tasks`."""
        while True:
            state: JobState = self.progress.take()
            if state.tasks:
                return state

    def states(self) -> list[JobState]:
        figures: JobFigures = self.system.ask(self.address, AskFigures).result(WAIT_S)
        return [*figures.states]

    def cancel(self, run: str) -> bool:
        peer = RecordingPeer()
        self.address.tell(Request(request(RequestCode.CANCEL_JOB, {"run": run}), peer))
        self.states()  # after the answer
        return peer.received[0].code == ResponseCode.SUCCESS


@pytest.fixture
def jobs(real_system: ActorSystem, tmp_path: Path) -> Jobs:
    return Jobs(real_system, tmp_path)


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_job, "STEP_MS", 50)


def test_a_job_runs_and_its_report_arrives(jobs: Jobs) -> None:
    ended = jobs.start("finishes", {"store": "here"}).take()
    assert (ended.state, ended.report["rows"], ended.done, ended.tasks) == ("finished", 7, 1, 4)
    assert "'store': 'here'" in ended.report["arguments"]
    states = [jobs.progress.take().state for _ in range(jobs.progress.qsize())]
    assert states == ["starting", "running", "running"]
    assert jobs.states() == [ended]


def test_a_jobs_output_is_logged_and_its_work_directory_removed(jobs: Jobs) -> None:
    ended = jobs.start("finishes").take()
    assert Path(ended.log_path).read_text() == "said to the log\n"
    assert ended.tail == ()
    assert ended.report["work"].startswith(str(jobs.directory))
    assert not Path(ended.report["work"]).exists()


def test_package_links_for_another_python_are_removed_with_the_work_directory(jobs: Jobs) -> None:
    ended = jobs.start("finishes").take()
    assert ended.report["links"] == {"ours": str(Path(__file__).parent)}
    assert Path(__file__).exists()


def test_leftovers_of_killed_runs_are_removed_except_files_in_use(jobs: Jobs) -> None:
    left, used = jobs.directory / "archive-1", jobs.directory / "archive-2"
    for directory in (left, used):
        (directory / "spark-temporary").mkdir(parents=True)
    claimed(left).close()  # its owner is gone
    in_use = claimed(used)
    jobs.start("finishes").take()
    assert not left.exists()
    assert (used / "spark-temporary").is_dir()
    in_use.close()


def test_files_that_are_not_of_jobs_stay_beside_their_logs(jobs: Jobs) -> None:
    store, broken = jobs.directory / "store-1", jobs.directory / "linked"
    (store / "commitlog").mkdir(parents=True)
    (store / "lock").write_bytes(b"lock")  # of a broker that is stopped, or holds another lock
    broken.symlink_to("missing")
    logs = [jobs.directory / f"application-{number}.log" for number in range(LOGS_MAX + 2)]
    for path in logs:
        path.write_text("not of a job")
    jobs.start("finishes").take()
    assert (store / "commitlog").is_dir() and broken.is_symlink()
    assert all(path.exists() for path in logs)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fails", "no store there"),
        ("vanishes", "its process ended early, with exit code 9"),
        ("unheard of", "there is no job unheard of"),
        ("talks nonsense", "its process wrote invalid output: "),
    ],
)
def test_a_failing_job_reports_one_sentence(jobs: Jobs, name: str, sentence: str) -> None:
    ended = jobs.start(name).take()
    assert ended.state == "failed"
    assert ended.sentence.startswith(sentence)
    assert "\n" not in ended.sentence
    assert ended.log_path is None or Path(ended.log_path).is_file()
    assert jobs.start("finishes").take().state == "finished"


def test_a_failed_run_keeps_the_end_of_its_log(jobs: Jobs) -> None:
    assert jobs.start("fails").take().tail == tuple(map(str, range(30, 50)))


def test_a_killed_child_fails_only_its_run(jobs: Jobs) -> None:
    ended = jobs.start("ignores everything")
    os.kill(jobs.running().tasks, SIGKILL)
    state = ended.take()
    assert (state.state, state.sentence) == (
        "failed",
        "its process ended early, with signal SIGKILL",
    )
    assert jobs.start("finishes").take().state == "finished"


@pytest.mark.parametrize(
    ("limits", "behind", "policy"),
    [
        ({}, 10, os.SCHED_OTHER),
        ({"nice": 3}, 3, os.SCHED_OTHER),
        ({"nice": 19}, 19, SCHED_IDLE),
    ],
)
def test_a_job_runs_at_lower_priority_than_the_broker(
    jobs: Jobs, limits: dict[str, Any], behind: int, policy: int
) -> None:
    ended = jobs.start("waits for cancel", **limits)
    running = jobs.running()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, running.tasks) == min(19, own + behind)
    assert os.sched_getscheduler(running.tasks) == policy
    jobs.cancel(running.run)
    assert ended.take().state == "cancelled"


def test_a_cancelled_job_is_first_asked_to_stop(jobs: Jobs) -> None:
    ended = jobs.start("waits for cancel")
    assert jobs.cancel(jobs.running().run)
    assert ended.take().state == "cancelled"


@pytest.mark.usefixtures("short_steps")
@pytest.mark.parametrize("name", ["waits for the end", "ignores everything"])
def test_a_job_that_ignores_a_cancel_gets_sighup_and_then_sigkill(jobs: Jobs, name: str) -> None:
    ended = jobs.start(name)
    running = jobs.running()
    assert jobs.cancel(running.run)
    assert ended.take().state == "cancelled"
    assert has_ended(running.tasks)


@pytest.mark.usefixtures("short_steps")
def test_a_jobs_whole_process_group_is_killed(jobs: Jobs) -> None:
    ended = jobs.start("has a child")
    running = jobs.running()
    assert not has_ended(running.tasks, 0.0)
    assert jobs.cancel(running.run)
    assert ended.take().state == "cancelled"
    assert has_ended(running.tasks)


@pytest.mark.usefixtures("short_steps")
def test_a_run_past_its_deadline_is_ended_and_reported(jobs: Jobs) -> None:
    ended = jobs.start("ignores everything", deadline_ms=100).take()
    assert (ended.state, ended.sentence) == ("failed", "timeout after 0 s: the run was ended")


def test_runs_are_executed_one_after_another(jobs: Jobs) -> None:
    first = jobs.start("waits for cancel")
    second = jobs.start("finishes")
    running = jobs.running()
    assert [state.state for state in jobs.states()] == ["running", "waiting"]
    jobs.cancel(running.run)
    assert first.take().state == "cancelled"
    assert second.take().state == "finished"


def test_a_waiting_run_can_be_cancelled(jobs: Jobs) -> None:
    first = jobs.start("waits for cancel")
    second = jobs.start("finishes")
    running = jobs.running()
    assert jobs.cancel(jobs.states()[1].run)
    cancelled = second.take()
    assert (cancelled.state, cancelled.started_ms) == ("cancelled", 0)
    assert cancelled.ended_ms > 0, "job status shows when"
    assert not jobs.cancel("archive-0")
    jobs.cancel(running.run)
    first.take()


def test_too_many_waiting_runs_are_refused_at_once(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_jobs, "WAITING_MAX", 1)
    jobs.start("waits for cancel")
    jobs.running()
    jobs.start("finishes")
    assert jobs.start("finishes").take().sentence == "limit of 1 waiting jobs reached: retry later"


def test_a_stop_ends_the_current_run_and_answers_waiting_ones(
    real_system: ActorSystem, jobs: Jobs
) -> None:
    running = jobs.start("waits for the end")
    pid = jobs.running().tasks
    waiting = jobs.start("finishes")
    assert real_system.stop(WAIT_S)
    assert waiting.take().sentence == "the broker is stopping"
    assert running.take().state == "cancelled"
    assert has_ended(pid)


def test_broker_settings_are_added_to_the_requested_arguments(
    real_system: ActorSystem, tmp_path: Path
) -> None:
    known = {"store": "known", "published_offset": 12}
    jobs = Jobs(real_system, tmp_path, known_arguments=lambda name: known)
    ended = jobs.start("finishes", {"store": "asked"}).take()
    assert ended.report["arguments"] == str({"store": "asked", "published_offset": 12})


def has_ended(pid: int, within_s: float = 20.0) -> bool:
    """Whether the process ends; a killed one may live on for a moment after the signal."""
    try:
        process = process_descriptor(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], within_s)[0])
    finally:
        os.close(process)
