"""The queues of a cluster, as name servers and brokers tell them: routes, ends, places by time."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from protocol.bodies import PERM_READ, TopicRouteData
from protocol.bodies_admin import TopicList
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.namesrv import GetRouteInfoHeader
from protocol.headers.offset import OffsetResponseHeader, QueueHeader, SearchOffsetHeader
from protocol.message import RecordError, decode_records
from protocol.topic_names import REPLY_TOPIC_SUFFIX
from remoting.line import ConnectionBroken, Line, NoAnswer, Refused, RemotingFailed
from spark.offsets import Bounds, first_at_time, is_ordinary, no_topic, wants_topic
from spark.options import Options, QueueName, broker_of, queue_text
from spark.plan import QueueRange
from spark.pulling import pull
from spark.splits import tasks_by_rows
from storage.errors import StoreError

TASK_ROWS = 65_536
"""Of one task, where maxRecordsPerPartition says nothing."""

Data = TypeVar("Data")
Value = TypeVar("Value")


class Cluster:
    """What the name servers of the options know; all raises StoreError."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lines: dict[str, Line] = {}
        self.addresses: dict[str, str] = {}

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def queues(self) -> list[QueueName]:
        """The queues that may be read; of brokers whose master is gone those of a slave."""
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
        """As for a store. A broker names the nearest message, which may be the one before."""
        header = SearchOffsetHeader(name[0], name[1], timestamp_ms, broker_of(name))
        command = RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
        answer = self._ask(self._line(name), command)
        near = understood(OffsetResponseHeader.decode, answer.fields).offset
        # Nearly always it is this message or the next: a few pulls instead of one for each halving.
        first, end = max(there.first, near - 1), min(there.end, near + 2)
        if first < end:
            before = self._time_from(name, first, end)
            behind = self._time_from(name, end - 1, end)
            if (first == there.first or (before is not None and before[1] < timestamp_ms)) and (
                end == there.end or (behind is not None and behind[1] >= timestamp_ms)
            ):
                there = Bounds(first, end)
        return first_at_time(there, timestamp_ms, lambda at, end: self._time_from(name, at, end))

    def tasks(self, wanted: Mapping[QueueName, Bounds]) -> list[list[QueueRange]]:
        return tasks_by_rows(wanted, self._options, TASK_ROWS)

    def record_bytes(self, name: QueueName, part: Bounds) -> int:
        raise NotImplementedError("parse_options refuses what would need it")

    def offset_at_bytes(self, name: QueueName, part: Bounds, bytes_max: int) -> int:
        raise NotImplementedError("parse_options refuses what would need it")

    def _is_wanted(self, topic: str) -> bool:
        return wants_topic(topic, self._options)

    def _is_own(self, topic: str, route: TopicRouteData) -> bool:
        """Whether it is a topic that brokers make for themselves, and was not asked for."""
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
        """The first answer; None if there is no such topic."""
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
        """(queue offset, store timestamp) of the first message of [first, end)."""
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

    def _line(self, name: QueueName) -> Line:
        """To the broker of a queue, whose route may not have been asked for yet."""
        broker = broker_of(name) or ""
        if broker not in self.addresses:
            self._route(name[0])
        if broker not in self.addresses:
            raise StoreError(
                f"{self._options.given['nameServer']} knows no address of {queue_text(*name)}: "
                "start that broker, or leave its queue out"
            )
        return self._line_to(self.addresses[broker])

    def _line_to(self, address: str) -> Line:
        if address not in self._lines:
            try:
                self._lines[address] = Line(address)
            except ValueError as error:
                raise StoreError(f"a name server told a wrong address: {error}") from None
        return self._lines[address]

    def _ask(self, line: Line, command: RemotingCommand) -> RemotingCommand:
        try:
            return line.ask(command, repeats=True)
        except RemotingFailed as error:
            raise StoreError(str(error)) from None


def understood(decode: Callable[[Data], Value], data: Data) -> Value:
    """What `decode` makes of an answer. Raises StoreError where it makes nothing of it."""
    try:
        return decode(data)
    except RemoteError as error:
        raise StoreError(f"an answer that cannot be understood: {error.remark}") from None
