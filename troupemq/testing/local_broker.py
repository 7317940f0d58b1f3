"""A broker and its name server in this process, for tests of code that uses them."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from logging import Filter, LogRecord, getLogger
from os import W_OK, access
from pathlib import Path
from tempfile import mkdtemp
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from actors.broker import Broker
from actors.broker_server import RunningBroker, start_broker
from actors.config import NamesrvConfig, parse_broker_config
from actors.engine.actor_address import Reply
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.namesrv_server import RunningNamesrv, start_namesrv
from storage.clock import SystemClock
from storage.files.disk import RealDisk
from troupemq.client import consuming
from troupemq.client.arguments import MS_MAX, check_integer, check_range
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageView
from troupemq.testing.broker_under_test import (
    QUEUES,
    BrokerUnderTest,
    Duration,
    check_tables,
    listed,
    milliseconds,
    not_within,
)
from troupemq.testing.faults import NAME as FAULTS
from troupemq.testing.faults import Faults, interposed
from troupemq.testing.messages import CutConnections, Effect, InjectedFault, MoveClock
from troupemq.testing.quiet import quiet

if TYPE_CHECKING:
    from troupemq.client.admin import Admin
    from troupemq.testing.collecting_consumer import CollectingConsumer, Handler

HOST = "127.0.0.1"
MEMORY = "/dev/shm"
MEMORY_BYTES_MIN = 256 << 20
STOP_S = 20.0
LOOK_S = 0.005
"""Longest pause between two looks at a topic or a lag; the first ones are shorter."""
SMALL_STORE = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "maxMessageSize": str(4 << 20),
}
LASTING_CONNECTIONS = {"serverChannelMaxIdleTimeSeconds": str(10 * 365 * 86_400)}
"""Without it a broker whose clock is moved would close its connections."""


class MovableClock(SystemClock):
    """The machine's clock plus the time that a test has moved it forward."""

    def __init__(self) -> None:
        self._ahead_ms = 0.0

    def move(self, by_ms: float) -> None:
        self._ahead_ms += by_ms

    def now_ms(self) -> int:
        return super().now_ms() + int(self._ahead_ms)

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self._ahead_ms


class FillableDisk(RealDisk):
    """The machine's disk, which a test may let look full."""

    is_full = False

    def usage_ratio(self, path: str) -> float:
        return 1.0 if self.is_full else min(super().usage_ratio(path), 0.5)


_numbers = count(1)


class _ListenerFailures(Filter):
    """Errors of listeners in this process, which their consumers log with the group."""

    def __init__(self) -> None:
        super().__init__()
        self._errors: dict[str, Exception] = {}

    def filter(self, record: LogRecord) -> bool:
        error, fields = getattr(record, "failure", None), getattr(record, "fields", {})
        if isinstance(error, Exception) and "group" in fields:
            self._errors.setdefault(fields["group"], error)
        return True

    def first(self, group: str) -> Exception | None:
        return self._errors.get(group)

    @contextmanager
    def watching(self) -> Iterator[None]:
        names = ("consume", "consume_orderly")
        loggers = [getLogger(f"{consuming.__name__}.{each}") for each in names]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(self)


