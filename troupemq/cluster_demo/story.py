"""Steps of the demonstration: messages, a Spark cluster, a job, and a killed worker."""

import json
import os
import secrets
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, TextIO

from storage.child_python import child_command, child_environment
from troupemq.client.admin import Admin
from troupemq.client.errors import RouteNotFound
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer
from troupemq.cluster_demo.figures import (
    QUEUE_COUNT,
    TOPIC,
    WORKER_COUNT,
    DemoFailed,
    Figures,
    check,
    counted,
    table,
)
from troupemq.cluster_demo.standalone import (
    LOOPBACK,
    QUICK_JAVA,
    SparkCluster,
    Worker,
    answer,
    end_group,
    free_ports,
    wait_or_kill,
    write_secretly,
)
from troupemq.java import find_java
from troupemq.servers import Servers
from troupemq.text import Steps

MEANWHILE = "SentMeanwhile"
PRODUCER_GROUP = "ClusterWriters"
TAGS = ("new", "paid", "sent")
BODY = bytes(range(256)) * 4
UNDER_WAY_MAX = 2_000
"""Limit of sent messages without an answer."""

RANGE_BYTES = 192 * 1024
"""Range of one task: far below the default, so that the job has about a hundred tasks."""

TASKS_BEFORE_KILL = 5
"""Completed tasks of each worker before the kill, so that both are busy."""

LOOK_AGAIN_S = 0.05
START_TIMEOUT_S = 60.0
JOB_TIMEOUT_S = 240.0
LOST_TIMEOUT_S = 30.0
SPARK_CONF = f"""\
spark.driver.memory = 512m
spark.executor.memory = 512m
spark.cores.max = {WORKER_COUNT}
# Start no task before both workers are registered.
spark.scheduler.minRegisteredResourcesRatio = 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime = 120s
spark.authenticate = true
spark.authenticate.secret.file = {{secret}}
spark.pyspark.python = {{python}}
# Its API reports the completed tasks of each executor.
spark.ui.enabled = true
spark.ui.port = {{port}}
spark.driver.extraJavaOptions = {QUICK_JAVA}
spark.executor.extraJavaOptions = {QUICK_JAVA}
"""


