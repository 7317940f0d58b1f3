"""Command line, settings and final events of a run; nothing here starts a JVM."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from spark import runner
from spark.archive.run import Arguments
from spark.jobs import Job, archive, job_names, load_job
from spark.progress import HowFar
from spark.runner import (
    EXIT_CANCELLED,
    EXIT_PARENT_GONE,
    Runner,
    command,
    environment,
    parse,
    sentence_of,
)
from spark.session import DEFAULTS, read_settings, session_settings
from storage.child_python import JIT, OWN_JIT, PACKAGE_ROOT
from storage.errors import StoreError
from storage.retention.leases import leases_dir
from tests.support.actors import WAIT_S
from tests.support.golden import REPOSITORY


def test_a_command_line_has_all_that_the_run_needs() -> None:
    line = command(
        "archive",
        {"store": "/a b", "topics": ["t"]},
        work_directory="/work",
        conf="/conf",
        settings={"spark.master": "local[2]"},
    )
    assert line[:4] == [sys.executable, "-P", "-m", runner.__name__]
    options = parse(line[4:])
    assert (options.job, options.work_directory, options.conf) == ("archive", "/work", "/conf")
    assert json.loads(options.arguments) == {"store": "/a b", "topics": ["t"]}
    assert dict(options.set) == {"spark.master": "local[2]"}


def test_the_child_finds_our_packages_and_its_java() -> None:
    changed = environment({"PYTHONPATH": "/theirs", "LANG": "C"}, "/java")
    assert changed["PYTHONPATH"] == os.pathsep.join([str(REPOSITORY), "/theirs"])
    assert (changed["JAVA_HOME"], changed["LANG"]) == ("/java", "C")
    assert PACKAGE_ROOT == REPOSITORY
    assert environment(changed)["PYTHONPATH"] == changed["PYTHONPATH"]


def test_a_job_does_not_inherit_a_servers_jit_setting() -> None:
    assert JIT not in environment({JIT: "1", OWN_JIT: "1"})
    assert environment({JIT: "1"})[JIT] == "1"


@pytest.mark.slow
def test_naming_the_runner_imports_nothing_heavy() -> None:
    script = (
        "import sys; from spark import runner; from spark.jobs import archive; "
        "print([name for name in ('pyspark', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_jobs_are_named_by_their_files() -> None:
    assert "archive" in job_names()
    assert load_job("archive").main is archive.main
    with pytest.raises(StoreError, match="there is no job os; there is archive"):
        load_job("os")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (StoreError("no store"), "no store"),
        (
            RuntimeError("Job aborted:\n  File x\nstorage.errors.StoreError: it ended at 5\n  at"),
            "it ended at 5",
        ),
        (ValueError("\n first\nsecond"), "ValueError: first"),
        (runner.JavaEnded(), "Spark's Java process ended before the job did; see its log"),
    ],
)
def test_a_failure_is_reported_in_one_sentence(error: Exception, sentence: str) -> None:
    assert sentence_of(error) == sentence


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "archive needs the argument store"),
        ({"store": "s"}, "archive needs the argument output"),
        ({"store": "s", "output": "o", "outptu": 1}, "archive has no argument outptu"),
    ],
)
def test_invalid_arguments_are_reported_before_any_work(
    given: dict[str, object], sentence: str
) -> None:
    with pytest.raises(StoreError, match=sentence):
        Arguments.of(given)


def run_child(arguments: list[str], commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", runner.__name__, *arguments],
        cwd=REPOSITORY,
        input=commands,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_child_exits_after_its_parent(tmp_path: Path) -> None:
    waiting = tmp_path / "conf"
    os.mkfifo(waiting)  # so that the child cannot be faster than the test
    done = run_child(
        ["archive", "--work-directory", str(tmp_path), "--conf", str(waiting)], "nonsense\n"
    )
    assert done.returncode == EXIT_PARENT_GONE
    assert all(json.loads(line)["event"] == "starting" for line in done.stdout.splitlines())


def test_the_settings_file_is_parsed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "spark.conf"
    path.write_text("# a comment\n\nspark.master = local[3]\nspark.x=a = b\n")
    assert read_settings(str(path)) == {"spark.master": "local[3]", "spark.x": "a = b"}
    path.write_text("\nspark.master local\n")
    with pytest.raises(StoreError, match="line 2: expected `name = value`"):
        read_settings(str(path))
    with pytest.raises(StoreError, match="cannot read"):
        read_settings(str(tmp_path / "nothing"))
    assert read_settings(None) == {}


def test_the_sample_file_shows_the_defaults() -> None:
    path = REPOSITORY / "conf" / "spark.conf"
    assert read_settings(str(path)) == {}
    shown = dict(
        line.removeprefix("#").split(" = ", 1)
        for line in path.read_text().splitlines()
        if line.startswith("#spark.") and not line.endswith("=")
    )
    for name, value in shown.items():
        assert name not in DEFAULTS or DEFAULTS[name] == value, name


def test_a_sessions_files_and_ports_are_private() -> None:
    settings = session_settings({"spark.driver.extraJavaOptions": "-Xss1m"}, "/work")
    assert settings["spark.local.dir"] == "/work"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.driver.extraJavaOptions"] == "-Xss1m -Djava.io.tmpdir=/work"
    with_blank = session_settings({}, "/my work")["spark.driver.extraJavaOptions"]
    assert with_blank == '"-Djava.io.tmpdir=/my work"'
    cluster = session_settings({"spark.master": "spark://host:7077"}, "/work")
    assert "spark.driver.host" not in cluster


class FakeSpark:
    """A session that can only cancel."""

    def __init__(self) -> None:
        self.cancelled = Event()
        self.sparkContext = self

    def setJobGroup(self, group: str, text: str, interruptOnCancel: bool) -> None:
        self.group = group

    def statusTracker(self) -> "FakeSpark":
        return self

    def getActiveStageIds(self) -> list[int]:
        return []

    def cancelJobGroup(self, group: str) -> None:
        assert group == self.group
        self.cancelled.set()

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("is_cancelled", "code", "last"), [(True, EXIT_CANCELLED, "cancelled"), (False, 0, "finished")]
)
def test_a_cancelled_job_reports_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, is_cancelled: bool, code: int, last: str
) -> None:
    session = FakeSpark()
    reading, writing = os.pipe()

    def job(spark: Any, arguments: object) -> dict[str, object]:
        if is_cancelled:
            os.write(writing, b"cancel\n")
            assert spark.cancelled.wait(WAIT_S)
            raise RuntimeError("cancelled part of cancelled job group")
        return {"rows": 1}

    monkeypatch.setattr(runner, "load_job", lambda name: Job(job, bool, lambda _: True))
    monkeypatch.setattr(runner, "start_session", lambda settings, directory: session)
    monkeypatch.setattr(os, "_exit", lambda code: None)
    output = StringIO()
    run = Runner(parse(["archive", "--work-directory", "/work"]), output)
    with open(reading, "rb", buffering=0) as commands:
        listening = Thread(target=run.listen, args=(commands,))
        listening.start()
        try:
            assert run.run() == code
        finally:
            os.close(writing)
            listening.join()
    assert json.loads(output.getvalue().splitlines()[-1])["event"] == last


def run_job(
    monkeypatch: pytest.MonkeyPatch, job: Job, **arguments: str
) -> tuple[int, list[dict[str, object]]]:
    """Run a job in this process, without a session; return its exit code and events."""

    def never(settings: object, directory: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(runner, "load_job", lambda name: job)
    monkeypatch.setattr(runner, "start_session", never)
    output = StringIO()
    given = ["--work-directory", "/work", "--arguments", json.dumps(arguments)]
    code = Runner(parse(["any", *given]), output).run()
    return code, [json.loads(line) for line in output.getvalue().splitlines()]


def test_job_rejects_invalid_arguments_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(arguments: object) -> None:
        raise StoreError("there is no topic x")

    code, said = run_job(monkeypatch, Job(lambda spark, arguments: {}, check, lambda _: True))
    assert (code, said[-1]) == (1, {"event": "failed", "sentence": "there is no topic x"})


def test_job_without_spark_gets_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run_job(monkeypatch, Job(lambda spark, given: {"spark": str(spark)}, bool, bool))
    assert code == 0
    assert said[-1] == {"event": "finished", "report": {"spark": "None"}}


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_holds_a_lease_on_its_store_from_start_to_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    directory = Path(leases_dir(str(tmp_path)))
    directory.mkdir(parents=True)

    def main(spark: object, given: Mapping[str, Any]) -> dict[str, Any]:
        (lease,) = directory.iterdir()
        seen = json.loads(lease.read_text())
        assert seen["offset"] == 0 and seen["job"].startswith("job any (process ")
        if fails:
            raise StoreError("it fails")
        return {"seen": True}

    code, said = run_job(monkeypatch, Job(main, bool, lambda _: False), store=str(tmp_path))
    assert (code, said[-1]["event"]) == ((1, "failed") if fails else (0, "finished"))
    assert said[-1].get("sentence", "it fails") == "it fails"
    assert list(directory.iterdir()) == []


def test_progress_is_reported_when_it_changes() -> None:
    output = StringIO()
    run = Runner(parse(["archive", "--work-directory", "/work"]), output)
    for how_far in (
        HowFar("writing", 1, 4, 10, 40, None),
        HowFar("writing", 1, 4, 10, 40, 9000),
        HowFar("writing", 2, 4, 20, 40, 6000),
    ):
        run.tell(how_far)
    said = [json.loads(line) for line in output.getvalue().splitlines()]
    whole = {"event": "progress", "stage": "writing", "tasks": 4, "rows": 40}
    assert said == [
        {**whole, "done": 1, "rows_done": 10, "remaining_ms": None},
        {**whole, "done": 2, "rows_done": 20, "remaining_ms": 6000},
    ]


def test_job_without_spark_ends_when_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Event()
    monkeypatch.setattr(
        runner, "load_job", lambda name: Job(lambda *_: {"x": waiting.wait()}, bool, bool)
    )
    output = StringIO()
    run = Runner(parse(["archive", "--work-directory", "/work"]), output)
    run._cancelled.set()
    assert run.run() == EXIT_CANCELLED
    waiting.set()
    assert json.loads(output.getvalue().splitlines()[-1]) == {"event": "cancelled"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"output": "{tmp}/out"}, "archive needs the argument store"),
        ({"store": "s", "output": "o", "topics": "Orders"}, "archive: topics = 'Orders' is not a"),
        ({"store": "s", "output": "o", "compact": "False"}, "archive: compact = 'False' is not"),
        ({"store": "s", "output": "o", "compct": True}, "archive has no argument compct"),
        ({"store": "/nowhere", "output": "{tmp}/out"}, "/nowhere is no store directory"),
        ({"store": "{tmp}/file", "output": "{tmp}/out"}, "is no store directory"),
        ({"store": "{tmp}", "output": "{tmp}/out", "topics": ["x"]}, "topic x not found in"),
        ({"store": "{tmp}", "output": "{tmp}/file/out"}, "cannot write to"),
    ],
)
def test_the_archive_job_refuses_impossible_arguments(
    tmp_path: Path, given: dict[str, object], sentence: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "commitlog").mkdir()
    given = {
        name: value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value
        for name, value in given.items()
    }
    with pytest.raises(StoreError, match=sentence):
        archive.check(given)
