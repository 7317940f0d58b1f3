"""Recall: the cancellation of a delayed delivery, by the handle in the answer to its send.

A handle is the URL-safe Base64 form of `v1 topic brokerName time messageId`. Only the broker that
it names can cancel the delivery.

Source: client/impl/producer/DefaultMQProducerImpl.java (recallMessage),
common/producer/RecallMessageHandle.java.
"""

from base64 import urlsafe_b64decode
from binascii import Error as Base64Error

from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.headers.send import RecallMessageHeader, RecallMessageResponseHeader
from troupemq.client.connection.remoting import check_success
from troupemq.client.errors import ArgumentIllegal, NotSupported, understood
from troupemq.client.message import check_topic

HANDLE_CHARS_MAX = 2048
HANDLE_WORDS = 5
VERSION = "v1"


def broker_of(handle: object) -> str:
    """Return the name of the broker that a recall handle names. Raises ArgumentIllegal."""
    if handle is None:
        raise ArgumentIllegal(
            "there is no recall handle: the broker gave none for this message, because it was not"
            " delayed by `delay` or `deliver_at`, or because the broker cannot recall"
        )
    if not isinstance(handle, str) or not handle.isascii() or len(handle) > HANDLE_CHARS_MAX:
        raise ArgumentIllegal("a recall handle is the text in SendResult.recall_handle")
    bare = handle.rstrip("=")
    try:
        words = urlsafe_b64decode(bare + "=" * (-len(bare) % 4)).decode().split(" ")
    except (Base64Error, UnicodeDecodeError):
        words = []
    if len(words) < HANDLE_WORDS or words[0] != VERSION:
        raise ArgumentIllegal(f"invalid recall handle {handle!r}: use SendResult.recall_handle")
    return words[2]


def recall_request(group: str, topic: str, handle: object) -> tuple[str, RemotingCommand]:
    """Return the broker to ask and the request. Raises ArgumentIllegal."""
    check_topic(topic)
    header = RecallMessageHeader(topic, str(handle), group)
    return broker_of(handle), RemotingCommand(RequestCode.RECALL_MESSAGE, header.encode())


def recalled(answer: RemotingCommand, broker_name: str, address: str) -> str:
    """Return the id of the message whose delivery is cancelled. Raises ClientError."""
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotSupported(
            f"broker {broker_name} cannot recall messages: that needs TroupeMQ or RocketMQ 5.3.2"
        )
    check_success(answer, address)
    return understood(RecallMessageResponseHeader.decode, answer.fields).msg_id
