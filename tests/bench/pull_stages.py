"""Where a pull's time goes, without the kernel: `python -m tests.bench.pull_stages`.

The actors' own handlers and a store of real files: a connection reads frames from a socket that is
none, PullMessage and ConsumerOffsets get what it tells, and it takes the answers. CPU of this
thread, the best of some rounds; 32 messages a pull, those of 8 queues in turn in the log.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any

from actors.config import BrokerConfig
from actors.engine.address import Address
from actors.engine.inbox import BATCH_END, BatchEnd
from actors.engine.published import Published
from actors.network.connection import Connection
from actors.network.hooks import Hooks
from actors.network.limits import new_limits
from actors.network.sends import Buffer
from actors.network.service import Service
from actors.pulling.held_pulls import HoldTable
from actors.pulling.pull_correction import PullCorrection
from actors.pulling.pull_message import PullMessage
from actors.statistics.pull_stats import PullStats
from actors.tables.consumer_offsets import ConsumerOffsets
from actors.tables.consumer_views import ConsumerView, Subscription
from actors.tables.first_pulls import FirstPulls
from actors.tables.groups import GroupConfigs, GroupFinder
from actors.tables.old_places import OldPlaces
from protocol.bodies import SubscriptionData, SubscriptionGroupConfig, TopicConfig
from protocol.codes import RequestCode, SerializeType
from protocol.frame import decode_frame
from protocol.headers.pull import PullMessageHeader
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.dispatching.dispatch import entry_of
from storage.files.disk import RealDisk
from storage.message_store import MessageStore
from storage.reading.get_message import GetLimits, get_message
from storage.reading.page_probe import PageProbe
from storage.tables.consumer_filters import ConsumerFilters
from tests.bench.pull_path import BATCH, GROUP, PROPERTIES, QUEUES, TOPIC, pull
from tests.support.puts import HOST, append, put

PER_QUEUE = 3200
ROUNDS = 30
MEMORY_BYTES = 16 << 30
NAMES = ("consumer_offsets", "pull_hold", "cold_read", "scrubber", "put_message")


def best_us(work: Callable[[], object], count: int) -> float:
    """µs of this thread for each of the `count` things that `work` does."""
    costs = []
    for _ in range(ROUNDS):
        start = thread_time_ns()
        work()
        costs.append(thread_time_ns() - start)
    return min(costs) / count / 1000


def row(what: str, cost_us: float) -> None:
    sys.stdout.write(f"{what:<44}{cost_us:8.2f} µs\n")


class Socket:
    """Gives what a test puts in, and takes everything."""

    data = b""

    def recv(self, _: int) -> bytes:
        data, self.data = self.data, b""
        return data

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))


class Mail:
    """The mail of all actors, handled when somebody says so."""

    asleep = False

    def __init__(self) -> None:
        self.items: deque[tuple[Address, Any]] = deque()
        self.append = self.items.append

    def wake(self) -> None:
        pass

    def handle(self) -> None:
        while self.items:
            ended: dict[Any, None] = {}
            for _ in range(len(self.items)):
                address, message = self.items.popleft()
                receiver: Any = address.receiver
                receiver.handlers[type(message)](receiver, message)
                if receiver.wants_batch_end:
                    ended[receiver] = None
            for receiver in ended:
                receiver.handlers[BatchEnd](receiver, BATCH_END)


def filled_store(root: str) -> MessageStore:
    """With messages of 8 queues in turn, in its log and its queues' files."""
    config = StoreConfig(
        root=root,
        commit_log_file_bytes=64 << 20,
        consume_queue_file_bytes=6_000_000,
        message_index_enable=False,
    )
    store = MessageStore(config, RealDisk(), SystemClock())
    store.open()
    log = store.commit_log
    log.store_host = HOST
    for number in range(PER_QUEUE):
        records = [
            put(
                b"x" * 128,
                topic=TOPIC,
                queue_id=queue_id,
                queue_offset=number,
                properties=PROPERTIES.encode(),
            )
            for queue_id in range(QUEUES)
        ]
        append(log, records, store.clock.now_ms())
    store.dispatcher.dispatch([entry_of(head, ()) for head in log.walk(0)])
    store.consume_queues.write_out_all()
    return store


