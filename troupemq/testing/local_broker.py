"""A broker and its name server in this process, for tests of code that uses them."""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from os import W_OK, access
from pathlib import Path
from tempfile import mkdtemp
from threading import Event
from time import monotonic
from typing import Any

import structlog

from actors.broker import Broker
from actors.broker_server import RunningBroker, start_broker
from actors.config import NamesrvConfig, parse_broker_config
from actors.engine.future import Reply
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.namesrv_server import RunningNamesrv, start_namesrv
from protocol.codes import RequestCode, ResponseCode
from protocol.delay_levels import delay_levels_ms
from protocol.topic_names import DLQ_TOPIC_PREFIX
from storage.clock import SystemClock
from storage.files.disk import RealDisk
from troupemq.client.admin import Admin
from troupemq.client.connection.route import route_of
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.listener import Result
from troupemq.client.errors import ClientError, RouteNotFound
from troupemq.client.message import MessageQueue, MessageView
from troupemq.testing.faults import NAME as FAULTS
from troupemq.testing.faults import Faults, interposed
from troupemq.testing.messages import (
    AddFault,
    CutConnections,
    Effect,
    InjectedFault,
    MoveClock,
    SetDiskFull,
)

HOST = "127.0.0.1"
STOP_S = 20.0
QUEUES = 4
"""Queues of a topic that nothing else has created."""
LOOK_S = 0.005
"""Pause between two looks at a topic or a lag."""
COMMIT_MS = 20
"""Interval at which consumers of `consume` commit their offsets."""
SMALL_STORE = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "maxMessageSize": str(4 << 20),
}
LASTING_CONNECTIONS = {"serverChannelMaxIdleTimeSeconds": str(10 * 365 * 86_400)}
"""Without it a broker whose clock is moved would close its connections."""

REQUESTS = {
    "send": (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    ),
    "pull": (RequestCode.PULL_MESSAGE,),
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET,),
    "heartbeat": (RequestCode.HEART_BEAT,),
    "retry": (RequestCode.CONSUMER_SEND_MSG_BACK,),
    "transaction": (RequestCode.END_TRANSACTION,),
}
"""Short names of requests; the names of RequestCode work, too."""

Duration = str | float | timedelta
Handler = Callable[[Sequence[MessageView]], Result]


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


class CollectingConsumer(PushConsumer):
    """Push consumer that keeps the messages it has consumed, and the errors of its handler."""

    def __init__(self, group: str, handler: Handler | None, namesrv: str, orderly: bool) -> None:
        self.received: list[MessageView] = []
        """Messages that were handled without an error, in order."""
        self.errors: list[Exception] = []
        self._handler = handler
        settings = ConsumerSettings(commit_interval_ms=COMMIT_MS)
        super().__init__(
            group,
            self._handle,
            namesrv,
            orderly=orderly,
            begin=ConsumeFrom.FIRST_OFFSET,
            settings=settings,
            instance_name=f"{group}-{next(_numbers)}",
        )

    def _handle(self, messages: Sequence[MessageView]) -> Result:
        try:
            result = None if self._handler is None else self._handler(messages)
        except Exception as error:
            self.errors.append(error)
            raise
        self.received += messages
        return result


class _WarningsOnly(structlog.PrintLogger):
    """Logger of the servers: their lines of lower levels would fill the output of tests."""

    def msg(self, message: str) -> None:
        """Drop a line."""

    debug = info = msg


class _LoggerFactory(structlog.PrintLoggerFactory):
    """Loggers as structlog's own, except those of the servers."""

    def __call__(self, *names: Any) -> structlog.PrintLogger:
        is_ours = any(str(name).partition(".")[0] in _PACKAGES for name in names)
        return _WarningsOnly() if is_ours else super().__call__(*names)


