"""Celery on our broker: kombu's own suite, workers that come, go and are killed, delays.

The workers are processes of tests/bench/celery_tasks.py.
"""

import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from random import Random
from threading import Event
from time import time
from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed")

from kombu import Connection, Consumer, Exchange, Producer, Queue

from tests.compat.child import Child
from tests.compat.patience import wait_until
from tests.compat.servers import SMALL_FILES, OurBroker, OurNameServer
from troupemq.client.admin import Admin
from troupemq.kombu.envelope import due_ms
from troupemq.testing import running_broker

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import kombu, pytest
import troupemq.kombu
from t.integration import common

NAMESRV = {namesrv!r}

@pytest.fixture
def connection():
    return kombu.Connection(f"troupemq://{{NAMESRV}}//")

@pytest.fixture
def invalid_connection():
    return kombu.Connection("troupemq://127.0.0.1:1")

@pytest.fixture
def failover_connection():
    return kombu.Connection(f"troupemq://127.0.0.1:1;troupemq://{{NAMESRV}}//")

for name in ("BasicFunctionality", "BaseExchangeTypes", "BaseTimeToLive", "BasePriority",
             "BaseMessage", "BaseFailover"):
    globals()["Test" + name] = type("Test" + name, (getattr(common, name),), {{}})
