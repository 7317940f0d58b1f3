"""Queues of a cluster over the network: routes, min and max offsets, offsets by time."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import TypeVar

from protocol.bodies import PERM_READ, TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.codes import RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    GetRouteInfoHeader,
    OffsetResponseHeader,
    QueueHeader,
    SearchOffsetHeader,
)
from protocol.message import RecordError, decode_records
from protocol.topic_names import REPLY_TOPIC_SUFFIX
from remoting.sync_connection import (
    ConnectionBroken,
    NoAnswer,
    Refused,
    RemotingFailed,
    SyncConnection,
)
from spark.source.offsets import Bounds, is_ordinary, no_topic, wants_topic
from spark.source.options import Options, QueueName, broker_of, queue_text
from spark.source.plan import QueueRange
from spark.source.raw import NotServed, units
from spark.source.splits import Units, offset_at_bytes, queue_bytes, tasks, tasks_by_rows
from spark.source.tasks import pull
from storage.errors import StoreError
from storage.reading.queue_times import first_at_time

TASK_ROWS = 65_536
"""Default rows of a task, without maxRecordsPerPartition."""

REFUSED_S = 600.0
"""Time until a broker that refused bulk reads is asked again; it logs a line each time."""

_REFUSED_UNTIL_S: dict[str, float] = {}
"""Refusals by address, of this process: a stream plans all of its batches in one."""

Data = TypeVar("Data")
Value = TypeVar("Value")


class Cluster:
    """A cluster as its name servers describe it; all methods raise StoreError."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lines: dict[str, SyncConnection] = {}
        self._offers: set[str] = set()
        """Addresses of brokers that can be read in bulk."""
        self.addresses: dict[str, str] = {}

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def queues(self) -> list[QueueName]:
        """Return the readable queues; without a master those of a slave."""
        options = self._options
        found: list[QueueName] = []
        for topic in sorted(options.topics or filter(self._is_wanted, self._topics())):
            route = self._route(topic)
            if route is None or (options.topics is None and self._is_own(topic, route)):
                continue
            for part in route.queue_datas:
                if part.perm & PERM_READ and part.broker_name in self.addresses:
                    found += [
                        (topic, queue_id, part.broker_name)
                        for queue_id in range(part.read_queue_nums)
                    ]
        return sorted(found)

    def check_topics(self, queues: Iterable[QueueName]) -> None:
        """Check that each topic of the options has queues. Raises StoreError."""
        missing = sorted((self._options.topics or frozenset()) - {name[0] for name in queues})
        if missing:
            there = filter(is_ordinary, self._topics())
            raise no_topic(self._options, self._options.given["nameServer"], missing[0], there)

    def bounds(self, name: QueueName) -> Bounds:
        end = self.end(name)
        return Bounds(min(max(0, self._offset(RequestCode.GET_MIN_OFFSET, name)), end), end)

    def end(self, name: QueueName, known: int = 0) -> int:
        return max(0, self._offset(RequestCode.GET_MAX_OFFSET, name))

    def first_stored_at(self, name: QueueName, there: Bounds, timestamp_ms: int) -> int:
        """Return the first message at or after a time.

        4.9.7 returns the nearest message, which may be an earlier one.
        """
        header = SearchOffsetHeader(name[0], name[1], timestamp_ms, broker_of(name))
        command = RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
        answer = self._ask(self._line(name), command)
        near = understood(OffsetResponseHeader.decode, answer.fields).offset
        time_from = partial(self._time_from, name)
        return first_at_time(time_from, timestamp_ms, there.first, there.end, near)

    @property
    def bulk(self) -> Collection[str]:
        """The brokers that are known to offer it: all of those whose tasks were asked for."""
        return [name for name, address in self.addresses.items() if address in self._offers]

    def tasks(self, wanted: Mapping[QueueName, Bounds]) -> list[list[QueueRange]]:
        """Return tasks, cut by bytes where brokers tell them, else by messages.

        Raises StoreError if the options limit the bytes of a task and a broker does not tell them.
        """
        options = self._options
        in_bulk = {name: part for name, part in wanted.items() if self._is_bulk(name)}
        others = {name: part for name, part in wanted.items() if name not in in_bulk}
        if others and "maxBytesPerPartition" in options.given:
            raise self._untold("maxBytesPerPartition", "maxRecordsPerPartition", next(iter(others)))
        found = tasks(self._units, in_bulk, options) if in_bulk else []
        return found + (tasks_by_rows(others, options, TASK_ROWS) if others else [])

    def record_bytes(self, name: QueueName, part: Bounds) -> int:
        return queue_bytes(self._told_units(name, part))

    def offset_at_bytes(self, name: QueueName, part: Bounds, bytes_max: int) -> int:
        return offset_at_bytes(self._told_units(name, part), part, bytes_max)

    def _told_units(self, name: QueueName, part: Bounds) -> Units:
        if not self._is_bulk(name):
            raise self._untold("maxBytesPerTrigger", "maxOffsetsPerTrigger", name)
        return self._units(name, part)

    def _untold(self, option: str, instead: str, name: QueueName) -> StoreError:
        return StoreError(
            f"{option}: the broker {broker_of(name)} tells no message lengths, as no official one "
            f"does: give {instead} instead"
        )

    def _units(self, name: QueueName, part: Bounds) -> Units:
        return units(self._line(name), self._range(name, part))

    def _range(self, name: QueueName, part: Bounds) -> QueueRange:
        return QueueRange(name[0], name[1], part.first, part.end, broker=broker_of(name))

    def _is_bulk(self, name: QueueName) -> bool:
        """Return whether the broker of a queue supports bulk reads.

        It is asked once, and again after a while if it refused, so that streams do not ask at every
        batch.
        """
        line = self._line(name)
        if line.address in self._offers:
            return True
        if monotonic() < _REFUSED_UNTIL_S.get(line.address, 0.0):
            return False
        try:
            next(units(line, self._range(name, Bounds(0, 1))), None)
        except NotServed:
            _REFUSED_UNTIL_S[line.address] = monotonic() + REFUSED_S
            return False
        self._offers.add(line.address)
        return True

    def _is_wanted(self, topic: str) -> bool:
        return wants_topic(topic, self._options)

    def _is_own(self, topic: str, route: TopicRouteData) -> bool:
        """Return whether a topic is internal to brokers and not named in the options."""
        if self._options.include_system_topics or self._options.topic_pattern is not None:
            return False
        names = {each.broker_name for each in route.broker_datas}
        clusters = {each.cluster for each in route.broker_datas}
        return topic in names | clusters | {name + REPLY_TOPIC_SUFFIX for name in clusters}

    def _topics(self) -> list[str]:
        answer = self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        return understood(TopicList.decode, None if answer is None else answer.body).topic_list

    def _route(self, topic: str) -> TopicRouteData | None:
        header = GetRouteInfoHeader(topic, accept_standard_json_only=True)
        answer = self._ask_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
        if answer is None:
            return None
        route = understood(TopicRouteData.decode, answer.body)
        for broker in route.broker_datas:
            if broker.broker_addrs:
                self.addresses[broker.broker_name] = broker.broker_addrs[min(broker.broker_addrs)]
        return route

    def _ask_name_server(self, code: int, fields: dict[str, str]) -> RemotingCommand | None:
        """Return the first answer; None for a missing topic."""
        failed: RemotingFailed | None = None
        for address in self._options.name_servers:
            try:
                return self._line_to(address).ask(RemotingCommand(code, fields), repeats=True)
            except (ConnectionBroken, NoAnswer) as error:
                failed = error
            except Refused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise StoreError(f"nameServer {error}") from None
                return None
        raise StoreError(f"nameServer {failed}")

    def _offset(self, code: int, name: QueueName) -> int:
        header = QueueHeader(name[0], name[1], broker_of(name))
        answer = self._ask(self._line(name), RemotingCommand(code, header.encode()))
        return understood(OffsetResponseHeader.decode, answer.fields).offset

    def _time_from(self, name: QueueName, first: int, end: int) -> tuple[int, int] | None:
        """Return (queue offset, store timestamp) of the first message of [first, end)."""
        part = QueueRange(name[0], name[1], first, end, broker=broker_of(name))
        while first < end:
            pulled = pull(self._line(name), part, first, 1)
            try:
                for record in decode_records(pulled.body):
                    if first <= record.queue_offset < end:
                        return record.queue_offset, record.store_timestamp
            except RecordError:
                pass  # the reader tells: here the next one will do
            if pulled.next <= first:
                break
            first = pulled.next
        return None

    def _line(self, name: QueueName) -> SyncConnection:
        """Return the connection to the broker of a queue; query an unknown route first."""
        broker = broker_of(name) or ""
        if broker not in self.addresses:
            self._route(name[0])
        if broker not in self.addresses:
            raise StoreError(
                f"{self._options.given['nameServer']} knows no address of {queue_text(*name)}: "
                "start that broker, or leave its queue out"
            )
        return self._line_to(self.addresses[broker])

    def _line_to(self, address: str) -> SyncConnection:
        if address not in self._lines:
            try:
                credentials = self._options.credentials
                self._lines[address] = SyncConnection(address, credentials=credentials)
            except ValueError as error:
                raise StoreError(f"a name server told a wrong address: {error}") from None
        return self._lines[address]

    def _ask(self, line: SyncConnection, command: RemotingCommand) -> RemotingCommand:
        try:
            return line.ask(command, repeats=True)
        except RemotingFailed as error:
            raise StoreError(str(error)) from None


def understood(decode: Callable[[Data], Value], data: Data) -> Value:
    """Return the decoded answer. Raises StoreError for an invalid one."""
    try:
        return decode(data)
    except RemoteError as error:
        raise StoreError(f"an answer that cannot be understood: {error.remark}") from None