_PACKAGES = {"protocol", "storage", "remoting", "actors", "troupemq"}
_numbers = count(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Log warnings of the servers only, unless this program has configured structlog itself."""
    if structlog.is_configured():
        yield
        return
    factory = _LoggerFactory()
    structlog.configure(logger_factory=factory)
    try:
        yield
    finally:
        if structlog.get_config()["logger_factory"] is factory:
            structlog.reset_defaults()


class LocalBroker:
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
        memory = "/dev/shm"
        parent = memory if access(memory, W_OK) else None
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

    # --- life

    @property
    def namesrv(self) -> str:
        """Address of the name server, for clients."""
        assert self._namesrv is not None, "the broker is not started"
        return f"{HOST}:{self._namesrv.port}"

    @property
    def admin(self) -> Admin:
        """Administration of this broker; closed with it."""
        if self._admin is None:
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
        self._wait_until(self._is_registered, "the broker to register", 5)

    def _is_registered(self) -> bool:
        try:
            return bool(self.admin.masters())
        except RouteNotFound:
            return False

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
        shutil.copytree(self._root, copy, ignore=shutil.ignore_patterns("commitlog", "lock"))
        shutil.copytree(log, copy / "commitlog")
        self._stop_broker()
        shutil.rmtree(self._root)
        self._root = copy
        self._start_broker()

    # --- faults

    def fail(
        self,
        request: str,
        code: str = "SYSTEM_ERROR",
        *,
        times: int | None = None,
        remark: str = "refused by a test",
    ) -> InjectedFault:
        """Refuse requests with a response code, such as SYSTEM_BUSY.

        `request` is a name of REQUESTS, a name of RequestCode, or "all". `times` is the number of
        requests to refuse, None for all until its `is_ended` is set.
        """
        return self._add(
            InjectedFault(
                Effect.REFUSE, _codes(request), times, code=ResponseCode[code], remark=remark
            )
        )

    def lose(
        self, request: str = "all", *, times: int | None = None, answer: bool = False
    ) -> InjectedFault:
        """Let requests never arrive; with `answer` they do, and their answers are lost."""
        effect = Effect.LOSE_ANSWER if answer else Effect.LOSE
        return self._add(InjectedFault(effect, _codes(request), times))

    def slow(self, ms: float, request: str = "all", *, times: int | None = None) -> InjectedFault:
        """Let requests arrive so many milliseconds later."""
        return self._add(InjectedFault(Effect.DELAY, _codes(request), times, delay_ms=ms))

    def cut(self) -> int:
        """Close all connections of clients; return their number."""
        closed: int = self._ask(CutConnections)
        return closed

    def fill_disk(self) -> None:
        """Let the disk look full: sends are refused, and full log files may be deleted."""
        self._set_disk_full(True)

    def free_disk(self) -> None:
        """Let the disk have room again."""
        self._set_disk_full(False)

    def _set_disk_full(self, is_full: bool) -> None:
        self._disk.is_full = is_full
        self._ask(lambda reply: SetDiskFull(is_full, reply))

    def _add(self, fault: InjectedFault) -> InjectedFault:
        self._ask(lambda reply: AddFault(fault, reply))
        return fault

    def _ask(self, make: Callable[[Reply[Any]], object]) -> Any:
        assert self._running is not None, "the broker is not started"
        system = self._running.system
        return system.ask(system.address(FAULTS), make).result(STOP_S)

    # --- time

    def advance(self, duration: Duration) -> None:
        """Move the broker's clock forward: delays, retries and check-backs become due.

        `duration` is a number of seconds, a timedelta, or a text such as "2h" or "1m 30s". Clients
        keep the machine's clock.
        """
        if isinstance(duration, str):
            by_ms = float(sum(delay_levels_ms(duration)))
        elif isinstance(duration, timedelta):
            by_ms = duration.total_seconds() * 1000
        else:
            by_ms = duration * 1000
        self._ask(lambda reply: MoveClock(by_ms, reply))

    # --- what a test looks at

    def consume(
        self,
        topic: str,
        handler: Handler | None = None,
        *,
        group: str | None = None,
        expression: str = "*",
        orderly: bool = False,
    ) -> CollectingConsumer:
        """Start a consumer that keeps what it consumes; it is stopped with the broker.

        `handler` gets the messages first; None consumes all. A missing topic is created. [default
        group: one of its own]
        """
        if not self._queues(topic):
            self.admin.create_topic(topic, QUEUES)
        name = group or f"group-{next(_numbers)}"
        consumer = CollectingConsumer(name, handler, self.namesrv, orderly)
        consumer.subscribe(topic, expression)
        consumer.start()
        self._consumers.append(consumer)
        return consumer

    def messages(self, topic: str) -> list[MessageView]:
        """Return all messages of a topic in the order of their storage; empty without the topic."""
        readers = [self.admin.reader(queue) for queue in self._queues(topic)]
        found = [view for reader in readers for view in reader.messages(*reader.ends())]
        return sorted(found, key=lambda view: view.physical_offset)

    def _queues(self, topic: str) -> Sequence[MessageQueue]:
        try:
            return sorted(route_of(topic, self.admin.route(topic)).subscribe_queues)
        except RouteNotFound:
            return ()

    def dead_letters(self, group: str) -> list[MessageView]:
        """Return the messages that a group has given up."""
        return self.messages(DLQ_TOPIC_PREFIX + group)

    def lag(self, group: str) -> int:
        """Return how many messages a group has not consumed, retries included.

        Raises ClientError for a group without members and offsets.
        """
        lag, seen = 0, set()
        try:
            for each in self.admin.group_progress(group):
                seen.add((each.topic, each.queue_id))
                lag += each.lag
        except ClientError:  # a new group, whose members must be known
            topics: Collection[str] = self.admin.members_of(group).subscription_table
        else:
            topics = self._subscribed(group)
        for topic in topics:
            for queue in self._queues(topic):
                if (topic, queue.queue_id) not in seen:
                    first, end = self.admin.offsets(queue)
                    lag += end - first
        return lag

    def _subscribed(self, group: str) -> Collection[str]:
        try:
            return self.admin.members_of(group).subscription_table
        except ClientError:  # no member is online
            return ()

    def expect(
        self,
        topic: str,
        *,
        body: bytes | str | None = None,
        tags: str | None = None,
        keys: str | None = None,
        times: int = 1,
        within_s: float = 5.0,
    ) -> list[MessageView]:
        """Wait until a topic has `times` messages with these values, and return them.

        Raises AssertionError that lists the messages of the topic.
        """
        wanted = body.encode() if isinstance(body, str) else body

        def found() -> list[MessageView]:
            return [
                each
                for each in self.messages(topic)
                if wanted in (None, each.body)
                and tags in (None, each.tags)
                and (keys is None or keys in each.keys)
            ]

        given = {"body": body, "tags": tags, "keys": keys}
        text = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        what = f"{times} message{'s' if times > 1 else ''} with {text or 'any values'} in {topic}"
        self._wait_until(
            lambda: len(found()) >= times, what, within_s, lambda: _listed(self.messages(topic))
        )
        return found()

    def join(self, group: str, *, within_s: float = 10.0, fail_fast: bool = True) -> None:
        """Wait until a group has consumed everything.

        With `fail_fast` the first error of a handler given to `consume` is raised. Messages that
        wait for a retry do not count: `advance` first. Other consumers commit each 5 s.
        """

        def state() -> str:
            errors = [each.errors for each in self._consumers if each.group == group]
            if fail_fast and any(errors):
                raise next(first for first, *_ in filter(None, errors))
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

        what = f"{times} dead letter{'s' if times > 1 else ''} of {group}"
        self._wait_until(is_done, what, within_s, lambda: _listed(self.dead_letters(group)))
        return self.dead_letters(group)

    @staticmethod
    def _wait_until(
        is_done: Callable[[], bool],
        what: str,
        within_s: float,
        instead: Callable[[], str] = str,
    ) -> None:
        deadline_s, pause = monotonic() + within_s, Event()
        while not is_done():
            if monotonic() > deadline_s:
                found = instead()
                raise AssertionError(
                    f"waited {within_s:g} s for {what}" + (f"; there is: {found}" if found else "")
                )
            pause.wait(LOOK_S)


def _codes(request: str) -> frozenset[int] | None:
    if request == "all":
        return None
    if request in REQUESTS:
        return frozenset(REQUESTS[request])
    try:
        return frozenset((RequestCode[request],))
    except KeyError:
        names = ", ".join(("all", *REQUESTS))
        raise ValueError(f"no request {request!r}: use {names}, or a name of RequestCode") from None


def _listed(messages: Sequence[MessageView]) -> str:
    if not messages:
        return "no message"
    shown = [f"body={each.body!r}, tags={each.tags!r}, keys={each.keys!r}" for each in messages]
    more = f"\n  and {len(shown) - 20} more" if len(shown) > 20 else ""
    return "\n  " + "\n  ".join(shown[:20]) + more


@contextmanager
def running_broker(
    topics: Mapping[str, int] | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[LocalBroker]:
    """Run a broker until the block ends; arguments as in LocalBroker."""
    with _quiet():
        broker = LocalBroker(topics, settings)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()
