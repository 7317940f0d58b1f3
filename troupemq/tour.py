"""Tour of `troupemq run`: a topic, 1,000 messages sent and consumed over TCP, two Spark jobs.

Each step prints what it does and how long it took; a table at the end shows the results.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Event, Lock
from time import monotonic
from typing import TextIO

from actors.jobs.jobs_conf import load_jobs
from actors.jobs.messages import JobState, RunJob
from spark.jobs import archive, job_names
from storage.errors import StoreError
from troupemq.client.admin import Admin
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.errors import RouteNotFound
from troupemq.client.message import Message, MessageView
from troupemq.client.producing.producer import Producer
from troupemq.jobs_beside import SPARK_JOBS
from troupemq.jobs_python import has_spark, spark_cure
from troupemq.servers import Servers
from troupemq.text import Steps

TOPIC = "TourOrders"
GROUP = "TourReaders"
PRODUCER_GROUP = "TourWriters"
QUEUE_COUNT = 8
MESSAGE_COUNT = 1000
TAGS = ("new", "paid", "sent")
ARCHIVE = archive.__name__.rpartition(".")[2]

JOBS_FILE = "jobs.conf"
JOBS = """\
# Scheduled jobs of this broker; conf/jobs.conf of the project explains all options.
[traffic]
job = traffic
cron = */10 * * * *
"""

WITHOUT_SPARK = "Skipping the scheduled job and the archive: Spark is not installed. To add it: "
REGISTRATION_TIMEOUT_S = 15.0
CONSUME_TIMEOUT_S = 30.0
JOB_TIMEOUT_S = 600.0
LOOK_AGAIN_S = 0.05


class TourFailed(StoreError):
    """A step failed; the text says which."""


@dataclass
class TourFigures:
    found: int = 0
    """Messages of earlier tours in the topic."""
    sent: int = 0
    stored: int = 0
    consumed: int = 0
    twice: int = 0
    rows: int = 0
    archived_in: str | None = None


class Tour:
    """Tour on running servers; the event `over` interrupts it."""

    def __init__(self, servers: Servers, data: Path, output: TextIO, over: Event) -> None:
        self._servers = servers
        self._data = data
        steps = Steps(output)
        self._step, self._progress, self._say = steps.step, steps.progress, steps.say
        self._over = over
        self._namesrv = f"127.0.0.1:{servers.ports['namesrv']}"
        self._figures = TourFigures()
        self._seen: dict[str, int] = {}
        self._seen_lock = Lock()
        self._run = ""

    def run(self) -> TourFigures:
        with Admin(self._namesrv) as admin:
            self._create_topic(admin)
            before = self._figures.found = admin.message_count(TOPIC)
            if before:
                self._say(f"The topic {TOPIC} has {before:,} messages of earlier tours.")
            with self._step(f"Sending {MESSAGE_COUNT:,} messages with tags, keys and properties"):
                self._send()
            self._figures.stored = admin.message_count(TOPIC) - before
        with self._step(f"Consuming them with the consumer group {GROUP}"):
            self._consume()
        if has_spark():
            self._scheduled()
            with self._step("Archiving the messages as Parquet with a Spark job"):
                self._archive()
        else:
            self._say(WITHOUT_SPARK + spark_cure())
        self._say("")
        for line in table(self._figures, self._data):
            self._say(line)
        return self._figures

    def _create_topic(self, admin: Admin) -> None:
        with self._step(f"Creating the topic {TOPIC} with {QUEUE_COUNT} queues"):
            deadline_s = monotonic() + REGISTRATION_TIMEOUT_S
            while True:
                try:
                    admin.create_topic(TOPIC, QUEUE_COUNT)
                    if len(admin.queues(TOPIC)) == QUEUE_COUNT:
                        return
                except RouteNotFound:
                    if monotonic() > deadline_s:
                        raise
                self._wait_a_little(deadline_s, "the broker did not register the topic")

    def _send(self) -> None:
        with Producer(PRODUCER_GROUP, self._namesrv) as producer:
            self._run = producer.client_id
            futures = [producer.send_async(message) for message in self._messages()]
            for number, future in enumerate(futures, 1):
                future.result()
                self._figures.sent = number
                if number % 250 == 0:
                    self._progress(f"{number:,}")

    def _messages(self) -> Iterator[Message]:
        for number in range(MESSAGE_COUNT):
            yield Message(
                TOPIC,
                f"order {number} of {self._run}".encode(),
                tags=TAGS[number % len(TAGS)],
                keys=f"order-{number}",
                properties={"run": self._run, "number": str(number)},
            )

    def _consume(self) -> None:
        with PushConsumer(
            GROUP, self._take, self._namesrv, begin=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            consumer.subscribe(TOPIC, " || ".join(TAGS))
            deadline_s = monotonic() + CONSUME_TIMEOUT_S
            shown = 0
            while len(self._seen) < MESSAGE_COUNT:
                self._wait_a_little(
                    deadline_s,
                    f"only {len(self._seen):,} of {MESSAGE_COUNT:,} messages were consumed "
                    f"in {CONSUME_TIMEOUT_S:.0f} s",
                )
                if len(self._seen) - shown >= 250:
                    shown = len(self._seen)
                    self._progress(f"{shown:,}")
        self._figures.consumed = len(self._seen)
        self._figures.twice = sum(self._seen.values()) - len(self._seen)

    def _take(self, views: Sequence[MessageView]) -> None:
        with self._seen_lock:
            for view in views:
                if view.properties.get("run") == self._run:
                    number = view.properties["number"]
                    self._seen[number] = self._seen.get(number, 0) + 1

    def _archive(self) -> None:
        system = self._servers.system
        shown: list[str] = []

        def progress(state: JobState) -> None:
            text = (
                f"{state.done}/{state.tasks} tasks" if state.tasks else state.stage or state.state
            )
            if text not in shown:
                shown.append(text)
                self._progress(text)

        output = self._data / ARCHIVE
        future = system.ask(
            system.address(SPARK_JOBS),
            lambda reply: RunJob(ARCHIVE, {"output": str(output)}, reply, progress),
        )
        state: JobState = future.result(JOB_TIMEOUT_S)
        if state.state != "finished" or state.report is None:
            reason = state.sentence or "no reason given"
            raise TourFailed(f"The archive job {state.state}: {reason}")
        self._figures.rows = int(state.report["rows"])
        self._figures.archived_in = state.report["output"]

    def _scheduled(self) -> None:
        """Run the first entry of the schedule now and print its report."""
        path = self._data / JOBS_FILE
        entry = next(iter(load_jobs(path, job_names())), None)
        if entry is None:
            return  # the file was edited
        system = self._servers.system
        with self._step(f"Running the scheduled Spark job {entry.name} (from {path}) now"):
            future = system.ask(
                system.address(SPARK_JOBS), lambda reply: RunJob(entry.name, {}, reply)
            )
            state: JobState = future.result(JOB_TIMEOUT_S)
        if state.state != "finished" or state.report is None:
            reason = state.sentence or "no reason given"
            raise TourFailed(f"The job {entry.name} {state.state}: {reason}")
        for line in state.report["text"].splitlines():
            self._say(f"  {line}")
        due = datetime.fromtimestamp(entry.occasions.after(system.clock.now_ms()) / 1000)
        self._say(f"  Its next scheduled run is at {due:%H:%M}; see `troupemq job schedule`.")

    def _wait_a_little(self, deadline_s: float, failure: str) -> None:
        if self._over.wait(LOOK_AGAIN_S):
            raise TourFailed("The tour was interrupted.")
        if monotonic() > deadline_s:
            raise TourFailed(f"The tour failed: {failure}.")


def table(figures: TourFigures, data: Path) -> Iterator[str]:
    consumed = f"group {GROUP}, tags {', '.join(TAGS)}"
    if figures.twice:
        consumed += f"; {figures.twice:,} of them more than once"
    stored = str(data / "store")
    if figures.found:
        stored += f"; {figures.found:,} of earlier tours"
    rows: list[tuple[str, int, str]] = [
        ("messages sent", figures.sent, f"topic {TOPIC}, {QUEUE_COUNT} queues"),
        ("messages stored", figures.stored, stored),
        ("messages consumed", figures.consumed, consumed),
    ]
    if has_spark():
        rows.append(("rows archived", figures.rows, figures.archived_in or "nothing new"))
    yield f"{'':18} {'count':>8}  where"
    for what, count, where in rows:
        yield f"{what:18} {count:>8,}  {where}"
