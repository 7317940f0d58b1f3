"""Request-reply in simulation: a producer that asks, and the listener of a consumer that replies.

Source: client/impl/producer/RequestResponseFuture.java, client/utils/MessageUtil.java,
client/impl/ClientRemotingProcessor.java (receiveReplyMessage).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.send import ReplyMessageHeader, SendMessageHeader
from protocol.message import MessageRecord
from protocol.properties import (
    CORRELATION_ID,
    MSG_TYPE,
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    TTL,
    parse,
)
from protocol.properties import format as properties_text
from tests.support.consumers import Consumer
from tests.support.producers import Producer

if TYPE_CHECKING:
    from tests.support.world import World

TTL_MS = 3000
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


class Asker(Producer):
    """Asks; `replies` has what came, in order: the number of the question and the body."""

    def __init__(self, world: "World", client_id: str, place: int) -> None:
        self.replies: list[tuple[str, bytes]] = []
        super().__init__(world, client_id, place, group="askers")

    def ask_for(self, body: bytes, *, queue_id: int = 0) -> None:
        """A question; its number is its body."""
        properties = {
            CORRELATION_ID: body.decode(),
            REPLY_TO_CLIENT: self.client_id,
            TTL: str(TTL_MS),
        }
        self.send(body, queue_id=queue_id, properties=properties)

    def on_notice(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            header = ReplyMessageHeader.decode(command.fields)
            properties = parse((header.properties or "").encode())
            assert properties[REPLY_TO_CLIENT] == self.client_id
            assert int(properties[PUSH_REPLY_TIME]) <= self.world.at_ms
            self.replies.append((properties[CORRELATION_ID], bytes(command.body or b"")))
            self.reply(command.answer())


@dataclass(slots=True)
class Replies:
    """A listener that replies to whatever comes; what the broker said of each reply."""

    codes: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, consumer: Consumer, record: MessageRecord) -> bool:
        asked = parse(record.properties)
        number = asked[CORRELATION_ID]
        properties = {name: asked[name] for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL)}
        header = SendMessageHeader(
            producer_group="repliers",
            topic=REPLY_TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=0,
            born_timestamp=consumer.world.at_ms,
            flag=0,
            properties=properties_text({**properties, MSG_TYPE: "reply"}).decode(),
        )
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        command = RemotingCommand(code, header.encode_v2(), b"reply to " + record.body)

        def taken(answer: RemotingCommand | None) -> None:
            if answer is not None:
                self.codes.append((number, answer.code))

        consumer.ask(command, taken, 15_000)
        return True
