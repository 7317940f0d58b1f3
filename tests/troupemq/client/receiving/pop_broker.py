"""A broker that gives messages one by one: POP and what settles it, in memory."""

from collections import defaultdict
from collections.abc import Iterable
from threading import RLock

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from protocol.host import pack_host
from protocol.message import MessageRecord, encode_record
from protocol.properties import format
from protocol.receipts import (
    BatchAckBody,
    ReceiptHandle,
    ReceivedQueue,
    format_offsets,
    format_start_offsets,
    kind_of,
)
from tests.troupemq.fake_server import FakeServer, serve_routes

HOST = pack_host("127.0.0.1", 10911)


class PopBroker:
    """Gives each message until it is settled; holds receives that find none, if it is told to."""

    def __init__(
        self,
        namesrv: FakeServer,
        server: FakeServer,
        topics: dict[str, int] | None = None,
        name: str = "b",
        *,
        with_connection: bool = True,
    ) -> None:
        self.server, self.name, self.with_connection = server, name, with_connection
        self.ready: defaultdict[str, list[MessageRecord]] = defaultdict(list)
        self.in_flight: dict[tuple[str, int, int], tuple[int, MessageRecord]] = {}
        """Pop time and record, by kind, queue and offset."""
        self.acked: list[bytes] = []
        self.changes: list[ChangeInvisibleTimeHeader] = []
        self.pops: list[PopMessageHeader] = []
        self.batches: list[BatchAckBody] = []
        self.done: set[tuple[str, int, int]] = set()
        self._waiting: list[RemotingCommand] = []
        self._offsets: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._time_ms = 1_000
        self._lock = RLock()
        if topics is not None:
            serve_routes(namesrv, {name: server}, topics)
        server.on(RequestCode.POP_MESSAGE, self._pop)
        server.on(RequestCode.NOTIFICATION, self._notify)
        server.on(RequestCode.ACK_MESSAGE, self._ack)
        server.on(RequestCode.BATCH_ACK_MESSAGE, self._ack_batch)
        server.on(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self._change)
        server.succeed(RequestCode.HEART_BEAT)
        server.succeed(RequestCode.UNREGISTER_CLIENT)
        server.succeed(RequestCode.CONSUMER_SEND_MSG_BACK)

    def add(
        self,
        *bodies: bytes,
        topic: str = "T",
        queue_id: int = 0,
        tries: int = 0,
        **properties: str,
    ) -> None:
        """Store messages, and answer receives that wait."""
        with self._lock:
            for body in bodies:
                offset = self._offsets[topic, queue_id]
                self._offsets[topic, queue_id] += 1
                self.ready[topic].append(
                    MessageRecord(
                        topic,
                        body,
                        format({"UNIQ_KEY": body.decode(), **properties}),
                        queue_id,
                        offset,
                        physical_offset=1000 * queue_id + offset,
                        born_host=HOST,
                        store_host=HOST,
                        reconsume_times=tries,
                    )
                )
            waiting, self._waiting = self._waiting, []
            for command in waiting:
                handler = self.server.handlers[command.code]
                if isinstance(answer := handler(command), RemotingCommand):
                    self.server.push(answer)

    def waits(self) -> bool:
        """Return whether a receive or a notification is held."""
        with self._lock:
            return bool(self._waiting)

    def restarted(self, server: FakeServer) -> None:
        """Go on at another server; requests that wait are lost with their connections."""
        with self._lock:
            self.server, self._waiting = server, []

    def forget(self) -> None:
        """Deliver again what is in flight, as after the end of its holds."""
        with self._lock:
            self._again(list(self.in_flight))

    def _again(self, keys: Iterable[tuple[str, int, int]]) -> None:
        for key in keys:
            _, record = self.in_flight.pop(key)
            record.reconsume_times += 1
            self.ready[record.topic].append(record)

    def _pop(self, command: RemotingCommand) -> RemotingCommand | None:
        header = PopMessageHeader.decode(command.fields)
        with self._lock:
            self.pops.append(header)
            ready = self.ready[header.topic]
            found, self.ready[header.topic] = (
                ready[: header.max_msg_nums],
                ready[header.max_msg_nums :],
            )
            if not found and header.poll_time_ms:
                self._waiting.append(command)
                return None
            self._time_ms += 1
            queues: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
            for record in found:
                key = kind_of(record.topic), record.queue_id, record.queue_offset
                self.in_flight[key] = self._time_ms, record
                queues[key[:2]].append(record.queue_offset)
            received = [ReceivedQueue(*key, sorted(each)) for key, each in queues.items()]
            answer = PopMessageResponseHeader(
                pop_time_ms=self._time_ms,
                invisible_time_ms=header.invisible_time_ms,
                revive_queue_id=0,
                rest_num=0,
                start_offset_info=format_start_offsets(received),
                msg_offset_info=format_offsets(received),
                hold_with_connection=(self.with_connection and header.hold_with_connection) or None,
            )
        code = ResponseCode.SUCCESS if found else ResponseCode.POLLING_TIMEOUT
        body = b"".join(map(encode_record, found))
        return command.answer(code, answer.encode(), body=body or None)

    def _notify(self, command: RemotingCommand) -> RemotingCommand | None:
        header = NotificationHeader.decode(command.fields)
        with self._lock:
            if not self.ready[header.topic]:
                self._waiting.append(command)
                return None
        return command.answer(fields={"hasMsg": "true"})

    def _settle(self, handle: ReceiptHandle) -> bool:
        key = handle.topic_kind, handle.queue_id, handle.offset
        if key in self.done:
            return True
        if self.in_flight.get(key, (0,))[0] != handle.pop_time_ms:
            return False
        _, record = self.in_flight.pop(key)
        self.acked.append(record.body)
        self.done.add(key)
        return True

    def _ack(self, command: RemotingCommand) -> RemotingCommand:
        header = AckMessageHeader.decode(command.fields)
        with self._lock:
            done = self._settle(ReceiptHandle.parse(header.extra_info))
        return command.answer(ResponseCode.SUCCESS if done else ResponseCode.NO_MESSAGE)

    def _ack_batch(self, command: RemotingCommand) -> RemotingCommand:
        body = BatchAckBody.decode(command.body)
        with self._lock:
            self.batches.append(body)
            handles = [
                ReceiptHandle(
                    ack.start_offset,
                    ack.pop_time_ms,
                    ack.invisible_time_ms,
                    ack.revive_queue_id,
                    ack.retry,
                    self.name,
                    ack.queue_id,
                    offset,
                )
                for ack in body.acks
                for offset in ack.offsets()
            ]
            done = [self._settle(handle) for handle in handles]
        return command.answer(ResponseCode.SUCCESS if all(done) else ResponseCode.NO_MESSAGE)

    def _change(self, command: RemotingCommand) -> RemotingCommand:
        header = ChangeInvisibleTimeHeader.decode(command.fields)
        handle = ReceiptHandle.parse(header.extra_info)
        key = handle.topic_kind, handle.queue_id, handle.offset
        with self._lock:
            self.changes.append(header)
            if self.in_flight.get(key, (0,))[0] != handle.pop_time_ms:
                return command.answer(ResponseCode.NO_MESSAGE)
            if header.hold_with_connection:
                held = ChangeInvisibleTimeResponseHeader(
                    pop_time_ms=handle.pop_time_ms, hold_with_connection=True
                )
                return command.answer(fields=held.encode())
            self._time_ms += 1
            self.in_flight[key] = self._time_ms, self.in_flight[key][1]
            if header.retry_delay_level is not None or not header.invisible_time_ms:
                self._again([key])
            answer = ChangeInvisibleTimeResponseHeader(
                pop_time_ms=self._time_ms, invisible_time_ms=header.invisible_time_ms
            )
        return command.answer(fields=answer.encode())
