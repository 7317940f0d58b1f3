"""A stream into a topic while its driver, Python workers and broker are killed, by seed.

At the end, each number of a committed batch is at the broker exactly once, and no other number more
than once.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from signal import SIGKILL

import pytest

from spark.runner import environment
from tests.compat.patience import wait_until
from tests.compat.python_clients import new_topic
from tests.compat.servers import SMALL_FILES, OurBroker, OurNameServer
from tests.spark import sink_query
from tests.spark.planned import rows_of
from tests.spark.sink_query import ROWS, TOPIC
from tests.support.golden import REPOSITORY
from tests.system.test_cluster_kills import at_a_port_of_its_own, kill
from troupemq.java import find_java

pytestmark = pytest.mark.slow

KILLS = 4
PATIENCE_S = 180.0
WORKER = "pyspark.daemon"
MOMENTS = ("driver", "worker", "worker", "broker", "broker")


class Query:
    """The child process that runs the stream."""

    def __init__(self, directory: Path, name_server: str) -> None:
        self.directory, self.name_server = directory, name_server
        self.commits = directory / "checkpoint" / "commits"
        (directory / "work").mkdir(parents=True)
        self.start()

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", sink_query.__name__, str(self.directory), self.name_server],
                cwd=REPOSITORY,
                env=environment(os.environ, find_java(os.environ)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def batches(self) -> int:
        """Return the number of batches that Spark has committed."""
        if not self.commits.exists():
            return 0
        names = [path.name for path in self.commits.iterdir()]
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    def wait_for(self, more: int) -> None:
        """Wait until that many more batches are committed."""
        wanted = self.batches + more
        wait_until(lambda: self._has(wanted), f"{more} more batches", PATIENCE_S)

    def _has(self, batches: int) -> bool:
        assert self.child.poll() is None, (self.directory / "log").read_text()[-4000:]
        return self.batches >= batches

    def kill_driver(self) -> None:
        """Kill the Python process, its JVM and all their descendants; then start it again."""
        self.end()
        self.start()

    def end(self) -> None:
        """End all its processes."""
        below = list(descendants(self.child.pid))
        self.child.kill()
        for pid in below:
            end(pid)
        self.child.wait()

    def kill_worker(self, random: Random) -> bool:
        """Kill one process that runs tasks; return whether there was one."""
        workers = [pid for pid in descendants(self.child.pid) if is_worker(pid)]
        if workers:
            end(random.choice(workers))
        return bool(workers)

    def stop(self) -> None:
        (self.directory / "stop").touch()
        self.child.wait(PATIENCE_S)


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, SIGKILL)


def descendants(pid: int) -> Iterator[int]:
    """Return all descendants of this process."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
        for thread in threads:
            if thread != str(pid):
                children += Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from descendants(child)


def is_worker(pid: int) -> bool:
    """Return whether the process runs tasks, which the daemon that forks workers does not."""
    try:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return all(
            WORKER in Path(f"/proc/{each}/cmdline").read_text() for each in (str(pid), parent)
        )
    except OSError:
        return False


@pytest.mark.trial(short=0, long=100, every=4, turn=2)  # about four kills in each
def test_a_killed_sink_stores_each_number_once(
    tmp_path: Path, seed: int, tell: Callable[[str], None]
) -> None:
    random = Random(seed)
    happened: list[str] = []
    with ExitStack() as servers:
        names = servers.enter_context(OurNameServer(tmp_path / "names"))
        broker = at_a_port_of_its_own(OurBroker(tmp_path / "broker", names, SMALL_FILES))
        servers.enter_context(broker)
        new_topic(broker, TOPIC)
        query = Query(tmp_path / "query", names.address)
        servers.callback(query.end)
        query.wait_for(1)
        for _ in range(KILLS):
            what = random.choice(MOMENTS)
            query.wait_for(random.choice((0, 1, 2)))
            if what == "driver":
                query.kill_driver()
            elif what == "broker":
                kill(broker)
                broker.start()
            else:
                wait_until(lambda: query.kill_worker(random), "a worker", PATIENCE_S)
            happened.append(what)
        query.wait_for(2)
        query.stop()
        done = query.batches
        store = str(broker.store)
        rows = rows_of({"store": store, "topic": TOPIC})
        found = Counter(int(row["body"]) for row in rows)
    assert [number for number, count in found.items() if count > 1] == []
    assert set(range(done * ROWS)) <= found.keys()
    assert max(found) < (done + 1) * ROWS
    tell(f"{', '.join(happened)} killed; {done} batches of {ROWS}")
