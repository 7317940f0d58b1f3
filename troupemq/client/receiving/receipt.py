"""Received messages with their handles, read from an answer to POP and written into requests.

Source: client/impl/MQClientAPIImpl.java (processPopResponse, batchAckMessageAsync).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.codes import RequestCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.pop import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageResponseHeader,
)
from protocol.message import MessageRecord, RecordError
from protocol.properties import ORIGIN_MESSAGE_ID, failure_bytes
from protocol.receipts import (
    BITS_BYTES_MAX,
    LATER_RETRY_KIND,
    NORMAL_KIND,
    RETRY_KIND,
    BatchAck,
    BatchAckBody,
    OrderCounts,
    ReceiptError,
    ReceiptHandle,
    format_bits,
    parse_offsets,
    parse_start_offsets,
)
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.errors import BadAnswer
from troupemq.client.message import MessageQueue, MessageView, records_in, view_of

SPAN_MAX = 8 * BITS_BYTES_MAX
"""Limit of offsets behind a start offset: a batch of acknowledgements has a bit for each."""

POP_CK = "POP_CK"
"""Property with the handle of a retry that the broker returns under the name of its topic."""


@dataclass(slots=True, eq=False)
class Receipt:
    """One message in flight at this consumer."""

    message: MessageView
    topic: str
    """Topic that was asked for the message."""

    handle: ReceiptHandle
    expires_s: float | None
    """Monotonic time at which the broker delivers it again; None: after the connection's end."""

    @property
    def broker_name(self) -> str:
        return self.message.queue.broker_name

    @property
    def origin(self) -> str:
        """Id that a message and its retries have in common."""
        own = self.message.offset_message_id
        if self.handle.topic_kind == NORMAL_KIND:  # whose property a producer could have set
            return own
        return self.message.properties.get(ORIGIN_MESSAGE_ID, own)

    def stored_topic(self, group: str) -> str:
        """Return the topic that holds the message: its own one, or its retry topic."""
        if self.handle.topic_kind == RETRY_KIND:
            return f"{RETRY_TOPIC_PREFIX}{group}_{self.topic}"
        if self.handle.topic_kind == LATER_RETRY_KIND:
            return f"{RETRY_TOPIC_PREFIX}{group}+{self.topic}"
        return self.topic

    def changed(self, answer: Mapping[str, str] | None, now_s: float) -> None:
        """Take the new handle in an answer. Raises RemoteError."""
        header = ChangeInvisibleTimeResponseHeader.decode(answer)
        if header.pop_time_ms:  # missing if the message is behind the consumer offset already
            handle = self.handle
            self.handle = ReceiptHandle(
                start_offset=handle.offset,
                pop_time_ms=header.pop_time_ms,
                invisible_time_ms=header.invisible_time_ms,
                revive_queue_id=header.revive_queue_id,
                topic_kind=handle.topic_kind,
                broker_name=handle.broker_name,
                queue_id=handle.queue_id,
                offset=handle.offset,
            )
        is_held = bool(header.hold_with_connection)
        self.expires_s = None if is_held else now_s + header.invisible_time_ms / 1000


def receipts_of(
    answer: RemotingCommand, topic: str, broker_name: str, *, order: bool, now_s: float
) -> list[Receipt]:
    """Return the messages of a successful answer to POP. Raises BadAnswer."""
    try:
        header = PopMessageResponseHeader.decode(answer.fields)
        starts = parse_start_offsets(header.start_offset_info or "")
        listed = parse_offsets(header.msg_offset_info or "")
        counts = OrderCounts(header.order_count_info or "" if order else "")
        records = records_in(answer.body)
    except RemoteError as error:
        raise BadAnswer(f"an answer that cannot be understood: {error.remark}") from None
    except (ReceiptError, RecordError) as error:
        raise BadAnswer(f"an answer that cannot be understood: {error}") from None
    held = bool(header.hold_with_connection)
    expires_s = None if held else now_s + header.invisible_time_ms / 1000
    found = []
    for record in records:
        view = view_of(record, MessageQueue(record.topic, broker_name, record.queue_id))
        if view.topic.startswith(RETRY_TOPIC_PREFIX):
            view.topic = topic
        handle = _given_handle(view, broker_name)
        if handle is None or not _is_listed(handle, header.pop_time_ms, listed):
            kind = _kind_of(record)
            start = starts.setdefault((kind, record.queue_id), record.queue_offset)
            if not 0 <= record.queue_offset - start < SPAN_MAX:
                raise BadAnswer(
                    f"an answer that cannot be understood: {start} before {record.queue_offset}"
                )
            handle = ReceiptHandle(
                start_offset=start,
                pop_time_ms=header.pop_time_ms,
                invisible_time_ms=header.invisible_time_ms,
                revive_queue_id=header.revive_queue_id,
                topic_kind=kind,
                broker_name=broker_name,
                queue_id=record.queue_id,
                offset=record.queue_offset,
            )
            tries = counts.tries(kind, record.queue_id, record.queue_offset)
            view.reconsume_times = max(view.reconsume_times, tries)
        found.append(Receipt(view, topic, handle, expires_s))
    return found


