"""Recall: the cancellation of a delayed delivery, by the handle in the answer to its send.

Only the broker that a handle names (protocol/timers.py) can cancel the delivery.

Source: client/impl/producer/DefaultMQProducerImpl.java (recallMessage).
"""

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.send import RecallMessageHeader, RecallMessageResponseHeader
from protocol.timers import RecallHandle
from troupemq.client.arguments import check_instance, shown
from troupemq.client.connection.remoting import check_success
from troupemq.client.errors import ArgumentIllegal, NotSupported, understood
from troupemq.client.message import check_topic


def broker_of(handle: object) -> str:
    """Return the name of the broker that a recall handle names. Raises ArgumentIllegal."""
    if handle is None:
        raise ArgumentIllegal(
            "there is no recall handle: the broker gave none for this message, because it was not"
            " delayed by `delay` or `deliver_at`, or because the broker cannot recall"
        )
    check_instance(handle, str, "a recall handle is the text in SendResult.recall_handle")
    try:
        return RecallHandle.decode(str(handle)).broker_name
    except ValueError:
        raise ArgumentIllegal(
            f"invalid recall handle {shown(handle)}: use SendResult.recall_handle"
        ) from None


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
