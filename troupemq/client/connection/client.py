"""Connections, routes and heartbeats of one producer or consumer."""

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import count
from random import getrandbits
from socket import AF_INET, AF_INET6, SOCK_DGRAM, getaddrinfo, inet_pton, socket
from threading import Event, Lock, RLock
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Protocol, assert_never

from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import UnregisterClientHeader
from protocol.message_id import UniqueIds
from protocol.signature import Credentials
from remoting.tls_options import Tls, tls_of_environment
from troupemq.client.arguments import check_flag, check_instance
from troupemq.client.connection.calls import (
    Blocking,
    Call,
    Calls,
    Flow,
    FlowTasks,
    InTurn,
    LookUpRoute,
    Value,
    WaitFor,
    Wanted,
    drive,
)
from troupemq.client.connection.connection import split_address
from troupemq.client.connection.pending import Answer, Waiting
from troupemq.client.connection.remoting import Remoting, check_success
from troupemq.client.connection.route import RouteCache, Routes, named_by, namesrv_addresses
from troupemq.client.connection.task_thread import Tasks, TaskThread
from troupemq.client.errors import ArgumentIllegal, ClientClosed, ClientError
from troupemq.client.log import client_logger

if TYPE_CHECKING:
    from ssl import SSLContext

log = client_logger(__name__)

HEARTBEAT_INTERVAL_MS = 30_000
ROUTE_INTERVAL_MS = 30_000
HEARTBEAT_TIMEOUT_MS = 3000
HEARTBEATS_MAX = 100
"""Brokers that get a heartbeat at once, of the up to 20,000 of a route; then the next ones."""

REFRESH_DELAY_MS = 20
"""Many sends fail together when a broker stops; one route look-up serves them all."""

REPORT_CODES = frozenset(
    (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
)
"""Requests that take a millisecond and more, where all answers arrive."""
REPORTS_OF_SECOND_MAX = 50
"""Answered ones in a second; an operator's tools ask once for each page or command."""
REFUSALS_OF_SECOND_MAX = 20
"""Refused requests of brokers that are logged in a second."""
TOO_MANY_REPORTS = "this client was asked too often: ask again in a second"

RequestHandler = Callable[[RemotingCommand], RemotingCommand | Answer | None]
"""Handler of a broker's request, on the I/O thread; if it would block, it returns a future."""

_instances = count(1)
_ids_lock = Lock()
_ids: dict[str, UniqueIds] = {}
_SEED = getrandbits(32)
_VARIABLES = "TROUPEMQ_"
"""Begin of the names of the client's variables."""


def now_ms() -> int:
    """Return the wall clock in ms since 1970."""
    return time_ns() // 1_000_000


def local_ip(toward: str) -> str:
    """Return this machine's address on the route to `toward`, without sending a packet."""
    try:
        found = getaddrinfo(*split_address(toward), type=SOCK_DGRAM)
    except (OSError, UnicodeError):  # unknown, or longer than any host name
        found = []
    for family, _, _, _, target in sorted(found, key=lambda each: each[0] != AF_INET):
        try:
            with socket(family, SOCK_DGRAM) as probe:
                probe.connect(target)
                ip: str = probe.getsockname()[0]
                return ip.partition("%")[0]
        except OSError:  # a network that is down
            continue
    return "127.0.0.1"


def next_message_id(ip: str) -> str:
    """Return a new UNIQ_KEY, from one counter per process: ids of two processes differ by pid."""
    with _ids_lock:
        ids = _ids.get(ip)
        if ids is None:
            packed = inet_pton(AF_INET6 if ":" in ip else AF_INET, ip)
            ids = _ids[ip] = UniqueIds(packed, os.getpid(), _SEED, now_ms)
        return ids.next()


def _forget_ids() -> None:
    """In a forked child: begin ids of its own; another thread may have held the lock."""
    global _ids_lock
    _ids_lock = Lock()
    _ids.clear()


os.register_at_fork(after_in_child=_forget_ids)


def unregister_command(header: UnregisterClientHeader) -> RemotingCommand:
    return RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode())