class Demo:
    """Demonstration beside running servers.

    `stop` ends all its processes, on any thread at any time.
    """

    def __init__(self, directory: Path, messages: int, python: str, output: TextIO) -> None:
        self._directory = directory
        self._python = python
        self._figures = Figures(messages)
        steps = Steps(output)
        self._step, self._progress, self._say = steps.step, steps.progress, steps.say
        self._over = Event()
        self._job: Popen[str] | None = None
        self._lock = Lock()
        java_home = find_java(os.environ)
        secret = secrets.token_hex(32)
        place = directory / "cluster"
        place.mkdir()
        self._secret = directory / "secret"
        write_secretly(self._secret, secret + "\n")
        self._cluster = SparkCluster(place, java_home, secret, os.environ)
        (self._page_port,) = free_ports(1)

    def run(self, servers: Servers) -> Figures:
        """Run all steps. Raises StoreError, ClientError."""
        namesrv = f"{LOOPBACK}:{servers.ports['namesrv']}"
        figures = self._figures
        with Admin(namesrv) as admin, Producer(PRODUCER_GROUP, namesrv) as producer:
            for topic in (TOPIC, MEANWHILE):
                self._create_topic(admin, topic)
            with self._step(f"Sending {figures.messages:,} messages to {TOPIC}"):
                self._send(producer)
            with self._step(f"Starting a Spark master and {WORKER_COUNT} workers"):
                workers = self._start_cluster()
            self._say(f"  {self._cluster.url}, workers with {self._python}")
            live = Live(producer)
            live.start()
            try:
                report = self._run_job(workers)
            finally:
                live.end()
            figures.meanwhile = live.sent
            figures.stored_meanwhile = admin.message_count(MEANWHILE)
        figures.counted, figures.counted_bytes, tags = counted(report)
        with self._step("Asking the master for the remaining workers"):
            self._until(lambda: self._cluster.workers_alive() < WORKER_COUNT, LOST_TIMEOUT_S, "")
            figures.workers_left = self._cluster.workers_alive()
        self._say("")
        for line in table(figures):
            self._say(line)
        check(figures, tags)
        return figures

    def stop(self) -> None:
        self._over.set()
        with self._lock:
            job = self._job
        if job is not None and job.poll() is None:
            end_group(job, signal.SIGTERM)
            wait_or_kill(job)
        self._cluster.stop()

    def kill(self) -> None:
        """Kill all processes without waiting."""
        if self._job is not None:
            end_group(self._job, signal.SIGKILL)
        self._cluster.kill()

    def _create_topic(self, admin: Admin, topic: str) -> None:
        def is_there() -> bool:
            try:
                admin.create_topic(topic, QUEUE_COUNT)
                return len(admin.queues(topic)) == QUEUE_COUNT
            except RouteNotFound:
                return False

        self._until(is_there, START_TIMEOUT_S, f"the broker did not register the topic {topic}")

    def _send(self, producer: Producer) -> None:
        figures = self._figures
        waiting = []
        for number in range(figures.messages):
            tag, body = TAGS[number % len(TAGS)], f"order {number} ".encode() + BODY
            waiting.append(producer.send_async(Message(TOPIC, body, tags=tag)))
            figures.body_bytes += len(body)
            figures.tags[tag] = figures.tags.get(tag, 0) + 1
            if len(waiting) == UNDER_WAY_MAX:
                for future in waiting:
                    future.result()
                waiting.clear()
                if self._over.is_set():
                    raise DemoFailed("The demonstration was interrupted.")
        for future in waiting:
            future.result()

    def _start_cluster(self) -> list[Worker]:
        cluster = self._cluster
        cluster.start_master()
        workers = [cluster.start_worker(cores=1, memory="768m") for _ in range(WORKER_COUNT)]
        failure = "the workers did not find the master"
        self._until(lambda: cluster.workers_alive() == WORKER_COUNT, START_TIMEOUT_S, failure)
        return workers

    def _run_job(self, workers: list[Worker]) -> dict[str, Any]:
        """Run the job, kill a worker during it, and return its report."""
        conf = self._directory / "spark.conf"
        conf.write_text(
            SPARK_CONF.format(secret=self._secret, python=self._python, port=self._page_port)
        )
        words = ["job", "run", "traffic", "--master", self._cluster.url, "--topic", TOPIC]
        words += ["--store", str(self._directory / "store"), "--spark-conf", str(conf)]
        words += ["-a", f"range_bytes={RANGE_BYTES}", "-a", "with_spark=true", "--json"]
        self._say(f"troupemq {shlex.join(words)}")
        with self._step("Running the job"):
            log = self._directory / "job.log"
            with self._lock, log.open("wb") as errors:
                if self._over.is_set():
                    raise DemoFailed("The demonstration was interrupted.")
                self._job = job = Popen(
                    child_command("troupemq", *words),
                    env=child_environment(os.environ),
                    stdin=DEVNULL,
                    stdout=PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
            self._kill_one(job, workers, log)
            told, _ = job.communicate(timeout=JOB_TIMEOUT_S)
        if job.returncode != 0:
            raise DemoFailed(f"The job failed: {last_line(log)}")
        report: dict[str, Any] = json.loads(told)
        return report

    def _kill_one(self, job: Popen[str], workers: list[Worker], log: Path) -> None:
        """Kill the last worker after each has completed TASKS_BEFORE_KILL tasks."""
        page = f"http://{LOOPBACK}:{self._page_port}/api/v1/applications"
        done: dict[int, int] = {}

        def both_have_begun() -> bool:
            if job.poll() is not None:
                raise DemoFailed(f"The job ended before a worker could be killed: {last_line(log)}")
            done.update(tasks_done(page, workers))
            return all(done.get(place, 0) >= TASKS_BEFORE_KILL for place in range(len(workers)))

        self._until(both_have_begun, JOB_TIMEOUT_S, "not both workers completed tasks")
        workers[-1].kill()
        figures = self._figures
        figures.done_at_kill = tuple(done[place] for place in range(len(workers)))
        self._progress(f"killed a worker after {sum(done.values())} tasks,")
        self._until(lambda: bool(self._count_tasks(page)), JOB_TIMEOUT_S, "the job was not listed")

    def _count_tasks(self, page: str) -> int:
        """Return the number of tasks of the job; 0 if the page no longer answers."""
        apps = answer(page) or []
        jobs = (answer(f"{page}/{apps[0]['id']}/jobs") if apps else None) or []
        self._figures.tasks = max((job["numTasks"] for job in jobs), default=0)
        return self._figures.tasks

    def _until(self, is_so: Callable[[], bool], timeout_s: float, failure: str) -> None:
        deadline_s = monotonic() + timeout_s
        while not is_so():
            if self._over.wait(LOOK_AGAIN_S):
                raise DemoFailed("The demonstration was interrupted.")
            if monotonic() > deadline_s:
                raise DemoFailed(f"The demonstration failed: {failure}.")


class Live(Thread):
    """Thread that sends messages while the job reads the broker's store."""

    def __init__(self, producer: Producer) -> None:
        super().__init__(name="live", daemon=True)
        self._producer = producer
        self._over = Event()
        self.sent = 0

    def run(self) -> None:
        while not self._over.wait(LOOK_AGAIN_S):
            self._producer.send(Message(MEANWHILE, b"while the job runs"))
            self.sent += 1

    def end(self) -> None:
        self._over.set()
        self.join()


def tasks_done(page: str, workers: list[Worker]) -> dict[int, int]:
    """Return the completed tasks of each worker, by its index in the list."""
    done: dict[int, int] = {}
    for app in answer(page) or []:
        for executor in answer(f"{page}/{app['id']}/executors") or []:
            for place, worker in enumerate(workers):
                if worker.has_executor(executor["id"]):
                    done[place] = done.get(place, 0) + executor["completedTasks"]
    return done


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
