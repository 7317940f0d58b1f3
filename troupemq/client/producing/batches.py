"""Batches, several messages in one request: their rules and their size."""

from collections.abc import Callable, Iterable, Sequence

from protocol.batch import DECODED_MAX, BatchMessage, encode_batch
from protocol.codes import RequestCode
from protocol.properties import WAIT
from protocol.properties import format as format_properties
from protocol.topic_names import RETRY_TOPIC_PREFIX
from troupemq.client.arguments import check_instance
from troupemq.client.errors import ArgumentIllegal, MessageIllegal
from troupemq.client.message import Message
from troupemq.client.producing.sending import EncodedMessage
from troupemq.client.settings import MESSAGE_BYTES_MAX

_FRAMING_BYTES = 22
_ID_OF_ANY_MESSAGE = "0" * 32


def check_messages(messages: Iterable[Message]) -> Sequence[Message]:
    """Return the messages as a sequence. Raises ArgumentIllegal unless all are Messages."""
    if isinstance(messages, Message):
        raise ArgumentIllegal("a batch is a list of Messages, and not one: put it in a list")
    check_instance(messages, Iterable, "a batch is a list of Messages")
    found = messages if isinstance(messages, Sequence) else list(messages)
    for message in found:
        check_instance(message, Message, "a batch is of Messages")
    return found


def check_batch(messages: Sequence[Message]) -> None:
    """Raise MessageIllegal unless one batch may hold these messages; ignore their size."""
    if not messages:
        raise MessageIllegal("a batch holds at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_TOPIC_PREFIX):
        raise MessageIllegal("messages to a retry topic cannot be in a batch")
    for message in messages:
        if message.topic != first.topic:
            raise MessageIllegal("the messages of a batch have one topic")
        if message.wait_store_ok != first.wait_store_ok:
            raise MessageIllegal("the messages of a batch have the same wait_store_ok")
        if message.is_delayed:
            raise MessageIllegal("the messages of a batch cannot be delayed")
        if message.system_properties:
            raise MessageIllegal("replies and messages of transactions cannot be in a batch")


def batch_parcel(messages: Sequence[Message], next_id: Callable[[], str]) -> EncodedMessage:
    """Return the batch as one request, uncompressed as in Java; each message has its own id."""
    check_batch(messages)
    ids = [next_id() for _ in messages]
    body = encode_batch(
        BatchMessage(message.body, message.wire_properties(message_id), message.flag)
        for message, message_id in zip(messages, ids, strict=True)
    )
    shared = format_properties({WAIT: "true" if messages[0].wait_store_ok else "false"})
    return EncodedMessage(
        messages[0].topic,
        body,
        shared.decode(),
        ",".join(ids),
        code=RequestCode.SEND_BATCH_MESSAGE,
    )


def split_batch(
    messages: Iterable[Message], bytes_max: int = MESSAGE_BYTES_MAX
) -> list[list[Message]]:
    """Split the messages, in order, into batches of at most `bytes_max` bytes and 65,536 messages.

        for batch in split_batch(messages):
            producer.send_batch(batch)

    Raises MessageIllegal for a single message over the limit.
    """
    batches: list[list[Message]] = []
    room = 0
    for message in check_messages(messages):
        size = _FRAMING_BYTES + len(message.body) + len(message.wire_properties(_ID_OF_ANY_MESSAGE))
        if size > bytes_max:
            raise MessageIllegal(f"a message of {size} bytes; a batch has at most {bytes_max}")
        if size > room or len(batches[-1]) == DECODED_MAX:
            batches.append([])
            room = bytes_max
        batches[-1].append(message)
        room -= size
    return batches
