"""A simulated broker for coroutines with clients of `troupemq.aio`: seeded, in virtual time.

    with simulated(seed=7, topics={"Orders": 4}) as broker:

        async def main():
            async with aio.Producer("shop", broker.namesrv) as producer:
                await producer.send(Message("Orders", b"reminder", delay_level=18))
            await asyncio.sleep(7200)  # takes no time

        broker.run(main())
        broker.expect("Orders", body=b"reminder")

The same seed gives the same order of all events. Another seed gives another order that is possible
with real servers, too.

LocalClient sends requests to a broker without a socket:

    client = LocalClient(system, service)
    answer = client.request(RemotingCommand(RequestCode.GET_MAX_OFFSET, {...}))

It speaks to the actors exactly as a connection does, only that its requests come as values. Under
simulation `request` winds the system until the answer is there.
"""

import asyncio
import random as machine_random
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from random import Random
from threading import Event
from typing import Any, TypeVar

from actors.access.authorizer import Authorizer
from actors.broker import Broker
from actors.config import NamesrvConfig, parse_broker_config
from actors.engine.actor_address import Reply
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.namesrv_server import children as namesrv_children
from actors.namesrv_server import service as namesrv_service
from actors.naming.messages import Listening
from actors.naming.namesrv_link import NamesrvLink
from actors.naming.registration import Registration
from actors.network.connection import peer_ids
from actors.network.messages import Buffer, PeerClosed, Request, Sends
from actors.network.request import Service, admitted
from actors.parts import Ports
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand, encode
from protocol.host import pack_host
from protocol.send_values import send_of
from protocol.send_wire import SEND_CODES
from protocol.stream import CommandStream
from remoting.sync_connection import RemotingFailed
from troupemq import aio
from troupemq import client as client_package
from troupemq.client.admin import Admin
from troupemq.client.arguments import MS_MAX, check_range
from troupemq.client.connection import client as client_module
from troupemq.client.connection.client import Client
from troupemq.client.connection.pending import Waiting
from troupemq.client.connection.remoting import Remoting
from troupemq.client.connection.route import Routes
from troupemq.client.errors import ConnectionFailed, RequestTimeout
from troupemq.testing.broker_under_test import (
    BrokerUnderTest,
    Duration,
    check_tables,
    milliseconds,
    not_within,
)
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.faults import NAME as FAULTS
from troupemq.testing.faults import Faults, interposed
from troupemq.testing.quiet import quiet
from troupemq.testing.simulation import SimulatedSystem
from troupemq.testing.virtual_loop import VirtualLoop, VirtualTransport, virtual_clock

_opaques = count(1)


class LocalClient:
    """A peer in this process. May be used from one thread, not the loop."""

    def __init__(
        self, system: ActorSystem, service: Service, *, host: str = "127.0.0.1", port: int = 1
    ) -> None:
        self.peer_id = next(peer_ids)
        self.remote = f"{host}:{port}"
        self.host = pack_host(host, port)
        self.is_fast = service.is_fast
        self.is_open = True
        self.received: list[RemotingCommand] = []
        """Requests that the broker sent to this client (notices)."""
        self.failures = 0

        self._system = system
        self._service = service
        self._gate = None if service.guard is None else Authorizer(service.guard, host)
        self._waiting: dict[int, Callable[[RemotingCommand], None]] = {}

    # --- the peer's side

    def note_failure(self) -> None:
        self.failures += 1

    def send(self, command: RemotingCommand) -> None:
        """Take one answer or request of the broker."""
        self.write((encode(command),))

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        """Take frames as a connection would send them; a pull's body comes in pieces."""
        for command in CommandStream().receive(b"".join(frames)):
            if command.is_response:
                taken = self._waiting.pop(command.opaque, None)
                if taken is not None:
                    taken(command)
            else:
                self.received.append(command)

    # --- the caller's side

    def start(
        self, command: RemotingCommand, taken: Callable[[RemotingCommand], None] | None = None
    ) -> None:
        """Send one request; `taken` is called with its answer."""
        command.opaque = next(_opaques)
        if taken is not None:
            self._waiting[command.opaque] = taken
        self.deliver(command)

    def deliver(self, command: RemotingCommand) -> None:
        """Pass a request with its opaque, or an answer, to the actors, as a connection does."""
        sends_to = self._service.sends_to
        if command.code not in SEND_CODES or sends_to is None:
            self._service.pass_on(command, self, gate=self._gate)
            return
        try:
            sends = [send_of(command)]
            if self._gate is None or (sends := admitted(self._gate, self, sends)):
                sends_to.tell(Sends(self, sends, 0))
        except RemoteError as error:
            Request(command, self).answer(error.code, remark=error.remark)

    def request(self, command: RemotingCommand, timeout_s: float = 5.0) -> RemotingCommand:
        """Send one request and wait for its answer. Raises TimeoutError."""
        answers: list[RemotingCommand] = []
        arrived = Event()

        def take(answer: RemotingCommand) -> None:
            answers.append(answer)
            arrived.set()

        self.start(command, take)
        seed = ""
        if not isinstance(self._system, SimulatedSystem):
            arrived.wait(timeout_s)
        else:
            try:
                self._system.run_until(arrived.is_set, timeout_s * 1000)
            except TimeoutError as error:
                seed = f": {error}"
        if not answers:
            raise TimeoutError(f"no answer to request {command.code} within {timeout_s} s{seed}")
        return answers[0]

    def reply(self, answer: RemotingCommand) -> None:
        """Answer a request of the broker, one of `received`."""
        self._service.pass_on(answer, self)

    def close(self) -> None:
        """Close the connection at the broker."""
        self.is_open = False
        for address in self._service.tell_closed:
            address.tell(PeerClosed(self))


