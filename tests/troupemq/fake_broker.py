"""A broker with one topic in memory: as much as a consumer group needs to see."""

from collections import defaultdict
from threading import Condition

from protocol.bodies import ConsumerList, HeartbeatData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    GetConsumerListHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.host import pack_host
from protocol.message import MessageRecord, encode_record
from protocol.properties import format
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes

TOPIC = "T"


class FakeBroker:
    """Name server and broker for one topic and any number of groups; pulls are not held."""

    def __init__(self, namesrv: FakeServer, server: FakeServer, queue_count: int = 2) -> None:
        self.namesrv, self.server = namesrv, server
        self.queues: list[list[bytes]] = [[] for _ in range(queue_count)]
        self.members: defaultdict[str, list[str]] = defaultdict(list)
        self.beats: dict[str, HeartbeatData] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.sent_back: list[RemotingCommand] = []
        self.takes_back = True
        self.first_offsets = [0] * queue_count
        self._changed = Condition()
        serve_routes(namesrv, {"b": server}, {TOPIC: queue_count})
        server.on(RequestCode.HEART_BEAT, self._heartbeat)
        server.on(RequestCode.UNREGISTER_CLIENT, self._unregister)
        server.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self._consumer_list)
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, self._query_offset)
        server.on(RequestCode.UPDATE_CONSUMER_OFFSET, self._update_offset)
        server.on(RequestCode.GET_MAX_OFFSET, self._max_offset)
        server.on(RequestCode.GET_MIN_OFFSET, self._min_offset)
        server.on(RequestCode.PULL_MESSAGE, self._pull)
        server.on(RequestCode.CONSUMER_SEND_MSG_BACK, self._send_back)

    def add(self, queue_id: int, body: bytes, **properties: str) -> None:
        """Stores a message."""
        self.add_raw(queue_id, body, format({"UNIQ_KEY": body.decode(), **properties}))

    def add_raw(self, queue_id: int, body: bytes, properties: bytes = b"") -> None:
        """Stores a message with this property text."""
        queue = self.queues[queue_id]
        host = pack_host("127.0.0.1", 10911)
        record = MessageRecord(
            TOPIC,
            body,
            properties,
            queue_id,
            len(queue),
            physical_offset=1000 * queue_id + len(queue),
            born_host=host,
            store_host=host,
        )
        queue.append(encode_record(record))

    def wait_committed(self, group: str, queue_id: int, offset: int) -> None:
        """Waits until the group's offset is that."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self.committed.get((group, queue_id)) == offset, WAIT_S
            )
        assert reached, self.committed

    def _heartbeat(self, command: RemotingCommand) -> RemotingCommand:
        beat = HeartbeatData.decode(command.body)
        self.beats[beat.client_id] = beat
        for data in beat.consumer_data_set:
            members = self.members[data.group_name]
            if beat.client_id not in members:
                members.append(beat.client_id)
        return command.answer()

    def _unregister(self, command: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientHeader.decode(command.fields)
        if header.client_id in self.members[header.consumer_group or ""]:
            assert header.consumer_group is not None
            self.members[header.consumer_group].remove(header.client_id)
        return command.answer(fields={})

    def _consumer_list(self, command: RemotingCommand) -> RemotingCommand:
        group = GetConsumerListHeader.decode(command.fields).consumer_group
        if not self.members[group]:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
        return command.answer(body=ConsumerList(list(self.members[group])).encode())

    def _query_offset(self, command: RemotingCommand) -> RemotingCommand:
        assert command.fields is not None
        key = command.fields["consumerGroup"], int(command.fields["queueId"])
        if key not in self.committed:
            return command.answer(ResponseCode.QUERY_NOT_FOUND, remark="not found")
        return command.answer(fields={"offset": str(self.committed[key])})

    def _update_offset(self, command: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetHeader.decode(command.fields)
        with self._changed:
            self.committed[header.consumer_group, header.queue_id] = header.commit_offset
            self._changed.notify_all()
        return command.answer(fields={})

    def _max_offset(self, command: RemotingCommand) -> RemotingCommand:
        assert command.fields is not None
        queue = self.queues[int(command.fields["queueId"])]
        return command.answer(fields={"offset": str(len(queue))})

    def _min_offset(self, command: RemotingCommand) -> RemotingCommand:
        assert command.fields is not None
        first = self.first_offsets[int(command.fields["queueId"])]
        return command.answer(fields={"offset": str(first)})

    def _pull(self, command: RemotingCommand) -> RemotingCommand:
        header = PullMessageHeader.decode(command.fields)
        queue, first = self.queues[header.queue_id], self.first_offsets[header.queue_id]
        begin = header.queue_offset
        found = queue[begin : begin + header.max_msg_nums] if begin >= first else []
        code, next_offset = ResponseCode.SUCCESS, begin + len(found)
        if begin < first or begin > len(queue):
            code, next_offset = ResponseCode.PULL_OFFSET_MOVED, first
        elif not found:
            code = ResponseCode.PULL_NOT_FOUND
        fields = PullMessageResponseHeader(0, next_offset, first, len(queue)).encode()
        return command.answer(code, fields, body=b"".join(found) or None)

    def _send_back(self, command: RemotingCommand) -> RemotingCommand:
        self.sent_back.append(command)
        if not self.takes_back:
            return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="no")
        return command.answer()
