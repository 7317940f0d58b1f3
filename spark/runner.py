"""The child process that runs one job: `python -m <this module> JOB --work-directory DIR …`.

Standard output has one JSON object per line and nothing else:

    {"event": "starting", "job": …, "pid": …}          before the JVM starts
    {"event": "running"}                               after the session has started
    {"event": "progress", "stage": …, "done": 3, "tasks": 80, "rows_done": …, "rows": …,
     "remaining_ms": …}                                progress (spark/progress.py)
    {"event": "finished", "report": {…}}               then exit code 0
    {"event": "failed", "sentence": …}                 then exit code 1
    {"event": "cancelled"}                             then exit code 4

Standard input takes the line `cancel`. Its end means that the parent has stopped, or wants the job
stopped. The process then exits at once with code 3. The JVM exits too, as it reads a pipe of this
process in the same way. All output of libraries goes to standard error.

This module imports nothing heavy, as the broker imports it for its name (see `command`).
"""

import json
import os
import re
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from subprocess import TimeoutExpired
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from spark.jobs import Job, load_job
from spark.progress import PROGRESS, HowFar
from spark.report import Report
from spark.session import read_settings, start_session
from storage.access.account import BROKER_ACCESS_KEY, BROKER_SECRET_KEY
from storage.child_python import (
    JIT,
    OWN_JIT,
    PACKAGE_ROOT,
    child_command,
    child_environment,
)
from storage.errors import StoreError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

CANCEL = "cancel"

EXIT_FAILED = 1
EXIT_PARENT_GONE = 3
EXIT_CANCELLED = 4

_POLL_S = 0.5
_GROUP = "job"
_MODULE = __name__
"""Import name of this module, both in a clone and in the installed package."""

_SENTENCE = re.compile(rf"\b{StoreError.__name__}: (.+)")


