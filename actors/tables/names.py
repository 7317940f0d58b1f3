"""Checks of topic and group names.

Source: common/topic/TopicValidator.java, client/Validators.java.
"""

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.topic_names import group_name_fault, topic_name_fault


def check_topic_name(topic: str) -> None:
    if fault := topic_name_fault(topic):
        raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)


def check_group_name(group: str) -> None:
    if fault := group_name_fault(group):
        raise RemoteError(ResponseCode.SYSTEM_ERROR, fault)