"""

pytestmark = pytest.mark.whole


class Workers:
    """Worker processes of one queue, and what they ran."""

    def __init__(self, namesrv: str, queue: str, folder: Path, stack: ExitStack) -> None:
        self.ran = folder / f"ran-{queue}"
        self._folder, self._queue, self._stack = folder, queue, stack
        self.environment = {
            "BROKER_URL": f"troupemq://{namesrv}//",
            "TASKS_RAN": str(self.ran),
            "TASKS_QUEUE": queue,
            "PYTHONPATH": str(ROOT),
        }
        self.app = self._app()

    def _app(self) -> Any:
        os.environ.update(self.environment)
        from tests.bench.celery_tasks import app

        app.conf.update(broker_url=self.environment["BROKER_URL"], task_default_queue=self._queue)
        app.amqp.__dict__.pop("queues", None)
        app.amqp.__dict__.pop("router", None)
        app.amqp.__dict__.pop("_producer_pool", None)
        return app

    def start(self, name: str, *options: str) -> Child:
        log = self._folder / f"{self._queue}-{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.bench.celery_tasks", "worker"]
        child = Child([*command, "-n", f"{name}@x", "-l", "INFO", *options], log, self.environment)
        self._stack.callback(child.stop)
        wait_until(lambda: "ready." in log.read_text(), f"start of {name}")
        return child

    def send(self, numbers: range, seconds: float) -> None:
        for number in numbers:
            self.app.send_task(
                "tests.bench.celery_tasks.work", (number, seconds), queue=self._queue
            )

    def counts(self, what: str) -> Counter[int]:
        lines = self.ran.read_text().splitlines() if self.ran.exists() else []
        return Counter(int(line.split()[1]) for line in lines if line.startswith(what))

    def wait(self, count: int, timeout_s: float = 60.0) -> None:
        wait_until(lambda: len(self.counts("end")) >= count, f"{count} tasks", timeout_s)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurBroker]:
    folder = tmp_path_factory.mktemp("celery")
    with (
        OurNameServer(folder / "namesrv") as name_server,
        OurBroker(folder / "broker", name_server, SMALL_FILES) as broker,
    ):
        yield broker


@pytest.fixture
def workers(
    servers: OurBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Workers]:
    with ExitStack() as stack:
        yield Workers(servers.name_server.address, request.node.name[:40], tmp_path, stack)


def test_suite_of_kombu_passes(servers: OurBroker, tmp_path: Path) -> None:
    wanted = f"kombu=={version('kombu')}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "kombu"]
    subprocess.run([*pip, "-d", str(tmp_path), wanted], check=True)
    (archive,) = tmp_path.glob("kombu-*.tar.gz")
    with tarfile.open(archive) as found:
        found.extractall(tmp_path, filter="data")
    (folder,) = (each for each in tmp_path.glob("kombu-*") if each.is_dir())
    (folder / "t/integration/test_troupemq.py").write_text(
        SUITE.format(namesrv=servers.name_server.address)
    )
    pytest_alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    pytest_alone += ["-c", os.devnull]
    done = subprocess.run(
        [*pytest_alone, "--rootdir", str(folder), "t/integration/test_troupemq.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout


def test_scale_up_and_clean_stop_run_each_task_once(workers: Workers) -> None:
    first = workers.start("first", "-c", "2")
    workers.send(range(40), 0.5)
    wait_until(lambda: len(workers.counts("begin")) >= 4, "the first tasks")
    for name in ("second", "third"):
        workers.start(name, "-c", "2")
    assert first.stop() == 0
    workers.wait(40)
    assert set(workers.counts("begin").values()) == set(workers.counts("end").values()) == {1}


def test_long_task_runs_once_while_workers_come_and_go(workers: Workers) -> None:
    workers.start("long", "-c", "1")
    workers.send(range(1), 20.0)
    wait_until(lambda: bool(workers.counts("begin")), "the long task")
    for number in range(2):
        other = workers.start(f"other-{number}", "-c", "1")
        workers.send(range(100 * number + 1, 100 * number + 21), 0.01)
        workers.wait(20 * (number + 1))
        other.stop()
    workers.wait(41)
    assert set(workers.counts("begin").values()) == {1}


@pytest.mark.parametrize("rounds", [5])
def test_kills_of_workers_lose_no_task(workers: Workers, rounds: int) -> None:
    random = Random(7)
    alive = [workers.start(f"w{number}", "-c", "2") for number in range(2)]
    for number in range(rounds):
        workers.send(range(20 * number, 20 * number + 20), 0.1)
        Event().wait(random.uniform(0.1, 0.8))
        victim = alive.pop(random.randrange(2))
        os.kill(victim.pid, signal.SIGKILL)
        alive.append(workers.start(f"w{number + 2}", "-c", "2"))
    workers.wait(20 * rounds)
    ends = workers.counts("end")
    repeated = sum(ends.values()) - len(ends)
    print(f"{len(ends)} tasks, {repeated} repetitions after {rounds} kills")
    assert repeated <= rounds * 8, "no more than what was in flight"


@pytest.mark.parametrize("rounds", [3])
def test_kills_of_the_broker_lose_no_task(
    workers: Workers, servers: OurBroker, rounds: int
) -> None:
    workers.start("w", "-c", "2")
    for number in range(rounds):
        workers.send(range(20 * number, 20 * number + 20), 0.1)
        servers.child.kill()
        servers.address = ""
        servers.start()
    workers.wait(20 * rounds)
    ends = workers.counts("end")
    print(f"{len(ends)} tasks, {sum(ends.values()) - len(ends)} repetitions")


def test_pings_find_all_workers_and_leave_no_topics(workers: Workers, servers: OurBroker) -> None:
    for number in range(10):
        workers.start(f"ping{number}", "-P", "solo", "--without-gossip", "--without-mingle")
    inspect = workers.app.control.inspect
    begun_s = time()
    assert len(inspect(timeout=20, limit=10).ping()) == 10
    print(f"10 of 10 after {time() - begun_s:.3f} s")
    with Admin(servers.name_server.address) as admin:

        def topics() -> list[str]:  # a group's retry topic is listed some seconds after its start
            return sorted(each for each in admin.topics() if not each.startswith("%"))

        before = topics()
        for _ in range(1000):
            assert len(inspect(timeout=20, limit=10).ping()) == 10
        assert topics() == before


def test_delayed_tasks_are_never_early() -> None:
    random = Random(7)
    count, minutes, ahead_ms = 10_000, 90, 0
    queue = Queue("later", Exchange("later"), "later")
    late_ms: list[float] = []

    def take(message: Any) -> None:
        late_ms.append(time() * 1000 + ahead_ms - (due_ms(message._raw) or 0))
        message.ack()

    with running_broker() as broker, Connection(f"troupemq://{broker.namesrv}//") as connection:
        producer = Producer(connection.default_channel)
        for number in range(count):
            eta = datetime.now(UTC) + timedelta(minutes=1.05 + random.random() * (minutes - 1.05))
            producer.publish(
                number,
                exchange=queue.exchange,
                routing_key="later",
                declare=[queue] if not number else [],
                headers={"eta": eta.isoformat()},
            )
        with Consumer(connection, [queue], on_message=take, prefetch_count=200):
            for _ in range(minutes + 2):
                broker.advance("1m")
                ahead_ms += 60_000
                while True:
                    try:
                        connection.drain_events(timeout=0.1)
                    except TimeoutError:
                        break
    print(f"{len(late_ms)} tasks, {min(late_ms):.0f} to {max(late_ms):.0f} ms late")
    assert len(late_ms) == count
    assert min(late_ms) >= 0