def credentials_of_environment() -> Credentials | None:
    """Return the account that the environment names, or None.

    TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY, with TROUPEMQ_SECURITY_TOKEN, have precedence over
    the file that TROUPEMQ_ACL_FILE names. Raises ArgumentIllegal for one of the two keys without
    the other, and for an unreadable file.
    """
    if not any(name.startswith(_VARIABLES) for name in os.environ):
        return None  # as nearly always, and without an import
    from storage.access.account import account_of_environment
    from storage.errors import StoreError

    try:
        return account_of_environment(os.environ)
    except StoreError as error:
        raise ArgumentIllegal(str(error)) from None


def _check_account(credentials: Credentials | None) -> None:
    if credentials is None:
        return
    if not isinstance(credentials, Credentials):  # do not show the value: it may be a secret
        given = type(credentials).__name__
        raise ArgumentIllegal(
            f"credentials are Credentials(access_key, secret_key), you gave {given}"
        )


def _context_of(tls: Tls | None) -> "SSLContext | None":
    if tls is None:
        return None
    check_flag(tls.checks_server, "checks_server")  # another false value would check nothing
    for each in fields(tls):
        if isinstance(each.default, str):
            check_instance(getattr(tls, each.name), str, f"{each.name} of Tls is a string")
    from remoting.tls import TlsUnusable  # loads OpenSSL

    try:
        return tls.context()
    except TlsUnusable as error:
        raise ArgumentIllegal(f"TLS: {error}") from None


class _PerSecond:
    """A limit of events in a second, on one thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._second, self._count = 0.0, 0

    def takes(self) -> bool:
        """Count an event; return whether it is within the limit."""
        second = monotonic() // 1
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._most


class ClientSends(Protocol):
    """The parts of a client's connections that do not wait for an answer."""

    on_lost: Callable[[str], None]

    def call_for(
        self, waiting: Waiting, address: str, command: RemotingCommand, timeout_ms: float
    ) -> None: ...

    def oneway(self, address: str, command: RemotingCommand) -> None: ...

    def is_connected(self, address: str) -> bool: ...


