"""What a producer is told once its message is stored, and what the hooks are told with it."""

from collections.abc import Sequence

from actors.network.hooks import Hooks, SendContext
from actors.network.sends import Sends, answer_of, failure
from actors.sending.send_rules import RefusedError
from protocol.command import ONEWAY_FLAG
from protocol.errors import RemoteError
from protocol.frame import encode
from protocol.send_reply import SendReplies
from protocol.send_wire import Send

Stored = tuple[Sends, Send, Sequence[int], int, int, int, SendContext | None]
"""whose, which, physical offset of each record, queue_id as asked for, first queue offset, bytes,
hook context"""

STOPPED = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full [%s], messages are put to the slave, "
    "message store has been shut down, etc."
)


class PutAnswers:
    """Makes the answers of one broker and hands them to their `Sends`. Lives on the loop."""

    def __init__(self, replies: SendReplies, hooks: Hooks) -> None:
        self._replies = replies
        self._hooks = hooks

    def stored(self, items: Sequence[Stored], code: int) -> None:
        """These messages are in the log; `code` says whether they are as safe as they were to be.

        Hands the answers over, one message to each connection.
        """
        success = self._replies.success
        touched: dict[Sends, None] = {}
        for item in items:
            sends, send, offsets, queue_id, queue_offset, _, context = item
            touched[sends] = None
            if code or context is not None or len(offsets) != 1 or send[3] & ONEWAY_FLAG:
                self._one(item, code)
                continue
            sends.owed -= 1
            sends.frames.append(
                success(send[0].serialize_type, send[2], offsets[0], queue_id, queue_offset)
            )
        for sends in touched:
            sends.hand_over()

    def _one(self, item: Stored, code: int) -> None:
        """Anything but a plain success of one message."""
        sends, send, offsets, queue_id, queue_offset, record_bytes, context = item
        if send[3] & ONEWAY_FLAG:
            sends.done(None)
        else:
            fields = {
                "msgId": ",".join(map(self._replies.message_id, offsets)),
                "queueId": str(queue_id),
                "queueOffset": str(queue_offset),
                **self._replies.constant_fields,
            }
            sends.done(encode(answer_of(send).answer(code, fields)))
        if context is not None:
            context.message_id = ",".join(map(self._replies.message_id, offsets))
            context.queue_id, context.queue_offset = queue_id, queue_offset
            context.record_bytes, context.success, context.code = record_bytes, True, code
            self._hooks.after(context)

    def refused(
        self,
        sends: Sends,
        send: Send,
        error: RefusedError | RemoteError,
        context: SendContext | None,
    ) -> None:
        """The message is not stored; what 4.9.7 answers as an exception carries no fields."""
        fields = None if isinstance(error, RemoteError) else self._replies.constant_fields
        sends.done(failure(send, error.code, remark=error.remark, fields=fields))
        if context is not None:
            context.code, context.remark = error.code, error.remark
            self._hooks.after(context)
