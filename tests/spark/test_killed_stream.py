"""Streams from a live broker into files, killed repeatedly: every message arrives exactly once.

A broker in its own process, a busy producer, and two streams in one driver. One stream reads the
store's files and writes Parquet, the other reads over the network and writes JSON. Each seed in
turn kills one of their processes (`KINDS`) at a random moment, and sometimes the broker. Topics and
queues are added, too. Then the streams continue from their checkpoints. Their targets are compared
with the queues and with the producer's record. After the last seed they read to the end
(AvailableNow), and then no message that was sent may be missing.
"""

import json
import shutil
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from tests.compat.patience import wait_until
from tests.compat.servers import SMALL_FILES, OurBroker, OurNameServer
from tests.spark.killed import EXECUTOR, PLANNER, Driver, Standalone, first_at_work
from tests.system.test_cluster_kills import at_a_port_of_its_own, kill
from troupemq import Admin, Message, Producer, ProducerSettings, SendResult

pytestmark = pytest.mark.slow

KINDS = (
    *("Python worker", "planner", "driver", "Python worker", "planner", "JVM", "driver"),
    *("Python worker", "executor", "worker daemon", "Python worker", "executor"),
    *("worker daemon", "executor", "planner", "Python worker", "JVM", "Python worker"),
    *("driver", "planner"),
)
ON_A_CLUSTER = range(8, 14)
"""Kinds that run with executors, adjacent because a change costs a session."""

TOPICS_MAX, QUEUES_MAX = 8, 6
BURST, PAUSE_S = 4, 0.04
"""Messages of the producer per burst, at most 100 a second, to last for a whole trial."""

AHEAD_MAX = 2000
"""Unread messages at which the producer waits, however slow the machine is."""

BODY_BYTES_MAX = 2000
BATCHES_BEFORE = 3
AT_WORK_TIMEOUT_S = 3.0
CATCH_UP_TIMEOUT_S = 240.0


def body_of(number: int) -> bytes:
    return b"%d " % number + bytes(number * 7919 % BODY_BYTES_MAX)


