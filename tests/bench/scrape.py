"""Cost of a scrape with many topics and groups: its duration, and how it blocks the loop.

`python -m tests.bench.scrape [--topics 10000] [--groups 1000] [--pairs 30000] [--late 10] [--timed
2]` runs a real broker with messages in every topic and tables filled by hand. Of 100 pairs of a
topic and a group `--late` have a lag.

A message is sent to the loop every half millisecond, and its delay while the page is rendered is
the delay of clients. On a crowded machine most of it comes from the machine.

Every line of the page's writer is timed by the processor time of its thread, so that a crowded
machine does not count. A line, with its calls of C and the objects it frees, is a step without
interruption, except compression. The minimum of --timed scrapes is shown; each takes some 20 s of
processor time.
"""

import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from logging import ERROR
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread
from threading import enumerate as threads
from time import clock_gettime, perf_counter, pthread_getcpuclockid, thread_time
from types import FrameType
from typing import Any

from structlog import configure, make_filtering_bound_logger

from actors.broker_server import RunningBroker, start_broker
from actors.config import BrokerConfig
from actors.engine.short_collections import short_collections
from actors.engine.system import ActorSystem
from actors.metrics import metrics_port
from actors.metrics.messages import TakeTime
from actors.metrics.metrics_port import MetricsPort
from actors.metrics.metrics_renderer import MetricsRenderer
from actors.metrics.page import Packed
from actors.metrics.sources import FigureSet
from actors.statistics.counts import GroupCounts
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from tests.support.puts import append, put
from troupemq.daemon import SWITCH_INTERVAL_S

EVERY_S = 0.0005
SCRAPES = 5
PAGES = ("/metrics", "/metrics/exporter")
QUEUES, FULL_QUEUES, MESSAGES = 4, 1, 2
"""Queues of each topic, queues with messages, and messages of each of those."""
WRITER = "MetricsRenderer"
"""The thread that makes pages."""
PATIENCE_S = 300.0
"""Lines that are timed take long."""
LONG_S = 0.0003
"""Steps shorter than that are not looked at."""
FOLDER = next((each for each in ("/dev/shm",) if Path(each).is_dir()), None)
"""In memory where that can be: a queue is a file."""


def make_store(config: StoreConfig, topics: Sequence[str]) -> None:
    """Messages in every topic."""
    store = MessageStore(config, RealDisk(), SystemClock())
    store.open()
    for name in topics:
        records = [
            put(topic=name, queue_id=queue_id, queue_offset=offset)
            for queue_id in range(FULL_QUEUES)
            for offset in range(MESSAGES)
        ]
        append(store.commit_log, records, store.clock.now_ms())
    store.catch_up()
    store.close()