def _kind_of(record: MessageRecord) -> str:
    if not record.topic.startswith(RETRY_TOPIC_PREFIX):
        return NORMAL_KIND
    return LATER_RETRY_KIND if "+" in record.topic else RETRY_KIND


def _given_handle(view: MessageView, broker_name: str) -> ReceiptHandle | None:
    """Return the handle that a broker wrote into a retry, or None.

    A producer could have set the property as well, so the handle must name this message.
    """
    text = view.properties.get(POP_CK)
    if text is None:
        return None
    try:
        handle = ReceiptHandle.parse(text)
    except ReceiptError:
        return None
    mine = broker_name, view.queue.queue_id, view.queue_offset
    named = handle.broker_name, handle.queue_id, handle.offset
    is_retry = handle.topic_kind != NORMAL_KIND and view.reconsume_times > 0
    fits = 0 <= handle.offset - handle.start_offset < SPAN_MAX
    return handle if named == mine and is_retry and fits else None


def _is_listed(
    handle: ReceiptHandle, pop_time_ms: int, listed: Mapping[tuple[str, int], Sequence[int]]
) -> bool:
    """Return whether the broker's answer names a message by its place in a retry topic.

    A producer could know where its message will lie, and name a retry at the same place.
    """
    offsets = listed.get((handle.topic_kind, handle.queue_id), ())
    return handle.pop_time_ms == pop_time_ms and handle.offset in offsets


def ack_command(group: str, receipts: Sequence[Receipt]) -> RemotingCommand:
    """Return the request that settles messages of one broker as consumed."""
    if len(receipts) > 1:
        body = BatchAckBody(receipts[0].broker_name, _batches(group, receipts))
        return RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, body=body.encode())
    (receipt,) = receipts
    header = AckMessageHeader(
        consumer_group=group,
        topic=receipt.stored_topic(group),
        queue_id=receipt.handle.queue_id,
        extra_info=receipt.handle.format(),
        offset=receipt.handle.offset,
        broker_name=receipt.broker_name,
    )
    return RemotingCommand(RequestCode.ACK_MESSAGE, header.encode())


def _batches(group: str, receipts: Iterable[Receipt]) -> list[BatchAck]:
    """Return one entry for the messages of a queue that were received together."""
    together: dict[tuple[object, ...], list[Receipt]] = {}
    for receipt in receipts:
        handle = receipt.handle
        key = (
            receipt.topic,
            handle.topic_kind,
            handle.queue_id,
            handle.start_offset,
            handle.pop_time_ms,
            handle.invisible_time_ms,
            handle.revive_queue_id,
        )
        together.setdefault(key, []).append(receipt)
    return [
        BatchAck(
            consumer_group=group,
            topic=each[0].topic,
            retry=each[0].handle.topic_kind,
            start_offset=each[0].handle.start_offset,
            queue_id=each[0].handle.queue_id,
            revive_queue_id=each[0].handle.revive_queue_id,
            pop_time_ms=each[0].handle.pop_time_ms,
            invisible_time_ms=each[0].handle.invisible_time_ms,
            bits=format_bits(
                [receipt.handle.offset for receipt in each], each[0].handle.start_offset
            ),
        )
        for each in together.values()
    ]


def change_command(
    group: str,
    receipt: Receipt,
    invisible_ms: int,
    delay_level: int | None,
    reason: str = "",
    *,
    with_connection: bool = False,
) -> RemotingCommand:
    """Return the request of another invisible time, or of a retry by `delay_level`.

    `with_connection`: of a hold with the connection of this request, and its old handle.
    """
    header = ChangeInvisibleTimeHeader(
        consumer_group=group,
        topic=receipt.stored_topic(group),
        queue_id=receipt.handle.queue_id,
        extra_info=receipt.handle.format(),
        offset=receipt.handle.offset,
        invisible_time_ms=invisible_ms,
        retry_delay_level=delay_level,
        failure=failure_bytes(reason).decode() or None,
        hold_with_connection=with_connection or None,
        broker_name=receipt.broker_name,
    )
    return RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.encode())
