"""Admin: what an application may ask of a cluster beyond sending and consuming."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_address
from socket import SOCK_STREAM, getaddrinfo
from typing import Self

from protocol.bodies import PERM_READ, PERM_WRITE
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.offset import OffsetResponseHeader, QueueHeader
from protocol.headers.pull import QueryMessageHeader, ViewMessageHeader
from protocol.message import MessageRecord, RecordError, decode_records
from protocol.message_id import parse_message_id
from protocol.signature import Credentials
from remoting.tls_options import Tls
from troupemq.client.arguments import MS_MAX, check_instance, check_integer, check_time
from troupemq.client.connection.client import Client
from troupemq.client.connection.connection import split_address
from troupemq.client.connection.route import DEFAULT_TOPIC, MASTER_ID
from troupemq.client.errors import (
    BadAnswer,
    BrokerError,
    ClientError,
    MessageIllegal,
    RouteNotFound,
    understood,
)
from troupemq.client.message import (
    MessageQueue,
    MessageView,
    check_topic,
    host_text,
    view_of,
)

ADMIN_TIMEOUT_MS = 5000
QUEUES_MAX = 1 << 16
FOREVER_MS = (1 << 63) - 1


class Admin:
    """Asks brokers and name servers; every call blocks and raises ClientError."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`credentials`: else TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY of the environment;
        `tls`: else TROUPEMQ_TLS and those beside it."""
        self._client = Client(namesrv, credentials=credentials, tls=tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.remoting.close()

    def create_topic(self, topic: str, queue_count: int = 8, *, cluster: str | None = None) -> None:
        """Creates or changes a topic at every master of the cluster, or of all clusters.

        Raises MessageIllegal for a name that no topic may have, RouteNotFound without a master.
        """
        check_topic(topic)
        check_integer(queue_count, 1, QUEUES_MAX, "queue_count")
        if cluster is not None:
            check_instance(cluster, str, "cluster is a string")
        masters = self._client.routes.masters_of_cluster(cluster)
        if not masters:
            raise RouteNotFound(f"no broker of {cluster or 'any cluster'} is registered")
        header = CreateTopicHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=PERM_READ | PERM_WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
        )
        for address in masters.values():
            command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
            self._client.remoting.ask(address, command, ADMIN_TIMEOUT_MS)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be read. Raises RouteNotFound for a topic that does not exist."""
        check_topic(topic)
        return self._client.routes.look_up(topic).subscribe_queues

    def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of a queue and the one behind its last message."""
        check_instance(queue, MessageQueue, "the queue is a MessageQueue")
        first = self._offset(RequestCode.GET_MIN_OFFSET, queue)
        return first, self._offset(RequestCode.GET_MAX_OFFSET, queue)

    def message_count(self, topic: str) -> int:
        """Messages in the queues of `topic`; 0 if it does not exist."""
        try:
            queues = self.queues(topic)
        except RouteNotFound:
            return 0
        return sum(end - begin for begin, end in map(self.offsets, queues))

    def query_by_key(
        self,
        topic: str,
        key: str,
        count_max: int = 64,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[MessageView]:
        """The messages of a topic that have `key` among their keys, or as their message id.

        Stored between the two times (both included, ms since 1970); of each broker the newest,
        oldest first. Raises RouteNotFound for a topic that does not exist.
        """
        check_topic(topic)
        check_instance(key, str, "a key is a string")
        check_integer(count_max, 1, MS_MAX, "count_max")
        check_time(begin_ms, "begin_ms")
        check_time(end_ms, "end_ms")
        header = QueryMessageHeader(topic, key, count_max, begin_ms, end_ms)
        found: list[MessageView] = []
        for name, address in sorted(self._masters(topic).items()):
            found += self._query(address, name, header)
        return sorted(found, key=lambda each: each.store_timestamp_ms)

    def _query(
        self, address: str, broker_name: str, header: QueryMessageHeader
    ) -> list[MessageView]:
        """The messages with the key that one broker has."""
        command = RemotingCommand(RequestCode.QUERY_MESSAGE, key_question(header).encode())
        try:
            answer = self._ask(address, command, ADMIN_TIMEOUT_MS)
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return []
        return views_with_key(answer.body, broker_name, header)

    def view_message(self, offset_message_id: str) -> MessageView:
        """The message with this id of the broker's (`SendResult.offset_message_id`).

        Raises MessageIllegal for a text that is no such id, RouteNotFound where no name server
        lists the broker, BrokerError when nothing lies there.
        """
        check_instance(offset_message_id, str, "a message's id is a string")
        try:
            host, offset = parse_message_id(offset_message_id)
        except ValueError as error:
            raise MessageIllegal(str(error)) from None
        name, address = self.listed(host_text(host))
        command = RemotingCommand(
            RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset).encode()
        )
        answer = self._ask(address, command, ADMIN_TIMEOUT_MS)
        records = _records(answer.body)
        if len(records) != 1:
            raise BadAnswer(f"{address} answered {len(records)} messages instead of one")
        return view_of(records[0], _queue_of(records[0], name))

    def listed(self, address: str) -> tuple[str, str]:
        """The name and the address of the broker there, as the name servers list it.

        An address out of a message may be a stranger's, which would get a signed request.
        Raises RouteNotFound for one that no name server lists.
        """
        places = [
            (each.broker_name, where)
            for each in self._client.routes.listed_brokers()
            for where in each.broker_addrs.values()
        ]
        for place in places:
            if place[1] == address:
                return place
        ip, port = split_address(address)
        for place in places:
            if _is_at(place[1], ip, port):
                return place
        raise RouteNotFound(f"{address} is not asked: no name server lists a broker there")

    def _ask(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """The success that `address` answers."""
        return self._client.remoting.ask(address, command, timeout_ms)

    def settings_of_brokers(self, topic: str) -> Iterator[dict[str, str] | None]:
        """The settings of each master that has the topic; None where it does not show them."""
        for address in self._masters(topic).values():
            command = RemotingCommand(RequestCode.GET_BROKER_CONFIG)
            try:
                answer = self._ask(address, command, ADMIN_TIMEOUT_MS)
            except BrokerError:
                yield None
                continue
            lines = bytes(answer.body or b"").decode("utf-8", "replace").splitlines()
            pairs = (line.partition("=") for line in lines)
            yield {name.strip(): value.strip() for name, _, value in pairs}

    def _masters(self, topic: str) -> dict[str, str]:
        """Broker name → address of every master that has the topic."""
        addresses = self._client.routes.look_up(topic).addresses
        return {name: ids[MASTER_ID] for name, ids in addresses.items() if MASTER_ID in ids}

    def _offset(self, code: RequestCode, queue: MessageQueue) -> int:
        self._client.routes.get(queue.topic)
        address = self._client.routes.master(queue.broker_name)
        header = QueueHeader(queue.topic, queue.queue_id, queue.broker_name)
        answer = self._client.remoting.ask(
            address, RemotingCommand(code, header.encode()), ADMIN_TIMEOUT_MS
        )
        return understood(OffsetResponseHeader.decode, answer.fields).offset


def _is_at(listed: str, ip: str, port: int) -> bool:
    """Return whether a listed address, which may be a name, leads there."""
    try:
        host, listed_port = split_address(listed)
        found = getaddrinfo(host, port, type=SOCK_STREAM) if listed_port == port else []
    except (ClientError, OSError, UnicodeError):
        return False
    return any(ip_address(str(each[4][0]).partition("%")[0]) == ip_address(ip) for each in found)


def key_question(header: QueryMessageHeader) -> QueryMessageHeader:
    """Return what a broker is asked: 4.9.7 knows seconds only, and may leave out the begin."""
    return replace(header, begin_timestamp=max(0, header.begin_timestamp - 999))


def views_with_key(
    body: bytes | memoryview | None, broker_name: str, header: QueryMessageHeader
) -> list[MessageView]:
    """Return what one broker has found of a key.

    The index of 4.9.7 knows only the hash of topic and key: messages of others may have it, too.
    """
    key, times = header.key, (header.begin_timestamp, header.end_timestamp)
    found = [view_of(each, _queue_of(each, broker_name)) for each in _records(body)]
    return [
        each
        for each in found
        if each.queue.topic == header.topic
        and times[0] <= each.store_timestamp_ms <= times[1]
        and (key in each.keys or key == each.message_id)
    ]


def _records(body: bytes | memoryview | None) -> list[MessageRecord]:
    try:
        return list(decode_records(bytes(body or b"")))
    except RecordError as error:
        raise BadAnswer(f"messages that cannot be understood: {error}") from None


def _queue_of(record: MessageRecord, broker_name: str) -> MessageQueue:
    return MessageQueue(record.topic, broker_name, record.queue_id)
