"""Answers to producers, and the calls of the send hooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from actors.network.hooks import Hooks, SendContext
from actors.network.messages import Sends, answer_of, failure
from actors.sending.appender import Put
from actors.sending.send_rules import RefusedError
from actors.statistics.counts import PutStats
from protocol.codes import SerializeType
from protocol.errors import RemoteError
from protocol.frame import ONEWAY_FLAG, encode
from protocol.send_values import Send
from protocol.send_wire import SendReplies
from protocol.timers import RecallHandle
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.dispatching.dispatch import property_of
from storage.log.commit_log import PutBatch

_UNIQUE_KEY = b"\x02UNIQ_KEY\x01"


@dataclass(slots=True, eq=False)
class SendPut(Put):
    """A send of a producer, from its check to its answer."""

    sends: Sends
    send: Send
    queue_id: int
    """Queue id in the answer; the record may be stored in another queue."""
    waits: bool
    """Whether its answer waits for the sync under SYNC_FLUSH, and for a slave of a SYNC_MASTER."""
    context: SendContext | None
    """Context for the hooks."""
    arrived_ms: float
    """Monotonic time of arrival, ms."""

    is_last: ClassVar[bool] = True
    """Whether this put is answered; only the last piece of a long batch is."""

    @property
    def first_offset(self) -> int:
        """Physical offset of the first record."""
        return self.group.physical_offset

    @property
    def offsets(self) -> Sequence[int]:
        """Physical offset of each record."""
        group = self.group
        return group.offsets if isinstance(group, PutBatch) else (group.physical_offset,)

    @property
    def queue_offset(self) -> int:
        """Queue offset of the first record."""
        return self.group.queue_offset

    @property
    def record_bytes(self) -> int:
        """Bytes of all records."""
        return self.group.record_bytes


class PutAnswers:
    """Maker of the answers of one broker, which it gives to their `Sends`.

    Used on the event loop.
    """

    def __init__(
        self, replies: SendReplies, hooks: Hooks, stats: PutStats, broker_name: str = ""
    ) -> None:
        """`broker_name` is this broker's, for recall handles."""
        self._replies, self._broker_name = replies, broker_name
        self._hooks = hooks
        self._stats = stats
        self.see_sends = hooks.see_sends
        """Whether any hook sees sends."""

    def arrived(self, sends: Sends, send: Send) -> SendContext | None:
        """Show the hooks a send; return the context for `Hooks.after`."""
        if not self.see_sends:
            return None
        context = SendContext(
            producer_group=send.shape.producer_group,
            topic=send.shape.topic,
            body_bytes=len(send.body),
            properties=send.properties,
            born_timestamp_ms=send.born_timestamp,
            client=sends.peer.remote,
            queue_id=send.queue_id,
        )
        self._hooks.before(context)
        return context

    def stored(self, puts: Sequence[SendPut], code: int) -> None:
        """Answer stored messages, one message per connection.

        `code` is the durability reached.
        """
        success = self._replies.success
        touched: dict[Sends, None] = {}
        for put in puts:
            sends, send, record = put.sends, put.send, put.group
            touched[sends] = None
            if (
                code
                or put.context is not None
                or isinstance(record, PutBatch)
                or record.due_ms
                or send.flag & ONEWAY_FLAG
            ):
                self._one(put, code)
                continue
            sends.owed -= 1
            sends.frames.append(
                success(
                    send.shape.serialize_type,
                    send.opaque,
                    record.physical_offset,
                    put.queue_id,
                    record.queue_offset,
                )
            )
        for sends in touched:
            sends.hand_over()

    def _one(self, put: SendPut, code: int) -> None:
        """Answer any send but a plain success of one message."""
        if not put.is_last:
            return
        sends, send, context, offsets = put.sends, put.send, put.context, put.offsets
        queue_offset = put.queue_offset
        ids = self._replies.message_ids(offsets)
        handle = self._recall_handle(put)
        if send.flag & ONEWAY_FLAG:
            sends.done(None)
        elif not (code or handle) and context is None and len(offsets) == 1:  # a batch of one
            kind, place = send.shape.serialize_type, offsets[0]
            sends.done(self._replies.success(kind, send.opaque, place, put.queue_id, queue_offset))
        elif not code and context is None and send.shape.serialize_type == SerializeType.ROCKETMQ:
            sends.done(self._replies.batch_success(send.opaque, ids, put.queue_id, queue_offset))
        else:
            fields = {
                "msgId": ids,
                "queueId": str(put.queue_id),
                "queueOffset": str(queue_offset),
                **self._replies.constant_fields,
            }
            if handle:
                fields["recallHandle"] = handle
            sends.done(encode(answer_of(send).answer(code, fields)))
        if context is not None:
            context.message_id = ids
            context.queue_id, context.queue_offset = put.queue_id, queue_offset
            context.record_bytes = put.record_bytes
            context.success, context.code = True, code
            self._hooks.after(context)

    def _recall_handle(self, put: SendPut) -> str:
        """Return the name by which a timer can be cancelled; empty for other messages."""
        record, topic = put.group, put.send.shape.topic
        if (
            isinstance(record, PutBatch)
            or not record.due_ms
            or topic.startswith(RETRY_TOPIC_PREFIX)
        ):
            return ""
        key = property_of(b"\x02" + record.properties, _UNIQUE_KEY).decode("utf-8", "replace")
        if not key:
            return ""
        return RecallHandle(topic, self._broker_name, record.due_ms, key).encode()

    def refused(
        self,
        sends: Sends,
        send: Send,
        error: RefusedError | RemoteError,
        context: SendContext | None,
    ) -> None:
        """Answer that the message is not stored.

        4.9.7 answers some refusals as exceptions, which carry no fields.
        """
        self._stats.failed_count += 1
        fields = None if isinstance(error, RemoteError) else self._replies.constant_fields
        sends.done(failure(send, error.code, remark=error.remark, fields=fields))
        if context is not None:
            context.code, context.remark = error.code, error.remark
            self._hooks.after(context)