class Load:
    """A producer that tries each send once, to a growing number of topics, until told to end."""

    def __init__(self, namesrv: str) -> None:
        self._admin = Admin(namesrv)
        self._producer = Producer("load", namesrv, settings=ProducerSettings(retries=0))
        self._over = Event()
        self._lock = Lock()
        self._acknowledged: list[int] = []
        self.sent = 0
        self.read = 0
        """Messages that the streams have read, as last checked."""

        self.queues: dict[str, int] = {}
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Load":
        self.add(Random(0))
        self._producer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._admin.close()

    def stop(self) -> None:
        """Stop sending; all answers have arrived by then, or never will."""
        self._over.set()
        self._thread.join()
        self._producer.stop()

    def add(self, random: Random) -> None:
        """Add a topic, or queues of one."""
        topic = f"Load{random.randrange(TOPICS_MAX)}"
        queues = self.queues.get(topic, 0) + random.randint(1, 2)
        if queues <= QUEUES_MAX:
            self._admin.create_topic(topic, queues)
            self.queues[topic] = queues

    def acknowledged(self) -> list[int]:
        with self._lock:
            return list(self._acknowledged)

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the number of messages of each queue, as the broker reports."""
        found = {}
        for topic in self.queues:
            for queue in self._admin.queues(topic):
                first, end = self._admin.offsets(queue)
                assert first == 0
                found[topic, queue.queue_id] = end
        return found

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            if self.sent - self.read > AHEAD_MAX:
                continue
            topics = list(self.queues)
            for _ in range(BURST):
                message = Message(
                    topics[self.sent % len(topics)], body_of(self.sent), keys=str(self.sent)
                )
                done = self._producer.send_async(message)
                done.add_done_callback(partial(self._answered, self.sent))
                self.sent += 1

    def _answered(self, number: int, done: Future[SendResult]) -> None:
        if done.exception() is None:
            with self._lock:
                self._acknowledged.append(number)


class Target:
    """Files that a stream has written, as the commit log of its sink names them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: Counter[tuple[str, int, int]] = Counter()
        self.numbers: Counter[int] = Counter()
        self._read: set[Path] = set()

    def read(self) -> None:
        """Read the files committed since the last call."""
        try:
            committed = self.committed()
        except FileNotFoundError:
            return  # no batch yet, or a log just compacted: the next call sees it
        for path in committed - self._read:
            for row in rows_of(path):
                number = int(row["keys"])
                assert row["body"] == body_of(number)
                self.places[row["topic"], row["queueId"], row["queueOffset"]] += 1
                self.numbers[number] += 1
            self._read.add(path)

    def committed(self) -> set[Path]:
        """Return the files of all batches, from the last compacted log and those behind it."""
        logs = {path: path.suffix for path in (self.path / "_spark_metadata").iterdir()}
        compacted = max(
            (int(path.stem) for path, suffix in logs.items() if suffix == ".compact"), default=-1
        )
        found: list[Path] = []
        for path, suffix in logs.items():
            if not path.stem.isdecimal() or int(path.stem) < compacted:
                continue
            if int(path.stem) > compacted or suffix == ".compact":
                version, *lines = path.read_text().splitlines()
                assert version == "v1"
                found += [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]
        assert len(found) == len(set(found))
        return set(found)

    def has(self, ends: dict[tuple[str, int], int], acknowledged: list[int]) -> bool:
        """Return whether all messages seem to be there; `check` makes sure."""
        self.read()
        return all(place in self.places for place in last_places(ends)) and all(
            number in self.numbers for number in acknowledged
        )

    def check(self, ends: dict[tuple[str, int], int], acknowledged: list[int]) -> None:
        """Check that each message is there once, without holes in queues or loss."""
        assert [place for place, count in self.places.items() if count > 1] == [], "twice"
        assert [number for number, count in self.numbers.items() if count > 1] == [], "sent once"
        found: dict[tuple[str, int], list[int]] = {}
        for topic, queue_id, offset in self.places:
            found.setdefault((topic, queue_id), []).append(offset)
        for queue, offsets in found.items():
            assert sorted(offsets) == list(range(len(offsets))), queue
        for queue, end in ends.items():
            assert len(found.get(queue, [])) >= end, queue
        assert [number for number in acknowledged if number not in self.numbers] == [], "lost"


def last_places(ends: dict[tuple[str, int], int]) -> list[tuple[str, int, int]]:
    return [(*queue, end - 1) for queue, end in ends.items() if end]


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = parquet.read_table(path, partitioning=None).to_pylist()
        return rows
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**row, "body": b64decode(row["body"])} for row in rows]