def command(
    job: str,
    arguments: Mapping[str, Any],
    *,
    work_directory: str,
    conf: str | None = None,
    settings: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> list[str]:
    """Return the command line of a run.

    `work_directory` must exist, belongs to this run alone, and is removed after it.
    """
    line = child_command(_MODULE, job, python=python)
    line += ["--arguments", json.dumps(dict(arguments)), "--work-directory", work_directory]
    if conf is not None:
        line += ["--conf", conf]
    for name, value in (settings or {}).items():
        line += ["--set", f"{name}={value}"]
    return line


def environment(
    inherited: Mapping[str, str],
    java_home: str | None = None,
    code: str | Path = PACKAGE_ROOT,
) -> dict[str, str]:
    """Return the environment of the child: the path of this package, and the Java to use.

    It includes the account for servers. It lacks the broker's own account, and the settings of the
    broker's own Python. `code`: for another Python, a folder of links.
    """
    changed = child_environment(inherited, code)
    left_out = [BROKER_ACCESS_KEY, BROKER_SECRET_KEY]
    if changed.pop(OWN_JIT, None):
        left_out.append(JIT)
    if code != PACKAGE_ROOT:
        left_out.append("PYTHONHOME")
    for name in left_out:
        changed.pop(name, None)
    if java_home is not None:
        changed["JAVA_HOME"] = java_home
    return changed


class JavaEnded(StoreError):
    """Failure of a job because its JVM was killed or ran out of memory."""

    def __init__(self) -> None:
        super().__init__("Spark's Java process ended before the job did; see its log")


class JobThread(Thread):
    """Thread of the job, so that the main thread can watch it."""

    def __init__(self, work: Callable[[], Report]) -> None:
        super().__init__(name="job", daemon=True)
        self._work = work
        self.report: Report | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.report = self._work()
        except BaseException as error:  # the parent must learn of any failure
            self.failure = error


class Runner:
    """One run, as the main thread of the child controls it."""

    def __init__(self, options: Namespace, output: TextIO) -> None:
        self._options = options
        self._output = output
        self._cancelled = Event()
        self._told = HowFar()
        """Progress last reported, without the remaining time, which changes constantly."""

    def emit(self, event: str, **fields: Any) -> None:
        """Write one line to the parent."""
        self._output.write(json.dumps({"event": event, **fields}) + "\n")
        self._output.flush()

    def tell(self, how_far: HowFar) -> None:
        """Report the progress if it changed."""
        seen = replace(how_far, remaining_ms=None)
        if seen != self._told:
            self._told = seen
            self.emit("progress", **asdict(how_far))

    def listen(self, commands: BinaryIO) -> None:
        """Read the parent's commands; exit the process at their end."""
        for line in commands:
            if line.strip() == CANCEL.encode():
                self._cancelled.set()
        os._exit(EXIT_PARENT_GONE)

    def run(self) -> int:
        """Run the job and return the exit code."""
        options = self._options
        self.emit("starting", job=options.job, pid=os.getpid())
        try:
            job, arguments = load_job(options.job), json.loads(options.arguments)
            settings = {**read_settings(options.conf), **dict(options.set)}
            job.check(arguments)
            spark = None
            if job.needs_spark(arguments):
                spark = start_session(settings, options.work_directory)
        except Exception as error:
            return self._failed(error)
        if self._cancelled.is_set():
            self.emit("cancelled")
            return EXIT_CANCELLED
        self.emit("running")
        thread = JobThread(lambda: self._main(job, spark, arguments))
        thread.start()
        if spark is None:
            return self._ended_without_spark(thread)
        try:
            self._watch(thread, spark.sparkContext)
        except Exception:
            if not _java_ended(spark.sparkContext):
                raise
            return self._failed(JavaEnded())
        return self._ended(thread, spark)

    def _main(self, job: Job, spark: "SparkSession | None", arguments: Mapping[str, Any]) -> Report:
        if spark is not None:
            spark.sparkContext.setJobGroup(_GROUP, self._options.job, interruptOnCancel=True)
        if not arguments.get("store"):
            return job.main(spark, arguments)
        # Imported late: the broker process imports this module for its name.
        from spark.leasing.store_lease import StoreLease
        from storage.retention.leases import holder_text

        job_text = holder_text(f"job {self._options.job}")
        lease = StoreLease(arguments["store"], arguments.get("commit_log"), job_text)
        try:
            return job.main(spark, arguments)
        finally:
            lease.release()

    def _ended_without_spark(self, thread: JobThread) -> int:
        """Wait for a job without Spark.

        A cancelled job is not awaited; it ends with this process.
        """
        while thread.is_alive() and not self._cancelled.is_set():
            thread.join(_POLL_S)
            self.tell(PROGRESS.now())
        if thread.is_alive():
            self.emit("cancelled")
            return EXIT_CANCELLED
        if thread.failure is not None:
            return self._failed(thread.failure)
        self.emit("finished", report=thread.report)
        return 0

    def _watch(self, thread: JobThread, context: "SparkContext") -> None:
        tracker = context.statusTracker()
        while thread.is_alive():
            thread.join(_POLL_S)
            if self._cancelled.is_set():
                context.cancelJobGroup(_GROUP)  # repeated, as the job may have started another one
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            there = [stage for stage in stages if stage is not None]
            done = sum(stage.numCompletedTasks for stage in there)
            self.tell(PROGRESS.now(done, sum(stage.numTasks for stage in there)))

    def _ended(self, thread: JobThread, spark: "SparkSession") -> int:
        if thread.failure is not None:
            if self._cancelled.is_set():
                self.emit("cancelled")
                return EXIT_CANCELLED
            if _java_ended(spark.sparkContext):
                return self._failed(JavaEnded())
            return self._failed(thread.failure)
        self.emit("finished", report=thread.report)
        spark.stop()
        return 0

    def _failed(self, error: BaseException) -> int:
        traceback.print_exception(error)
        self.emit("failed", sentence=sentence_of(error))
        return EXIT_FAILED


def sentence_of(error: BaseException) -> str:
    """Return one line that describes a failure.

    A task's StoreError is extracted from the text of Spark's exception.
    """
    text = str(error)
    if isinstance(error, StoreError):
        return text
    found = _SENTENCE.search(text)
    if found is not None:
        return found[1].strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _java_ended(context: "SparkContext") -> bool:
    """Return whether the JVM has ended.

    Waits briefly, because a connection may break just before the JVM ends.
    """
    process = getattr(getattr(context, "_gateway", None), "proc", None)
    if process is None:
        return False
    try:
        process.wait(_POLL_S)
    except TimeoutExpired:
        return False
    return True


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(text)
    return name, value


def parse(arguments: Sequence[str]) -> Namespace:
    """Parse the command line that `command` makes."""
    parser = ArgumentParser(prog="job", description="Run one job in this process.")
    parser.add_argument("job")
    parser.add_argument("--arguments", default="{}", help="arguments of the job, as JSON")
    parser.add_argument(
        "--work-directory", required=True, help="private directory for temporary files"
    )
    parser.add_argument("--conf", help="file of Spark settings, one name = value per line")
    parser.add_argument("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Redirect the standard streams, then run the job."""
    output = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    os.umask(0o027)
    runner = Runner(parse(arguments), output)
    Thread(target=runner.listen, args=(sys.stdin.buffer,), name="commands", daemon=True).start()
    return runner.run()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: it would wait for threads that wait for an ended JVM.
    os._exit(code)
