"""`make bench-jobs`: what the clients of a broker notice of a Spark job that is killed beside it.

64 threads send at a fixed rate, far below what the broker can take; a try each, waited for. Of
every send the time from its request to its answer counts to the window in which it was sent:

    before          no job
    starting        a job's Python and JVM start
    running         it archives, on all processors
    killed: WAY     from the kill until all its processes are gone, and some seconds more

The ways: SIGKILL for the child, SIGKILL for its JVM, cancel, the deadline of its entry. "before" is
measured again before each job. Figures of one run compare with each other: the clients need the
processors, too. Run it on a quiet machine.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Any

from protocol.bodies_own import JobRun, Jobs
from protocol.codes import RequestCode
from protocol.headers.own import JobRunHeader, RunJobHeader
from tests.bench.spark_store import FILE_BYTES, QUEUE_FILE_UNITS, make_store
from tests.compat.patience import wait_until
from tests.compat.servers import OurBroker, OurNameServer
from tests.spark.test_killed_job import child_of, processes_of
from troupemq import Admin, ClientError, Message, Producer, ProducerSettings

TOPIC, QUEUES = "BesideAJob", 8
THREADS = 64
BODY = bytes(range(128))
JOB_TIMEOUT_S = 600.0
AFTER_S = 5.0
ENDED = ("failed", "cancelled")
RANGE_BYTES = 65_536
"""Bytes of a task: few, so that the job runs for minutes and can be killed midway."""

LATE = "late"
CONF = """\
[late]
job = archive
cron = 0 0 1 1 *
deadline = {deadline_s}s
nice = {nice}
argument.range_bytes = {range_bytes}

[archive-slowly]
job = archive
cron = 0 0 1 1 *
nice = {nice}
argument.range_bytes = {range_bytes}
"""


@dataclass
class Window:
    """The sends of one stretch of time."""

    seconds: float = 0.0
    taken_ms: list[float] = field(default_factory=list)
    failures: int = 0

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.taken_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Load:
    """Threads that send at a rate together, and the windows in which they did."""

    def __init__(self, namesrv: str, rate: float) -> None:
        self.windows: dict[str, Window] = {}
        self._window = Window()
        self._period_s = THREADS / rate
        self._lock = Lock()
        self._over = Event()
        self._producer = Producer("beside-a-job", namesrv, settings=ProducerSettings(retries=0))
        self._threads = [Thread(target=self._send, args=(number,)) for number in range(THREADS)]

    def __enter__(self) -> "Load":
        self._producer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._producer.stop()

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Sends that begin in it count to the window `name`, which may have had some before."""
        began_s = perf_counter()
        self._window = self.windows.setdefault(name, Window())
        try:
            yield
        finally:
            self._window.seconds += perf_counter() - began_s
            self._window = Window()

    def _send(self, number: int) -> None:
        due_s = perf_counter() + self._period_s * number / THREADS
        while not self._over.wait(max(0.0, due_s - perf_counter())):
            window, began_s = self._window, perf_counter()
            try:
                self._producer.send(Message(TOPIC, BODY))
                taken_ms = (perf_counter() - began_s) * 1000
                with self._lock:
                    window.taken_ms.append(taken_ms)
            except ClientError:
                with self._lock:
                    window.failures += 1
            due_s = max(due_s + self._period_s, perf_counter())


class JobsOfABroker:
    """Runs of its archive job, asked for and ended from outside."""

    def __init__(self, address: str, session: Admin) -> None:
        self._address = address
        self._session = session

    def start(self, entry: str, output: Path) -> str:
        header = RunJobHeader(entry, json.dumps({"output": str(output)}))
        answer = self._session.ask(self._address, RequestCode.RUN_JOB, header)
        return JobRun.decode(answer.body).run

    def state(self, run: str) -> JobRun:
        runs = self._session.read(Jobs, self._address, RequestCode.GET_JOBS, timeout_ms=30_000).runs
        return next(each for each in runs if each.run == run)

    def wait_writing(self, run: str, *, may_end: bool) -> None:
        """Until some tasks are done; where the deadline is too near for that, until its end."""

        def is_writing() -> bool:
            state = self.state(run)
            assert state.state in ("waiting", "starting", "running") or may_end, state
            return state.done > 0 or state.state in ENDED

        wait_until(is_writing, "the job is at work", JOB_TIMEOUT_S)

    def wait_gone(self, run: str) -> None:
        wait_until(
            lambda: self.state(run).state in ENDED and not processes_of(run),
            "the job is gone",
            JOB_TIMEOUT_S,
        )

    def kill_child(self, run: str) -> None:
        os.kill(child_of(run), SIGKILL)

    def kill_jvm(self, run: str) -> None:
        (java,) = [pid for pid, name in processes_of(run).items() if name == "java"]
        os.kill(java, SIGKILL)

    def cancel(self, run: str) -> None:
        self._session.ask(self._address, RequestCode.CANCEL_JOB, JobRunHeader(run))

    def wait_for_its_deadline(self, run: str) -> None:
        wait_until(lambda: self.state(run).state in ENDED, "the deadline", JOB_TIMEOUT_S)


