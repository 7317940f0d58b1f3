"""Admin: what an application may ask of a cluster beyond sending and consuming."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.offset import OffsetResponseHeader, QueueHeader
from troupemq.client.client import Client
from troupemq.client.errors import RouteNotFound, understood
from troupemq.client.message import MessageQueue, check_topic
from troupemq.client.route import DEFAULT_TOPIC, PERM_READ, PERM_WRITE

ADMIN_TIMEOUT_MS = 5000


class Admin:
    """Asks brokers and name servers; every call blocks and raises ClientError."""

    def __init__(self, namesrv: str | Sequence[str] | None = None) -> None:
        self._client = Client(namesrv)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._client.remoting.close()

    def create_topic(self, topic: str, queue_count: int = 8, *, cluster: str | None = None) -> None:
        """Creates or changes a topic at every master of the cluster, or of all clusters."""
        check_topic(topic)
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
        return self._client.routes.look_up(topic).subscribe_queues

    def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset of a queue and the one behind its last message."""
        first = self._offset(RequestCode.GET_MIN_OFFSET, queue)
        return first, self._offset(RequestCode.GET_MAX_OFFSET, queue)

    def message_count(self, topic: str) -> int:
        """Messages in the queues of `topic`; 0 if it does not exist."""
        try:
            queues = self.queues(topic)
        except RouteNotFound:
            return 0
        return sum(end - begin for begin, end in map(self.offsets, queues))

    def _offset(self, code: RequestCode, queue: MessageQueue) -> int:
        address = self._client.routes.master(queue.broker_name)
        header = QueueHeader(queue.topic, queue.queue_id, queue.broker_name)
        answer = self._client.remoting.ask(
            address, RemotingCommand(code, header.encode()), ADMIN_TIMEOUT_MS
        )
        return understood(OffsetResponseHeader.decode, answer.fields).offset
