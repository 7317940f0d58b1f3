"""The cost of a scrape with many topics and groups: how long it takes, and how it holds the loop.

    python -m tests.bench.scrape [--topics 10000] [--groups 1000] [--pairs 30000]

A real broker whose tables are filled by hand; while it is scraped, a message is told to the loop
every half millisecond, and how long each waits is what clients would notice.
"""

import gzip
import sys
import tempfile
from argparse import ArgumentParser
from http.client import HTTPConnection
from logging import ERROR
from statistics import quantiles
from threading import Event, Thread
from time import perf_counter

from structlog import configure, make_filtering_bound_logger

from actors.broker_server import RunningBroker, start_broker
from actors.config import BrokerConfig
from actors.engine.system import ActorSystem
from actors.metrics.metrics_port import TakeTime
from actors.statistics.counts import GroupCounts
from protocol.bodies import SubscriptionGroupConfig, TopicConfig
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from troupemq.daemon import SWITCH_INTERVAL_S

EVERY_S = 0.0005
SCRAPES = 5


def fill(broker: RunningBroker, topics: int, groups: int, pairs: int) -> None:
    """Tables as large as asked for; every queue of every pair is one message behind."""
    made = broker.broker
    names = [f"Orders_of_shop_{n:05}" for n in range(topics)]
    made.tables.topics.value = {name: TopicConfig(name, 4, 4) for name in names}
    group_names = [f"billing_of_team_{n:04}" for n in range(groups)]
    made.tables.groups.value = {name: SubscriptionGroupConfig(name) for name in group_names}
    for name in names:
        counts = made.put_stats.of_topic(name)
        counts.count, counts.bytes, counts.times = 1000, 200_000, 1000
        for queue_id in range(4):
            made.store.consume_queues.get_or_create(name, queue_id)
    offsets = {}
    for n in range(pairs):
        name, group = names[n % topics], group_names[(n * 7 + n // topics) % groups]
        offsets[f"{name}@{group}"] = dict.fromkeys(range(4), 0)
        made.pull_stats.by_group[name, group] = GroupCounts(900, 180_000, 100)
    made.tables.live_offsets.value = offsets


class Waits:
    """Asks the loop again and again how long mail waits."""

    def __init__(self, system: ActorSystem) -> None:
        self.found_ms: list[float] = []
        self._system, self._over = system, Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        port = self._system.address("metrics_port")
        actor = self._system.actors()["metrics_port"]
        actor._waits = self  # type: ignore[attr-defined]
        while not self._over.is_set():
            port.tell(TakeTime(perf_counter()))
            self._over.wait(EVERY_S)

    def note(self, waited_ms: float) -> None:
        """In the place of the histogram."""
        self.found_ms.append(waited_ms)

    def end(self) -> list[float]:
        """All of them, ms."""
        self._over.set()
        self._thread.join()
        return self.found_ms


def scrape(port: int) -> tuple[float, int, int]:
    """Seconds, bytes as sent, bytes of text."""
    began_s = perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    body = connection.getresponse().read()
    took_s = perf_counter() - began_s
    connection.close()
    return took_s, len(body), len(gzip.decompress(body))


def tell(name: str, waits_ms: list[float]) -> None:
    cuts = quantiles(waits_ms, n=1000)
    print(
        f"{name}: loop waits median {cuts[499]:.2f} ms, p99 {cuts[989]:.2f} ms,"
        f" p99.9 {cuts[998]:.2f} ms, most {max(waits_ms):.2f} ms of {len(waits_ms)}"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    for name, default in (("topics", 10_000), ("groups", 1000), ("pairs", 30_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    configure(wrapper_class=make_filtering_bound_logger(ERROR))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig(
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            broker_ip2="127.0.0.1",
            listen_port=0,
            metrics_type="PROM",
            metrics_port=0,
        )
        store = StoreConfig(root=f"{folder}/store", commit_log_file_bytes=16 << 20)
        broker = start_broker(config, store, system=ActorSystem.real(disk=RealDisk()))
        fill(broker, options.topics, options.groups, options.pairs)
        pause = Event()
        calm = Waits(broker.system)
        pause.wait(3)
        tell("at rest", calm.end())
        scraped = Waits(broker.system)
        for _ in range(SCRAPES):
            took_s, sent, text = scrape(broker.metrics_port)
            print(f"scrape: {took_s:.2f} s, {sent >> 10} KiB sent, {text >> 10} KiB of text")
            pause.wait(1.2)
        tell("scraped", scraped.end())
        broker.stop(30)


if __name__ == "__main__":
    main()