class Path:
    """The actors of a pull."""

    def __init__(self, store: MessageStore, limits: GetLimits, probe: PageProbe) -> None:
        self.mail = Mail()
        self.system: Any = SimpleNamespace(
            clock=store.clock, loop=SimpleNamespace(watch=lambda *_: None)
        )
        data = SubscriptionData(TOPIC, "*", sub_version=1)
        view = ConsumerView("CLUSTERING", {TOPIC: Subscription(data, None)})
        topics: Published[Mapping[str, TopicConfig]] = Published({TOPIC: TopicConfig(TOPIC)})
        consumers: Published[Mapping[str, ConsumerView]] = Published({GROUP: view})
        config = BrokerConfig()
        groups: Published[GroupConfigs] = Published({GROUP: SubscriptionGroupConfig(GROUP)})
        offsets = ConsumerOffsets(
            "",
            interval_ms=1,
            starts_in_memory=lambda *_: True,
            offsets=Published({}),
            live_offsets=Published({}),
            config_writer=self.address("config_writer"),
            encoder=self.address("table_encoder"),
            consumers=consumers,
            topics=topics,
            guards=False,
        )
        addresses = {name: self.address(name) for name in NAMES}
        addresses["consumer_offsets"] = self.address("consumer_offsets", offsets)
        pulls = PullMessage(
            store,
            config,
            limits,
            probe,
            topics=topics,
            groups=GroupFinder(groups, self.address("groups"), config),
            consumers=consumers,
            filters=Published(ConsumerFilters(config.bloom)),
            hooks=Hooks(),
            stats=PullStats(),
            held=HoldTable(),
            correction=PullCorrection(
                store.consume_queues,
                broker_name=config.broker_name,
                consumers=consumers,
                offsets=Published({}),
                first_pulls=FirstPulls({}, 0.0),
                old_places=OldPlaces(),
                starts_in_memory=lambda *_: True,
                put_message=addresses["put_message"],
            ),
            addresses=addresses,
        )
        routes = {int(RequestCode.PULL_MESSAGE): self.address("pull_message", pulls)}
        self.socket = Socket()
        service = Service(routes, self.address("sends"))
        peer = ("127.0.0.1", 1)
        sock: Any = self.socket
        shared = new_limits(lambda: 0, lambda: None)
        self.connection = Connection(sock, peer, service, self.address("connections"), shared)
        self.address("connection", self.connection)

    def address(self, name: str, actor: Any = None) -> Address:
        made = Address(name, self.mail, actor)
        if actor is not None:
            actor.system, actor.address = self.system, made
        return made

    def take(self, reads: Sequence[bytes]) -> None:
        for data in reads:
            self.socket.data = data
            self.connection.on_readable()
            self.mail.handle()


def in_kind(kind: SerializeType, path: Path, offsets: Sequence[int]) -> None:
    """Decoding alone, and everything."""
    frames = [pull(kind, queue, each, each) for each in offsets for queue in range(QUEUES)]

    def decode() -> None:
        for frame in frames:
            PullMessageHeader.decode(decode_frame(frame[4:]).fields)

    row(f"decode, {kind.name}", best_us(decode, len(frames)))
    for at_once in (1, QUEUES):
        starts = range(0, len(frames), at_once)
        reads = [b"".join(frames[start : start + at_once]) for start in starts]
        cost = best_us(partial(path.take, reads), len(frames))
        row(f"whole pull, {at_once} at once, {kind.name}", cost)


def main() -> None:
    offsets = range(0, PER_QUEUE, BATCH)
    with TemporaryDirectory() as root:
        store = filled_store(root)
        probe = PageProbe(store.commit_log, MEMORY_BYTES)
        probe.opened_end = 0
        limits = GetLimits.of(store.config, MEMORY_BYTES, correct_offsets=True)
        path = Path(store, limits, probe)
        for kind in SerializeType:
            in_kind(kind, path, offsets)
        queue = store.consume_queues.get(TOPIC, 0)
        log = store.commit_log

        def gets() -> None:
            for offset in offsets:
                get_message(queue, log, offset, BATCH, None, limits, probe=probe)

        row("get_message", best_us(gets, len(offsets)))
        store.close()


if __name__ == "__main__":
    main()
