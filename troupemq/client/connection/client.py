"""The connections, routes and heartbeats of one producer or consumer."""

import os
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from itertools import count
from random import getrandbits
from socket import AF_INET, AF_INET6, SOCK_DGRAM, socket
from ssl import SSLContext
from threading import Lock
from time import time_ns

from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.client import UnregisterClientHeader
from protocol.message_id import UniqueIds
from protocol.signature import Credentials
from remoting.tls import TlsUnusable
from remoting.tls_options import Tls, tls_of_environment
from storage.access.account import account_of_environment
from storage.errors import StoreError
from troupemq.client.arguments import check_instance
from troupemq.client.connection.connection import Answer, split_address
from troupemq.client.connection.remoting import Remoting
from troupemq.client.connection.route import Routes, named_by, namesrv_addresses
from troupemq.client.connection.task_thread import TaskThread
from troupemq.client.errors import ArgumentIllegal, ClientClosed, ClientError
from troupemq.client.log import client_logger

log = client_logger(__name__)

HEARTBEAT_INTERVAL_MS = 30_000
ROUTE_INTERVAL_MS = 30_000
HEARTBEAT_TIMEOUT_MS = 3000
REFRESH_DELAY_MS = 20
"""Many sends fail together when a broker goes: one question answers them all."""

RequestHandler = Callable[[RemotingCommand], RemotingCommand | Answer | None]
"""Serves one request of a broker, on the I/O thread: it must not block. What takes longer is
answered with a future."""

_instances = count(1)
_ids_lock = Lock()
_ids: dict[bytes, UniqueIds] = {}
_SEED = getrandbits(32)


def now_ms() -> int:
    """The wall clock in milliseconds: what goes into timestamps."""
    return time_ns() // 1_000_000


def local_ip(toward: str) -> str:
    """This machine's address as `toward` would see it; no packet is sent."""
    host, port = split_address(toward)
    try:
        with socket(AF_INET6 if ":" in host else AF_INET, SOCK_DGRAM) as probe:
            probe.connect((host, port))
            ip: str = probe.getsockname()[0]
            return ip.partition("%")[0]
    except OSError:  # a name that has IPv6 addresses only, or a network that is down
        return "127.0.0.1"


def next_message_id(ip: str) -> str:
    """A new UNIQ_KEY; one count for the whole process, as they are distinguished by pid only."""
    packed = ip_address(ip).packed
    with _ids_lock:
        ids = _ids.get(packed)
        if ids is None:
            ids = _ids[packed] = UniqueIds(packed, os.getpid(), _SEED, now_ms)
        return ids.next()


def _unregister(header: UnregisterClientHeader) -> RemotingCommand:
    return RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode())


def credentials_of_environment() -> Credentials | None:
    """The account that TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY name, with
    TROUPEMQ_SECURITY_TOKEN, else that of the file TROUPEMQ_ACL_FILE.

    Raises ArgumentIllegal for one of the first two without the other, and for a file that cannot
    be read.
    """
    try:
        return account_of_environment(os.environ)
    except StoreError as error:
        raise ArgumentIllegal(str(error)) from None


def _check_account(credentials: Credentials | None) -> None:
    if credentials is None:
        return
    if not isinstance(credentials, Credentials):  # its value is not shown: it may be a secret
        given = type(credentials).__name__
        raise ArgumentIllegal(
            f"credentials are Credentials(access_key, secret_key), you gave {given}"
        )
    if not isinstance(credentials.access_key, str) or not isinstance(credentials.secret_key, str):
        raise ArgumentIllegal("access_key and secret_key are strings")


def _context_of(tls: Tls | None) -> SSLContext | None:
    try:
        return None if tls is None else tls.context()
    except TlsUnusable as error:
        raise ArgumentIllegal(f"TLS: {error}") from None