class Trial:
    """State shared by all seeds: a broker under load, targets, and a driver."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        names = stack.enter_context(OurNameServer(directory / "names"))
        self._broker = at_a_port_of_its_own(OurBroker(directory / "broker", names, SMALL_FILES))
        stack.enter_context(self._broker)
        self.load = stack.enter_context(Load(names.address))
        self.targets = {name: Target(directory / name) for name in ("parquet", "json")}
        chosen = {"topicPattern": "Load.*", "startingOffsets": "earliest"}
        read = {
            "parquet": {"store": str(self._broker.store), "maxBytesPerTrigger": "1000000"},
            "json": {"nameServer": names.address, "maxOffsetsPerTrigger": "1000"},
        }
        self._streams = {
            name: {
                "read": {**read[name], **chosen, "minPartitions": "2"},
                "select": ["topic", "queueId", "queueOffset", "keys", "body"],
                "format": name,
                "write": {"path": str(target.path)},
                "checkpoint": str(directory / f"checkpoint-{name}"),
            }
            for name, target in self.targets.items()
        }
        self._cluster: Standalone | None = None
        self._driver: Driver | None = None
        self._is_on_cluster = False
        self._drivers = 0
        stack.callback(self.drop_driver)

    def driver(self, *, on_cluster: bool) -> Driver:
        """Return the running driver, or a new one if it has ended or runs elsewhere."""
        if self._driver is not None and self._is_on_cluster != on_cluster:
            self.drop_driver()
        if self._driver is None:
            settings = {}
            if on_cluster:
                settings = {**Standalone.SETTINGS, "spark.master": self.cluster().master}
            self._drivers += 1
            directory = self._directory / f"driver-{self._drivers}"
            self._driver, self._is_on_cluster = (
                Driver(directory, self._streams, settings),
                on_cluster,
            )
            self._driver.wait_for("ready")
            self._driver.say("stream")
        return self._driver

    def drop_driver(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    def cluster(self) -> Standalone:
        if self._cluster is None:
            self._cluster = Standalone(self._directory / "cluster")
            self._stack.callback(self._cluster.close)
        return self._cluster

    def compare(self, driver: Driver) -> int:
        """Wait until the streams have read all current messages; return their number."""
        acknowledged, ends = self.load.acknowledged(), self.load.ends()
        before = self.targets["parquet"].places.total()
        for name, target in self.targets.items():
            has_all = partial(target.has, ends, acknowledged)
            try:
                wait_until(has_all, f"all messages in {name}", CATCH_UP_TIMEOUT_S)
            except AssertionError as error:
                error.add_note(driver.last_words())
                self.drop_driver()  # the next seed may have a sound one
                raise
            target.check(ends, acknowledged)
        self.load.read = min(target.places.total() for target in self.targets.values())
        return self.targets["parquet"].places.total() - before

    def finish(self) -> None:
        """Check that both targets hold exactly the messages that were sent."""
        self.load.stop()
        driver = self.driver(on_cluster=self._is_on_cluster)
        driver.say("drain")
        driver.wait_for("drained")
        acknowledged, ends = self.load.acknowledged(), self.load.ends()
        for target in self.targets.values():
            target.read()
            target.check(ends, acknowledged)
            assert target.places.total() == sum(ends.values())
            assert target.numbers.total() == sum(ends.values())

    def kill_broker(self) -> None:
        kill(self._broker)
        self._broker.start()

    def kill(self, kind: str, driver: Driver, random: Random) -> bool:
        """Kill a process of this kind; return whether there was one."""
        found = None
        match kind:
            case "driver":
                driver.kill()
                self.drop_driver()
                return True
            case "JVM":
                assert driver.kill_jvm() == 1
                self.drop_driver()
                return True
            case "worker daemon":
                self.cluster().kill_worker(random.randrange(Standalone.WORKERS))
                return True
            case "executor":
                found = first_at_work(
                    partial(self.cluster().processes, EXECUTOR), AT_WORK_TIMEOUT_S
                )
            case "planner":
                found = first_at_work(partial(driver.processes, PLANNER), AT_WORK_TIMEOUT_S)
            case "Python worker":
                where = self.cluster() if self._is_on_cluster else driver
                found = first_at_work(where.python_workers, AT_WORK_TIMEOUT_S)
        return found is not None and found.kill()


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    directory = tmp_path_factory.mktemp("killed-stream")
    with ExitStack() as stack:
        trial = Trial(directory, stack)
        yield trial
        trial.finish()
    shutil.rmtree(directory)


@pytest.mark.trial(short=0, long=100)
def test_every_message_arrives_exactly_once_through_kills(
    trial: Trial, seed: int, tally: Counter[str]
) -> None:
    random = Random(seed)
    place = seed % len(KINDS)
    kind = KINDS[place]
    driver = trial.driver(on_cluster=place in ON_A_CLUSTER)
    for _ in range(random.randint(1, BATCHES_BEFORE)):
        driver.wait_for("batch")
    if random.random() < 0.3:
        trial.load.add(random)
    Event().wait(random.random() * 0.5)
    assert trial.kill(kind, driver, random), f"no {kind} to kill"
    tally[f"kills of {kind}"] += 1
    if random.random() < 0.1:
        trial.kill_broker()
        tally["kills of the broker"] += 1
    driver = trial.driver(on_cluster=place in ON_A_CLUSTER)
    rows = trial.compare(driver)
    tally["messages, in both targets"] += rows
    tally["streams that failed and began again"] += driver.count("failed")