Value = TypeVar("Value")

HOST = "127.0.0.1"
NAMESRV = f"{HOST}:9876"
PORTS = Ports(10911, 10909, 10912)
BROKER = f"{HOST}:{PORTS.main}"
ROOT = "/store"
START_MS = 1_700_000_000_000
STOP_S = 60.0
LOOK_MS = 5.0
REQUEST_S = 30.0
"""Virtual time that a request of a check may take."""
SMALL_STORE = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "64",
    "maxIndexNum": "200",
    "maxMessageSize": str(512 << 10),
}


class _Line(LocalClient):
    """Server's end of a client's connection."""

    transport: VirtualTransport

    def write(self, frames: Sequence[Buffer], released_bytes: int = 0) -> None:
        self.transport.came(b"".join(frames))


class _NameServer:
    """The name server: a system of its own, which runs when a request reaches it."""

    def __init__(self, seed: int, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.system = SimulatedSystem(seed, FakeDisk(), START_MS)
        config = NamesrvConfig(kv_config_path="/kv.json", config_store_path="/n.properties")
        self.service = namesrv_service(self.system, config)
        specs = namesrv_children(self.system, config, [])
        self.system.start(*(each for each in specs if each.name != "namesrv_acceptor"))
        self._client = LocalClient(self.system, self.service)

    def catch_up(self) -> None:
        """Let its time pass up to the broker's, and finish its work."""
        self.system.advance(max(0, self._now_ms() - self.system.clock.now_ms()))

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self.catch_up()
        return self._client.request(command, REQUEST_S)

    def tell(self, command: RemotingCommand) -> None:
        self._client.start(command)
        self.catch_up()


class _Link:
    """Connection of the broker to the name server, for NamesrvLink."""

    connection_count = 1

    def __init__(self, names: _NameServer, address: str) -> None:
        self._names, self.address = names, address

    def is_connected(self) -> bool:
        return True

    def call(
        self,
        request: RemotingCommand,
        *,
        timeout_ms: int | None = None,
        repeats: bool = False,
        over: int | None = None,
    ) -> RemotingCommand:
        try:
            return self._names.ask(request)
        except TimeoutError as error:
            raise RemotingFailed(self.address, str(error)) from None

    def send(self, request: RemotingCommand, *, timeout_ms: int | None = None) -> None:
        self._names.tell(request)

    def close(self) -> None:
        """Do nothing: there is no socket."""


class _InlineRemoting(Remoting):
    """Calls of an Admin, during which the servers run."""

    _ask_of: Callable[[str, RemotingCommand, float], RemotingCommand]

    def call_for(
        self, waiting: Waiting, address: str, command: RemotingCommand, timeout_ms: float
    ) -> None:
        try:
            waiting.set_result(self._ask_of(address, command, timeout_ms))
        except (ConnectionFailed, RequestTimeout) as error:
            waiting.set_exception(error)


class _InlineAdmin(Admin):
    def __init__(self, ask: Callable[[str, RemotingCommand, float], RemotingCommand]) -> None:
        super().__init__(NAMESRV)
        made: Client = self._client
        made.remoting = remoting = _InlineRemoting(made.on_request)
        remoting._ask_of = ask
        made.routes = Routes(remoting, made.addresses, made.named_by)


class VirtualBroker(BrokerUnderTest):
    """A name server and a broker in memory, on the clock of the coroutines that `run` runs.

    Made by `simulated`. Checks and faults are those of LocalBroker. A check inside of a coroutine
    looks once and does not wait: `await asyncio.sleep(…)` before it.
    """

    def __init__(
        self,
        seed: int,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Start a broker; arguments as in `simulated`."""
        check_tables(topics, settings)
        self.seed = seed
        self.disk = FakeDisk()
        self._random = Random(seed)
        self._before_ms = 0.0
        self._client_ports = count(40_000)
        self._lines: list[_Line] = []
        values = {
            **SMALL_STORE,
            "brokerName": "broker-a",
            "brokerIP1": HOST,
            "brokerIP2": HOST,
            **(settings or {}),
            "namesrvAddr": NAMESRV,
            "storePathRootDir": ROOT,
            "storePathCommitLog": f"{ROOT}/commitlog",
        }
        self._config, self._store, _ = parse_broker_config("", values)
        self._start_ms = START_MS
        self._names = _NameServer(self._random.randrange(1 << 30), lambda: self.now_ms)
        self._start()
        self._loop = VirtualLoop(self, self._random)
        self._admin = _InlineAdmin(self._asked)
        try:
            for topic, queues in (topics or {}).items():
                self._admin.create_topic(topic, queues)
        except BaseException:
            self.stop()
            raise

    def __repr__(self) -> str:
        return f"<VirtualBroker seed={self.seed} at {self.now_s():.3f} s>"

    @property
    def namesrv(self) -> str:
        return NAMESRV

    @property
    def admin(self) -> Admin:
        return self._admin

    # --- life

    def _start(self) -> None:
        self._system = system = SimulatedSystem(
            self._random.randrange(1 << 30), self.disk, self._start_ms
        )
        broker = self._broker = Broker(
            system, self._config, self._store, ports=PORTS, random=Random(self.seed)
        )
        address = system.address
        self._service = interposed(broker.service(), address(FAULTS))
        routes, sends_to = broker.service().routes, address("put_message")
        self._client = LocalClient(system, self._service, port=1)
        system.start(
            *broker.children(),
            ChildSpec(FAULTS, lambda _: Faults(routes, sends_to, lambda _: None)),
            ChildSpec("name_server_link", lambda _: self._link(broker)),
            ChildSpec("registration", lambda _: self._registration(broker)),
        )
        system.run_until(lambda: broker.attachment.registered.value == 1)

    def _link(self, broker: Broker) -> NamesrvLink:
        address = self._system.address
        address("name_server_link").tell(Listening(PORTS.main, PORTS.ha))
        return NamesrvLink(
            broker.config,
            NAMESRV,
            table=broker.tables.topic_table,
            registration=address("registration"),
            connect=partial(_Link, self._names),
        )

    def _registration(self, broker: Broker) -> Registration:
        address = self._system.address
        return Registration(
            broker.config,
            links=[address("name_server_link")],
            leaving=SnapshotRef(False),
            registered=broker.attachment.registered,
            addresses={name: address(name) for name in ("topics", "ha_slave", "slave_sync")},
        )

    def stop(self) -> None:
        """End the tasks of clients, the broker and the name server.

        Raises AssertionError if something was left running.
        """
        try:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=STOP_S))
            assert not left, f"tasks left behind: {[task.get_coro() for task in left]}"
        finally:
            self._loop.close()
            self._admin.close()
            clean = self._system.stop(STOP_S)
            self._broker.close()
            clean &= self._names.system.stop(STOP_S)
        assert clean, "the broker did not stop cleanly: its log says why"

    def _leave(self) -> None:
        self._start_ms = self.now_ms
        self._before_ms += self._system.clock.monotonic_ms()

    def restart(self) -> None:
        """Stop the broker cleanly and start it again on its disk."""
        self.cut()
        assert self._system.stop(STOP_S), "the broker did not stop cleanly: its log says why"
        self._broker.close()
        self._leave()
        self._start()

    def kill(self) -> None:
        """End the broker as kill -9 does, and start it again on its disk."""
        self._crash(self.disk.killed())

    def cut_power(self) -> None:
        """Cut the power of the broker's machine: unsynced data survives or not, by the seed."""
        self._crash(self.disk.crashed(self._random.randrange(1 << 30)))

    def _crash(self, disk: FakeDisk) -> None:
        self.disk = disk
        self._leave()
        lines, self._lines = self._lines, []
        self._system.crash()
        self._broker.store.abandon()
        for line in lines:
            line.transport.lose(ConnectionResetError("the broker was killed by a test"))
        self._start()

    # --- coroutines

    def run(self, main: Coroutine[Any, Any, Value], *, within: Duration = "1d") -> Value:
        """Run a coroutine and return its result. Raises TimeoutError after virtual `within`.

        `within` is a number of seconds, a timedelta, or a text such as "2h".
        """

        async def limited() -> Value:
            async with asyncio.timeout(milliseconds(within, float("inf")) / 1000):
                return await main

        try:
            return self._loop.run_until_complete(limited())
        except BaseException as error:
            error.add_note(f"{self!r}")
            raise

    def advance(self, duration: Duration) -> None:
        """Let virtual time pass between two calls of `run`; within one, `await asyncio.sleep`."""
        self.run(asyncio.sleep(milliseconds(duration) / 1000), within=float("inf"))

    @property
    def now_ms(self) -> int:
        """Virtual wall clock, in ms since 1970."""
        return self._system.clock.now_ms()

    def now_s(self) -> float:
        """Return the virtual seconds since the start."""
        return (self._before_ms + self._system.clock.monotonic_ms()) / 1000

    def now_ns(self) -> int:
        return self.now_ms * 1_000_000

    def step(self) -> bool:
        """Let the servers do one piece of work; return False without any."""
        return self._system.loop.step()

    def run_until(self, predicate: Callable[[], bool], limit_ms: float) -> bool:
        """Let the servers run, at most `limit_ms`; return whether the predicate holds."""
        try:
            self._system.run_until(predicate, limit_ms)
        except TimeoutError:
            return False
        return True

    # --- connections

    def connected(self, address: str, transport: VirtualTransport) -> "_Line":
        """Return the server's end of a new connection. Raises ConnectionRefusedError."""
        if address == NAMESRV:
            line: _Line = _NameLine(self._names, next(self._client_ports))
        elif address == BROKER:
            line = _Line(self._system, self._service, port=next(self._client_ports))
            self._lines.append(line)
        else:
            raise ConnectionRefusedError(f"no simulated server at {address}")
        line.transport = transport
        return line

    def cut(self) -> int:
        lines, self._lines = self._lines, []
        for line in lines:
            line.close()
            line.transport.lose(ConnectionResetError("cut by a test"))
        return len(lines)

    def _asked(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        if address == NAMESRV:
            return self._names.ask(command)
        if address != BROKER:
            raise ConnectionFailed(f"{address}: no simulated server")
        try:
            return self._client.request(command, REQUEST_S)
        except TimeoutError as error:
            raise RequestTimeout(str(error)) from None

    def _ask(self, make: Callable[[Reply[Any]], object]) -> Any:
        return self._system.ask(self._system.address(FAULTS), make).result(STOP_S)

    def _wait_until(
        self,
        is_done: Callable[[], bool],
        what: str,
        within_s: float,
        instead: Callable[[], str] = str,
    ) -> None:
        check_range(within_s, 0, MS_MAX, "within_s")
        can_wait = not self._loop.is_running()
        deadline_s = self.now_s() + within_s
        self._system.drain()
        while not is_done():
            if not can_wait or self.now_s() > deadline_s:
                raise not_within(what, within_s if can_wait else 0, instead())
            self.advance(LOOK_MS / 1000)


class _NameLine(_Line):
    def __init__(self, names: _NameServer, port: int) -> None:
        super().__init__(names.system, names.service, port=port)
        self._names = names

    def deliver(self, command: RemotingCommand) -> None:
        super().deliver(command)
        self._names.catch_up()


@contextmanager
def simulated(
    seed: int,
    topics: Mapping[str, int] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[VirtualBroker]:
    """Run a simulated broker until the block ends; one at a time in a process.

    * `seed`: of the order of all events, and of `random` while the block runs.
    * `topics`: queues of each topic. Other topics are made by the first send.
    * `settings`: of the broker, by the names of broker.conf.
    """
    state, numbers = machine_random.getstate(), client_module._instances
    machine_random.seed(seed)
    client_module._instances = count(1)  # numbers of clients decide who consumes which queue
    try:
        with quiet():
            broker = VirtualBroker(seed, topics, settings)
            for name in aio.__all__:  # its modules are loaded at first use, which must be now
                getattr(aio, name)
            try:
                with virtual_clock(broker, client_package.__name__):
                    yield broker
            finally:
                broker.stop()
    finally:
        machine_random.setstate(state)
        client_module._instances = numbers
