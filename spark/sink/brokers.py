"""Brokers of a task: found by the name server, asked with retries.

A request is retried until sendTimeoutMs pass if it cannot be answered now: no connection, no
answer, or a broker that is busy, starting or less durable than required. A topic that no name
server has fails at once, if each name server knows brokers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TypeVar
from zlib import crc32

from protocol.bodies import PERM_WRITE, ClusterInfo, TopicRouteData
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import GetRouteInfoHeader
from protocol.headers.own import SinkLaneHeader, SinkProgressHeader, chain_of
from remoting.sync_connection import Refused, RemotingFailed, SyncConnection
from spark.sink.options import SinkOptions
from storage.errors import StoreError

ANSWER_TIMEOUT_MS = 10_000
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_MASTER = 0
AGAIN = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    )
)
"""Answers that may be others a moment later."""

Value = TypeVar("Value")


class NotNowError(Exception):
    """Something that may be put right by itself; the text says what."""


@dataclass(frozen=True, slots=True)
class Target:
    """A master that a topic may be written to."""

    name: str
    line: SyncConnection
    queues: int
    """Writable queues of the topic."""


@dataclass(frozen=True, slots=True)
class Found:
    """Progress of a lane at one broker."""

    batch: int = -1
    sequence: int = 0
    chain: bytes = b""


class Brokers:
    """A task's view of the cluster. All methods raise StoreError."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._lines: dict[str, SyncConnection] = {}

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def patiently(self, attempt: Callable[[], Value]) -> Value:
        """Return the result of `attempt`, repeated while it raises NotNowError."""
        deadline_s = monotonic() + self._options.send_timeout_ms / 1000
        pauses = iter(_PAUSES_S)
        while True:
            try:
                return attempt()
            except NotNowError as error:
                if monotonic() >= deadline_s:
                    waited = f"{self._options.send_timeout_ms} ms (sendTimeoutMs)"
                    raise StoreError(f"given up after {waited}: {error}") from None
            sleep(next(pauses, _PAUSES_S[-1]))

    def targets(self, topic: str) -> list[Target]:
        """Return the masters that accept the topic, by name.

        Raises NotNowError while one of them is missing.
        """
        route = self._route(topic)
        wanted = self._options.brokers
        addresses = {each.broker_name: each.broker_addrs for each in route.broker_datas}
        found: list[Target] = []
        for part in route.queue_datas:
            name, queues = part.broker_name, part.write_queue_nums
            if (wanted and name not in wanted) or not part.perm & PERM_WRITE or queues < 1:
                continue
            address = addresses.get(name, {}).get(_MASTER)
            if address is None:
                raise NotNowError(f"broker {name} of topic {topic} has no master")
            found.append(Target(name, self._line(address), queues))
        if missing := set(wanted) - {each.name for each in found}:
            names = ", ".join(sorted(missing))
            raise NotNowError(f"topic {topic} cannot be written to on {names} (option brokers)")
        if not found:
            raise NotNowError(f"topic {topic} has no broker that it can be written to")
        return sorted(found, key=lambda each: each.name)

    def ask(self, line: SyncConnection, command: RemotingCommand) -> RemotingCommand:
        """Return a successful answer.

        Raises NotNowError, and Refused for a lasting refusal. Only for repeatable requests.
        """
        try:
            return line.ask(command, repeats=True)
        except Refused as error:
            if error.code in AGAIN:
                raise NotNowError(str(error)) from None
            raise
        except RemotingFailed as error:
            raise NotNowError(str(error)) from None

    def progress(self, target: Target, lane: SinkLaneHeader) -> Found | None:
        """Return the progress of a lane; None if this broker lacks the request.

        Raises NotNowError.
        """
        command = RemotingCommand(RequestCode.GET_SINK_PROGRESS, lane.encode())
        try:
            return found_in(self.ask(target.line, command))
        except Refused as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise StoreError(str(error)) from None

    def _route(self, topic: str) -> TopicRouteData:
        header = GetRouteInfoHeader(topic, accept_standard_json_only=True)
        failed, lacking = "", 0
        for address in self._options.name_servers:
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
            try:
                return TopicRouteData.decode(self.ask(self._line(address), command).body)
            except NotNowError as error:
                failed = f"nameServer {error}"
            except Refused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise StoreError(f"nameServer {error}") from None
                lacking += self._has_brokers(address)
                failed = (
                    f"nameServer {address} knows no topic {topic}: make it, or start its broker"
                )
            except RemoteError as error:
                raise StoreError(f"nameServer {address}: {error.remark}") from None
        if lacking == len(self._options.name_servers):
            raise StoreError(
                f"topic {topic} not found: create it with troupemq admin updateTopic -c CLUSTER"
                f" -t {topic}"
            )
        raise NotNowError(failed)

    def _has_brokers(self, address: str) -> bool:
        """Return whether a name server knows a broker: one that starts may know none yet."""
        command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            answer = self.ask(self._line(address), command)
            return bool(ClusterInfo.decode(answer.body).broker_addr_table)
        except (NotNowError, Refused, RemoteError):
            return False

    def _line(self, address: str) -> SyncConnection:
        if address not in self._lines:
            try:
                self._lines[address] = SyncConnection(
                    address,
                    timeout_ms=ANSWER_TIMEOUT_MS,
                    credentials=self._options.credentials,
                )
            except ValueError as error:
                raise StoreError(f"a name server told a wrong address: {error}") from None
        return self._lines[address]


def found_in(answer: RemotingCommand) -> Found:
    """Return the progress in an answer. Raises StoreError."""
    try:
        header = SinkProgressHeader.decode(answer.fields)
        chain = chain_of(header.chain) if header.batch >= 0 else b""
    except RemoteError as error:
        raise StoreError(f"an answer that cannot be understood: {error.remark}") from None
    return Found(header.batch, header.sequence, chain)


def chosen(targets: list[Target], lane: SinkLaneHeader) -> Target:
    """Return the target of this lane, the same one while the targets are unchanged."""
    name = f"{lane.query}:{lane.partition}:{lane.topic}"
    return targets[crc32(name.encode()) % len(targets)]