class Client:
    """One member of a cluster as brokers see it: a client id, its groups, its connections."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        ip: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Without an `instance_name` each client of this process gets one of its own. `ip` is this
        machine's address, by default the one toward the first name server. `credentials`: an
        account of servers with access control, by default that of the environment. `tls`: how
        servers are called with TLS, by default as the environment says; raises ArgumentIllegal for
        files that cannot be used."""
        _check_account(credentials)
        if tls is not None:
            check_instance(tls, Tls, "tls is a Tls(...), Tls() for this machine's certificates")
        for name, value in (("instance_name", instance_name), ("client_ip", ip)):
            if value is not None:
                check_instance(value, str, f"{name} is a string")
        addresses = namesrv_addresses(namesrv)
        self.ip = ip or local_ip(addresses[0])
        self.id = f"{self.ip}@{instance_name or f'{os.getpid()}#{next(_instances)}'}"
        self.remoting = Remoting(
            self._on_request,
            self._greeting,
            credentials or credentials_of_environment(),
            _context_of(tls or tls_of_environment()),
        )
        self.routes = Routes(self.remoting, addresses, named_by(namesrv))
        self.housekeeping = TaskThread("troupemq-housekeeping")
        self.serves: dict[int, RequestHandler] = {}
        """Who serves which request code of a broker; the rest is answered as not supported."""

        self.asked_by = ""
        """The address of the broker whose request is being served: for handlers, while they run."""

        self.topics: Callable[[], Sequence[str]] = tuple
        """The topics whose routes are wanted beyond those already known."""

        self.consumer_data: Callable[[], list[ConsumerData]] = list
        self.producer_groups: list[str] = []
        self.namesrvs = frozenset(addresses)
        self._to_refresh: set[str] = set()
        self._lock = Lock()

    def start(self) -> None:
        """Begins the housekeeping."""
        self.housekeeping.start()
        every = self.housekeeping.every
        every(ROUTE_INTERVAL_MS, self._refresh_routes, first_ms=ROUTE_INTERVAL_MS)
        every(HEARTBEAT_INTERVAL_MS, self.heartbeat, first_ms=HEARTBEAT_INTERVAL_MS)

    def stop(self, timeout_s: float) -> None:
        """Leaves every broker that it is connected to and closes the connections."""
        self.housekeeping.stop(timeout_s)
        timeout_ms = min(HEARTBEAT_TIMEOUT_MS, timeout_s * 1000)
        goodbyes = [UnregisterClientHeader(self.id, group) for group in self.producer_groups]
        goodbyes += [
            UnregisterClientHeader(self.id, consumer_group=data.group_name)
            for data in self.consumer_data()
        ]
        answers = [
            (address, self.remoting.call_async(address, _unregister(header), timeout_ms))
            for address in self.routes.all_addresses(masters_only=False)
            if self.remoting.is_connected(address)
            for header in goodbyes
        ]
        for address, answer in answers:
            try:
                answer.result()
            except ClientError as error:
                log.info("not unregistered", address=address, reason=str(error))
        self.remoting.close()

    def heartbeat(self) -> None:
        """Tells every broker that this client lives and what its groups subscribe to. Blocks."""
        consumers = self.consumer_data()
        for address in self.routes.all_addresses(masters_only=not consumers):
            self.heartbeat_to(address)

    def heartbeat_to(self, address: str) -> None:
        """Tells one broker; a failure is logged, the next round tries again. Blocks."""
        try:
            self.remoting.ask(address, self._heartbeat(), HEARTBEAT_TIMEOUT_MS)
        except ClientClosed:
            return
        except ClientError as error:
            log.warning("heartbeat failed", address=address, error=str(error))

    def _refresh_routes(self) -> None:
        self.routes.refresh(self.topics())

    def refresh_soon(self, topic: str) -> None:
        """Asks for the route of `topic` again, a moment later and once for all who wish it."""
        with self._lock:
            if topic in self._to_refresh:
                return
            self._to_refresh.add(topic)
        self.housekeeping.later(REFRESH_DELAY_MS, lambda: self._refresh(topic))

    def _refresh(self, topic: str) -> None:
        with self._lock:
            self._to_refresh.discard(topic)
        self.routes.refresh((topic,), and_known=False)

    def _heartbeat(self) -> RemotingCommand:
        data = HeartbeatData(
            self.id,
            [ProducerData(group) for group in self.producer_groups],
            self.consumer_data(),
        )
        return RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())

    def _greeting(self, address: str) -> RemotingCommand | None:
        """A broker must know us before we pull, and before it may ask us anything."""
        if address in self.namesrvs or not (self.producer_groups or self.consumer_data()):
            return None
        return self._heartbeat()

    def _on_request(
        self, address: str, command: RemotingCommand
    ) -> RemotingCommand | Answer | None:
        self.asked_by = address
        handler = self.serves.get(command.code)
        if handler is not None:
            try:
                return handler(command)
            except RemoteError as error:
                log.warning("request not understood", address=address, code=command.code)
                return command.answer(error.code, remark=error.remark)
        log.info("request not supported", address=address, code=command.code)
        remark = f" request type {command.code} not supported"
        return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
