"""A client that receives and settles messages one by one, as a 5.x client does over remoting."""

from dataclasses import dataclass, replace
from typing import Any

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.pop import (
    ALL_QUEUES,
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)
from protocol.message import MessageRecord, decode_records
from protocol.receipts import (
    BatchAck,
    BatchAckBody,
    OrderCounts,
    ReceiptHandle,
    format_bits,
    kind_of,
    parse_offsets,
    parse_start_offsets,
)

INVISIBLE_MS = 10_000


@dataclass(frozen=True, slots=True)
class Received:
    """One message and its handle."""

    record: MessageRecord
    topic: str
    """Topic that was asked for."""
    handle: str
    tries: int

    @property
    def body(self) -> bytes:
        return self.record.body

    @property
    def parsed(self) -> ReceiptHandle:
        return ReceiptHandle.parse(self.handle)


def receive_command(
    *,
    group: str = "consumers",
    topic: str = "Topic",
    queue_id: int = ALL_QUEUES,
    count: int = 32,
    invisible_ms: int = INVISIBLE_MS,
    wait_ms: int = 0,
    hold: bool = False,
    **fields: Any,
) -> RemotingCommand:
    """Return a receive."""
    header = PopMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        max_msg_nums=count,
        invisible_time_ms=invisible_ms,
        poll_time_ms=wait_ms,
        hold_with_connection=hold,
    )
    return RemotingCommand(RequestCode.POP_MESSAGE, replace(header, **fields).encode())


def received(
    answer: RemotingCommand, topic: str = "Topic", broker: str = "broker-a"
) -> list[Received]:
    """Return the messages of an answer, with handles built as 5.x's client builds them."""
    if answer.code != 0:
        return []
    header = PopMessageResponseHeader.decode(answer.fields)
    starts = parse_start_offsets(header.start_offset_info or "")
    offsets = parse_offsets(header.msg_offset_info or "")
    counts = OrderCounts(header.order_count_info or "")
    found: list[Received] = []
    for record in decode_records(bytes(answer.body or b"")):
        key = kind_of(record.topic), record.queue_id
        assert record.queue_offset == offsets[key].pop(0), (answer.fields, record.queue_offset)
        handle = ReceiptHandle(
            starts[key],
            header.pop_time_ms,
            header.invisible_time_ms,
            header.revive_queue_id,
            key[0],
            broker,
            record.queue_id,
            record.queue_offset,
        )
        tries = counts.tries(*key, record.queue_offset) or record.reconsume_times
        found.append(Received(record, topic, handle.format(), tries))
    assert not any(offsets.values()), answer.fields
    return found


def real_topic(message: Received, group: str) -> str:
    """Return the topic of an acknowledgement, as 5.x's client names it."""
    topic = message.topic.removeprefix("%RETRY%" + group + "_")
    return f"%RETRY%{group}_{topic}" if message.parsed.topic_kind == "1" else topic


def ack_command(message: Received, group: str = "consumers") -> RemotingCommand:
    """Return an acknowledgement."""
    handle = message.parsed
    header = AckMessageHeader(
        consumer_group=group,
        topic=real_topic(message, group),
        queue_id=handle.queue_id,
        extra_info=message.handle,
        offset=handle.offset,
    )
    return RemotingCommand(RequestCode.ACK_MESSAGE, header.encode())


def batch_ack_command(messages: list[Received], group: str = "consumers") -> RemotingCommand:
    """Return the acknowledgement of several messages, grouped as 5.x's client groups them."""
    by_key: dict[tuple[str, int, int, int], list[ReceiptHandle]] = {}
    for each in messages:
        handle = each.parsed
        key = handle.topic_kind, handle.queue_id, handle.start_offset, handle.pop_time_ms
        by_key.setdefault(key, []).append(handle)
    acks = [
        BatchAck(
            group,
            messages[0].topic,
            kind,
            start,
            queue_id,
            handles[0].revive_queue_id,
            popped,
            handles[0].invisible_time_ms,
            format_bits([each.offset for each in handles], start),
        )
        for (kind, queue_id, start, popped), handles in by_key.items()
    ]
    body = BatchAckBody("broker-a", acks).encode()
    return RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, None, body)


def change_command(
    message: Received,
    invisible_ms: int,
    group: str = "consumers",
    retry_delay_level: int | None = None,
    failure: str | None = None,
    *,
    hold: bool = False,
) -> RemotingCommand:
    """Return the change of a deadline, a retry, or the move of a hold to another connection."""
    handle = message.parsed
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=real_topic(message, group),
        queue_id=handle.queue_id,
        extra_info=message.handle,
        offset=handle.offset,
        invisible_time_ms=invisible_ms,
        retry_delay_level=retry_delay_level,
        failure=failure,
        hold_with_connection=hold or None,
    )
    return RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())


def changed(message: Received, answer: RemotingCommand) -> Received:
    """Return the message with the handle that the answer to a change gives it."""
    header = ChangeInvisibleTimeResponseHeader.decode(answer.fields)
    handle = replace(
        message.parsed,
        start_offset=message.parsed.offset,
        pop_time_ms=header.pop_time_ms,
        invisible_time_ms=header.invisible_time_ms,
        revive_queue_id=header.revive_queue_id,
    )
    return replace(message, handle=handle.format())