def measure(load: Load, jobs: JobsOfABroker, scratch: Path, options: argparse.Namespace) -> None:
    """Each way once for each round."""
    ways: dict[str, tuple[str, Callable[[str], None]]] = {
        "child": ("archive-slowly", jobs.kill_child),
        "JVM": ("archive-slowly", jobs.kill_jvm),
        "cancel": ("archive-slowly", jobs.cancel),
        "deadline": (LATE, jobs.wait_for_its_deadline),
    }
    for number in range(options.rounds):
        for way, (entry, end) in ways.items():
            with load.during("before"):
                Event().wait(options.seconds)
            run = jobs.start(entry, scratch / f"archive-{number}-{way}")
            with load.during("starting"):
                jobs.wait_writing(run, may_end=entry == LATE)
            if entry != LATE:
                with load.during("running"):
                    Event().wait(options.seconds)
            with load.during(f"killed: {way}"):
                end(run)
                jobs.wait_gone(run)
                Event().wait(AFTER_S)
            sys.stderr.write(f"round {number + 1}: {way} done\n")


def table(windows: dict[str, Window], options: argparse.Namespace) -> str:
    before = windows["before"].percentile_ms(0.99)
    lines = [
        f"{os.cpu_count()} cores, {options.rate:g} sends/s by {THREADS} threads, "
        f"the job's nice {options.nice}",
        "",
        "| window | seconds | sends | failures | p50 ms | p99 ms | max ms | p99 to before |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, window in windows.items():
        p99 = window.percentile_ms(0.99)
        figures: list[Any] = [
            f"{window.seconds:.0f}",
            f"{len(window.taken_ms):,}",
            window.failures,
            f"{window.percentile_ms(0.5):.2f}",
            f"{p99:.2f}",
            f"{max(window.taken_ms, default=0.0):.1f}",
            f"{p99 / before - 1:+.0%}" if before else "",
        ]
        lines.append(f"| {name} | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.beside_a_job", description=__doc__)
    parser.add_argument("--rate", type=float, default=1000, help="sends a second, all threads")
    parser.add_argument(
        "--seconds", type=float, default=15, help="of the windows before and running"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in the store to archive")
    parser.add_argument("--nice", type=int, default=10, help="of the job")
    parser.add_argument("--deadline-s", type=int, default=30)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="troupemq-bench-") as folder, ExitStack() as stack:
        scratch = Path(folder)
        make_store(scratch / "store", options.messages)
        conf = CONF.format(
            deadline_s=options.deadline_s, nice=options.nice, range_bytes=RANGE_BYTES
        )
        (scratch / "jobs.conf").write_text(conf)
        names = stack.enter_context(OurNameServer(scratch / "names"))
        settings = {
            "mappedFileSizeCommitLog": str(FILE_BYTES),
            "mappedFileSizeConsumeQueue": str(QUEUE_FILE_UNITS * 20),
        }
        broker = OurBroker(scratch / "broker", names, settings, scratch / "store")
        broker.more_options = ("--jobs", str(scratch / "jobs.conf"))
        stack.enter_context(broker)
        with Admin(names.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        session = stack.enter_context(Admin(names.address))
        load = stack.enter_context(Load(names.address, options.rate))
        Event().wait(5.0)  # routes, connections
        try:
            measure(load, JobsOfABroker(broker.address, session), scratch, options)
        finally:
            print(table(load.windows, options))


if __name__ == "__main__":
    main()
