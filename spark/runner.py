"""The child process that runs one job: `python -m <this module> JOB --work-directory DIR …`.

On its standard output, one JSON object a line and nothing else:

    {"event": "starting", "job": …, "pid": …}          before the JVM starts
    {"event": "running"}                               the session is there
    {"event": "progress", "stage": …, "done": 3, "tasks": 80, "rows_done": …, "rows": …,
     "remaining_ms": …}                                how far it is (spark/progress.py)
    {"event": "finished", "report": {…}}               and then exit 0
    {"event": "failed", "sentence": …}                 and then exit 1
    {"event": "cancelled"}                             and then exit 4

On its standard input: the line `cancel`. The end of the input means that whoever started it is
gone, or wants it gone: it exits at once with 3, and the JVM, which hangs on a pipe of ours in the
same way, follows. Everything that libraries print goes to standard error.

This module imports nothing heavy: the broker takes its name from it (see `command`).
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
"""The module's name as it is imported: the same in a clone and in the installed package."""

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
    """The command line of a run. `work_directory` exists, is its own, and is removed after it."""
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
    """What the child must inherit: where our packages lie, and which Java to use.

    The account that it may show to servers is in there, too; that of the broker is not, nor what
    holds for the broker's own Python. `code`: for another Python, a folder of links.
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
    """The JVM is gone: killed, or out of memory."""

    def __init__(self) -> None:
        super().__init__("Spark's Java process ended before the job did; its log says more")


class JobThread(Thread):
    """Runs the job, so that the main thread can watch it."""

    def __init__(self, work: Callable[[], Report]) -> None:
        super().__init__(name="job", daemon=True)
        self._work = work
        self.report: Report | None = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.report = self._work()
        except BaseException as error:  # whatever it is, the parent must hear of it
            self.failure = error


class Runner:
    """One run, seen from the main thread of the child."""

    def __init__(self, options: Namespace, output: TextIO) -> None:
        self._options = options
        self._output = output
        self._cancelled = Event()
        self._told = HowFar()
        """What was said last, without what remains: that changes all the time."""

    def emit(self, event: str, **fields: Any) -> None:
        """One line to the parent."""
        self._output.write(json.dumps({"event": event, **fields}) + "\n")
        self._output.flush()

    def tell(self, how_far: HowFar) -> None:
        """How far the job is, if it came further since."""
        seen = replace(how_far, remaining_ms=None)
        if seen != self._told:
            self._told = seen
            self.emit("progress", **asdict(how_far))

    def listen(self, commands: BinaryIO) -> None:
        """Reads the parent's commands to their end, which is also ours."""
        for line in commands:
            if line.strip() == CANCEL.encode():
                self._cancelled.set()
        os._exit(EXIT_PARENT_GONE)

    def run(self) -> int:
        """Runs the job to its end; returns the exit code."""
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
        # Only here: the broker's process imports this module for its name.
        from spark.leasing.store_lease import StoreLease
        from storage.retention.leases import holder_text

        job_text = holder_text(f"job {self._options.job}")
        lease = StoreLease(arguments["store"], arguments.get("commit_log"), job_text)
        try:
            return job.main(spark, arguments)
        finally:
            lease.release()

    def _ended_without_spark(self, thread: JobThread) -> int:
        """Waits for the job; what is cancelled ends with this process, wherever it is."""
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
                context.cancelJobGroup(_GROUP)  # each time: the job may have started another one
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
    """One line that says what went wrong; a task's StoreError is inside what Spark made of it."""
    text = str(error)
    if isinstance(error, StoreError):
        return text
    found = _SENTENCE.search(text)
    if found is not None:
        return found[1].strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


def _java_ended(context: "SparkContext") -> bool:
    """Whether the JVM is gone; a connection that broke may be a moment ahead of its end."""
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
    """The command line that `command` makes."""
    parser = ArgumentParser(prog="job", description="Runs one Spark job in this process.")
    parser.add_argument("job")
    parser.add_argument("--arguments", default="{}", help="JSON, for the job")
    parser.add_argument("--work-directory", required=True, help="private, for temporary files")
    parser.add_argument("--conf", help="Spark's settings, name = value")
    parser.add_argument("--set", action="append", default=[], type=_setting, metavar="NAME=VALUE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Takes over the standard streams, then runs."""
    output = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    os.umask(0o027)
    runner = Runner(parse(arguments), output)
    Thread(target=runner.listen, args=(sys.stdin.buffer,), name="commands", daemon=True).start()
    return runner.run()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: threads that wait for a Java process that is gone must not hold us.
    os._exit(code)
