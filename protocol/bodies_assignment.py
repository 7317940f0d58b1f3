"""The JSON bodies of assignments by the broker, and of the mode in which a group requests messages.

RocketMQ 5.x's. A client that leaves the assignment to a broker asks it for its queues of each
topic. In POP mode it gets one queue of id ALL_QUEUES (headers/pop.py) for each broker.

Source: remoting/protocol/body/QueryAssignmentRequestBody.java, QueryAssignmentResponseBody.java,
SetMessageRequestModeRequestBody.java, common/message/MessageQueueAssignment.java,
broker/loadbalance/MessageRequestModeManager.java (tag rocketmq-all-5.3.3).
"""

from dataclasses import field
from typing import ClassVar

from protocol.bodies import MessageQueue
from protocol.fastjson_limits import SHORT_NODES_MAX
from protocol.json_body import Body, named, value

PULL, POP = "PULL", "POP"
"""Modes of a group for one topic: the client pulls, or the broker hands out."""

AVG, AVG_BY_CIRCLE = "AVG", "AVG_BY_CIRCLE"
"""Strategies that a broker knows, by the names that clients send."""


@value
class AssignmentQuery(Body):
    """Request for a client's queues of a topic: QUERY_ASSIGNMENT."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    client_id: str | None = None
    consumer_group: str | None = None
    message_model: str | None = None
    strategy_name: str | None = None
    topic: str | None = None


@value
class QueueAssignment(Body):
    """One queue of a client, with the mode in which to request its messages."""

    message_queue: MessageQueue
    mode: str = PULL


@value
class AssignmentAnswer(Body):
    """A client's queues: answer of QUERY_ASSIGNMENT.

    An empty list takes all queues from the client. None leaves it those that it has.
    """

    message_queue_assignments: list[QueueAssignment] | None = None


@value
class RequestMode(Body):
    """Request mode of a group for one topic: SET_MESSAGE_REQUEST_MODE."""

    nodes_max: ClassVar = SHORT_NODES_MAX
    consumer_group: str | None = None
    mode: str = PULL
    pop_share_queue_num: int = 0
    """In POP mode: members whose queues a member shares; 0 and all others: every queue."""
    topic: str | None = None


@value
class RequestModeTable(Body):
    """All modes by topic and group: GET_ALL_MESSAGE_REQUEST_MODE, messageRequestMode.json."""

    modes: dict[str, dict[str, RequestMode]] = field(
        default_factory=dict, metadata=named("messageRequestModeMap")
    )