def fill(broker: RunningBroker, names: Sequence[str], options: Namespace) -> None:
    """Tables as large as asked for."""
    made, groups = broker.broker, options.groups
    made.tables.topics.value = {name: TopicConfig(name, QUEUES, QUEUES) for name in names}
    group_names = [f"billing_of_team_{n:04}" for n in range(groups)]
    made.tables.groups.value = {name: SubscriptionGroupConfig(name) for name in group_names}
    for name in names:
        counts = made.put_stats.of_topic(name)
        counts.count, counts.bytes, counts.times = 1000, 200_000, 1000
    offsets = {}
    for n in range(options.pairs):
        name = names[n % len(names)]
        group = group_names[(n * 7 + n // len(names)) % groups]
        is_late = n % 100 < options.late
        consumed = 0 if is_late else MESSAGES
        offsets[f"{name}@{group}"] = dict.fromkeys(range(FULL_QUEUES), consumed)
        made.pull_stats.by_group[name, group] = GroupCounts(900, 180_000, 100)
    made.tables.live_offsets.value = offsets


class Waits:
    """Asks the loop again and again how long mail waits."""

    def __init__(self, system: ActorSystem) -> None:
        self._found_ms: list[float] = []
        self._made: list[bool] = []
        """Whether a page was being rendered, for each wait."""
        self._system, self._over = system, Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        port = self._system.address("metrics_port")
        (actor,) = [each for each in [*self._system.live] if isinstance(each, MetricsPort)]
        actor._waits = self  # type: ignore[assignment]
        clock = pthread_getcpuclockid(ident_of(WRITER))
        while not self._over.is_set():
            before_s = clock_gettime(clock)
            port.tell(TakeTime(perf_counter()))
            self._over.wait(EVERY_S)
            self._made.append(clock_gettime(clock) > before_s)

    def note(self, waited_ms: float) -> None:
        """In the place of the histogram."""
        self._found_ms.append(waited_ms)

    def end(self, *, made: bool) -> list[float]:
        """Return the waits during page rendering, or outside it, in ms."""
        self._over.set()
        self._thread.join()
        pairs = zip(self._found_ms, self._made, strict=False)  # the last may still wait
        return [found for found, was_made in pairs if was_made == made]


class Steps:
    """The longest steps of one thread, by line: processor time from one line to the next."""

    def __init__(self) -> None:
        self.longest_s: dict[str, float] = {}
        self._line, self._before_s = "", 0.0

    def watch(self, actor: MetricsRenderer, path: str) -> None:
        """From the next page of this path on."""
        pages = dict(actor._pages)
        write = pages[path]

        def watched(collect: str, reading: FigureSet) -> Packed:
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                frame.f_trace = self._step
                frame = frame.f_back
            sys.settrace(self._step)
            self._before_s = thread_time()
            return write(collect, reading)

        actor._pages = {**pages, path: watched}

    def _step(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        took_s = thread_time() - self._before_s
        if self._line and took_s > self.longest_s.get(self._line, LONG_S):
            self.longest_s[self._line] = took_s
        name = frame.f_code.co_filename.rpartition("/")[2]
        self._line = f"{name}:{frame.f_lineno} {event}"
        self._before_s = thread_time()
        return self._step


ASK = """
import gzip, sys
from http.client import HTTPConnection
from time import perf_counter
began_s = perf_counter()
connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=float(sys.argv[3]))
connection.request("GET", sys.argv[2], headers={"Accept-Encoding": "gzip"})
body = connection.getresponse().read()
print(perf_counter() - began_s, len(body), len(gzip.decompress(body)))
"""


def scrape(port: int, path: str) -> tuple[float, int, int]:
    """Seconds, bytes as sent, bytes of text; a process of its own asks, as Prometheus does."""
    asked = [sys.executable, "-c", ASK, str(port), path, str(PATIENCE_S)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=2 * PATIENCE_S)
    took_s, sent, text = done.stdout.split()
    return float(took_s), int(sent), int(text)


def tell(name: str, waits_ms: list[float]) -> None:
    cuts = quantiles(waits_ms, n=1000)
    print(
        f"{name}: loop waits median {cuts[499]:.2f} ms, p99 {cuts[989]:.2f} ms,"
        f" p99.9 {cuts[998]:.2f} ms, most {max(waits_ms):.2f} ms of {len(waits_ms)}"
    )


def cpu_s(name: str) -> float:
    """Return the processor time of a thread."""
    return clock_gettime(pthread_getcpuclockid(ident_of(name)))


def ident_of(name: str) -> int:
    """The thread that has this name."""
    (found,) = [each.ident for each in threads() if each.name.startswith(name)]
    assert found is not None
    return found


def measure(broker: RunningBroker, path: str) -> None:
    """One page, scraped again and again."""
    pause = Event()
    scraped = Waits(broker.system)
    for _ in range(SCRAPES):
        before_s = cpu_s(WRITER)
        took_s, sent, text = scrape(broker.metrics_port, path)
        print(
            f"{path}: {took_s:.2f} s, {cpu_s(WRITER) - before_s:.2f} s of processor time,"
            f" {sent >> 10} KiB sent, {text >> 10} KiB of text"
        )
        pause.wait(1.2)
    tell(path, scraped.end(made=True))


def time_steps(broker: RunningBroker, path: str, timed: int) -> None:
    """After all that is measured: the thread goes on to be timed."""
    pause = Event()
    found: list[dict[str, float]] = []
    (actor,) = [each for each in [*broker.system.live] if isinstance(each, MetricsRenderer)]
    plain = actor._pages
    for _ in range(timed):
        steps = Steps()
        actor._pages = plain
        steps.watch(actor, path)
        scrape(broker.metrics_port, path)
        found.append(steps.longest_s)
        pause.wait(1.2)
    actor._pages = plain
    common = set.intersection(*map(set, found)) if found else set()
    least = sorted(((min(each[line] for each in found), line) for line in common), reverse=True)
    for took_s, line in least[:12]:
        print(f"{path}: {took_s * 1000:.2f} ms in one step at {line}")


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    for name, default in (
        ("topics", 10_000),
        ("groups", 1000),
        ("pairs", 30_000),
        ("late", 10),
        ("timed", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    configure(wrapper_class=make_filtering_bound_logger(ERROR))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    metrics_port.MAKE_S = PATIENCE_S
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
        config = BrokerConfig(
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            broker_ip2="127.0.0.1",
            listen_port=0,
            metrics_type="PROM",
            metrics_port=0,
        )
        store = StoreConfig(
            root=f"{folder}/store",
            commit_log_file_bytes=16 << 20,
            consume_queue_file_bytes=2000,
            message_index_enable=False,
        )
        names = [f"Orders_of_shop_{n:05}" for n in range(options.topics)]
        make_store(store, names)
        broker = start_broker(config, store, system=ActorSystem.real(disk=RealDisk()))
        stack.enter_context(short_collections())  # as a broker's process has them
        fill(broker, names, options)
        calm = Waits(broker.system)
        Event().wait(3)
        tell("at rest", calm.end(made=False))
        for path in PAGES:
            measure(broker, path)
        for path in PAGES:
            time_steps(broker, path, options.timed)
        broker.stop(30)


if __name__ == "__main__":
    main()