class ClientCore:
    """One client as brokers see it: its id, its groups and its requests, without connections."""

    remoting: ClientSends
    routes: RouteCache
    housekeeping: Tasks
    flows: FlowTasks
    """Runner of flows one by one, such as rebalances and commits."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None,
        instance_name: str | None,
        credentials: Credentials | None,
        tls: Tls | None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, such as unusable files of `tls`."""
        _check_account(credentials)
        if tls is not None:
            check_instance(tls, Tls, "tls is a Tls(...), Tls() for this machine's certificates")
        if instance_name is not None:
            check_instance(instance_name, str, "instance_name is a string")
        addresses = namesrv_addresses(namesrv)
        self.namesrvs = frozenset(addresses)
        self.addresses = addresses
        self.named_by = named_by(namesrv)
        self.credentials = credentials or credentials_of_environment()
        self.tls_context = _context_of(tls or tls_of_environment())
        self.instance_name = instance_name or f"{os.getpid()}#{next(_instances)}"
        self.ip = ""
        self.serves: dict[int, RequestHandler] = {}
        """Handlers by request code; other requests are answered as not supported."""

        self.asked_by = ""
        """Address of the broker that sent the current request; valid while its handler runs."""

        self.topics: Callable[[], Sequence[str]] = tuple
        """Return topics to look up in each refresh, besides those with a known route."""

        self.consumer_data: Callable[[], list[ConsumerData]] = list
        self.producer_groups: list[str] = []
        self._to_refresh: set[str] = set()
        self._lock = Lock()
        self._reports = _PerSecond(REPORTS_OF_SECOND_MAX)
        self._refusals = _PerSecond(REFUSALS_OF_SECOND_MAX)

    @property
    def id(self) -> str:
        return f"{self.ip}@{self.instance_name}"

    def heartbeat_command(self) -> RemotingCommand:
        data = HeartbeatData(
            self.id,
            [ProducerData(group) for group in self.producer_groups],
            self.consumer_data(),
        )
        return RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())

    def heartbeating(self, addresses: Sequence[str] | None = None) -> Flow[None]:
        """Send a heartbeat with groups and subscriptions to brokers; a failure is logged.

        `addresses`: [default: every broker, also slaves if the client consumes]
        """
        if addresses is None:
            addresses = self.routes.all_addresses(masters_only=not self.consumer_data())
        code, body = RequestCode.HEART_BEAT, self.heartbeat_command().body
        for start in range(0, len(addresses), HEARTBEATS_MAX):
            some = addresses[start : start + HEARTBEATS_MAX]
            commands = [RemotingCommand(code, body=body) for _ in some]
            answers = yield Calls(
                [Call(*each, HEARTBEAT_TIMEOUT_MS) for each in zip(some, commands, strict=True)]
            )
            for address, answer in zip(some, answers, strict=True):
                if isinstance(answer, ClientError) and not isinstance(answer, ClientClosed):
                    log.warning("heartbeat failed", address=address, error=str(answer))

    def goodbyes(self) -> list[UnregisterClientHeader]:
        """Return the requests that a stopping client sends to each broker."""
        return [
            *(UnregisterClientHeader(self.id, group) for group in self.producer_groups),
            *(
                UnregisterClientHeader(self.id, consumer_group=data.group_name)
                for data in self.consumer_data()
            ),
        ]

    def greeting(self, address: str) -> RemotingCommand | None:
        """Return a heartbeat as first request, without which a broker answers no pulls, or None."""
        if address in self.namesrvs or not (self.producer_groups or self.consumer_data()):
            return None
        return self.heartbeat_command()

    def on_request(self, address: str, command: RemotingCommand) -> RemotingCommand | Answer | None:
        """Return the answer to a broker's request, or a future of it."""
        self.asked_by = address
        handler = self.serves.get(command.code)
        if command.code in REPORT_CODES and not self._reports.takes():
            return command.answer(ResponseCode.SYSTEM_BUSY, remark=TOO_MANY_REPORTS)
        if handler is not None:
            try:
                return handler(command)
            except RemoteError as error:
                if self._refusals.takes():
                    log.warning("invalid request rejected", address=address, code=command.code)
                return command.answer(error.code, remark=error.remark)
            except Exception as error:  # it must not end the thread of all connections
                if self._refusals.takes():
                    log.error("request failed", address=address, code=command.code, exc_info=True)
                remark = f"{type(error).__name__}: {error}"
                return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        if self._refusals.takes():
            log.info("unsupported request rejected", address=address, code=command.code)
        remark = f" request type {command.code} not supported"
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)

    def refresh_soon(self, topic: str) -> None:
        """Refresh the route of `topic` after REFRESH_DELAY_MS, once for all calls until then."""
        with self._lock:
            if topic in self._to_refresh:
                return
            self._to_refresh.add(topic)
        self.housekeeping.later(REFRESH_DELAY_MS, lambda: self._refresh(topic))

    def _refresh(self, topic: str) -> None:
        with self._lock:
            self._to_refresh.discard(topic)
        self._refresh_route(topic)

    def _refresh_route(self, topic: str) -> None:
        """Look the route of a topic up again, or begin to."""
        raise NotImplementedError


class ThreadFlows(FlowTasks):
    """Runs flows on a thread, which blocks meanwhile. For any thread."""

    def __init__(self, tasks: Tasks, run: Callable[[Flow[None]], None]) -> None:
        self._tasks, self._run = tasks, run

    def post(self, work: Callable[[], Flow[None]]) -> None:
        self._tasks.post(lambda: self._run(work()))

    def later(self, delay_ms: float, work: Callable[[], Flow[None]]) -> None:
        self._tasks.later(delay_ms, lambda: self._run(work()))


