"""What a producer is told once its message is stored, and what the hooks are told with it."""

from actors.hooks import Hooks, SendContext
from actors.sends import Sends, answer_of, failure
from protocol.codes import ResponseCode
from protocol.command import ONEWAY_FLAG
from protocol.frame import encode
from protocol.send_reply import SendReplies
from protocol.send_wire import Send

Stored = tuple[Sends, Send, tuple[int, ...], int, int, int, SendContext | None]
"""whose, which, physical offset of each record, queue_id as asked for, first queue offset, bytes,
hook context"""


class PutAnswers:
    """Makes the answers of one broker and hands them to their `Sends`. Lives on the loop."""

    def __init__(self, replies: SendReplies, hooks: Hooks) -> None:
        self._replies = replies
        self._hooks = hooks

    def stored(self, item: Stored, code: int) -> None:
        """The message is in the log; `code` says whether it is as safe as it was to be."""
        sends, send, offsets, queue_id, queue_offset, record_bytes, context = item
        if send[3] & ONEWAY_FLAG:
            sends.done(None)
        elif code == ResponseCode.SUCCESS and len(offsets) == 1:
            sends.done(
                self._replies.success(
                    send[0].serialize_type, send[2], offsets[0], queue_id, queue_offset
                )
            )
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
        self, sends: Sends, send: Send, code: int, remark: str, context: SendContext | None
    ) -> None:
        """The message is not stored."""
        sends.done(failure(send, code, remark=remark, fields=self._replies.constant_fields))
        if context is not None:
            context.code, context.remark = code, remark
            self._hooks.after(context)