def _copy_unless_gone(source: str, target: str) -> None:
    """Copy a file; the broker may rename or remove it at this moment."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _has_room_in_memory() -> bool:
    """Return whether a store may be in memory: that of a container may hold but a few of them."""
    return access(MEMORY, W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN


class LocalBroker(BrokerUnderTest):
    """A name server and a broker on free ports of this machine, with a store that is removed.

        with running_broker(topics={"Orders": 4}) as broker:
            with Producer("shop", broker.namesrv) as producer:
                producer.send(Message("Orders", b"new"))
            broker.expect("Orders", body=b"new")

    Methods are for one thread at a time. `start` and `stop` are called by `running_broker`.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Create a broker, which is not started.

        * `topics`: queues of each topic. Other topics are made by the first send.
        * `settings`: of the broker, by the names of broker.conf.
        """
        check_tables(topics, settings)  # before the folder is made
        parent = MEMORY if _has_room_in_memory() else None
        self.folder = Path(mkdtemp(prefix="troupemq-", dir=parent))
        self.topics = dict(topics or {})
        self._settings = dict(settings or {})
        self._clock, self._disk = MovableClock(), FillableDisk()
        self._namesrv: RunningNamesrv | None = None
        self._running: RunningBroker | None = None
        self._root, self._port = self.folder / "store", 0
        self._generation = count(1)
        self._admin: Admin | None = None
        self._consumers: list[CollectingConsumer] = []
        self.listener_failures = _ListenerFailures()

    # --- life

    @property
    def namesrv(self) -> str:
        """Address of the name server, for clients."""
        assert self._namesrv is not None, "the broker is not started"
        return f"{HOST}:{self._namesrv.port}"

    @property
    def admin(self) -> "Admin":
        """Administration of this broker; closed with it."""
        if self._admin is None:
            from troupemq.client.admin import Admin  # a tenth of the modules

            self._admin = Admin(self.namesrv)
        return self._admin

    def start(self) -> None:
        """Start the name server and the broker, and create the topics."""
        if self._namesrv is None:
            config = NamesrvConfig(
                bind_address=HOST, listen_port=0, kv_config_path=str(self.folder / "kv.json")
            )
            self._namesrv = start_namesrv(config, system=ActorSystem.real(disk=RealDisk()))
        self._start_broker()
        for topic, queues in self.topics.items():
            self.admin.create_topic(topic, queues)

    def _start_broker(self) -> None:
        settings = {
            **SMALL_STORE,
            "brokerName": "broker-a",
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            "bindAddress": HOST,
            **self._settings,
            **LASTING_CONNECTIONS,
            "namesrvAddr": self.namesrv,
            "listenPort": str(self._port),
            "storePathRootDir": str(self._root),
            "storePathCommitLog": str(self._root / "commitlog"),
        }
        config, store, _ = parse_broker_config("", settings)
        system = ActorSystem.real(disk=self._disk, clock=self._clock)
        faults = system.address(FAULTS)

        def made(broker: Broker) -> Sequence[ChildSpec]:
            service = broker.service()
            routes, sends_to = service.routes, system.address("put_message")
            return [ChildSpec(FAULTS, lambda _: Faults(routes, sends_to, self._clock.move))]

        try:
            self._running = start_broker(
                config,
                store,
                system=system,
                make_more=made,
                through=lambda service: interposed(service, faults),
            )
        except BaseException:
            system.stop(STOP_S)
            raise
        self._port = self._running.ports.main
        registered = self._running.broker.attachment.registered
        self._wait_until(lambda: registered.value > 0, "the broker to register", 5)

    def stop(self) -> None:
        """Stop consumers of `consume`, broker and name server, and remove the store.

        Raises AssertionError if something was left running.
        """
        try:
            for consumer in self._consumers:
                consumer.stop()
            self._consumers.clear()
            if self._admin is not None:
                self._admin.close()
                self._admin = None
            clean = self._stop_broker()
            if self._namesrv is not None:
                clean &= self._namesrv.stop(STOP_S)
                self._namesrv = None
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        assert clean, "the broker did not stop cleanly: its log says why"

    def _stop_broker(self) -> bool:
        running, self._running = self._running, None
        if running is None:
            return True
        system = running.system
        stopped = running.stop(STOP_S)
        left = [actor.name for actor in system.live]
        assert not left, f"actors left behind: {left}"
        return stopped

    def restart(self) -> None:
        """Stop the broker cleanly and start it again, on the same port and store."""
        assert self._stop_broker(), "the broker did not stop cleanly: its log says why"
        self._start_broker()

    def kill(self) -> None:
        """End the broker as kill -9 does, and start it again on the same port.

        From one moment on no request is answered. The next start finds the files as they were then,
        and recovers them.
        """
        self._add(InjectedFault(Effect.LOSE, None))
        self.cut()
        copy = self.folder / f"store-{next(self._generation)}"
        # The log last: what refers to it may never be newer.
        log = self._root / "commitlog"
        shutil.copytree(
            self._root,
            copy,
            ignore=shutil.ignore_patterns("commitlog", "lock"),
            copy_function=_copy_unless_gone,
        )
        shutil.copytree(log, copy / "commitlog")
        self._stop_broker()
        shutil.rmtree(self._root)
        self._root = copy
        self._start_broker()

    # --- faults

    def cut(self) -> int:
        closed: int = self._ask(CutConnections)
        return closed

    def _set_disk_full(self, is_full: bool) -> None:
        self._disk.is_full = is_full
        super()._set_disk_full(is_full)

    def _ask(self, make: Callable[[Reply[Any]], object]) -> Any:
        assert self._running is not None, "the broker is not started"
        system = self._running.system
        return system.ask(system.address(FAULTS), make).result(STOP_S)

    # --- time

    def advance(self, duration: Duration) -> None:
        """Move the broker's clock forward: delays, retries, leases and check-backs become due.

        `duration` is a number of seconds, a timedelta, or a text such as "2h" or "1m 30s". Clients
        keep the machine's clock.
        """
        by_ms = milliseconds(duration)
        self._ask(lambda reply: MoveClock(by_ms, reply))

    # --- consumers

    def consume(
        self,
        topic: str,
        handler: "Handler | None" = None,
        *,
        group: str | None = None,
        expression: str = "*",
        orderly: bool = False,
    ) -> "CollectingConsumer":
        """Start a consumer that keeps what it consumes; it is stopped with the broker.

        `handler` gets the messages first; None consumes all. A missing topic is created. [default
        group: one of its own]
        """
        from troupemq.testing.collecting_consumer import CollectingConsumer

        if not self.queues(topic):
            self.admin.create_topic(topic, QUEUES)
        name = group or f"group-{next(_numbers)}"
        consumer = CollectingConsumer(name, handler, self.namesrv, orderly)
        consumer.subscribe(topic, expression)
        self._consumers.append(consumer)  # a failed start opens connections, too
        consumer.start()
        return consumer

    def join(self, group: str, *, within_s: float = 10.0, fail_fast: bool = True) -> None:
        """Wait until a group has consumed everything.

        With `fail_fast` the first error of a listener of the group in this process is raised.
        Messages that wait for a retry do not count: `advance` first. Consumers that `consume` has
        not started commit each 5 s.
        """

        def state() -> str:
            if fail_fast and (error := self.listener_failures.first(group)) is not None:
                raise error
            return self._pending(group)

        self._wait_until(lambda: not state(), f"{group} to consume everything", within_s, state)

    def _pending(self, group: str) -> str:
        """Return what a group has to consume yet, in words; empty if it has consumed everything."""
        try:
            lag = self.lag(group)
        except ClientError as error:
            return str(error)
        return f"a lag of {lag}" if lag else ""

    def expect_dead_letters(
        self, group: str, times: int = 1, *, within_s: float = 10.0
    ) -> list[MessageView]:
        """Move the clock until a group has given up so many messages, and return them.

        Each retry waits for at most two hours of the broker's clock.
        """

        def is_done() -> bool:
            if len(self.dead_letters(group)) >= times:
                return True
            if not self._pending(group):  # all waits for its time
                self.advance("2h")
            return False

        check_integer(times, 1, MS_MAX, "times")
        what = f"{times} dead letter{'s' if times > 1 else ''} of {group}"
        self._wait_until(is_done, what, within_s, lambda: listed(self.dead_letters(group)))
        return self.dead_letters(group)

    def _wait_until(
        self,
        is_done: Callable[[], bool],
        what: str,
        within_s: float,
        instead: Callable[[], str] = str,
    ) -> None:
        check_range(within_s, 0, MS_MAX, "within_s")
        deadline_s, pause, look_s = monotonic() + within_s, Event(), LOOK_S / 32
        while not is_done():
            if monotonic() > deadline_s:
                raise not_within(what, within_s, instead())
            pause.wait(look_s)
            look_s = min(2 * look_s, LOOK_S)


@contextmanager
def running_broker(
    topics: Mapping[str, int] | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[LocalBroker]:
    """Run a broker until the block ends; arguments as in LocalBroker."""
    with quiet():
        broker = LocalBroker(topics, settings)
        try:
            with broker.listener_failures.watching():
                broker.start()
                yield broker
        finally:
            broker.stop()