class Client(ClientCore):
    """A client whose connections, routes and heartbeats have threads."""

    remoting: Remoting
    routes: Routes
    housekeeping: TaskThread

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        ip: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, such as unusable files of `tls`.

        * `instance_name`: part of the client id. [default: unique in this process]
        * `ip`: address of this machine. [default: on the route to the first name server]
        * `credentials`, `tls`: [default: from the environment]
        """
        if ip is not None:
            check_instance(ip, str, "client_ip is a string")
        super().__init__(namesrv, instance_name, credentials, tls)
        self.ip = ip or local_ip(self.addresses[0])
        self.remoting = Remoting(self.on_request, self.greeting, self.credentials, self.tls_context)
        self.routes = Routes(self.remoting, self.addresses, self.named_by)
        self.housekeeping = TaskThread("troupemq-housekeeping")
        self.flows = ThreadFlows(self.housekeeping, self.run)
        self._turn = RLock()

    def start(self) -> None:
        self.housekeeping.start()
        every = self.housekeeping.every
        every(ROUTE_INTERVAL_MS, self._refresh_routes, first_ms=ROUTE_INTERVAL_MS)
        every(HEARTBEAT_INTERVAL_MS, self.heartbeat, first_ms=HEARTBEAT_INTERVAL_MS)

    def stop(self, timeout_s: float) -> None:
        """Unregister from all connected brokers and close the connections."""
        self.housekeeping.stop(timeout_s)
        timeout_ms = min(HEARTBEAT_TIMEOUT_MS, timeout_s * 1000)
        answers = [
            (address, self.remoting.call_async(address, unregister_command(header), timeout_ms))
            for address in self.routes.all_addresses(masters_only=False)
            if self.remoting.is_connected(address)
            for header in self.goodbyes()
        ]
        for address, answer in answers:
            try:
                answer.result()
            except ClientError as error:
                log.info("client unregistration failed", address=address, reason=str(error))
        self.remoting.close()

    def heartbeat(self) -> None:
        """Send a heartbeat with groups and subscriptions to every broker. Blocks."""
        self.run(self.heartbeating())

    def run(self, flow: Flow[Value]) -> Value:
        """Return the result of `flow`. Blocks; raises ClientError, always on the I/O thread."""
        return drive(flow, self.carry_out)

    def carry_out(self, wanted: Wanted) -> object:
        """Return the answer to what a flow yields. Blocks; raises ClientError."""
        match wanted:
            case Call(address, command, timeout_ms):
                return self.remoting.ask(address, command, timeout_ms)
            case Calls(calls):
                return self._carry_out_all(calls)
            case LookUpRoute(topic, again, publish):
                if publish:
                    return self.routes.publish_route(topic)
                return self.routes.look_up(topic) if again else self.routes.get(topic)
            case Blocking(work):
                return work()
            case WaitFor(register, timeout_s):
                called = Event()
                register(called.set)
                return called.wait(timeout_s)
            case InTurn(flow):
                with self._turn:
                    return self.run(flow)
        assert_never(wanted)

    def _carry_out_all(self, calls: Sequence[Call]) -> list[RemotingCommand | ClientError]:
        self.remoting.check_may_wait()
        sent = [
            self.remoting.call_async(each.address, each.command, each.timeout_ms) for each in calls
        ]
        found: list[RemotingCommand | ClientError] = []
        for call, answer in zip(calls, sent, strict=True):
            try:
                found.append(check_success(answer.result(), call.address))
            except ClientError as error:
                found.append(error)
        return found

    def _refresh_routes(self) -> None:
        self.routes.refresh(self.topics())

    def _refresh_route(self, topic: str) -> None:
        self.routes.refresh((topic,), and_known=False)
